"""Log-probabilities, as vLLM tells them: for each token a dict of its own and of the likeliest tokens'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from jaxtyping import Float

from .commit import Note
from .laws import leading
from .sampling import LogprobsMode


@dataclass(frozen=True, slots=True)
class Logprob:
    """rank: 1 for the likeliest token of the row. decoded_token: the token alone as text."""

    logprob: float
    rank: int
    decoded_token: str | None = None

    def as_dict(self) -> dict[str, float | int | str | None]:
        """For JSON, which has no infinity: log 0 is None."""
        return {
            "logprob": self.logprob if isfinite(self.logprob) else None,
            "rank": self.rank,
            "decoded_token": self.decoded_token,
        }


Entry = dict[int, Logprob]
"""Of one token: itself first, then the likeliest ones in order."""


def note_of(count: int, mode: LogprobsMode, decode: Callable[[int], str | None]) -> Note:
    """What `commit` writes down of a token: `count` of the likeliest beside it."""

    def note(token: int, logits: np.ndarray, law: Callable[[], Any]) -> Entry:
        row = raw(logits) if mode == "raw_logprobs" else processed(np.asarray(law(), np.float64))
        ids = [token, *(other for other in leading(row, count).tolist() if other != token)]
        return {each: Logprob(float(row[each]), rank(row, each), decode(each)) for each in ids}

    return note


def raw(logits: np.ndarray) -> Float[np.ndarray, " v"]:
    """log softmax, in float64.

    >>> raw(np.array([0.0, 0.0], np.float32)).round(6)
    array([-0.693147, -0.693147])
    """
    row = logits.astype(np.float64)
    row -= row.max()
    row -= np.log(np.exp(row).sum())
    return row


def processed(law: Float[np.ndarray, " v"]) -> Float[np.ndarray, " v"]:
    """Minus infinity for tokens without mass."""
    with np.errstate(divide="ignore"):
        return np.log(law)


def rank(row: Float[np.ndarray, " v"], token: int) -> int:
    """1 + how many are likelier."""
    return 1 + int(np.count_nonzero(row > row[token]))
