"""Greedy multi-draft: one sampled token beside the drafter's likeliest ones, all for the same position.

Hu et al., "Towards optimal multi-draft speculative decoding" (ICLR 2025, 2502.18779, §5): S = the top k − 1 of q is
drafted without chance, one more token is drawn from q outside S.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base import Chance, Draft, Key, Kind, Purpose, Row, Test, Verdict
from ..laws import acceptance
from .common import after_refusal, drawn_with, ended
from .needs import require


def greedy_multi(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
    """One level of nodes, at most one of them sampled; their order does not matter.

    The sampled token is tried first. If it is refused, y is drawn from what is left of p, which is p itself on S: an
    emitted token of S counts as accepted and is followed by a token from its own row.
    """
    require(draft, "greedy_multi")
    p = law = rows[0]
    tests: list[Test] = []
    rounding = 0
    for node in (node for node, kind in enumerate(draft.kind) if kind is Kind.SAMPLED):
        x, q_x = draft.tokens[node], drawn_with(draft, node)
        key = Key(draft.root, 0, Purpose.ACCEPT, node)
        prob = acceptance(p[x], q_x)
        accepted = chance.coin(prob, key)
        tests.append(Test(node, key, p[x], q_x, prob, accepted))
        if accepted:
            return ended(draft, [node], rows[node + 1], chance, tests, refused=False)
        law, rounding = after_refusal(p, draft, node)
    verdict = ended(draft, [], law, chance, tests, refused=len(draft) > 0, rounding=rounding)
    [y] = verdict.tokens
    for node in (node for node, kind in enumerate(draft.kind) if kind is Kind.CHOSEN):
        x = draft.tokens[node]
        tests.append(Test(node, Key(draft.root, 0, Purpose.REPLACE), p[x], 1, None, x == y))
        if x == y:
            return ended(draft, [node], rows[node + 1], chance, tests, refused=False, rounding=rounding)
    return Verdict((), (y,), verdict.last, tuple(tests), rounding)
