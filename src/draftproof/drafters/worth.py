"""What a drafted token is worth: how far a drafter's own estimate is trusted, and how many nodes pay for their rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

EDGES = (0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95)
"""Where one class of confidence (there are BINS) ends and the next begins. Finer near 0 and 1, where a chain of tokens
is won or lost: five tokens of 0.97 all come true 86 times in 100, five of 0.9 only 59 times."""


def bin_of(confidence: float) -> int:
    """The class of a confidence, 0 to BINS - 1; an edge belongs to the class above it.

    >>> [bin_of(confidence) for confidence in (0.01, 0.05, 0.4, 0.94, 0.99)]
    [0, 1, 3, 6, 7]
    """
    return bisect_right(EDGES, confidence)


def trusted(trust: Sequence[Sequence[float]] | None, rank: int, confidence: float) -> float:
    """How likely a token is accepted, given its parent: as observed if there is a record, else as its drafter thinks.

    trust: by rank and class, as in `Terms.trust`; ranks beyond the last row share it. rank: place among siblings.

    >>> record = ((0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9), (0.0, 0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
    >>> trusted(record, 0, 0.99), trusted(record, 1, 0.99), trusted(record, 7, 0.4), trusted(None, 7, 0.4)
    (0.9, 0.6, 0.2, 0.4)
    """
    return trust[min(rank, len(trust) - 1)][bin_of(confidence)] if trust else confidence


def best_count(gains: Sequence[float], rounds: Sequence[float], base: float = 1.0) -> int:
    """How many of the nodes to score, so that the most tokens are expected a second; the fewest among equals.

    gains: of each node in the order they would be taken, how likely it is kept. rounds[n]: seconds of a round that
    scores n nodes. base: tokens that the round yields without any of them. All counts are tried, as rounds grow in
    steps: here a third node costs what the first did.

    >>> best_count([0.4, 0.4, 0.4], [1.0, 1.5, 1.5, 1.5])
    3
    >>> best_count([0.5, 0.2, 0.2, 0.1], [1.0, 1.1, 1.5, 1.5, 3.0])
    1
    >>> best_count([0.5, 0.5], [1.0, 1.5, 2.0]), best_count([0.9], [])
    (0, 0)
    """
    best, most, kept = 0, 0.0, base
    for n, seconds in enumerate(rounds[: len(gains) + 1]):
        kept += gains[n - 1] if n else 0.0
        if kept / seconds > most:
            best, most = n, kept / seconds
    return best
