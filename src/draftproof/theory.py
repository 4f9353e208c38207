"""What speculation can gain: expected lengths and speed-ups, acceptance of each scheme, and the bounds on it.

Generic over the number type, like laws.py, unless said otherwise: `Fraction` in, exact answer out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from .base import ROOT, Row
from .given import SUM_TOLERANCE, real
from .laws import leading, overlap, residual, total, without
from .transport import by_ratio, distinct_bound, independent_bound, others, pair

# -- lengths and speed-ups


def survival(acceptances: Sequence[Any]) -> list[Any]:
    """Probability that positions 1..i are all accepted, from the acceptance of each given that it is reached.

    >>> survival([0.5, 0.5, 0.25])
    [0.5, 0.25, 0.0625]
    """
    _require_probabilities(acceptances)
    return list(accumulate(acceptances, mul))


def _require_probabilities(acceptances: Sequence[Any]) -> None:
    for i, acceptance in enumerate(acceptances):
        if not 0 <= acceptance <= 1:
            raise ValueError(f"acceptances: {acceptance} at {i} is not allowed; it must be a probability")


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
    if not draft_cost >= 0:
        raise ValueError(f"draft_cost: {draft_cost} is not allowed; it must be >= 0")
    k = len(acceptances)
    cost = k * draft_cost + verify_cost(k + 1)
    if not cost > 0:
        raise ValueError(f"verify_cost: a round costs {cost}; it must cost more than nothing")
    return expected_tokens(acceptances) / cost


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
    _require_probabilities(acceptances)
    if isinstance(nodes, bool) or not isinstance(nodes, int | np.integer) or nodes < 0:
        raise ValueError(f"nodes: {nodes} is not allowed; it must be a whole number >= 0")
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
    p, q = pair(p, q)
    return overlap(p, q)


def coupled_match(p: Row, q: Row) -> Any:
    """Probability that two laws with the same Gumbel noise give the same token: Σ_i 1/Σ_j max(p_j/p_i, q_j/q_i).

    Daliri, Musco, Suresh (2024, 2408.07978, §3): between (1 − TV)/(1 + TV) and 1 − TV. Two tokens, by hand: each is the
    winner of both with probability 1/(1 + max(1/2, 2)) = 1/3.

    >>> float(coupled_match(np.array([2 / 3, 1 / 3]), np.array([1 / 3, 2 / 3])).round(12))
    0.666666666667
    """
    p, q = by_ratio(*pair(p, q))  # to the right of a token p_j/p_i is the larger, to the left q_j/q_i
    above = np.cumsum(p[::-1])[::-1]
    below = np.cumsum(q) - q
    shared = (p > 0) & (q > 0)
    p, q, above, below = p[shared], q[shared], above[shared], below[shared]
    with np.errstate(over="ignore"):  # a ratio beyond float64 is a term of 0
        return total(1 / (above / p + below / q))


def independent_acceptance(p: Row, q: Row, k: int) -> Any:
    """Recursive rejection of k independent draws from q: the probability that one of them is accepted.

    1 − Π(1 − Σ min(r_t, q)) with r_0 = p, r_(t+1) ∝ (r_t − q)₊ (SpecInfer, 2305.09781). By hand for the laws below: the
    first draft is refused with .3, r is then the third token for certain, and the second draft is that with .2.

    >>> float(round(independent_acceptance(np.array([0.5, 0.0, 0.5]), np.array([0.5, 0.3, 0.2]), 2), 12))
    0.76
    """
    p, q = pair(p, q, k)
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
    p, q = pair(p, q, k)
    accepted = overlap(p, q)
    rest, refused = residual(p, q), residual(q, p)
    if k <= 1 or not total(rest) > 0:
        return accepted
    rest = rest / total(rest)
    left = others(q)
    tried = np.flatnonzero((refused > 0) & (left > 0))  # after a token that is all of q nothing is left to draw
    if k == 2:
        return accepted + total(refused[tried] * _scaled_overlaps(rest, q, left[tried]))
    for x in tried:
        accepted = accepted + refused[x] * distinct_acceptance(rest, without(q, int(x)) / left[x], k - 1)
    return accepted


def _scaled_overlaps(p: Row, q: Row, scales: Shaped[np.ndarray, " c"]) -> Shaped[np.ndarray, " c"]:
    """Σ min(p, q/c) for each c of `scales`, with one sort."""
    p, q = p[q > 0], q[q > 0]
    with np.errstate(over="ignore"):
        ratio = p / q
        inverse = 1 / scales
        order = np.argsort(ratio, kind="stable")
        mass = np.concatenate([[0 * total(p)], np.cumsum(p[order])])
        beyond = np.concatenate([np.cumsum(q[order][::-1])[::-1], [0 * total(q)]])
        cut = np.searchsorted(ratio[order], inverse)  # tokens before it have p < q/c
        return mass[cut] + beyond[cut] / scales


def chosen_acceptance(p: Row, q: Row, k: int) -> Any:
    """The k likeliest tokens of q, drafted without chance: their mass under p.

    >>> float(chosen_acceptance(np.array([0.5, 0.25, 0.25]), np.array([0.6, 0.3, 0.1]), 2))
    0.75
    """
    p, q = pair(p, q, k)
    return total(p[_likeliest(q, k)])


def greedy_acceptance(p: Row, q: Row, k: int) -> Any:
    """Greedy multi-draft: the k − 1 likeliest tokens S of q and one draw from the rest: p(S) + Σ min(p, w) off S.

    Hu et al. (ICLR 2025, 2502.18779, §5). By hand: S is the first token, w = (0, .75, .25).

    >>> float(greedy_acceptance(np.array([0.5, 0.25, 0.25]), np.array([0.6, 0.3, 0.1]), 2))
    1.0
    """
    p, q = pair(p, q, k)
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


class AcceptanceReport(NamedTuple):
    """Probability that a drafted token is accepted at one position, scheme by scheme, beside what is possible.

    token, coupled: one draft. The others: k drafts. distinct, which costs V^(k−1), and distinct_bound, which costs k·V
    and a large constant, are None where they would take more than some ten seconds.
    """

    token: float
    coupled: float
    chosen: float
    independent: float
    distinct: float | None
    greedy_multi: float
    independent_bound: float
    distinct_bound: float | None


def acceptance_report(p: Any, q: Any, k: int = 1) -> AcceptanceReport:
    """All schemes and bounds for target law p and draft law q: arrays of V probabilities, in float64.

    >>> report = acceptance_report([0.5, 0.0, 0.5], [0.5, 0.3, 0.2], k=2)
    >>> round(report.token, 3), round(report.independent, 3), round(report.distinct, 3), round(report.distinct_bound, 3)
    (0.7, 0.76, 0.786, 0.986)
    """
    p, q = _law("p", p), _law("q", q)
    if p.shape != q.shape:
        raise ValueError(f"q: shape {q.shape}; it must be that of p, {p.shape}")
    pair(p, q, k)
    if k > len(p):
        raise ValueError(f"k: {k} is not allowed; the vocabulary has {len(p)} tokens")
    search = np.log(len(p)) + max(k - 2, 0) * np.log((q > 0).sum())
    quadrature = 400.0 * len(p) * k if k > 2 else 0.0
    return AcceptanceReport(
        token=float(single_draft_bound(p, q)),
        coupled=float(coupled_match(p, q)),
        chosen=float(chosen_acceptance(p, q, k)),
        independent=float(independent_acceptance(p, q, k)),
        distinct=float(distinct_acceptance(p, q, k)) if search < np.log(1e7) else None,
        greedy_multi=float(greedy_acceptance(p, q, k)),
        independent_bound=float(independent_bound(p, q, k)),
        distinct_bound=float(distinct_bound(p, q, k)) if quadrature < 1e9 else None,
    )


def advised(p: Any, q: Any) -> str:
    """Whether one draft is better drawn from q ("sampled") or its likeliest token ("argmax"), and never worse.

    A sharp target likes what the draft likes best, whatever the draft's own doubts; one that is as undecided as its
    draft does not:

    >>> advised([0.9, 0.05, 0.05], [0.5, 0.3, 0.2]), advised([0.4, 0.3, 0.3], [0.4, 0.3, 0.3])
    ('argmax', 'sampled')
    """
    report = acceptance_report(p, q)
    return "argmax" if report.chosen > report.token else "sampled"


def _law(name: str, value: Any) -> Float[np.ndarray, " v"]:
    row = real(name, value)
    if row.ndim != 1 or not len(row):
        raise ValueError(f"{name}: shape {row.shape}; it must be one row of V probabilities")
    if not (np.isfinite(row).all() and (row >= 0).all() and abs(row.sum() - 1) <= SUM_TOLERANCE):
        raise ValueError(f"{name}: not a law; its entries must be >= 0 and add up to 1, they add up to {row.sum():.6g}")
    return row / row.sum()
