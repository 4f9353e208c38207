"""A drafter of a request whose answer must have a form: what the form does not allow is cut before it is scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..base import ROOT, Chance, Context, Draft, Drafter, Kind, Session
from ..plan import Plan

Allowed = Callable[[Sequence[int], Draft], Sequence[bool]]
"""(committed tokens, a draft after them) -> of each node, whether it and all above it are allowed: `Grammar.legal`."""


@dataclass(slots=True)
class _Guide:
    inner: Session
    tokens: list[int] = field(default_factory=list)  # committed


class Legal:
    """`drafter`, for one request, without the nodes that `legal` refuses and what hangs below them.

    For drafters that guess by looking. One that runs a model needs no wrapper: it draws under the request's own law, in
    which the form is (and this one is no `Keeper`).
    """

    def __init__(self, drafter: Drafter, legal: Allowed) -> None:
        self._drafter, self._legal = drafter, legal

    def open(self, context: Context) -> _Guide:
        return _Guide(self._drafter.open(context))

    def commit(self, sessions: Sequence[_Guide], tokens: Sequence[Sequence[int]]) -> None:
        self._drafter.commit([session.inner for session in sessions], tokens)
        for session, new in zip(sessions, tokens, strict=True):
            session.tokens += new

    def propose(self, sessions: Sequence[_Guide], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        drafts = self._drafter.propose([session.inner for session in sessions], plans, chances)
        return [self._cut(each.tokens, draft) for each, draft in zip(sessions, drafts, strict=True)]

    def _cut(self, tokens: Sequence[int], draft: Draft) -> Draft:
        try:
            return cut(draft, self._legal(tokens, draft))
        except ValueError:  # the form cannot say; if it matters, the target's own rows will tell
            return cut(draft, [False] * len(draft))


def cut(draft: Draft, legal: Sequence[bool]) -> Draft:
    """The nodes that are legal, or were sampled, and whose parents are kept.

    To drop a sampled node for its own token would change the law (and one drawn under the request's law is legal); what
    was chosen, or drawn with the target's noise, may go for any reason.
    """
    kept: list[int] = []
    for node, parent in enumerate(draft.parents):
        if (parent == ROOT or parent in kept) and (legal[node] or draft.kind[node] is Kind.SAMPLED):
            kept.append(node)
    return draft.keeping(kept)
