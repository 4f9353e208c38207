"""What speculation can gain: expected lengths and speed-ups, acceptance of each scheme, and the bounds on it.

Generic over the number type, like laws.py, unless said otherwise: `Fraction` in, exact answer out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from .base import ROOT, Row
from .laws import SUM_TOLERANCE, leading, overlap, residual, total, without

# -- lengths and speed-ups


def survival(acceptances: Sequence[Any]) -> list[Any]:
    """Probability that positions 1..i are all accepted, from the acceptance of each given that it is reached.

    >>> survival([0.5, 0.5, 0.25])
    [0.5, 0.25, 0.0625]
    """
    for i, acceptance in enumerate(acceptances):
        if not 0 <= acceptance <= 1:
            raise ValueError(f"acceptances: {acceptance} at {i} is not allowed; it must be a probability")
    return list(accumulate(acceptances, mul))


def expected_tokens(acceptances: Sequence[Any]) -> Any:
    """Tokens a round yields, its last one included: 1 + Σ survival, one conditional acceptance a drafted position.

    With the same α at each of k positions this is (1 − α^(k+1))/(1 − α) (Leviathan et al. 2023, 2211.17192, eq. 1).

    >>> expected_tokens([0.5] * 3), (1 - 0.5**4) / (1 - 0.5)
    (1.875, 1.875)
    """
    return 1 + sum(survival(acceptances))


def speed_up(acceptances: Sequence[float], draft_cost: float, verify_cost: Callable[[int], float]) -> float:
    """Tokens per unit of time against plain decoding (Leviathan et al. 2023, theorem 3.8, with a measured cost curve).

    draft_cost: one draft step, in target passes of one row. verify_cost(n): a pass over n rows, in the same unit, so
    that verify_cost(1) is 1.

    With α = .8, k = 5, a draft at 5 % and rows for free: 3.68928 tokens in 1.25 passes.

    >>> round(speed_up([0.8] * 5, 0.05, lambda rows: 1.0), 6)
    2.951424
    """
    k = len(acceptances)
    return expected_tokens(acceptances) / (k * draft_cost + verify_cost(k + 1))


def best_depth(
    acceptances: Sequence[float], draft_cost: float, verify_cost: Callable[[int], float]
) -> tuple[int, float]:
    """The depth 0..len(acceptances) of the largest speed-up, and that speed-up; the smallest one on ties.

    All depths are tried: verify_cost has steps, so stopping at the first fall would miss the best.

    >>> depth, gain = best_depth([0.8] * 8, 0.05, lambda rows: 1.0 if rows <= 4 else 2.0)
    >>> depth, round(gain, 6)
    (3, 2.566957)
    """
    gains = [speed_up(acceptances[:k], draft_cost, verify_cost) for k in range(len(acceptances) + 1)]
    best = max(range(len(gains)), key=lambda k: (gains[k], -k))
    return best, gains[best]


class Tree(NamedTuple):
    tokens: float  # expected tokens a round, the target's own included
    parents: tuple[int, ...]


def best_tree(acceptances: Sequence[Any], nodes: int) -> Tree:
    """The draft tree of at most `nodes` nodes that is expected to yield most tokens. Costs nodes²·len(acceptances).

    acceptances[i]: probability that a node's (i+1)-th child is the one accepted, given that the node is. Sequoia's
    dynamic programme (Chen et al. 2024, 2402.12374, §3.1): F(n) = 1 + max Σ a_i·F(n_i) over n_1 + n_2 + ... = n − 1.

    Of three nodes, a chain yields 1 + .5 + .25 + .125 = 1.875; two children with .5 and .3 and one of .25 below, 2.05:

    >>> best_tree([0.5], 3)
    Tree(tokens=1.875, parents=(-1, 0, 1))
    >>> best_tree([0.5, 0.3], 3)
    Tree(tokens=2.05, parents=(-1, -1, 0))
    """
    if nodes < 0:
        raise ValueError(f"nodes: {nodes} is not allowed; it must be >= 0")
    slots = len(acceptances)
    value: list[Any] = [0]  # value[n] = F(n), of a subtree of n nodes, its top included
    rest: list[list[Any]] = [[0] for _ in range(slots + 1)]  # rest[i][m]: the most that slots i, i + 1, ... make of m
    share: list[list[int]] = [[0] for _ in range(slots)]  # share[i][m]: how many of those m go to slot i; 0 ends it
    for n in range(1, nodes + 2):
        value.append(1 + rest[0][n - 1])
        rest[slots].append(0)
        for i in reversed(range(slots)):
            gains = [0, *(acceptances[i] * value[s] + rest[i + 1][n - s] for s in range(1, n + 1))]
            best = max(range(n + 1), key=gains.__getitem__)
            rest[i].append(gains[best])
            share[i].append(best)
    return Tree(value[nodes + 1], _planted(share, nodes))


def _planted(share: Sequence[Sequence[int]], nodes: int) -> tuple[int, ...]:
    """The parents of a tree whose nodes are shared out among slots as the dynamic programme says, breadth first."""
    parents: list[int] = []
    level = [(ROOT, nodes)]
    while level:
        below: list[tuple[int, int]] = []
        for parent, left in level:
            for slot in share:
                taken = slot[left]
                if taken == 0:
                    break
                below.append((len(parents), taken - 1))
                parents.append(parent)
                left -= taken
        level = below
    return tuple(parents)


# -- acceptance at one position


def single_draft_bound(p: Row, q: Row) -> Any:
    """Σ min(p, q) = 1 − TV(p, q): no rule accepts one draft from q more often; token verification does.

    >>> p, q = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.3, 0.1])
    >>> float(round(single_draft_bound(p, q), 12))
    0.9
    """
    p, q = _pair(p, q)
    return overlap(p, q)


def coupled_match(p: Row, q: Row) -> Any:
    """Probability that two laws with the same Gumbel noise give the same token: Σ_i 1/Σ_j max(p_j/p_i, q_j/q_i).

    Daliri, Musco, Suresh (2024, 2408.07978, §3): between (1 − TV)/(1 + TV) and 1 − TV. Two tokens, by hand: each is the
    winner of both with probability 1/(1 + max(1/2, 2)) = 1/3.

    >>> float(coupled_match(np.array([2 / 3, 1 / 3]), np.array([1 / 3, 2 / 3])).round(12))
    0.666666666667
    """
    p, q = _by_ratio(*_pair(p, q))  # to the right of a token p_j/p_i is the larger, to the left q_j/q_i
    above = np.cumsum(p[::-1])[::-1]
    below = np.cumsum(q) - q
    shared = (p > 0) & (q > 0)
    p, q, above, below = p[shared], q[shared], above[shared], below[shared]
    return total(1 / (above / p + below / q))


def independent_acceptance(p: Row, q: Row, k: int) -> Any:
    """Recursive rejection of k independent draws from q: the probability that one of them is accepted.

    1 − Π(1 − Σ min(r_t, q)) with r_0 = p, r_(t+1) ∝ (r_t − q)₊ (SpecInfer, 2305.09781). By hand for the laws below: the
    first draft is refused with .3, r is then the third token for certain, and the second draft is that with .2.

    >>> float(round(independent_acceptance(np.array([0.5, 0.0, 0.5]), np.array([0.5, 0.3, 0.2]), 2), 12))
    0.76
    """
    p, q = _pair(p, q, k)
    refused: Any = 1
    for _ in range(k):
        refused = refused * (1 - overlap(p, q))
        rest = residual(p, q)
        if not total(rest) > 0:
            return 1 - 0 * refused
        p = rest / total(rest)
    return 1 - refused


def distinct_acceptance(p: Row, q: Row, k: int) -> Any:
    """Recursive rejection of k draws from q without replacement (Sequoia, 2402.12374). Costs V^(k−1)·log V.

    By hand for the laws below: the first draft is refused with .3, and is then the middle token; the second is the
    third token with .2/.7, which is what is left of p.

    >>> float(round(distinct_acceptance(np.array([0.5, 0.0, 0.5]), np.array([0.5, 0.3, 0.2]), 2), 12))
    0.785714285714
    """
    p, q = _pair(p, q, k)
    accepted = overlap(p, q)
    rest, refused = residual(p, q), residual(q, p)
    if k <= 1 or not total(rest) > 0:
        return accepted
    rest = rest / total(rest)
    tried = np.flatnonzero(refused > 0)
    tried = tried[q[tried] < 1]  # nothing is left to draw after a certain token
    if k == 2:
        return accepted + total(refused[tried] * _scaled_overlaps(rest, q, 1 / (1 - q[tried])))
    for x in tried:
        left = without(q, int(x))
        accepted = accepted + refused[x] * distinct_acceptance(rest, left / total(left), k - 1)
    return accepted


def _scaled_overlaps(p: Row, q: Row, scales: Shaped[np.ndarray, " c"]) -> Shaped[np.ndarray, " c"]:
    """Σ min(p, c·q) for each c of `scales`, with one sort."""
    p, q = p[q > 0], q[q > 0]
    order = np.argsort(p / q, kind="stable")
    p, q = p[order], q[order]
    mass = np.concatenate([[0 * total(p)], np.cumsum(p)])
    beyond = np.concatenate([np.cumsum(q[::-1])[::-1], [0 * total(q)]])
    cut = np.searchsorted(p / q, scales)  # tokens before it have p < c·q
    return mass[cut] + scales * beyond[cut]


def chosen_acceptance(p: Row, q: Row, k: int) -> Any:
    """The k likeliest tokens of q, drafted without chance: their mass under p.

    >>> float(chosen_acceptance(np.array([0.5, 0.25, 0.25]), np.array([0.6, 0.3, 0.1]), 2))
    0.75
    """
    p, q = _pair(p, q, k)
    return total(p[_likeliest(q, k)])


def greedy_acceptance(p: Row, q: Row, k: int) -> Any:
    """Greedy multi-draft: the k − 1 likeliest tokens S of q and one draw from the rest: p(S) + Σ min(p, w) off S.

    Hu et al. (ICLR 2025, 2502.18779, §5). By hand: S is the first token, w = (0, .75, .25).

    >>> float(greedy_acceptance(np.array([0.5, 0.25, 0.25]), np.array([0.6, 0.3, 0.1]), 2))
    1.0
    """
    p, q = _pair(p, q, k)
    top = _likeliest(q, k - 1)
    rest = _emptied(q, top)
    if not total(rest) > 0:
        return total(p[top])
    return total(p[top]) + overlap(_emptied(p, top), rest / total(rest))


def _emptied(p: Row, ids: np.ndarray) -> Row:
    out = p.copy()
    out[ids] = 0 * out[ids]
    return out


def _likeliest(q: Row, k: int) -> np.ndarray:
    return leading(q, min(k, int((q > 0).sum())))


def _pair(p: Any, q: Any, k: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Two rows of one length, and a number of drafts that makes sense."""
    p, q = np.asarray(p), np.asarray(q)
    if p.ndim != 1 or p.shape != q.shape or not len(p):
        raise ValueError(f"p, q: shapes {p.shape} and {q.shape}; they must be two rows of the same V probabilities")
    if k < 1:
        raise ValueError(f"k: {k} is not allowed; it must be >= 1, the number of drafts")
    return p, q


