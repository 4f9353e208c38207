"""SamplingParams: what a caller asks for, validated once, and the law it stands for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .base import Law, Row
from .laws import warp


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """vLLM's names and meanings.

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off. min_p: 0 is off. seed: None draws a fresh one.
    stop: strings that end the text and are not part of it. stop_token_ids: ids that end it, beside the model's own
    end-of-sequence ids. max_tokens: most tokens to emit.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int = 256

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, math.isfinite(self.temperature) and self.temperature >= 0, ">= 0")
        _check("top_k", self.top_k, self.top_k >= 0, ">= 0 (0 is off)")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "in (0, 1] (1 is off)")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "in [0, 1] (0 is off)")
        _check("max_tokens", self.max_tokens, self.max_tokens >= 1, ">= 1")
        _check("stop", self.stop, isinstance(self.stop, tuple) and all(self.stop), "a tuple of strings, none empty")
        if self.seed is not None:
            _check("seed", self.seed, 0 <= self.seed < 2**64, "in 0 .. 2**64 - 1")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def _check(name: str, value: object, ok: bool, right: str) -> None:
    if not ok:
        raise ValueError(f"{name}: {value!r} is not allowed; it must be {right}")


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
