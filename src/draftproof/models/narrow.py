"""A draft model whose output layer knows the first token ids alone: its steps read so much less.

Tokenizers number tokens in the order in which they were merged, so low ids are the frequent ones (Zhao et al.,
"FR-Spec", ACL 2025, 2502.14856, rank them by a corpus). What is left out is never drafted; no rule minds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from ..base import Feed, Scores
from .hf import HFTarget
from .products import TransposedLinear
from .shallow import replaced


class NarrowTarget(HFTarget):
    """`target` with logits for its first `ids` tokens, and −inf for all others. The weights are the target's own."""

    def __init__(self, target: HFTarget, ids: int) -> None:
        if not 1 <= ids <= target.vocab_size:
            raise ValueError(f"draft_vocabulary: {ids} is not allowed; it must be in 1 .. {target.vocab_size}")
        self.__dict__.update(target.__dict__)
        head: Any = target.model.get_output_embeddings()
        places = [name for name, module in target.model.named_modules() if module is head]
        if not isinstance(head, nn.Linear) or len(places) != 1:
            raise ValueError(f"draft_vocabulary: {type(target.model).__name__} has no output layer that could be cut")
        self.model = replaced(target.model, places[0], _first_rows(head, ids))

    def forward(self, feeds: Sequence[Feed]) -> list[Scores]:
        return [Scores(_widened(scores.logits, self.vocab_size)) for scores in super().forward(feeds)]


def _first_rows(head: Any, count: int) -> nn.Linear:
    cut: Any = nn.Linear(head.in_features, count, bias=False, device="meta")
    cut.weight = nn.Parameter(head.weight.detach()[:count], requires_grad=False)
    cut.bias = None if head.bias is None else nn.Parameter(head.bias.detach()[:count], requires_grad=False)
    if isinstance(head, TransposedLinear):
        cut.__class__ = TransposedLinear
    return cut.eval()


def _widened(logits: np.ndarray, size: int) -> np.ndarray:
    wide = np.full((len(logits), size), -np.inf, np.float32)
    wide[:, : logits.shape[1]] = logits
    return wide
