"""Half as deep when few drafts come true: the rule of thumb that people know.

Needs no clock: the same seed gives the same rounds, under every rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..base import Load, Step
from ..plan import Plan
from ..trees import depths
from .fixed import planned

_WINDOW = 16  # drafting rounds


@dataclass(frozen=True, slots=True)
class _State:
    depth: int
    seen: tuple[tuple[int, int], ...] = ()  # (drafted, accepted) levels of the last rounds
    idle: int = 0  # rounds since drafting stopped
    wait: int = 0  # rounds to stay idle


@dataclass(frozen=True, slots=True)
class Threshold:
    """Depth halves when fewer than `low` of the last 16 rounds' levels were accepted, and doubles, up to `depth`, when
    more than `high` were. Below one level decoding is plain, and one is tried again after `probe` rounds, then twice
    as many, and so on up to 16 times `probe`."""

    depth: int
    most_requests: int | None = None
    widths: tuple[int, ...] = ()
    drafters: int = 1
    low: float = 0.3
    high: float = 0.6
    probe: int = 32

    def __post_init__(self) -> None:
        if self.depth < 0:
            raise ValueError(f"num_speculative_tokens: {self.depth} is not allowed; it must be >= 0")
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(f"low, high: {self.low}, {self.high} are not allowed; 0 <= low < high <= 1 is right")

    def init(self) -> _State:
        return _State(self.depth, wait=self.probe)

    def plan(self, state: _State, load: Load) -> Plan:
        if state.depth:
            return planned(load, state.depth, self.widths, self.most_requests, self.drafters)
        if state.idle < state.wait:
            return Plan(why=f"off: under {self.low:.0%} were accepted")
        return planned(load, 1, self.widths, self.most_requests, self.drafters)

    def update(self, state: _State, step: Step) -> _State:
        if not len(step.draft):
            return replace(state, idle=state.idle + 1) if not state.depth else state
        if not state.depth:
            return self._probed(state, step)
        seen = (*state.seen, (levels_of(step), step.accepted))[-_WINDOW:]
        drafted, accepted = (sum(column) for column in zip(*seen, strict=True))
        state = replace(state, seen=seen)
        if len(seen) < _WINDOW // 2:
            return state
        if accepted < self.low * drafted:
            return replace(state, depth=state.depth // 2, seen=(), idle=0)
        if accepted > self.high * drafted and state.depth < self.depth:
            return replace(state, depth=min(2 * state.depth, self.depth), seen=())
        return replace(state, wait=self.probe)

    def _probed(self, state: _State, step: Step) -> _State:
        if step.accepted:
            return replace(state, depth=1, seen=(), idle=0)
        return replace(state, idle=0, wait=min(2 * state.wait, 16 * self.probe))


def levels_of(step: Step, origin: str | None = None) -> int:
    """How deep its draft was; of one drafter: how deep its nodes lie."""
    places = zip(depths(step.draft.parents), step.draft.origin, strict=True)
    return max((depth for depth, each in places if origin in (None, each)), default=0)
