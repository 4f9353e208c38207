"""SamplingParams: what a caller asks for, validated once, and the law it stands for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from .base import Law, Row
from .laws import warp

LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
MAX_LOGPROBS = 1024
MOST = 2**31 - 1  # of ids and counts

Adjust = Callable[[np.ndarray, Sequence[int]], np.ndarray]
"""(logits row, committed and drafted tokens before it) -> adjusted logits, another array if anything changes."""


class AdjustError(ValueError):
    """A chain gave no logits: the row has no law under the request's own options."""


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """vLLM's: the whole answer has this form. One of: json (a JSON schema, as a dict or text), regex, choice (one of
    these strings), grammar (Lark, as llguidance reads it), json_object (any JSON object)."""

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def __post_init__(self) -> None:
        given = [
            f.name for f in fields(self) if getattr(self, f.name) is not None and getattr(self, f.name) is not False
        ]
        if len(given) != 1:
            named = ", ".join(given) or "none of them"
            raise ValueError(
                f"structured_outputs: {named} given; give one of json, regex, choice, grammar, json_object"
            )
        if not isinstance(self.json_object, bool | None):
            raise ValueError(f"json_object: {self.json_object!r} is not allowed; it must be True")
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise ValueError(f"{name}: {value!r} is not allowed; it must be a string, not empty")
        if self.json is not None and not isinstance(self.json, str | Mapping):
            raise ValueError(f"json: {self.json!r} is not allowed; it must be a JSON schema, as a dict or its text")
        if self.choice is not None:
            choices = _tuple("choice", self.choice)
            if (
                isinstance(self.choice, str)
                or not choices
                or not all(isinstance(each, str) and each for each in choices)
            ):
                raise ValueError(f"choice: {self.choice!r} is not allowed; it must be a list of strings, none empty")
            object.__setattr__(self, "choice", choices)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """vLLM's names and meanings, and Hugging Face's typical_p.

    n: completions of one prompt; number i has noise of its own under the same seed.

    The law, in the order in which it is made (processors.py, then laws.warp):
    logit_bias: token id -> what is added to its logit, in -100 .. 100.
    repetition_penalty: > 1 makes tokens of prompt and answer less likely: positive logits are divided by it, negative
        ones multiplied. frequency_penalty: taken from the logit for each time the token is in the answer.
    presence_penalty: taken once if it is.
    bad_words: texts that are not said: the token that would complete one is banned.
    min_tokens: tokens that no end or stop id may come before; stop strings are looked for in what follows them.
    structured_outputs: a grammar for the whole answer.
    logits_processors: Hugging Face LogitsProcessors of one's own, which must be functions of what they are given.
    temperature: 0 is greedy. top_k: 0 or -1 is off. top_p: 1 is off. min_p: 0 is off. typical_p: 1 is off.

    The end: stop: one or several strings that end the text and are not part of it. stop_token_ids: ids that end it,
    beside the model's own end-of-sequence ids. ignore_eos: those do not end it. max_tokens: most tokens to emit; None:
    until the model's context is full.

    What is told: logprobs: log-probabilities of each token and of so many likeliest ones beside it; None is off.
    prompt_logprobs: the same of the prompt's tokens. logprobs_mode: "raw_logprobs" are the model's own,
    "processed_logprobs" those of the law that the token was drawn from.

    seed: None draws a fresh one.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None
    stop: Any = ()  # stored as a tuple of strings
    stop_token_ids: Any = ()  # stored as a tuple of ids
    ignore_eos: bool = False
    max_tokens: int | None = 256
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: LogprobsMode = "raw_logprobs"
    bad_words: Any = ()  # stored as a tuple of strings
    logit_bias: Any = None  # stored as a dict of numbers, None if it is empty
    structured_outputs: Any = None  # a StructuredOutputsParams, or its fields as a dict
    logits_processors: Any = ()  # stored as a tuple

    def __post_init__(self) -> None:
        for each in fields(self):  # NumPy's and torch's numbers
            object.__setattr__(self, each.name, _plain(getattr(self, each.name)))
        for name in ("stop", "stop_token_ids", "bad_words", "logits_processors"):  # one or several, in any sequence
            value = getattr(self, name)
            alone = isinstance(value, str | int) or callable(value)
            found = () if value is None else (value,) if alone else tuple(map(_plain, _tuple(name, value)))
            object.__setattr__(self, name, found)
        check_number("temperature", self.temperature, lambda x: math.isfinite(x) and x >= 0, ">= 0 (0 is greedy)")
        check_number("top_p", self.top_p, lambda x: 0 < x <= 1, "in (0, 1] (1 is off)")
        check_number("min_p", self.min_p, lambda x: 0 <= x <= 1, "in [0, 1] (0 is off)")
        check_number("typical_p", self.typical_p, lambda x: 0 < x <= 1, "in (0, 1] (1 is off)")
        check_integer("top_k", self.top_k, lambda k: -1 <= k <= MOST, f"in 1 .. {MOST}, or 0 or -1 (off)")
        self._check_penalties()
        self._check_lengths()
        self._check_told()
        if self.seed is not None:
            check_integer("seed", self.seed, lambda seed: 0 <= seed < 2**64, "in 0 .. 2**64 - 1")
        for name in ("stop", "bad_words"):
            for text in getattr(self, name):
                if not (isinstance(text, str) and text and is_unicode(text)):
                    raise ValueError(f"{name}: {text!r} is not allowed; it must be a string, not empty")
        for token in self.stop_token_ids:
            check_integer("stop_token_ids", token, lambda token: 0 <= token <= MOST, f"in 0 .. {MOST}, a token id")
        for processor in self.logits_processors:
            if not callable(processor):
                raise ValueError(f"logits_processors: {processor!r} is not allowed; it must be a LogitsProcessor")
        self._check_grammar()

    def _check_penalties(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            check_number(name, getattr(self, name), lambda x: -2 <= x <= 2, "in [-2, 2] (0 is off)")
        check_number(
            "repetition_penalty", self.repetition_penalty, lambda x: math.isfinite(x) and x > 0, "> 0 (1 is off)"
        )
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, Mapping):
            raise ValueError(f"logit_bias: {self.logit_bias!r} is not allowed; it must map token ids to numbers")
        found = {}
        for token, bias in self.logit_bias.items():
            # JSON, and so every client of an HTTP API, has keys of text
            token = int(token) if isinstance(token, str) and re.fullmatch("[0-9]{1,10}", token) else _plain(token)
            check_integer("logit_bias", token, lambda token: 0 <= token <= MOST, f"in 0 .. {MOST}, a token id")
            bias = _plain(bias)
            check_number(f"logit_bias of {token}", bias, lambda x: -100 <= x <= 100, "in [-100, 100]")
            found[token] = float(bias)
        object.__setattr__(self, "logit_bias", found or None)

    def _check_lengths(self) -> None:
        check_integer("n", self.n, lambda n: 1 <= n <= 1024, "in 1 .. 1024")
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, lambda n: n >= 1, ">= 1, or None")
        most, named = (
            (MOST, str(MOST)) if self.max_tokens is None else (self.max_tokens, f"max_tokens ({self.max_tokens})")
        )
        check_integer("min_tokens", self.min_tokens, lambda n: 0 <= n <= most, f"in 0 .. {named}")
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"ignore_eos: {self.ignore_eos!r} is not allowed; it must be True or False")

    def _check_told(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), lambda k: 0 <= k <= MAX_LOGPROBS, f"in 0 .. {MAX_LOGPROBS}")
        if self.logprobs_mode not in ("raw_logprobs", "processed_logprobs"):
            raise ValueError(
                f"logprobs_mode: {self.logprobs_mode!r} is unknown; known are raw_logprobs, processed_logprobs"
            )

    def _check_grammar(self) -> None:
        given = self.structured_outputs
        if isinstance(given, Mapping):
            known = [f.name for f in fields(StructuredOutputsParams)]
            for key in given:
                if key not in known:
                    raise ValueError(f"structured_outputs: unknown key {key!r}; known are {', '.join(known)}")
            object.__setattr__(self, "structured_outputs", StructuredOutputsParams(**given))
        elif not isinstance(given, StructuredOutputsParams | None):
            raise ValueError(f"structured_outputs: {given!r} is not allowed; it must be a StructuredOutputsParams")
        if self.structured_outputs is not None and self.ignore_eos:
            raise ValueError("ignore_eos: True is not allowed with structured_outputs; a grammar ends its text by it")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def adjusts(self) -> tuple[str, ...]:
        """What of it changes logits before they are warped: options that need a chain (processors.py)."""
        off = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "min_tokens": 0}
        asked = [name for name, neutral in off.items() if getattr(self, name) != neutral]
        names = ("logit_bias", "bad_words", "structured_outputs", "logits_processors")
        return (*asked, *(name for name in names if getattr(self, name)))


def as_config(params: SamplingParams) -> dict[str, Any]:
    """All but the seed, for JSON. Processors are the caller's: they are named, not copied."""
    found = asdict(replace(params, logits_processors=()))
    del found["seed"]
    return found | {"logits_processors": [type(each).__name__ for each in params.logits_processors]}