# -- the most that any rule can accept


def independent_bound(p: Row, q: Row, k: int) -> Any:
    """The most that any lossless rule accepts of k independent draws from q: 1 + min over H of p(H) − q(H)^k.

    The optimal transport of Sun et al. (SpecTr, NeurIPS 2023, 2310.15141); the minimum is on a prefix H of the tokens
    in order of rising p/q (Hu et al., ICLR 2025, 2502.18779). By hand: one draft lies in H = {middle} with .3, where p
    has nothing; two drafts lie in {middle, first} with .8², where p has .5.

    >>> p, q = np.array([0.5, 0.0, 0.5]), np.array([0.5, 0.3, 0.2])
    >>> float(round(independent_bound(p, q, 1), 12)), float(round(independent_bound(p, q, 2), 12))
    (0.7, 0.86)
    """
    p, q = _by_ratio(*_pair(p, q, k))
    return _least_slack(p, np.cumsum(q) ** k)


def distinct_bound(p: Row, q: Row, k: int) -> Any:
    """The same for k draws from q without replacement. Exact for k <= 2; beyond by quadrature, in float64.

    By hand: two distinct drafts lie in H = {middle, first} with .3·.5/.7 + .5·.3/.5 = .514286, where p has .5.

    >>> float(round(distinct_bound(np.array([0.5, 0.0, 0.5]), np.array([0.5, 0.3, 0.2]), 2), 12))
    0.985714285714
    """
    p, q = _by_ratio(*_pair(p, q, k))
    k = min(k, int((q > 0).sum()))
    return _least_slack(p, _all_within(q, k))


