"""A rule over rows of which some cannot be made: a row that the answer never reaches must not end it.

Beyond a drafted end, or a stop string, a chain of processors may have no law to give, and no plain decoding would ever
ask it for one. If a rule does, the draft is taken to end at the node before that row, and the token after it is not
emitted: the next round asks for the same row as its first, and only then it matters. To end a draft after a node that
is kept, for whatever that node is, changes no law; nor does a round without its last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..base import Chance, Draft, Rule, Verdict
from ..trees import is_chain


def patient(rule: Rule) -> Rule:
    """`rule`, for chains; an error in the first row, or under a tree, is raised as ever."""
    return partial(_decide, rule)


def _decide(rule: Rule, draft: Draft, rows: Sequence[Any], chance: Chance) -> Verdict:
    blind: int | None = None
    while True:
        seen = _Seen(rows, blind)
        try:
            verdict = rule(draft, seen, chance)
        except Exception:
            if not seen.failed or not is_chain(draft.parents):
                raise
            blind = seen.failed
            draft = _first(draft, blind)
        else:
            break
    if blind is None or verdict.accepted < blind:
        return verdict
    return replace(verdict, tokens=verdict.tokens[:-1], last=None)


def _first(draft: Draft, count: int) -> Draft:
    """The first nodes of a chain."""
    parts = {name: getattr(draft, name)[:count] for name in ("tokens", "parents", "kind", "origin", "row_of")}
    return replace(draft, **parts)


class _Seen(Sequence[Any]):
    """Rows, that note which of them fails. blind: one that stands for what cannot be made; what is drawn from it is
    dropped."""

    def __init__(self, rows: Sequence[Any], blind: int | None) -> None:
        self._rows, self._blind = rows, blind
        self.failed: int | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index):
        try:
            return self._rows[0 if index == self._blind else index]
        except Exception:
            self.failed = index
            raise
