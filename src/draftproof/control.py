"""Controllers: how much to draft. They see the past alone, so every rule stays lossless under them."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Load, Plan, Step


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always `depth` tokens, but never one that could not be emitted: the target adds one token of its own a round.

    most_requests: nothing while more of them share a round. A row of a wide forward is not free, and then costs more
    than guesses bring.
    """

    depth: int
    most_requests: int | None = None

    def __post_init__(self) -> None:
        if self.depth < 0:
            raise ValueError(f"num_speculative_tokens: {self.depth} is not allowed; it must be >= 0")

    def init(self) -> None:
        return None

    def plan(self, state: None, load: Load) -> Plan:
        if self.most_requests is not None and load.requests > self.most_requests:
            return Plan()
        return Plan(depth=min(self.depth, load.remaining - 1))

    def update(self, state: None, step: Step) -> None:
        return None
