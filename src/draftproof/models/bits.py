"""Which shapes give a row the same bits whatever company it keeps.

A matrix product may add up a row in another order when the number of rows changes, because the library picks another
kernel. Then the logits of a token depend on how many tokens were drafted beside it, and the same seed gives another
text. So forwards are cut and padded to row counts for which this machine, this model, this dtype and this number of
threads were MEASURED to give the same bits: its matrix products, its activations (a vector loop that is split among
threads computes its ragged ends in another way) and its attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from .attention import attend
from .support import attention_calls

MOST = 64
"""Most rows a forward may have where rows are padded. Every allowed count is measured, so more would cost load time.

(Seen: an AMX CPU changes kernels above 32 rows in bf16 and above 12 in fp32.)
"""

KV_STEP = 512  # the block that CPU attention walks the keys in
_QUERY_MULTIPLES = (4, 8, 16, 32)  # the fused CPU attention takes its query rows in blocks of 32 or more
_POOL = 16  # sample rows, each met at many places of a call
_ACTIVATIONS = {"torch.nn.modules.activation", "transformers.activations"}


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Row counts of a forward: a multiple of `multiple`, at most `most`. KV lengths: a multiple of `kv_step`.

    query_multiple: the same for one request's rows in attention; it costs little there to pad further.
    exact: every count the plan allows gave the same bits when it was measured.
    """

    multiple: int
    most: int
    kv_step: int = KV_STEP
    exact: bool = False
    query_multiple: int = 1

    def padded(self, rows: int) -> int:
        return -(-rows // self.multiple) * self.multiple

    def padded_queries(self, rows: int) -> int:
        step = max(self.multiple, self.query_multiple)
        return -(-rows // step) * step


LAW_PLAN = RowPlan(multiple=1, most=512)
"""Nothing padded: fastest for one row, and the bits may depend on the row count."""


@torch.inference_mode()
def measure_rows(model: nn.Module) -> RowPlan:
    """The widest plan under which everything that adds up a row's numbers keeps its bits, on this machine."""
    calls = attention_calls(model) if isinstance(model, PreTrainedModel) else []
    if _has_other_products(model):
        return LAW_PLAN
    most = MOST
    for function, width, like in _row_functions(model):
        most = _agreeing([_over_rows(function, width, like)], range(4, most + 1, 4))
        if most <= 4:
            return LAW_PLAN
    shapes = {(call.heads, call.kv_heads, call.key_size, call.value_size, call.softcap) for call in calls}
    multiples = [_query_multiple(shape, most, next(model.parameters())) for shape in shapes]
    if None in multiples:
        return LAW_PLAN
    return RowPlan(multiple=4, most=most, exact=True, query_multiple=max(multiples, default=1))


def _has_other_products(model: nn.Module) -> bool:
    """Matrices outside of linear layers, such as experts', which see as many rows as chance sends them."""
    known = (nn.Linear, Conv1D, nn.Embedding, nn.Conv2d)  # the last in vision towers, which see no text
    return any(
        name.rpartition(".")[2] == "experts"
        or (not isinstance(module, known) and any(weight.ndim > 1 for weight in module.parameters(recurse=False)))
        for name, module in model.named_modules()
    )


def _row_functions(model: nn.Module) -> Iterator[tuple[Callable, int, torch.Tensor]]:
    """(function of [1, rows, width], width, a tensor of its dtype and device): products, small ones first, activations
    at every width that a product takes."""
    products, activations = {}, {}
    for module in model.modules():
        if isinstance(module, nn.Linear | Conv1D):
            weight: Any = module.weight
            products[type(module), weight.shape, weight.dtype, module.bias is None] = module
        elif type(module).__module__ in _ACTIVATIONS:
            activations[type(module)] = module
    widths = {}
    for layer in sorted(products.values(), key=lambda layer: layer.weight.numel()):
        width = layer.weight.shape[0] if isinstance(layer, Conv1D) else layer.weight.shape[1]
        widths[width] = layer.weight
        yield layer, width, layer.weight
    for activation in activations.values():
        for width, like in widths.items():
            yield activation, width, like
            yield _on_the_left_half(activation), 2 * width, like  # of a gate that shares its product with another


def _on_the_left_half(function: Callable) -> Callable:
    return lambda x: function(x[..., : x.shape[-1] // 2])


_Run = Callable[[list[int]], torch.Tensor]
"""Which of the `_POOL` sample rows stand in a call, in order -> their results, rows first."""


def _agreeing(runs: Sequence[_Run], counts: range) -> int:
    """The last of `counts` before a row differs from what the first run gives it among counts[0]; 0 if none agrees."""
    known = torch.cat([runs[0](_window(at, counts[0])) for at in range(0, _POOL, counts[0])])
    agreed = 0
    for rows in counts:
        index = _window(rows // 4, rows)
        if not all(torch.equal(run(index), known[index]) for run in runs):
            break
        agreed = rows
    return agreed


def _window(start: int, rows: int) -> list[int]:
    return [(start + i) % _POOL for i in range(rows)]


def _over_rows(function: Callable, width: int, like: torch.Tensor) -> _Run:
    x = _sample(1, _POOL, width, like=like)
    return lambda index: function(x[:, index])[0]


def _query_multiple(shape: tuple, most: int, like: torch.Tensor) -> int | None:
    """The least multiple of one request's rows for which attention keeps their bits, also in a longer KV buffer."""
    heads, kv_heads, key_size, value_size, softcap = shape
    groups, step = heads // kv_heads, KV_STEP
    q = _sample(1, heads, _POOL, key_size, like=like)
    k = _sample(1, kv_heads, 2 * step, key_size, like=like)
    v = _sample(1, kv_heads, 2 * step, value_size, like=like)
    visible = _sample(_POOL, 2 * step, like=like) > 0
    visible[:, step:] = False

    def run(index: list[int], slots: int) -> torch.Tensor:
        rows = q[:, :, index].reshape(1, kv_heads, groups * len(index), key_size)
        mask = visible[index, :slots].repeat(groups, 1)[None, None]
        out = attend(rows, k[:, :, :slots], v[:, :, :slots], mask, None, softcap, step)
        return out.reshape(heads, len(index), value_size).transpose(0, 1)

    runs = [partial(run, slots=slots) for slots in (step, 2 * step)]
    for multiple in _QUERY_MULTIPLES:
        counts = range(multiple, -(-most // _QUERY_MULTIPLES[-1]) * _QUERY_MULTIPLES[-1] + 1, multiple)
        if _agreeing(runs, counts) == counts[-1]:
            return multiple
    return None


def _sample(*shape: int, like: torch.Tensor) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(like)
