"""How much to draft: what a controller decides, and what drafters are told of costs and acceptances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

MOST_NODES = 1024
"""Most nodes of a draft."""


@runtime_checkable
class Trust(Protocol):
    """How often one drafter's nodes came true, each given that its parent did."""

    def share(self, level: int, rank: int, confidence: float | None) -> float:
        """Of nodes with `level` nodes above them and `rank` earlier siblings, of that confidence (None: of any)."""
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What drafting costs and how often it came true: drafters that see them draft as much as is expected to pay.

    rounds[n]: seconds of a round that scores n nodes, without drafting them. base: tokens that the round yields
    whatever is drafted: one, and those of the requests that share it. branch: seconds that each leaf of a tree but one
    adds. levels: seconds of drafting one more level, by origin. trust: by origin.
    """

    rounds: tuple[float, ...]
    base: float = 1.0
    branch: float = 0.0
    levels: Mapping[str, float] = field(default_factory=dict)
    trust: Mapping[str, Trust] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to draft this round. Depth 0 is plain decoding.

    A tree of at most `depth` levels, in which a node of level i has at most widths[i] children of one drafter (one
    beyond them), and of at most `max_nodes` nodes (None: as many as that makes). origins: who drafts, of several
    drafters (None: all). terms: see there; without them as much is drafted as the plan allows. why: a controller's
    reason, for people.
    """

    depth: int = 0
    widths: tuple[int, ...] = ()
    max_nodes: int | None = None
    origins: frozenset[str] | None = None
    terms: Terms | None = None
    why: str = ""

    def width(self, level: int) -> int:
        """Most children of a node that has `level` nodes above it; the root has none."""
        return self.widths[level] if level < len(self.widths) else 1

    @property
    def nodes(self) -> int:
        """Most nodes of the tree."""
        if self.max_nodes is not None:
            return self.max_nodes
        total, row = 0, 1
        for level in range(self.depth):
            row *= self.width(level)
            total += row
            if total >= MOST_NODES:
                return MOST_NODES
        return total
