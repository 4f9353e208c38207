"""How far a drafter's own estimate is trusted."""

from __future__ import annotations

from bisect import bisect_right

from ..plan import Trust

EDGES = (0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95)
"""Where one class of confidence ends and the next begins. Finer near 0 and 1, where a chain of tokens
is won or lost: five tokens of 0.97 all come true 86 times in 100, five of 0.9 only 59 times."""

BINS = len(EDGES) + 1
"""Classes of confidence for which acceptances are kept apart."""

UNSEEN = (0.6, 0.15, 0.07, 0.04)
"""Acceptance by rank among siblings, of a drafter that has not been seen yet. Later ranks count with the last."""


def bin_of(confidence: float) -> int:
    """The class of a confidence, 0 to BINS - 1; an edge belongs to the class above it.

    >>> [bin_of(confidence) for confidence in (0.01, 0.05, 0.4, 0.94, 0.99)]
    [0, 1, 3, 6, 7]
    """
    return bisect_right(EDGES, confidence)


def trusted(trust: Trust | None, level: int, rank: int, confidence: float | None) -> float:
    """How likely a token is accepted, given its parent: as observed if there is a record, else as its drafter thinks.

    >>> trusted(None, 0, 0, 0.4), trusted(None, 0, 1, None)
    (0.4, 0.15)
    """
    if trust is not None:
        return trust.share(level, rank, confidence)
    return UNSEEN[min(rank, len(UNSEEN) - 1)] if confidence is None else confidence
