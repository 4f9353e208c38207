"""Where two greedy answers first differ, and whether rounding explains it: what the target's own logits say there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..base import Feed, Row, Target
from ..loop import PIECE

TIE = 2.0
"""Steps of a dtype that logits may be apart and still be equal but for rounding: one of either's."""

_FRACTION_BITS = {"bfloat16": 7, "float16": 10, "float32": 23}


class Explained(NamedTuple):
    """As in `Divergence`: position, gap (plain's token less the other's), steps, tie."""

    position: int
    gap: float
    steps: float
    tie: bool


def first_divergence(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first position at which two answers have different tokens; None if they have none.

    One that begins with all of the other does not differ from it: an answer that has ended has its end token in it,
    and one without was asked for fewer tokens.

    >>> first_divergence([5, 6, 7], [5, 6, 8]), first_divergence([5, 6], [5, 6, 7])
    (2, None)
    """
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def step_at(size: float, dtype: str) -> float:
    """The distance of neighbouring numbers of a dtype, at numbers of that size.

    >>> step_at(20.0, "bfloat16"), step_at(-20.0, "float16"), step_at(0.75, "float32") == 2**-24
    (0.125, 0.015625, True)
    """
    if dtype not in _FRACTION_BITS:
        raise ValueError(f"dtype: {dtype!r} is unknown; known are {', '.join(_FRACTION_BITS)}")
    return math.ldexp(1.0, math.frexp(size)[1] - 1 - _FRACTION_BITS[dtype])


def explained(
    target: Target, prompt: Sequence[int], plain_ids: Sequence[int], other_ids: Sequence[int], dtype: str
) -> Explained:
    """How the two tokens of the first difference look to `target`: one reading of all that comes before them.

    Under greedy decoding the gap is >= 0, but where this reading rounds otherwise than decoding did.
    """
    position = first_divergence(plain_ids, other_ids)
    if position is None:
        raise ValueError(f"other_ids: {len(other_ids)} tokens that nowhere differ from plain decoding's")
    if not 0 <= other_ids[position] < target.vocab_size:
        raise ValueError(f"other_ids: token {other_ids[position]} is not in 0 .. {target.vocab_size - 1}")
    row = _last_row(target, [*prompt, *plain_ids[:position]])
    plain, other = float(row[plain_ids[position]]), float(row[other_ids[position]])
    gap = plain - other
    steps = gap / step_at(max(abs(plain), abs(other)), dtype) if gap else 0.0
    return Explained(position, gap, steps, abs(steps) <= TIE)


def _last_row(target: Target, text: Sequence[int]) -> Row:
    """The logits after `text`, read as decoding reads a prompt: in pieces, its last token alone."""
    session = target.open(len(text))
    try:
        for at in range(0, len(text) - 1, PIECE):
            piece = text[at : min(at + PIECE, len(text) - 1)]
            target.forward([Feed(session, tuple(piece), want=())])
            target.commit([session], [()])
        [scores] = target.forward([Feed(session, (text[-1],))])
        return scores.logits[0]
    finally:
        target.close(session)
