"""The KV cache of one request: a padded buffer a layer, its own or a row of the arena, with a length.

Rollback is setting the length; nothing is copied but the rows of a tree's accepted path. What lies beyond the length is
stale and hidden by the mask.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from jaxtyping import Float

from ..base import Feed
from .arena import KVArena

Pair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of a layer, [heads, slots, size]."""


class KVCache:
    """Keys and values of one request.

    Slots come in steps of `step`, so that attention can always read a multiple of it. They lie in a row of `arena` if
    one is free and long enough, else in buffers that are made when a layer first writes: for `capacity` at once, or
    (grows) step by step.

    sure: so many leading slots have the bits of a replay, where the plan keeps bits; later ones were computed in a tree
    that grew, or see such. wrote: the feed whose rows lie beyond the length, if nothing has touched them since.
    """

    def __init__(self, capacity: int, step: int, arena: KVArena | None = None, *, grows: bool = False) -> None:
        self.length = 0
        self.sure = 0
        self.wrote: Feed | None = None
        self.arena = arena if arena is not None and capacity <= arena.longest else None
        self.row = None if self.arena is None else self.arena.take()
        self._step = step
        self._slots = 0 if grows else self._rounded(capacity)
        self._layers: dict[int, Pair] = {}
        if arena is not None and self.row is not None:
            self._layers = dict(enumerate(arena.of_row(self.row)))
            # a session that is dropped and not closed gives its row back, too
            self._end = weakref.finalize(self, arena.give_back, self.row)

    def _rounded(self, slots: int) -> int:
        return -(-slots // self._step) * self._step

    def write(
        self,
        layer: int,
        start: int,
        key: Float[torch.Tensor, "h n d"],
        value: Float[torch.Tensor, "h n e"],
        upto: int = 0,
    ) -> Pair:
        """Write rows at slot `start` and return all slots up to the end of their step, or of that of slot `upto` − 1,
        keys and values."""
        end = start + key.shape[1]
        keys, values = self._room(layer, max(end, upto), key, value)
        keys[:, start:end] = key
        values[:, start:end] = value
        seen = self._rounded(max(end, upto))
        return keys[:, :seen], values[:, :seen]

    def require_room(self, end: int) -> None:
        """Refuse, before anything is written, rows that would end beyond the arena's."""
        if self.arena is not None and self.row is not None and end > self.arena.slots:
            raise ValueError(f"context: a request was opened for fewer than {end} tokens")

    def _room(self, layer: int, end: int, key: torch.Tensor, value: torch.Tensor) -> Pair:
        known = self._layers.get(layer)
        if known is not None and known[0].shape[1] >= end:
            return known
        self.require_room(end)
        self._slots = max(self._slots, self._rounded(end))
        # zeros, not empty: a masked slot still meets a weight of 0, and 0 · NaN is NaN
        fresh = tuple(x.new_zeros(x.shape[0], self._slots, x.shape[2]) for x in (key, value))
        if known is not None:
            for new, old in zip(fresh, known, strict=True):
                new[:, : old.shape[1]] = old
        self._layers[layer] = (fresh[0], fresh[1])
        return self._layers[layer]

    @torch.inference_mode()  # the buffers were made in it, and may not be written outside of it
    def compact(self, base: int, offsets: Sequence[int]) -> None:
        """Move slot base + offsets[i] to base + i for every i: the accepted path of a tree becomes a chain."""
        if list(offsets) == list(range(len(offsets))):
            return
        index = torch.tensor([base + offset for offset in offsets])
        for keys, values in self._layers.values():
            for buffer in (keys, values):
                buffer[:, base : base + len(offsets)] = buffer[:, index.to(buffer.device)]

    @torch.inference_mode()
    def copy(self, donor: KVCache, length: int) -> None:
        """Begin with the donor's first `length` slots."""
        for layer, (keys, values) in donor._layers.items():
            self.write(layer, 0, keys[:, :length], values[:, :length])
        self.length, self.sure = length, min(donor.sure, length)

    def cut(self, length: int) -> None:
        """Forget what is cached beyond the first `length` slots, and with it what followed."""
        if length < self.length:
            self.length, self.sure, self.wrote = length, min(self.sure, length), None

    def differs(self, replay: KVCache) -> int | None:
        """The first layer that differs from a replay: within the length in the first one, which no attention comes
        before, and as far as its bits are sure in the others."""
        first = min(self._layers, default=0)
        for layer, pair in self._layers.items():
            end = self.length if layer == first else self.sure
            for mine, theirs in zip(pair, replay._layers[layer], strict=True):
                if not torch.equal(mine[:, :end], theirs[:, :end]):
                    return layer
        return None

    def close(self) -> None:
        """Free everything, now."""
        self._layers.clear()
        self.length = 0
        if self.row is not None:
            self._end()
            self.row = None
