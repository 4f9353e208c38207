"""Hugging Face LogitsProcessors in a chain: one row after the other, each with the text that leads to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers.generation import (
    ClassifierFreeGuidanceLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from ..processors import Change

_STATEFUL = (
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
    ClassifierFreeGuidanceLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
)
"""Processors of Hugging Face's that remember what they were asked before, or look at other rows."""


class ProcessorError(ValueError):
    """A caller's processor raised, which is the cause."""


def require_stateless(processor: Any) -> None:
    if isinstance(processor, _STATEFUL):
        raise ValueError(
            f"logits_processor: {type(processor).__name__} is not supported by draftproof; what a processor gives must "
            "depend on one text and its scores alone"
        )


def looped(processor: Callable[[torch.Tensor, torch.Tensor], Any], before: Sequence[int] = ()) -> Change:
    """The processor as a step of a chain. It sees one text at a time, [1, tokens], and its scores, [1, v]; what it
    gives must depend on these alone. before: tokens that it is to see in front of the text (padding)."""
    require_stateless(processor)
    padding, name = list(before), type(processor).__name__

    def change(row: np.ndarray, history: Sequence[int]) -> np.ndarray:
        scores = torch.from_numpy(row)[None]
        try:
            given = processor(torch.tensor([[*padding, *history]], dtype=torch.long), scores)
        except Exception as error:
            raise ProcessorError(f"logits_processors: {name} failed: {type(error).__name__}: {error}") from error
        if not isinstance(given, torch.Tensor) or given.shape != (1, len(row)):
            shape = tuple(given.shape) if isinstance(given, torch.Tensor) else type(given).__name__
            raise ValueError(f"logits_processors: {name} returned {shape}; it must return scores of (1, {len(row)})")
        return given[0].detach().to("cpu", scores.dtype, copy=True).numpy()  # it may give the same tensor every time

    return change
