"""The target's own first layers as drafter: no second model, no second copy of what was read.

Self-speculation by early exit (Elhoushi et al., "LayerSkip", ACL 2024, 2404.16710): the first layers, then the target's
own norm and head. They read the target's keys and values of the committed text, so nothing has to be kept in step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ..base import Chance, Context, Draft, Kind, Session, Target
from ..plan import Plan
from .grow import Growing, grow


@runtime_checkable
class Shallow(Target, Protocol):
    """The first layers of a target. What it writes beyond the committed text the target's next forward overwrites."""

    def open_over(self, session: Session) -> Session:
        """A session that reads what `session`, of the target itself, has cached."""
        ...


@dataclass(slots=True)
class _Guide:
    context: Context = field(compare=False)
    own: Session = field(compare=False)
    tokens: list[int] = field(default_factory=list)  # committed


class EarlyExitDrafter:
    """Draws chains and trees from the target's first layers, under the request's own law. kind: see ModelDrafter."""

    def __init__(self, shallow: Shallow, kind: Kind, name: str = "early_exit") -> None:
        if kind is Kind.CHOSEN:
            raise ValueError("kind: an early exit draws its tokens; it must be COUPLED or SAMPLED")
        self._shallow, self._kind, self._name = shallow, kind, name

    def open(self, context: Context) -> _Guide:
        return _Guide(context, self._shallow.open_over(context.target_session))

    def commit(self, sessions: Sequence[_Guide], tokens: Sequence[Sequence[int]]) -> None:
        for session, new in zip(sessions, tokens, strict=True):
            session.tokens += new

    def propose(self, sessions: Sequence[_Guide], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        growing = [self._begin(*each) for each in zip(sessions, plans, chances, strict=True)]
        grow(self._shallow, growing)
        return [each.draft() for each in growing]

    def _begin(self, guide: _Guide, plan: Plan, chance: Chance) -> Growing:
        pending = tuple(guide.tokens[self._shallow.cached(guide.own) :])
        return Growing(guide.context, guide.own, guide.tokens, pending, plan, chance, self._kind, self._name)
