"""Structured outputs: which tokens may come next if the whole answer is to have a given form.

llguidance, which is an extra, reads the grammars. What the rest of the product relies on is said here: a mask is a
function of the tokens before it alone, an answer ends where its form is complete and nowhere else, and what is wrong is
said in one line.

A token is allowed if the text with it can be gone on with to one that has the form. How a text is cut into tokens is
left to the model: llguidance would rather force the tokenizer's own cut (docs/decisions/0011-grammar.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import Draft
from .processors import common
from .sampling import StructuredOutputsParams
from .trees import path_to

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

KEPT = 16
"""Compiled grammars that are kept."""

_WHITE_SPACE = r"[ \t\r\n]{0,24}"  # between the parts of JSON: a new line and an indent
_UNFORCED = '\n%llguidance {"no_forcing": true}'
_OURS = "at 1(8): "  # where what follows our own `start:` begins
_TEMPERATURE = re.compile(r"^[?!]*\w+\s*\[[^\]]*\btemperature\s*=", re.MULTILINE)


class Grammars:
    """Makes the grammars of one model's requests. A form is compiled once; the package is not needed until the first.

    tokenizer: a fast one. vocab_size: of the model, which may be padded. end_ids: those that end an answer.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, end_ids: frozenset[int]) -> None:
        self._tokenizer, self._vocab_size, self._end_ids = tokenizer, vocab_size, end_ids
        self._compiled = lru_cache(KEPT)(self._compile)

    def of(self, params: StructuredOutputsParams, prompt_length: int) -> Grammar:
        """The grammar of one request. A ValueError if the form makes no sense, or the package is missing."""
        _require_package()
        vocabulary = self._vocabulary
        name, value, source = _source(params)
        try:
            start = self._compiled(source(value))
        except ValueError as error:
            why = str(error) if name == "grammar" else str(error).removeprefix(_OURS)
            raise ValueError(f"{name}: {_short(value)} is not allowed; {why}") from None
        return Grammar(start, vocabulary.vocab_size, self._end_ids, prompt_length)

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        from llguidance.hf import from_tokenizer

        known = 1 + max(self._tokenizer.get_vocab().values())
        ends = sorted(token for token in self._end_ids if token < known)
        if not ends:
            raise ValueError(
                f"structured_outputs: end ids {sorted(self._end_ids)} are not in the tokenizer; an answer of a form "
                "ends by one"
            )
        try:
            return from_tokenizer(self._tokenizer, n_vocab=max(known, self._vocab_size), eos_token=ends)
        except ValueError as error:
            kind = type(self._tokenizer).__name__
            raise ValueError(f"structured_outputs: not with this model's tokenizer, a {kind}; {error}") from error

    def _compile(self, lark: str) -> LLMatcher:
        from llguidance import LLMatcher

        text = json.dumps({"grammars": [{"lark_grammar": lark + _UNFORCED}]})
        matcher = LLMatcher(self._vocabulary, text, log_level=0)
        if not matcher.is_error():
            _try_out(matcher.deep_copy())
            return matcher
        raise ValueError(_line(matcher.get_error()))


