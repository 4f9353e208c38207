"""What the rules share: the law a token was drawn with, what a rejection leaves of p, and the one final draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base import Chance, Draft, Key, Last, Purpose, Row, Test, Verdict
from ..laws import residual, total, without
from ..trees import path_to


def drawn_with(draft: Draft, node: int) -> Any:
    """q(x) of a node: the probability its token was drawn with, 1 if it was chosen."""
    q = draft.law(node)
    if q is None:
        return 1
    chance_of_x = q[draft.tokens[node]]
    if not chance_of_x > 0:
        position = draft.root + len(path_to(draft.parents, node)) - 1
        raise ValueError(
            f"draft: token {draft.tokens[node]} at position {position} has probability {chance_of_x} "
            "in the law it is said to be drawn from"
        )
    return chance_of_x


def left_over(p: Row, draft: Draft, node: int, weight: Any = 1) -> tuple[Row, Any]:
    """(weight·p − q)₊ with the law q of `node`, and its mass: what is still owed once that node was refused.

    A chosen token's q is the point mass, which leaves nothing at the token and weight·p elsewhere.
    """
    q = draft.law(node)
    rest = weight * without(p, draft.tokens[node]) if q is None else residual(p, q, weight)
    return rest, total(rest)


def after_refusal(p: Row, draft: Draft, node: int, weight: Any = 1) -> tuple[Row, int]:
    """The law once `node` was refused, and 0; p itself, and 1, where rounding left nothing of it.

    In exact numbers a refusal proves that mass is left.
    """
    rest, mass = left_over(p, draft, node, weight)
    return (rest / mass, 0) if mass > 0 else (p, 1)


def ended(
    draft: Draft,
    path: Sequence[int],
    law: Row,
    chance: Chance,
    tests: Sequence[Test],
    *,
    refused: bool,
    rounding: int = 0,
) -> Verdict:
    """The verdict that keeps `path` and adds one token drawn from `law`.

    refused: whether a node that follows the path was refused, so that the last token replaces it.
    """
    last: Last = "replacement" if refused else "bonus" if path else "target"
    (y,) = chance.pick(law, Key(draft.root, len(path), Purpose.REPLACE))
    return Verdict(tuple(path), (*(draft.tokens[node] for node in path), y), last, tuple(tests), rounding)


def end_of_chain(
    draft: Draft, accepted: int, rows: Sequence[Row], chance: Chance, tests: Sequence[Test], weight: Any = 1
) -> Verdict:
    """The verdict after `accepted` nodes of a chain: the bonus if they are all, else a draw from (weight·p − q)₊."""
    law, rounding = rows[accepted], 0
    refused = accepted < len(draft)
    if refused:
        law, rounding = after_refusal(law, draft, accepted, weight)
    return ended(draft, range(accepted), law, chance, tests, refused=refused, rounding=rounding)
