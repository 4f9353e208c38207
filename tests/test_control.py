# ruff: noqa: N802
"""Controllers: what they plan, that they never lose much, and that no text depends on them.

Time is simulated: every forward moves a clock by what it is said to cost, so figures are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest

from draftproof.audit.toys import chooser
from draftproof.base import Context, Controller, Draft, Drafter, Feed, Kind, Load, Scores, Step, Verdict, unread
from draftproof.chance import PhiloxChance
from draftproof.commit import Output
from draftproof.control import CONTROLLERS, Cost, Costs, Fixed, Record, Threshold
from draftproof.control.costs import bucket_of
from draftproof.drafters import CombinedDrafter, ModelDrafter, NGramDrafter, SuffixDrafter
from draftproof.drafters.outlook import expected_rate
from draftproof.drafters.worth import BINS
from draftproof.loop import decode
from draftproof.models.table import TableTarget, hashed_logits
from draftproof.plan import Plan, Terms
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of
from draftproof.theory import acceptance_report, advised, expected_tokens, speed_up
from tests.toys import Known

V = 16
TARGET = hashed_logits(V, order=3, scale=3.0)
NOISE = hashed_logits(V, order=3, scale=1.5, salt=1)
LEVEL, ROW = 0.2, 0.02
"""Seconds of a drafted level and of a row more; a round of one row takes one."""


def verify(rows: int) -> float:
    return 1.0 + ROW * (rows - 1)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(TableTarget):
    """A table whose forwards take time."""

    def __init__(self, row: Callable[[Sequence[int]], Any], clock: Clock, cost: Callable[[int], float]) -> None:
        super().__init__(row, V)
        self._clock, self._cost, self.calls = clock, cost, 0

    def forward(self, feeds: Sequence[Feed]) -> list[Scores]:
        if any(feed.wanted for feed in feeds):
            self._clock.now += self._cost(sum(len(feed.tokens) - feed.known for feed in feeds))
            self.calls += 1
        return super().forward(feeds)


@dataclass
class Run:
    tokens: list[int]
    steps: list[Step]
    seconds: float
    drafted_late: int  # draft calls after the first 100 tokens


DRAFTS = {
    "WRONG": lambda history: -TARGET(history),
    "NOISY": lambda history: TARGET(history) + NOISE(history),
    "SELF": TARGET,
}


def run(drafts: str | None, controller: Controller, tokens: int = 400, rule: str = "coupled", t: float = 1.0) -> Run:
    clock = Clock()
    target = Timed(TARGET, clock, verify)
    kind = Kind.COUPLED if rule == "coupled" else Kind.SAMPLED
    model = Timed(DRAFTS[drafts or "SELF"], clock, lambda rows: LEVEL)
    params = SamplingParams(max_tokens=tokens, temperature=t)
    output, law, steps, late = Output(params, tokens), law_of(params), [], 0
    rounds = decode(
        (1, 2, 3),
        output,
        target=target,
        drafter=ModelDrafter(model, kind),
        controller=controller,
        rule=RULES[rule],
        law=law,
        chance=PhiloxChance(7),
        clock=clock,
    )
    began = None
    for step in rounds:
        began = clock.now - sum(step.seconds.values()) if began is None else began
        late += len(output.token_ids) > 100 and len(step.draft) > 0
        steps.append(step)
    return Run(output.token_ids, steps, clock.now, late)


def auto(**changes: Any) -> Cost:
    costs = Costs(1, {n: verify(n) for n in (1, 4, 8, 16)}, {"model": LEVEL})
    return Cost(["model"], ["model"], costs=costs, **changes)


PLAIN = run(None, Fixed(0))


@pytest.mark.parametrize("depth", [1, 3, 6])
@pytest.mark.parametrize("drafts", DRAFTS)
def test_T43_the_predicted_sign_of_the_speed_up_is_the_measured_one(drafts: str, depth: int):
    found = run(drafts, Fixed(depth))
    reached = [step for step in found.steps if len(step.draft)]
    accepted, refused = sum(s.accepted for s in reached), sum(s.verdict.last == "replacement" for s in reached)
    predicted = speed_up([accepted / (accepted + refused)] * depth, LEVEL, verify)
    measured = PLAIN.seconds / found.seconds
    assert abs(predicted - 1) > 0.05
    assert (predicted > 1) == (measured > 1)
    assert found.tokens == PLAIN.tokens


def test_T43_a_wrong_drafter_is_switched_off_and_changes_nothing():
    found = run("WRONG", auto(), tokens=1000)
    rounds = sum(1 for _ in found.steps) - 100
    assert found.drafted_late < 0.05 * rounds
    assert found.tokens[:400] == PLAIN.tokens
    assert 1000 / found.seconds > 0.97
    assert any(step.why.startswith("off: expected 0.") for step in found.steps)


def test_T43_a_drafter_that_chooses_wrongly_is_switched_off_too():
    params = SamplingParams(max_tokens=600)
    output, calls = Output(params, 600), []

    def wrong(history: Sequence[int]) -> int:
        calls.append(len(history))
        return int(TARGET(history).argmin())

    law = law_of(params)
    steps = decode(
        (1, 2, 3),
        output,
        target=TableTarget(TARGET, V),
        drafter=chooser(wrong),
        controller=Cost(["chooser"], costs=Costs(1, {1: 1.0, 4: 1.05}), depth=1),
        rule=RULES["coupled"],
        law=law,
        chance=PhiloxChance(7),
    )
    assert sum(1 for _ in steps) >= 590
    assert output.token_ids[:400] == PLAIN.tokens
    assert sum(at > 100 for at in calls) < 0.05 * 500


@pytest.mark.parametrize("t", [0.0, 1.0])
@pytest.mark.parametrize("drafts", DRAFTS)
def test_auto_is_nearly_as_fast_as_the_best_fixed_depth_and_never_slower_than_plain(drafts: str, t: float):
    plain = run(None, Fixed(0), t=t).seconds
    fixed = {depth: run(drafts, Fixed(depth), t=t).seconds for depth in (0, 1, 2, 3, 4, 6, 8, 12)}
    controller = auto(widths=(3, 2))
    found = run(drafts, controller, t=t)
    assert found.seconds <= plain / 0.97
    again = run(drafts, controller, t=t)
    assert again.seconds <= min(fixed.values()) * 1.12, "with what one request has taught"


@pytest.mark.parametrize("rule", ["coupled", "token", "block"])
def test_a_drafter_that_equals_its_target_is_always_right_after_rounds_without_it(rule: str):
    """K = 3, 0, 0, 0, 3, 3: the cache follows what was committed meanwhile."""

    class Schedule:
        def init(self):
            return [3, 0, 0, 0, 3, 3]

        def plan(self, state, load: Load):
            return Fixed(state[0]).plan(None, load)

        def update(self, state, step: Step):
            return [*state[1:], state[0]]

    found = run("SELF", Schedule(), tokens=120, rule=rule)
    drafting = [step for step in found.steps if len(step.draft)]
    assert len(drafting) >= 10
    assert all(step.accepted == len(step.draft) for step in drafting)


# -- threshold


def test_threshold_halves_down_to_plain_decoding_and_tries_again():
    found = run("WRONG", Threshold(8))
    depths = [len(step.draft) for step in found.steps]
    assert depths[0] == 8
    assert [d for i, d in enumerate(depths) if i == 0 or d != depths[i - 1]][:4] == [8, 4, 2, 1]
    assert 0 in depths
    assert depths.index(0) < 60
    tries = [i for i, depth in enumerate(depths) if depth and i > depths.index(0)]
    assert tries
    assert all(b - a > 32 for a, b in pairwise(tries))
    assert found.tokens == PLAIN.tokens


def test_threshold_comes_back_to_full_depth():
    controller = Threshold(8)
    state = controller.init()
    for accepted in [0] * 60 + [8] * 60:
        plan = controller.plan(state, Load(10, 1000))
        state = controller.update(state, stepped(plan.depth, min(accepted, plan.depth)))
    assert controller.plan(state, Load(10, 1000)).depth == 8


@pytest.mark.parametrize("bad", [{"depth": -1}, {"depth": 2, "low": 0.7}, {"depth": 2, "high": 1.5}])
def test_threshold_refuses_what_makes_no_sense(bad: dict):
    with pytest.raises(ValueError, match="not allowed"):
        Threshold(**bad)


# -- all of them


def always_right() -> Record:
    record = Record(fade=0.998)
    for _ in range(50):
        record.add(stepped(3, 3))
    return record


MAKE = {
    "fixed": lambda: Fixed(6, 4, (2,)),
    "threshold": lambda: Threshold(6, 4, (2,)),
    "cost": lambda: auto(depth=6, widths=(2,), most_requests=4, record=always_right()),
}


@pytest.mark.parametrize("name", CONTROLLERS)
def test_no_plan_exceeds_what_may_be_emitted_or_drafts_for_too_many(name: str):
    controller = MAKE[name]()
    state = controller.init()
    for remaining in (1, 2, 3, 50):
        plan = controller.plan(state, Load(10, remaining))
        assert plan.depth <= remaining - 1
        assert plan.nodes <= max(remaining - 1, 0)
    assert controller.plan(state, Load(10, 50, 4)).depth > 0
    assert controller.plan(state, Load(10, 50, 5)).depth == 0


@pytest.mark.parametrize("name", CONTROLLERS)
@pytest.mark.parametrize("drafts", DRAFTS)
def test_the_text_does_not_depend_on_the_controller(name: str, drafts: str):
    assert run(drafts, MAKE[name]()).tokens == PLAIN.tokens


def stepped(drafted: int, accepted: int, origin: str = "model", sure: float = 0.9, **more: Any) -> Step:
    """A round with a chain."""
    n = drafted
    draft = Draft(
        10,
        (1,) * n,
        tuple(range(-1, n - 1)),
        (Kind.CHOSEN,) * n,
        (origin,) * n,
        (),
        (-1,) * n,
        (sure,) * n,
    )
    tokens = (1,) * accepted + (2,)
    return Step(draft, Verdict(tuple(range(accepted)), tokens, "target"), tokens, **more)


# -- what the cost controller knows


def test_costs_interpolate_and_follow_the_last_measurements():
    costs = Costs(4, {1: 1.0, 8: 2.0})
    assert costs.rounds(100, 0, 8) == pytest.approx((1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 3.0))
    assert costs.rounds(100, 1, 3, smooth=True) == pytest.approx((1.0, 1.0, 1.0, 1.25))
    for _ in range(9):
        costs.add(stepped(3, 0, seconds={"forward": 1.5, "verify": 0.1, "commit": 0.1}, rows=4), frozenset())
    assert costs.rounds(100, 0, 4) == pytest.approx((1.7, 1.7, 1.7, 1.7, 3.4)), "the others in proportion"
    costs.add(stepped(3, 0, seconds={"forward": 99.0}, rows=4), frozenset())
    assert costs.rounds(100, 0, 3)[0] == pytest.approx(1.7), "one hiccup changes nothing"
    costs.add(stepped(7, 0, seconds={"forward": 2.0}, rows=8), frozenset())
    assert costs.rounds(100, 0, 4)[4] == pytest.approx(2.0), "measured is measured"


def test_costs_of_a_longer_context_have_the_shape_of_short_ones_until_measured():
    costs = Costs(1, {1: 1.0, 5: 2.0})
    for _ in range(3):
        costs.add(Step(Draft(3000), Verdict((), (1,), "target"), (1,), {"forward": 3.0}, 1), frozenset())
    assert costs.rounds(3000, 0, 4)[0] == pytest.approx(3.0)
    assert costs.rounds(3000, 0, 4)[4] == pytest.approx(6.0)
    costs.add(Step(Draft(30), Verdict((), (1,), "target"), (1,), {"forward": 1.5}, 1), frozenset())
    assert costs.rounds(30, 0, 4)[4] == pytest.approx(3.0)
    assert costs.rounds(3000, 0, 4)[4] == pytest.approx(6.0)
    assert [bucket_of(n) for n in (0, 1, 256, 257, 512, 513)] == [0, 0, 0, 1, 1, 2]


def test_more_rows_never_cost_less():
    costs = Costs(1, {1: 1.0, 2: 0.9, 4: 1.5})
    assert costs.rounds(1, 0, 3) == pytest.approx((1.0, 1.0, 1.25, 1.5))


def test_a_branch_is_not_counted_as_rows_and_a_prefill_not_at_all():
    costs = Costs(1, {1: 1.0, 3: 1.2}, branch=0.5)
    fork = Draft(1, (1, 2), (-1, -1), (Kind.CHOSEN,) * 2, ("a",) * 2, (), (-1,) * 2)
    for _ in range(5):
        costs.add(Step(fork, Verdict((), (1,), "target"), (1,), {"forward": 1.9}, 3), frozenset())
        costs.add(Step(fork, Verdict((), (1,), "target"), (1,), {"forward": 50.0, "prefill": 1.0}, 3), frozenset())
    assert costs.rounds(1, 0, 2)[2] + costs.branch(1) == pytest.approx(1.9, rel=0.02)
    assert costs.branch(1) == pytest.approx(0.5 * 1.9 / 1.7, rel=0.05), "both on the scale that was measured"


def test_a_record_learns_by_origin_rank_and_class_and_starts_from_its_prior():
    prior = Record(fade=0.998)
    for _ in range(200):
        prior.add(stepped(1, 0, sure=0.99))
    own = Record(prior)
    shares = own.of("model")
    assert shares.share(0, 0, 0.99) < 0.1
    assert shares.share(0, 0, 0.9) > 0.8, "of other classes nothing was seen"
    assert shares.share(0, 0, None) < 0.1
    for _ in range(50):
        own.add(stepped(1, 1, sure=0.99))
    assert shares.share(0, 0, 0.99) > 0.7
    assert own.of("other").share(0, 0, 0.99) == Record().of("other").share(0, 0, 0.99)
    own.forget("model")
    assert shares.share(0, 0, 0.99) < 0.5


def test_what_was_measured_of_a_drafter_counts_for_more_than_a_few_rounds():
    known = Record(known={"head": [0.4, 0.3], "other": []})
    assert [known.of("head").share(n, 0, None) for n in range(3)] == pytest.approx([0.4, 0.3, 0.3])
    assert known.of("head").share(0, 1, None) == Record().of("head").share(0, 1, None), "of first choices alone"
    assert known.of("other").share(0, 0, None) == Record().of("other").share(0, 0, None)
    assert Record(known={"head": [1.0]}).of("head").share(0, 0, None) == pytest.approx(0.8), "that is too good"
    steady, other = Record(known, steady=["head"]), Record(Record())
    for record, origin in ((steady, "head"), (other, "head")):
        for _ in range(4):
            record.add(stepped(1, 0, origin=origin, sure=0.6))
    assert steady.of("head").share(0, 0, None) > 0.2, "four refusals may be chance"
    assert other.of("head").share(0, 0, None) == pytest.approx(0.15, abs=0.02)


def test_a_model_is_not_given_up_for_a_few_refusals():
    """Its prior counts for more than a lookup's."""
    shares = {}
    for models in ([], ["model"]):
        prior = Record(fade=0.998)
        for _ in range(50):
            prior.add(stepped(2, 1, sure=0.6))
        controller = Cost(["model"], models, costs=Costs(4, {1: 1.0, 4: 1.0}, {"model": 0.01}), record=prior)
        state = controller.init()
        for _ in range(4):
            controller.plan(state, Load(10, 100))
            state = controller.update(state, stepped(1, 0, rows=2))
        shares[bool(models)] = state.record.of("model").share(0, 0, None)
    assert shares[True] > 1.3 * shares[False]


