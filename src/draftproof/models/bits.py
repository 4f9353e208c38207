"""Which shapes give a row the same bits whatever company it keeps.

A matrix product may add up a row in another order when the number of rows changes, because the library picks another
kernel. Then the logits of a token depend on how many tokens were drafted beside it, and the same seed gives another
text. So forwards are cut and padded to row counts for which this machine, this model and this dtype were MEASURED to
give the same bits. Attention is safe by construction of the call (see hf.py) and checked by the doctor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

# Row counts tried against 4 rows, in order; the last one before the first difference is the most a forward may have.
# (Seen: one AVX512-BF16 CPU passes all; an AMX CPU changes kernels above 32 rows in bf16 and above 12 in fp32.)
LADDER = (8, 12, 20, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Row counts of a forward: a multiple of `multiple`, at most `most`. KV lengths: a multiple of `kv_step`.

    exact: every count the plan allows gave the same bits when it was measured.
    """

    multiple: int
    most: int
    kv_step: int = 512  # the block that CPU attention walks the keys in
    exact: bool = False

    def padded(self, rows: int) -> int:
        return -(-rows // self.multiple) * self.multiple


LAW_PLAN = RowPlan(multiple=1, most=512)
"""Nothing padded: fastest for one row, and the bits may depend on the row count."""


@torch.inference_mode()
def measure_rows(model: nn.Module) -> RowPlan:
    """The widest plan under which all of the model's matrix products keep their rows' bits, on this machine."""
    most = LADDER[-1]
    for layer in _distinct_products(model):
        most = min(most, _most_rows(layer, most))
        if most == 4:
            return RowPlan(multiple=1, most=LAW_PLAN.most)
    return RowPlan(multiple=4, most=most, exact=True)


def _distinct_products(model: nn.Module) -> Iterator[Any]:
    seen = set()
    for module in model.modules():
        if isinstance(module, nn.Linear | Conv1D):
            signature = (type(module), module.weight.shape, module.weight.dtype, module.bias is None)
            if signature not in seen:
                seen.add(signature)
                yield module


def _most_rows(layer: Any, most: int) -> int:
    """Largest count on the ladder, up to `most`, whose rows equal those of a call with 4 rows, wherever they stand."""
    weight = layer.weight
    width = weight.shape[0] if isinstance(layer, Conv1D) else weight.shape[1]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, most, width, generator=generator).to(weight)
    first, passed = layer(x[:, :4]), 4
    for rows in LADDER:
        if rows > most:
            break
        moved = torch.cat([x[:, 4:rows], x[:, :4]], dim=1)
        if not (torch.equal(layer(x[:, :rows])[:, :4], first) and torch.equal(layer(moved)[:, -4:], first)):
            break
        passed = rows
    return passed
