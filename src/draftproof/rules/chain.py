"""What the chain rules share: they take chains of chosen or sampled tokens, and end with one token of the target's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base import Chance, Draft, Key, Kind, Last, Purpose, Row, Verdict
from ..laws import residual, total, without
from ..trees import is_chain


def require_chain(draft: Draft, rule: str) -> None:
    """Refuse what a chain rule would verify wrongly: trees, and tokens that share the target's noise."""
    if not is_chain(draft.parents):
        raise ValueError(f"draft: the {rule} rule takes a chain, parents are {draft.parents}")
    if Kind.COUPLED in draft.kind:
        raise ValueError(f"draft: tokens drawn with the target's own noise need the coupled rule, not {rule}")


def drawn_with(draft: Draft, node: int) -> Any:
    """q(x) of a node: the probability its token was drawn with, 1 if it was chosen."""
    q = draft.law(node)
    if q is None:
        return 1
    chance_of_x = q[draft.tokens[node]]
    if not chance_of_x > 0:
        raise ValueError(
            f"draft: token {draft.tokens[node]} at position {draft.root + node} has probability {chance_of_x} "
            "in the law it is said to be drawn from"
        )
    return chance_of_x


def finish(
    draft: Draft, accepted: int, rows: Sequence[Row], chance: Chance, tests: Sequence[Any], weight: Any = 1
) -> Verdict:
    """The verdict after `accepted` nodes: the bonus if they are all, else a replacement from (weight·p − q)₊."""
    p = rows[accepted]
    n = len(draft)
    last: Last = "replacement" if accepted < n else "bonus" if n else "target"
    law, rounding = p, 0
    if last == "replacement":
        q = draft.law(accepted)
        rest = without(p, draft.tokens[accepted]) if q is None else residual(p, q, weight)
        if total(rest) > 0:
            law = rest
        else:  # a rejection proves that mass is left; only rounding can hide it
            rounding = 1
    (y,) = chance.pick(law, Key(draft.root, accepted, Purpose.REPLACE))
    tokens = (*draft.tokens[:accepted], y)
    return Verdict(tuple(range(accepted)), tokens, last, tuple(tests), rounding)
