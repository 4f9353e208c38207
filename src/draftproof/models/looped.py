"""Hugging Face LogitsProcessors in a chain: one row after the other, each with the text that leads to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..processors import Change


def looped(processor: Callable[[torch.Tensor, torch.Tensor], Any], before: Sequence[int] = ()) -> Change:
    """The processor as a step of a chain. It sees one text at a time, [1, tokens], and its scores, [1, v]; what it
    gives must depend on these alone. before: tokens that it is to see in front of the text (padding)."""
    padding, name = list(before), type(processor).__name__

    def change(row: np.ndarray, history: Sequence[int]) -> np.ndarray:
        scores = torch.from_numpy(row)[None]
        given = processor(torch.tensor([[*padding, *history]], dtype=torch.long), scores)
        if not isinstance(given, torch.Tensor) or given.shape != (1, len(row)):
            shape = tuple(given.shape) if isinstance(given, torch.Tensor) else type(given).__name__
            raise ValueError(f"logits_processors: {name} returned {shape}; it must return scores of (1, {len(row)})")
        return given[0].detach().to("cpu", scores.dtype).numpy()

    return change
