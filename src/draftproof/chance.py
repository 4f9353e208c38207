"""Counter-based randomness: a draw is a pure function of (seed, sample, key, token), never of what was drawn before.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
Its key is the request's 64-bit seed. Its 128-bit counter holds, from the low word up:

    word 0   token >> 1          (each block makes two uniforms: even tokens the low half, odd tokens the high one)
    word 1   key.root
    word 2   key.depth << 16 | key.node
    word 3   sample << 2 | key.purpose

The noise of a token depends on its id and not on the size of the vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Integer, UInt32

from .base import Key, Row

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
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


def _unit(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Two 32-bit words -> (k + ½)·2⁻⁵² with k of 52 bits: exact in float64 and strictly inside (0, 1)."""
    bits = (high.astype(np.uint64) << _HALF | low.astype(np.uint64)) >> np.uint64(12)
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


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

    def _uniforms(self, key: Key, lanes: Integer[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray]:
        """For each lane the uniforms of tokens 2·lane and 2·lane + 1."""
        if not (0 <= key.root < 2**32 and 0 <= key.depth < 2**16 and 0 <= key.node < 2**16):
            raise ValueError(f"key: {key} does not fit the counter (root below 2**32, depth and node below 2**16)")
        counter = np.empty((4, len(lanes)), np.uint32)
        counter[0] = lanes
        counter[1] = key.root
        counter[2] = key.depth << 16 | key.node
        counter[3] = self.sample << 2 | key.purpose
        words = philox4x32(counter, self._key)
        return _unit(words[0], words[1]), _unit(words[2], words[3])

    def uniform(self, key: Key) -> float:
        return float(self._uniforms(key, np.zeros(1, np.uint32))[0][0])

    def coin(self, prob: float, key: Key) -> bool:
        if not prob >= 0:  # NaN too
            raise ValueError(f"prob: {prob} at {key} is not a probability")
        certain = not 0 < prob < 1  # takes no noise
        return heads(0.0 if certain else self.uniform(key), prob)

    def gumbel(self, key: Key, tokens: Integer[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Standard Gumbel noise −log(−log u) of the given token ids."""
        even, odd = self._uniforms(key, (tokens >> 1).astype(np.uint32))
        return -np.log(-np.log(np.where(tokens & 1, odd, even)))

    def _gumbel_all(self, key: Key, size: int) -> np.ndarray:
        """The noise of tokens 0 .. size − 1: `gumbel` at half the cost, since each block serves two tokens."""
        both = np.stack(self._uniforms(key, np.arange((size + 1) // 2, dtype=np.uint32)), axis=1)
        return -np.log(-np.log(both.reshape(-1)[:size]))

    def pick(self, weights: Row, key: Key, k: int = 1) -> tuple[int, ...]:
        """The `k` largest of log w + Gumbel (the Gumbel-top-k draw, Kool et al., ICML 2019); lowest id on ties.

        For k = 1 the noise of the winner alone decides, so plain decoding, coupled drafting and coupled verification
        are this one operation on the same noise.
        """
        if not weights.min() >= 0:  # NaN too
            raise ValueError(f"weights: {weights.min()} at {key} is no weight; they must be >= 0")
        support = np.flatnonzero(weights > 0)
        if len(support) < k:
            raise ValueError(f"weights: {len(support)} positive of {len(weights)} at {key}, cannot pick {k}")
        if len(support) == 1:
            return (int(support[0]),)
        dense = 2 * len(support) > len(weights)
        noise = self._gumbel_all(key, len(weights))[support] if dense else self.gumbel(key, support)
        score = np.log(weights[support]) + noise
        if k == 1:
            return (int(support[np.argmax(score)]),)
        return tuple(support[np.argsort(-score, kind="stable")[:k]].tolist())
