"""Where the rows of a forward stand: position ids, cache slots, and what each row may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int

from ..base import Feed
from ..trees import ancestors, depths, is_chain
from .bits import RowPlan
from .cache import KVCache


class Layout:
    """The rows of one feed. Slots below `base` are the committed text's; node j's is base + j."""

    def __init__(self, feed: Feed) -> None:
        self.cache: KVCache = feed.session.cache
        self.start = self.cache.length
        self.base = self.start + feed.committed
        self.tokens = feed.tokens
        self.wanted = sorted(set(feed.wanted))
        self.is_chain = is_chain(feed.parents)
        end = self.start + len(feed.tokens)
        self.positions: list[int] = (
            list(range(self.start, end))
            if self.is_chain
            else [*range(self.start, self.base), *(self.base - 1 + depth for depth in depths(feed.parents))]
        )
        self.longest = max(self.positions, default=-1) + 1
        self._parents = feed.parents

    def visible(self, first: int, last: int, rows: int, slots: int, window: int | None) -> torch.Tensor:
        """bool [rows, slots]: what feed rows first..last − 1 see; the rows beyond see slot 0 at least."""
        slot = torch.arange(slots)
        own = torch.arange(self.start + first, self.start + first + rows)[:, None]
        if self.is_chain:
            seen = slot <= own
            return seen if window is None else seen & ((slot > own - window) | (own >= self.start + last))
        return self._visible_in_tree(first, last, own, slot, window)

    def _visible_in_tree(
        self, first: int, last: int, own: torch.Tensor, slot: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        seen = slot <= own.clamp(max=self.base - 1)
        nodes = np.arange(max(first, self.base - self.start), last) - (self.base - self.start)
        if len(nodes):
            at = int(nodes[0]) + self.base - self.start - first
            known = torch.from_numpy(ancestors(self._parents)[nodes, : nodes[-1] + 1])
            seen[at : at + len(nodes), self.base : self.base + known.shape[1]] = known
        if window is not None:
            positions = torch.arange(len(slot))
            positions[self.start : self.start + last] = torch.tensor(self.positions[:last])
            mine = torch.tensor(self.positions[first:last])[:, None]
            seen[: last - first] &= positions > mine - window
        return seen


@dataclass(slots=True)
class Span:
    """Feed rows first..last − 1 at rows lo.. of a tile, padded to `size` query rows, against `slots` keys.

    Its masks are made once a forward and shared by the layers that are alike.
    """

    layout: Layout
    first: int
    last: int
    lo: int
    size: int
    slots: int
    _masks: dict[tuple, torch.Tensor] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.last - self.first

    @property
    def start(self) -> int:
        """The first row's slot."""
        return self.layout.start + self.first

    def mask(self, like: torch.Tensor, groups: int, window: int | None) -> Float[torch.Tensor, "1 1 n s"]:
        """[1, 1, groups·size, slots], 0 or −inf in the dtype of `like`: the heads of a group repeat the rows."""
        key = groups, window, like.dtype
        if key not in self._masks:
            seen = self.layout.visible(self.first, self.last, self.size, self.slots, window)
            added = torch.zeros(seen.shape, dtype=like.dtype).masked_fill_(~seen, float("-inf"))
            self._masks[key] = added.repeat(groups, 1)[None, None].to(like.device)
        return self._masks[key]


def spans_of(layouts: Sequence[Layout], rows: Sequence[tuple[int, int, int]], plan: RowPlan) -> list[Span]:
    """A tile's (feed, first, last) as spans, in order. A long chunk makes several: the earlier ones read fewer keys."""
    spans, lo = [], 0
    for feed, start, end in rows:
        for first in range(start, end, plan.query_most):
            last = min(end, first + plan.query_most)
            count = last - first
            slots = -(-(layouts[feed].start + last) // plan.kv_step) * plan.kv_step
            spans.append(Span(layouts[feed], first, last, lo, plan.padded_queries(count), slots))
            lo += count
    return spans


def tiles_of(lengths: Sequence[int], most: int) -> list[list[tuple[int, int, int]]]:
    """All rows of all feeds in order, cut into tiles of at most `most` rows: (feed, first, last) each.

    >>> tiles_of([3, 0, 4], 5)
    [[(0, 0, 3), (2, 0, 2)], [(2, 2, 4)]]
    """
    tiles: list[list[tuple[int, int, int]]] = []
    room = 0
    for feed, length in enumerate(lengths):
        first = 0
        while first < length:
            if not room:
                tiles.append([])
                room = most
            last = min(length, first + room)
            tiles[-1].append((feed, first, last))
            room -= last - first
            first = last
    return tiles


def positions_of(
    layouts: Sequence[Layout], rows: Sequence[tuple[int, int, int]], padded: int
) -> tuple[Int[torch.Tensor, "1 r"], Int[torch.Tensor, "1 r"]]:
    """Token and position ids of a tile, [1, padded]; the spare rows are token 0 at position 0."""
    tokens, positions = [], []
    for feed, first, last in rows:
        tokens += layouts[feed].tokens[first:last]
        positions += layouts[feed].positions[first:last]
    spare = [0] * (padded - len(tokens))
    return torch.tensor([tokens + spare]), torch.tensor([positions + spare])
