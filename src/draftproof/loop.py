"""The oracle: the whole of speculative decoding for one request, on one screen, with everything passed in.

The exact proofs run over this very function, and every faster form must agree with it token for token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from .base import (
    Chance,
    Context,
    Controller,
    Draft,
    Drafter,
    Feed,
    Law,
    LazyRow,
    Load,
    Row,
    Rule,
    Scores,
    Step,
    Target,
    unread,
)
from .commit import Judged, Output, commit
from .trees import path_to

PIECE = 256
"""Tokens of a prompt that are read at once."""


def decode(
    prompt: Sequence[int],
    output: Output,
    *,
    target: Target,
    drafter: Drafter,
    controller: Controller,
    rule: Rule,
    law: Law,
    chance: Chance,
    clock: Callable[[], float] = perf_counter,
) -> Iterator[Step]:
    """Continue `prompt` into `output`, a round at a time, until commit finds a reason to stop."""
    lap = Laps(clock)
    history = list(prompt)
    capacity = len(prompt) + output.limit
    session = target.open(capacity)
    guide = drafter.open(Context(law, target.vocab_size, capacity, session, output.params.temperature))
    for at in range(0, len(prompt) - 1, PIECE):  # the last prompt token is the first pending one
        piece = prompt[at : min(at + PIECE, len(prompt) - 1)]
        [scores] = target.forward([Feed(session, tuple(piece), want=wanted_of_prompt(output, prompt, at, len(piece)))])
        target.commit([session], [()])
        note_prompt(output, prompt, at, scores, law)
    drafter.commit([guide], [prompt])
    state = controller.init()
    lap("prefill")
    while output.finish_reason is None:
        plan = controller.plan(state, Load(len(history), output.remaining, unread=unread(drafter, guide)))
        [draft] = drafter.propose([guide], [plan], [chance])
        lap("propose")
        [scores] = target.forward([Feed(session, (history[-1], *draft.tokens), draft.parents)])
        lap("forward")
        rows = LazyRows(draft, scores, law, history)
        verdict = rule(draft, rows, chance)
        lap("verify")
        kept = commit(output, verdict.tokens, rows.along(verdict.path))
        history += kept
        target.commit([session], [verdict.path[: len(kept) - 1]])  # the last token kept is the next pending one
        drafter.commit([guide], [kept])
        lap("commit")
        drafting = dict.fromkeys(draft.origin, 1)
        step = Step(draft, verdict, kept, lap.take(), rows=1 + len(draft), why=plan.why, drafting=drafting)
        state = controller.update(state, step)
        yield step
        lap.skip()


def wanted_of_prompt(output: Output, prompt: Sequence[int], at: int, count: int) -> tuple[int, ...]:
    """Which of `count` rows from `at` on a request's notes of its prompt need."""
    if output.prompt_note is None:
        return ()
    return tuple(range(max(len(output.prompt_noted) - at, 0), min(count, len(prompt) - 1 - at)))


def note_prompt(output: Output, prompt: Sequence[int], at: int, scores: Scores, law: Law) -> None:
    """Write down what is asked for of the tokens that follow the scored rows of a piece from `at` on."""
    note, first = output.prompt_note, max(at, len(output.prompt_noted))
    for i, logits in enumerate(scores.logits if note is not None else (), first + 1):
        assert note is not None
        output.prompt_noted.append(note(prompt[i], logits, partial(law, logits, list(prompt[:i]))))


class LazyRows(Sequence[Any]):
    """The law after the last committed token (0) and after node i (i + 1), computed when a rule first looks."""

    def __init__(self, draft: Draft, scores: Scores, law: Law, history: Sequence[int]) -> None:
        self._draft, self._scores, self._law, self._history = draft, scores, law, history
        self._known: dict[int, Row | LazyRow] = {}

    @property
    def logits(self) -> np.ndarray:
        """What the laws are made of, [nodes + 1, v]: a kernel starts from these."""
        return self._scores.logits

    def __len__(self) -> int:
        return len(self._draft) + 1

    def __getitem__(self, index):
        if index not in self._known:
            path = [self._draft.tokens[node] for node in path_to(self._draft.parents, index - 1)]
            self._known[index] = self._law(self._scores.logits[index], [*self._history, *path])
        return self._known[index]

    def along(self, path: Sequence[int]) -> Judged:
        """The rows that the tokens of a verdict were drawn from: the one after each node of the path, and the first."""
        index = [0, *(node + 1 for node in path)]
        return lambda i: (self._scores.logits[index[i]], lambda: self[index[i]])


class Laps:
    """Seconds since the last lap, by name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._last, self._seconds = clock, clock(), {}

    def __call__(self, name: str) -> None:
        now = self._clock()
        self._seconds[name] = now - self._last
        self._last = now

    def skip(self) -> None:
        """What the reader did with a step is nobody's time."""
        self._last = self._clock()

    def take(self) -> dict[str, float]:
        seconds, self._seconds = self._seconds, {}
        return seconds
