"""What a head would be worth, measured on texts that it was not trained on."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from .batches import Batch
from .losses import overlap
from .objective import Objective

_AT_ONCE = 128  # rows whose laws are compared at a time


@dataclass(frozen=True, slots=True)
class Quality:
    """Per step of the unroll: loss; overlap, the mean of Σ min(p, q), which is how likely a sampled draft is accepted;
    agreement, how often both think the same token likeliest, which is how often a greedy draft is.

    sampled, greedy: tokens a round of a chain of so many drafts, 1 + Σ_k E[Π_{j<=k} a_j]: the product is taken place by
    place, as one that is hard at one step is hard at the next, and its mean over the places that count at all steps up
    to k, from which so many labels follow one another. rows: places that counted at step 0. known: the share of their
    labels that are ids of the head's.
    """

    loss: tuple[float, ...]
    overlap: tuple[float, ...]
    agreement: tuple[float, ...]
    sampled: float
    greedy: float
    rows: int
    known: float

    @property
    def worth(self) -> float:
        """What one head is better than another by: both lengths count alike."""
        return (self.sampled + self.greedy) / 2

    def __str__(self) -> str:
        def shown(values: Sequence[float]) -> str:
            return " ".join(f"{value:.3f}" for value in values)

        return (
            f"overlap {shown(self.overlap)}, agreement {shown(self.agreement)}; "
            f"{self.sampled:.2f} tokens a round at T=1, {self.greedy:.2f} greedy; {self.known:.2%} of the labels known"
        )


@contextmanager
def evaluating(module: nn.Module) -> Generator[None]:
    """In evaluation mode and without gradients, and afterwards in the mode it was in, whatever happens."""
    before = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(before)


def evaluate(objective: Objective, batches: Iterable[Batch]) -> Quality:
    """ValueError if nothing in the batches counts."""
    steps = objective.steps
    sums = torch.zeros(5, steps, dtype=torch.float64)  # loss, overlap, agreement, and both chains
    counts = torch.zeros_like(sums)
    known = 0
    with evaluating(objective):
        for batch in batches:
            chains = torch.ones(2, len(batch.unrolled), device=batch.tokens.device)
            whole = torch.ones_like(batch.unrolled, dtype=torch.bool)  # rows that have counted at every step so far
            for k, (rows, values) in enumerate(_measured(objective, batch)):
                whole &= torch.zeros_like(whole).index_fill(0, rows, True)
                chains[:, rows] *= values[1:]
                sums[:3, k] += values.double().sum(1).cpu()
                sums[3:, k] += chains[:, whole].double().sum(1).cpu()
                counts[:3, k] += len(rows)
                counts[3:, k] += int(whole.sum())
            labels = batch.tokens[batch.unrolled[batch.rows[0]] + 2]
            known += int(torch.isin(labels, objective.head.token_ids).sum())
    rows = int(counts[0, 0])
    if not rows:
        raise ValueError("data: no held-out text has a label that could be predicted")
    loss, both, same, sampled, greedy = (tuple(each) for each in (sums / counts.clamp_min(1)).tolist())
    return Quality(loss, both, same, 1 + sum(sampled), 1 + sum(greedy), rows, known / rows)


def _measured(objective: Objective, batch: Batch) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Step by step: the rows that count, and of each [3, n] its loss, overlap and agreement."""
    laws, ids = objective.laws(batch), objective.head.token_ids
    with objective.products(batch):
        for hidden, rows, at in zip(objective.outputs(batch), batch.rows, batch.laws, strict=True):
            found = []
            for some in torch.arange(len(rows), device=rows.device).split(_AT_ONCE):
                part = slice(int(some[0]), int(some[-1]) + 1) if len(some) else slice(0)
                logits = objective.head.logits(hidden[rows[part]]).float()
                log_p = laws.taken(at).rows(part, torch.float32)
                same = ids[logits.argmax(-1)] == batch.top[at[part]]
                found.append(torch.stack([objective.loss(logits, log_p), overlap(logits, log_p), same.float()]))
            yield rows, torch.cat(found, 1)