def _by_ratio(p: Row, q: Row) -> tuple[Row, Row]:
    """The tokens that have mass, in order of rising p/q."""
    both = (p > 0) | (q > 0)
    p, q = p[both], q[both]
    order = np.argsort(p / (p + q), kind="stable")
    return p[order], q[order]


def _least_slack(p: Row, within: Row) -> Any:
    """1 + min over prefixes H, the empty one too, of p(H) − within(H)."""
    slack = np.cumsum(p) - within
    return 1 + min(slack.min(), 0 * slack[0])


def _all_within(q: Row, k: int) -> Row:
    """For each prefix H of q: the probability that k draws without replacement all fall into it."""
    if k == 1:
        return np.cumsum(q)
    if k == 2:  # Σ_i q_i·(q(H) − q_i)/(1 − q_i)
        return np.cumsum(q) * np.cumsum(q / (1 - q)) - np.cumsum(q * q / (1 - q))
    return _all_within_by_clocks(q.astype(np.float64), k)


def _all_within_by_clocks(q: Float[np.ndarray, " v"], k: int) -> Float[np.ndarray, " v"]:
    """Draws without replacement are the first arrivals of independent clocks with rates q.

    The first arrival outside H comes at rate 1 − q(H); fewer than k before it, and the draws are not all in H. So
    1 − Q(H) = ∫ (1 − q(H))·exp(−(1 − q(H))·t)·P(fewer than k of H by t) dt. What has arrived of H is a sum of
    independent coins: P(j by t) = exp(−q(H)·t)·e_j with e_j the elementary symmetric polynomials of exp(q_i·t) − 1.
    """
    x, w = np.polynomial.legendre.leggauss(16)
    edges = np.concatenate([[0.0], 2.0 ** np.arange(-6, 52)])
    within = np.cumsum(q)
    outside = np.concatenate([np.cumsum(q[::-1])[::-1][1:], [0.0]])
    missed = np.zeros(len(q))
    with np.errstate(divide="ignore", under="ignore"):  # log 0 of a token without mass; mass that is all but gone
        for low, high in pairwise(edges):
            for node, weight in zip(x, w, strict=True):
                t = low + (high - low) * (node + 1) / 2
                log_odds = q * t + np.log(-np.expm1(-q * t))
                log_e = np.zeros(len(q))
                few = np.exp(-within * t)
                for j in range(1, k):
                    before = np.concatenate([[0.0 if j == 1 else -np.inf], log_e[:-1]])  # e_(j−1) of one token less
                    log_e = np.logaddexp.accumulate(log_odds + before)
                    few += np.exp(log_e - within * t)
                missed += weight * (high - low) / 2 * outside * np.exp(-outside * t) * few
    return 1 - missed


