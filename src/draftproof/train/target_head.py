"""The target's output layer, apart from the target: its logits again from what it read, for all ids or for some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from jaxtyping import Float, Int

from ..base import Feed
from ..models.features import read_features

_CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Of the largest logit: what two ways to the same logits may differ by."""
_ROWS = 512  # at once, over all ids: 100 MB for 49152 of them
_PROBE = 12  # tokens of the text that it is tried on


@dataclass(frozen=True, slots=True, eq=False)
class TargetHead:
    """logits = softcap(scale · (weight · last + bias)), in the target's dtype, as the target computes them."""

    weight: Float[torch.Tensor, "d h"]
    bias: Float[torch.Tensor, " d"] | None = None
    scale: float = 1.0
    softcap: float | None = None

    def only(self, ids: Int[torch.Tensor, " k"]) -> TargetHead:
        """For these ids alone, in their order."""
        return replace(self, weight=self.weight[ids], bias=None if self.bias is None else self.bias[ids])

    @torch.no_grad()
    def logits(self, last: Float[torch.Tensor, "n h"]) -> Float[torch.Tensor, "n d"]:
        found = F.linear(last.to(self.weight.dtype), self.weight, self.bias)
        if self.scale != 1:
            found = found * self.scale
        if self.softcap is not None:
            found = torch.tanh(found / self.softcap) * self.softcap
        return found

    @torch.no_grad()
    def law(self, last: Float[torch.Tensor, "n h"]) -> tuple[Float[torch.Tensor, " n"], Int[torch.Tensor, " n"]]:
        """The log of Σ exp(logit), in float32, and the likeliest id, of each row."""
        parts = [self.logits(some).float() for some in last.split(_ROWS)]
        return torch.cat([each.logsumexp(-1) for each in parts]), torch.cat([each.argmax(-1) for each in parts])


def target_head_of(target: Any) -> TargetHead:
    """That of an HFTarget, tried on a short text. ValueError that names the model if its logits are no such function of
    what its head reads."""
    model = target.model
    config, layer = model.config.get_text_config(), model.get_output_embeddings()
    if layer is None or getattr(layer, "weight", None) is None:
        raise ValueError(
            f"target: {_name(model)} has no output layer with a weight; a drafter cannot be trained for it"
        )
    scale = float(getattr(config, "logit_scale", None) or 1) / float(getattr(config, "logits_scaling", None) or 1)
    bias = getattr(layer, "bias", None)
    head = TargetHead(
        layer.weight.detach(),
        None if bias is None else bias.detach(),
        scale,
        getattr(config, "final_logit_softcapping", None),
    )
    require_same_logits(target, head, [1 + at * 7 % (config.vocab_size - 1) for at in range(_PROBE)])
    return head


def require_same_logits(target: Any, head: TargetHead, text: Sequence[int]) -> None:
    """ValueError if the target's own logits after each token of a text are others than `head` gives."""
    session = target.open(len(text))
    try:
        [scores] = target.forward([Feed(session, tuple(text), want=tuple(range(len(text))))])
    finally:
        target.close(session)
    [(_, last)] = read_features(target, [text], [0])
    found = head.logits(last).float().cpu().numpy()
    off = float(np.abs(found - scores.logits).max() / max(np.abs(scores.logits).max(), 1e-6))
    if not off <= _CLOSE.get(target.model.dtype, 4e-2):
        raise ValueError(
            f"target: the logits of {_name(target.model)} are not its output layer's of what that reads (they differ "
            f"by {off:.0%} of the largest); a drafter cannot be trained for it"
        )


def _name(model: Any) -> str:
    return f"{type(model).__name__} (model type {model.config.get_text_config().model_type})"
