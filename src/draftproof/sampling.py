"""SamplingParams: what a caller asks for, validated once, and the law it stands for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import Law, Row
from .laws import warp


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """vLLM's names and meanings.

    temperature: 0 is greedy. top_k: 0 or -1 is off. top_p: 1 is off. min_p: 0 is off. seed: None draws a fresh one.
    stop: one or several strings that end the text and are not part of it. stop_token_ids: ids that end it, beside the
    model's own end-of-sequence ids. max_tokens: most tokens to emit.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: Any = ()  # stored as a tuple of strings
    stop_token_ids: Any = ()  # stored as a tuple of ids
    max_tokens: int = 256

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids"):  # one or several, in any sequence
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str | int) else _tuple(name, value))
        check_number("temperature", self.temperature, lambda x: math.isfinite(x) and x >= 0, ">= 0 (0 is greedy)")
        check_number("top_p", self.top_p, lambda x: 0 < x <= 1, "in (0, 1] (1 is off)")
        check_number("min_p", self.min_p, lambda x: 0 <= x <= 1, "in [0, 1] (0 is off)")
        check_integer("top_k", self.top_k, lambda k: k >= -1, ">= 1, or 0 or -1 (off)")
        check_integer("max_tokens", self.max_tokens, lambda n: n >= 1, ">= 1")
        if self.seed is not None:
            check_integer("seed", self.seed, lambda seed: 0 <= seed < 2**64, "in 0 .. 2**64 - 1")
        for stop in self.stop:
            if not (isinstance(stop, str) and stop):
                raise ValueError(f"stop: {stop!r} is not allowed; it must be a string, not empty")
        for token in self.stop_token_ids:
            check_integer("stop_token_ids", token, lambda token: token >= 0, "token ids")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def check_number(name: str, value: Any, ok: Callable[[Any], bool], right: str) -> None:
    """Refuse what is no number, and a number that is not `ok`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not ok(value):
        raise ValueError(f"{name}: {value!r} is not allowed; it must be a number {right}")


def check_integer(name: str, value: Any, ok: Callable[[Any], bool], right: str) -> None:
    """Refuse what is no whole number, and one that is not `ok`."""
    if isinstance(value, bool) or not isinstance(value, int) or not ok(value):
        raise ValueError(f"{name}: {value!r} is not allowed; it must be a whole number {right}")


def _tuple(name: str, value: Any) -> tuple:
    try:
        return tuple(value)
    except TypeError:
        raise ValueError(f"{name}: {value!r} is not allowed; it must be a sequence") from None


def law_of(params: SamplingParams) -> Law:
    """The sampling law of every row of a request, draft rows and the bonus alike."""

    def law(logits: np.ndarray, history: Sequence[int]) -> Row:
        try:
            return warp(
                logits,
                temperature=params.temperature,
                top_k=params.top_k,
                top_p=params.top_p,
                min_p=params.min_p,
            )
        except ValueError as error:
            raise ValueError(f"position {len(history)}: {error}") from None

    return law