def test_a_head_that_was_measured_drafts_after_some_refusals():
    """At a fourteenth of a round a level, a head of .35 pays; four refusals in a row come in one text of six."""
    costs = Costs(4, {1: 1.0, 4: 1.02, 8: 1.4}, {"head": 0.07})
    controller = Cost(["head"], ["head"], costs=costs, record=Record(fade=0.998, known={"head": [0.37, 0.36]}))
    state = controller.init()
    for _ in range(4):
        assert controller.plan(state, Load(10, 100)).depth > 0
        step = stepped(1, 0, origin="head", rows=2)
        state = controller.update(state, replace(step, seconds={"propose": 0.07, "forward": 1.02}))
    assert controller.plan(state, Load(10, 100)).depth > 0
    for _ in range(12):
        controller.plan(state, Load(10, 100))
        state = controller.update(state, replace(step, seconds={"propose": 0.07, "forward": 1.02}))
    assert controller.plan(state, Load(10, 100)).depth == 0, "but not for ever"


def test_a_record_tells_levels_apart_and_guesses_the_next_from_the_last():
    record = Record()
    for _ in range(100):
        record.add(stepped(2, 1, sure=0.6))
    assert record.of("model").share(0, 0, 0.6) > 0.9
    assert record.of("model").share(1, 0, 0.6) < 0.15
    assert record.of("model").share(5, 0, 0.6) == pytest.approx(record.of("model").share(1, 0, 0.6))


