"""Token verification: accept each drafted token with probability min(1, p/q), stop at the first rejection.

Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding" (ICML 2023, 2211.17192, §2.3);
Chen et al., "Accelerating large language model decoding with speculative sampling" (2023, 2302.01318).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base import Chance, Draft, Key, Purpose, Row, Test, Verdict
from ..laws import acceptance
from .common import drawn_with, end_of_chain
from .needs import require


def token(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
    """A chain of sampled or chosen tokens. Accepted mass min(p, q), replaced mass (p − q)₊: together p."""
    require(draft, "token")
    tests: list[Test] = []
    for i, x in enumerate(draft.tokens):
        p_x, q_x = rows[i][x], drawn_with(draft, i)
        key = Key(draft.root, i, Purpose.ACCEPT, i)
        prob = acceptance(p_x, q_x)
        accepted = chance.coin(prob, key)
        tests.append(Test(i, key, p_x, q_x, prob, accepted))
        if not accepted:
            return end_of_chain(draft, i, rows, chance, tests)
    return end_of_chain(draft, len(draft), rows, chance, tests)
