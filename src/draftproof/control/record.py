"""How often drafted tokens came true, by who drafted them, their rank among siblings and how sure the drafter was."""

from __future__ import annotations

from collections.abc import Iterator

from ..base import BINS, ROOT, Step
from ..drafters.outlook import ranks_of
from ..drafters.worth import bin_of

RANKS = 4
_CENTRES = (0.02, 0.1, 0.2, 0.4, 0.6, 0.78, 0.9, 0.97)  # of the classes: what a drafter's word counts for at first
_WEIGHT = 4.0  # observations that a prior counts as

Place = tuple[str, int, int]
Table = tuple[tuple[float, ...], ...]


class Record:
    """Counts of accepted and seen nodes, each given that its parent was accepted; the older they are the less they
    count. prior: a record of more texts, which this one starts from."""

    def __init__(self, prior: Record | None = None, *, fade: float = 0.97) -> None:
        self._prior, self._fade = prior, fade
        self._seen: dict[Place, list[float]] = {}

    def add(self, step: Step) -> None:
        """Count a round."""
        for place, accepted in _observed(step):
            self._count(place, accepted)
        if self._prior is not None:
            self._prior.add(step)

    def _count(self, place: Place, accepted: bool) -> None:
        entry = self._seen.setdefault(place, [0.0, 0.0])
        entry[0] = entry[0] * self._fade + accepted
        entry[1] = entry[1] * self._fade + 1

    def forget(self, origin: str) -> None:
        """Start anew with what the prior says."""
        self._seen = {place: entry for place, entry in self._seen.items() if place[0] != origin}

    def table(self, origin: str) -> Table:
        """[RANKS][BINS + 1]: `base.Terms.trust` of one origin."""
        return tuple(
            (*(self._share(origin, rank, each) for each in range(BINS)), self._mean(origin, rank))
            for rank in range(RANKS)
        )

    def _share(self, origin: str, rank: int, each: int) -> float:
        accepted, seen = self._seen.get((origin, rank, each), (0.0, 0.0))
        guess = _CENTRES[each] if self._prior is None else self._prior._share(origin, rank, each)
        return (accepted + _WEIGHT * guess) / (seen + _WEIGHT)

    def _mean(self, origin: str, rank: int) -> float:
        entries = [entry for (who, at, _), entry in self._seen.items() if who == origin and at == rank]
        guess = (0.6, 0.15, 0.07, 0.04)[rank] if self._prior is None else self._prior._mean(origin, rank)
        accepted, seen = (sum(column) for column in zip(*entries, strict=True)) if entries else (0.0, 0.0)
        return (accepted + _WEIGHT * guess) / (seen + _WEIGHT)


def _observed(step: Step) -> Iterator[tuple[Place, bool]]:
    """Of each node whose parent was kept, whether it was kept too."""
    draft, path = step.draft, set(step.verdict.path)
    sure = draft.confidence or (0.5,) * len(draft)
    for node, (parent, origin, rank) in enumerate(zip(draft.parents, draft.origin, ranks_of(draft), strict=True)):
        if parent == ROOT or parent in path:
            yield (origin, min(rank, RANKS - 1), bin_of(sure[node])), node in path
