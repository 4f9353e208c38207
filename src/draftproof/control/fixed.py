"""Always the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..base import Load, Step
from ..plan import MOST_NODES, Plan


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always `depth` levels of these `widths`, but never a token that could not be emitted: the target adds one of its
    own a round.

    drafters: how many fill the tree, each with as much. most_requests: nothing while more of them share a round. A row
    of a wide forward is not free, and then costs more than guesses bring.
    """

    depth: int
    most_requests: int | None = None
    widths: tuple[int, ...] = ()
    drafters: int = 1

    def __post_init__(self) -> None:
        if self.depth < 0:
            raise ValueError(f"num_speculative_tokens: {self.depth} is not allowed; it must be >= 0")

    def init(self) -> None:
        return None

    def plan(self, state: None, load: Load) -> Plan:
        return planned(load, self.depth, self.widths, self.most_requests, self.drafters)

    def update(self, state: None, step: Step) -> None:
        return None


def planned(load: Load, depth: int, widths: tuple[int, ...], most_requests: int | None, drafters: int) -> Plan:
    """A plan within what a request may still emit: as many levels, and as many nodes, for which it has room."""
    if most_requests is not None and load.requests > most_requests:
        return Plan(why=f"off: more than {most_requests} requests")
    left = max(load.remaining - 1, 0)
    each = Plan(min(depth, left), widths)
    return replace(each, max_nodes=min(left, drafters * each.nodes, MOST_NODES))
