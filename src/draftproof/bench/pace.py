"""How fast a system was, and how much faster than another on what both have answered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .bootstrap import Interval, ratio
from .runner import Answers, Measurement

SLOW = 0.97
"""Prompts below this ratio are named: what is nearer to 1 is mostly noise."""

Measured = Mapping[tuple[int, ...], Mapping[int, Answers]]
"""What one system did in one setting: by group of questions, then by repeat, each in order."""


@dataclass(frozen=True, slots=True)
class Pace:
    """tokens: of the first repeat. seconds: of those, each group's the median over its repeats."""

    tokens: int
    seconds: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class GroupRatio:
    """Of questions that were answered together, by their ids."""

    questions: tuple[str, ...]
    ratio: float


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """Against another system, a token, over the groups and repeats that both have measured. slow: groups below SLOW,
    the slowest first. categories: of groups whose questions are all of one category."""

    mix: Interval
    categories: dict[str, Interval]
    groups: int
    worst: GroupRatio
    slow: tuple[GroupRatio, ...]


@dataclass(frozen=True, slots=True)
class Against:
    """A speed-up against the system of that name."""

    name: str
    speed_up: SpeedUp


def measurements_of(measurements: Sequence[Measurement], setting: int, system: str) -> Measured:
    """The measurements of one system in one setting; of one that was made twice, the later."""
    found: dict[tuple[int, ...], dict[int, Answers]] = defaultdict(dict)
    for each in sorted(measurements, key=lambda each: (each.questions, each.repeat)):
        if (each.setting, each.system) == (setting, system):
            found[each.questions][each.repeat] = each.answers
    return dict(found)


def first(repeats: Mapping[int, Answers]) -> Answers:
    """Of a group's repeats, the one whose texts and counts are told."""
    return repeats[min(repeats)]


def tokens_of(answers: Answers) -> int:
    return sum(len(answer.token_ids) for answer in answers.answers)


def middle(repeats: Mapping[int, Answers]) -> list[Answers]:
    """The repeat whose seconds a token are the median's; the two around it where their number is even."""
    ranked = sorted(repeats.values(), key=seconds_a_token)
    return ranked[(len(ranked) - 1) // 2 : len(ranked) // 2 + 1]


def seconds_a_token(answers: Answers) -> float:
    return answers.seconds / tokens_of(answers)


def pace(of: Measured) -> Pace:
    """Over all its groups; there must be one."""
    groups = [_group(repeats) for repeats in of.values()]
    tokens, seconds = sum(tokens for tokens, _ in groups), sum(seconds for _, seconds in groups)
    return Pace(tokens, seconds, tokens / seconds)


def _group(repeats: Mapping[int, Answers]) -> tuple[int, float]:
    """Tokens of the first repeat, and the median of the seconds: a token's, since who draws anew may say more or less
    each time."""
    tokens = tokens_of(first(repeats))
    return tokens, tokens * median(map(seconds_a_token, repeats.values()))


def category_of(group: Sequence[int], questions: Sequence[Mapping[str, Any]]) -> str | None:
    """
    >>> asked = [{"category": "code"}, {"category": "code"}, {"category": "math"}]
    >>> category_of([0, 1], asked), category_of([1, 2], asked)
    ('code', None)
    """
    categories = {questions[each]["category"] for each in group}
    return categories.pop() if len(categories) == 1 else None


def by_category(of: Measured, questions: Sequence[Mapping[str, Any]]) -> dict[str, Measured]:
    """The groups of each category, in the order in which categories first come; mixed groups are in none."""
    found: dict[str, dict[tuple[int, ...], Mapping[int, Answers]]] = {}
    for group, repeats in of.items():
        category = category_of(group, questions)
        if category is not None:
            found.setdefault(category, {})[group] = repeats
    return {category: found[category] for category in sorted(found, key=lambda name: min(found[name]))}


def speed_up(of: Measured, base: Measured, questions: Sequence[Mapping[str, Any]]) -> SpeedUp | None:
    """None if no group was measured by both."""
    ours, theirs = _shared(of, base), _shared(base, of)
    if not ours:
        return None
    ratios = sorted(
        (
            GroupRatio(tuple(str(questions[each]["id"]) for each in group), _ratio({group: ours[group]}, theirs).value)
            for group in ours
        ),
        key=lambda each: each.ratio,
    )
    return SpeedUp(
        _ratio(ours, theirs),
        {category: _ratio(groups, theirs) for category, groups in by_category(ours, questions).items()},
        len(ours),
        ratios[0],
        tuple(each for each in ratios if each.ratio < SLOW),
    )


def against_best(
    of: Measured, others: Mapping[str, Measured], questions: Sequence[Mapping[str, Any]]
) -> Against | None:
    """The speed-up against the fastest of the others, each compared on the groups that it shares; None if none does.

    Tokens a second are compared as ratios to those of `of`: one that had easy groups alone is not the fastest for it.
    """
    found = [Against(name, each) for name, other in others.items() if (each := speed_up(of, other, questions))]
    return min(found, key=lambda each: each.speed_up.mix.value, default=None)


def _shared(one: Measured, other: Measured) -> dict[tuple[int, ...], dict[int, Answers]]:
    """Of one, the groups and repeats that the other has too: only what ran side by side is compared."""
    found = {}
    for group, repeats in one.items():
        shared = {repeat: answers for repeat, answers in repeats.items() if repeat in other.get(group, {})}
        if shared:
            found[group] = shared
    return found


def _ratio(of: Measured, base: Measured) -> Interval:
    ours, theirs = [_group(repeats) for repeats in of.values()], [_group(base[group]) for group in of]
    (tokens, seconds), (base_tokens, base_seconds) = zip(*ours, strict=True), zip(*theirs, strict=True)
    return ratio(base_seconds, base_tokens, seconds, tokens)