def require_params(given: object) -> None:
    if not isinstance(given, SamplingParams | None):
        raise ValueError(f"sampling_params: {given!r} is not allowed; it must be SamplingParams, or a list of them")


def check_number(name: str, value: Any, ok: Callable[[Any], bool], right: str) -> None:
    """Refuse what is no number, and a number that is not `ok`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (abs(value) < _LARGE and ok(value)):
        raise ValueError(f"{name}: {_shown(value)} is not allowed; it must be a number {right}")


def check_integer(name: str, value: Any, ok: Callable[[Any], bool], right: str) -> None:
    """Refuse what is no whole number, and one that is not `ok`."""
    if isinstance(value, bool) or not isinstance(value, int) or not ok(value):
        raise ValueError(f"{name}: {_shown(value)} is not allowed; it must be a whole number {right}")


def is_unicode(text: str) -> bool:
    """Whether it has no halves of surrogate pairs, which no tokenizer and no file takes."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


_LARGE = 1e300  # whole numbers beyond it are no floats


def _shown(value: object) -> str:
    """Its repr, on one line and not too long."""
    text = " ".join(repr(value).split()) if not isinstance(value, int) or abs(value) < 10**40 else "so large a number"
    return text if len(text) <= 80 else f"{text[:80]}…"


def _plain(value: Any) -> Any:
    """A number of NumPy's as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _tuple(name: str, value: Any) -> tuple:
    try:
        return tuple(value)
    except TypeError:
        raise ValueError(f"{name}: {value!r} is not allowed; it must be a sequence") from None


def law_of(params: SamplingParams, adjust: Adjust | None = None) -> Law:
    """The sampling law of every row of a request, draft rows and the bonus alike.

    adjust: the request's chain, for what `params.adjusts` names (a ValueError if it is missing: an option is never
    ignored).
    """
    adjusted = adjusting(params, adjust)

    def law(logits: np.ndarray, history: Sequence[int]) -> Row:
        return warped(adjusted(logits, history), history, params)

    return law


def warped(logits: np.ndarray, history: Sequence[int], params: SamplingParams) -> Row:
    """Adjusted logits -> the law. A ValueError that names the position if they hold none."""
    try:
        return warp(
            logits,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            typical_p=params.typical_p,
        )
    except ValueError as error:
        raise ValueError(f"position {len(history)}: {error}") from None


def adjusting(params: SamplingParams, adjust: Adjust | None) -> Adjust:
    """`adjust`, whose errors name the position; what changes nothing if there is none."""
    if adjust is None:
        if params.adjusts:
            raise ValueError(f"{params.adjusts[0]}: it needs a request's chain of processors, and none was given")
        return lambda logits, history: logits

    def adjusted(logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
        try:
            return adjust(logits, history)
        except Exception as error:
            raise AdjustError(f"position {len(history)}: {error}") from error

    return adjusted
