"""What rounds cost here, measured while they run."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping

from ..base import Step
from ..trees import leaves_of
from .threshold import levels_of

_KEPT = 9  # measurements of a kind: their median outlives a hiccup and follows a change
_FIRST = 256  # tokens of context in the first bucket; each further one reaches twice as far


class Costs:
    """Seconds of a round by the rows it scores and the context, and of a level of drafting by origin.

    step: rows that a forward is padded to a multiple of. rounds: known beforehand, by rows, for short contexts.
    levels: the same of drafters. branch: what each leaf of a tree but one adds to a round.
    """

    def __init__(
        self,
        step: int = 1,
        rounds: Mapping[int, float] | None = None,
        levels: Mapping[str, float] | None = None,
        branch: float = 0.0,
    ) -> None:
        self.step, self.branch = step, branch
        self._rounds: dict[int, dict[int, deque[float]]] = {}
        self._levels: dict[str, deque[float]] = {}
        for rows, seconds in (rounds or {}).items():
            self._of(0, rows).append(seconds)
        for origin, seconds in (levels or {}).items():
            self._levels[origin] = deque([seconds], _KEPT)

    def add(self, step: Step, models: frozenset[str]) -> None:
        """A round that was measured. models: origins whose drafting takes time worth counting."""
        spent = sum(step.seconds.get(phase, 0.0) for phase in ("forward", "verify", "commit"))
        spent -= self.branch * max(leaves_of(step.draft.parents) - 1, 0)
        if step.rows and spent > 0 and "prefill" not in step.seconds:
            self._of(bucket_of(step.draft.root), step.rows).append(spent)
        origins = models & set(step.draft.origin)
        if len(origins) == 1:
            (origin,) = origins
            each = step.seconds.get("propose", 0.0) / max(levels_of(step), 1)
            if each > 0:
                self._levels.setdefault(origin, deque(maxlen=_KEPT)).append(each)

    def _of(self, bucket: int, rows: int) -> deque[float]:
        cell = -(-rows // self.step) * self.step
        return self._rounds.setdefault(bucket, {}).setdefault(cell, deque(maxlen=_KEPT))

    def level(self, origin: str) -> float | None:
        """Seconds of a level; None if that was never measured. What was drafted and not scored makes a measurement too
        long, never too short: the lower quarter counts."""
        known = self._levels.get(origin)
        return sorted(known)[len(known) // 4] if known else None

    def rounds(self, context: int, others: int, most: int, *, smooth: bool = False) -> tuple[float, ...]:
        """Seconds of a round with 0..most nodes beside `others` rows of other requests and the request's first own.

        smooth: between the padded row counts, for rounds that others fill too.
        """
        known = self._curve(context)
        if not known:  # nothing was measured: rows are all but free, as they are to a model that waits for memory
            return tuple(1 + 0.02 * (others + n) for n in range(most + 1))
        rows = [others + 1 + n for n in range(most + 1)]
        if not smooth:
            rows = [-(-count // self.step) * self.step for count in rows]
        return tuple(_between(known, count) for count in rows)

    def _curve(self, context: int) -> list[tuple[int, float]]:
        """(rows, seconds), both rising: of the context's bucket, filled up from shorter ones' shape."""
        if not self._rounds:
            return []
        bucket = bucket_of(context)
        near = min(self._rounds, key=lambda each: (abs(each - bucket), each))
        medians = {rows: sorted(some)[len(some) // 2] for rows, some in self._rounds[near].items()}
        if near != 0 and 0 in self._rounds:
            first = {rows: sorted(some)[len(some) // 2] for rows, some in self._rounds[0].items()}
            shared = [medians[rows] / first[rows] for rows in medians if rows in first]
            if shared:
                factor = sorted(shared)[len(shared) // 2]
                medians = {rows: seconds * factor for rows, seconds in first.items()} | medians
        curve, highest = [], 0.0
        for rows in sorted(medians):
            highest = max(highest, medians[rows])
            curve.append((rows, highest))
        return curve


def bucket_of(context: int) -> int:
    """0 for up to 256 tokens, 1 for up to 512, ...

    >>> bucket_of(10), bucket_of(256), bucket_of(257), bucket_of(5000)
    (0, 0, 1, 5)
    """
    return max(0, (max(context, 1) - 1) // _FIRST).bit_length()


def _between(curve: list[tuple[int, float]], rows: int) -> float:
    """Linear between known counts; beyond the last as steep as before it."""
    at = bisect_left(curve, (rows, 0.0))
    if at == 0:
        return curve[0][1]
    if at == len(curve):
        if len(curve) == 1:
            return curve[0][1] * (1 + 0.01 * (rows - curve[0][0]))
        at -= 1
    (low, less), (high, more) = curve[at - 1], curve[at]
    return less + (more - less) * (rows - low) / (high - low)
