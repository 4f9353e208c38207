"""The measuring itself: every system answers a group of questions before the next group, in an order drawn for each.

So a machine that drifts drifts for all, and no system always follows the same other one, whose weights fill the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from .record import PLAIN, Divergence, Dropped, Run
from .runner import Ask, Measurement, Runner, RunnerError, Setting, checked, groups, seeds_of

_WARM_TOKENS = 8

Explain = Callable[[Setting, Measurement, Measurement], Sequence[Divergence]]
"""Where a system's answers leave those of plain decoding, if the two can be compared."""


@dataclass(frozen=True, slots=True)
class Group:
    """What came of one group of questions in one setting."""

    measurements: list[Measurement] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asked:
    """prompts: of the run's questions, as tokens. ids: of the questions."""

    prompts: Sequence[Sequence[int]]
    ids: Sequence[str]
    end_ids: tuple[int, ...]
    vocab_size: int
    max_tokens: int
    repeat: int
    seed: int

    def ask(self, setting: Setting, questions: Sequence[int], repeat: int) -> Ask:
        prompts = tuple(tuple(self.prompts[i]) for i in questions)
        about = tuple({"setting": setting.name, "question": self.ids[i], "repeat": repeat} for i in questions)
        seeds = seeds_of(self.seed, questions)
        return Ask(prompts, seeds, setting.temperature, self.max_tokens, self.end_ids, self.vocab_size, about)

    def warm(self, setting: Setting) -> Ask:
        """As many short prompts as are answered at once."""
        prompts = tuple(tuple(self.prompts[i % len(self.prompts)][:16]) for i in range(setting.batch))
        about = ({"setting": setting.name, "question": None, "repeat": None},) * setting.batch
        seeds = (self.seed,) * setting.batch
        most = min(_WARM_TOKENS, self.max_tokens)
        return Ask(prompts, seeds, setting.temperature, most, self.end_ids, self.vocab_size, about)


def measure(run: Run, asked: Asked, runners: Sequence[Sequence[Runner]], explain: Explain) -> Iterator[Group]:
    """What `run` has not got yet, a group at a time. runners: of each setting, plain first. Who fails is out of that
    setting; if it is plain decoding, nothing is left to compare with, and its RunnerError is raised."""
    for at, setting in enumerate(run.settings):
        have = {measurement.questions for measurement in run.measurements if measurement.setting == at}
        left = [each for each in groups(run.questions, setting.batch) if each not in have]
        if not left:
            continue
        out = {each.system for each in run.dropped if each.setting == at}
        able, first = _ready(at, setting, asked, [each for each in runners[at] if each.name not in out])
        yield first
        for questions in left:
            group = _answered(at, setting, asked, questions, able, explain)
            failed = {each.system for each in group.dropped}
            able = [each for each in able if each.name not in failed]
            yield group


def _ready(at: int, setting: Setting, asked: Asked, runners: Sequence[Runner]) -> tuple[list[Runner], Group]:
    """Who takes part, warmed up, and why the others do not."""
    able, dropped = [], []
    for runner in runners:
        why = runner.cannot(setting)
        if why is None:
            why = _fault(runner, asked.warm(setting))
        if why is None:
            able.append(runner)
        else:
            dropped.append(Dropped(runner.name, at, why))
    return able, Group(dropped=dropped)


def _fault(runner: Runner, ask: Ask) -> str | None:
    try:
        runner.answer(ask)
    except RunnerError as error:
        if runner.name == PLAIN:
            raise
        return str(error)
    return None


def _answered(
    at: int, setting: Setting, asked: Asked, questions: tuple[int, ...], able: Sequence[Runner], explain: Explain
) -> Group:
    group = Group()
    random = Random(repr((asked.seed, at, questions)))
    first: dict[str, Measurement] = {}
    for repeat in range(asked.repeat):
        ask = asked.ask(setting, questions, repeat)
        for runner in random.sample(able, len(able)):
            if any(each.system == runner.name for each in group.dropped):
                continue
            try:
                answers = checked(ask, runner.answer(ask), runner.name)
            except RunnerError as error:
                if runner.name == PLAIN:
                    raise
                group.dropped.append(Dropped(runner.name, at, str(error)))
                continue
            measurement = Measurement(at, questions, runner.name, repeat, answers)
            group.measurements.append(measurement)
            first.setdefault(runner.name, measurement)
    for name, measurement in first.items():
        if name != PLAIN:
            group.divergences.extend(explain(setting, first[PLAIN], measurement))
    return group