def test_what_was_not_reached_counts_for_nothing():
    record = Record()
    record.add(stepped(4, 1, sure=0.6))
    seen = {place[1]: count for place, (_, count) in record._seen.items() if place[3] is not None}
    assert seen == {0: 1.0, 1: 1.0}, "the first was kept, the second was not, the others were never asked"


def test_expected_rate_is_the_theory_for_a_chain():
    rounds = tuple(verify(n + 1) for n in range(9))
    terms = Terms(rounds, levels={"model": LEVEL}, trust={"model": Known([[0.7] * (BINS + 1)])})
    best = max(expected_tokens([0.7] * k) / (verify(k + 1) + LEVEL * k) for k in range(1, 9))
    plan = Fixed(8).plan(None, Load(1, 100))
    assert expected_rate(terms, "model", plan) == pytest.approx(best)


def test_in_company_a_request_drafts_only_what_pays_for_all():
    """Rows beside eight others cost what they cost alone, but a token more is then a smaller gain."""
    controller, terms = auto(depth=4, record=always_right()), []
    for requests in (1, 8):
        state = controller.init()
        told = {"rows": 2 * requests + 200, "prompt_rows": 200, "requests": requests}
        state = controller.update(state, stepped(0, 0, **told, drafting={"model": requests - 1}))
        terms.append(controller.plan(state, Load(10, 100, requests)).terms)
    alone, company = terms
    assert (alone.base, company.base) == (1, 8)
    assert alone.rounds[0] == pytest.approx(1.0)
    assert company.rounds[0] == pytest.approx(verify(15)), "seven with two rows each, and its own first"
    assert company.levels["model"] == pytest.approx(LEVEL / 8), "for all eight together"


