"""The final draw of every rule: the race of chance.py over a law, over what is left of it, or for its first k.

Almost no noise is made. A group takes part only if its first arrival, at the pace of its largest weight, is ahead of
the leader; a token of it only if its logit is so large that it would be at that very moment.
"""

from __future__ import annotations

import numpy as np

from ..chance import GROUP
from .cached import njit
from .numeric import BLOCK, LOWEST, any_at_least, key, key_to_logit, logit, power, wide
from .scan import weight_of

_LOW = np.uint64(0xFFFFFFFF)
_NOBODY = np.int64(1) << 62
_LIKELY = -8.0  # log2 of a group's largest weight


@njit(inline="always")
def philox(a, b, c, d, k0, k1):
    """chance.philox4x32 of one counter."""
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b = (second >> np.uint64(32)) ^ b ^ k0, second & _LOW
        c, d = (first >> np.uint64(32)) ^ d ^ k1, first & _LOW
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & _LOW, (k1 + np.uint64(0xBB67AE85)) & _LOW
    return a, b, c, d


@njit(inline="always")
def _unit(low, high):
    return (np.float64((high << np.uint64(20)) | (low >> np.uint64(12))) + 0.5) * 2.0**-52


@njit
def uniform(noise):
    """chance.PhiloxChance.uniform. noise: (root, depth << 16 | node, sample << 2 | purpose, seed low, seed high)."""
    low, high, _, _ = philox(np.uint64(0), noise[0], noise[1], noise[2], noise[3], noise[4])
    return _unit(low, high)


@njit
def _first_arrivals(noise, units, members):
    """For each group the uniform that times its first arrival, and which of its tokens that is."""
    wide()
    for g in range(len(units)):
        lane = np.uint64(g) | np.uint64(1 << 31)
        low, high, c, _ = philox(lane, noise[0], noise[1], noise[2], noise[3], noise[4])
        units[g] = _unit(low, high)
        members[g] = np.int64(c >> np.uint64(24))


@njit(inline="always")
def _later(token, noise):
    """How much later than the first of its group another token arrives."""
    a, b, c, d = philox(np.uint64(token >> 1), noise[0], noise[1], noise[2], noise[3], noise[4])
    return -np.log(_unit(c, d) if token & 1 else _unit(a, b))


@njit
def race(p, share, q, subtract, without, noise, ids):
    """The first len(ids) tokens, in order of arrival, into `ids`; -1 where there are no more. p, q: scan.Read.

    Under p's law without the token `without` (-1: none); or, with `subtract`, under (share·p − q)₊, which need not be
    normalised: no token of it weighs more than share·p, so that q is read only where p could win.
    """
    groups = len(p.tops)
    times, units, members = np.full(len(ids), np.inf), np.empty(groups), np.empty(groups, np.int64)
    ids[:] = _NOBODY
    _first_arrivals(noise, units, members)
    pace = share / p.law.mass if subtract else 1.0
    for turn in range(3):  # a good leader first: the likely groups' largest tokens; then the rest of those; then all
        for g in range(groups):
            height = (np.float64(key_to_logit(p.tops[g])) - p.law.peak) * p.law.scale
            if p.tops[g] < p.law.floor or (height < _LIKELY) != (turn == 2) or (turn == 0 and times[-1] < np.inf):
                continue
            most = times[-1] * pace * power(height)
            if 1.0 - units[g] > GROUP * most:  # -log u is larger still
                continue
            first = -np.log(units[g]) / GROUP
            if first <= most:
                least = p.tops[g] if turn == 0 else LOWEST
                _enter(p, pace, q, subtract, without, g, least, first, members[g], noise, ids, times)
    for i in range(len(ids)):
        if times[i] == np.inf:
            ids[i] = -1


@njit
def _enter(p, pace, q, subtract, without, group, least, first, member, noise, ids, times):
    """Run one group's tokens, of key `least` or more, against the leaders: ids and times, in order of arrival."""
    last = len(ids) - 1
    lowest = max(least, _lowest_key(p.law, first / (times[last] * pace)))
    words, start = p.words, group * GROUP
    end = min(start + GROUP, len(words))
    for block in range(start, end, BLOCK):
        stop = min(block + BLOCK, end)
        if not any_at_least(words, block, stop, lowest):
            continue
        for token in range(np.uint64(block), np.uint64(stop)):
            if key(logit(words[token])) >= lowest:
                x = np.int64(token)
                weight = pace * weight_of(p, x)
                if subtract:
                    weight -= weight_of(q, x) / q.law.mass
                if weight > 0.0 and first <= times[last] * weight and x != without:
                    time = first / weight if x - start == member else (first + _later(x, noise)) / weight
                    _place(x, time, ids, times)
                    lowest = max(least, _lowest_key(p.law, first / (times[last] * pace)))


@njit
def _place(token, time, ids, times):
    """Among the leaders, if it is ahead of the last of them and not there yet; the lower id on a tie."""
    at = len(ids)
    while at > 0 and (time < times[at - 1] or (time == times[at - 1] and token < ids[at - 1])):
        at -= 1
    if at < len(ids) and (at == 0 or ids[at - 1] != token):
        for j in range(len(ids) - 1, at, -1):
            ids[j], times[j] = ids[j - 1], times[j - 1]
        ids[at], times[at] = token, time


@njit
def _lowest_key(law, weight):
    """No token with a lower key weighs as much as this, before division by the mass."""
    if law.scale == 0.0 or weight == 0.0:
        return law.floor
    height = law.peak + np.log2(weight) / law.scale
    return max(law.floor, np.int64(key(np.float32(height - 1e-6 * (1.0 + abs(height))))) - 1)
