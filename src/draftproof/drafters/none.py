"""Plain decoding as a drafter: nothing is ever proposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base import Chance, Context, Draft
from ..plan import Plan


@dataclass(slots=True)
class _Count:
    committed: int = 0


class NoDrafter:
    """Proposes the empty draft, so that plain decoding runs through the same loop."""

    def open(self, context: Context) -> _Count:
        return _Count()

    def commit(self, sessions: Sequence[_Count], tokens: Sequence[Sequence[int]]) -> None:
        for session, new in zip(sessions, tokens, strict=True):
            session.committed += len(new)

    def propose(self, sessions: Sequence[_Count], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        return [Draft(session.committed) for session in sessions]
