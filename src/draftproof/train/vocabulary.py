"""Which token ids a drafter knows: those that the target says most often (Zhao et al., FR-Spec, 2502.14856)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int

from .batches import Text


def label_counts(texts: Iterable[Text], vocab_size: int) -> Int[np.ndarray, " v"]:
    """How often each id is a label."""
    labels = [token for text in texts for token, counts in zip(text.tokens, text.labels, strict=True) if counts]
    return np.bincount(np.asarray(labels, np.int64), minlength=vocab_size)


def choose_vocabulary(counts: Int[np.ndarray, " v"], size: int | None, always: Sequence[int]) -> Int[np.ndarray, " d"]:
    """The ids in `always` and the most frequent others, `size` in all, rising; equally frequent ones by their ids.
    None: all ids.

    >>> choose_vocabulary(np.array([0, 5, 1, 1, 0, 0]), 3, [5]).tolist()
    [1, 2, 5]
    """
    if size is None:
        return np.arange(len(counts))
    least = max(len(set(always)), 1)
    if not least <= size <= len(counts):
        raise ValueError(f"draft_vocab_size: {size} is not allowed; it must be in {least} .. {len(counts)}, or full")
    first = np.zeros(len(counts), bool)
    first[list(always)] = True
    order = np.lexsort((np.arange(len(counts)), -counts, ~first))
    return np.sort(order[:size])


def coverage(counts: Int[np.ndarray, " v"], ids: Int[np.ndarray, " d"]) -> float:
    """The share of labels that are among `ids`; 1 without any label."""
    return float(counts[ids].sum() / counts.sum()) if counts.sum() else 1.0
