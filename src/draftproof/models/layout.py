"""Where the rows of a forward stand: position ids, cache slots, and what each row may see.

A tree runs in one of two ways. Under one mask, node j in slot base + j: its ancestors stand apart, and attention, which
adds up keys by the place they have, may give it other bits than its path has when it is decoded as text. Or, where a
plan promises bits, in branches: rows run depth first, and each branch is written where text would be, over the one
before it. So every node attends as if its path were text, at the cost of a call a leaf. In the end all nodes are put
into slots base + j, where a commit finds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int

from ..base import ROOT, Feed
from ..trees import ancestors, children, depths, is_chain, path_to
from .bits import RowPlan
from .cache import KVCache, Pair
from .feeds import rows_wanted


class Layout:
    """The rows of one feed, in the order in which they run. Slots below `base` are the committed text's; node j's is
    base + j, in the end.

    branched: whether its tree runs in branches. known: so many of its rows have run before.
    """

    def __init__(self, feed: Feed, exact: bool = False) -> None:
        self.cache: KVCache = feed.session.cache
        self.start = self.cache.length
        self.base = self.start + feed.committed
        self.known, self.rows = feed.known, len(feed.tokens)
        self.is_chain = is_chain(feed.parents)
        self.branched = exact and not self.is_chain and not feed.known
        order = _depth_first(feed.parents) if self.branched else range(len(feed.parents))
        self._rank = {node: rank for rank, node in enumerate(order)}  # among the nodes
        self.tokens = (*feed.tokens[: feed.committed], *(feed.tokens[feed.committed + node] for node in order))
        levels = depths(feed.parents)
        self.positions = [*range(self.start, self.base), *(self.base - 1 + levels[node] for node in order)]
        self.longest = max(self.positions, default=-1) + 1
        self._wanted = sorted(set(rows_wanted(feed)))
        self._parents = feed.parents
        self._held: dict[int, list[Pair]] = {}

    @property
    def committed(self) -> int:
        return self.base - self.start

    def wanted(self, first: int, last: int) -> tuple[list[int], list[int]]:
        """Of the rows that run as first..last − 1 those that are wanted: their places in the feed, rising, and when
        they run."""
        runs = [(row, self._runs_as(row)) for row in self._wanted]
        here = [(row, at) for row, at in runs if first <= at < last]
        return [row for row, _ in here], [at for _, at in here]

    def _runs_as(self, row: int) -> int:
        return row if row < self.committed else self.committed + self._rank[row - self.committed]

    def leading_to(self, row: int) -> list[int]:
        """Of a tree in branches, the rows that the row which runs as number `row` goes on from: its path, as they run,
        without the committed ones."""
        order = {rank: node for node, rank in self._rank.items()}
        if row < self.committed:
            return []
        path = path_to(self._parents, self._parents[order[row - self.committed]])
        return [self.committed + self._rank[node] for node in path]

    def in_feed_order(self, states: torch.Tensor) -> torch.Tensor:
        """What the rows from `known` on gave, [n, ..], one after the other as they ran."""
        if not self.branched:
            return states
        return states[torch.tensor([self._runs_as(row) for row in range(self.rows)], device=states.device)]

    def slot(self, row: int) -> int:
        """Where the row that runs as number `row` is written when it runs."""
        return self.positions[row] if self.branched else self.start + row

    def runs(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Rows first..last − 1, cut where the next one does not stand behind the one before it."""
        for row in range(first + 1, last) if self.branched else ():
            if self.slot(row) != self.slot(row - 1) + 1:
                yield first, row
                first = row
        if first < last:
            yield first, last

    def settle(self, layer: int, first: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keys and values of rows first.., [heads, n, size], have been seen by all that see them in this forward. When
        all are there, put the nodes into slots of their own."""
        skip = max(self.committed - first, 0)
        held = self._held.setdefault(layer, [])
        held.append((keys[:, skip:], values[:, skip:]))
        if first + keys.shape[1] < self.rows:  # the tree goes on in the next tile
            return
        nodes = [torch.cat(parts, 1) if len(parts) > 1 else parts[0] for parts in zip(*held, strict=True)]
        if list(self._rank) != list(self._rank.values()):
            order = torch.tensor([self._rank[node] for node in range(len(self._rank))], device=keys.device)
            nodes = [each.index_select(1, order) for each in nodes]
        self.cache.write(layer, self.base, nodes[0], nodes[1])
        del self._held[layer]

    def visible(self, first: int, last: int, rows: int, slots: int, window: int | None) -> torch.Tensor:
        """bool [rows, slots]: what the rows that run as first..last − 1 see; the rows beyond see slot 0 at least."""
        slot = torch.arange(slots)
        start = self.slot(first)
        own = torch.arange(start, start + rows)[:, None]
        if self.is_chain or self.branched:
            seen = slot <= own
            return seen if window is None else seen & ((slot > own - window) | (own >= start + last - first))
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


def _depth_first(parents: Sequence[int]) -> list[int]:
    """Each node before its children, and all that is below it before its next sibling.

    >>> _depth_first([-1, -1, 0, 0, 2])
    [0, 2, 4, 3, 1]
    """
    order, waiting = [], children(parents, ROOT)[::-1]
    while waiting:
        order.append(waiting.pop())
        waiting += children(parents, order[-1])[::-1]
    return order


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
        return self.layout.slot(self.first)

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
    for feed, *piece in rows:
        for start, end in layouts[feed].runs(*piece):
            for first in range(start, end, plan.query_most):
                last = min(end, first + plan.query_most)
                count = last - first
                slots = -(-(layouts[feed].slot(first) + count) // plan.kv_step) * plan.kv_step
                spans.append(Span(layouts[feed], first, last, lo, plan.padded_queries(count), slots))
                lo += count
    return spans


@dataclass(frozen=True, slots=True)
class Bough:
    """What a tile holds of a feed that runs in branches: its rows first.. are the tile's lo..hi − 1."""

    layout: Layout
    first: int
    lo: int
    hi: int

    def settle(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """key, value: the tile's, [heads, rows, size]."""
        self.layout.settle(layer, self.first, key[:, self.lo : self.hi], value[:, self.lo : self.hi])


def boughs_of(layouts: Sequence[Layout], rows: Sequence[tuple[int, int, int]]) -> list[Bough]:
    boughs, lo = [], 0
    for feed, first, last in rows:
        if layouts[feed].branched:
            boughs.append(Bough(layouts[feed], first, lo, lo + last - first))
        lo += last - first
    return boughs


def tiles_of(pieces: Sequence[tuple[int, int]], most: int) -> list[list[tuple[int, int, int]]]:
    """The rows first..last − 1 of each feed, in order, cut into tiles of at most `most` rows: (feed, first, last) each.

    >>> tiles_of([(0, 3), (2, 2), (1, 5)], 5)
    [[(0, 0, 3), (2, 1, 3)], [(2, 3, 5)]]
    """
    tiles: list[list[tuple[int, int, int]]] = []
    room = 0
    for feed, (first, end) in enumerate(pieces):
        while first < end:
            if not room:
                tiles.append([])
                room = most
            last = min(end, first + room)
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
