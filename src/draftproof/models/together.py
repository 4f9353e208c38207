"""Several spans of rows in one call of attention: of requests whose caches are neighbours, or of a tree's branches.

A call gives a row the same bits in company as alone, where the row plan has measured it (bits.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float

from .bits import RowPlan
from .cache import KVCache
from .layout import Span

_FEW = 32
"""Query rows up to which a span may share a call: the kernel's own block."""

_MOST = 16  # members of a call of branches; the row plan has measured so many

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
        self.rows, self.queries, self.results = _places_of(members, self.size)
        ours = [(span, row) for span in members for row in range(span.rows)]
        self._at_row = torch.tensor([span.layout.cache.row for span, _ in ours])
        self._at_slot = torch.tensor([span.start + row for span, row in ours])
        self._masks: dict[tuple, torch.Tensor] = {}
        self._places: dict[tuple, torch.Tensor] = {}

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A tile's keys and values, [heads, rows, size] each -> what the members see, [members, heads, slots, size]."""
        seen = []
        for whole, given in zip(self.arena.layer(layer), (key, value), strict=True):
            place = _place(whole.shape, self._at_row, self._at_slot, self._places)
            whole.view(-1, whole.shape[-1]).index_copy_(0, place, given[:, self.rows].reshape(-1, whole.shape[-1]))
            seen.append(whole[self.first : self.first + len(self.members), :, : self.slots])
        return seen[0], seen[1]

    def mask(self, like: torch.Tensor, groups: int, window: int | None) -> Float[torch.Tensor, "m 1 n s"]:
        """As `Span.mask`, for every member."""
        key = groups, window, like.dtype
        if key not in self._masks:
            self._masks[key] = _mask_of(self.members, self.size, self.slots, like, groups, window)
        return self._masks[key]


def _place(shape: torch.Size, at_row: torch.Tensor, at_slot: torch.Tensor, known: dict) -> torch.Tensor:
    """Where each head of each row goes, in a buffer [rows, heads, slots, size]."""
    _, heads, slots, _ = shape
    if (heads, slots) not in known:
        head = torch.arange(heads)[:, None]
        known[heads, slots] = ((at_row * heads + head) * slots + at_slot).reshape(-1)
    return known[heads, slots]


def _places_of(members: Sequence[Span], size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of a tile's rows, which are theirs; of the call's, `size` a member, which row of the tile each is; and which of
    the call's are results."""
    rows = [span.lo + row for span in members for row in range(span.rows)]
    queries = [span.lo + min(row, span.rows - 1) for span in members for row in range(size)]
    results = [i * size + row for i, span in enumerate(members) for row in range(span.rows)]
    return torch.tensor(rows), torch.tensor(queries), torch.tensor(results)


def _mask_of(
    members: Sequence[Span], size: int, slots: int, like: torch.Tensor, groups: int, window: int | None
) -> Float[torch.Tensor, "m 1 n s"]:
    own = torch.tensor([[span.start + row for row in range(size)] for span in members])[:, :, None]
    slot = torch.arange(slots)
    seen = slot <= own
    if window is not None:
        beyond = torch.tensor([[row >= span.rows for row in range(size)] for span in members])
        seen &= (slot > own - window) | beyond[:, :, None]
    added = torch.zeros(seen.shape, dtype=like.dtype).masked_fill_(~seen, float("-inf"))
    return added.repeat(1, groups, 1)[:, None].to(like.device)


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


class Branches:
    """The branches of one tree, each over a copy of what it sees: the text, and its own path where text would be.

    members: rows that stand one behind the other, in order; each but the first goes on from a row of an earlier one.
    The call is that of `Neighbours`, with copies for caches. alone: its rows are the first of their tile, in order.
    """

    def __init__(self, members: Sequence[Span]) -> None:
        self.members = members
        layout = members[0].layout
        self._cache, self._start, self._committed = layout.cache, layout.start, layout.committed
        self._first = members[0].lo - members[0].first  # where the feed's first row is in the tile
        self.size = max(span.size for span in members)
        self.slots = max(span.slots for span in members)
        self.rows, self.queries, self.results = _places_of(members, self.size)
        self.alone = len(self.rows) == layout.rows and self._first == 0
        paths = [layout.leading_to(span.first) + list(range(span.first, span.last)) for span in members]
        ours = [(i, row) for i, path in enumerate(paths) for row in path if row >= self._committed]
        self._row = torch.tensor([self._first + row for _, row in ours])
        self._at_member = torch.tensor([i for i, _ in ours])
        self._at_slot = torch.tensor([layout.slot(row) for _, row in ours])
        self._masks: dict[tuple, torch.Tensor] = {}
        self._places: dict[tuple, torch.Tensor] = {}

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A tile's keys and values, [heads, rows, size] each -> what the members see, [members, heads, slots, size]."""
        own = slice(self._first, self._first + self._committed)
        seen = []
        for whole, given in zip(
            self._cache.write(layer, self._start, key[:, own], value[:, own], self.slots), (key, value), strict=True
        ):
            copies = whole[:, : self.slots].expand(len(self.members), -1, -1, -1).contiguous()
            place = _place(copies.shape, self._at_member, self._at_slot, self._places)
            wide = copies.shape[-1]
            copies.view(-1, wide).index_copy_(0, place, given.index_select(1, self._row).reshape(-1, wide))
            seen.append(copies)
        return seen[0], seen[1]

    def in_tile(self, rows: int) -> torch.Tensor:
        """Which of the call's rows each row of a tile of theirs is; spare rows are the first."""
        if len(self.results) < rows:
            self.results = torch.cat([self.results, self.results.new_zeros(rows - len(self.results))])
        return self.results

    def mask(self, like: torch.Tensor, groups: int, window: int | None) -> Float[torch.Tensor, "m 1 n s"]:
        """As `Span.mask`, for every member."""
        key = groups, window, like.dtype
        if key not in self._masks:
            self._masks[key] = _mask_of(self.members, self.size, self.slots, like, groups, window)
        return self._masks[key]


def branches_of(spans: Sequence[Span], plan: RowPlan) -> tuple[list[Branches], list[Span]]:
    """Trees whose branches may share calls, and the spans that have one for themselves."""
    trees: dict[int, list[Span]] = {}
    for span in spans:
        if span.layout.branched:
            trees.setdefault(id(span.layout), []).append(span)
    if not plan.together:
        return [], list(spans)
    shared = []
    for members in trees.values():
        whole = sum(span.rows for span in members) == members[0].layout.rows
        if whole and len(members) > 1 and all(span.rows <= _FEW for span in members):
            shared += [Branches(members[at : at + _MOST]) for at in range(0, len(members), _MOST)]
    taken = {id(span) for some in shared for span in some.members}
    return shared, [span for span in spans if id(span) not in taken]
