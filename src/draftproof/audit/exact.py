"""Exact enumeration: every random path of a computation, with its exact weight.

A computation that draws only through `Chance` is run again and again, each time answering its draws differently, until
every path has been walked. Over `fractions.Fraction` the law of its result then must EQUAL the target's: no tolerance.

Each key owns one uniform number, known up to an interval of [0, 1) that every coin and pick on that key refines, so a
fault that re-uses noise shows as a wrong law. (In production a pick reads one uniform a token, not one in all: there
such a fault is wrong too, by another amount. That no rule asks a key twice is a test of its own, in test_contract.py.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from math import prod
from typing import Any, TypeVar

import numpy as np

from ..base import Chance, Controller, Drafter, Key, Law, Row, Rule, Step, Target
from ..chance import heads
from ..commit import Output
from ..laws import total
from ..loop import decode
from ..sampling import SamplingParams

T = TypeVar("T")
Interval = tuple[Fraction, Fraction]
Laws = dict[Any, Fraction]


class EnumeratedChance:
    """Follows a script of choices, then takes the first branch of everything new and notes how many there were."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.taken: list[int] = []
        self.branches: list[int] = []
        self._shares: list[Fraction] = []
        self._interval: dict[Key, Interval] = {}

    @property
    def weight(self) -> Fraction:
        """The probability of the path."""
        return Fraction(prod(s.numerator for s in self._shares), prod(s.denominator for s in self._shares))

    def uniform(self, key: Key) -> Any:
        raise TypeError("uniform: an enumerated draw has no number, only an interval; ask coin or pick")

    def coin(self, prob: Any, key: Key) -> bool:
        if prob < 0:
            raise ValueError(f"prob: {prob} at {key} is negative")
        if prob <= 0 or prob >= 1:
            return heads(Fraction(0), prob)
        prob = Fraction(prob)
        # a part [a, b) is judged at its left end, which belongs to it: a coin that is not strict shows
        edges = (Fraction(0), prob, Fraction(1))
        parts = ((edges[0], edges[1]), (edges[1], edges[2]))
        return heads(edges[self._branch(key, parts, (prob, 1 - prob))], prob)

    def pick(self, weights: Row, key: Key, k: int = 1) -> tuple[int, ...]:
        left = [w if isinstance(w, Fraction) else Fraction(w) for w in weights]
        picked: list[int] = []
        low, high = Fraction(0), Fraction(1)
        for _ in range(k):
            ids, parts, shares = _partition(tuple((w.numerator, w.denominator) for w in left))
            if not ids:
                raise ValueError(f"weights: {sum(w > 0 for w in weights)} positive at {key}, cannot pick {k}")
            if picked:  # a later draw refines the part that the earlier ones chose
                parts = tuple((low + a * (high - low), low + b * (high - low)) for a, b in parts)
            choice = self._branch(key, parts, shares) if len(ids) > 1 else 0
            low, high = parts[choice]
            picked.append(ids[choice])
            left[ids[choice]] = Fraction(0)
        return tuple(picked)

    def _branch(self, key: Key, parts: Sequence[Interval], shares: Sequence[Fraction]) -> int:
        """Choose one of the parts that overlap the key's interval, and narrow the interval to it.

        shares: the lengths of the parts, for a key that was not asked before.
        """
        known = self._interval.get(key)
        turn = len(self.taken)
        choice = self._script[turn] if turn < len(self._script) else 0
        self.taken.append(choice)
        if known is None:
            self.branches.append(len(parts))
            self._shares.append(shares[choice])
            self._interval[key] = parts[choice]
            return choice
        low, high = known
        cut = [(i, max(a, low), min(b, high)) for i, (a, b) in enumerate(parts)]
        open_parts = [(i, a, b) for i, a, b in cut if a < b]
        self.branches.append(len(open_parts))
        part, a, b = open_parts[choice]
        self._shares.append((b - a) / (high - low))
        self._interval[key] = (a, b)
        return part


@lru_cache(maxsize=1 << 16)
def _partition(
    weights: tuple[tuple[int, int], ...],
) -> tuple[tuple[int, ...], tuple[Interval, ...], tuple[Fraction, ...]]:
    """Of weights (numerator, denominator): the positive ones' indices, places side by side in [0, 1), and shares."""
    positive = {i: Fraction(*w) for i, w in enumerate(weights) if w[0] > 0}
    whole = sum(positive.values(), Fraction(0))
    shares = tuple(w / whole for w in positive.values())
    edges = tuple(accumulate(shares, initial=Fraction(0)))
    return tuple(positive), tuple(pairwise(edges)), shares


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
    """The law of a table that holds laws instead of logits, normalised where a row was cut to a smaller vocabulary."""
    mass = total(row)
    return row if mass == 1 else row / mass


@dataclass(frozen=True, slots=True)
class LoopCase:
    """One decode to be proven: target laws, a drafter, a rule, and where the text ends.

    rounds: how many rounds run through the loop. What the text still lacks is then drawn from the target's own laws, in
    closed form: a step is lossless if and only if its tokens, so completed, have the target's law. None: all of them.
    """

    row: Callable[[Sequence[int]], Row]
    target: Callable[[], Target]
    drafter: Callable[[], Drafter]
    controller: Controller
    rule: Rule
    prompt: tuple[int, ...] = (0,)
    max_tokens: int = 4
    end_ids: frozenset[int] = field(default_factory=frozenset)
    rounds: int | None = None
    law: Law = identity_law


def steps_of(case: LoopCase, chance: Chance) -> tuple[tuple[int, ...], list[Step]]:
    """One walk through the case's rounds: what was emitted, and the steps."""
    output = Output(SamplingParams(max_tokens=case.max_tokens), case.max_tokens, case.end_ids)
    steps = decode(
        case.prompt,
        output,
        target=case.target(),
        drafter=case.drafter(),
        controller=case.controller,
        rule=case.rule,
        law=case.law,
        chance=chance,
    )
    taken = list(islice(steps, case.rounds))
    return tuple(output.token_ids), taken


def emitted_law(case: LoopCase) -> Laws:
    """The exact joint law of everything the case emits."""
    law: Laws = {}
    for text, weight in law_of_result(lambda chance: steps_of(case, chance)[0]).items():
        _complete(case, text, weight, law)
    return law


def target_law(case: LoopCase) -> Laws:
    """The exact joint law of plain sampling, from the table alone: no loop, no rule, no chance."""
    law: Laws = {}
    _complete(case, (), Fraction(1), law)
    return law


def _complete(case: LoopCase, text: tuple[int, ...], weight: Fraction, law: Laws) -> None:
    """Add to `law` all endings of `text`, drawn from the table."""
    if len(text) == case.max_tokens or (text and text[-1] in case.end_ids):
        law[text] = law.get(text, Fraction(0)) + weight
        return
    history = [*case.prompt, *text]
    for token, p in enumerate(case.law(case.row(history), history)):
        if p > 0:
            _complete(case, (*text, token), weight * p, law)


def deviation(a: Laws, b: Laws) -> Fraction:
    """Half the sum of |a − b|: total variation between two laws, exactly 0 if and only if they are equal."""
    return sum((abs(a.get(x, Fraction(0)) - b.get(x, Fraction(0))) for x in a.keys() | b.keys()), Fraction(0)) / 2
