"""Counter-based randomness: a draw is a pure function of (seed, sample, key, token), never of what was drawn before.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
Its key is the request's 64-bit seed. Its 128-bit counter holds, from the low word up:

    word 0   token >> 1          (each block makes two uniforms: even tokens the low half, odd tokens the high one)
             2**31 | token >> 8  (a group's block: the low half is its uniform, the top byte of word 2 its first member)
    word 1   key.root
    word 2   key.depth << 16 | key.node
    word 3   sample << 2 | key.purpose

A token is drawn by a race: token x arrives at E(x)/w(x), the first one wins. The arrival times E are independent
standard exponentials, so x wins with probability w(x)/Σw, and log w − log E is the Gumbel-max draw in other words.
E is drawn in two stages, for GROUP neighbouring ids at a time. The first arrival of a group is exponential with rate
GROUP and any member's with equal chance; each other member comes a standard exponential later. By the lack of memory
that is the law of independent ones, exactly. But a group whose first arrival, at the pace of its largest weight, is
behind the leader cannot win, so almost no noise is ever made: two numbers a group, and the few groups that matter.

The noise of a token depends on its id and not on the size of the vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float, Integer, UInt32

from .base import Key, Row

_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_MULTIPLIERS = np.array([[_MULTIPLY[0]], [_MULTIPLY[1]]], dtype=np.uint64)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_FEW = 4
GROUP = 256  # a power of two, as many as a byte can name
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter: UInt32[np.ndarray, "4 n"], key: tuple[int, int]) -> UInt32[np.ndarray, "4 n"]:
    """Philox4x32 with ten rounds, on `n` counters at once. `key` is two 32-bit words, low first."""
    # words 0 and 2 are multiplied in each round, words 1 and 3 only mixed in: two pairs, each one array
    even = counter[0::2].astype(np.uint64)
    odd = counter[1::2].astype(np.uint64)
    for i in range(_ROUNDS):
        subkey = np.array([[(key[0] + i * _WEYL[0]) & 0xFFFFFFFF], [(key[1] + i * _WEYL[1]) & 0xFFFFFFFF]], np.uint64)
        product = even * _MULTIPLIERS
        even = (product[::-1] >> _HALF) ^ odd ^ subkey
        odd = product[::-1] & _LOW
    return np.stack([even[0], odd[0], even[1], odd[1]]).astype(np.uint32)


def _philox_once(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """The same for one counter, in plain integers: ten times faster there than an array of one."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = _MULTIPLY[0] * a, _MULTIPLY[1] * c
        a, b, c, d = second >> 32 ^ b ^ k0, second & 0xFFFFFFFF, first >> 32 ^ d ^ k1, first & 0xFFFFFFFF
        k0, k1 = k0 + _WEYL[0] & 0xFFFFFFFF, k1 + _WEYL[1] & 0xFFFFFFFF
    return a, b, c, d


