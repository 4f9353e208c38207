"""How sure a ratio is: the bootstrap over the groups that were measured, by percentiles that few groups widen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np

FEWEST = 8
"""Groups below which there is no interval: too often it would not hold what it should."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio and where it would lie with other prompts of the kind. Less than FEWEST groups have no interval: None."""

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
    samples: int = 5000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Seconds a token of the base over those of a system, of sums over groups: 2 is twice as fast.

    Entry i of each is group i, one figure a group: repeats are reduced to their median first. They are the same
    prompts again, so they are no further draws from the prompts, and a median forgets the repeat that something else
    on the machine slowed down. Groups are drawn again with replacement, both systems' figures of one together, so that
    what makes a prompt slow for both does not widen the interval.

    >>> ratio([6.0] * 8, [10] * 8, [2.0] * 8, [10] * 8)
    Interval(value=3.0, low=3.0, high=3.0)
    >>> ratio([6.0] * 7, [10] * 7, [2.0] * 7, [10] * 7)
    Interval(value=3.0, low=None, high=None)
    """
    figures = np.array([base_seconds, base_tokens, seconds, tokens], dtype=np.float64)
    if not figures.size:
        raise ValueError("base_seconds: it is empty; a ratio needs one group at least")
    if not np.all(np.isfinite(figures) & (figures > 0)):
        raise ValueError("seconds: every group needs seconds and tokens above 0")
    value = float(_speed_up(figures.sum(axis=1)))
    groups = figures.shape[1]
    if groups < FEWEST:
        return Interval(value)
    # how often each group is drawn says as much as which were drawn, and sums become one product
    drawn = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), size=samples)
    found = _speed_up(figures @ drawn.T)
    tail = expanded_tail((1 - confidence) / 2, groups)
    low, high = np.quantile(found, [tail, 1 - tail])
    return Interval(value, float(low), float(high))


def expanded_tail(tail: float, n: int) -> float:
    """The tail to cut off resamples of n so that about `tail` lies beyond: Φ(−√(n/(n−1))·t), t of n − 1 degrees.

    Resamples spread as if divided by n, not n − 1, and by a normal law, not Student's: for few that is too narrow
    (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015, on small samples).

    >>> round(expanded_tail(0.025, 8), 4), round(expanded_tail(0.025, 1000), 4)
    (0.0057, 0.0248)
    """
    return _NORMAL.cdf(-sqrt(n / (n - 1)) * student(1 - tail, n - 1))


def student(probability: float, freedom: int) -> float:
    """The quantile of Student's t, by the Cornish-Fisher expansion: to three digits for 95 % and 7 degrees or more.

    >>> round(student(0.975, 7), 3)
    2.365
    """
    z = _NORMAL.inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


def _speed_up(sums: np.ndarray) -> np.ndarray:
    return np.asarray(sums[0] * sums[3] / (sums[1] * sums[2]))
