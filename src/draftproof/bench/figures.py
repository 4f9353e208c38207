"""The figures of a run, all derived from its measurements. What cannot be had is None, never 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..stats import Position, Stats, together
from .bootstrap import Interval
from .pace import (
    Against,
    Measured,
    Pace,
    SpeedUp,
    against_best,
    by_category,
    first,
    measurements_of,
    middle,
    pace,
    speed_up,
    tokens_of,
)
from .record import AGAIN, PLAIN, Run
from .runner import Answer, Answers

HF_PLAIN = "hf plain"
"""Hugging Face without drafts: the baseline that is not ours."""

PHASES = ("propose", "forward", "verify", "commit", "prefill", "rest")
"""Where a token's time goes. prefill: reading the prompt, up to and including the first round's forward. rest: what
was measured around it all and is none of the others."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What one drafter of several did."""

    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Drafting:
    """Counts of the first repeat. passes: a pass that many requests share counts for each. acceptance_length: tokens
    of a round that drafted, its last one included. acceptance_rate: accepted tokens of all drafted ones."""

    passes: int
    drafts: int
    drafted: int
    accepted: int
    tokens_per_pass: float | None
    acceptance_length: float | None
    acceptance_rate: float | None
    positions: tuple[Position, ...]
    origins: dict[str, Origin]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """In milliseconds."""

    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """A reader's view, over all answers and repeats. first: until something came. between: from one arrival to the
    next, whose tokens come together. token: from the first arrival to the last, a token, by answer."""

    first: Percentiles | None
    between: Percentiles | None
    token: Percentiles | None


@dataclass(frozen=True, slots=True)
class Same:
    """Answers of the first repeat that are plain's, token for token, of those that could be compared. The others by
    what was found where they part: ties, which rounding alone may turn, others, and those not looked at."""

    equal: int
    compared: int
    ties: int
    others: int
    unseen: int


@dataclass(frozen=True, slots=True)
class DepthBound:
    """Of one level of drafts, among the rounds that were looked at and reached it: the share that accepted something
    there, and the most that any lossless rule could have: None of a lossy one, which no bound holds."""

    depth: int
    reached: int
    accepted: float | None
    bound: float | None


@dataclass(frozen=True, slots=True)
class SystemFigures:
    """One system in one setting. against_plain, against_hf: None for the baseline itself, and where no group was
    measured by both. against_best_peer: None for peers, too. token_ms: 1000 over the pace's tokens a second. phases:
    its parts; None of who does not tell. same_tokens, same_counts: whether all repeats had them; None if nothing was
    repeated or counted. fixed_lengths: the bounds are of drafts of fixed lengths, since its own follow costs."""

    name: str
    kind: str
    claim: str | None
    questions: int
    pace: Pace
    categories: dict[str, Pace]
    against_plain: SpeedUp | None
    against_hf: SpeedUp | None
    against_best_peer: Against | None
    drafting: Drafting | None
    token_ms: float
    phases: dict[str, float] | None
    waiting: Waiting
    peak_bytes: int | None
    same: Same | None
    same_tokens: bool | None
    same_counts: bool | None
    bounds: tuple[DepthBound, ...]
    fixed_lengths: bool


