"""Query rows against their keys, of one request or several. Apart, so that bits.py measures what hf.py runs."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from jaxtyping import Float, Shaped


def attend(
    q: Float[torch.Tensor, "b h n d"],
    k: Float[torch.Tensor, "b h s d"],
    v: Float[torch.Tensor, "b h s e"],
    mask: Shaped[torch.Tensor, "b 1 n s"],
    scaling: float | None,
    softcap: float | None,
    kv_step: int,
) -> Float[torch.Tensor, "b h n e"]:
    """Every query row sees at least one key. mask: what is added to the scores, 0 or −inf, in the dtype of q (torch
    would make the same of a boolean one, once a layer)."""
    if softcap is not None:
        return _attend_with_softcap(q, k, v, mask, scaling, softcap, kv_step)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)


def _attend_with_softcap(q, k, v, mask, scaling, softcap, kv_step) -> torch.Tensor:
    """Gemma 2's scores are capped before the softmax, which the fused kernel cannot do.

    The keys are walked in steps, as the fused kernel walks them: a product over all slots at once adds up in another
    order when the request grows into its next step, but a step that is masked as a whole adds exact zeros.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    q = q.to(dtype) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    steps = [slice(at, at + kv_step) for at in range(0, k.shape[2], kv_step)]
    scores = [softcap * torch.tanh(q @ k[:, :, step].to(dtype).transpose(-1, -2) / softcap) for step in steps]
    scores = [x + mask[..., step] for x, step in zip(scores, steps, strict=True)]
    peak = torch.stack([x.amax(-1, keepdim=True) for x in scores]).amax(0)
    weights = [(x - peak).exp() for x in scores]
    total = sum(x.sum(-1, keepdim=True) for x in weights)
    mixed = sum(x @ v[:, :, step].to(dtype) for x, step in zip(weights, steps, strict=True))
    return (mixed / total).to(v.dtype)
