"""The loss of a batch, step by step of its unroll, without ever holding more logits than one matrix in bfloat16.

A head's logits and their gradient are of the size rows × ids: by far the largest numbers of training. So the output
layer and the loss are one function, which works out the gradient while it goes forward: logits in one product; then in
slices that stay in the CPU's cache, in float32, the loss and its slope, written over the logits; then the two products
back. Only rows that count get that far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import nn

from ..models.eagle import EagleHead
from .batches import Batch
from .losses import Loss
from .target_head import TargetHead
from .unroll import unroll

_SLICE = 1 << 20  # logits at a time: 4 MB in float32


class Losses(NamedTuple):
    total: torch.Tensor  # what is to be minimised: the steps' means, weighted
    steps: torch.Tensor  # the mean of each step; nan where nothing counted


class Objective(nn.Module):
    """What training minimises, as a module whose parameters are the head's. narrow: products in bfloat16, and the rest,
    the weights too, in float32.

    embeddings and the rows of the target's head are given, and neither trained nor part of the state.
    """

    def __init__(
        self,
        head: EagleHead,
        embeddings: Float[torch.Tensor, "v h"],
        rows: TargetHead,
        loss: Loss,
        weights: Sequence[float],
        *,
        narrow: bool = True,
    ) -> None:
        """rows: the target's head for the ids that the head knows. weights: one a step of the unroll."""
        super().__init__()
        self.head, self.loss, self.weights, self.narrow = head, loss, tuple(weights), narrow
        self._given = embeddings, rows

    @property
    def steps(self) -> int:
        return len(self.weights)

    def forward(self, batch: Batch) -> Losses:
        laws = self.laws(batch)
        total, means = batch.features.new_zeros((), dtype=torch.float32), []
        with self.products(batch):
            for weight, hidden, rows, at in zip(self.weights, self.outputs(batch), batch.rows, batch.laws, strict=True):
                if not len(rows):
                    means.append(total.new_full((), torch.nan))
                    continue
                normed = self.head.norm(hidden.index_select(0, rows))
                weights = self.head.lm_head.weight
                mean = project(normed, weights, laws.taken(at), self.loss, narrow=self.narrow) / len(rows)
                means.append(mean.detach())
                total = total + weight * mean
        return Losses(total, torch.stack(means))

    def outputs(self, batch: Batch) -> Any:
        """What the head says at each step of a batch, [n, h] each."""
        return unroll(self.head, self._given[0], batch, self.steps)

    def laws(self, batch: Batch) -> Laws:
        """What the target says at the places that count."""
        return Laws(self._given[1].logits(batch.last), batch.log_z, None)

    def products(self, batch: Batch) -> torch.autocast:
        return torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=self.narrow)


class Laws(NamedTuple):
    """Log-probabilities of the target, row by row where they are needed. at: which rows, None for all."""

    logits: Float[torch.Tensor, "m d"]
    log_z: Float[torch.Tensor, " m"]
    at: Int[torch.Tensor, " r"] | None

    def taken(self, at: Int[torch.Tensor, " r"]) -> Laws:
        return Laws(self.logits, self.log_z, at)

    def rows(self, some: slice, dtype: torch.dtype) -> Float[torch.Tensor, "n d"]:
        index: Any = some if self.at is None else self.at[some]
        return self.logits[index].to(dtype) - self.log_z[index].to(dtype)[:, None]


def project(
    normed: Float[torch.Tensor, "n h"],
    weight: Float[torch.Tensor, "d h"],
    laws: Laws,
    loss: Loss,
    *,
    narrow: bool,
) -> Float[torch.Tensor, ""]:
    """The sum of a loss over rows, from what the output layer reads."""
    return _Project.apply(normed, weight, laws, loss, narrow)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, normed: torch.Tensor, weight: torch.Tensor, laws: Laws, loss: Loss, narrow: bool
    ) -> torch.Tensor:
        dtype = torch.bfloat16 if narrow else normed.dtype
        exact = torch.float64 if normed.dtype is torch.float64 else torch.float32
        with torch.autocast(normed.device.type, enabled=False):
            x, w = normed.to(dtype), weight.to(dtype)
            logits = x @ w.T
            slopes = any(ctx.needs_input_grad[:2])
            found = [
                _sloped(logits[some], laws.rows(some, exact), loss, exact, slopes)
                for some in _slices(len(x), logits.shape[1])
            ]
            if slopes:
                dx = (logits @ w).to(normed.dtype) if ctx.needs_input_grad[0] else None
                dw = (logits.T @ x).to(weight.dtype) if ctx.needs_input_grad[1] else None
                ctx.save_for_backward(dx, dw)
            return torch.stack(found).sum()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        [grad] = grads
        return *(None if each is None else each * grad for each in ctx.saved_tensors), None, None, None


def _sloped(logits: torch.Tensor, log_p: torch.Tensor, loss: Loss, exact: torch.dtype, slopes: bool) -> torch.Tensor:
    """The sum of the loss; with `slopes` its gradient is written over the logits."""
    own = logits.to(exact)
    if not slopes:
        return loss(own, log_p).sum()
    with torch.enable_grad():
        own = own.detach().requires_grad_()
        total = loss(own, log_p).sum()
        [slope] = torch.autograd.grad(total, own)
    logits.copy_(slope)
    return total.detach()


def _slices(rows: int, wide: int) -> list[slice]:
    step = max(_SLICE // wide, 1)
    return [slice(at, min(at + step, rows)) for at in range(0, rows, step)]
