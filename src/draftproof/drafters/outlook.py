"""What drafts are expected to bring, from measured costs and acceptances: before anything is drafted, and after."""

from __future__ import annotations

from collections.abc import Sequence

from ..base import ROOT, Draft, Kind, Plan, Terms
from .worth import best_count, trusted

Trust = Sequence[Sequence[float]]
"""Of one origin, see `base.Terms`."""

_UNKNOWN = (0.6, 0.15, 0.05)
"""Acceptance by rank among siblings, of a drafter that has not been seen yet."""


def mean_trust(trust: Trust | None, rank: int) -> float:
    """How often a node of that rank was accepted, whatever its confidence; the last rank stands for later ones."""
    known = _UNKNOWN if trust is None else [of_rank[-1] for of_rank in trust]
    return known[min(rank, len(known) - 1)]


def rate(reaches: Sequence[float], terms: Terms, drafting: float = 0.0) -> float:
    """Expected tokens a second of the best round that nodes of these probabilities allow, after `drafting` seconds."""
    gains = sorted(reaches, reverse=True)
    rounds = [seconds + drafting for seconds in terms.rounds]
    count = best_count(gains, rounds, terms.base)
    return (terms.base + sum(gains[:count])) / rounds[count]


def expected_rate(terms: Terms, origin: str, plan: Plan) -> float:
    """Tokens a second if `origin` drafts as `plan` allows, as deep as pays."""
    cost, trust = terms.levels.get(origin, 0.0), terms.trust.get(origin)
    best, reaches, front = 0.0, [], [1.0]
    for level in range(plan.depth):
        width = plan.width(level)
        front = [above * mean_trust(trust, rank) for above in front for rank in range(width)]
        reaches += front
        if len(reaches) > plan.nodes:
            reaches = sorted(reaches, reverse=True)[: plan.nodes]
        found = rate(reaches, terms, (level + 1) * cost)
        if found < best * 0.9 or front[0] < 0.02:
            break
        best = max(best, found)
    return best


def ranks_of(draft: Draft) -> list[int]:
    """Of each node: how many earlier siblings come from the same drafter."""
    count: dict[tuple[int, str], int] = {}
    ranks = []
    for parent, origin in zip(draft.parents, draft.origin, strict=True):
        ranks.append(count.get((parent, origin), 0))
        count[parent, origin] = ranks[-1] + 1
    return ranks


def reaches_of(draft: Draft, terms: Terms) -> list[float]:
    """The probability that each node's whole path is accepted, as far as the past tells."""
    reaches: list[float] = []
    sure = draft.confidence or (0.5,) * len(draft)
    for parent, origin, rank, guess in zip(draft.parents, draft.origin, ranks_of(draft), sure, strict=True):
        above = 1.0 if parent == ROOT else reaches[parent]
        reaches.append(above * trusted(terms.trust.get(origin), rank, guess))
    return reaches


def paying(draft: Draft, terms: Terms | None) -> Draft:
    """As many of the likeliest nodes as pay. A draft with sampled tokens stays whole: to drop one for what it is would
    change the law."""
    if terms is None or not len(draft) or Kind.SAMPLED in draft.kind:
        return draft
    reaches = reaches_of(draft, terms)
    order = sorted(range(len(draft)), key=lambda node: -reaches[node])
    return draft.keeping(sorted(order[: best_count([reaches[node] for node in order], terms.rounds, terms.base)]))
