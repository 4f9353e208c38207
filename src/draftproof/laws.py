"""Pure mathematics of one row: from logits to a law, and what verification does with two laws.

Everything but `warp` is generic over the number type: float64 arrays in production, object arrays of `Fraction` in the
proofs, through the same lines of code.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from .base import Row


def one_hot(index: int, size: int) -> Float[np.ndarray, " v"]:
    """The law that always gives `index`."""
    row = np.zeros(size)
    row[index] = 1.0
    return row


def warp(
    logits: Float[np.ndarray, " v"],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
) -> Float[np.ndarray, " v"]:
    """Logits -> the sampling law, in float64. Order as in Hugging Face: temperature, top-k, top-p, min-p, typical-p.

    temperature 0 is greedy: the one-hot law at the argmax, lowest id on ties. top_k 0 is off; ties at the cut go to
    the lowest ids, so exactly top_k tokens stay. top_p keeps the shortest prefix, by falling probability, whose mass
    reaches top_p. min_p drops tokens below min_p times the largest probability. typical_p keeps the tokens whose
    surprise lies nearest to its mean, up to that mass (Meister et al. 2022, 2202.00666), and those as near as the last.

    >>> warp(np.array([1.0, 1.0, 0.0]), temperature=0.0)
    array([1., 0., 0.])
    >>> warp(np.log([0.5, 0.3, 0.2]), top_k=2)
    array([0.625, 0.375, 0.   ])

    Raises ValueError for a row with NaN or +inf, or with no finite entry (−inf entries are tokens without mass).
    """
    best = int(np.argmax(logits))  # the first NaN wins an argmax, so one look at the winner finds both faults
    peak = float(logits[best])
    if not np.isfinite(peak):
        raise ValueError(f"logits: the row's largest entry is {peak} (token {best}); it must be finite")
    if temperature == 0:
        return one_hot(best, len(logits))
    below = logits.astype(np.float64)
    below -= peak
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the peak to −inf, as it should
        below /= temperature
    row = np.exp(below)
    if 0 < top_k < len(row):
        _keep_only(row, leading(logits, top_k))
    if top_p < 1:
        _keep_only(row, _nucleus(logits, row, top_p))
    if min_p > 0:
        row[below < math.log(min_p)] = 0.0
    row /= row.sum()
    if typical_p < 1:
        row[_surprise_off_mean(row) > _typical_reach(row, typical_p)] = 0.0
        row /= row.sum()
    return row


def _surprise_off_mean(row: np.ndarray) -> np.ndarray:
    """|−log p − H(p)|; infinite for tokens without mass."""
    with np.errstate(divide="ignore"):
        surprise = -np.log(row)
    mean = float(row[row > 0] @ surprise[row > 0])
    return np.abs(surprise - mean)


def _typical_reach(row: np.ndarray, mass: float) -> float:
    """How far off the mean the tokens that make up `mass` are, the nearest first."""
    off = _surprise_off_mean(row)
    order = np.argsort(off, kind="stable")
    last = int(np.sum(np.cumsum(row[order]) < mass))
    return float(off[order[min(last, int(np.count_nonzero(row)) - 1)]])


def _keep_only(row: np.ndarray, ids: np.ndarray) -> None:
    kept = row[ids]
    row[:] = 0.0
    row[ids] = kept


def leading(row: np.ndarray, k: int) -> np.ndarray:
    """Ids of the k largest entries in falling order, lowest id first among equals, without sorting the whole row."""
    if k <= 0:
        return np.empty(0, np.int64)
    if k >= len(row):
        return np.argsort(-row, kind="stable")
    threshold = np.partition(row, len(row) - k)[len(row) - k]
    pool = np.flatnonzero(row >= threshold)  # more than k only if the threshold is tied
    return pool[np.argsort(-row[pool], kind="stable")][:k]


def _nucleus(logits: np.ndarray, row: np.ndarray, top_p: float) -> np.ndarray:
    """Ids of the shortest prefix, by falling logit, whose mass in `row` reaches top_p of it all; at least one."""
    goal = top_p * row.sum()
    k = 64
    while True:
        ids = leading(logits, k)
        reached = np.cumsum(row[ids]) >= goal
        if reached.any():
            return ids[: int(np.argmax(reached)) + 1]
        if k >= len(row):  # goal missed by rounding alone
            return ids
        k *= 16


def acceptance(p: Any, q: Any) -> Any:
    """Probability of accepting a token with target probability p that was drawn with probability q: min(1, p/q).

    Compared before it is divided: a tiny q would overflow. NaN stays NaN, which no coin takes.

    >>> acceptance(0.3, 0.6), acceptance(0.3, 5e-324)
    (0.5, 1)
    """
    return 1 if p >= q else p / q


def residual(p: Row, q: Row, weight: Any = 1) -> Row:
    """(weight·p − q)₊, not normalised: what the target still owes after the draft's share was accepted.

    >>> residual(np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.3, 0.1])).round(12)
    array([0. , 0. , 0.1])
    """
    return np.maximum(weight * p - q, 0 * p)


def without(p: Row, token: int) -> Row:
    """`p` with one token's mass removed: the residual of a chosen token."""
    rest = p.copy()
    rest[token] = 0 * rest[token]
    return rest


def total(row: Row) -> Any:
    """The row's mass."""
    return row.sum()


def overlap(p: Row, q: Row) -> Any:
    """Σ min(p, q) = 1 − TV(p, q): the most that one draft from q can be accepted with."""
    return np.minimum(p, q).sum()


def fit(row: Shaped[np.ndarray, " u"], size: int) -> Row:
    """A row cut or zero-padded to `size` entries: models of one tokenizer pad their vocabularies differently."""
    if len(row) == size:
        return row
    out = np.zeros(size, row.dtype)
    out[: min(size, len(row))] = row[:size]
    return out
