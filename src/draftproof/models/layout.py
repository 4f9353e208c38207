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
from ..trees import ancestors, children, depths, is_chain
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


_FEW = 32
"""Query rows up to which a span may share a call: the kernel's own block."""

_CALL = 12_000
"""What a call costs, in query rows times slots that it could have looked at meanwhile."""


class Neighbours:
    """Short spans of requests whose caches are neighbours in the arena: written at once, and read by one call.

    members: one a request, in order of their rows. Each looks at as many slots as the longest, under its own mask.
    """

    def __init__(self, members: Sequence[Span]) -> None:
        self.members = members
        cache = members[0].layout.cache
        assert cache.arena is not None
        assert cache.row is not None
        self.arena, self.first = cache.arena, cache.row
        self.size = max(span.size for span in members)
        self.slots = max(span.slots for span in members)
        # of a tile's rows: which are ours, and where their keys go; of the call's: which row of the tile each is
        ours = [(span, row) for span in members for row in range(span.rows)]
        self.rows = torch.tensor([span.lo + row for span, row in ours])
        self._at_row = torch.tensor([span.layout.cache.row for span, _ in ours])
        self._at_slot = torch.tensor([span.start + row for span, row in ours])
        self.queries = torch.tensor([span.lo + min(row, span.rows - 1) for span in members for row in range(self.size)])
        self.results = torch.tensor([i * self.size + row for i, span in enumerate(members) for row in range(span.rows)])
        self._masks: dict[tuple, torch.Tensor] = {}
        self._places: dict[tuple, torch.Tensor] = {}

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A tile's keys and values, [heads, rows, size] each -> what the members see, [members, heads, slots, size]."""
        seen = []
        for whole, given in zip(self.arena.layer(layer), (key, value), strict=True):
            place = self._place(whole.shape)
            whole.view(-1, whole.shape[-1]).index_copy_(0, place, given[:, self.rows].reshape(-1, whole.shape[-1]))
            seen.append(whole[self.first : self.first + len(self.members), :, : self.slots])
        return seen[0], seen[1]

    def _place(self, shape: torch.Size) -> torch.Tensor:
        """Where each head of each row goes, in a buffer [rows, heads, slots, size]."""
        _, heads, slots, _ = shape
        if (heads, slots) not in self._places:
            head = torch.arange(heads)[:, None]
            self._places[heads, slots] = ((self._at_row * heads + head) * slots + self._at_slot).reshape(-1)
        return self._places[heads, slots]

    def mask(self, like: torch.Tensor, groups: int, window: int | None) -> Float[torch.Tensor, "m 1 n s"]:
        """As `Span.mask`, for every member."""
        key = groups, window, like.dtype
        if key not in self._masks:
            own = torch.tensor([[span.start + row for row in range(self.size)] for span in self.members])[:, :, None]
            slot = torch.arange(self.slots)
            seen = slot <= own
            if window is not None:
                beyond = torch.tensor([[row >= span.rows for row in range(self.size)] for span in self.members])
                seen &= (slot > own - window) | beyond[:, :, None]
            added = torch.zeros(seen.shape, dtype=like.dtype).masked_fill_(~seen, float("-inf"))
            self._masks[key] = added.repeat(1, groups, 1)[:, None]
        return self._masks[key]


def neighbours_of(spans: Sequence[Span], plan: RowPlan) -> tuple[list[Neighbours], list[Span]]:
    """The calls that the spans of a tile take: those for several, and the spans that have one for themselves."""
    last = {id(span.layout): span for span in spans}  # of a long piece; the others come before it, alone
    able = [span for span in last.values() if span.rows <= _FEW and span.layout.is_chain]
    able = [span for span in able if _is_in_arena(span)]
    if not plan.together or len(able) < 2:
        return [], list(spans)
    able.sort(key=lambda span: (id(span.layout.cache.arena), span.layout.cache.row or 0))
    shared = [run for run in _cheapest(able) if len(run) > 1]
    alone = {id(span) for span in spans} - {id(span) for run in shared for span in run}
    return [Neighbours(run) for run in shared], [span for span in spans if id(span) in alone]


def _is_in_arena(span: Span) -> bool:
    arena = span.layout.cache.arena
    return arena is not None and span.layout.cache.row is not None and span.slots <= arena.slots


def _cheapest(spans: Sequence[Span]) -> list[Sequence[Span]]:
    """Cut into runs of neighbours, so that calls and slots that are looked at in vain cost least together."""
    best: list[tuple[float, int]] = [(0, 0)]  # cost of the first i spans, and where their last run begins
    for end in range(1, len(spans) + 1):
        found, size, slots = (float("inf"), end), 0, 0
        for first in range(end - 1, -1, -1):
            if first < end - 1 and not _are_adjacent(spans[first].layout.cache, spans[first + 1].layout.cache):
                break
            size, slots = max(size, spans[first].size), max(slots, spans[first].slots)
            found = min(found, (best[first][0] + _CALL + (end - first) * size * slots, first))
        best.append(found)
    runs, end = [], len(spans)
    while end:
        first = best[end][1]
        runs.append(spans[first:end])
        end = first
    return runs[::-1]


def _are_adjacent(cache: KVCache, other: KVCache) -> bool:
    return cache.arena is other.arena and cache.row is not None and cache.row + 1 == other.row


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
