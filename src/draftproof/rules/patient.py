"""A rule over rows of which some cannot be made: a row that the answer never reaches must not end it.

Beyond a drafted end, or a stop string, a chain of processors may have no law to give, and no plain decoding would ever
ask it for one. If a rule does, the draft is taken to end at the node before that row, and the token after it is not
emitted: the next round asks for the same row as its first, and only then it matters. To draft nothing below a node that
is kept, for whatever that node is, changes no law; nor does a round without its last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..base import Chance, Draft, Key, Purpose, Rule, Verdict
from ..trees import path_to


def patient(rule: Rule) -> Rule:
    """`rule`; an error in the first row is raised as ever."""
    return partial(_decide, rule)


def _decide(rule: Rule, draft: Draft, rows: Sequence[Any], chance: Chance) -> Verdict:
    blind: set[int] = set()  # nodes whose rows cannot be made
    while True:
        nodes = [node for node in range(len(draft)) if blind.isdisjoint(path_to(draft.parents, node)[:-1])]
        seen = _Seen(rows, nodes, blind)
        try:
            verdict = rule(draft.keeping(nodes), seen, _Named(chance, nodes) if blind else chance)
        except Exception:
            if seen.failed is None:
                raise
            blind.add(seen.failed)
        else:
            break
    if not blind:
        return verdict
    path = tuple(nodes[node] for node in verdict.path)
    tests = tuple(test._replace(node=nodes[test.node], key=_named(test.key, nodes)) for test in verdict.tests)
    if path and path[-1] in blind:
        return replace(verdict, path=path, tests=tests, tokens=verdict.tokens[:-1], last=None)
    return replace(verdict, path=path, tests=tests)


class _Seen(Sequence[Any]):
    """The rows of `nodes`, that note which of them fails. blind: nodes whose row the first one stands for; what is
    drawn from it is dropped."""

    def __init__(self, rows: Sequence[Any], nodes: Sequence[int], blind: set[int]) -> None:
        self._rows, self._nodes, self._blind = rows, nodes, blind
        self.failed: int | None = None

    def __len__(self) -> int:
        return len(self._nodes) + 1

    def __getitem__(self, index):
        node = self._nodes[index - 1] if index else None
        if node is None or node in self._blind:
            return self._rows[0]
        try:
            return self._rows[node + 1]
        except Exception:
            self.failed = node
            raise


class _Named:
    """The chance of a draft of which only `nodes` are left: each node keeps its own noise, whatever its place now."""

    def __init__(self, chance: Chance, nodes: Sequence[int]) -> None:
        self._chance, self._nodes = chance, nodes

    def uniform(self, key: Key) -> Any:
        return self._chance.uniform(_named(key, self._nodes))

    def coin(self, prob: Any, key: Key) -> bool:
        return self._chance.coin(prob, _named(key, self._nodes))

    def pick(self, weights: Any, key: Key, k: int = 1) -> tuple[int, ...]:
        return self._chance.pick(weights, key, k)


def _named(key: Key, nodes: Sequence[int]) -> Key:
    return key._replace(node=nodes[key.node]) if key.purpose is Purpose.ACCEPT else key
