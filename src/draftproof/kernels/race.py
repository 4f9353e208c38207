"""The final draw of every rule: the race of chance.py over a law, over what is left of it, or for its first k.

Almost no noise is made. A group takes part only if its first arrival, at the pace of its largest weight, is ahead of
the leader; a token of it only if it would be at that very moment.
"""

from __future__ import annotations

import numpy as np

from ..chance import GROUP
from .cached import njit
from .numeric import key_to_logit, power
from .scan import left_over, weights

_LOW = np.uint64(0xFFFFFFFF)
_NOBODY = np.int64(1) << 62


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


@njit(inline="always")
def _first(group, noise):
    """When a group's first member arrives, and which it is."""
    lane = np.uint64(group) | np.uint64(1 << 31)
    low, high, c, _ = philox(lane, noise[0], noise[1], noise[2], noise[3], noise[4])
    return -np.log(_unit(low, high)) / GROUP, np.int64(c >> np.uint64(24))


@njit(inline="always")
def _later(token, noise):
    """How much later than the first member another one arrives."""
    a, b, c, d = philox(np.uint64(token >> 1), noise[0], noise[1], noise[2], noise[3], noise[4])
    return -np.log(_unit(c, d) if token & 1 else _unit(a, b))


@njit
def _enter(group, n, buffer, first, member, noise, ids, times):
    """Run the tokens of one group, weights in buffer[:n], against the leaders: ids and times, in order of arrival."""
    last = len(ids) - 1
    for i in range(n):
        w = buffer[i]
        if first > times[last] * w or w == 0.0:
            continue
        token = group * GROUP + i
        time = first / w if i == member else (first + _later(token, noise)) / w
        at = last + 1
        while at > 0 and (time < times[at - 1] or (time == times[at - 1] and token < ids[at - 1])):
            at -= 1
        if at <= last:
            for j in range(last, at, -1):
                ids[j], times[j] = ids[j - 1], times[j - 1]
            ids[at], times[at] = token, time


@njit
def race(words, tops, law, without, noise, ids, buffer):
    """The first len(ids) tokens under `law`, in order of arrival, into `ids`; -1 where there are no more.

    without: a token that takes no part, -1 for none. What is left of a law when a chosen token was refused.
    """
    times = np.full(len(ids), np.inf)
    ids[:] = _NOBODY
    begin = np.argmax(tops)  # a good leader to start from
    for turn in range(-1, len(tops)):
        g = begin if turn < 0 else turn
        if tops[g] < law.floor or turn == begin:
            continue
        first, member = _first(g, noise)
        if first <= times[-1] * power((np.float64(key_to_logit(tops[g])) - law.peak) * law.scale):
            n = weights(words, g, law, buffer)
            if without >= 0 and without // GROUP == g:
                buffer[without % GROUP] = 0.0
            _enter(g, n, buffer, first, member, noise, ids, times)
    ids[ids == _NOBODY] = -1


@njit
def race_left_over(p, share, q, noise, buffers):
    """The winner under (share·p − q)₊ of two rows (scan.Read), which need not be normalised; -1 if nothing is left.

    No token weighs more than share·p, so q is read only where p could win.
    """
    ids, times = np.full(1, _NOBODY), np.full(1, np.inf)
    begin = np.argmax(p.tops)
    for turn in range(-1, len(p.tops)):
        g = begin if turn < 0 else turn
        if p.tops[g] < p.law.floor or turn == begin:
            continue
        first, member = _first(g, noise)
        most = power((np.float64(key_to_logit(p.tops[g])) - p.law.peak) * p.law.scale) * (share / p.law.mass)
        if first <= times[0] * most:
            n = left_over(p, share, q, g, buffers)
            _enter(g, n, buffers[0], first, member, noise, ids, times)
    return ids[0] if times[0] < np.inf else np.int64(-1)
