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
    able.sort(key=lambda span: span.layout.cache.row or 0)
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
            if first < end - 1 and spans[first].layout.cache.row != (spans[first + 1].layout.cache.row or 0) - 1:
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
