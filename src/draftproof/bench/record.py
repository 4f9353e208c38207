"""What a run file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .runner import Measurement, Setting

PLAIN = "plain"
"""Our own decoding without drafts: what speed-ups are against, and whose texts are the right ones."""

AGAIN = "plain again"
"""The same a second time, in every run: what differs between the two is noise."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A system that takes no part in a setting, or has failed in it; why: one line for people."""

    system: str
    setting: int
    why: str


@dataclass(frozen=True, slots=True)
class Depth:
    """Of one level of drafts, among rounds that were looked at: how often it was reached with something drafted
    there, how often something of that was accepted, and the sum of the most that any rule could have accepted."""

    reached: int
    accepted: int
    bound: float


@dataclass(frozen=True, slots=True)
class Bound:
    """Acceptance against the bound on it, by depth from 1 on."""

    system: str
    setting: int
    depths: tuple[Depth, ...]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an answer first differs from plain decoding's. position: of the token in the answer, from 0. gap: how far
    apart the target's own logits of the two tokens lie there; steps: the same in steps of the dtype at that size; both
    None where a text is drawn, and more than logits decide. tie: no more than two steps, which rounding alone may turn;
    never of a system that promises plain's very text, for which any difference is a fault."""

    system: str
    setting: int
    question: int
    position: int
    gap: float | None
    steps: float | None
    tie: bool


@dataclass(frozen=True, slots=True)
class ForwardCosts:
    """Seconds, in the middle, of one forward after `context` tokens: rows[n] of n rows of the target in a chain,
    trees[system] of the whole tree that a system drafts, levels[system] of one row of the models that draft for it,
    added up (a system that looks up is not there)."""

    context: int
    rows: dict[int, float]
    trees: dict[str, float]
    levels: dict[str, float]


@dataclass(slots=True)
class Run:
    """provenance: versions, machine, model hash, revision, command, date. asked: all that the measurements depend on.
    systems: name, kind ("ours" or "peer"), and what each says of itself. questions: id, category, prompt_tokens. costs:
    of a sweep, measured before and after it."""

    provenance: Mapping[str, Any]
    asked: Mapping[str, Any]
    systems: list[dict[str, Any]]
    settings: list[Setting]
    questions: list[dict[str, Any]]
    measurements: list[Measurement] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)
    costs: list[ForwardCosts] = field(default_factory=list)
