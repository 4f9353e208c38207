"""How often drafted tokens came true: by drafter, depth, rank among siblings, and how sure the drafter was."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..base import ROOT, Step
from ..drafters.outlook import places_of
from ..drafters.worth import UNSEEN, bin_of

RANKS, LEVELS = len(UNSEEN), 3  # that are told apart; later ones count with the last
_CENTRES = (0.05, 0.12, 0.22, 0.4, 0.6, 0.78, 0.9, 0.97)  # of the classes: what a drafter's word counts for at first
_WEIGHT = 4.0  # observations that a prior counts as
_STEADY = 12.0  # of one that does about as well on any text
_BELIEVED = 0.8  # at most of what others measured

Place = tuple[str, int, int, int | None]
"""Origin, level, rank and class of confidence; None: all classes together."""


class Record:
    """Counts of accepted and seen nodes, each given that its parent was accepted; the older they are the less they
    count. What was seldom seen is thought of as in `prior`, a record of more texts, or else as one level above.

    steady: origins that do about as well on one text as on another, as models do, so that the prior tells much. known:
    acceptances by level that were measured beforehand.
    """

    def __init__(
        self,
        prior: Record | None = None,
        *,
        fade: float = 0.97,
        steady: Collection[str] = (),
        known: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self._prior, self._fade = prior, fade
        self._known = {origin: shares for origin, shares in (known or {}).items() if shares}
        self._steady = frozenset(steady) | self._known.keys()
        self._seen: dict[Place, tuple[float, float]] = {}

    def add(self, step: Step) -> None:
        """Count a round."""
        for place, accepted in _observed(step):
            for each in (place, (*place[:3], None)):
                hits, seen = self._seen.get(each, (0.0, 0.0))
                self._seen[each] = hits * self._fade + accepted, seen * self._fade + 1
        if self._prior is not None:
            self._prior.add(step)

    def forget(self, origin: str) -> None:
        """Start anew with what the prior says."""
        self._seen = {place: entry for place, entry in self._seen.items() if place[0] != origin}

    def of(self, origin: str) -> Shares:
        """Of one drafter, as it is when it is asked."""
        return Shares(self, origin)

    def share(self, place: Place) -> float:
        hits, seen = self._seen.get(place, (0.0, 0.0))
        weight = _STEADY if place[0] in self._steady else _WEIGHT
        return (hits + weight * self._guess(place)) / (seen + weight)

    def _guess(self, place: Place) -> float:
        origin, level, rank, each = place
        if self._prior is not None:
            return self._prior.share(place)
        if rank == 0 and each is None and (known := self._known.get(origin)):
            return min(known[min(level, len(known) - 1)], _BELIEVED)
        if level > 0:
            return self.share((origin, level - 1, rank, each))
        return UNSEEN[rank] if each is None else _CENTRES[each]


@dataclass(frozen=True, slots=True)
class Shares:
    """A `plan.Trust`: of one drafter in a record."""

    record: Record
    origin: str

    def share(self, level: int, rank: int, confidence: float | None) -> float:
        each = None if confidence is None else bin_of(confidence)
        return self.record.share((self.origin, min(level, LEVELS - 1), min(rank, RANKS - 1), each))


def _observed(step: Step) -> Iterator[tuple[Place, bool]]:
    """Of each node whose parent was kept, whether it was kept too."""
    draft, path = step.draft, set(step.verdict.path)
    for node, (level, rank, sure) in enumerate(places_of(draft)):
        if draft.parents[node] == ROOT or draft.parents[node] in path:
            place = draft.origin[node], min(level, LEVELS - 1), min(rank, RANKS - 1), bin_of(sure)
            yield place, node in path
