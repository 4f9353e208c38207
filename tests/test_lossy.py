"""Lossy rules say so: by name, by type, and by how far the exact law of what they emit is from the target's."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from draftproof import verify
from draftproof.audit.exact import fractions_row, law_of_result
from draftproof.base import Draft, Key, Kind, Purpose, Rule
from draftproof.chance import PhiloxChance
from draftproof.rules import LOSSY, NEEDS, RULES, LossyRule, lossy_lenient, lossy_typical, rule_named
from draftproof.speculation import SpeculativeConfig

P, Q = fractions_row(5, 3, 2), fractions_row(2, 3, 5)
HALF = Fraction(1, 2)


def first_token(rule, p=P, q=Q) -> dict[int, Fraction]:
    def run(chance):
        x = chance.pick(q, Key(1, 0, Purpose.DRAFT))
        return rule(Draft.chain(1, x, Kind.SAMPLED, rows=(q,)), (p, p), chance).tokens[0]

    return law_of_result(run)


def admitted(rule: LossyRule) -> Rule:
    return rule.admitted(allow_lossy=True)


def test_their_names_and_type_say_it_and_none_is_among_the_lossless():
    for name, rule in LOSSY.items():
        assert name == rule.name
        assert name.startswith("lossy_")
        assert isinstance(rule, LossyRule)
        assert not callable(rule)
        assert name not in RULES
        assert name in NEEDS


@pytest.mark.parametrize("name", LOSSY)
def test_they_are_refused_unless_allowed(name: str):
    with pytest.raises(ValueError, match="allow_lossy=True"):
        rule_named(name)
    with pytest.raises(ValueError, match="changes what the model says"):
        verify([0], [[1.0, 0.0]], rule=name)
    with pytest.raises(ValueError, match="changes what the model says"):
        verify([0], [[1.0, 0.0]], rule=LOSSY[name])
    with pytest.raises(ValueError, match="changes what the model says"):
        SpeculativeConfig(verify=name)
    assert verify([0], [[1.0, 0.0]], rule=name, allow_lossy=True).tokens == (0,)
    assert SpeculativeConfig(verify=name, allow_lossy=True).verify == name


def test_lenience_one_is_token_verification_and_a_half_doubles_the_ratio():
    assert first_token(lossy_lenient(Fraction(1)).admitted(allow_lossy=True)) == {
        0: HALF,
        1: Fraction(3, 10),
        2: Fraction(1, 5),
    }
    # token 2 is drafted with 1/2 and accepted with min(1, .2/(.5·.5)) = 4/5; the rest of p − q is all token 0's
    assert first_token(lossy_lenient(HALF).admitted(allow_lossy=True)) == {
        0: Fraction(3, 10),
        1: Fraction(3, 10),
        2: Fraction(2, 5),
    }


def test_typical_acceptance_keeps_what_is_plausible():
    """exp(−H(p)) = .357; a third of it is .107, above .09: the threshold is .09, and all three tokens pass."""
    assert first_token(admitted(lossy_typical())) == {0: Fraction(1, 5), 1: Fraction(3, 10), 2: HALF}
    # above a threshold of .25 token 2 fails: it is drawn again from p, and mostly becomes another
    assert first_token(admitted(lossy_typical(epsilon=0.25, delta=1.0))) == {
        0: Fraction(1, 5) + HALF * HALF,
        1: Fraction(3, 10) + HALF * Fraction(3, 10),
        2: HALF * Fraction(1, 5),
    }


def test_typical_acceptance_keeps_the_longest_plausible_path():
    row = np.array([0.4, 0.4, 0.1, 0.1])
    draft = Draft(1, (0, 1, 2, 1, 0), (-1, -1, 1, 1, 3), (Kind.CHOSEN,) * 5, ("",) * 5, (), (-1,) * 5)
    verdict = admitted(lossy_typical(epsilon=0.2, delta=1.0))(draft, [row] * 6, PhiloxChance(0))
    assert verdict.path == (1, 3, 4)
    assert [(test.node, test.accepted) for test in verdict.tests] == [
        (0, True), (1, True), (2, False), (3, True), (4, True),
    ]  # fmt: skip
    assert verdict.last == "bonus"


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: lossy_typical(epsilon=0), "epsilon"),
        (lambda: lossy_typical(delta=1.5), "delta"),
        (lambda: lossy_lenient(0), "lenience"),
        (lambda: lossy_lenient(float("nan")), "lenience"),
    ],
)
def test_parameters_out_of_range_are_named(make, name: str):
    with pytest.raises(ValueError, match=f"{name}: .* is not allowed"):
        make()
