"""Recursive rejection: at each node of a tree try the children in draw order, taking from p what each one refused.

Miao et al., "SpecInfer" (ASPLOS 2024, 2305.09781, §4.3) for independent siblings; Chen et al., "Sequoia" (2024,
2402.12374, §3.2) for siblings without replacement; Jeon et al., "Recursive speculative decoding" (2024, 2402.14160).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base import ROOT, Chance, Draft, Key, Purpose, Row, Test, Verdict
from ..laws import acceptance
from ..trees import children
from .common import after_refusal, drawn_with, ended
from .needs import require


def recursive(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
    """Any tree of sampled and chosen tokens, mixed as the drafter likes. On a chain it is token verification.

    Each child is scored with the law it was drawn from given its earlier siblings, and tried after them: independent
    draws share one row, draws without replacement have rows with the earlier siblings removed. A repeated sibling is
    refused for certain, but what it takes from p counts.
    """
    require(draft, "recursive")
    node, path, tests, rounding = ROOT, [], [], 0
    while True:
        p = law = rows[node + 1]
        siblings = children(draft.parents, node)
        accepted = False
        for child in siblings:
            x, q_x = draft.tokens[child], drawn_with(draft, child)
            key = Key(draft.root, len(path), Purpose.ACCEPT, child)
            prob = acceptance(law[x], q_x)
            accepted = chance.coin(prob, key)
            tests.append(Test(child, key, p[x], q_x, prob, accepted))
            if accepted:
                node = child
                path.append(child)
                break
            law, lost = after_refusal(law, draft, child)
            rounding += lost
        if not accepted:
            return ended(draft, path, law, chance, tests, refused=bool(siblings), rounding=rounding)
