"""The engine's memory for keys and values: a bound in bytes, who holds how much of it, and beginnings that are kept.

What is held is counted before it is written, so the bound is never passed. Finished texts stay for requests that begin
alike, and are the first to go when somebody needs the room.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from .base import Drafter, Session
from .processors import common

WORTHWHILE = 16
"""Tokens of a common beginning below which taking it over costs more than computing it."""


class KVMemory:
    """A bound of `limit` bytes."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"kv_cache_memory_bytes: {limit} is not allowed; it must be >= 1")
        self.limit = limit
        self.used = self.peak = 0
        self._held: dict[Hashable, int] = {}

    def hold(self, who: Hashable, size: int) -> bool:
        """Let `who` hold `size` bytes, or as much as before if that is more; False, and nothing changed, if they do not
        fit."""
        more = size - self.held_by(who)
        if self.used + more > self.limit and more > 0:
            return False
        if more > 0:
            self._held[who] = size
            self.used += more
            self.peak = max(self.peak, self.used)
        return True

    def clear(self) -> None:
        self._held.clear()
        self.used = 0

    def held_by(self, who: Hashable) -> int:
        return self._held.get(who, 0)

    def release(self, who: Hashable) -> None:
        self.used -= self._held.pop(who, 0)


@dataclass(eq=False, slots=True)
class Prefix:
    """A text whose keys and values are kept. guide: its drafter's own, if that runs a model. ear: who heard it."""

    tokens: list[int]
    session: Session
    drafter: Drafter
    guide: Session | None
    ear: Hashable = None


class Prefixes:
    """Kept texts, least recently used first. close(prefix): what frees one. What one `ear` heard is kept and found
    apart from what another did."""

    def __init__(self, memory: KVMemory, close: Callable[[Prefix], None]) -> None:
        self._memory, self._close = memory, close
        self._kept: dict[Prefix, None] = {}  # in order of use
        self._alike: dict[Hashable, list[Prefix]] = {}  # by who heard them and their first tokens

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, tokens: Sequence[int], ear: Hashable = None) -> tuple[Prefix, int] | None:
        """The kept text that shares most of its beginning with `tokens`, and how much; it counts as used."""
        alike = [(common(prefix.tokens, tokens), prefix) for prefix in self._alike.get(_start(tokens, ear), ())]
        length, found = max(alike, key=lambda each: each[0], default=(0, None))
        if found is None:
            return None
        self._kept[found] = self._kept.pop(found)
        return found, length

    def room_for(self, tokens: Sequence[int], size: int, ear: Hashable = None) -> bool:
        """Whether `tokens` may be kept in `size` bytes: not if a kept text has all of them. Texts that they continue
        make room, then the least recently used."""
        if len(tokens) < WORTHWHILE:
            return False
        for prefix in list(self._alike.get(_start(tokens, ear), ())):
            length = common(prefix.tokens, tokens)
            if length == len(tokens):
                self._kept[prefix] = self._kept.pop(prefix)
                return False
            if length == len(prefix.tokens):
                self._drop(prefix)
        if size > self._memory.limit - self._memory.used + self._size:
            return False
        while self._memory.used + size > self._memory.limit:
            self.evict()
        return True

    def put(self, prefix: Prefix, size: int) -> None:
        """Keep it; `room_for` made room."""
        held = self._memory.hold(prefix, size)
        assert held
        self._kept[prefix] = None
        self._alike.setdefault(_start(prefix.tokens, prefix.ear), []).append(prefix)

    def evict(self) -> bool:
        """Let the least recently used one go; False if there is none."""
        if not self._kept:
            return False
        self._drop(next(iter(self._kept)))
        return True

    def clear(self) -> None:
        """Free all."""
        for prefix in self._kept:
            self._close(prefix)
            self._memory.release(prefix)
        self._kept.clear()
        self._alike.clear()

    @property
    def _size(self) -> int:
        return sum(self._memory.held_by(prefix) for prefix in self._kept)

    def _drop(self, prefix: Prefix) -> None:
        del self._kept[prefix]
        alike = self._alike[_start(prefix.tokens, prefix.ear)]
        alike.remove(prefix)
        if not alike:
            del self._alike[_start(prefix.tokens, prefix.ear)]
        self._close(prefix)
        self._memory.release(prefix)


def _start(tokens: Sequence[int], ear: Hashable) -> Hashable:
    return ear, tuple(tokens[:WORTHWHILE])