def test_a_level_is_shared_with_those_who_want_one():
    controller, levels = auto(record=seldom_right("model")), []
    for others in (7, 0):
        state = controller.init()
        controller.plan(state, Load(10, 100, 8))
        for _ in range(20):
            state = controller.update(state, stepped(1, 0, rows=8, requests=8, drafting={"model": others + 1}))
        levels.append(controller._terms(state, Load(10, 100, 8), 4).levels["model"])
    assert levels == [pytest.approx(LEVEL / 8), pytest.approx(LEVEL, rel=0.1)]


def seldom_right(origin: str) -> Record:
    """Of a drafter whose tokens came true one time in ten: worth asking where rows are free, but for not much more."""
    prior = Record(fade=0.998)
    for accepted in 4 * ([1] + [0] * 9):
        step = stepped(3, accepted, origin=origin)
        prior.add(replace(step, draft=replace(step.draft, parents=(-1, -1, -1))))
    return prior


@pytest.mark.parametrize("branch", [0.0, 0.1])
def test_what_promises_little_never_loses_more_than_two_in_a_hundred_of_any_answer(branch: float):
    """A drafter that is sure of itself, as wide as it may be, and wrong all through this answer: rows that are free are
    tried, dearer ones only for what was brought before."""
    costs = Costs(4, {1: 1.0, 4: 1.0, 8: 1.4, 24: 2.0}, branch=branch)
    controller = Cost(["suffix"], costs=costs, record=seldom_right("suffix"), widths=(3, 2))
    state, lost, drafted = controller.init(), 0.0, []
    for rounds in range(1, 60):
        plan = controller.plan(state, Load(10, 100))
        nodes = plan.nodes if plan.depth else 0
        siblings = nodes > 0 and plan.widths != ()
        drafted.append(nodes)
        assert nodes < 8
        lost += 0.4 * (nodes > 3) + branch * (min(nodes, 3) - 1) * siblings
        step = stepped(nodes, 0, origin="suffix", rows=nodes + 1)
        if siblings:
            step = replace(step, draft=replace(step.draft, parents=(-1, -1, -1, 0, 0, 1, 1)[:nodes]))
        state = controller.update(state, step)
        assert lost <= 0.02 * rounds + 1e-9
    assert drafted[:5] == [3] * 5
    state = controller.init()
    controller.plan(state, Load(10, 100))
    state = controller.update(state, stepped(3, 3, origin="suffix", rows=4))
    assert controller.plan(state, Load(10, 100)).nodes > 7, "what was brought may be risked"


