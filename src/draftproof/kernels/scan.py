"""The law of one row without its probabilities: its peak, its mass, and which tokens take part.

A row is walked in groups of 256 tokens, those of the race (chance.py). What is kept of it is one key a group, its
largest, so that whatever looks for large tokens later reads only the groups that have them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import prange

from ..chance import GROUP
from .cached import njit
from .numeric import LIGHT_SCALE, LOWEST, fetch, key, key_to_logit, light_rest, logit, mass, power, skim, top, wide

_HEAVY = -8.0  # log2: groups whose largest token has more than this share of the peak's weight are added in float64
_AHEAD = 4  # groups
_PIECES = 8  # of a row that is split among threads


class Law(NamedTuple):
    """Token x has probability 2^((logit − peak)·scale) / mass if it takes part: its key is above `floor`, or equal to
    it and x at most `cut`. Greedy is the law of scale 0 in which the argmax alone takes part."""

    peak: float
    scale: float
    mass: float
    floor: np.int64
    cut: np.int64


class Read(NamedTuple):
    """A row that was read: its words, the largest key of each group, its law."""

    words: np.ndarray
    tops: np.ndarray
    law: Law


EVERY = np.int64(1) << 62  # a cut that no token is beyond


@njit
def piece(words, first, last, tops, scale):
    """(peak key, mass relative to it, whether a NaN was met) of groups first..last − 1; their tops are written.

    scale 0: the peak alone, at the pace of memory.
    """
    peak, weight, broken = LOWEST, 0.0, False
    height = -np.inf
    for g in range(first, last):
        start, stop = g * GROUP, min((g + 1) * GROUP, len(words))
        ahead = start + _AHEAD * GROUP
        if ahead + GROUP <= len(words):  # memory works while this group is added up
            for i in range(ahead, ahead + GROUP, 64 // words.itemsize):
                fetch(words, i)
        light = 0.0
        if scale == 0.0 or height == -np.inf:
            largest, nan = top(words, start, stop)
        else:
            largest, nan, light = skim(words, start, stop, height, scale)
        broken |= nan
        tops[g] = largest
        if largest > peak:
            higher = np.float64(key_to_logit(largest))
            if weight > 0.0:
                weight *= power((height - higher) * scale)
            peak, height = largest, higher
        if scale == 0.0 or height == -np.inf or height == np.inf:
            continue
        if scale > LIGHT_SCALE or (np.float64(key_to_logit(largest)) - height) * scale >= _HEAVY:
            light = mass(words, start, stop, height, scale)
        weight += light
    return peak, weight, broken


@njit(parallel=True)
def pieces(words, tops, scale):
    """`piece` of a whole row, by all threads."""
    groups = len(tops)
    peaks, weights = np.empty(_PIECES, np.int64), np.empty(_PIECES)
    broken = np.zeros(_PIECES, np.bool_)
    for i in prange(_PIECES):
        peaks[i], weights[i], broken[i] = piece(words, groups * i // _PIECES, groups * (i + 1) // _PIECES, tops, scale)
    peak = peaks.max()
    height = np.float64(key_to_logit(peak))
    total = 0.0
    for i in range(_PIECES):
        if weights[i] > 0.0:
            total += weights[i] * power((np.float64(key_to_logit(peaks[i])) - height) * scale)
    return peak, total, broken.any()


@njit
def takes_part(words, x, law):
    k = key(logit(words[x]))
    return k > law.floor or (k == law.floor and x <= law.cut)


@njit
def weight_of(row, x):
    """p(x), not divided by the law's mass."""
    if not takes_part(row.words, x, row.law):
        return 0.0
    return power((np.float64(logit(row.words[x])) - row.law.peak) * row.law.scale)


@njit
def probability(row, x):
    """p(x)."""
    return weight_of(row, x) / row.law.mass


@njit(fastmath={"contract"})
def weights(words, group, law, out):
    """p of a group's tokens, not divided by the law's mass, into `out`; returns how many there are."""
    wide()
    start, stop = group * GROUP, min((group + 1) * GROUP, len(words))
    peak, scale = law.peak, law.scale
    for i in range(np.uint64(start), np.uint64(stop)):
        out[i - np.uint64(start)] = power((np.float64(logit(words[i])) - peak) * scale)
    if law.floor > LOWEST:
        floor, cut = law.floor, law.cut
        for i in range(np.uint64(start), np.uint64(stop)):
            k = np.int64(key(logit(words[i])))
            inside = (k > floor) | ((k == floor) & (np.int64(i) <= cut))
            out[i - np.uint64(start)] = out[i - np.uint64(start)] if inside else 0.0
    return stop - start


@njit
def left_over_mass(p, share, q, buffers):
    """Σ (share·p − q)₊."""
    pace, q_pace, total = share / p.law.mass, 1.0 / q.law.mass, 0.0
    whole = p.law.floor == LOWEST and q.law.floor == LOWEST
    for g in range(len(p.tops)):
        if p.tops[g] < p.law.floor:
            continue
        if whole and is_light(p, g) and is_light(q, g):
            start, stop = g * GROUP, min((g + 1) * GROUP, len(p.words))
            ours, theirs = (p.law.peak, p.law.scale, pace), (q.law.peak, q.law.scale, q_pace)
            total += light_rest(start, stop, p.words, ours, q.words, theirs)
            continue
        n = weights(p.words, g, p.law, buffers[0])
        weights(q.words, g, q.law, buffers[1])
        for i in range(n):
            total += max(pace * buffers[0, i] - q_pace * buffers[1, i], 0.0)
    return total


@njit
def is_light(row, group):
    height = (np.float64(key_to_logit(row.tops[group])) - row.law.peak) * row.law.scale
    return row.law.scale <= LIGHT_SCALE and height < _HEAVY


@njit
def first_with(words, tops, wanted):
    """The lowest token whose key is `wanted`; -1 if there is none."""
    for g in range(len(tops)):
        if tops[g] == wanted:
            part = words[g * GROUP : (g + 1) * GROUP]
            for i in range(len(part)):
                if key(logit(part[i])) == wanted:
                    return np.int64(g * GROUP + i)
    return np.int64(-1)
