"""Keys and values of many requests at one stride, so that one attention call can read those of neighbours.

The arena is address space: every row has room for the longest text, and memory is only taken where something was
written, a page at a time. A row that is given back returns its pages at once. Linux alone lets a process do both; on
other systems, and for models that are not on a CPU, requests have buffers of their own (cache.py).
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from heapq import heappop, heappush
from math import prod

import torch

from ..plan import MOST_NODES

_NO_RESERVE = 0x4000  # MAP_NORESERVE, which Python's module does not name before 3.13
PAGE = mmap.PAGESIZE
_SLOTS = 4096  # rows of whole pages, whatever a slot's size

Shape = tuple[int, int, int]
"""Of a layer: heads, size of a key, size of a value."""


class KVArena:
    """Room for `rows` requests of up to `slots` tokens. None of it is memory yet. longest: that many tokens; slots: a
    row's, enough for the largest draft beside them."""

    def __init__(self, rows: int, slots: int, shapes: Sequence[Shape], dtype: torch.dtype) -> None:
        self.longest = slots
        self.slots = -(-(slots + MOST_NODES) // _SLOTS) * _SLOTS  # a tree has more nodes than levels
        sizes = [(heads, self.slots, size) for heads, *both in shapes for size in both]
        row_bytes = [prod(size) * dtype.itemsize for size in sizes]
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._memory = mmap.mmap(-1, rows * sum(row_bytes), flags=flags)
        self._memory.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page a head would be taken for a few tokens
        self._buffers, self._places, at = [], [], 0
        for size, each in zip(sizes, row_bytes, strict=True):
            whole = torch.frombuffer(self._memory, dtype=dtype, count=rows * prod(size), offset=at)
            self._buffers.append(whole.view(rows, *size))
            self._places.append((at, each))
            at += rows * each
        self._free = list(range(rows))

    @staticmethod
    def works(device: torch.device) -> bool:
        return sys.platform == "linux" and device.type == "cpu"

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all rows, [rows, heads, slots, size]."""
        return self._buffers[2 * index], self._buffers[2 * index + 1]

    def of_row(self, row: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """A request's keys and values, layer by layer."""
        return [(keys[row], values[row]) for keys, values in map(self.layer, range(len(self._buffers) // 2))]

    def take(self) -> int | None:
        """The lowest free row, all zeros: neighbours are what one call reads."""
        return heappop(self._free) if self._free else None

    def give_back(self, row: int) -> None:
        for at, each in self._places:
            self._memory.madvise(mmap.MADV_DONTNEED, at + row * each, each)
        heappush(self._free, row)

    def resident(self) -> int:
        """Bytes of memory that it takes now, as the system counts them."""
        start, found = torch.frombuffer(self._memory, dtype=torch.uint8, count=1).data_ptr(), False
        with open("/proc/self/smaps", encoding="ascii") as lines:
            for line in lines:
                name, *rest = line.split()
                if not name.endswith(":"):
                    first, last = (int(address, 16) for address in name.split("-"))
                    found = first <= start < last
                elif found and name == "Rss:":
                    return int(rest[0]) << 10
        return 0


def arena(rows: int, slots: int, shapes: Sequence[Shape], dtype: torch.dtype, device: torch.device) -> KVArena | None:
    """An arena where the system has them, else None."""
    if not KVArena.works(device):
        return None
    try:
        return KVArena(rows, slots, shapes, dtype)
    except (OSError, ValueError, OverflowError):  # address space is limited here
        return None
