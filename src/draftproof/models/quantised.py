"""A draft model in 8 or 4 bits: its steps wait for memory, and there is that much less of it to read.

What a draft model guesses is verified, so rounding its weights costs hits and never a wrong token. Products and all
else stay in bfloat16. Weights are padded to outputs in multiples of 32: with others torch's products end the process.
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
    """y = (W8 · x)·scale + bias, [.., k] -> [.., n]. weight: int8 [n, k]; scale: bfloat16 [n]; n padded to 32s."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = _padded(linear)
        scale = (weight.abs().amax(1).clamp(min=1e-12) / 127).bfloat16()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("weight", (weight / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone(), requires_grad=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = input.reshape(-1, self.in_features).contiguous()
        if len(rows) <= _FEW:
            y = torch.ops.aten._weight_int8pack_mm(rows, self.weight, self.scale)
        else:
            y = torch.mm(rows, self.weight.to(rows.dtype).t()) * self.scale
        return _shaped(y, self.out_features, self.bias, input)


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
        weight = _padded(linear)
        size, weight = weight.shape, weight.reshape(len(weight), -1, _GROUP)
        least, most = weight.amin(2), weight.amax(2)
        step = ((most - least) / 15).clamp(min=1e-9).bfloat16()
        middle = (least + 8 * step.float()).bfloat16()
        steps = ((weight - middle.float()[..., None]) / step.float()[..., None]).round().clamp(-8, 7) + 8
        flat = steps.to(torch.int32).reshape(size)
        self.register_buffer("packed", torch.ops.aten._convert_weight_to_int4pack_for_cpu(flat, 1))
        self.register_buffer("groups", torch.stack((step, middle), 2).transpose(0, 1).contiguous())

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = input.reshape(-1, self.in_features).contiguous()
        if len(rows) > _FEW:
            return self.linear(input)
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.packed, _GROUP, self.groups)
        return _shaped(y, self.out_features, self.linear.bias, input)


def _padded(linear: nn.Linear) -> torch.Tensor:
    """Its weights, with rows of zeros to a multiple of 32."""
    weight = linear.weight.detach().float()
    return nn.functional.pad(weight, (0, 0, 0, -len(weight) % 32))


def _shaped(y: torch.Tensor, outputs: int, bias: torch.Tensor | None, input: torch.Tensor) -> torch.Tensor:
    y = y[:, :outputs] if bias is None else y[:, :outputs] + bias
    return y.reshape(*input.shape[:-1], outputs)


LINEARS = {"int8": Int8Linear, "int4": Int4Linear}


def rounded(weight: torch.Tensor, to: str) -> nn.Module:
    """One product with a matrix [outputs, inputs] in fewer bits, as a layer. ValueError where it cannot be."""
    _require_here(weight.device, weight.dtype, to)
    if weight.shape[1] % _GROUP:
        raise ValueError(
            f"quantization: {to} rounds weights with inputs in multiples of {_GROUP}; one has {weight.shape[1]}"
        )
    linear: Any = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    return LINEARS[to](linear)


def _require_here(device: torch.device, dtype: torch.dtype, to: str) -> None:
    if device.type != "cpu" or dtype is not torch.bfloat16:
        raise ValueError(f"quantization: {to} is for bfloat16 on a CPU; this draft model is {dtype} on {device}")


def quantise(target: HFTarget, to: str) -> None:
    """Change the model of a target that nobody else uses. Its rows are not padded any more: a draft's bits change how
    many tokens are accepted and, but under the coupled rule, which ones are drawn, though not their law."""
    model: Any = target.model
    _require_here(model.device, model.dtype, to)
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    able = [(name, module) for name, module in linear if module.in_features % _GROUP == 0]
    head = model.get_output_embeddings()
    rounded = sum(module.weight.numel() for _, module in able if module is not head)
    if rounded < model.num_parameters(exclude_embeddings=True) / 2:
        raise ValueError(
            f"quantization: {to} rounds linear layers with inputs in multiples of {_GROUP}; {type(model).__name__} has "
            "too few of them; leave it out"
        )
    for name, module in able:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, LINEARS[to](module))
    target.plan = LAW_PLAN
