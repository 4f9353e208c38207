"""Who waits, who runs, and what of the engine's memory each holds.

A seat is a request under way: its committed text, and what of it is cached. Prompts, pending tokens and texts that lost
their cache are all the same thing, "committed tokens whose KV is missing".
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .base import Chance, Context, Controller, Drafter, Keeper, Law, Rule, Session, Target, ear_of
from .commit import Output
from .drafters import CombinedDrafter
from .memory import WORTHWHILE, KVMemory, Prefix, Prefixes
from .processors import common


@dataclass(slots=True)
class Request:
    """What `loop.decode` takes, for one of many. name: what errors call it."""

    name: str
    prompt: Sequence[int]
    output: Output
    drafter: Drafter
    controller: Controller
    rule: Rule
    law: Law
    chance: Chance

    @property
    def capacity(self) -> int:
        """Tokens it may grow to."""
        return len(self.prompt) + self.output.limit

    @property
    def notes_prompt(self) -> bool:
        """Whether rows of its prompt have yet to be seen: it cannot begin with what others computed."""
        output = self.output
        return output.prompt_note is not None and len(output.prompt_noted) < len(self.prompt) - 1


@dataclass(slots=True)
class Counts:
    """What the engine did. rows: fed to the target. reused: tokens that were not, because somebody had computed them.
    preempted: requests that gave their memory to older ones. seconds: by phase, over all rounds."""

    rounds: int = 0
    rows: int = 0
    emitted: int = 0
    reused: int = 0
    preempted: int = 0
    most_running: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Seat:
    """A request under way."""

    request: Request
    order: int  # of arrival
    history: list[int]  # committed
    state: Any  # the controller's
    session: Session = None
    guide: Session = None
    held: bool = False  # it rests: its reader does not keep up
    began: float | None = None  # when it first ran, until its first step

    def __lt__(self, other: Seat) -> bool:
        return self.order < other.order

    @property
    def drafter(self) -> Drafter:
        return self.request.drafter

    @property
    def ear(self) -> Hashable:
        """Who must have heard what it begins with."""
        return ear_of(self.drafter)

    @property
    def runs(self) -> bool:
        return self.session is not None


class Seats:
    """Requests in order of arrival; none overtakes another. What does not fit the memory waits, and never fails."""

    def __init__(self, target: Target, memory: KVMemory, most: int, reuses: bool, counts: Counts) -> None:
        self._target, self._memory, self._most, self._reuses, self._counts = target, memory, most, reuses, counts
        self._prefixes = Prefixes(memory, self._free)
        self._arrived = 0
        self._named: dict[str, Seat] = {}
        self.waiting: list[Seat] = []
        self.running: list[Seat] = []

    def __iter__(self) -> Iterator[Seat]:
        yield from self.running
        yield from self.waiting

    def named(self, name: str) -> Seat | None:
        return self._named.get(name)

    def add(self, request: Request) -> None:
        """Let it wait for its turn. A ValueError if it could never have one."""
        if self.named(request.name) is not None:
            raise ValueError(f"name: a request {request.name!r} is under way already; names must differ")
        if not len(request.prompt):
            raise ValueError("prompt: it has no tokens; it must have at least one")
        if request.output.token_ids:
            raise ValueError("request: it has run before; make a new one")
        size = self.cost(request, request.capacity)
        if size > self._memory.limit:
            raise ValueError(
                f"prompt: with its answer it may grow to {request.capacity} tokens, which take {size:,} bytes of KV "
                f"memory; kv_cache_memory_bytes is {self._memory.limit:,}: shorten it, lower max_tokens or raise it"
            )
        self._arrived += 1
        seat = Seat(request, self._arrived, list(request.prompt), request.controller.init())
        self._named[request.name] = seat
        insort(self.waiting, seat)

    def admit(self) -> Iterator[Seat]:
        """Those who may run from now on; whoever gets one opens it. Those who rest make way, and wait again."""
        while (seat := next((seat for seat in self.waiting if not seat.held), None)) is not None:
            if self._reuses:
                self._prefixes.find(seat.history, seat.ear)  # what it will begin with shall not go to make room for it
            while len(self.running) >= self._most or not self._hold(seat, len(seat.history) + 1):
                resting = [other for other in self.running if other.held]
                if not resting:
                    return
                self._keep(resting[-1])
                self._send_back(resting[-1])
            self.waiting.remove(seat)
            insort(self.running, seat)
            yield seat

    def open(self, seat: Seat) -> None:
        request = seat.request
        seat.session = self._target.open(request.capacity)
        seat.guide = request.drafter.open(self.context(seat))
        request.drafter.commit([seat.guide], [list(seat.history)])

    def context(self, seat: Seat) -> Context:
        """What the seat's drafter may know."""
        request = seat.request
        temperature = request.output.params.temperature
        return Context(request.law, self._target.vocab_size, request.capacity, seat.session, temperature)

    def missing(self, seat: Seat) -> int:
        """Committed tokens that are not cached: 1 while it decodes."""
        return len(seat.history) - self._target.cached(seat.session)

    def grow(self, seat: Seat, tokens: int) -> bool:
        """Memory for `tokens`. Kept texts make way for it, and so do younger requests: they wait again, and compute
        anew what they lose. False if the seat is itself the one to wait."""
        while not self._hold(seat, tokens):
            if len(self.running) == 1:
                raise ValueError(f"draft: it leads to {tokens} tokens, for which the KV memory is too small")
            victim = max(self.running, key=lambda other: (other.held, other.order))
            self._send_back(victim)
            if victim is seat:
                return False
        return True

    def leave(self, seat: Seat, *, keep: bool) -> None:
        """It ends. keep: what it computed stays for others that begin alike, if there is room."""
        del self._named[seat.request.name]
        if seat in self.waiting:
            self.waiting.remove(seat)
            return
        if keep:
            self._keep(seat)
        self._put_down(seat)

    def clear(self) -> None:
        """Forget every request and every kept text, wherever an interrupt has left them."""
        for seat in self.running:
            self._free(seat)
        self.waiting.clear()
        self.running.clear()
        self._named.clear()
        self._prefixes.clear()
        self._memory.clear()

    def reuse(self, seat: Seat) -> None:
        """Let a seat that has nothing cached begin with what a kept text or another seat has computed."""
        if not self._reuses or len(seat.history) <= WORTHWHILE or self._target.cached(seat.session):
            return
        if seat.request.notes_prompt:
            return
        donor: Prefix | Seat | None = None
        donor, length = self._prefixes.find(seat.history, seat.ear) or (None, 0)
        for other in self.running:
            cached = self._target.cached(other.session) if other.runs and other.ear == seat.ear else 0
            shared = common(other.history[:cached], seat.history) if cached > length else 0
            if shared > length:
                donor, length = other, shared
        length = min(length, len(seat.history) - 1)
        if donor is None or length < WORTHWHILE:
            return
        self._target.adopt(seat.session, donor.session, length)
        self._counts.reused += length
        keeper = keeper_of(seat.drafter)
        if keeper is not None and keepers_in(donor.drafter) == keepers_in(seat.drafter):
            keeper.adopt(seat.guide, donor.guide, length)

    def cost(self, request: Request, tokens: int) -> int:
        """Bytes, the draft model's cache included."""
        keeper = keeper_of(request.drafter)
        return self._target.kv_cost(tokens) + (0 if keeper is None else keeper.kv_cost(tokens))

    def _hold(self, seat: Seat, tokens: int) -> bool:
        size = self.cost(seat.request, tokens)
        while not self._memory.hold(seat, size):
            if not self._prefixes.evict():
                return False
        return True

    def _keep(self, seat: Seat) -> None:
        """A copy of what it computed, for itself or others, if there is room."""
        if not (self._reuses and seat.runs):
            return
        cached = self._target.cached(seat.session)
        tokens, size = seat.history[:cached], self.cost(seat.request, cached)
        if self._prefixes.room_for(tokens, size, seat.ear):
            keeper = keeper_of(seat.drafter)
            guide = None if keeper is None else keeper.keep(seat.guide)
            self._prefixes.put(Prefix(tokens, self._target.keep(seat.session), seat.drafter, guide, seat.ear), size)

    def _send_back(self, seat: Seat) -> None:
        self._put_down(seat)
        insort(self.waiting, seat)
        self._counts.preempted += 1

    def _put_down(self, seat: Seat) -> None:
        """Free what it holds."""
        self.running.remove(seat)
        self._free(seat)
        self._memory.release(seat)
        seat.session = seat.guide = None

    def _free(self, owner: Seat | Prefix) -> None:
        if owner.session is not None:
            self._target.close(owner.session)
        keeper = keeper_of(owner.drafter)
        if keeper is not None and owner.guide is not None:
            keeper.close(owner.guide)


def keepers_in(drafter: Drafter) -> list[Any]:
    """Whoever keeps a cache, in it or itself: where they are the same, a session may begin with the other's."""
    return drafter.keepers if isinstance(drafter, CombinedDrafter) else [drafter]


def keeper_of(drafter: Drafter) -> Keeper | None:
    """The drafter, if it keeps a cache."""
    return drafter if isinstance(drafter, Keeper) else None
