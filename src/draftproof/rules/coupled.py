"""Coupled ("seed-exact") verification: the target samples with its own noise, the draft is accepted if it agrees.

Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant speculative decoding" (2024, 2408.07978)
for one draft; here any tree. The token emitted at a position is a function of the target's law and the noise of that
position alone, so no drafter, no stopping rule and no wrong q can change the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base import ROOT, Chance, Draft, Last, Row, Test, Verdict, token_key
from ..trees import children


def coupled(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
    """Walk down the tree along the target's own samples. Any tree, any kind of draft; nothing is asked of its laws."""
    node = ROOT
    path: list[int] = []
    tokens: list[int] = []
    tests: list[Test] = []
    while True:
        key = token_key(draft.root + len(path))
        p = rows[node + 1]
        (y,) = chance.pick(p, key)
        tokens.append(y)
        siblings = children(draft.parents, node)
        match = next((child for child in siblings if draft.tokens[child] == y), None)
        for child in siblings:
            q = draft.law(child)
            x = draft.tokens[child]
            tests.append(Test(child, key, p[x], 1 if q is None else q[x], None, child == match))
            if child == match:
                break
        if match is None:
            break
        path.append(match)
        node = match
    last: Last = "replacement" if siblings else "bonus" if path else "target"
    return Verdict(tuple(path), tuple(tokens), last, tuple(tests))
