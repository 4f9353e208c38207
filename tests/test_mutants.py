"""The proof must be able to fail: it rejects every known fault, on the witness, and passes what is harmless.

Run with -s to read the exact deviations.
"""

from __future__ import annotations

import pytest

from draftproof.audit.exact import EnumeratedChance
from draftproof.audit.faults import without_bonus
from draftproof.audit.mutants import HARMLESS, MUTANTS, Mutant, first_difference
from draftproof.base import Draft, Kind
from draftproof.laws import one_hot
from draftproof.rules import RULES, token

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_is_rejected(mutant: Mutant):
    found = first_difference(mutant)
    assert found is not None
    print(f"\n{mutant.name:45} {float(found.deviation):.2e} = {found.deviation}  ({found.case})", end=" ")
    assert found.deviation > 0
    assert found.target.get(found.text, 0) != found.emitted.get(found.text, 0)
    assert sum(found.target.values()) == sum(found.emitted.values()) == 1


@pytest.mark.parametrize("mutant", HARMLESS, ids=lambda mutant: mutant.name)
def test_what_is_harmless_passes(mutant: Mutant):
    assert mutant.cases()
    assert first_difference(mutant) is None


def test_every_rule_has_faults_that_are_known():
    assert {mutant.of for mutant in MUTANTS} == set(RULES)
    names = [mutant.name for mutant in (*MUTANTS, *HARMLESS)]
    assert len(set(names)) == len(names)


def test_a_rule_without_the_bonus_is_merely_slow():
    only = one_hot(0, 1)
    draft = Draft.chain(1, (0, 0), Kind.SAMPLED, rows=(only, only))
    certain = EnumeratedChance([])
    quick, slow = (rule(draft, (only, only, only), certain) for rule in (token, without_bonus))
    assert (len(quick.tokens), len(slow.tokens)) == (3, 2)