def test_no_draft_makes_the_forward_of_a_prompt_a_block_longer():
    costs = Costs(4, {1: 1.0, 24: 1.0}, wide=64)
    controller = Cost(["suffix"], costs=costs)
    beside = {n: controller.plan(controller.init(), Load(n, 100, 1, n)) for n in (2, 60, 64, 65, 127, 128)}
    assert {n: plan.nodes if plan.depth else 0 for n, plan in beside.items()} == {
        2: 16,
        60: 4,
        64: 0,
        65: 16,
        127: 1,
        128: 0,
    }
    assert controller.plan(controller.init(), Load(64, 100)).nodes == 16, "the prompt was read before"
    assert Costs(1).beside_prompt(64, 5) == 5, "where nothing is padded"


def test_drafting_that_came_to_nothing_is_a_loss_too():
    """The model ran three levels and none was worth scoring. Its first round read the prompt: that is paid for once."""
    costs = Costs(4, {1: 1.0, 4: 1.0}, {"model": 0.001})
    controller = Cost(["model"], ["model"], costs=costs, record=seldom_right("model"))
    state = controller.init()
    for seconds, asked in (({"propose": 9.0, "prefill": 9.0}, True), ({"propose": 0.6}, True), ({}, False)):
        assert (controller.plan(state, Load(10, 100)).depth > 0) == asked
        state = controller.update(state, stepped(0, 0, rows=1, seconds=seconds))
    assert controller.plan(state, Load(10, 100)).why.startswith("off: model brought too little yet")


