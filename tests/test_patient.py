"""Rows that cannot be made and that the answer never reaches change neither it nor its law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from draftproof.audit.exact import LoopCase, deviation, emitted_law, identity_law, target_law
from draftproof.audit.toys import Siblings, Text, chooser, chosen, distinct, exact_table, grower, independent, up_to
from draftproof.base import Draft, Key, Kind, Row
from draftproof.chance import PhiloxChance
from draftproof.control import Fixed
from draftproof.drafters import ModelDrafter
from draftproof.models.table import TableTarget
from draftproof.plan import Plan
from draftproof.rules import RULES
from draftproof.rules.patient import patient
from draftproof.sampling import AdjustError
from tests.toys import CHAIN_RULES, kind_for

pytestmark = pytest.mark.usefixtures("unchecked")

PROMPT, END, NEVER = (0,), 3, 2
P, Q = exact_table(4, "patient", up_to(9), support=[0, 1, 3]), exact_table(4, "patient too", up_to(9))


def law(row: Row, history: Sequence[int]) -> Row:
    """None after the end, and none after a token that the target never says."""
    if END in history[1:] or NEVER in history:
        raise AdjustError(f"position {len(history)}: no token is left")
    return identity_law(row, history)


class Even:
    """Refuses everything, picks the first that has weight, and remembers the coins it was asked for."""

    def __init__(self) -> None:
        self.keys: list[Key] = []

    def uniform(self, key: Key) -> float:
        return 0.5

    def coin(self, prob, key: Key) -> bool:
        self.keys.append(key)
        return False

    def pick(self, weights, key: Key, k: int = 1) -> tuple[int, ...]:
        return tuple(int(i) for i in np.flatnonzero(weights)[:k])


WAYS: dict[str, Siblings] = {"independent": independent, "distinct": distinct, "chosen tree": chosen}


def drafter(drafts: str, rule: str):
    if drafts == "chosen":
        return chooser(lambda history: (1, 0, END, NEVER)[len(history) % 4])
    if drafts in WAYS:
        return grower(Q, lambda root: (-1, -1, 0, 0, 1), [WAYS[drafts]])
    return ModelDrafter(TableTarget(Q, 4), kind_for(rule))


def case(rule: str, drafts: str, depth: int = 2) -> LoopCase:
    return LoopCase(
        P,
        lambda: TableTarget(P, 4),
        lambda: drafter(drafts, rule),
        Fixed(depth),
        patient(RULES[rule]),
        PROMPT,
        max_tokens=4,
        end_ids=frozenset({END}),
        law=law,
    )


@pytest.mark.parametrize("drafts", ["chosen", "by a model"])
@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_the_emitted_law_is_the_targets(rule: str, drafts: str):
    made = case(rule, drafts)
    assert deviation(emitted_law(made), target_law(made)) == 0


@pytest.mark.parametrize("drafts", WAYS)
@pytest.mark.parametrize("rule", ["coupled", "recursive", "traversal"])
def test_so_it_is_under_trees(rule: str, drafts: str):
    made = replace(case(rule, drafts), max_tokens=3, rounds=1)
    assert deviation(emitted_law(made), target_law(made)) == 0


def test_nodes_keep_their_noise_when_others_are_gone():
    """Two of four siblings have children that cannot be scored: the coins of all others are those of the whole tree."""
    draft = grower(Q, lambda root: (-1, -1, 0, 0, 1, 1), [independent]).propose([Text([0])], [Plan(2)], [Even()])[0]
    asked = Even()

    class Rows(list):
        def __getitem__(self, index):
            if index == 1:
                raise AdjustError("no token is left")
            return P((0,))

    patient(RULES["traversal"])(draft, Rows([None] * 7), asked)
    assert {key.node for key in asked.keys} == {0, 1, 4, 5}


@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_without_patience_it_would_end_in_an_error(rule: str):
    with pytest.raises(AdjustError):
        emitted_law(replace(case(rule, "chosen"), rule=RULES[rule]))


@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_a_first_row_that_cannot_be_made_is_an_error(rule: str):
    class Rows(list):
        def __getitem__(self, index):
            raise AdjustError("position 1: no token is left")

    with pytest.raises(AdjustError, match="position 1"):
        patient(RULES[rule])(Draft.chain(1, [0]), Rows([None, None]), PhiloxChance(0))


def test_what_can_be_made_is_decided_as_ever():
    rng = np.random.default_rng(0)
    for seed in range(50):
        rows = list(rng.dirichlet(np.ones(5), 4))
        draft = Draft.chain(1, [1, 2, 3], Kind.SAMPLED, rows=list(rng.dirichlet(np.ones(5), 3)))
        for rule in ("token", "block"):
            known = RULES[rule](draft, rows, PhiloxChance(seed))
            assert patient(RULES[rule])(draft, rows, PhiloxChance(seed)).tokens == known.tokens
