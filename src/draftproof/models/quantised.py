"""A draft model in 8 or 4 bits: its steps wait for memory, and there is that much less of it to read.

What a draft model guesses is verified, so rounding its weights costs hits and never a wrong token. Products and all
else stay in bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .bits import LAW_PLAN
from .hf import HFTarget

_FEW = 12
"""Rows up to which a product is bound by memory; with more, as in a prompt, bfloat16's is the quicker one."""

_GROUP = 32
"""Weights that share a scale and an offset in 4 bits."""


class Int8Linear(nn.Module):
    """y = (W8 · x)·scale + bias, [.., k] -> [.., n]. weight: int8 [n, k]; scale: bfloat16 [n]."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(1).clamp(min=1e-12) / 127
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale.bfloat16())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone(), requires_grad=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = input.reshape(-1, self.in_features)
        if len(rows) <= _FEW:
            y = torch.ops.aten._weight_int8pack_mm(rows, self.weight, self.scale)
        else:
            y = torch.mm(rows, self.weight.to(rows.dtype).t()) * self.scale
        if self.bias is not None:
            y = y + self.bias
        return y.view(*input.shape[:-1], self.out_features)


class Int4Linear(nn.Module):
    """y = W4 · x + bias, [.., k] -> [.., n]; 32 weights of a row share 16 steps from their least to their most.

    packed: the steps in torch's own layout; groups: bfloat16 [k/32, n, 2], step and middle. `linear` is kept for many
    rows: unpacking the weights for a prompt would take longer than reading it.
    """

    packed: torch.Tensor
    groups: torch.Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear, self.in_features, self.out_features = linear, linear.in_features, linear.out_features
        weight = linear.weight.detach().float().reshape(self.out_features, -1, _GROUP)
        least, most = weight.amin(2), weight.amax(2)
        step = ((most - least) / 15).clamp(min=1e-9).bfloat16()
        middle = (least + 8 * step.float()).bfloat16()
        steps = ((weight - middle.float()[..., None]) / step.float()[..., None]).round().clamp(-8, 7) + 8
        flat = steps.to(torch.int32).reshape(self.out_features, self.in_features)
        self.register_buffer("packed", torch.ops.aten._convert_weight_to_int4pack_for_cpu(flat, 1))
        self.register_buffer("groups", torch.stack((step, middle), 2).transpose(0, 1).contiguous())

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = input.reshape(-1, self.in_features)
        if len(rows) > _FEW:
            return self.linear(input)
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.packed, _GROUP, self.groups)
        if self.linear.bias is not None:
            y = y + self.linear.bias
        return y.view(*input.shape[:-1], self.out_features)


LINEARS = {"int8": Int8Linear, "int4": Int4Linear}


def quantise(target: HFTarget, to: str) -> None:
    """Change the model of a target that nobody else uses. Its rows are not padded any more: bits do not matter."""
    model: Any = target.model
    if model.device.type != "cpu" or model.dtype is not torch.bfloat16:
        raise ValueError(
            f"quantization: {to} is for bfloat16 on a CPU; this draft model is {model.dtype} on {model.device}"
        )
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and module.in_features % 32 == 0 and module.out_features % 32 == 0:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, LINEARS[to](module))
    target.plan = LAW_PLAN
