"""Which tokens a law keeps: top-k, top-p and min-p by looking for their thresholds, without sorting the vocabulary.

The kept tokens are a prefix of the row in falling order, lowest id first among equals: a key and, for the tokens that
have exactly that key, a last id. `prefix` walks down from the peak in growing steps until the prefix reaches what is
asked for, narrows a step with too many tokens by halves, and puts the few that are left in order. Groups whose largest
token lies below are not read, so a sharp law costs next to nothing.
"""

from __future__ import annotations

import numpy as np

from ..chance import GROUP
from .cached import njit
from .numeric import BLOCK, any_at_least, key, key_to_logit, logit, plus, power, total, wide
from .scan import EVERY, Law, weights

_FEW = 512  # tokens that are put in order rather than narrowed down further
_STEP, _STRIDE = 3.0, 1.3  # of logits: how far down the first look goes, and how much further each next one
_NOTHING = np.int64(-0x7F800001)  # the key of minus infinity


@njit(fastmath={"contract"})
def _tally(words, start, stop, low, high, law, by_mass):
    """(number, measure) of a group's tokens with low <= key < high that take part; the measure is weight or number."""
    wide()
    count, measure = 0, 0.0
    floor, cut, peak, scale = law.floor, law.cut, law.peak, law.scale
    for i in range(np.uint64(start), np.uint64(stop)):
        x = logit(words[i])
        k = np.int64(key(x))
        inside = (k >= low) & (k < high) & ((k > floor) | ((k == floor) & (np.int64(i) <= cut)))
        count += inside
        if by_mass:
            weight = power((np.float64(x) - peak) * scale)
            measure = plus(measure, weight if inside else 0.0)
    return count, measure if by_mass else np.float64(count)


@njit
def _between(words, tops, low, high, law, by_mass):
    count, measure = 0, 0.0
    for g in range(len(tops)):
        if tops[g] >= low:
            n, m = _tally(words, g * GROUP, min((g + 1) * GROUP, len(words)), low, high, law, by_mass)
            count += n
            measure += m
    return count, measure


@njit
def _collect(words, tops, low, high, law, found):
    """How many tokens with low <= key < high take part; they go into `found`, as far as it holds them, as (−key, id)
    in one number: in order of these they fall."""
    n = 0
    for g in range(len(tops)):
        if tops[g] < low:
            continue
        end = min((g + 1) * GROUP, len(words))
        for block in range(g * GROUP, end, BLOCK):
            stop = min(block + BLOCK, end)
            if not any_at_least(words, block, stop, low):
                continue
            for token in range(np.uint64(block), np.uint64(stop)):
                k, x = np.int64(key(logit(words[token]))), np.int64(token)
                if low <= k < high and (k > law.floor or (k == law.floor and x <= law.cut)):
                    if n < len(found):
                        found[n] = (-k << 32) + x
                    n += 1
    return n


@njit
def _measure(entry, law, by_mass):
    return power((np.float64(key_to_logit(-(entry >> 32))) - law.peak) * law.scale) if by_mass else 1.0


@njit
def prefix(words, tops, law, goal, by_mass):
    """(floor, cut, measure) of the shortest falling prefix of `law` whose weight (by_mass) or number reaches `goal`."""
    found = np.empty(_FEW, np.int64)
    high, above, step = np.int64(tops.max()) + 1, 0.0, _STEP
    while True:  # down, until the prefix ends between low and high
        below = np.int64(key(np.float32(law.peak - step)))
        low = max(min(below, high - 1), law.floor, _NOTHING)
        count = _collect(words, tops, low, high, law, found)
        if count <= _FEW:
            measure = 0.0
            for entry in found[:count]:
                measure += _measure(entry, law, by_mass)
        else:
            _, measure = _between(words, tops, low, high, law, by_mass)
        if above + measure >= goal:
            break
        above += measure
        if low == law.floor or low == _NOTHING:  # rounding alone: all of it
            return law.floor, law.cut, above
        high, step = low, _STRIDE * step
    if count > _FEW:
        low, high, above, count = _narrowed(words, tops, low, high, law, goal, above, count, by_mass)
        if count > _FEW:
            found = np.empty(count, np.int64)  # as many are equal
        count = _collect(words, tops, low, high, law, found)
    found = found[:count]
    found.sort()
    k, x = low, law.cut
    for entry in found:
        k, x = -(entry >> 32), entry & 0xFFFFFFFF
        above += _measure(entry, law, by_mass)
        if above >= goal:
            break
    return k, x, above


@njit
def _narrowed(words, tops, low, high, law, goal, above, count, by_mass):
    """Halve the step in which the prefix ends until few tokens, or equal ones, are left in it."""
    grain = np.int64(1 << 16 if words.itemsize == 2 else 1)  # neighbouring numbers differ by so much
    while count > _FEW and high - low > grain:
        middle = np.int64(key(np.float32(0.5 * (np.float64(key_to_logit(low)) + np.float64(key_to_logit(high - 1))))))
        middle = min(max(middle, low + 1), high - 1)
        n, measure = _between(words, tops, middle, high, law, by_mass)
        if above + measure >= goal:
            low, count = middle, n
        else:
            high, above, count = middle, above + measure, count - n
    return low, high, above, count


@njit
def kept_mass(words, tops, law, buffer):
    kept = 0.0
    for g in range(len(tops)):
        if tops[g] >= law.floor:
            kept += total(buffer, weights(words, g, law, buffer))
    return kept


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
    floor, cut, mass = law.floor, law.cut, law.mass
    if 0 < top_k < len(words):
        floor, cut, _ = prefix(words, tops, law, np.float64(top_k), False)
        law = Law(law.peak, law.scale, 1.0, floor, cut)
        mass = kept_mass(words, tops, law, buffer)
    if top_p < 1.0:
        floor, cut, mass = prefix(words, tops, law, top_p * mass, True)
    if log_min_p > -np.inf:
        lowest = _min_p_floor(law.peak, temperature, log_min_p)
        if lowest > floor:
            floor, cut = lowest, EVERY
            mass = kept_mass(words, tops, Law(law.peak, law.scale, 1.0, floor, cut), buffer)
        elif top_p == 1.0 and not 0 < top_k < len(words):
            mass = kept_mass(words, tops, law, buffer)
    return Law(law.peak, law.scale, mass, floor, cut)
