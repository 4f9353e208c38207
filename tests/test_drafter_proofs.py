"""Drafters and controllers as the package has them, proven by enumeration; more of it is in `draftproof prove`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from draftproof.audit import cases
from draftproof.audit.cases import OWN, PAIRS, WIDTHS, Case, deviation_of
from draftproof.audit.exact import LoopCase, paths, steps_of
from draftproof.audit.toys import ShallowTable, Spread
from draftproof.base import Chance, Draft, Kind, Load, Step
from draftproof.control import Cost, Costs, Fixed, Threshold
from draftproof.drafters import CombinedDrafter, EarlyExitDrafter, ModelDrafter
from draftproof.models.table import TableTarget
from draftproof.plan import Plan
from draftproof.rules import RULES, why_not

pytestmark = pytest.mark.usefixtures("unchecked")


def proven(name: str, rule: str, controller: Any = None, **more: Any) -> LoopCase:
    """A decode of the drafter of that name."""
    tree = cases.DRAFTINGS[name].shape is not None
    plan = Spread(2, WIDTHS) if tree else Fixed(2)
    case = Case(name, "dense", plan, 3, rounds=2 if tree else None).under(RULES[rule])
    return replace(case, controller=controller or plan, **more)


@pytest.mark.parametrize("name", OWN)
def test_the_cases_of_the_proof_have_drafts_to_prove(name: str):
    """At least two tokens; siblings where they are planned; of both drafters where there are two."""
    case = proven(
        name, "coupled", max_tokens=4, rounds=1 if name.endswith("sampled") and cases.DRAFTINGS[name].shape else 3
    )
    made = [step.draft for _, (_, steps) in paths(lambda chance: steps_of(case, chance)) for step in steps]
    assert max(map(len, made)) >= 2
    able = [rule for rule in RULES if Case(name, "dense", Fixed(2), 3).refusal(rule) is None]
    assert all(why_not(rule, draft.parents, draft.kind) is None for rule in able for draft in made)
    if cases.DRAFTINGS[name].shape is not None:
        assert any(draft.parents.count(-1) >= 2 for draft in made)
    if "suffix " in name and name != "suffix tree":
        assert {origin for draft in made for origin in draft.origin} == {"suffix", "model"}
        assert "or" in name or any(len(set(draft.origin)) == 2 for draft in made)


# -- controllers


class Steady(Costs):
    """Costs that nobody measures: an enumeration must see the same plan on the same path."""

    def add(self, step: Step, models: frozenset[str]) -> None:
        pass


class Anew:
    """A controller that knows nothing of other texts: a path of an enumeration must not see the paths before it."""

    def __init__(self, make) -> None:
        self._make = make

    def init(self):
        controller = self._make()
        return controller, controller.init()

    def plan(self, state, load: Load) -> Plan:
        return state[0].plan(state[1], load)

    def update(self, state, step: Step):
        return state[0], state[0].update(state[1], step)


def cost(origins: Sequence[str]) -> Anew:
    costs = {"rounds": {1: 1.0, 2: 1.1, 3: 1.15, 4: 1.2, 8: 1.5}, "levels": {"model": 0.1, "early_exit": 0.1}}
    costs["levels"]["eagle"] = 0.1
    return Anew(lambda: Cost(origins, ["model", "early_exit", "eagle"], costs=Steady(**costs), depth=2, widths=WIDTHS))


CHAINS = ("token", "block")
NAMES = ("suffix", "early exit", "head", "suffix or", "suffix and", "model")
PAIRED = [(name, rule) for name in NAMES for rule in RULES if rule != "greedy_multi"]


@pytest.mark.parametrize(
    ("name", "rule"), [each for each in PAIRED if each[0] != "suffix and" or each[1] not in CHAINS]
)
@pytest.mark.parametrize("control", ["cost", "threshold"])
def test_every_controller_is_lossless_with_every_drafter(control: str, name: str, rule: str):
    chains = rule in CHAINS
    kind = "coupled" if rule == "coupled" else "sampled"
    label = {
        "suffix": "suffix",
        "early exit": f"early exit, {kind}",
        "head": f"head, {kind}",
        "suffix or": f"suffix or {kind}",
        "suffix and": f"suffix and {kind}",
        "model": kind,
    }[name]
    alone = {"suffix": ["suffix"], "early exit": ["early_exit"], "head": ["eagle"], "model": ["model"]}
    origins = alone.get(name, ["suffix", "model"])
    if control == "threshold":
        controller = Threshold(2, widths=() if chains else WIDTHS, probe=1)
    else:
        controller = cost(origins)
        if chains:
            make = controller._make
            controller = Anew(lambda: _narrow(make()))
    case = replace(proven(label, rule), controller=controller, rounds=None if rule == "coupled" else 2)
    assert deviation_of(case) == 0


def _narrow(controller: Cost) -> Cost:
    controller._widths = ()
    return controller


@pytest.mark.parametrize("level", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_sampled_draft_is_not_exchanged_for_a_better_one(rule: str, level: float):
    """Two drafters that sample, of which the cheaper one is asked first."""
    pair = PAIRS["dense"]

    def both() -> CombinedDrafter:
        early = EarlyExitDrafter(ShallowTable(PAIRS["holes"].q, pair.vocab_size), Kind.SAMPLED)
        return CombinedDrafter({"early_exit": early, "model": ModelDrafter(pair.target(), Kind.SAMPLED)}, merge=False)

    costs = {"rounds": {1: 1.0, 2: 1.1, 3: 1.2}, "levels": {"model": level, "early_exit": 0.01}}
    origins = ["early_exit", "model"]
    controller = Anew(lambda: Cost(origins, origins, costs=Steady(**costs), depth=2))
    case = replace(proven("sampled", rule), drafter=both, controller=controller, rounds=2)
    assert deviation_of(case) == 0


class Peek:
    """Drops a draft's last token when it does not like it: a length that depends on the very token that was drawn."""

    def __init__(self, drafter: ModelDrafter) -> None:
        self._drafter = drafter

    def __getattr__(self, name: str):
        return getattr(self._drafter, name)

    def propose(self, sessions: Sequence[Any], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        drafts = self._drafter.propose(sessions, plans, chances)
        return [d.keeping(range(len(d) - 1)) if len(d) and d.tokens[-1] == 0 else d for d in drafts]


@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
def test_a_controller_that_peeks_at_the_sampled_token_is_caught_unless_the_rule_does_not_mind(rule: str):
    kind = Kind.COUPLED if rule == "coupled" else Kind.SAMPLED
    pair = PAIRS["dense"]
    honest = proven("coupled" if rule == "coupled" else "sampled", rule)
    peeking = replace(honest, drafter=lambda: Peek(ModelDrafter(TableTarget(pair.q, pair.vocab_size), kind)))
    assert deviation_of(honest) == 0
    assert (deviation_of(peeking) == 0) == (rule == "coupled")
