"""Toys that the tests share: language models whose every law is known, and drafters as wrong as they are told to be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random

import numpy as np

from draftproof.audit.exact import fractions_row
from draftproof.base import (
    Chance,
    Context,
    Controller,
    Draft,
    Drafter,
    Kind,
    Law,
    Load,
    Plan,
    Row,
    Rule,
    Step,
    token_key,
)
from draftproof.commit import Output
from draftproof.control import Fixed
from draftproof.loop import decode
from draftproof.models.table import TableTarget
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of

Table = Callable[[Sequence[int]], Row]


def exact_table(vocab_size: int, salt: str, support: Sequence[int] | None = None, most: int = 4) -> Table:
    """A law of small fractions after every history: it depends on all of it, so no cache can be wrong unseen.

    The rows are read-only: a rule that writes into one fails.
    """
    ids = range(vocab_size) if support is None else support

    @cache
    def known(history: tuple[int, ...]) -> Row:
        rng = Random(f"{salt} {history}")
        row = fractions_row(*(rng.randint(1, most) if token in ids else 0 for token in range(vocab_size)))
        row.flags.writeable = False
        return row

    return lambda history: known(tuple(history))


WITNESS = exact_table(3, "p9", most=9), exact_table(3, "q9", most=9)
"""A target and a draft model on which every fault in test_mutants.py is visible. Most pairs hide one or two."""


def constant(row: Row) -> Table:
    """The same row after every history."""
    return lambda history: row


@dataclass(slots=True)
class Text:
    tokens: list[int] = field(default_factory=list)


class Chooser:
    """Drafts what `choose(history)` says, token after token: chosen drafts, unless `q` claims they were sampled."""

    def __init__(self, choose: Callable[[Sequence[int]], int], q: Table | None = None) -> None:
        self._choose, self._q = choose, q

    def open(self, context: Context) -> Text:
        return Text()

    def commit(self, sessions: Sequence[Text], tokens: Sequence[Sequence[int]]) -> None:
        for session, new in zip(sessions, tokens, strict=True):
            session.tokens += new

    def propose(self, sessions: Sequence[Text], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        return [self._propose(session, plan.depth) for session, plan in zip(sessions, plans, strict=True)]

    def _propose(self, session: Text, depth: int) -> Draft:
        history = list(session.tokens)
        rows = []
        for _ in range(depth):
            if self._q is not None:
                rows.append(self._q(history))
            history.append(self._choose(history))
        root = len(session.tokens)
        return Draft.chain(root, history[root:], Kind.SAMPLED if rows else Kind.CHOSEN, "chooser", rows)


class Edited:
    """Another drafter's drafts, each changed by `edit` before anybody sees it."""

    def __init__(self, drafter: Drafter, edit: Callable[[Draft], Draft]) -> None:
        self._drafter, self._edit = drafter, edit

    def open(self, context: Context):
        return self._drafter.open(context)

    def commit(self, sessions, tokens) -> None:
        self._drafter.commit(sessions, tokens)

    def propose(self, sessions, plans, chances) -> list[Draft]:
        return [self._edit(draft) for draft in self._drafter.propose(sessions, plans, chances)]


@dataclass(frozen=True)
class Eager:
    """Drafts `depth` tokens however few may still be emitted, so that the length cuts inside a block."""

    depth: int

    def init(self) -> None:
        return None

    def plan(self, state: None, load: Load) -> Plan:
        return Plan(self.depth)

    def update(self, state: None, step: Step) -> None:
        return None


@dataclass(frozen=True)
class Moody:
    """Drafts nothing, one or two tokens, by what the round before committed."""

    def init(self) -> int:
        return 2

    def plan(self, state: int, load: Load) -> Plan:
        return Plan(min(state, load.remaining - 1))

    def update(self, state: int, step: Step) -> int:
        return (len(step.tokens) + state) % 3


class Watched:
    """A controller that keeps every step it is shown."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.longest, self.rejected, self.cut, self.bonus = 0, False, False, False

    def init(self):
        return self._controller.init()

    def plan(self, state, load: Load) -> Plan:
        return self._controller.plan(state, load)

    def update(self, state, step: Step):
        self.longest = max(self.longest, len(step.tokens))
        self.rejected |= step.verdict.last == "replacement"
        self.cut |= len(step.tokens) < len(step.verdict.tokens)
        self.bonus |= step.bonus > 0
        return self._controller.update(state, step)


def argmax(row: Row) -> int:
    return int(np.argmax(row))


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
