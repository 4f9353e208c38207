"""Traversal verification: judge a whole tree from its leaves up, so that no drafted path is given up early.

Weng et al., "Traversal verification for speculative tree decoding" (NeurIPS 2025, 2505.12398, algorithm 2). On a chain
it is block verification, at depth one recursive rejection, for chosen trees the walk from the top. Mostly it accepts
more than recursive rejection; where a child was chosen in view of a sampled sibling it can accept less (docs/rules.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..base import ROOT, Chance, Draft, Key, Purpose, Row, Test, Verdict
from ..laws import acceptance
from ..trees import children
from .common import drawn_with, ended, left_over
from .needs import require


@dataclass(slots=True)
class _Visit:
    """A node whose subtree is being judged. weight: the share of the path down to it that the target still owes."""

    node: int
    weight: Any
    waiting: list[int]  # children not tried yet
    law: Row | None = None  # the target's, less what refused children took; None until it is needed
    refused: bool = False


def traversal(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
    """Any tree of sampled and chosen tokens; children in draw order, with laws as in recursive rejection.

    A node is left by its coin once all of its subtree has failed: with probability weight the path ends here, else
    its parent's law and weight shrink and the next sibling is tried. The root owes 1 and never fails.
    """
    require(draft, "traversal")
    stack = [_Visit(ROOT, 1, children(draft.parents, ROOT))]
    tests: list[Test] = []
    rounding = 0
    while True:
        visit = stack[-1]
        if visit.waiting:
            child = visit.waiting.pop(0)
            if visit.law is None:
                visit.law = rows[visit.node + 1]
            owed = acceptance(visit.weight * visit.law[draft.tokens[child]], drawn_with(draft, child))
            if owed > 0:
                stack.append(_Visit(child, owed, children(draft.parents, child)))
                continue
        else:
            if _ends(visit, stack, draft, rows, chance, tests):
                law = rows[visit.node + 1] if visit.law is None else visit.law
                path = [each.node for each in stack[1:]]
                return ended(draft, path, law, chance, tests, refused=visit.refused, rounding=rounding)
            child = stack.pop().node
        rounding += _refuse(stack[-1], child, draft)


def _ends(
    visit: _Visit, stack: Sequence[_Visit], draft: Draft, rows: Sequence[Row], chance: Chance, tests: list[Test]
) -> bool:
    """Whether the path ends at this node: its coin, for all but the root."""
    node = visit.node
    if node == ROOT:
        return True
    key = Key(draft.root, len(stack) - 2, Purpose.ACCEPT, node)
    accepted = chance.coin(visit.weight, key)
    p = rows[draft.parents[node] + 1]
    tests.append(Test(node, key, p[draft.tokens[node]], drawn_with(draft, node), visit.weight, accepted))
    return accepted


def _refuse(visit: _Visit, child: int, draft: Draft) -> int:
    """Take a refused child's share from the node's law and weight; 1 if rounding alone left nothing."""
    assert visit.law is not None
    rest, mass = left_over(visit.law, draft, child, visit.weight)
    owed = mass + (1 - visit.weight)
    visit.refused = True
    if mass > 0:
        visit.law = rest / mass
    visit.weight = mass / owed if owed > 0 else 1
    return int(not owed > 0)
