"""Rows of an EAGLE head's feeds: in which turns they can run, what each is made of, and what it sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)

from ..base import ROOT, Feed
from ..trees import ancestors, depths

_MANY = 512  # rows of a text that are read at once


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows first..last − 1 of a feed, all committed or all nodes whose parents have run."""

    feed: Feed
    first: int
    last: int
    positions: tuple[int, ...]  # of their entries in the text

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.feed.tokens[self.first : self.last]

    def below(self) -> torch.Tensor:
        """What they are made of besides their tokens, [n, h]."""
        session, committed = self.feed.session, self.feed.committed
        if self.first < committed:
            return session.fused[session.length + self.first : session.length + self.last]
        parents = self.feed.parents[self.first - committed : self.last - committed]
        return session.hidden[[committed - 1 if node == ROOT else committed + node for node in parents]]

    def mask(self) -> torch.Tensor | None:
        """bool [n, slots], what each sees of the slots up to its last row's; None: everything."""
        base, committed, count = self.feed.session.length, self.feed.committed, self.last - self.first
        if self.first < committed:
            own = torch.arange(base + self.first, base + self.last)[:, None]
            return None if count == 1 else torch.arange(base + self.last) <= own
        nodes = slice(self.first - committed, self.last - committed)
        known = ancestors(self.feed.parents[: nodes.stop])[nodes]
        if known.all():
            return None
        seen = torch.ones(count, base + self.last, dtype=torch.bool)
        seen[:, base + committed :] = torch.from_numpy(known)
        return seen


def turns_of(feeds: Sequence[Feed]) -> Iterator[list[Rows]]:
    """The rows that are new, in the turns in which they can run: committed ones, then nodes level by level."""
    turns: dict[int, list[Rows]] = {}
    for feed in feeds:
        session, committed = feed.session, feed.committed
        at = session.start + session.length
        for first in range(feed.known, committed, _MANY):
            last = min(first + _MANY, committed)
            place = (first - feed.known) // _MANY - committed // _MANY - 1  # before any node
            turns.setdefault(place, []).append(Rows(feed, first, last, tuple(range(at + first, at + last))))
        levels = depths(feed.parents)
        first = max(feed.known, committed)
        for row in range(first + 1, len(feed.tokens) + 1):
            if row == len(feed.tokens) or levels[row - committed] != levels[first - committed]:
                if first < row:
                    level = levels[first - committed]
                    place = (at + committed - 1 + level,) * (row - first)
                    turns.setdefault(level, []).append(Rows(feed, first, row, place))
                first = row
    yield from (turns[turn] for turn in sorted(turns))


def looked_up(rows: Rows, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """query [n, heads, d], key and value [n, kv_heads, d], which are written first -> [n, heads · d]."""
    session = rows.feed.session
    first, end = session.length + rows.first, session.length + rows.last
    session.keys[:, first:end], session.values[:, first:end] = key.transpose(0, 1), value.transpose(0, 1)
    (count, heads, size), kv_heads = query.shape, key.shape[1]
    q = query.transpose(0, 1).reshape(1, kv_heads, heads // kv_heads * count, size)  # a group's heads as rows
    mask = rows.mask()
    seen = None if mask is None else mask.repeat(heads // kv_heads, 1)[None, None].to(q.device)
    o = F.scaled_dot_product_attention(q, session.keys[None, :, :end], session.values[None, :, :end], attn_mask=seen)
    return o.view(heads, count, size).transpose(0, 1).reshape(count, heads * size)
