"""What every rule must refuse, leave unread and write down, in floating point and on the production noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from draftproof.base import Draft, Key, Kind, Purpose, Row, Rule
from draftproof.chance import PhiloxChance
from draftproof.rules import NEEDS, RULES, block, coupled, token
from tests.toys import CHAIN_RULES as TAKE_CHAINS

V = 6
CHAIN_RULES = {name: RULES[name] for name in ("token", "block")}  # refuse trees
SAMPLING_RULES = {name: rule for name, rule in RULES.items() if name in TAKE_CHAINS and not NEEDS[name].coupled}


def rows(n: int, seed: int = 0) -> list[Row]:
    return list(np.random.default_rng(seed).dirichlet(np.ones(V), size=n))


def sampled(tokens: Sequence[int], laws: Sequence[Row]) -> Draft:
    return Draft.chain(10, tokens, Kind.SAMPLED, "m", laws)


class Answers(PhiloxChance):
    """Coins answer what they are told; picks take the likeliest token. Both are written down."""

    def __init__(self, *answers: bool) -> None:
        super().__init__(0)
        self._answers, self.coins, self.picked_from = list(answers), [], []

    def coin(self, prob: float, key: Key) -> bool:
        self.coins.append((prob, key))
        return self._answers.pop(0)

    def pick(self, weights: Row, key: Key, k: int = 1) -> tuple[int, ...]:
        self.picked_from.append((weights, key))
        return (int(np.argmax(weights)),)


class Guarded(Sequence):
    """Rows of which some must not be read."""

    def __init__(self, known: Sequence[Row], forbidden: set[int]) -> None:
        self._known, self._forbidden = known, forbidden

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, index: int) -> Row:
        assert index not in self._forbidden, f"row {index} was read"
        return self._known[index]


# -- refused


@pytest.mark.parametrize("rule", CHAIN_RULES.values(), ids=CHAIN_RULES)
def test_the_chain_rules_refuse_trees(rule: Rule):
    tree = Draft(10, (1, 2), (-1, -1), (Kind.CHOSEN,) * 2, ("",) * 2, (), (-1, -1))
    with pytest.raises(ValueError, match="takes a chain"):
        rule(tree, rows(3), PhiloxChance(0))


@pytest.mark.parametrize("rule", SAMPLING_RULES.values(), ids=SAMPLING_RULES)
def test_the_chain_rules_refuse_drafts_on_the_targets_noise(rule: Rule):
    with pytest.raises(ValueError, match="need the coupled rule"):
        rule(Draft.chain(10, (1,), Kind.COUPLED, rows=rows(1)), rows(2), PhiloxChance(0))


@pytest.mark.parametrize("rule", SAMPLING_RULES.values(), ids=SAMPLING_RULES)
@pytest.mark.parametrize("q", [0.0, np.nan])
def test_a_sampled_token_that_its_law_cannot_give_is_an_error(rule: Rule, q: float):
    law = np.full(V, 0.2)
    law[1] = q
    with pytest.raises(ValueError, match="token 1 at position 10 has probability"):
        rule(sampled((1,), [law]), rows(2), PhiloxChance(0))


def test_the_coupled_rule_takes_any_law_the_draft_claims():
    draft = sampled((1, 2), [np.zeros(V), np.full(V, np.nan)])
    plain = coupled(Draft(10), rows(1), PhiloxChance(0))
    assert coupled(draft, rows(3), PhiloxChance(0)).tokens[0] == plain.tokens[0]


# -- left unread


@pytest.mark.usefixtures("unchecked")  # a shape check would read a row itself
def test_rows_after_the_first_rejection_are_never_read():
    p = [np.eye(V)[1], np.eye(V)[2], *rows(2)]
    for rule in (token, coupled):
        verdict = rule(Draft.chain(10, (1, 3, 4)), Guarded(p, {2, 3}), PhiloxChance(0))
        assert verdict.tokens == (1, 2)


@pytest.mark.usefixtures("unchecked")
def test_the_block_rule_leaves_the_bonus_row_unread_unless_all_is_accepted():
    p = [np.eye(V)[1], np.eye(V)[2], *rows(1)]
    assert block(Draft.chain(10, (1, 3)), Guarded(p, {2}), PhiloxChance(0)).tokens == (1, 2)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_an_empty_draft_draws_one_token_from_the_target_and_flips_no_coin(rule: Rule):
    chance, p = Answers(), rows(1)
    verdict = rule(Draft(10), p, chance)
    assert (verdict.path, verdict.last, verdict.tests) == ((), "target", ())
    assert chance.coins == []
    [(weights, _)] = chance.picked_from
    assert weights is p[0]


# -- decided


@pytest.mark.parametrize("rule", SAMPLING_RULES.values(), ids=SAMPLING_RULES)
def test_equal_laws_accept_with_probability_exactly_one(rule: Rule):
    for seed in range(50):
        p = rows(4, seed)
        chance = Answers(True, True, True)
        draft = sampled((0, 3, 5), [row.copy() for row in p[:3]])
        verdict = rule(draft, p, chance)
        assert verdict.last == "bonus"
        assert {prob for prob, _ in chance.coins} == {1.0}


@pytest.mark.parametrize("rule", SAMPLING_RULES.values(), ids=SAMPLING_RULES)
def test_a_residual_that_rounding_emptied_is_counted_and_p_is_drawn(rule: Rule):
    p = rows(2)
    chance = Answers(False)
    verdict = rule(sampled((0,), [p[0].copy()]), p, chance)
    assert (verdict.rounding, verdict.last) == (1, "replacement")
    assert chance.picked_from[0][0] is p[0]


@pytest.mark.parametrize("rule", SAMPLING_RULES.values(), ids=SAMPLING_RULES)
def test_a_true_residual_counts_no_rounding(rule: Rule):
    p, q = rows(2), rows(1, seed=1)
    chance = Answers(False)
    assert rule(sampled((0,), q), p, chance).rounding == 0
    [(weights, _)] = chance.picked_from
    rest = np.maximum(p[0] - q[0], 0)
    np.testing.assert_allclose(weights / weights.sum(), rest / rest.sum(), rtol=1e-14)


def test_block_weighs_the_residual_by_what_the_prefix_still_owes():
    p, q = np.array([[0.5, 0.5, 0.0], [0.7, 0.2, 0.1], [1.0, 0.0, 0.0]]), np.array([[0.8, 0.2, 0.0], [0.1, 0.1, 0.8]])
    chance = Answers(False, True)
    verdict = block(sampled((0, 2), list(q)), list(p), chance)
    assert verdict.path == (0,)
    left = np.array([0.625 * 0.7 - 0.1, 0.625 * 0.2 - 0.1, 0])
    assert chance.picked_from[0][0] == pytest.approx(left / left.sum())
    assert [key for _, key in chance.coins] == [Key(10, 1, Purpose.ACCEPT, 1), Key(10, 0, Purpose.ACCEPT, 0)]


def test_block_survives_a_probability_of_zero_in_the_middle():
    p = rows(4)
    p[1] = np.array([0, 0.5, 0.5, 0, 0, 0])
    verdict = block(sampled((1, 0, 2), rows(3, seed=1)), p, PhiloxChance(0))
    assert len(verdict.path) <= 1
    assert all(np.isfinite(test.prob) for test in verdict.tests)
    assert {test.node for test in verdict.tests} == {0}, "what cannot be kept is not asked"


# -- written down


@pytest.mark.parametrize("rule", SAMPLING_RULES.values(), ids=SAMPLING_RULES)
def test_every_coin_can_be_thrown_again_from_its_record(rule: Rule):
    accepted = []
    for seed in range(40):
        chance, p, q = PhiloxChance(seed), rows(4, seed), rows(3, seed + 1000)
        tokens = tuple(chance.pick(q[i], Key(10, i, Purpose.DRAFT, i))[0] for i in range(3))
        verdict = rule(sampled(tokens, q), p, chance)
        for test in verdict.tests:
            assert (test.p, test.q) == (p[test.node][tokens[test.node]], q[test.node][tokens[test.node]])
            assert test.accepted == (PhiloxChance(seed).uniform(test.key) < test.prob)
            accepted.append(test.accepted)
        assert len(verdict.tokens) == len(verdict.path) + 1
    assert {True, False} == set(accepted)


def test_coupled_tests_each_sibling_in_order_up_to_the_match():
    p = [np.eye(V)[2], *rows(3)]
    tree = Draft(10, (1, 2, 3), (-1, -1, -1), (Kind.CHOSEN,) * 3, ("",) * 3, (), (-1,) * 3)
    verdict = coupled(tree, p, PhiloxChance(0))
    assert [(test.node, test.accepted) for test in verdict.tests] == [(0, False), (1, True)]
    assert verdict.path == (1,)
    assert (len(verdict.tokens), verdict.last) == (2, "bonus")


def test_coupled_takes_the_first_of_two_equal_siblings():
    p = [np.eye(V)[2], *rows(2)]
    tree = Draft(10, (2, 2), (-1, -1), (Kind.CHOSEN,) * 2, ("",) * 2, (), (-1, -1))
    assert coupled(tree, p, PhiloxChance(0)).path == (0,)