READ = 0.02
"""Seconds of a token that the draft model of these tests reads."""


def answered(controller: Controller, most: int, prompt: int = 400) -> tuple[float, list[Step]]:
    """Seconds of an answer to a prompt that the draft model has to read before it drafts what the target says."""
    clock = Clock()
    params = SamplingParams(max_tokens=most, temperature=1.0)
    output, law = Output(params, most), law_of(params)
    model = Timed(TARGET, clock, lambda rows: LEVEL + READ * (rows if rows > 16 else 0))
    steps = decode(
        [1 + i % (V - 1) for i in range(prompt)],
        output,
        target=Timed(TARGET, clock, verify),
        drafter=ModelDrafter(model, Kind.COUPLED),
        controller=controller,
        rule=RULES["coupled"],
        law=law,
        chance=PhiloxChance(7),
        clock=clock,
    )
    found = list(steps)
    return clock.now, found


def reading(record: Record | None = None) -> Cost:
    costs = Costs(1, {n: verify(n) for n in (1, 4, 8, 16)}, {"model": LEVEL}, reading={"model": READ})
    return Cost(["model"], ["model"], costs=costs, record=record, depth=4)


def test_a_model_does_not_read_a_long_prompt_for_a_short_answer():
    """400 tokens take it as long as 8 take the target, which is all there is to be said."""
    plain, _ = answered(Fixed(0), 8)
    seconds, steps = answered(reading(), 8)
    assert not any(len(step.draft) for step in steps)
    assert seconds == plain
    assert steps[0].why.startswith("off: model would read 400 tokens first")
    assert answered(Fixed(4), 8)[0] > 1.3 * plain, "what it would have cost, though all its drafts come true"


