"""What drafts are expected to bring, from measured costs and acceptances: before anything is drafted, and after."""

from __future__ import annotations

from collections.abc import Sequence

from ..base import ROOT, Draft, Kind
from ..plan import Plan, Terms
from ..trees import depths
from .worth import trusted


def worthwhile(
    parents: Sequence[int], reaches: Sequence[float], terms: Terms, drafting: float = 0.0
) -> tuple[float, list[int]]:
    """Expected tokens a second of a round after `drafting` seconds, and the nodes to score for that: none, or the
    likeliest ones of the tree, or the first ones of its likeliest path, which costs no branches."""
    if not terms.rounds:
        return 0.0, []
    by_reach = sorted(range(len(reaches)), key=lambda node: -reaches[node])
    orders = [by_reach, _likeliest_path(by_reach, parents)] if terms.branch else [by_reach]
    rate, count, order = max((*_best_prefix(order, parents, reaches, terms, drafting), order) for order in orders)
    return rate, sorted(order[:count])


def _best_prefix(
    order: Sequence[int], parents: Sequence[int], reaches: Sequence[float], terms: Terms, drafting: float
) -> tuple[float, int]:
    tokens, branches, above = terms.base, 0, set[int]()
    best, most = 0, tokens / (terms.rounds[0] + drafting)
    for count, node in enumerate(order[: len(terms.rounds) - 1], 1):
        tokens += reaches[node]
        branches += parents[node] in above
        above.add(parents[node])
        rate = tokens / (terms.rounds[count] + branches * terms.branch + drafting)
        if rate > most:
            best, most = count, rate
    return most, best


def _likeliest_path(by_reach: Sequence[int], parents: Sequence[int]) -> list[int]:
    path, end = [], ROOT
    for node in by_reach:  # a parent is at least as likely as its children, and stands before them among equals
        if parents[node] == end:
            path.append(node)
            end = node
    return path


def expected_rate(terms: Terms, origin: str, plan: Plan) -> float:
    """Tokens a second if `origin` drafts as `plan` allows, as deep as pays."""
    return expected(terms, origin, plan)[0]


def expected(terms: Terms, origin: str, plan: Plan) -> tuple[float, float]:
    """The same, and how many drafted tokens of a round are then accepted."""
    cost, trust = terms.levels.get(origin, 0.0), terms.trust.get(origin)
    best, reaches, parents, front = (0.0, 0.0), list[float](), list[int](), [(1.0, ROOT)]
    for level in range(plan.depth):
        below = []
        for reach, node in front:
            for rank in range(plan.width(level)):
                if len(reaches) < plan.nodes:
                    below.append((reach * trusted(trust, level, rank, None), len(reaches)))
                    reaches.append(below[-1][0])
                    parents.append(node)
        front = below
        found, nodes = worthwhile(parents, reaches, terms, (level + 1) * cost)
        if not below or below[0][0] < 0.02 or found < 0.9 * best[0]:
            break
        best = max(best, (found, sum(reaches[node] for node in nodes)))
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
    for place, parent, origin in zip(places_of(draft), draft.parents, draft.origin, strict=True):
        above = 1.0 if parent == ROOT else reaches[parent]
        reaches.append(above * trusted(terms.trust.get(origin), *place))
    return reaches


def places_of(draft: Draft) -> list[tuple[int, int, float]]:
    """Of each node: level, rank among the siblings of its drafter, confidence (one half where nobody says)."""
    levels = [level - 1 for level in depths(draft.parents)]
    return list(zip(levels, ranks_of(draft), draft.confidence or (0.5,) * len(draft), strict=True))


def paying(draft: Draft, terms: Terms | None) -> Draft:
    """As much of it as pays. A draft with sampled tokens stays whole: to drop one for what it is would change the
    law."""
    if terms is None or not len(draft) or Kind.SAMPLED in draft.kind:
        return draft
    return draft.keeping(worthwhile(draft.parents, reaches_of(draft, terms), terms)[1])
