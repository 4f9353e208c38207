"""A head unrolled over texts as it drafts: from every place of them on, `steps` tokens alone.

Step 0 is fed the target's own states; step k the outputs of step k − 1, moved on by one token of the text. All places
from which something is learned are unrolled at once (training-time test; Li et al., EAGLE-3, 2503.01840, §3.2); the
others are read once, for their keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float

from ..models.eagle import EagleHead
from .attention import attend
from .batches import Batch


def unroll(
    head: EagleHead, embeddings: Float[torch.Tensor, "v h"], batch: Batch, steps: int
) -> Iterator[Float[torch.Tensor, "u h"]]:
    """The head's outputs of each step, at the rows that are unrolled: row r of step k is what the head says after token
    r + 1 + k, the last k of which it has read without the target. Those past the end of their document mean nothing.

    embeddings: the target's table, which is not trained.
    """
    hidden = head.fuse(batch.features.to(_entry_dtype(head)))[None]
    seen, end = [], len(batch.tokens) - 1
    rows = torch.arange(end + 1, device=batch.tokens.device)
    for k in range(steps):
        embeds = embeddings[batch.tokens[(rows + 1 + k).clamp_max(end)]][None]
        query, key, value, residual = head.attended(embeds, hidden, head.rotations(batch.places[rows] + k))
        seen.append((key.to(value.dtype), value))  # under autocast the rotation made it wide
        if not k:
            rows = batch.unrolled
            query, residual = query[:, :, rows], residual[:, rows]
        hidden = head.finished(attend(query.to(value.dtype), seen, batch.spans), residual)
        yield hidden[0]


def _entry_dtype(head: EagleHead) -> torch.dtype:
    return head.fc.weight.dtype