def test_a_model_reads_a_prompt_once_an_answer_is_long_enough():
    plain, _ = answered(Fixed(0), 800, prompt=800)
    seconds, steps = answered(reading(), 800, prompt=800)
    assert seconds < 0.6 * plain
    first = next(i for i, step in enumerate(steps) if len(step.draft))
    assert 64 < first < 200, "64 tokens to come would not pay for 800, twice as many do"
    _, steps = answered(reading(), 800, prompt=200)
    assert len(steps[0].draft), "but for 200"


def test_a_drafter_that_rests_is_not_tried_again_before_a_trial_is_cheap():
    """One that was never asked would have to read all of the prompt to be tried."""
    controller = reading(record := Record())
    for _ in range(40):
        record.add(stepped(4, 0))
    state, tried = controller.init(), []
    for i in range(200):
        plan = controller.plan(state, Load(410 + i, 10_000, unread={"model": 410 + i}))
        tried += [i] if plan.depth else []
        state = controller.update(state, stepped(0, 0))
    assert not tried
    state = controller.init()
    for i in range(60):
        plan = controller.plan(state, Load(410 + i, 10_000, unread={"model": 10}))
        tried += [i] if plan.depth else []
        state = controller.update(state, stepped(0, 0))
    assert tried[:1] == [32], "one that is up to date is"


def test_what_models_have_yet_to_read():
    context = Context(law_of(SamplingParams(temperature=1.0)), V, 64)
    drafter = CombinedDrafter({"ngram": NGramDrafter(3), "model": ModelDrafter(TableTarget(TARGET, V), Kind.COUPLED)})
    session = drafter.open(context)
    drafter.commit([session], [[1, 2, 3, 4]])
    assert unread(drafter, session) == {"model": 4}
    drafter.propose([session], [Plan(2)], [PhiloxChance(1)])
    assert unread(drafter, session) == {"model": 0}
    drafter.commit([session], [[5, 6]])
    assert unread(drafter, session) == {"model": 2}
    lookup = NGramDrafter(3)
    assert unread(lookup, lookup.open(context)) == {}


