"""Controllers of requests that run together: drafting may not make them slower than plain decoding does.

Time is simulated, with the costs of a 1.5B model and its 0.5B draft on two cores: rows of a wide forward are not free,
and the draft model has to read every prompt before it drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from draftproof.base import Controller, Feed, Kind, Load, Scores, Step
from draftproof.chance import PhiloxChance
from draftproof.commit import Output
from draftproof.control import Cost, Costs, Fixed, Record
from draftproof.drafters import ModelDrafter
from draftproof.engine import Engine
from draftproof.memory import KVMemory
from draftproof.models.table import TableTarget, hashed_logits
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of
from draftproof.seats import Request
from tests.test_control import stepped
from tests.toys import Watched

V = 16
TARGET = hashed_logits(V, order=3, scale=3.0)
NOISE = hashed_logits(V, order=3, scale=1.5, salt=1)
PASS, ROW = 0.12, 0.0035
"""Seconds of a forward of the target and of each of its rows."""
LEVEL, READ = 0.015, 0.0016
"""The same of the draft model."""

pytestmark = pytest.mark.usefixtures("unchecked")


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(TableTarget):
    def __init__(self, row: Callable, clock: Clock, forward: float, each: float) -> None:
        super().__init__(row, V)
        self._clock, self._pass, self._per_row = clock, forward, each

    def forward(self, feeds: Sequence[Feed]) -> list[Scores]:
        self._clock.now += self._pass + self._per_row * sum(len(feed.tokens) - feed.known for feed in feeds)
        return super().forward(feeds)


def auto() -> Cost:
    rounds = {rows: PASS + ROW * rows for rows in (1, 4, 8, 12, 16, 24)}
    return Cost(["model"], ["model"], costs=Costs(1, rounds, {"model": LEVEL + READ}, reading={"model": READ}))


def together(controller: Controller, prompt: int, most: int, requests: int = 8) -> tuple[float, dict[str, list[Step]]]:
    """Seconds until all have their answers, and their rounds."""
    clock, params = Clock(), SamplingParams(max_tokens=most, temperature=1.0)
    target = Timed(TARGET, clock, PASS, ROW)
    model = Timed(lambda history: TARGET(history) + NOISE(history), clock, LEVEL, READ)
    drafter = ModelDrafter(model, Kind.COUPLED)
    engine = Engine(target, KVMemory(1 << 30), clock=clock)
    steps: dict[str, list[Step]] = {}
    for i in range(requests):
        text = [1 + (i + 3 * j) % (V - 1) for j in range(prompt + 5 * i)]
        law, chance = law_of(params), PhiloxChance(i)
        engine.add(Request(str(i), text, Output(params, most), drafter, controller, RULES["coupled"], law, chance))
    while engine.busy:
        for event in engine.step():
            assert event.error is None
            steps.setdefault(event.request.name, []).append(event.step)
    return clock.now, steps


def texts(steps: dict[str, list[Step]]) -> dict[str, list[int]]:
    return {name: [token for step in some for token in step.tokens] for name, some in steps.items()}


@pytest.mark.parametrize(("prompt", "most"), [(20, 48), (150, 16), (150, 48), (600, 48), (150, 300)])
def test_eight_together_are_not_slower_than_without_drafts(prompt: int, most: int):
    plain, said = together(Fixed(0), prompt, most)
    seconds, steps = together(auto(), prompt, most)
    assert texts(steps) == texts(said)
    assert plain / seconds > 0.97


def test_what_the_controller_is_there_to_avoid():
    plain, _ = together(Fixed(0), 150, 48)
    seconds, _ = together(Fixed(4), 150, 48)
    assert plain / seconds < 0.9


def test_one_alone_has_the_prompt_read_and_gains():
    plain, _ = together(Fixed(0), 150, 48, requests=1)
    seconds, steps = together(auto(), 150, 48, requests=1)
    assert plain / seconds > 1.1
    assert any(len(step.draft) for step in steps["0"])


def test_steps_and_loads_tell_what_the_others_do():
    """A short prompt decodes while a long one is read."""
    _, steps = together(watched := Watched(Fixed(2)), 254, 8, requests=2)
    first, loads = steps["0"], watched.loads
    assert [step.prompt_rows for step in first[:2]] == [253, 256 - 3]
    assert first[0].rows == first[0].prompt_rows + 3
    assert {tuple(step.drafting.items()) for step in first} <= {(("model", 1),), (("model", 2),), ()}
    assert loads[0].unread == {"model": 254}
    assert 0 <= loads[-1].unread["model"] <= 3


def test_a_record_does_not_make_up_for_what_reading_costs():
    """However good its drafts were before: an answer too short to pay for the reading stays without."""
    costs = Costs(1, {1: PASS + ROW, 24: PASS + 24 * ROW}, {"model": LEVEL}, reading={"model": READ})
    record = Record()
    for _ in range(50):
        record.add(stepped(4, 4))
    controller, plans = Cost(["model"], ["model"], costs=costs, record=record), {}
    for tokens in (100, 1000):
        plans[tokens] = controller.plan(controller.init(), Load(tokens, 16, unread={"model": tokens}))
    assert plans[100].depth > 0
    assert plans[1000].why.startswith("off: model would read 1000 tokens first")