class Grammar:
    """The form of one request's answer: of the tokens after its first `prompt_length`.

    start: at the beginning of a text. width: ids that it knows. It remembers how far it got with the text it was asked
    about last: the next one differs in a few tokens at its end.
    """

    def __init__(self, start: LLMatcher, width: int, end_ids: frozenset[int], prompt_length: int) -> None:
        self._start, self._width, self._end_ids, self._prompt_length = start, width, end_ids, prompt_length
        self._ends = np.array([token for token in sorted(end_ids) if token < width], np.int64)
        self._restart()

    def mask(self, row: np.ndarray, history: Sequence[int]) -> np.ndarray:
        """`row`, changed in place: -inf for what may not follow `history`.

        After the end only the end may follow, so rows beyond a drafted end have a law. A ValueError after what the
        grammar does not allow: a rule never asks for such a row, as nothing leads there.
        """
        if len(history) < self._prompt_length:
            return row  # of the prompt, which has no form
        allowed = self._allowed(list(history[self._prompt_length :]))[: len(row)]
        np.copyto(row[: len(allowed)], -np.inf, where=~allowed)
        row[len(allowed) :] = -np.inf
        return row

    def legal(self, history: Sequence[int], draft: Draft) -> list[bool]:
        """Of each node of a draft after `history`, whether it is allowed there and so are all nodes above it."""
        answer, parents = list(history[self._prompt_length :]), draft.parents
        paths = ([draft.tokens[each] for each in path_to(parents, node)] for node in range(len(draft)))
        return [self._takes([*answer, *path]) for path in paths]

    def _takes(self, answer: list[int]) -> bool:
        rest = answer[self._follow(answer) :]
        return not rest or self._ended(rest)

    def _allowed(self, answer: list[int]) -> np.ndarray:
        taken = self._follow(answer)
        rest = answer[taken:]
        if rest and not self._ended(rest):
            raise ValueError(f"structured_outputs: token {rest[0]} may not follow the first {taken} of the answer")
        if rest:
            allowed = np.zeros(self._width, bool)
            allowed[self._ends] = True
            return allowed
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._require_sound()  # what is wrong looks like an end
        allowed = np.unpackbits(bits, count=self._width, bitorder="little").view(bool)
        allowed[self._ends] = self._matcher.is_accepting()  # an end id is no text, whatever its characters
        return allowed

    def _follow(self, answer: list[int]) -> int:
        """Bring the matcher behind the longest beginning of `answer` that is allowed and no end; return its length."""
        shared = common(self._taken, answer)
        if shared < len(self._taken):
            self._matcher.rollback(len(self._taken) - shared)
            del self._taken[shared:]
        new = list(takewhile(self._is_text, answer[shared:]))
        count = self._matcher.try_consume_tokens(new)
        self._require_sound()
        self._taken += new[:count]
        return len(self._taken)

    def _is_text(self, token: int) -> bool:
        return token < self._width and token not in self._end_ids

    def _ended(self, rest: Sequence[int]) -> bool:
        """Whether `rest` is an end, and the form is complete before it."""
        return self._end_ids.issuperset(rest) and self._matcher.is_accepting()

    def _restart(self) -> None:
        self._matcher, self._taken = self._start.deep_copy(), []

    def _require_sound(self) -> None:
        """A matcher in error stays there, so the next question gets a new one."""
        if self._matcher.is_error():
            why = _line(self._matcher.get_error())
            self._restart()
            raise ValueError(f"structured_outputs: {why}")


def _require_package() -> None:
    try:
        import llguidance  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "structured_outputs: it needs the package llguidance; run: pip install 'draftproof[grammar]'"
        ) from error


def _source(params: StructuredOutputsParams) -> tuple[str, Any, Callable[[Any], str]]:
    """The option that was given, its value, and what makes Lark of it."""
    if params.json is not None:
        return "json", params.json, _json_source
    if params.regex is not None:
        return "regex", params.regex, _regex_source
    if params.choice is not None:
        return "choice", params.choice, _choice_source
    if params.grammar is not None:
        return "grammar", params.grammar, _lark_source
    return "json_object", {"type": "object"}, _json_source


def _json_source(schema: str | Mapping[str, Any]) -> str:
    try:
        read = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(read, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"it must be JSON: {error}") from None
    if not isinstance(read, Mapping):
        raise ValueError('it must be a JSON schema, which is an object such as {"type": "object"}')
    if "x-guidance" not in read:  # unbounded white space is a form too, and models have been seen to fill pages with it
        text = json.dumps({**read, "x-guidance": {"whitespace_pattern": _WHITE_SPACE}}, allow_nan=False)
    return f"start: %json {text}"


def _regex_source(regex: str) -> str:
    from llguidance import regex_to_lark

    return f"start: /{regex_to_lark(regex, use_ascii='')}/"  # \d and \w are Unicode's, as in Python


def _choice_source(choice: Sequence[str]) -> str:
    return "start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, choice))  # one terminal: a rule has 2,000 at most


def _lark_source(lark: str) -> str:
    if _TEMPERATURE.search(lark):
        raise ValueError("temperature= in a rule is not read; leave it out, and give the request a temperature")
    return lark


def _try_out(matcher: LLMatcher) -> None:
    """A ValueError if there is no first token, or the first cannot be taken back."""
    first = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    if matcher.is_error():
        raise ValueError(_line(matcher.get_error()))
    if matcher.try_consume_tokens([int(first.argmax())]) and not matcher.rollback(1):
        raise ValueError("max_tokens= and stop= cannot be undone when a draft is refused; suffix= and lazy can")


def _line(error: str) -> str:
    """What llguidance says over several lines, in one."""
    first, *more = error.splitlines()
    if first.startswith("NoExtension"):
        return "no token of the vocabulary leads on to a text of this form"
    told = [first, *(line.removeprefix("error: ") for line in more if line.startswith("error: "))]
    return " ".join(told)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]} … ({len(text)} characters)"
