"""Toys that the tests share: language models whose every law is known, and drafters as wrong as they are told to be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from draftproof.audit.toys import Table
from draftproof.base import Chance, Controller, Drafter, Key, Kind, Law, Load, Row, Rule, Step, Target, token_key
from draftproof.commit import Output
from draftproof.control import Fixed
from draftproof.drafters import NGramDrafter
from draftproof.drafters.worth import bin_of
from draftproof.engine import Engine, EngineConfig
from draftproof.loop import decode
from draftproof.memory import KVMemory
from draftproof.models.table import TableTarget
from draftproof.plan import Plan
from draftproof.rules import NEEDS, RULES, why_not
from draftproof.sampling import SamplingParams, law_of
from draftproof.seats import Request

CHAIN_RULES = [name for name in RULES if why_not(name, (-1, 0), (Kind.CHOSEN,) * 2) is None]
"""The rules that take chains of any length."""


def kind_for(rule: str) -> Kind:
    """How a model drafter draws for a rule."""
    return Kind.COUPLED if NEEDS[rule].coupled else Kind.SAMPLED


def constant(row: Row) -> Table:
    """The same row after every history."""
    return lambda history: row


class Watched:
    """A controller that keeps what it is told before a round, and what happened."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.loads: list[Load] = []
        self.longest, self.rejected, self.cut, self.bonus = 0, False, False, False

    def init(self):
        return self._controller.init()

    def plan(self, state, load: Load) -> Plan:
        self.loads.append(load)
        return self._controller.plan(state, load)

    def update(self, state, step: Step):
        self.longest = max(self.longest, len(step.tokens))
        self.rejected |= step.verdict.last == "replacement"
        self.cut |= len(step.tokens) < len(step.verdict.tokens)
        self.bonus |= step.bonus > 0
        return self._controller.update(state, step)


def decoded(
    table: Table,
    vocab_size: int,
    drafter: Drafter,
    chance: Chance,
    *,
    prompt: Sequence[int] = (0,),
    rule: str | Rule = "coupled",
    k: int = 3,
    controller: Controller | None = None,
    params: SamplingParams | None = None,
    law: Law | None = None,
    output: Output | None = None,
    max_context: int = 1 << 20,
) -> tuple[Output, list[Step]]:
    """One whole decode on a table: what it said, and its rounds. `output`, if given, is the one that is filled."""
    params = params or SamplingParams()
    output = output or Output(params, params.max_tokens)
    steps = decode(
        prompt,
        output,
        target=TableTarget(table, vocab_size, max_context),
        drafter=drafter,
        controller=controller or Fixed(k),
        rule=RULES[rule] if isinstance(rule, str) else rule,
        law=law or law_of(params),
        chance=chance,
    )
    return output, list(steps)


def reference(
    table: Table, prompt: Sequence[int], count: int, chance: Chance, params: SamplingParams | None = None
) -> list[int]:
    """The plainest loop there is: one token at a time, no cache, no drafter, no rule."""
    law = law_of(params or SamplingParams())
    history = list(prompt)
    for _ in range(count):
        history += chance.pick(law(table(history), history), token_key(len(history)))
    return history[len(prompt) :]


class Likeliest:
    """A chance without chance: the largest weight, the likelier side. For mates whose numbers may be fractions."""

    def uniform(self, key: Key) -> float:
        return 0.5

    def coin(self, prob: Any, key: Key) -> bool:
        return bool(2 * prob > 1)

    def pick(self, weights: Any, key: Key, k: int = 1) -> tuple[int, ...]:
        return tuple(sorted(range(len(weights)), key=lambda token: -weights[token])[:k])


def decode_in_company(
    prompt: Sequence[int],
    output: Output,
    *,
    target: Target,
    drafter: Drafter,
    controller: Controller,
    rule: Rule,
    law: Law,
    chance: Chance,
    check: bool = False,
) -> Iterator[Step]:
    """`loop.decode`, by the engine: beside two mates, one there before and one that joins later. check: all caches
    after every round."""
    engine = Engine(target, KVMemory(1 << 40), EngineConfig(max_num_seqs=3, max_num_batched_tokens=7, check=check))
    ours = Request("ours", prompt, output, drafter, controller, rule, law, chance)
    limit = min(5, target.max_context - len(prompt))
    mates = [
        Request(
            name,
            prompt,
            Output(SamplingParams(), limit),
            NGramDrafter(2, 1),
            Fixed(2),
            RULES["coupled"],
            law,
            Likeliest(),
        )
        for name in ("before", "later")
    ]
    engine.add(mates[0])
    engine.step()
    engine.add(ours)
    while output.finish_reason is None:
        for event in engine.step():
            if event.error is not None:
                raise event.error
            if event.request is ours:
                if event.step.draft.root == len(prompt):
                    engine.add(mates[1])
                yield event.step


class Letters:
    """A detokenizer of given pieces; token i is `pieces[i]`."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces

    def add(self, token: int) -> str:
        return self._pieces[token]

    def flush(self) -> str:
        return ""


def chi_square(counts: Sequence[int], law: Sequence[float]) -> float:
    """Pearson's statistic of counts against a law without zeros."""
    n = sum(counts)
    return sum((count - n * p) ** 2 / (n * p) for count, p in zip(counts, law, strict=True))


def chi_square_limit(degrees: int, alpha: float = 1e-9) -> float:
    """What a chi-square variable exceeds with probability at most alpha (Laurent and Massart 2000, lemma 1)."""
    t = -math.log(alpha)
    return degrees + 2 * math.sqrt(degrees * t) + 2 * t


class Known:
    """A `Trust` of [ranks][BINS + 1] shares, the same at every level."""

    def __init__(self, table: Sequence[Sequence[float]]) -> None:
        self._table = table

    def share(self, level: int, rank: int, confidence: float | None) -> float:
        of_rank = self._table[min(rank, len(self._table) - 1)]
        return of_rank[-1 if confidence is None else bin_of(confidence)]
