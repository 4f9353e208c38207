"""How sure a ratio is: the percentile bootstrap over the groups that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio and where it would lie with other prompts of the kind. One group alone has no interval: None."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def below_one(self) -> bool:
        return self.high is not None and self.high < 1

    @property
    def above_one(self) -> bool:
        return self.low is not None and self.low > 1


def ratio(
    base_seconds: Sequence[float],
    base_tokens: Sequence[int],
    seconds: Sequence[float],
    tokens: Sequence[int],
    *,
    samples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Seconds a token of the base over those of a system, of sums over groups: 2 is twice as fast.

    Entry i of each is group i, one figure a group: repeats are reduced to their median first. They are the same
    prompts again, so they are no further draws from the prompts, and a median forgets the repeat that something else
    on the machine slowed down. Groups are drawn again with replacement, both systems' figures of one together, so that
    what makes a prompt slow for both does not widen the interval.

    >>> ratio([6.0, 6.0], [10, 10], [2.0, 2.0], [10, 10])
    Interval(value=3.0, low=3.0, high=3.0)
    >>> ratio([6.0], [10], [2.0], [10])
    Interval(value=3.0, low=None, high=None)
    """
    figures = np.array([base_seconds, base_tokens, seconds, tokens], dtype=np.float64)
    if not figures.size:
        raise ValueError("base_seconds: it is empty; a ratio needs one group at least")
    if not np.all(np.isfinite(figures) & (figures > 0)):
        raise ValueError("seconds: every group needs seconds and tokens above 0")
    value = float(_speed_up(figures.sum(axis=1)))
    groups = figures.shape[1]
    if groups == 1:
        return Interval(value)
    # how often each group is drawn says as much as which were drawn, and sums become one product
    drawn = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), size=samples)
    found = _speed_up(figures @ drawn.T)
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value, float(low), float(high))


def _speed_up(sums: np.ndarray) -> np.ndarray:
    return np.asarray(sums[0] * sums[3] / (sums[1] * sums[2]))
