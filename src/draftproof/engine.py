"""Many requests at once: the flow of `loop.decode`, a round for everybody, and for each the same text as alone.

Requests join and leave between rounds. A round is one packed forward: every request that decodes, with what was drafted
for it, then pieces of prompts in order of arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from .base import Draft, Feed, Judge, Load, Round, Scores, Step, Target, Verdict, unread
from .commit import commit
from .loop import Laps, LazyRows, note_prompt, wanted_of_prompt
from .memory import KVMemory
from .plan import Plan
from .sampling import check_integer
from .seats import Counts, Request, Seat, Seats, keeper_of

T = TypeVar("T")


class Event(NamedTuple):
    """What a round meant for a request: a step, or the error that ended it."""

    request: Request
    step: Step | None
    error: Exception | None = None

    @property
    def ended(self) -> bool:
        return self.error is not None or self.request.output.finish_reason is not None


@dataclass(slots=True)
class _Turn:
    """A seat's part of a round. plan: None for a piece of a text that will not be all cached after it."""

    seat: Seat
    tokens: tuple[int, ...]  # committed ones whose KV is missing
    plan: Plan | None
    at: int  # where in the text they begin
    draft: Draft = field(default_factory=lambda: Draft(0))

    @property
    def rows(self) -> int:
        return len(self.tokens) + len(self.draft)

    @property
    def feed(self) -> Feed:
        if self.plan is None:
            request = self.seat.request
            want = wanted_of_prompt(request.output, request.prompt, self.at, len(self.tokens))
            return Feed(self.seat.session, self.tokens, want=want)
        return Feed(self.seat.session, (*self.tokens, *self.draft.tokens), self.draft.parents)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What a `Step` tells of the round that is the same for all who shared it."""

    rows: int
    prompt_rows: int
    drafting: dict[str, int]


def _shared(turns: Sequence[_Turn]) -> _Shared:
    pieces = sum(len(turn.tokens) - (turn.plan is not None) for turn in turns)
    origins = Counter(origin for turn in turns for origin in set(turn.draft.origin))
    return _Shared(sum(turn.rows for turn in turns), pieces, dict(origins))


def judge_each(rounds: Sequence[Round]) -> list[Verdict | Exception]:
    """One after the other, each by its own rule."""
    found: list[Verdict | Exception] = []
    for rule, draft, rows, chance in rounds:
        try:
            found.append(rule(draft, rows, chance))
        except Exception as error:
            found.append(error)
    return found


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """vLLM's names. max_num_seqs: most requests that run at once. max_num_batched_tokens: most rows of a round; prompts
    are cut to fit. enable_prefix_caching: texts that begin alike are computed once. check: after every round compare
    every cache with a replay of what was committed (slow)."""

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 256
    enable_prefix_caching: bool = True
    check: bool = False

    def __post_init__(self) -> None:
        check_integer("max_num_seqs", self.max_num_seqs, lambda n: 1 <= n <= 1024, "in 1 .. 1024")
        check_integer("max_num_batched_tokens", self.max_num_batched_tokens, lambda n: n >= 1, ">= 1")
        for name in ("enable_prefix_caching", "check"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ValueError(f"{name}: {value!r} is not allowed; it must be True or False")


class Engine:
    """Runs requests. Not for two threads at once.

    memory: the bound on keys and values; requests that do not fit wait. judge: answers a round's rules.
    """

    def __init__(
        self,
        target: Target,
        memory: KVMemory,
        config: EngineConfig | None = None,
        *,
        judge: Judge = judge_each,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.counts, self.memory, self.config = Counts(), memory, config or EngineConfig()
        self._target, self._judge, self._clock = target, judge, clock
        reuses = self.config.enable_prefix_caching
        self._seats = Seats(target, memory, self.config.max_num_seqs, reuses, self.counts)
        self._events: list[Event] = []

    def add(self, request: Request) -> None:
        """Let a request wait for its turn. A ValueError if it could never have one."""
        self._seats.add(request)

    def cancel(self, name: str) -> bool:
        """End a request where it stands, without an event; False if none of this name is under way."""
        seat = self._seats.named(name)
        if seat is not None:
            self._seats.leave(seat, keep=True)
        return seat is not None

    def hold(self, name: str, held: bool = True) -> None:
        """Let a request rest with what it has cached, or go on: for readers that do not keep up."""
        seat = self._seats.named(name)
        if seat is not None:
            seat.held = held

    def abandon(self) -> None:
        """End every request where it stands, between rounds; what they computed may be kept."""
        self._events.clear()
        for seat in list(self._seats):
            self._seats.leave(seat, keep=True)

    def clear(self) -> None:
        """Forget every request and every kept text."""
        self._events.clear()
        self._seats.clear()

    def waits(self, name: str) -> bool:
        """Whether a request has no room yet, or has none again."""
        seat = self._seats.named(name)
        return seat is not None and not seat.runs

    @property
    def busy(self) -> bool:
        """Whether a round would do anything."""
        return any(not seat.held for seat in self._seats)

    @property
    def running(self) -> int:
        return len(self._seats.running)

    @property
    def waiting(self) -> int:
        return len(self._seats.waiting)

    def step(self) -> list[Event]:
        """A round for everybody who is there: what happened, in order of arrival. An interrupt in it ends them all."""
        try:
            return self._step()
        except BaseException:
            self.clear()
            raise

    def _step(self) -> list[Event]:
        laps = Laps(self._clock)
        self._admit()
        turns = self._turns()
        laps("propose")
        scored = self._together(turns, lambda some: self._target.forward([turn.feed for turn in some]))
        laps("forward")
        rounds = [(turn, _round(turn, scores)) for turn, scores in scored if turn.plan is not None]
        verdicts = self._judge([each for _, each in rounds])
        laps("verify")
        for turn, scores in scored:
            if turn.plan is None:
                self._read(turn, scores)
        kept = [self._commit(*each, verdict) for each, verdict in zip(rounds, verdicts, strict=True)]
        laps("commit")
        shared = _shared([turn for turn, _ in scored])
        self._count(shared.rows)
        self._tell([each for each in kept if each is not None], laps.take(), shared)
        if self.config.check:
            self._compare()
        events, self._events = self._events, []
        return events

    # the parts of a round

    def _admit(self) -> None:
        for seat in self._seats.admit():
            seat.began = self._clock() if seat.began is None else seat.began
            self._guarded(seat, self._seats.open)

    def _turns(self) -> list[_Turn]:
        """Who is fed what: all who decode, with their drafts, then texts in the rows that are left, at least a quarter
        of a round's."""
        turns, running = [], list(self._seats.running)
        behind = [seat for seat in running if self._seats.missing(seat) > 1]
        for seat, plan in [(seat, self._plan(seat)) for seat in running if seat not in behind]:
            if plan is not None and seat.runs and self._grow(seat, len(seat.history) + plan.nodes):
                turns.append(_Turn(seat, (seat.history[-1],), plan, len(seat.history) - 1))
        self._propose(turns)
        most = self.config.max_num_batched_tokens
        room = max(most - sum(turn.rows for turn in turns), -(-most // 4))
        pieces = []
        for seat in behind:
            turn = self._piece(seat, room) if room and seat.runs else None
            if turn is not None:
                room -= turn.rows + (turn.plan or Plan()).nodes
                pieces.append(turn)
        self._propose(pieces)
        return [turn for turn in turns + pieces if turn.seat.runs]  # who was taken his memory waits again

    def _plan(self, seat: Seat) -> Plan | None:
        return None if seat.held else self._guarded(seat, self._controlled)

    def _controlled(self, seat: Seat) -> Plan:
        load = Load(
            len(seat.history),
            seat.request.output.remaining,
            len(self._seats.running),
            self._seats.missing(seat),
            unread(seat.drafter, seat.guide),
        )
        return seat.request.controller.plan(seat.state, load)

    def _piece(self, seat: Seat, room: int) -> _Turn | None:
        """As much of a text as there is room for; a whole round if that is all of it."""
        if seat.held:
            return None
        self._seats.reuse(seat)
        plan = self._plan(seat)
        if plan is None:
            return None
        missing = self._seats.missing(seat)
        at = len(seat.history) - missing
        whole = missing + plan.nodes <= room and not seat.request.notes_prompt
        count = missing if whole else min(missing - 1, room)
        if not self._grow(seat, at + count + (plan.nodes if whole else 0)):
            return None
        return _Turn(seat, tuple(seat.history[at : at + count]), plan if whole else None, at)

    def _grow(self, seat: Seat, tokens: int) -> bool:
        return bool(self._guarded(seat, lambda seat: self._seats.grow(seat, tokens)))

    def _propose(self, turns: Sequence[_Turn]) -> None:
        """Drafts: each drafter for all its requests together. Who is to draft nothing is not asked."""
        asked: dict[int, list[_Turn]] = {}
        for turn in turns:
            if not turn.seat.runs:
                continue
            turn.draft = Draft(len(turn.seat.history))
            if turn.plan is not None and turn.plan.depth > 0:
                asked.setdefault(id(turn.seat.drafter), []).append(turn)
        for alike in asked.values():
            for turn, draft in self._together(alike, _drafts):
                turn.draft = draft

    def _read(self, turn: _Turn, scores: Scores) -> None:
        """What `loop.decode` does with a piece of a prompt."""

        def act(seat: Seat) -> None:
            self._target.commit([seat.session], [()])
            note_prompt(seat.request.output, seat.request.prompt, turn.at, scores, seat.request.law)

        self._guarded(turn.seat, act)

    def _commit(
        self, turn: _Turn, round_: Round, verdict: Verdict | Exception
    ) -> tuple[_Turn, Verdict, tuple[int, ...]] | None:
        """What `loop.decode` does after its rule."""

        def act(seat: Seat) -> tuple[_Turn, Verdict, tuple[int, ...]]:
            if isinstance(verdict, Exception):
                raise verdict
            rows: Any = round_.rows
            kept = commit(seat.request.output, verdict.tokens, rows.along(verdict.path))
            seat.history += kept
            self._target.commit([seat.session], [verdict.path[: len(kept) - 1]])
            seat.drafter.commit([seat.guide], [kept])
            return turn, verdict, kept

        return self._guarded(turn.seat, act)

    def _tell(
        self, kept: Sequence[tuple[_Turn, Verdict, tuple[int, ...]]], seconds: dict[str, float], shared: _Shared
    ) -> None:
        """Steps, for the controllers and the caller. Each of the requests waited for the whole round."""
        now = self._clock()
        for turn, verdict, tokens in kept:
            seat, spent = turn.seat, dict(seconds)
            if seat.began is not None:
                spent["prefill"] = max(0.0, now - seat.began - sum(seconds.values()))
                seat.began = None
            why = "" if turn.plan is None else turn.plan.why
            told = shared.rows, len(kept), why, shared.prompt_rows, shared.drafting
            step = Step(turn.draft, verdict, tokens, spent, *told)
            if self._guarded(seat, lambda seat, step=step: self._follow(seat, step)):
                self._events.append(Event(seat.request, step))
                self.counts.emitted += len(tokens)
                if seat.request.output.finish_reason is not None:
                    self._seats.leave(seat, keep=True)
        for phase, each in seconds.items():
            self.counts.seconds[phase] = self.counts.seconds.get(phase, 0.0) + each

    @staticmethod
    def _follow(seat: Seat, step: Step) -> bool:
        seat.state = seat.request.controller.update(seat.state, step)
        return True

    def _count(self, rows: int) -> None:
        self.counts.rounds += 1
        self.counts.rows += rows
        self.counts.most_running = max(self.counts.most_running, len(self._seats.running))

    # errors end one request

    def _guarded(self, seat: Seat, act: Callable[[Seat], T]) -> T | None:
        """act(seat); an error ends this request alone."""
        try:
            return act(seat)
        except Exception as error:
            self._fail(seat, error)
            return None

    def _together(self, turns: Sequence[_Turn], act: Callable[[Sequence[_Turn]], Sequence[T]]) -> list[tuple[_Turn, T]]:
        """act(turns), a result a turn. If it fails, one turn at a time: it ends those for whom it fails again."""
        if not turns:
            return []
        try:
            return list(zip(turns, act(turns), strict=True))
        except Exception as error:
            if len(turns) > 1:
                return [each for turn in turns for each in self._together([turn], act)]
            self._fail(turns[0].seat, error)
            return []

    def _fail(self, seat: Seat, error: Exception) -> None:
        self._seats.leave(seat, keep=False)
        self._events.append(Event(seat.request, None, error))

    def _compare(self) -> None:
        for seat in list(self._seats.running):
            problem = self._problem(seat)
            if problem is not None:
                self._fail(seat, RuntimeError(f"check: after round {self.counts.rounds}: {problem}"))

    def _problem(self, seat: Seat) -> str | None:
        """What the check mode finds."""
        request, cached = seat.request, self._target.cached(seat.session)
        if [*request.prompt, *request.output.token_ids] != seat.history:
            return "the history is not the prompt and what was emitted"
        if not 0 <= cached < len(seat.history):
            return f"{cached} of {len(seat.history)} committed tokens are cached"
        if self._seats.cost(request, cached) > self.memory.held_by(seat):
            return f"{cached} tokens are cached, and memory for fewer is held"
        problem = self._target.check(seat.session, seat.history)
        if problem is not None:
            return f"target: {problem}"
        keeper = keeper_of(seat.drafter)
        if keeper is not None:
            problem = keeper.check(seat.guide, seat.history)
        else:
            replay = seat.drafter.open(self._seats.context(seat))
            seat.drafter.commit([replay], [list(seat.history)])
            problem = None if replay == seat.guide else "its state is not that of a replay"
        return None if problem is None else f"drafter: {problem}"


def _round(turn: _Turn, scores: Scores) -> Round:
    request = turn.seat.request
    return Round(request.rule, turn.draft, LazyRows(turn.draft, scores, request.law, turn.seat.history), request.chance)


def _drafts(turns: Sequence[_Turn]) -> list[Draft]:
    seats, plans = [turn.seat for turn in turns], [turn.plan or Plan() for turn in turns]
    return seats[0].drafter.propose([seat.guide for seat in seats], plans, [seat.request.chance for seat in seats])
