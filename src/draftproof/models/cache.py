"""The KV cache of one request: a padded buffer a layer, with a length.

Rollback is setting the length; nothing is copied but the rows of a tree's accepted path. What lies beyond the length is
stale and hidden by the mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float


class KVCache:
    """Keys and values of one request, [heads, slots, size] for each layer, made when a layer first writes.

    Slots come in steps of `step`, so that attention can always read a multiple of it.
    """

    def __init__(self, capacity: int, step: int) -> None:
        self._step = step
        self._slots = self._rounded(capacity)
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.length = 0

    def _rounded(self, slots: int) -> int:
        return -(-slots // self._step) * self._step

    def write(
        self, layer: int, start: int, key: Float[torch.Tensor, "h n d"], value: Float[torch.Tensor, "h n e"]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write rows at slot `start` and return all slots up to the end of their step, keys and values."""
        end = start + key.shape[1]
        keys, values = self._room(layer, end, key, value)
        keys[:, start:end] = key
        values[:, start:end] = value
        seen = self._rounded(end)
        return keys[:, :seen], values[:, :seen]

    def _room(self, layer: int, end: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        known = self._layers.get(layer)
        if known is not None and known[0].shape[1] >= end:
            return known
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

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for pair in self._layers.values() for x in pair)
