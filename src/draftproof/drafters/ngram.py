"""Prompt lookup: propose what followed the same words the last time.

Saxena, "Prompt lookup decoding" (2023): vLLM's "ngram", Hugging Face's `prompt_lookup_num_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..base import Chance, Context, Draft, Plan


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
        start = self._match(session) if plan.depth > 0 else None
        if start is None:
            return Draft(len(tokens))
        drafted: list[int] = []
        for i in range(start, start + plan.depth):
            drafted.append(tokens[i] if i < len(tokens) else drafted[i - len(tokens)])
        return Draft.chain(len(tokens), drafted, origin="ngram")

    def _match(self, session: _History) -> int | None:
        for size in self._sizes:
            if size <= len(session.tokens):
                start = session.follows.get(tuple(session.tokens[-size:]))
                if start is not None:
                    return start
        return None
