"""The attention of an unrolled drafter: causal keys of true entries, and keys of one's own further steps.

A row of step k sees the step-0 keys up to its own place, and of steps 1..k its own key alone: what it would see if it
went on alone from that place (training-time test; Li et al., EAGLE-3, 2503.01840, §3.2). Step 0 has the keys of all n
rows; queries, and further keys, are those of the u rows that are unrolled, span by span.

`attend_flash` never holds a matrix of scores. The backward of torch's CPU attention rebuilds each weight as exp(score −
logsumexp) and needs of the output only its product with the gradient; so given the output and the logsumexp over ALL
keys it gives the right gradients of the keys it knows, and the others, one a row and step, are worked out beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float

from .batches import Span

Pair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one step, each [1, kv_heads, n, d] of step 0, and [1, kv_heads, u, d] of the others."""

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(
    query: Float[torch.Tensor, "1 heads u d"], steps: Sequence[Pair], spans: Sequence[Span]
) -> Float[torch.Tensor, "1 u heads d"]:
    """steps: keys and values of step 0, 1, ..., k."""
    if query.device.type == "cpu":
        return attend_flash(query, steps, spans)
    return attend_dense(query, steps, spans)


def attend_dense(
    query: Float[torch.Tensor, "1 heads u d"], steps: Sequence[Pair], spans: Sequence[Span]
) -> Float[torch.Tensor, "1 u heads d"]:
    """The same from its definition, on any device, with all scores of a span at once."""
    groups, scale = query.shape[1] // steps[0][0].shape[1], query.shape[-1] ** -0.5
    wide = [[each.repeat_interleave(groups, 1)[0] for each in pair] for pair in steps]
    (keys, values), *own = wide
    parts = []
    for at, (start, first, end) in _placed(spans):
        q, read = query[0, :, at], slice(start, end)
        later = torch.ones(end - first, end - start, dtype=torch.bool, device=query.device).triu(1 + first - start)
        scores = (q @ keys[:, read].mT).masked_fill(later, -torch.inf)
        mine = [(q * k[:, at]).sum(-1, keepdim=True) for k, _ in own]
        weights = (torch.cat([scores, *mine], -1) * scale).to(_exact(q)).softmax(-1).to(values.dtype)
        found = weights[..., : end - start] @ values[:, read]
        for j, (_, v) in enumerate(own):
            found = found + weights[..., end - start + j, None] * v[:, at]
        parts.append(found)
    return torch.cat(parts, 1).transpose(0, 1)[None]


def attend_flash(
    query: Float[torch.Tensor, "1 heads u d"], steps: Sequence[Pair], spans: Sequence[Span]
) -> Float[torch.Tensor, "1 u heads d"]:
    """The same on a CPU, where memory grows with the rows alone."""
    (keys, values), *own = steps
    found = _Flash.apply(query, keys, values, tuple(spans), *(each for pair in own for each in pair))
    return found.transpose(1, 2)


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        spans: tuple[Span, ...],
        *own: torch.Tensor,
    ) -> torch.Tensor:
        scale = q.shape[-1] ** -0.5
        parts = [_merged(q[:, :, at], keys, values, span, scale) for at, span in _placed(spans)]
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
        ctx.spans = spans
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        q, keys, values, out, total, *own = ctx.saved_tensors
        [grad], heads, scale = grads, keys.shape[1], q.shape[-1] ** -0.5
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(keys), torch.zeros_like(values)
        for at, span in _placed(ctx.spans):
            rows = [each[:, :, at] for each in (grad, q, out, total)]
            for read, causal in _reads(span):
                g, one, o, lse = rows
                found = _backward(g, one, keys[:, :, read], values[:, :, read], o, lse, 0.0, causal, scale=scale)
                for into, where, slope in zip((dq, dk, dv), (at, read, read), found, strict=True):
                    into[:, :, where] += slope
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


def _merged(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, span: Span, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the rows of a span read of step 0, and the logsumexp of their scores there."""
    parts = [
        _forward(q, keys[:, :, read], values[:, :, read], 0.0, causal, scale=scale) for read, causal in _reads(span)
    ]
    if len(parts) == 1:
        return parts[0]
    total = torch.logaddexp(*(lse for _, lse in parts))
    one, other = (out * (lse - total).exp().to(out.dtype)[..., None] for out, lse in parts)
    return one + other, total


def _reads(span: Span) -> list[tuple[slice, bool]]:
    """The keys that a span reads: those before it, each by all its rows; and its own, causally."""
    start, first, end = span
    own = slice(first, end), True
    return [own] if first == start else [(slice(start, first), False), own]


def _placed(spans: Sequence[Span]) -> list[tuple[slice, Span]]:
    """Each span, and where its rows are among the unrolled ones."""
    found, lo = [], 0
    for span in spans:
        found.append((slice(lo, lo := lo + span.end - span.first), span))
    return found


def _grouped(x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[1, heads, n, d] -> [1, kv_heads, groups, n, d], a view."""
    return x.unflatten(1, (kv_heads, -1))


def _exact(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32
