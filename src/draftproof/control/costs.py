"""What rounds cost here, measured while they run."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate

from ..base import Step
from ..trees import leaves_of
from .threshold import levels_of

Curve = list[tuple[int, float]]

_KEPT = 9  # measurements of a kind: their median outlives a hiccup and follows a change
_FIRST = 256  # tokens of context in the first bucket; each further one reaches twice as far


class Costs:
    """Seconds of a round by the rows it scores and the context, and of a level of drafting by origin.

    step: rows that a forward is padded to a multiple of. rounds: known beforehand, by rows, for short contexts: their
    proportions hold until they are measured, their scale only until anything is. levels: the same of drafters, by
    origin. branch: what each leaf of a tree but one adds to a round, on the scale of `rounds`. wide: what the rows of
    a forward with a prompt are padded to a multiple of. reading: seconds of a token that a draft model has yet to read,
    by origin.
    """

    def __init__(
        self,
        step: int = 1,
        rounds: Mapping[int, float] | None = None,
        levels: Mapping[str, float] | None = None,
        branch: float = 0.0,
        reading: Mapping[str, float] | None = None,
        *,
        wide: int = 1,
    ) -> None:
        self.step, self._wide = step, wide
        self._reading = dict(reading or {})
        self.spare = 0.0  # tokens that requests put by, together, for drafters that rest to be tried again
        self._shape = _rising({self._padded(count): seconds for count, seconds in (rounds or {}).items()})
        self._branch = branch
        self._levels = {origin: deque([seconds], _KEPT) for origin, seconds in (levels or {}).items()}
        self._measured: dict[int, dict[int, deque[float]]] = {}  # by bucket of context, then rows
        self._told: tuple[float, ...] = ()  # the last round
        self._curves: dict[int, tuple[Curve, float]] = {}  # what follows, until the next measurement

    def add(self, step: Step, models: frozenset[str]) -> None:
        """A round that was measured. models: origins whose drafting takes time worth counting."""
        told = step.rows, *(step.seconds.get(phase, 0.0) for phase in ("propose", "forward", "verify", "commit"))
        if step.requests > 1 and told == self._told:  # the same round, of another of its requests
            return
        self._told, spent = told, sum(told[2:])
        spent -= self.branch(step.draft.root) * max(leaves_of(step.draft.parents) - 1, 0)
        if step.rows and spent > 0 and "prefill" not in step.seconds:
            bucket = self._measured.setdefault(bucket_of(step.draft.root), {})
            bucket.setdefault(self._padded(step.rows), deque(maxlen=_KEPT)).append(spent)
            self._curves.clear()
        origins = models & set(step.draft.origin)
        if len(origins) == 1:
            (origin,) = origins
            each = step.seconds.get("propose", 0.0) / levels_of(step, origin)
            if each > 0:
                self._levels.setdefault(origin, deque(maxlen=_KEPT)).append(each)

    def _padded(self, rows: int) -> int:
        return -(-rows // self.step) * self.step

    def beside_prompt(self, pending: int, most: int) -> int:
        """Nodes, of at most `most`, beside so many rows of a prompt: one more would make the forward read its weights
        for a whole block of rows again."""
        return most if self._wide == 1 else min(most, -pending % self._wide)

    def level(self, origin: str) -> float | None:
        """Seconds of a level; None if that was never measured. What was drafted and not scored makes a measurement too
        long, never too short: the lower quarter counts."""
        known = self._levels.get(origin)
        return sorted(known)[len(known) // 4] if known else None

    def reading(self, origin: str, tokens: int) -> float:
        """Seconds until its model has read so many."""
        return tokens * self._reading.get(origin, 0.0)

    def branch(self, context: int) -> float:
        """Seconds that each leaf but one adds."""
        return self._branch * self._curve(context)[1]

    def rounds(self, context: int, others: int, most: int, *, smooth: bool = False) -> tuple[float, ...]:
        """Seconds of a round with 0..most nodes beside `others` rows of other requests and the request's first own.

        smooth: between the padded row counts, for rounds that others fill too.
        """
        curve, _ = self._curve(context)
        if not curve:  # nothing was measured: rows are all but free, as they are to a model that waits for memory
            return tuple(1 + 0.02 * (others + n) for n in range(most + 1))
        rows = range(others + 1, others + most + 2)
        if smooth or self.step == 1:
            return tuple(_between(curve, count) for count in rows)
        found, known = [], dict[int, float]()
        for count in rows:
            padded = self._padded(count)
            if padded not in known:
                known[padded] = _between(curve, padded)
            found.append(known[padded])
        return tuple(found)

    def _curve(self, context: int) -> tuple[Curve, float]:
        """(rows, seconds), both rising; and the scale of what was known beforehand."""
        bucket = bucket_of(context)
        if bucket not in self._curves:
            self._curves[bucket] = self._drawn(bucket)
        return self._curves[bucket]

    def _drawn(self, bucket: int) -> tuple[Curve, float]:
        if not self._measured:
            return self._shape, 1.0
        near = min(self._measured, key=lambda each: (abs(each - bucket), each))
        found = {rows: sorted(some)[len(some) // 2] for rows, some in self._measured[near].items()}
        if not self._shape:
            return _rising(found), 1.0
        ratios = sorted(seconds / _between(self._shape, rows) for rows, seconds in found.items())
        scale = ratios[len(ratios) // 2]
        return _rising({rows: seconds * scale for rows, seconds in self._shape} | found), scale


def _rising(seconds: Mapping[int, float]) -> Curve:
    """More rows never cost less."""
    rows = sorted(seconds)
    return list(zip(rows, accumulate((seconds[count] for count in rows), max), strict=True))


def bucket_of(context: int) -> int:
    """0 for up to 256 tokens, 1 for up to 512, ...

    >>> bucket_of(10), bucket_of(256), bucket_of(257), bucket_of(5000)
    (0, 0, 1, 5)
    """
    return max(0, (max(context, 1) - 1) // _FIRST).bit_length()


def _between(curve: Sequence[tuple[int, float]], rows: int) -> float:
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
