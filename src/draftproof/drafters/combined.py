"""Several drafters, one tree: each guesses where it is good at it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..base import ROOT, Chance, Context, Draft, Drafter, Keeper, Kind, Session, ear_of, unread
from ..plan import Plan
from .grow import without_request
from .outlook import expected_rate, paying, reaches_of, worthwhile


@dataclass(slots=True)
class _Guides:
    context: Context
    parts: dict[str, Session]
    committed: int = 0


class CombinedDrafter:
    """`drafters` by origin, asked in this order: what looks things up before what runs a model.

    merge: all their drafts become one tree, for rules that take trees. Else a draft is one drafter's alone: the first
    that has anything to say. Under a plan's terms a later one is asked only for texts where it is expected to do better
    than what has been found. A draft with a sampled token is never exchanged for another, so no rule's law changes.
    """

    def __init__(self, drafters: Mapping[str, Drafter], *, merge: bool = True) -> None:
        if not drafters:
            raise ValueError("drafters: {} is not allowed; combine at least one")
        self.drafters, self._merge = dict(drafters), merge
        self._keepers: dict[str, Any] = {name: each for name, each in drafters.items() if isinstance(each, Keeper)}

    def each(self, change: Callable[[Drafter], Drafter]) -> CombinedDrafter:
        """The same of changed drafters."""
        return CombinedDrafter({name: change(part) for name, part in self.drafters.items()}, merge=self._merge)

    @property
    def hears(self) -> Hashable:
        return next((ear for each in self.drafters.values() if (ear := ear_of(each)) is not None), None)

    @property
    def keepers(self) -> list[Any]:
        return list(self._keepers.values())

    def open(self, context: Context) -> _Guides:
        return _Guides(context, {name: drafter.open(context) for name, drafter in self.drafters.items()})

    def commit(self, sessions: Sequence[_Guides], tokens: Sequence[Sequence[int]]) -> None:
        for session, new in zip(sessions, tokens, strict=True):
            session.committed += len(new)
        for name, drafter in self.drafters.items():
            drafter.commit([session.parts[name] for session in sessions], tokens)

    def unread(self, session: _Guides) -> dict[str, int]:
        every = (unread(drafter, session.parts[name]) for name, drafter in self.drafters.items())
        return {origin: tokens for each in every for origin, tokens in each.items()}

    def propose(self, sessions: Sequence[_Guides], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        found: list[Draft] = [Draft(session.committed) for session in sessions]
        for name, drafter in self.drafters.items():
            asked = {i: self._plan(name, plan, found[i]) for i, plan in enumerate(plans)}
            asked = {i: plan for i, plan in asked.items() if plan.depth > 0 and plan.nodes > 0}
            if asked:
                guides = [sessions[i].parts[name] for i in asked]
                drafts = drafter.propose(guides, list(asked.values()), [chances[i] for i in asked])
                for i, draft in zip(asked, drafts, strict=True):
                    found[i] = merged(found[i], draft) if self._merge else (draft if len(draft) else found[i])
        return [paying(draft, plan.terms) for draft, plan in zip(found, plans, strict=True)]

    def _plan(self, name: str, plan: Plan, found: Draft) -> Plan:
        """What is left of a plan for one that is asked after `found`."""
        terms, room = plan.terms, plan.nodes - (len(found) if self._merge else 0)
        if plan.origins is not None and name not in plan.origins:
            return Plan()
        if not self._merge and Kind.SAMPLED in found.kind:  # it may not be replaced for what was sampled
            return Plan()
        if terms is None:
            wanted = self._merge or not len(found)
        else:
            known, _ = worthwhile(found.parents, reaches_of(found, terms), terms)
            wanted = not len(found) or expected_rate(terms, name, plan) > known
        return replace(plan, max_nodes=room) if wanted else Plan()

    # whoever keeps a cache does it for all

    def kv_cost(self, tokens: int) -> int:
        return sum(keeper.kv_cost(tokens) for keeper in self._keepers.values())

    def close(self, session: _Guides) -> None:
        for name, keeper in self._keepers.items():
            if name in session.parts:
                keeper.close(session.parts[name])

    def keep(self, session: _Guides) -> _Guides:
        parts = {name: keeper.keep(session.parts[name]) for name, keeper in self._keepers.items()}
        return _Guides(without_request(session.context), parts)

    def adopt(self, session: _Guides, donor: _Guides, length: int) -> None:
        for name, keeper in self._keepers.items():
            keeper.adopt(session.parts[name], donor.parts[name], length)

    def check(self, session: _Guides, tokens: Sequence[int]) -> str | None:
        for name, drafter in self.drafters.items():
            if name in self._keepers:
                problem = self._keepers[name].check(session.parts[name], tokens)
            else:
                replay = drafter.open(session.context)
                drafter.commit([replay], [list(tokens)])
                problem = None if replay == session.parts[name] else "its state is not that of a replay"
            if problem is not None:
                return f"{name}: {problem}"
        return None


def merged(first: Draft, second: Draft) -> Draft:
    """Both in one tree. What both have, below the same nodes, is there once, but for sampled nodes: each of those keeps
    its place among the siblings it was drawn after."""
    if not len(first) or not len(second):
        return first if len(first) else second
    known = {
        (parent, first.tokens[node]): node
        for node, parent in reversed(list(enumerate(first.parents)))
        if first.kind[node] is not Kind.SAMPLED
    }
    at, new = {ROOT: ROOT}, []
    for node, parent in enumerate(second.parents):
        place = at[parent], second.tokens[node]
        if place in known and second.kind[node] is not Kind.SAMPLED:
            at[node] = known[place]
            continue
        at[node] = len(first) + len(new)
        if second.kind[node] is not Kind.SAMPLED:
            known[place] = at[node]
        new.append(node)
    sure = bool(first.confidence) and bool(second.confidence)
    moved = [second.row_of[node] for node in new]
    return Draft(
        first.root,
        first.tokens + tuple(second.tokens[node] for node in new),
        first.parents + tuple(at[second.parents[node]] for node in new),
        first.kind + tuple(second.kind[node] for node in new),
        first.origin + tuple(second.origin[node] for node in new),
        first.rows + second.rows,
        first.row_of + tuple(row if row < 0 else row + len(first.rows) for row in moved),
        first.confidence + tuple(second.confidence[node] for node in new) if sure else (),
    )
