"""Which tokens a law keeps: top-k, top-p and min-p by looking for their thresholds, without sorting the vocabulary.

The kept tokens are a prefix of the row in falling order, lowest id first among equals: a key and, for the tokens that
have exactly that key, a last id. `prefix` walks down from the peak in doubling steps until the prefix reaches what is
asked for, narrows the step by halves until few tokens are left in it, and puts those in order. Groups whose largest
token lies below are not read, so a sharp law costs next to nothing.
"""

from __future__ import annotations

import numpy as np

from ..chance import GROUP
from .cached import njit
from .numeric import key, key_to_logit, logit, plus, power, wide
from .scan import EVERY, Law, weights

_FEW = 512  # tokens that are put in order rather than narrowed down further


@njit(fastmath={"contract"})
def _tally(part, start, low, high, law, by_mass):
    """(number, measure) of a group's tokens with low <= key < high that take part; the measure is weight or number."""
    wide()
    count, measure = 0, 0.0
    for i in range(len(part)):
        x = logit(part[i])
        k = np.int64(key(x))
        inside = (k >= low) & (k < high) & ((k > law.floor) | ((k == law.floor) & (start + i <= law.cut)))
        count += inside
        if by_mass:
            weight = power((np.float64(x) - law.peak) * law.scale)
            measure = plus(measure, weight if inside else 0.0)
    return count, measure if by_mass else np.float64(count)


@njit
def _between(words, tops, low, high, law, by_mass):
    count, measure = 0, 0.0
    for g in range(len(tops)):
        if tops[g] >= low:
            n, m = _tally(words[g * GROUP : (g + 1) * GROUP], g * GROUP, low, high, law, by_mass)
            count += n
            measure += m
    return count, measure


@njit
def _in_order(words, tops, low, high, law, count):
    """The tokens with low <= key < high that take part, as (−key, id) in one number, falling."""
    found, n = np.empty(count, np.int64), 0
    for g in range(len(tops)):
        if tops[g] >= low:
            for x in range(g * GROUP, min((g + 1) * GROUP, len(words))):
                k = np.int64(key(logit(words[x])))
                if low <= k < high and (k > law.floor or (k == law.floor and x <= law.cut)):
                    found[n] = (-k << 32) + x
                    n += 1
    if high - low > 1:  # else they are equal, and stand by id already
        found.sort()
    return found


@njit
def prefix(words, tops, law, goal, by_mass):
    """(floor, cut) of the shortest falling prefix of `law` whose weight (by_mass) or number reaches `goal`."""
    high = np.int64(tops.max()) + 1
    low, above, step = high, 0.0, 1.0
    grain = np.int64(1 << 16 if words.itemsize == 2 else 1)  # neighbouring numbers differ by so much
    while True:  # down, until the prefix ends between low and high
        below = np.int64(key(np.float32(law.peak - step)))
        low = max(min(below, high - 1), law.floor, np.int64(key(np.float32(-np.inf))))
        count, measure = _between(words, tops, low, high, law, by_mass)
        if above + measure >= goal:
            break
        if low == law.floor or step > 1e39:  # rounding alone: all of it
            return law.floor, law.cut
        high, above, step = low, above + measure, 2.0 * step
    while count > _FEW and high - low > grain:
        middle = np.int64(key(np.float32(0.5 * (np.float64(key_to_logit(low)) + np.float64(key_to_logit(high - 1))))))
        middle = min(max(middle, low + 1), high - 1)
        n, measure = _between(words, tops, middle, high, law, by_mass)
        if above + measure >= goal:
            low, count = middle, n
        else:
            high, above, count = middle, above + measure, count - n
    found = _in_order(words, tops, low, high, law, count)
    k, x = low, law.cut
    for entry in found:
        k, x = -(entry >> 32), entry & 0xFFFFFFFF
        above += power((np.float64(key_to_logit(k)) - law.peak) * law.scale) if by_mass else 1.0
        if above >= goal:
            return k, x
    return k, x


@njit
def kept_mass(words, tops, law, buffer):
    total = 0.0
    for g in range(len(tops)):
        if tops[g] >= law.floor:
            total += buffer[: weights(words, g, law, buffer)].sum()
    return total


@njit
def _min_p_floor(peak, temperature, log_min_p):
    """The lowest key that min-p keeps, by halves over all float32 numbers."""
    low, high = np.int64(key(np.float32(-np.inf))), np.int64(key(np.float32(peak)))
    while low < high:
        middle = (low + high) >> 1
        if (np.float64(key_to_logit(middle)) - peak) / temperature >= log_min_p:
            high = middle
        else:
            low = middle + 1
    return low


@njit
def truncated(words, tops, law, temperature, top_k, top_p, log_min_p, buffer):
    """`law`, whose mass must be that of the whole row if top_p is on and top_k is not, cut by top-k, top-p, min-p."""
    floor, cut, total = law.floor, law.cut, law.mass
    if 0 < top_k < len(words):
        floor, cut = prefix(words, tops, law, np.float64(top_k), False)
        law = Law(law.peak, law.scale, 1.0, floor, cut)
        total = kept_mass(words, tops, law, buffer)
    if top_p < 1.0:
        floor, cut = prefix(words, tops, law, top_p * total, True)
    if log_min_p > -np.inf:
        lowest = _min_p_floor(law.peak, temperature, log_min_p)
        if lowest > floor:
            floor, cut = lowest, EVERY
    law = Law(law.peak, law.scale, 1.0, floor, cut)
    return Law(law.peak, law.scale, kept_mass(words, tops, law, buffer), floor, cut)
