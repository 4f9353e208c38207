"""What an EAGLE head keeps of one request: fused states, keys and values, counted from the first token it heard of."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..base import Feed
from .features import Heard

STEP = 256  # tokens by which a session's memory grows


@dataclass(slots=True, eq=False)
class EagleSession:
    """Of one request. heard: what the target's session says, None for a copy that follows nobody. start: the first
    token whose states were heard; everything is counted from it.

    fused: [room, h], of which `told` are there. keys, values: [kv_heads, room, d], of which `length` are of entries
    that stay; behind them lie those of the last feed. hidden: what the last feed's rows gave, [rows, h].
    """

    heard: Heard | None
    fused: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    start: int = 0
    told: int = 0
    length: int = 0
    hidden: torch.Tensor | None = None
    feed: Feed | None = None

    @property
    def room(self) -> int:
        return len(self.fused)

    def grow(self, room: int) -> None:
        if room <= self.room:
            return
        room = max(-(-room // STEP) * STEP, self.room * 3 // 2)
        for name, dim in (("fused", 0), ("keys", 1), ("values", 1)):
            old = getattr(self, name)
            size = list(old.shape)
            size[dim] = room
            new = old.new_zeros(size)
            new.narrow(dim, 0, old.shape[dim]).copy_(old)
            setattr(self, name, new)

    def add(self, fused: torch.Tensor) -> None:
        self.grow(self.told + len(fused))
        self.fused[self.told : self.told + len(fused)] = fused
        self.told += len(fused)

    def begin_with(self, donor: EagleSession, told: int, length: int) -> None:
        """The donor's first states and entries, so many."""
        self.start = donor.start
        self.add(donor.fused[:told])
        self.keys[:, :length] = donor.keys[:, :length]
        self.values[:, :length] = donor.values[:, :length]
        self.length = length


def heard_by(session: EagleSession) -> torch.Tensor | None:
    """New states, [n, f]; what is kept is cut to where they begin."""
    if session.heard is None:
        return None
    start, states = session.heard.take()
    known = session.start + session.told
    if session.start < start < known:  # the text was cut there; the last entry left was made of the token behind it
        session.told = start - session.start
        session.length = min(session.length, session.told - 1)
    elif start != known:  # what lies between was never heard: begin here
        session.start, session.told, session.length = start, 0, 0
    return states
