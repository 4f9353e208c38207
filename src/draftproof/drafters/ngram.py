"""Prompt lookup: propose what followed the same words the last time.

Saxena, "Prompt lookup decoding" (2023): vLLM's "ngram", Hugging Face's `prompt_lookup_num_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..base import Chance, Context, Draft, Kind
from ..plan import Plan
from .outlook import paying

_SURE = (0.4, 0.6, 0.75, 0.85)
"""Confidence after a match of 1, 2, 3 and more tokens; a controller finds out how much it is worth."""


@dataclass(slots=True)
class _History:
    tokens: list[int] = field(default_factory=list)
    follows: dict[tuple[int, ...], int] = field(default_factory=dict)  # n-gram -> index of what followed it last


class NGramDrafter:
    """Longest matching suffix first, the most recent occurrence among equals.

    longest, shortest: n-gram sizes that are tried (vLLM's prompt_lookup_max and prompt_lookup_min). Where the copy runs
    into the end of the text it goes on with what it has just copied, so a loop is followed round.
    """

    def __init__(self, longest: int = 4, shortest: int = 1) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(
                f"prompt_lookup_min, prompt_lookup_max: {shortest}, {longest} are not allowed; 1 <= min <= max is right"
            )
        self._sizes = range(longest, shortest - 1, -1)

    def open(self, context: Context) -> _History:
        return _History()

    def commit(self, sessions: Sequence[_History], tokens: Sequence[Sequence[int]]) -> None:
        for session, new in zip(sessions, tokens, strict=True):
            for token in new:
                # only now does the suffix before `token` have a continuation
                end = len(session.tokens)
                for size in self._sizes:
                    if size <= end:
                        session.follows[tuple(session.tokens[end - size :])] = end
                session.tokens.append(token)

    def propose(self, sessions: Sequence[_History], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        return [self._propose(session, plan) for session, plan in zip(sessions, plans, strict=True)]

    def _propose(self, session: _History, plan: Plan) -> Draft:
        tokens = session.tokens
        start, size = self._match(session) if plan.depth > 0 else (None, 0)
        if start is None:
            return Draft(len(tokens))
        drafted: list[int] = []
        n = min(plan.depth, plan.nodes)
        for i in range(start, start + n):
            drafted.append(tokens[i] if i < len(tokens) else drafted[i - len(tokens)])
        sure = tuple(_SURE[min(size + i, len(_SURE)) - 1] for i in range(n))  # what was copied makes the match longer
        chain = tuple(range(-1, n - 1))
        draft = Draft(len(tokens), tuple(drafted), chain, (Kind.CHOSEN,) * n, ("ngram",) * n, (), (-1,) * n, sure)
        return paying(draft, plan.terms)

    def _match(self, session: _History) -> tuple[int | None, int]:
        """Where the longest match goes on, and its size."""
        for size in self._sizes:
            if size <= len(session.tokens):
                start = session.follows.get(tuple(session.tokens[-size:]))
                if start is not None:
                    return start, size
        return None, 0
