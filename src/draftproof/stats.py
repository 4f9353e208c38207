"""Statistics of a request: counted events, and rates derived from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any

from .base import ROOT, Step
from .trees import children, depths

PHASES = ("load", "prefill", "propose", "forward", "verify", "commit", "total")


@dataclass(frozen=True, slots=True)
class Position:
    """One level of drafts, from 1 on. drafted: tokens there. reached, accepted: rounds. marginal: accepted of all
    rounds that drafted, as vLLM has it. conditional: accepted of reached."""

    depth: int
    drafted: int
    reached: int
    accepted: int
    marginal: float | None
    conditional: float | None


@dataclass(slots=True)
class Stats:
    """Integers that count what was committed, after the cut. A rate without a denominator is None, not 0.

    rounds: target passes after the prompt. drafts: rounds in which something was drafted. drafted, accepted: tokens.
    bonus: rounds that accepted their whole draft and added a token. emitted: tokens of the text.
    drafted_by, accepted_by: the same by origin. plain: rounds that drafted nothing. why: the controller's last reason.
    reached_per_position: rounds that accepted all before it, drafted something below that, and committed a token there,
    accepted or not: what an end cut away was not reached.
    seconds: load is the model's, total the request's from prompt to end, without load. Under the engine a round's are
    those of all who shared it, and prefill is what went by before the request's first round: a prompt that fits into
    that round is read in its forward.
    """

    rounds: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    bonus: int = 0
    emitted: int = 0
    rounding: int = 0
    plain: int = 0
    why: str = ""
    drafted_by: dict[str, int] = field(default_factory=dict)
    accepted_by: dict[str, int] = field(default_factory=dict)
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    reached_per_position: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def add(self, step: Step) -> None:
        """Count one round."""
        self.rounds += 1
        self.drafts += len(step.draft) > 0
        self.drafted += len(step.draft)
        self.accepted += step.accepted
        self.bonus += step.bonus
        self.emitted += len(step.tokens)
        self.rounding += step.verdict.rounding
        self.plain += not len(step.draft)
        self.why = step.why or self.why
        for origin in step.draft.origin:
            self.drafted_by[origin] = self.drafted_by.get(origin, 0) + 1
        for node in step.verdict.path[: step.accepted]:
            origin = step.draft.origin[node]
            self.accepted_by[origin] = self.accepted_by.get(origin, 0) + 1
        for depth in depths(step.draft.parents):
            self._count(depth, self.drafted_per_position)
        for depth in range(1, step.accepted + 1):
            self._count(depth, self.accepted_per_position)
        for depth in range(1, step.accepted + _refused(step) + 1):
            self._count(depth, self.reached_per_position)
        for phase, seconds in step.seconds.items():
            self.seconds[phase] += seconds
            self.seconds["total"] += seconds

    def _count(self, depth: int, counts: list[int]) -> None:
        while len(self.drafted_per_position) < depth:
            self.drafted_per_position.append(0)
            self.accepted_per_position.append(0)
            self.reached_per_position.append(0)
        counts[depth - 1] += 1

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Stats:
        """What `as_dict` gave; rates are derived anew. KeyError for what is missing."""
        return cls(**{each.name: copy(record[each.name]) for each in fields(cls)})

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a drafting round yields, its last one included: 1 + accepted/drafts, as vLLM counts it."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def acceptance_rate(self) -> float | None:
        """accepted/drafted. Not comparable between different numbers of drafted tokens."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def positions(self) -> tuple[Position, ...]:
        """From depth 1 on, as deep as was drafted."""
        counts = zip(self.drafted_per_position, self.reached_per_position, self.accepted_per_position, strict=True)
        return tuple(
            Position(
                depth,
                drafted,
                reached,
                accepted,
                accepted / self.drafts if self.drafts else None,
                accepted / reached if reached else None,
            )
            for depth, (drafted, reached, accepted) in enumerate(counts, 1)
        )

    @property
    def tokens_per_pass(self) -> float | None:
        return self.emitted / self.rounds if self.rounds else None

    @property
    def tokens_per_second(self) -> float | None:
        total = self.seconds["total"]
        return self.emitted / total if total > 0 else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "drafts": self.drafts,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "bonus": self.bonus,
            "emitted": self.emitted,
            "rounding": self.rounding,
            "plain": self.plain,
            "why": self.why,
            "drafted_by": dict(self.drafted_by),
            "accepted_by": dict(self.accepted_by),
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "drafted_per_position": list(self.drafted_per_position),
            "accepted_per_position": list(self.accepted_per_position),
            "reached_per_position": list(self.reached_per_position),
            "seconds": dict(self.seconds),
            "tokens_per_second": self.tokens_per_second,
        }


def _refused(step: Step) -> bool:
    """Whether something was drafted below the last accepted node and another token was committed there."""
    path = step.verdict.path
    return len(step.tokens) > len(path) and bool(children(step.draft.parents, path[-1] if path else ROOT))


_COUNTED = ("rounds", "drafts", "drafted", "accepted", "bonus", "emitted", "rounding", "plain")


def together(parts: Sequence[Stats]) -> Stats:
    """Of requests that ran side by side: counts add up, seconds are those of the longest."""
    counts = {name: sum(getattr(part, name) for part in parts) for name in _COUNTED}
    drafted, accepted, reached = (
        [sum(column) for column in zip_longest(*(getattr(part, name) for part in parts), fillvalue=0)]
        for name in ("drafted_per_position", "accepted_per_position", "reached_per_position")
    )
    seconds = {phase: max(part.seconds[phase] for part in parts) for phase in PHASES}
    drafted_by, accepted_by = (
        dict(sum((Counter(getattr(part, name)) for part in parts), Counter())) for name in ("drafted_by", "accepted_by")
    )
    return Stats(
        **counts,
        why=next((part.why for part in reversed(parts) if part.why), ""),
        drafted_by=drafted_by,
        accepted_by=accepted_by,
        drafted_per_position=drafted,
        accepted_per_position=accepted,
        reached_per_position=reached,
        seconds=seconds,
    )
