"""The engine agrees with the oracle, token for token and round for round, whatever company a request keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pytest

from draftproof.audit.toys import Eager, Moody, chooser
from draftproof.base import Controller, Drafter, Step
from draftproof.chance import PhiloxChance
from draftproof.commit import Output
from draftproof.control import Fixed
from draftproof.drafters import ModelDrafter, NGramDrafter, NoDrafter
from draftproof.engine import Engine, EngineConfig
from draftproof.loop import decode
from draftproof.memory import BLOCK, KVMemory
from draftproof.models.table import TableTarget, hashed_logits
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of
from draftproof.seats import Request
from tests.toys import CHAIN_RULES, kind_for

V = 12
TABLE = hashed_logits(V, order=3, scale=1.5)
NEAR = hashed_logits(V, order=3, scale=1.5, salt=1)
PLENTY = 1 << 30

pytestmark = pytest.mark.usefixtures("unchecked")


def noisy(history: Sequence[int]) -> np.ndarray:
    return (0.8 * TABLE(history) + 0.4 * NEAR(history)).astype(np.float32)


DRAFTERS: dict[str, Callable[[str], Drafter]] = {
    "none": lambda rule: NoDrafter(),
    "ngram": lambda rule: NGramDrafter(3, 1),
    "noisy": lambda rule: ModelDrafter(TableTarget(noisy, V), kind_for(rule)),
    "wrong": lambda rule: chooser(lambda history: int(np.argmin(TABLE(history)))),
}


@dataclass(frozen=True)
class Asked:
    """A request as plain data, so that it can be made twice."""

    name: str
    prompt: tuple[int, ...]
    seed: int = 0
    drafter: str = "ngram"
    rule: str = "coupled"
    controller: Controller = field(default_factory=lambda: Fixed(3))
    params: SamplingParams = field(default_factory=lambda: SamplingParams(max_tokens=20))
    end_ids: frozenset[int] = frozenset()

    def request(self, drafters: dict[tuple[str, str], Drafter] | None = None) -> Request:
        """drafters: shared by those who ask for the same one."""
        key = self.drafter, self.rule
        made = DRAFTERS[self.drafter](self.rule) if drafters is None or key not in drafters else drafters[key]
        if drafters is not None:
            drafters[key] = made
        output = Output(self.params, self.params.max_tokens, self.end_ids)
        law, chance = law_of(self.params), PhiloxChance(self.seed)
        return Request(self.name, self.prompt, output, made, self.controller, RULES[self.rule], law, chance)


def alone(asked: Asked, target: TableTarget | None = None) -> tuple[Output, list[Step]]:
    """By the oracle."""
    request = asked.request()
    steps = decode(
        request.prompt,
        request.output,
        target=target or TableTarget(TABLE, V),
        drafter=request.drafter,
        controller=request.controller,
        rule=request.rule,
        law=request.law,
        chance=request.chance,
    )
    return request.output, [replace(step, seconds={}) for step in steps]


def engine(limit: int = PLENTY, target: TableTarget | None = None, **options) -> Engine:
    config = EngineConfig(**{"check": True} | options)
    return Engine(target or TableTarget(TABLE, V), KVMemory(limit), config)


def run(engine: Engine, events: list | None = None) -> dict[str, list[Step]]:
    """Until nobody is left: the steps of each; an error is raised."""
    steps: dict[str, list[Step]] = {}
    while engine.busy:
        for event in engine.step():
            if event.error is not None:
                raise event.error
            steps.setdefault(event.request.name, []).append(replace(event.step, seconds={}))
    return steps


def same_rounds(one: Sequence[Step], other: Sequence[Step]) -> bool:
    """Drafts, verdicts and tokens; the arrays in a draft by value."""

    def plain(step: Step) -> tuple:
        draft = step.draft
        rows = [np.asarray(row).tolist() for row in draft.rows]
        return draft.root, draft.tokens, draft.parents, draft.kind, rows, step.verdict, step.tokens

    return [plain(step) for step in one] == [plain(step) for step in other]


PARAMS = [
    SamplingParams(temperature=0, max_tokens=12),
    SamplingParams(max_tokens=25),
    SamplingParams(temperature=0.7, top_k=6, top_p=0.9, min_p=0.02, max_tokens=17),
    SamplingParams(max_tokens=1),
]


CONTROLLERS = [Fixed(0), Fixed(1), Fixed(4), Eager(3), Moody()]


def some_request(random: Random, index: int) -> Asked:
    beginning = (1, 2, 3, 4, 5, 6, 7, 8) * 4
    prompt = beginning[: random.choice([0, 20, 32])] + tuple(random.randrange(V) for _ in range(random.randint(1, 100)))
    return Asked(
        f"r{index}",
        prompt,
        random.randrange(4),
        random.choice(sorted(DRAFTERS)),
        random.choice(CHAIN_RULES),
        random.choice(CONTROLLERS),
        random.choice(PARAMS),
        random.choice([frozenset(), frozenset({3})]),
    )


@pytest.mark.parametrize("seed", range(80))
def test_every_request_is_as_it_is_alone(seed: int):
    """Mixed settings, rules, drafters and controllers, spread arrivals, cancellations, rests, any bound on anything."""
    random = Random(seed)
    many = [some_request(random, i) for i in range(random.randint(1, 7))]
    largest = max(len(asked.prompt) + asked.params.max_tokens + 4 for asked in many)
    runner = engine(
        2 * BLOCK * -(-largest // BLOCK) * random.randint(1, 4),
        max_num_seqs=random.randint(1, 5),
        max_num_batched_tokens=random.randint(1, 40),
        enable_prefix_caching=random.random() < 0.7,
    )
    shared: dict = {}
    waiting = [asked.request(shared) for asked in many]
    made = {request.name: request for request in waiting}
    cancelled, rests, steps = set(), set(), {asked.name: [] for asked in many}
    while waiting or runner.busy or rests:
        if waiting and random.random() < 0.5:
            runner.add(waiting.pop(0))
        if random.random() < 0.02:
            name = random.choice(many).name
            if runner.cancel(name):
                cancelled.add(name)
        if random.random() < 0.1:
            rests.add(random.choice(many).name)
        if not runner.busy or random.random() < 0.2:
            rests.clear()
        for asked in many:
            runner.hold(asked.name, asked.name in rests)
        for event in runner.step():
            assert event.error is None
            steps[event.request.name].append(replace(event.step, seconds={}))
    for asked in many:
        output, known = alone(asked)
        if asked.name in cancelled:
            assert same_rounds(steps[asked.name], known[: len(steps[asked.name])])
        else:
            assert made[asked.name].output.token_ids == output.token_ids
            assert same_rounds(steps[asked.name], known)
    runner.clear()
    assert runner.memory.used == 0