def _unit(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Two 32-bit words -> (k + ½)·2⁻⁵² with k of 52 bits: exact in float64 and strictly inside (0, 1)."""
    bits = (high.astype(np.uint64) << _HALF | low.astype(np.uint64)) >> np.uint64(12)
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def _unit_once(low: int, high: int) -> float:
    return ((high << 32 | low) // 2**12 + 0.5) * 2.0**-52


def heads(u: Any, prob: Any) -> bool:
    """The coin: whether a uniform u of [0, 1) falls below `prob`. Strict, so that prob 0 never does, at u = 0 either.

    >>> heads(0.0, 0.0), heads(1 - 2**-53, 1.0)
    (False, True)
    """
    return bool(u < prob)


class PhiloxChance:
    """The `Chance` of one request in production: (seed, sample index) and nothing else.

    >>> from draftproof.base import Key, Purpose
    >>> chance = PhiloxChance(seed=7)
    >>> key = Key(root=12, depth=0, purpose=Purpose.ACCEPT)
    >>> chance.uniform(key) == PhiloxChance(seed=7).uniform(key)
    True
    >>> chance.coin(0.0, key), chance.coin(1.0, key)
    (False, True)
    """

    def __init__(self, seed: int, sample: int = 0) -> None:
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed: {seed} is not in 0 .. 2**64 - 1")
        if not 0 <= sample < 2**30:
            raise ValueError(f"sample: {sample} is not in 0 .. 2**30 - 1")
        self.seed, self.sample = seed, sample
        self._key = (seed & 0xFFFFFFFF, seed >> 32)

    def counter(self, key: Key) -> tuple[int, int, int]:
        """Words 1 to 3 of the counter of a key's blocks."""
        if not (0 <= key.root < 2**32 and 0 <= key.depth < 2**16 and 0 <= key.node < 2**16):
            raise ValueError(f"key: {key} does not fit the counter (root below 2**32, depth and node below 2**16)")
        return key.root, key.depth << 16 | key.node, self.sample << 2 | key.purpose

    def _blocks(self, key: Key, lanes: Integer[np.ndarray, " n"]) -> UInt32[np.ndarray, "4 n"]:
        counter = np.empty((4, len(lanes)), np.uint32)
        counter[0] = lanes
        counter[1:] = np.array(self.counter(key), np.uint32)[:, None]
        return philox4x32(counter, self._key)

    def uniform(self, key: Key) -> float:
        low, high, _, _ = _philox_once((0, *self.counter(key)), self._key)
        return _unit_once(low, high)

    def coin(self, prob: float, key: Key) -> bool:
        if not prob >= 0:  # NaN too
            raise ValueError(f"prob: {prob} at {key} is not a probability")
        certain = not 0 < prob < 1  # takes no noise
        return heads(0.0 if certain else self.uniform(key), prob)

    def arrivals(self, key: Key, groups: Integer[np.ndarray, " g"]) -> Float[np.ndarray, "g 256"]:
        """E of every id in the given groups, id % GROUP across: independent, standard exponential. (−log E is standard
        Gumbel noise.)"""
        lanes = (groups[:, None] * (GROUP // 2) + np.arange(GROUP // 2)).reshape(-1)
        words = self._blocks(key, np.concatenate([lanes, groups | 1 << 31]))
        pairs = np.stack([_unit(words[0], words[1]), _unit(words[2], words[3])], axis=-1)
        later = -np.log(pairs[: len(lanes)].reshape(len(groups), GROUP))
        first = -np.log(pairs[len(lanes) :, 0]) / GROUP
        later[np.arange(len(groups)), words[2, len(lanes) :] >> 24] = 0.0
        return first[:, None] + later

    def arrival(self, key: Key, token: int) -> float:
        """E of one id, as in `arrivals`."""
        token = int(token)  # numpy's would overflow
        counter, group = self.counter(key), token // GROUP
        low, high, member, _ = _philox_once((group | 1 << 31, *counter), self._key)
        first = -math.log(_unit_once(low, high)) / GROUP
        if member >> 24 == token % GROUP:
            return first
        words = _philox_once((token >> 1, *counter), self._key)
        return first - math.log(_unit_once(*words[2 * (token % 2) :][:2]))

    def _first_arrivals(self, key: Key, groups: Integer[np.ndarray, " g"]) -> Float[np.ndarray, " g"]:
        """When the first member of each group arrives."""
        words = self._blocks(key, groups | 1 << 31)
        return -np.log(_unit(words[0], words[1])) / GROUP

    def pick(self, weights: Row, key: Key, k: int = 1) -> tuple[int, ...]:
        """The `k` smallest of E/w, in order; lowest id on ties. A draw without replacement, since the race goes on
        among those that are left (the Gumbel-top-k draw: Kool et al., ICML 2019).

        For k = 1 the noise of the winner alone decides, so plain decoding, coupled drafting and coupled verification
        are this one operation on the same noise.
        """
        if not weights.min() >= 0:  # NaN too
            raise ValueError(f"weights: {weights.min()} at {key} is no weight; they must be >= 0")
        support = int(np.count_nonzero(weights))
        if support < k:
            raise ValueError(f"weights: {support} positive of {len(weights)} at {key}, cannot pick {k}")
        if support == 1:
            return (int(np.argmax(weights)),)
        return self._race(weights, key, k)

    def _race(self, weights: np.ndarray, key: Key, k: int) -> tuple[int, ...]:
        tops = np.maximum.reduceat(weights, np.arange(0, len(weights), GROUP))
        left = np.flatnonzero(tops > 0)  # groups not yet looked at
        earliest, batch = None, left
        if len(left) > _FEW:  # else to look at all of them is cheaper than to choose
            earliest = np.log(self._first_arrivals(key, left)) - np.log(tops[left])
            order = np.argsort(earliest, kind="stable")
            left, earliest = left[order], earliest[order]
            batch = left[:_FEW]
        ids, times = self._leaders(weights, key, k, batch)
        while earliest is not None and len(batch) < len(left):
            left, earliest = left[len(batch) :], earliest[len(batch) :]
            most = np.searchsorted(earliest, times[-1], side="right") if len(ids) == k else len(batch) * 4
            if most == 0:
                break
            batch = left[:most]
            more = self._leaders(weights, key, k, batch)
            ids, times = _first(np.concatenate([ids, more[0]]), np.concatenate([times, more[1]]), k)
        return tuple(ids.tolist())

    def _leaders(self, weights: np.ndarray, key: Key, k: int, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids and log arrival times of the first k in these groups."""
        tokens = (groups[:, None] * GROUP + np.arange(GROUP)).reshape(-1)
        arrived = self.arrivals(key, groups).reshape(-1)
        takes_part = np.flatnonzero(weights[np.minimum(tokens, len(weights) - 1)] * (tokens < len(weights)) > 0)
        tokens = tokens[takes_part]
        return _first(tokens, np.log(arrived[takes_part]) - np.log(weights[tokens]), k)


def _first(ids: np.ndarray, times: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k smallest times in order, lowest id first among equals, and whose they are."""
    pool = np.arange(len(ids)) if len(ids) <= k else np.flatnonzero(times <= np.partition(times, k - 1)[k - 1])
    order = pool[np.lexsort((ids[pool], times[pool]))][:k]
    return ids[order], times[order]
