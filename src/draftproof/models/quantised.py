"""A draft model in 8 bits: its steps wait for memory, and there is half as much of it to read.

Weights are rounded to whole numbers, a scale a row of outputs; products and all else stay in bfloat16. What a draft
model guesses is verified, so rounding costs hits and never a wrong token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .bits import LAW_PLAN
from .hf import HFTarget

_FEW = 32
"""Rows up to which the product is bound by memory; with more, as in a prompt, bfloat16's is the quicker one."""


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


def to_int8(target: HFTarget) -> None:
    """Change the model of a target that nobody else uses. Its rows are not padded any more: bits do not matter."""
    model: Any = target.model
    if model.device.type != "cpu" or model.dtype is not torch.bfloat16:
        raise ValueError(
            f"quantization: int8 is for bfloat16 on a CPU; this draft model is {model.dtype} on {model.device}"
        )
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and module.in_features % 32 == 0 and module.out_features % 32 == 0:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, Int8Linear(module))
    target.plan = LAW_PLAN
