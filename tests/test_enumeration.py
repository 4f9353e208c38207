"""The instrument of the proofs: `EnumeratedChance` walks every random path once, with its exact weight."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.audit.exact import EnumeratedChance, fractions_row, law_of_result, paths
from draftproof.base import Key, Purpose

A, B = Key(1, 0, Purpose.ACCEPT), Key(1, 1, Purpose.ACCEPT)
HALF, THIRD = Fraction(1, 2), Fraction(1, 3)


def test_coins_and_picks_of_different_keys_are_independent():
    law = law_of_result(lambda chance: (chance.coin(THIRD, A), chance.pick(fractions_row(1, 2, 1), B)[0]))
    assert law[True, 1] == THIRD * HALF
    assert law[False, 0] == (1 - THIRD) * Fraction(1, 4)
    assert len(law) == 6


def test_the_same_key_is_the_same_noise():
    law = law_of_result(lambda chance: (chance.coin(HALF, A), chance.coin(HALF, A)))
    assert law == {(True, True): HALF, (False, False): HALF}


def test_coins_of_one_key_are_nested():
    """One uniform behind both: u < 1/3 implies u < 1/2."""
    law = law_of_result(lambda chance: (chance.coin(THIRD, A), chance.coin(HALF, A)))
    assert law == {(True, True): THIRD, (False, True): HALF - THIRD, (False, False): HALF}


def test_a_pick_after_a_coin_of_the_same_key_sees_what_the_coin_left():
    weights = fractions_row(1, 1)
    law = law_of_result(lambda chance: (chance.coin(Fraction(3, 4), A), *chance.pick(weights, A)))
    assert law == {(True, 0): HALF, (True, 1): Fraction(1, 4), (False, 1): Fraction(1, 4)}


def test_certain_draws_do_not_branch():
    chance = EnumeratedChance([])
    assert chance.coin(1, A)
    assert not chance.coin(0, A)
    assert chance.pick(fractions_row(0, 1), A) == (1,)
    assert (chance.weight, set(chance.branches) - {1}) == (1, set())


def test_a_pick_without_replacement_has_the_joint_law_of_successive_draws():
    w = (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6))
    law = law_of_result(lambda chance: chance.pick(fractions_row(*w), A, 2))
    assert law == {(i, j): w[i] * w[j] / (1 - w[i]) for i, j in permutations(range(3), 2)}


def test_a_longer_pick_begins_with_the_shorter_one():
    weights = fractions_row(3, 2, 1)
    law = law_of_result(
        lambda chance: (chance.pick(weights, A, 3), chance.pick(weights, A, 2), chance.pick(weights, A))
    )
    assert all(three[:2] == two and three[:1] == one for three, two, one in law)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), min_size=1, max_size=5))
def test_weights_add_up_to_one_whatever_is_drawn(draws: list[tuple[int, int]]):
    """Coins and picks in any order, keys used again or not; every path is distinct."""

    def run(chance):
        out = []
        for depth, size in draws:
            key = Key(1, depth, Purpose.ACCEPT)
            out.append(chance.coin(Fraction(size, 7), key) if size % 2 else chance.pick(fractions_row(1, 2, size), key))
        return tuple(out)

    walked = list(paths(run))
    assert sum(weight for weight, _ in walked) == 1
    assert all(weight > 0 for weight, _ in walked)


def test_what_can_never_be_a_draw_is_refused():
    chance = EnumeratedChance([])
    with pytest.raises(ValueError, match="negative"):
        chance.coin(Fraction(-1, 2), A)
    with pytest.raises(ValueError, match="cannot pick 2"):
        chance.pick(fractions_row(0, 1), A, 2)
    with pytest.raises(TypeError, match="uniform"):
        chance.uniform(A)


def test_floats_are_taken_at_their_exact_value():
    law = law_of_result(lambda chance: chance.pick(np.array([0.1, 0.9]), A)[0])
    assert law[0] == Fraction(0.1) / (Fraction(0.1) + Fraction(0.9))