def test_a_level_costs_what_its_own_drafter_took_for_it_and_a_round_counts_once():
    """A long chain of the lookup's beside one level of the model's."""
    costs = Costs(1, {1: 1.0, 16: 1.0}, {})
    chain = stepped(8, 0, origin="suffix").draft
    both = replace(
        chain,
        tokens=(*chain.tokens, 3),
        parents=(*chain.parents, -1),
        kind=(*chain.kind, Kind.CHOSEN),
        origin=(*chain.origin, "model"),
        row_of=(*chain.row_of, -1),
        confidence=(),
    )
    told = Step(both, Verdict((), (1,), "target"), (1,), {"propose": 0.2, "forward": 1.0}, 20, 2)
    for _ in range(2):
        costs.add(told, frozenset({"model"}))
    assert costs.level("model") == pytest.approx(0.2)
    assert [len(some) for some in costs._measured[0].values()] == [1]


def test_a_drafter_with_nothing_to_say_does_not_keep_another_from_drafting():
    """It failed, rests, and finds nothing when it is asked again; the model is as good as ever."""
    costs = Costs(1, {1: 1.0, 4: 1.05, 8: 1.1}, {"model": 0.05})
    controller = Cost(["suffix", "model"], ["model"], costs=costs)
    state, asked = controller.init(), []
    for _ in range(12):
        controller.plan(state, Load(10, 100))
        state = controller.update(state, stepped(4, 0, origin="suffix"))
    for _ in range(300):
        plan = controller.plan(state, Load(10, 100))
        asked.append(plan.origins or frozenset())
        drafts = stepped(4, 4) if "model" in asked[-1] else stepped(0, 0)
        state = controller.update(state, drafts)
    assert sum(origins == {"suffix"} for origins in asked) < 12
    assert sum("model" in origins for origins in asked) > 280


@pytest.mark.parametrize("rows", [24, 57, 100, 256])
def test_costs_that_fall_by_noise_do_no_harm(rows: int):
    costs = Costs(1, {1: 0.01, 16: 0.02, 24: 0.016})
    costs.add(stepped(3, 0, seconds={"forward": 0.05}, rows=rows), frozenset())
    found = costs.rounds(100, 0, 40)
    assert min(found) > 0
    assert list(found) == sorted(found)


def test_a_load_of_nobody_is_planned_for():
    controller = auto()
    assert controller.plan(controller.init(), Load(10, 100, 0)).why


# -- several drafters


def test_T51_whose_drafts_come_true_adds_up_and_the_advice_is_right():
    """(argmax, sampled) acceptance: (.9, .6) and (.4, 1)."""
    for p, q, known, best in [
        ([0.9, 0.05, 0.05], [0.5, 0.3, 0.2], (0.9, 0.6), "argmax"),
        ([0.4, 0.3, 0.3], [0.4, 0.3, 0.3], (0.4, 1.0), "sampled"),
    ]:
        found = acceptance_report(p, q)
        assert (found.chosen, found.token) == pytest.approx(known)
        assert advised(p, q) == best
    drafters: dict[str, Drafter] = {
        "suffix": SuffixDrafter(),
        "ngram": NGramDrafter(),
        "model": ModelDrafter(TableTarget(DRAFTS["NOISY"], V), Kind.COUPLED),
    }
    from draftproof.stats import Stats

    params, stats = SamplingParams(max_tokens=300), Stats()
    steps = decode(
        (1, 2, 3, 1, 2, 3),
        Output(params, 300),
        target=TableTarget(TARGET, V),
        drafter=CombinedDrafter(drafters),
        controller=Fixed(3, None, (2,), 3),
        rule=RULES["coupled"],
        law=law_of(params),
        chance=PhiloxChance(1),
    )
    for step in steps:
        stats.add(step)
    assert set(stats.drafted_by) == set(drafters)
    assert sum(stats.drafted_by.values()) == stats.drafted
    assert sum(stats.accepted_by.values()) == stats.accepted > 0
    assert all(stats.accepted_by.get(name, 0) <= stats.drafted_by[name] for name in drafters)
