"""Block verification: judge the chain as a whole, keep the longest prefix that passes.

Sun et al., "Block verification accelerates speculative decoding" (ICLR 2025, 2403.10444, algorithm 2). By the paper's
theorem no lossless rule for a single path accepts more in expectation; equal to token verification for chosen drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base import Chance, Draft, Key, Purpose, Row, Test, Verdict
from ..laws import acceptance
from .common import drawn_with, end_of_chain, left_over
from .needs import require


def block(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
    """A chain of sampled or chosen tokens.

    weight[i] is w_i, the share of the drafted prefix x_1..x_i that the target still owes. The accepted length is the
    LARGEST i whose coin succeeds, so the coins are drawn from the end and the first success decides.
    """
    require(draft, "block")
    n = len(draft)
    weight: list[Any] = [1]
    for i, x in enumerate(draft.tokens):
        owed = acceptance(weight[i] * rows[i][x], drawn_with(draft, i))
        if owed == 0:  # so are all later weights: no prefix that long is ever kept, and its rows need not be read
            break
        weight.append(owed)
    tests: list[Test] = []
    for i in range(len(weight) - 1, 0, -1):
        prob = weight[n] if i == n else _prefix_probability(draft, rows, weight[i], i)
        node = i - 1
        key = Key(draft.root, node, Purpose.ACCEPT, node)
        accepted = chance.coin(prob, key)
        tests.append(Test(node, key, rows[node][draft.tokens[node]], drawn_with(draft, node), prob, accepted))
        if accepted:
            return end_of_chain(draft, i, rows, chance, tests, weight[i])
    return end_of_chain(draft, 0, rows, chance, tests)


def _prefix_probability(draft: Draft, rows: Sequence[Row], weight: Any, i: int) -> Any:
    """h_i = R/(R + (1 − w)), R = Σ (w·p − q)₊ of the next node: exact 1 − w, since R + 1 − w loses it to rounding."""
    _, rest = left_over(rows[i], draft, i, weight)
    owed = rest + (1 - weight)
    return rest / owed if owed > 0 else 1
