"""The attention of an unrolled drafter: causal keys of true entries, and keys of one's own further steps.

A row of step k sees the step-0 keys up to its own place, and of steps 1..k its own key alone: what it would see if it
went on alone from that place (training-time test; Li et al., EAGLE-3, 2503.01840, §3.2).

`attend_flash` never holds a matrix of scores. The backward of torch's CPU attention rebuilds each weight as exp(score −
logsumexp) and needs of the output only its product with the gradient; so given the output and the logsumexp over ALL
keys it gives the right gradients of the keys it knows, and the others, one a row and step, are worked out beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float

Pair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one step, each [1, kv_heads, n, d]."""

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(
    query: Float[torch.Tensor, "1 heads n d"], steps: Sequence[Pair], lengths: Sequence[int]
) -> Float[torch.Tensor, "1 n heads d"]:
    """steps: keys and values of step 0, 1, ..., k. lengths: rows of each document; they follow one another."""
    if query.device.type == "cpu":
        return attend_flash(query, steps, lengths)
    return attend_dense(query, steps, lengths)


def attend_dense(
    query: Float[torch.Tensor, "1 heads n d"], steps: Sequence[Pair], lengths: Sequence[int]
) -> Float[torch.Tensor, "1 n heads d"]:
    """The same from its definition, on any device, with all scores of a document at once."""
    groups, scale = query.shape[1] // steps[0][0].shape[1], query.shape[-1] ** -0.5
    wide = [[each.repeat_interleave(groups, 1)[0] for each in pair] for pair in steps]
    own, parts, lo = wide[1:], [], 0
    for length in lengths:
        at = slice(lo, lo + length)
        q, (keys, values) = query[0, :, at], wide[0]
        later = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        scores = (q @ keys[:, at].mT).masked_fill(later, -torch.inf)
        mine = [(q * k[:, at]).sum(-1, keepdim=True) for k, _ in own]
        weights = (torch.cat([scores, *mine], -1) * scale).to(_exact(q)).softmax(-1).to(values.dtype)
        found = weights[..., :length] @ values[:, at]
        for j, (_, v) in enumerate(own):
            found = found + weights[..., length + j, None] * v[:, at]
        parts.append(found)
        lo += length
    return torch.cat(parts, 1).transpose(0, 1)[None]


def attend_flash(
    query: Float[torch.Tensor, "1 heads n d"], steps: Sequence[Pair], lengths: Sequence[int]
) -> Float[torch.Tensor, "1 n heads d"]:
    """The same on a CPU, where memory grows with the rows alone."""
    (keys, values), *own = steps
    found = _Flash.apply(query, keys, values, tuple(lengths), *(each for pair in own for each in pair))
    return found.transpose(1, 2)


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        lengths: tuple[int, ...],
        *own: torch.Tensor,
    ) -> torch.Tensor:
        scale = q.shape[-1] ** -0.5
        parts = [
            _forward(q[:, :, at], keys[:, :, at], values[:, :, at], 0.0, True, scale=scale) for at in _slices(lengths)
        ]
        out, total = torch.cat([o for o, _ in parts], 2), torch.cat([lse for _, lse in parts], 2)
        if own:
            rows, exact = _grouped(q, keys.shape[1]), _exact(q)
            scores = [((rows * k[:, :, None]).sum(-1, dtype=exact) * scale).flatten(1, 2) for k in own[::2]]
            each = torch.stack([total, *scores])
            total = each.logsumexp(0)
            weights = (each - total).exp().to(q.dtype)
            out = weights[0, ..., None] * out
            mixed = _grouped(out, keys.shape[1])  # a view: what is added to it is added to `out`
            for weight, v in zip(weights[1:], own[1::2], strict=True):
                mixed.addcmul_(_grouped(weight[..., None], keys.shape[1]), v[:, :, None])
        ctx.save_for_backward(q, keys, values, out, total, *own)
        ctx.lengths = lengths
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        q, keys, values, out, total, *own = ctx.saved_tensors
        [grad], heads, scale = grads, keys.shape[1], q.shape[-1] ** -0.5
        parts = [
            _backward(*(each[:, :, at] for each in (grad, q, keys, values, out, total)), 0.0, True, scale=scale)
            for at in _slices(ctx.lengths)
        ]
        dq, dk, dv = (torch.cat(each, 2) for each in zip(*parts, strict=True))
        if not own:
            return dq, dk, dv, None
        rows, grown, exact = _grouped(q, heads), _grouped(grad, heads), _exact(q)
        delta = (grown * _grouped(out, heads)).sum(-1, dtype=exact)
        total = _grouped(total[..., None], heads)[..., 0]
        into = _grouped(dq, heads)
        theirs = []
        for k, v in zip(own[::2], own[1::2], strict=True):
            k, v = k[:, :, None], v[:, :, None]
            weight = ((rows * k).sum(-1, dtype=exact) * scale - total).exp()
            slope = (weight * ((grown * v).sum(-1, dtype=exact) - delta) * scale).to(q.dtype)[..., None]
            into.addcmul_(slope, k)
            theirs += [(slope * rows).sum(2), (weight.to(q.dtype)[..., None] * grown).sum(2)]
        return dq, dk, dv, None, *theirs


def _slices(lengths: Sequence[int]) -> list[slice]:
    found, lo = [], 0
    for length in lengths:
        found.append(slice(lo, lo + length))
        lo += length
    return found


def _grouped(x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[1, heads, n, d] -> [1, kv_heads, groups, n, d], a view."""
    return x.unflatten(1, (kv_heads, -1))


def _exact(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32
