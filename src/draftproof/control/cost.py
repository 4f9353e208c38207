"""As much as pays: the controller that measures.

Sequoia (Chen et al. 2024, 2402.12374, §3.2) and others choose a tree for hardware; here costs and acceptances are
measured while a request runs, and a round drafts what maximises expected tokens a second, or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..base import Load, Step
from ..drafters.outlook import expected
from ..plan import Plan, Terms
from ..trees import leaves_of
from .costs import Costs
from .fixed import planned
from .record import Record
from .threshold import levels_of

_GAIN = 1.01  # drafting must promise so much more than plain decoding
_PROBE = 32  # rounds until a drafter that was switched off is tried again; twice as many after each failure
_LONGEST = 16 * _PROBE
_MOST_SPARE = 256.0  # tokens at most that trials may cost at once
_LOOK = 4  # rounds between two looks at what drafters are expected to bring
_SHORT = 16  # tokens, or fewer, that a draft model reads in the forward of a level without taking longer for it
_WORTH = 2  # times what the reading of a text costs its drafts must be expected to bring
_NODES = 23  # most of them: with the committed token's row three times eight
_PLENTY = 1.25  # drafters that promise less may lose no more than they brought before and an allowance:
_ALLOWANCE = 0.02  # tokens a round. So no answer, however short, is much slower than plain decoding
_GRANT = 0.5  # tokens more, where a model promises most: how well it does hardly depends on the text
_SOON = 64  # tokens that an answer is taken to go on for, or as many as it has; less, where it may not


@dataclass(slots=True)
class _Rest:
    """A drafter that was switched off."""

    until: int
    wait: int


@dataclass(slots=True)
class _State:
    record: Record
    rounds: int = 0
    resting: dict[str, _Rest] = field(default_factory=dict)
    others: float = 0.0  # rows of a request that shares the round, as they were last; not of a prompt
    company: dict[str, float] = field(default_factory=dict)  # others that it drafted for when it did for this one
    tokens: float = 1.0  # that a round of this request yields, of late
    gains: dict[str, float] = field(default_factory=dict)  # by origin, as of late
    kept: dict[str, float] = field(default_factory=dict)  # drafted tokens that a round is then expected to keep
    emitted: int = 0  # tokens of the answer
    trying: str | None = None  # who rests and was asked again in the round under way
    look: int = 0  # the round in which gains are worked out again
    requests: int = 0  # that shared the round when they were
    terms: Terms | None = None  # of the round under way, if it drafts
    asked: frozenset[str] = frozenset()  # who drafts in it
    fees: dict[str, float] = field(default_factory=dict)  # tokens that it costs to let a draft model read first
    ahead: float = 0.0  # tokens that drafting brought, less those that plain decoding had made in the time it took


class Cost:
    """Plans for one request after another of the drafters `origins`.

    costs, record: what is known of this machine and of the requests before, kept up to date by every request. models:
    those of the origins whose drafting costs time. depth, widths: most levels, and children a node. most_requests:
    nothing while more share a round.
    """

    def __init__(
        self,
        origins: Sequence[str],
        models: Sequence[str] = (),
        *,
        costs: Costs | None = None,
        record: Record | None = None,
        depth: int = 16,
        widths: tuple[int, ...] = (),
        most_requests: int | None = None,
    ) -> None:
        self._origins, self._models = tuple(origins), frozenset(models)
        self._costs, self._record = costs or Costs(), record or Record(fade=0.998)
        self._depth, self._widths, self._most_requests = depth, widths, most_requests

    def init(self) -> _State:
        return _State(Record(self._record, steady=self._models))

    def plan(self, state: _State, load: Load) -> Plan:
        state.terms = state.trying = None
        plan = planned(load, self._depth, self._widths, self._most_requests, len(self._origins))
        if plan.depth == 0:
            return plan
        nodes = min(_NODES, plan.nodes, load.remaining - 1)
        if load.pending > 1:
            nodes = self._costs.beside_prompt(load.pending, nodes)
        if nodes == 0:
            return Plan(why="off: a row more beside the prompt is a block more")
        terms = self._terms(state, load, nodes)
        gains = self._gains(state, terms, plan, load)
        state.fees = {origin: self._fee(terms, load, origin) for origin in self._origins}
        willing = [origin for origin in self._origins if self._is_awake(state, origin, gains[origin])]
        awake = [origin for origin in willing if self._may_read(state, terms, load, origin)]
        due = [o for o in self._origins if o in state.resting and state.rounds >= state.resting[o].until]
        due = [o for o in due if state.fees[o] <= self._costs.spare]
        if due:
            state.trying, state.terms, state.asked = due[0], terms, frozenset(due[:1])
            self._costs.spare -= state.fees[due[0]]
            return Plan(min(2, plan.depth), (), 2, state.asked, why=f"trying {due[0]} again")
        best = max(awake or willing or gains, key=lambda origin: gains[origin])
        if not awake and willing:
            return Plan(why=f"off: {best} would read {load.unread[best]} tokens first, for {gains[best]:.2f}x")
        if not awake:
            return Plan(why=f"off: expected {gains[best]:.2f}x")
        why = f"{best}: expected {gains[best]:.2f}x"
        widths = self._widths
        if gains[best] < _PLENTY:
            nodes, widths = self._affordable(state, terms, awake, best)
        if nodes == 0:
            return Plan(why=f"off: {best} brought too little yet to risk a round on {gains[best]:.2f}x")
        state.terms, state.asked = terms, frozenset(awake)
        return Plan(plan.depth, widths, nodes, state.asked, terms, why)

    def _affordable(self, state: _State, terms: Terms, awake: Sequence[str], best: str) -> tuple[int, tuple[int, ...]]:
        """Nodes that may all be refused without losing more than was brought before, and how wide they may stand: as a
        chain where that allows more of them than a tree, whose leaves cost."""
        level = sum(terms.levels.get(origin, 0.0) for origin in awake)
        purse = self._purse(state, best)

        def most(leaves: int | None) -> int:
            lost = (_lost(terms, n, leaves or n, n * level) for n in range(len(terms.rounds)))
            return max(n for n, tokens in enumerate(lost) if n == 0 or tokens <= purse)

        chain, tree = most(1), most(None)
        return (chain, ()) if chain > tree else (tree, self._widths)

    def _purse(self, state: _State, origin: str) -> float:
        """Tokens that may be lost if `origin` promises most: those that drafting brought, and an allowance."""
        return state.ahead + _GRANT * (origin in self._models) + _ALLOWANCE * (state.rounds + 1)

    def _gains(self, state: _State, terms: Terms, plan: Plan, load: Load) -> dict[str, float]:
        """What each drafter is expected to bring, against plain decoding. It changes slowly: not asked every round, but
        before the first one, and when others come or go."""
        if not state.rounds or state.rounds >= state.look or load.requests != state.requests:
            plain = terms.base / terms.rounds[0]
            found = {origin: expected(terms, origin, plan) for origin in self._origins}
            state.gains = {origin: rate / plain for origin, (rate, _) in found.items()}
            state.kept = {origin: tokens for origin, (_, tokens) in found.items()}
            state.look, state.requests = state.rounds + _LOOK, load.requests
        return state.gains

    def _fee(self, terms: Terms, load: Load, origin: str) -> float:
        """Tokens that plain decoding makes, for all who share the round, while a draft model reads what it lacks."""
        tokens = load.unread.get(origin, 0)
        return terms.base * self._costs.reading(origin, tokens) / terms.rounds[0] if tokens > _SHORT else 0.0

    def _may_read(self, state: _State, terms: Terms, load: Load, origin: str) -> bool:
        """Whether a draft model may read what it lacks: if that is expected to pay, and, where little is promised, may
        be lost."""
        fee = state.fees[origin]
        if state.gains[origin] < _PLENTY and fee > max(self._purse(state, origin), 0.0):
            return False
        return _WORTH * fee <= self._hoped(state, terms, load, origin)

    def _hoped(self, state: _State, terms: Terms, load: Load, origin: str) -> float:
        """Tokens that an answer is expected to gain by drafts to its end, so far as one can tell when that comes."""
        left = min(load.remaining, max(_SOON, state.emitted))
        each = (terms.base + state.kept[origin]) * (1 - 1 / max(state.gains[origin], 1.0))
        return each * left / (1 + state.kept[origin])

    def _is_awake(self, state: _State, origin: str, gain: float) -> bool:
        """Whether it drafts; one that no longer pays is put to rest."""
        rest = state.resting.get(origin)
        if rest is None and gain < _GAIN:
            state.resting[origin] = _Rest(state.rounds + _PROBE, _PROBE)
        return origin not in state.resting

    def _terms(self, state: _State, load: Load, nodes: int) -> Terms:
        mates = max(load.requests - 1, 0)
        rounds = self._costs.rounds(load.context, round(mates * state.others), nodes, smooth=mates > 0)
        levels: Mapping[str, float] = {
            # it is drafted for all who want one together: for all who are there, until more is known
            origin: seconds / (1 + min(mates, state.company.get(origin, mates)))
            for origin in self._models
            if (seconds := self._costs.level(origin)) is not None
        }
        trust = {origin: state.record.of(origin) for origin in self._origins}
        return Terms(rounds, 1 + mates * state.tokens, self._costs.branch(load.context), levels, trust)

    def update(self, state: _State, step: Step) -> _State:
        self._costs.add(step, self._models)
        state.record.add(step)
        state.rounds += 1
        state.emitted += len(step.tokens)
        self._costs.spare = min(self._costs.spare + _ALLOWANCE, _MOST_SPARE)
        if state.terms is not None and len(step.draft) < len(state.terms.rounds):
            leaves, seconds = leaves_of(step.draft.parents), self._spent(state, state.terms, step)
            state.ahead += step.accepted - _lost(state.terms, len(step.draft), leaves, seconds)
        state.others = min((step.rows - step.prompt_rows) / max(step.requests, 1), 1 + _NODES)
        for origin in self._models & set(step.draft.origin) if state.requests > 1 else ():
            others = step.drafting.get(origin, 1) - 1.0
            before = state.company.get(origin, others)
            state.company[origin] = before + 0.2 * (others - before)
        state.tokens += 0.1 * (len(step.tokens) - state.tokens)
        if state.trying is not None:
            self._tried(state, state.trying, step)
        return state

    def _spent(self, state: _State, terms: Terms, step: Step) -> float:
        """This request's part of the seconds that drafting took. Of one alone all of it, what was thrown away included.
        Where a text was read, which is paid for once, or others may have had theirs read, what levels usually take: at
        least one, of a model that was asked."""
        if "prefill" not in step.seconds and step.requests == 1 and not any(state.fees[o] for o in state.asked):
            return step.seconds.get("propose", 0.0)
        least = 0 if len(step.draft) else 1
        return sum(terms.levels.get(o, 0.0) * max(levels_of(step, o), least) for o in state.asked & self._models)

    def _tried(self, state: _State, origin: str, step: Step) -> None:
        """A drafter that rests was asked again: it wakes if it was right, and its failures of then are forgotten. One
        that had nothing to say rests as long as before."""
        state.trying = None
        if step.accepted:
            del state.resting[origin]
            state.record.forget(origin)
            state.look = state.rounds
        else:
            wait = min((1 + bool(len(step.draft))) * state.resting[origin].wait, _LONGEST)
            state.resting[origin] = _Rest(state.rounds + wait, wait)


def _lost(terms: Terms, nodes: int, leaves: int, drafting: float) -> float:
    """Tokens that plain decoding had made in the time that drafting took and that the round takes longer for it."""
    seconds = terms.rounds[nodes] + max(leaves - 1, 0) * terms.branch + drafting
    return terms.base * (seconds / terms.rounds[0] - 1)