@dataclass(frozen=True, slots=True)
class SettingFigures:
    """groups: of questions answered together, as far as plain has them; intervals are over these. noise: the speed-up
    of plain decoding against itself. dropped: by system, why it is out, or went out half-way."""

    name: str
    temperature: float
    batch: int
    dtype: str
    questions: int
    groups: int
    noise: Interval | None
    systems: tuple[SystemFigures, ...]
    dropped: dict[str, str]

    @property
    def categories(self) -> list[str]:
        """Of all systems, in the order of the questions."""
        return list(dict.fromkeys(category for system in self.systems for category in system.categories))


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the settings that have measurements."""

    settings: tuple[SettingFigures, ...]

    @property
    def systems(self) -> list[str]:
        """The names of all, in the order of the run."""
        return list(dict.fromkeys(system.name for setting in self.settings for system in setting.systems))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def figures(run: Run) -> Figures:
    """ValueError if there is nothing to compare, or nothing to compare it with."""
    measured_in = {each.setting for each in run.measurements}
    if not measured_in:
        raise ValueError("run: it holds no measurements; let it go on first")
    settings = (_setting(run, at) for at in range(len(run.settings)) if at in measured_in)
    return Figures(tuple(settings))


def _setting(run: Run, at: int) -> SettingFigures:
    setting = run.settings[at]
    described = {each["name"]: each for each in run.systems if each.get("dtype", setting.dtype) == setting.dtype}
    systems = {name: measurements_of(run.measurements, at, name) for name in described}
    systems = {name: found for name, found in systems.items() if found}
    if PLAIN not in systems:
        raise ValueError(f"run: {setting.name} holds no measurement of {PLAIN!r} to compare with; let it go on first")
    peers = {name: found for name, found in systems.items() if described[name]["kind"] == "peer"}
    found = tuple(_system(run, at, described[name], systems, peers) for name in systems)
    again = next((each.against_plain for each in found if each.name == AGAIN), None)
    return SettingFigures(
        setting.name,
        setting.temperature,
        setting.batch,
        setting.dtype,
        len(run.questions),
        len(systems[PLAIN]),
        again.mix if again is not None else None,
        found,
        {each.system: each.why for each in run.dropped if each.setting == at},
    )


def _system(
    run: Run,
    at: int,
    system: Mapping[str, Any],
    systems: Mapping[str, Measured],
    peers: Mapping[str, Measured],
) -> SystemFigures:
    name, kind, claim = system["name"], system["kind"], system.get("claim")
    of = systems[name]
    comparable = name != PLAIN and (run.settings[at].temperature == 0 or (kind == "ours" and claim == "bit-exact"))
    everything = [answers for repeats in of.values() for answers in repeats.values()]
    own_pace = pace(of)
    peaks = [answers.peak_bytes for answers in everything if answers.peak_bytes is not None]
    return SystemFigures(
        name=name,
        kind=kind,
        claim=claim,
        questions=len({question for group in of for question in group}),
        pace=own_pace,
        categories={category: pace(groups) for category, groups in by_category(of, run.questions).items()},
        against_plain=speed_up(of, systems[PLAIN], run.questions) if name != PLAIN else None,
        against_hf=speed_up(of, systems[HF_PLAIN], run.questions) if name != HF_PLAIN and HF_PLAIN in systems else None,
        against_best_peer=against_best(of, peers, run.questions) if kind == "ours" else None,
        drafting=_drafting(of),
        token_ms=1e3 / own_pace.tokens_per_second,
        phases=_phases(of),
        waiting=_waiting([answer for answers in everything for answer in answers.answers]),
        peak_bytes=max(peaks, default=None),
        same=_same(run, at, name, of, systems[PLAIN]) if comparable else None,
        same_tokens=_repeated(of, lambda answer: answer.token_ids),
        same_counts=_repeated(of, _counts) if kind == "ours" else None,
        bounds=_bounds(run, at, name, lossy=claim == "lossy"),
        fixed_lengths=(system.get("speculation") or {}).get("controller") == "cost",
    )


# what was counted


def _stats(answers: Iterable[Answer]) -> list[Stats] | None:
    """None unless all were counted."""
    found = [None if answer.stats is None else Stats.of(answer.stats) for answer in answers]
    told = [each for each in found if each is not None]
    return told if told and len(told) == len(found) else None


def _drafting(of: Measured) -> Drafting | None:
    parts = _stats(answer for repeats in of.values() for answer in first(repeats).answers)
    if parts is None:
        return None
    stats = together(parts)
    return Drafting(
        stats.rounds,
        stats.drafts,
        stats.drafted,
        stats.accepted,
        stats.tokens_per_pass,
        stats.acceptance_length,
        stats.acceptance_rate,
        stats.positions,
        {
            origin: Origin(drafted, stats.accepted_by.get(origin, 0))
            for origin, drafted in sorted(stats.drafted_by.items())
        },
    )


def _phases(of: Measured) -> dict[str, float] | None:
    """Milliseconds a token, of the very repeats that the pace is of, so that they add up to it."""
    sums, tokens = dict.fromkeys(PHASES, 0.0), 0
    for repeats in of.values():
        told = [_told(answers) for answers in middle(repeats)]
        parts = [each for each in told if each is not None]
        if len(parts) < len(told):
            return None
        own = tokens_of(first(repeats))
        sums = {phase: sums[phase] + own * sum(part[phase] for part in parts) / len(parts) for phase in PHASES}
        tokens += own
    return {phase: 1e3 * seconds / tokens for phase, seconds in sums.items()}


def _told(answers: Answers) -> dict[str, float] | None:
    """Seconds a token. Who are answered together share their rounds, so the longest answer's seconds are all's."""
    parts = _stats(answers.answers)
    if parts is None:
        return None
    longest = max(parts, key=lambda part: part.seconds["total"]).seconds
    told = {phase: longest[phase] for phase in PHASES if phase != "rest"}
    if not any(told.values()):
        return None
    told["rest"] = max(0.0, answers.seconds - sum(told.values()))
    return {phase: seconds / tokens_of(answers) for phase, seconds in told.items()}


# what a reader sees


def _waiting(answers: Sequence[Answer]) -> Waiting:
    times = [[at for at, _ in answer.arrivals] for answer in answers]
    told = [(each, len(answer.token_ids)) for each, answer in zip(times, answers, strict=True) if len(each) > 1]
    return Waiting(
        first=_percentiles([each[0] for each in times if each]),
        between=_percentiles([later - earlier for each, _ in told for earlier, later in pairwise(each)]),
        token=_percentiles([(each[-1] - each[0]) / (tokens - 1) for each, tokens in told]),
    )


def _percentiles(seconds: Sequence[float]) -> Percentiles | None:
    if not seconds:
        return None
    p50, p95 = np.percentile(seconds, [50, 95])
    return Percentiles(1e3 * float(p50), 1e3 * float(p95))


# what must be equal


def _same(run: Run, at: int, name: str, of: Measured, plain: Measured) -> Same | None:
    differing, compared = set(), 0
    for group in of.keys() & plain.keys():
        pairs = zip(first(of[group]).answers, first(plain[group]).answers, strict=True)
        for question, (ours, right) in zip(group, pairs, strict=True):
            compared += 1
            if ours.token_ids != right.token_ids:
                differing.add(question)
    if not compared:
        return None
    seen = {
        each.question: each.tie
        for each in run.divergences
        if (each.system, each.setting) == (name, at) and each.question in differing
    }
    ties = sum(seen.values())
    return Same(compared - len(differing), compared, ties, len(seen) - ties, len(differing) - len(seen))


def _repeated(of: Measured, told: Callable[[Answer], Any]) -> bool | None:
    """Whether what is told of each answer is the same in all repeats of its group."""
    every = [
        [[told(answer) for answer in answers.answers] for answers in repeats.values()]
        for repeats in of.values()
        if len(repeats) > 1
    ]
    if not every or any(one is None for group in every for repeat in group for one in repeat):
        return None
    return all(repeat == group[0] for group in every for repeat in group)


def _counts(answer: Answer) -> dict[str, Any] | None:
    """What does not depend on the clock."""
    if answer.stats is None:
        return None
    timed = ("seconds", "tokens_per_second", "why")
    return {name: value for name, value in answer.stats.items() if name not in timed}


def _bounds(run: Run, at: int, name: str, *, lossy: bool) -> tuple[DepthBound, ...]:
    found = next((each for each in run.bounds if (each.system, each.setting) == (name, at)), None)
    if found is None:
        return ()
    return tuple(
        DepthBound(
            depth,
            each.reached,
            each.accepted / each.reached if each.reached else None,
            each.bound / each.reached if each.reached and not lossy else None,
        )
        for depth, each in enumerate(found.depths, 1)
    )
