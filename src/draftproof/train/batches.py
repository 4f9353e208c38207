"""Texts one after the other in a batch: which rows of it predict what, and in which order texts come.

A batch has no padding: its documents follow one another, and attention alone must know where each begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True, slots=True)
class Text:
    """One example as it is trained on. labels: which of the tokens count as something to predict. group: texts of one
    group, such as answers to one prompt, are on the same side of the split. source: which of several it is from."""

    id: str
    group: str
    tokens: tuple[int, ...]
    labels: tuple[bool, ...]
    source: int = 0

    def cut(self, most: int) -> Text:
        return self if len(self.tokens) <= most else replace(self, tokens=self.tokens[:most], labels=self.labels[:most])

    @property
    def counts(self) -> bool:
        """Whether anything in it can be predicted: the first two tokens cannot."""
        return any(self.labels[2:])


@dataclass(frozen=True, slots=True)
class States:
    """What the target says at each of n tokens: features fused by a head, what its own head reads, and of its law the
    log of the sum of all exp(logit), and the likeliest token."""

    features: Float[torch.Tensor, "n f"]
    last: Float[torch.Tensor, "n h"]
    log_z: Float[torch.Tensor, " n"]
    top: Int[torch.Tensor, " n"]


class Span(NamedTuple):
    """Rows first .. end − 1 of a batch, of the document that begins at row `start`."""

    start: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """n rows of several documents, u of them unrolled, and m laws of the target that some row predicts.

    Row r of step k is made of token r + 1 + k and predicts the law after it. Unrolled are the rows that count at some
    step; of the others, such as a prompt's, a drafter has keys and values alone. spans: the unrolled ones, run by run.
    rows[k]: which of the unrolled rows count; laws[k]: which law each of them predicts.
    """

    ids: tuple[str, ...]
    spans: tuple[Span, ...]
    unrolled: Int[torch.Tensor, " u"]
    tokens: Int[torch.Tensor, " n"]
    places: Int[torch.Tensor, " n"]
    features: Float[torch.Tensor, "n f"]
    last: Float[torch.Tensor, "m h"]
    log_z: Float[torch.Tensor, " m"]
    top: Int[torch.Tensor, " m"]
    rows: tuple[Int[torch.Tensor, " _"], ...]
    laws: tuple[Int[torch.Tensor, " _"], ...]

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        names = "unrolled", "tokens", "places", "features", "last", "log_z", "top"
        moved = {name: getattr(self, name).to(device) for name in names}
        pairs = {name: tuple(each.to(device) for each in getattr(self, name)) for name in ("rows", "laws")}
        return replace(self, **moved, **pairs)


def batch_of(texts: Sequence[Text], states_of: Callable[[Text], States], steps: int) -> Batch:
    """steps: of the unroll, 1 or more."""
    states = [states_of(text) for text in texts]
    tokens = torch.tensor([token for text in texts for token in text.tokens])
    labels = torch.tensor([label for text in texts for label in text.labels])
    places = torch.cat([torch.arange(len(text.tokens)) for text in texts])
    rows, wanted = rows_of(labels, places, steps)
    unrolled, at = torch.cat(rows).unique(), torch.cat(wanted).unique()
    return Batch(
        ids=tuple(text.id for text in texts),
        spans=spans_of(unrolled, places),
        unrolled=unrolled,
        tokens=tokens,
        places=places,
        features=torch.cat([each.features for each in states]),
        last=torch.cat([each.last for each in states])[at],
        log_z=torch.cat([each.log_z for each in states])[at],
        top=torch.cat([each.top for each in states])[at],
        rows=tuple(torch.searchsorted(unrolled, each) for each in rows),
        laws=tuple(torch.searchsorted(at, each) for each in wanted),
    )


def rows_of(
    labels: Bool[torch.Tensor, " n"], places: Int[torch.Tensor, " n"], steps: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Which rows count at each step, and after which token the law is that each of them predicts.

    Row r of step k predicts the law of token r + 2 + k. It counts if that is a label, of the row's own document.
    """
    named = labels.nonzero()[:, 0]
    rows, wanted = [], []
    for k in range(steps):
        own = named[places[named] >= 2 + k]
        rows.append(own - 2 - k)
        wanted.append(own - 1)
    return rows, wanted


def spans_of(rows: Int[torch.Tensor, " u"], places: Int[torch.Tensor, " n"]) -> tuple[Span, ...]:
    """Rising rows as runs that do not leave their documents.

    >>> spans_of(torch.tensor([1, 2, 4, 5]), torch.tensor([0, 1, 2, 3, 4, 0]))
    (Span(start=0, first=1, end=3), Span(start=0, first=4, end=5), Span(start=5, first=5, end=6))
    """
    starts = rows - places[rows]
    cuts = ((rows.diff() > 1) | (starts.diff() > 0)).nonzero()[:, 0] + 1
    edges = [0, *cuts.tolist(), len(rows)]
    runs = [(int(starts[lo]), int(rows[lo]), hi - lo) for lo, hi in pairwise(edges) if hi > lo]
    return tuple(Span(start, first, first + length) for start, first, length in runs)


# order


def split(texts: Sequence[Text], share: float) -> tuple[list[Text], list[Text]]:
    """(to train on, held out): about `share` of the groups, by their hashes, and at least one. The same group is on the
    same side however many others there are."""
    rank = {text.group: hashlib.sha256(f"held out\n{text.group}".encode()).digest() for text in texts}
    if len(rank) < 2:
        raise ValueError(
            f"data: {len(rank)} different prompts are too few; one is trained on and one held out at least"
        )
    limit = int(share * 2**32)
    out = {group for group, digest in rank.items() if int.from_bytes(digest[:4], "big") < limit}
    out = out if 0 < len(out) < len(rank) else {min(rank, key=lambda group: rank[group])}
    return [text for text in texts if text.group not in out], [text for text in texts if text.group in out]


def filled(lengths: Sequence[int], order: Sequence[int], most: int) -> list[list[int]]:
    """Texts in an order, as many in a batch as fit in `most` tokens; a longer one has its own.

    >>> filled([3, 2, 9, 1, 1], [0, 1, 2, 3, 4], 5)
    [[0, 1], [2], [3, 4]]
    """
    batches: list[list[int]] = []
    room = -1
    for index in order:
        room -= lengths[index]
        if room < 0:
            batches.append([])
            room = most - lengths[index]
        batches[-1].append(index)
    return batches


def epoch_of(lengths: Sequence[int], most: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch: all texts, in an order that the seed and the epoch alone determine."""
    order = np.random.default_rng([seed, epoch]).permutation(len(lengths))
    return filled(lengths, order.tolist(), most)