class AcceptanceReport(NamedTuple):
    """Probability that a drafted token is accepted at one position, scheme by scheme, beside what is possible.

    token, coupled: one draft. The others: k drafts. distinct is None where its V^(k−1) would take too long; for k > 2
    distinct_bound takes seconds on a real vocabulary (about 6 s at V = 50,000 and k = 3).
    """

    token: float
    coupled: float
    chosen: float
    independent: float
    distinct: float | None
    greedy_multi: float
    independent_bound: float
    distinct_bound: float


def acceptance_report(p: Any, q: Any, k: int = 1) -> AcceptanceReport:
    """All schemes and bounds for target law p and draft law q: arrays of V probabilities, in float64.

    >>> report = acceptance_report([0.5, 0.0, 0.5], [0.5, 0.3, 0.2], k=2)
    >>> round(report.token, 3), round(report.independent, 3), round(report.distinct, 3), round(report.distinct_bound, 3)
    (0.7, 0.76, 0.786, 0.986)
    """
    p, q = _law("p", p), _law("q", q)
    if p.shape != q.shape:
        raise ValueError(f"q: shape {q.shape}; it must be that of p, {p.shape}")
    if not 1 <= k <= len(p):
        raise ValueError(f"k: {k} is not allowed; it must be in 1 .. {len(p)}, the vocabulary")
    work = len(p) * float((q > p).sum()) ** max(k - 2, 0)
    return AcceptanceReport(
        token=float(single_draft_bound(p, q)),
        coupled=float(coupled_match(p, q)),
        chosen=float(chosen_acceptance(p, q, k)),
        independent=float(independent_acceptance(p, q, k)),
        distinct=float(distinct_acceptance(p, q, k)) if work < 1e8 else None,
        greedy_multi=float(greedy_acceptance(p, q, k)),
        independent_bound=float(independent_bound(p, q, k)),
        distinct_bound=float(distinct_bound(p, q, k)),
    )


def _law(name: str, value: Any) -> Float[np.ndarray, " v"]:
    row = np.array(value, dtype=np.float64)
    if row.ndim != 1 or not len(row):
        raise ValueError(f"{name}: shape {row.shape}; it must be one row of V probabilities")
    if not (np.isfinite(row).all() and (row >= 0).all() and abs(row.sum() - 1) <= SUM_TOLERANCE):
        raise ValueError(f"{name}: not a law; its entries must be >= 0 and add up to 1, they add up to {row.sum():.6g}")
    return row / row.sum()
