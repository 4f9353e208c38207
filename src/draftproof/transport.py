"""The most that any lossless rule can accept of k drafts of one position: the optimal transport from drafts to target.

A coupling accepts all but the worst-covered set H: 1 − max over H of P(all drafts in H) − p(H) (Strassen's theorem).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from .base import Row


def independent_bound(p: Row, q: Row, k: int) -> Any:
    """The most that any lossless rule accepts of k independent draws from q: 1 + min over H of p(H) − q(H)^k.

    The optimal transport of Sun et al. (SpecTr, NeurIPS 2023, 2310.15141); the minimum is on a prefix H of the tokens
    in order of rising p/q (Hu et al., ICLR 2025, 2502.18779). By hand: one draft lies in H = {middle} with .3, where p
    has nothing; two drafts lie in {middle, first} with .8², where p has .5.

    >>> p, q = np.array([0.5, 0.0, 0.5]), np.array([0.5, 0.3, 0.2])
    >>> float(round(independent_bound(p, q, 1), 12)), float(round(independent_bound(p, q, 2), 12))
    (0.7, 0.86)
    """
    p, q = by_ratio(*pair(p, q, k))
    return _least(p, 1 - np.cumsum(q) ** k)


def distinct_bound(p: Row, q: Row, k: int) -> Any:
    """The same for k draws from q without replacement. Exact for k <= 2; beyond by quadrature, in float64.

    By hand: two distinct drafts lie in H = {middle, first} with .3·.5/.7 + .5·.3/.5 = .514286, where p has .5.

    >>> float(round(distinct_bound(np.array([0.5, 0.0, 0.5]), np.array([0.5, 0.3, 0.2]), 2), 12))
    0.985714285714
    """
    p, q = by_ratio(*pair(p, q, k))
    return _least(p, _some_outside(q, min(k, int((q > 0).sum()))))


def distinct_estimate(p: Row, q: Row, k: int, rng: np.random.Generator, draws: int = 512) -> float:
    """`distinct_bound`, estimated for large vocabularies, where that takes seconds: in expectation never less, whatever
    the number of draws, and with some hundreds about a hundredth more.

    p(H) + P(some draft outside H) is a bound whatever the set H. Half of the draws say which prefix H makes it least,
    the other half, which know nothing of that choice, how often it is left.

    >>> p, q = np.array([0.5, 0.0, 0.5]), np.array([0.5, 0.3, 0.2])
    >>> abs(distinct_estimate(p, q, 2, np.random.default_rng(0), draws=200_000) - 0.985714) < 0.01
    True
    """
    p, q = by_ratio(*pair(p, q, k))
    last = _last_drawn(q.astype(np.float64), min(k, int((q > 0).sum())), draws, rng)
    chosen_by, judged_by = np.sort(last[: draws // 2]), last[draws // 2 :]
    inside = np.searchsorted(chosen_by, np.arange(len(q)), side="right") / len(chosen_by)
    mass = np.cumsum(p)
    end = int(np.argmin(mass - inside))
    if not mass[end] < inside[end]:  # the empty set does as well
        return 1.0
    return float(mass[end] + np.mean(judged_by > end))


def _last_drawn(q: Float[np.ndarray, " v"], k: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """The largest index among k tokens drawn from q without replacement, for each of so many draws.

    The tokens stand by rising mass, so that what is left beside a token of nearly all mass keeps its digits.
    """
    order = np.argsort(q, kind="stable")
    ends = np.cumsum(q[order])
    begins = np.concatenate([[0.0], ends])  # of each token, and the end of all
    gone = np.full((draws, 1), len(q))  # places that cannot be drawn, rising; the last one is a guard
    for _ in range(k):
        low = np.concatenate(
            [np.zeros((draws, 1), int), gone[:, :-1] + 1], axis=1
        )  # gaps between them: low .. gone − 1
        widths = np.cumsum(begins[gone] - begins[low], axis=1)
        at = rng.random(draws)[:, None] * widths[:, -1:]
        gap = np.minimum((at >= widths).sum(axis=1, keepdims=True), widths.shape[1] - 1)
        first, stop, width = (np.take_along_axis(each, gap, axis=1) for each in (low, gone, widths))
        offset = at - width + begins[stop]  # counted from the gap's end
        found = np.clip(np.searchsorted(ends, offset, side="right"), first, np.maximum(stop - 1, first))
        gone = np.sort(np.concatenate([gone, found], axis=1), axis=1)
    return order[gone[:, :-1]].max(axis=1)


def _least(p: Row, outside: Row) -> Any:
    """Min over the prefixes H of p(H) + P(some draft outside H); the empty one gives 1."""
    return min((np.cumsum(p) + outside).min(), 1 + 0 * p[0])


def _some_outside(q: Row, k: int) -> Row:
    """For each prefix H of q: the probability that k draws without replacement do not all fall into it."""
    outside = np.concatenate([np.cumsum(q[::-1])[::-1][1:], [0 * q[0]]])
    if k == 1:
        return outside
    if k == 2:  # the first is outside, or it is i of H and the second is
        after = np.array([x / left if left > 0 else 0 * x for x, left in zip(q, others(q), strict=True)])
        return outside * (1 + np.cumsum(after))
    return _some_outside_by_clocks(q.astype(np.float64), outside.astype(np.float64), k)


def _some_outside_by_clocks(
    q: Float[np.ndarray, " v"], outside: Float[np.ndarray, " v"], k: int
) -> Float[np.ndarray, " v"]:
    """Draws without replacement are the first arrivals of independent clocks with rates q.

    The first arrival outside H comes at rate o = 1 − q(H), and the draws are not all in H if fewer than k of H came
    before it: ∫ o·exp(−o·t)·P(fewer than k of H by t) dt. What has arrived of H is a sum of independent coins:
    P(j by t) = exp(−q(H)·t)·e_j with e_j the elementary symmetric polynomials of exp(q_i·t) − 1. The integral runs over
    log t, where the trapezoid rule converges exponentially (error about exp(−π²/step)).
    """
    step, surely = 0.25, 45.0  # exp(−45) is nothing beside 1
    with np.errstate(divide="ignore"):  # log 0 of a token without mass
        log_q, log_rate = np.log(q), np.log(outside)
    last = np.log(750) - log_rate[outside > 0].min(initial=0.0)  # exp(−750) is nothing at all
    missed = np.zeros(len(q))
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        for log_t in np.arange(-37, last + step, step):
            arrivals, first = np.exp(log_q + log_t), np.exp(log_rate + log_t)
            here = arrivals > surely
            arrived, waiting = np.cumsum(here), np.where(here, 0, arrivals)
            gone = np.cumsum(waiting)
            log_odds = waiting + np.log(-np.expm1(-waiting))
            log_e = np.zeros(len(q))
            few = np.exp(-gone) * (arrived < k)
            for j in range(1, k):
                before = np.concatenate([[0.0 if j == 1 else -np.inf], log_e[:-1]])  # e_(j−1) of one token less
                log_e = np.logaddexp.accumulate(log_odds + before)
                few += np.exp(log_e - gone) * (arrived + j < k)
            missed += step * np.where(first < 750, first, 0) * np.exp(-first) * few
    return np.minimum(missed, 1)


# -- shared with theory.py


def pair(p: Any, q: Any, k: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Two rows of one length, and a number of drafts that makes sense."""
    p, q = np.asarray(p), np.asarray(q)
    if p.ndim != 1 or p.shape != q.shape or not len(p):
        raise ValueError(f"p, q: shapes {p.shape} and {q.shape}; they must be two rows of the same V probabilities")
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k: {k} is not allowed; it must be a whole number >= 1, the number of drafts")
    return p, q


def by_ratio(p: Row, q: Row) -> tuple[Row, Row]:
    """The tokens that have mass, in order of rising p/q."""
    both = (p > 0) | (q > 0)
    p, q = p[both], q[both]
    if p.dtype == object:
        ratio = p / (p + q)
    else:  # p/(p + q) would round to 1 for all ratios above 1e16
        with np.errstate(divide="ignore"):
            ratio = np.log(p) - np.log(q)
    order = np.argsort(ratio, kind="stable")
    return p[order], q[order]


def others(q: Row) -> Row:
    """What each token leaves to the others: Σ q − q_x without the cancellation."""
    none = [0 * q[0]]
    return np.concatenate([none, np.cumsum(q)[:-1]]) + np.concatenate([np.cumsum(q[::-1])[::-1][1:], none])
