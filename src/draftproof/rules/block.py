"""Block verification: judge the chain as a whole, keep the longest prefix that passes.

Sun et al., "Block verification accelerates speculative decoding" (ICLR 2025, 2403.10444, algorithm 2). The best
lossless rule for a single path; equal to token verification for chosen drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base import Chance, Draft, Key, Purpose, Row, Test, Verdict
from ..laws import acceptance, residual, total, without
from .chain import drawn_with, finish, require_chain


def block(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
    """A chain of sampled or chosen tokens.

    weight[i] is w_i, the share of the drafted prefix x_1..x_i that the target still owes. The accepted length is the
    LARGEST i whose coin succeeds, so the coins are drawn from the end and the first success decides.
    """
    require_chain(draft, "block")
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
            return finish(draft, i, rows, chance, tests, weight[i])
    return finish(draft, 0, rows, chance, tests)


def _prefix_probability(draft: Draft, rows: Sequence[Row], weight: Any, i: int) -> Any:
    """h_i = R/(R + (1 − w)), R = Σ (w·p − q)₊ of the next node: exact 1 − w, since R + 1 − w loses it to rounding."""
    q = draft.law(i)
    # a point mass at x leaves nothing at x, and w·p everywhere else
    rest = weight * total(without(rows[i], draft.tokens[i])) if q is None else total(residual(rows[i], q, weight))
    owed = rest + (1 - weight)
    return rest / owed if owed > 0 else 1
