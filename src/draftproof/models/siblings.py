"""Fewer and shorter calls for transposed products (products.py): layers that read the same input share one product,
and results stay as the product leaves them, feature by feature, where nobody needs them row by row.

Query, key and value read the same hidden state, gate and up another. Their weights become views of one matrix; the
first layer to be called multiplies by all of it, its siblings take their part of the result. Who shares with whom is
seen in a trial forward, not guessed from names, and a layer that is called in any other way multiplies for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from .products import UNLIMITED, TransposedLinear, give_back
from .support import Seen, try_out

_NARROW = 64  # rows


class Shared:
    """One product of several layers: weight [Σ out, k]. Not for two threads at once.

    It remembers an input from the first layer's call to the last one's, and nothing afterwards. In between it tells an
    input by its identity: a model that changes it in place between siblings gives other logits, and does not share.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers, self.most = list(layers), UNLIMITED
        old = [layer.weight.data for layer in layers]
        self.weight = torch.cat(old)
        has_bias = layers[0].bias is not None
        self.bias = torch.cat([layer.bias.data for layer in layers]) if has_bias else None
        self._parts, self._addresses, end = [], [], 0
        for layer, weight in zip(layers, old, strict=True):
            first, end = end, end + len(weight)
            self._parts.append(slice(first, end))
            layer.weight.data = self.weight[first:end]
            if self.bias is not None:
                layer.bias.data = self.bias[first:end]
            self._addresses.append(_address(layer))
            give_back(weight)
        self._input: torch.Tensor | None = None
        self._result: torch.Tensor | None = None

    def part(self, index: int, input: torch.Tensor) -> torch.Tensor | None:
        """Layer `index`'s results, [out, rows]; None if this input was not multiplied just now, or its weight is no
        longer the one that was shared."""
        if _address(self.layers[index]) != self._addresses[index]:
            self._input = self._result = None
            return None
        if index == 0:
            self._result = _in_slices(input, self.weight, self.bias, self.most)
            self._input = input
        elif input is not self._input:
            return None
        assert self._result is not None
        result = self._result[self._parts[index]]
        if index == len(self.layers) - 1:
            self._input = self._result = None
        return result

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, Σ out], all layers' results; what bits.py measures."""
        return TransposedLinear.raw(x, self.weight, self.bias).t().contiguous()

    def dissolve(self) -> None:
        """Each layer for itself again."""
        for layer in self.layers:
            layer.shared = None

    def __deepcopy__(self, memo: dict) -> Any:
        """A copied model multiplies layer by layer: its weights are views of nothing shared."""
        return None

    def __reduce__(self) -> Any:
        return type(None), ()


def _in_slices(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, most: int) -> torch.Tensor:
    """[out, rows], of at most `most` rows at once."""
    rows = input.reshape(-1, input.shape[-1])
    if len(rows) <= most:
        return TransposedLinear.raw(rows, weight, bias)
    return torch.cat([TransposedLinear.raw(some, weight, bias) for some in rows.split(most)], 1)


def _address(layer: Any) -> tuple[int, int]:
    return layer.weight.data_ptr(), 0 if layer.bias is None else layer.bias.data_ptr()


class SiblingLinear(TransposedLinear):
    """A transposed product that may share its call, and may leave its result feature by feature (`loose`)."""

    shared: Shared | None = None
    index: int = 0
    loose: bool = False

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        y = self.shared.part(self.index, input) if self.shared is not None else None
        if y is None:
            y = _in_slices(input, self.weight, self.bias, self.most)
        # wide, to add such a result to others costs more than to put it in order once; an activation does not mind
        loose = self.loose and (self.shared is not None or y.shape[1] <= _NARROW)
        y = y.t() if loose else y.t().contiguous()
        if input.dim() == 1:
            return y[0]
        return y[None] if input.dim() == 3 and len(input) == 1 else y.unflatten(0, input.shape[:-1])


@torch.no_grad()
def share(model: PreTrainedModel, logits: Callable[[], np.ndarray]) -> None:
    """Let a model's transposed layers share their calls where a trial forward sees them read the same input; undone
    where its logits, of any few tokens, then have other bits."""
    before = logits()
    seen = try_out(model).seen
    read: list[tuple[Any, torch.Tensor]] = [each for each in seen.linears if _may_change(each[0], seen, model)]
    for module, _ in read:
        module.__class__ = SiblingLinear
        module.loose = not seen.is_read_by_rows(module)
    kin = [Shared(siblings) for siblings in _siblings(read)]
    for each in kin:
        for index, layer in enumerate(each.layers):
            layer.shared, layer.index = each, index
    if not np.array_equal(logits(), before):
        for module, _ in read:
            module.__class__ = TransposedLinear


def _may_change(module: Any, seen: Seen, model: PreTrainedModel) -> bool:
    """A layer called once, whose weight is no other module's and whose result is not the model's own."""
    called = sum(other is module for other, _ in seen.linears)
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    tied = any(end is not None and end.weight is module.weight for end in ends)
    return type(module) is TransposedLinear and called == 1 and not tied


def _siblings(read: Sequence[tuple[Any, torch.Tensor]]) -> Iterator[list[Any]]:
    """Runs of layers called one after the other with the very same input."""
    for _, run in groupby(read, key=lambda call: id(call[1])):
        layers = [module for module, _ in run]
        if len(layers) > 1 and len({(layer.bias is None, layer.weight.dtype) for layer in layers}) == 1:
            yield layers
