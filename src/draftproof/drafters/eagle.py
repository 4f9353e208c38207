"""A trained head as drafter: it reads what the target's layers said of the text, and guesses what the target says next.

EAGLE-3 (Li et al., 2503.01840). The head is given; here is only how it keeps in step with a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from ..base import Chance, Context, Draft, Feed, Kind, Scores, Session
from ..plan import Plan
from .grow import Growing, grow, without_request


@runtime_checkable
class Following(Protocol):
    """Follows sessions of a target. An entry of a text stands for a token, and needs the token after it as well: so a
    text of n tokens, of which the target has read n − 1, has n − 1 entries, and the last one says what comes next."""

    def open_over(self, session: Session) -> Session:
        """A session that follows `session`, of the target."""
        ...

    @property
    def behind(self) -> int:
        """Tokens after which it wants to hear though nobody asks it to draft."""
        ...

    def hear(self, sessions: Sequence[Session]) -> list[int]:
        """Take in what the target has read since. Returns how many tokens of each text are known."""
        ...

    def cached(self, session: Session) -> int:
        """The first token of the text whose entry is missing."""
        ...

    def forward(self, feeds: Sequence[Feed]) -> list[Scores]:
        """A committed row is a token that ends an entry; nodes go on from there."""
        ...

    def commit(self, sessions: Sequence[Session], paths: Sequence[Sequence[int]]) -> None:
        """Keep the committed rows of the last feed, and forget its nodes: every path is ()."""
        ...

    def truncate(self, session: Session, length: int) -> None: ...

    def kv_cost(self, tokens: int) -> int: ...

    def close(self, session: Session) -> None: ...

    def keep(self, session: Session) -> Session: ...

    def adopt(self, session: Session, donor: Session, length: int) -> None: ...

    def check(self, session: Session, tokens: Sequence[int]) -> str | None: ...


@dataclass(slots=True)
class _Guide:
    context: Context
    own: Session
    tokens: list[int] = field(default_factory=list)  # committed
    heard: int = 0  # how many of them the head had heard of when it last listened


class EagleDrafter:
    """Draws chains and trees from `head`, under the request's own law. kind: see ModelDrafter.

    It drafts once the target has read all but the last token of the text: not in the round that reads a prompt.
    """

    def __init__(self, head: Following, kind: Kind, name: str = "eagle") -> None:
        if kind is Kind.CHOSEN:
            raise ValueError("kind: a head draws its tokens; it must be COUPLED or SAMPLED")
        self._head, self._kind, self._name = head, kind, name

    @property
    def hears(self) -> Any:
        return self._head

    def open(self, context: Context) -> _Guide:
        return _Guide(context, self._head.open_over(context.target_session))

    def commit(self, sessions: Sequence[_Guide], tokens: Sequence[Sequence[int]]) -> None:
        for session, new in zip(sessions, tokens, strict=True):
            session.tokens += new
        self._hear([each for each in sessions if len(each.tokens) - each.heard > self._head.behind])

    def _hear(self, sessions: Sequence[_Guide]) -> None:
        known = self._head.hear([session.own for session in sessions])
        for session, tokens in zip(sessions, known, strict=True):
            session.heard = tokens

    def unread(self, session: _Guide) -> dict[str, int]:
        return {self._name: max(len(session.tokens) - 1 - self._head.cached(session.own), 0)}

    def propose(self, sessions: Sequence[_Guide], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        """All sessions together: one forward a level."""
        self._hear([guide for guide, plan in zip(sessions, plans, strict=True) if plan.depth > 0])
        growing = [self._begin(*each) for each in zip(sessions, plans, chances, strict=True)]
        grow(self._head, growing)
        fed = [guide.own for guide, each in zip(sessions, growing, strict=True) if each.feed is not None]
        self._head.commit(fed, [()] * len(fed))  # not after an error: then nothing that was read is kept
        return [each.draft() for each in growing]

    def _begin(self, guide: _Guide, plan: Plan, chance: Chance) -> Growing:
        last = len(guide.tokens) - 1
        if plan.depth > 0 and guide.heard == last and self._head.cached(guide.own) >= last:
            self._head.truncate(guide.own, last - 1)  # nothing was committed since it drafted last
        pending = tuple(guide.tokens[self._head.cached(guide.own) + 1 :])
        if guide.heard != last or not pending:  # the target has yet to read; or the text is one token
            plan = replace(plan, depth=0)
        return Growing(guide.context, guide.own, guide.tokens, pending, plan, chance, self._kind, self._name)

    def kv_cost(self, tokens: int) -> int:
        return self._head.kv_cost(tokens)

    def close(self, session: _Guide) -> None:
        self._head.close(session.own)

    def keep(self, session: _Guide) -> _Guide:
        return _Guide(without_request(session.context), self._head.keep(session.own))

    def adopt(self, session: _Guide, donor: _Guide, length: int) -> None:
        self._head.adopt(session.own, donor.own, length)

    def check(self, session: _Guide, tokens: Sequence[int]) -> str | None:
        if session.tokens != list(tokens):
            return f"was told {len(session.tokens)} tokens, not the {len(tokens)} that were committed"
        return self._head.check(session.own, session.tokens)
