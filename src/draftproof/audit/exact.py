"""Exact enumeration: every random path of a computation, with its exact weight.

A computation that draws only through `Chance` is run again and again, each time answering its draws differently, until
every path has been walked. Over `fractions.Fraction` the law of its result then must EQUAL the target's: no tolerance.

Each key owns one uniform number, and so does here: an interval of [0, 1) that every coin and pick on that key refines.
Equal keys share noise as they do in production, so a fault that re-uses noise shows as a wrong law.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from ..base import Chance, Controller, Drafter, Key, Row, Rule, Target
from ..commit import Output
from ..loop import decode
from ..sampling import SamplingParams

T = TypeVar("T")
Interval = tuple[Fraction, Fraction]
Laws = dict[Hashable, Fraction]


class EnumeratedChance:
    """Follows a script of choices, then takes the first branch of everything new and notes how many there were."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.taken: list[int] = []
        self.branches: list[int] = []
        self.weight = Fraction(1)
        self._interval: dict[Key, Interval] = {}

    def uniform(self, key: Key) -> Any:
        raise TypeError("uniform: an enumerated draw has no number, only an interval; ask coin or pick")

    def coin(self, prob: Any, key: Key) -> bool:
        if prob < 0:
            raise ValueError(f"prob: {prob} at {key} is negative")
        if prob <= 0 or prob >= 1:
            return prob >= 1
        prob = Fraction(prob)
        # u < prob: 0 is the left part, which accepts
        return self._branch(key, [(Fraction(0), prob), (prob, Fraction(1))]) == 0

    def pick(self, weights: Row, key: Key, k: int = 1) -> tuple[int, ...]:
        left = {i: Fraction(w) for i, w in enumerate(weights) if w > 0}
        if len(left) < k:
            raise ValueError(f"weights: {len(left)} positive at {key}, cannot pick {k}")
        picked: list[int] = []
        low, high = Fraction(0), Fraction(1)
        for _ in range(k):
            ids, parts = list(left), []
            scale, edge = (high - low) / sum(left.values()), low
            for i in ids:
                parts.append((edge, edge + left[i] * scale))
                edge += left[i] * scale
            choice = self._branch(key, parts) if len(ids) > 1 else 0
            low, high = parts[choice]
            picked.append(ids[choice])
            del left[ids[choice]]
        return tuple(picked)

    def _branch(self, key: Key, parts: Sequence[Interval]) -> int:
        """Choose one of the parts that overlap the key's interval, and narrow the interval to it."""
        low, high = self._interval.get(key, (Fraction(0), Fraction(1)))
        open_parts = [(i, max(a, low), min(b, high)) for i, (a, b) in enumerate(parts) if max(a, low) < min(b, high)]
        turn = len(self.taken)
        choice = self._script[turn] if turn < len(self._script) else 0
        self.taken.append(choice)
        self.branches.append(len(open_parts))
        part, a, b = open_parts[choice]
        self.weight *= (b - a) / (high - low)
        self._interval[key] = (a, b)
        return part


def paths(run: Callable[[Chance], T]) -> Iterator[tuple[Fraction, T]]:
    """Every outcome of `run` with its exact weight; the weights add up to 1."""
    script: list[int] | None = []
    while script is not None:
        chance = EnumeratedChance(script)
        result = run(chance)
        yield chance.weight, result
        script = _next_script(chance)


def _next_script(chance: EnumeratedChance) -> list[int] | None:
    """The next path in depth-first order: advance the last draw that has a branch left."""
    for turn in range(len(chance.taken) - 1, -1, -1):
        if chance.taken[turn] + 1 < chance.branches[turn]:
            return [*chance.taken[:turn], chance.taken[turn] + 1]
    return None


def law_of_result(run: Callable[[Chance], Hashable]) -> Laws:
    """The exact law of what `run` returns.

    >>> from draftproof.base import Purpose
    >>> law = law_of_result(lambda chance: chance.coin(Fraction(1, 3), Key(1, 0, Purpose.ACCEPT)))
    >>> law[True], law[False]
    (Fraction(1, 3), Fraction(2, 3))
    """
    law: Laws = {}
    for weight, result in paths(run):
        law[result] = law.get(result, Fraction(0)) + weight
    return law


def fractions_row(*values: Any) -> Row:
    """A row of exact numbers, normalised.

    >>> fractions_row(1, 1, 2)
    array([Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)], dtype=object)
    """
    exact = [Fraction(value) for value in values]
    whole = sum(exact)
    return np.array([value / whole for value in exact], dtype=object)


def identity_law(row: Row, history: Sequence[int]) -> Row:
    """The law of a table that holds laws instead of logits."""
    return row


@dataclass(frozen=True, slots=True)
class LoopCase:
    """One whole decode to be proven: target laws, a drafter, a rule, and where the text ends."""

    row: Callable[[Sequence[int]], Row]
    target: Callable[[], Target]
    drafter: Callable[[], Drafter]
    controller: Controller
    rule: Rule
    prompt: tuple[int, ...] = (0,)
    max_tokens: int = 4
    end_ids: frozenset[int] = field(default_factory=frozenset)


def emitted_law(case: LoopCase) -> Laws:
    """The exact joint law of everything `decode` emits."""

    def run(chance: Chance) -> tuple[int, ...]:
        output = Output(SamplingParams(max_tokens=case.max_tokens), case.max_tokens, case.end_ids)
        steps = decode(
            case.prompt,
            output,
            target=case.target(),
            drafter=case.drafter(),
            controller=case.controller,
            rule=case.rule,
            law=identity_law,
            chance=chance,
        )
        for _ in steps:
            pass
        return tuple(output.token_ids)

    return law_of_result(run)


def target_law(case: LoopCase) -> Laws:
    """The exact joint law of plain sampling, from the table alone: no loop, no rule, no chance."""
    law: Laws = {}

    def grow(text: tuple[int, ...], weight: Fraction) -> None:
        if len(text) == case.max_tokens or (text and text[-1] in case.end_ids):
            law[text] = weight
            return
        for token, p in enumerate(case.row([*case.prompt, *text])):
            if p > 0:
                grow((*text, token), weight * p)

    grow((), Fraction(1))
    return law


def deviation(a: Laws, b: Laws) -> Fraction:
    """Total variation between two laws: exactly 0 if and only if they are equal."""
    return sum((abs(a.get(x, Fraction(0)) - b.get(x, Fraction(0))) for x in a.keys() | b.keys()), Fraction(0)) / 2
