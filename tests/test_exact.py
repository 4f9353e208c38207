"""The exact proofs: under every rule, all random paths of a decode add up to the target's own law. No tolerance."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import islice

import pytest

from draftproof.audit.cases import (
    CHAINS,
    DRAFTINGS,
    MIXED,
    OWN,
    PAIRS,
    SHAPES,
    UNEQUAL,
    UNEVEN,
    WAYS,
    Case,
    all_cases,
    cases_for,
    checked,
    refuses,
    specimen,
)
from draftproof.audit.exact import (
    EnumeratedChance,
    LoopCase,
    deviation,
    emitted_law,
    fractions_row,
    identity_law,
    paths,
    target_law,
)
from draftproof.base import Context
from draftproof.control import Fixed
from draftproof.plan import Plan
from draftproof.rules import NEEDS, RULES, why_not
from tests.toys import Watched

pytestmark = pytest.mark.usefixtures("unchecked")

PROOFS = [(rule, case) for rule in RULES for case in cases_for(rule)]


@cache
def proven(rule: str, case: Case) -> tuple[Fraction, Watched]:
    """The deviation from the target's law, and what the rounds of all paths went through."""
    watched = Watched(case.controller)
    loop = replace(case.under(checked(RULES[rule])), controller=watched)
    return deviation(emitted_law(loop), target_law(loop)), watched


@pytest.mark.parametrize(("rule", "case"), PROOFS, ids=lambda value: getattr(value, "name", value))
def test_the_emitted_law_is_the_targets(rule: str, case: Case):
    assert proven(rule, case)[0] == 0


@pytest.mark.parametrize("rule", RULES)
def test_the_proofs_bite(rule: str):
    """Long blocks, rejections, bonus tokens and cuts inside a block all occurred among the enumerated rounds."""
    seen = [proven(rule, case)[1] for case in cases_for(rule)]
    assert max(watched.longest for watched in seen) >= (2 if NEEDS[rule].shape == "level" else 4)
    for event in ("rejected", "bonus", "cut"):
        if event == "cut" and NEEDS[rule].shape == "level":  # a level is never cut: its last token needs one more
            continue
        assert any(getattr(watched, event) for watched in seen), event


def test_drafters_are_as_good_as_they_are_meant_to_be():
    """Else the cases would prove less than they say."""
    for rule, case in PROOFS:
        if case.drafting in CHAINS and case.controller == Fixed(3) and case.rounds is None:
            watched = proven(rule, case)[1]
            if case.drafting in ("no drafts", "always wrong"):
                assert watched.longest == 1
                assert watched.rejected == (case.drafting == "always wrong")
            else:
                assert watched.longest >= 3
                assert watched.rejected


def test_every_rule_is_proven_on_all_that_it_takes():
    """Every way of drafting and every pair occur; whole decodes of several rounds with chains and with trees."""
    for rule, needs in NEEDS.items():
        if rule not in RULES:
            continue
        cases = cases_for(rule)
        drafted = {case.drafting for case in cases}
        assert {case.pair for case in cases} == set(PAIRS)
        assert drafted >= {name for name in (*CHAINS, *UNEQUAL) if needs.coupled or name != "coupled"}
        if needs.shape == "tree":
            assert {name.split(" (")[0] for name in drafted} >= set(WAYS)
            assert all(any(shape in name for name in drafted) for shape in (*SHAPES, *UNEVEN, "changing"))
            assert any("(2, 1)" in case.drafting and case.rounds is None for case in cases)
        if needs.shape != "level":
            assert drafted >= set(MIXED)
            assert any(case.controller == Fixed(4) for case in cases)
        if needs.shape != "chain":
            assert "greedy (3)" in drafted


def proposed(name: str, chance, root: int = 1):
    drafter = DRAFTINGS[name].make(PAIRS["witness"])
    session = drafter.open(Context(identity_law, 4, 8))
    drafter.commit([session], [(0,) * root])
    [draft] = drafter.propose([session], [Plan(3)], [chance])
    return draft


@pytest.mark.parametrize("name", sorted(set(DRAFTINGS) - set(OWN) - {"n-gram", "no drafts"}))  # which may draft less
def test_a_form_is_what_the_drafter_drafts(name: str):
    """The declared parents and kinds, which decide what rules a case is for, are those of the drafts."""
    for root in (1, 2):
        form = DRAFTINGS[name].form(3, root)
        for _, draft in islice(paths(lambda chance, root=root: proposed(name, chance, root)), 60):
            assert (list(draft.parents), list(draft.kind)) == form


def test_independent_siblings_share_one_row():
    draft = proposed("independent (3)", EnumeratedChance([]))
    assert (draft.row_of, len(draft.rows)) == ((0, 0, 0), 1)


@pytest.mark.parametrize("rule", RULES)
def test_what_a_rule_does_not_take_it_refuses_and_nothing_else(rule: str):
    refused = 0
    for case in all_cases():
        draft = specimen(case)
        reason = why_not(rule, draft.parents, draft.kind)
        assert refuses(RULES[rule], draft) == (reason is not None)
        refused += reason is not None
    assert (refused == 0) == (rule == "coupled")


@pytest.mark.parametrize("change", [{"last": None}, {"tokens": (0, 0, 0, 0)}, {"path": (1,)}, {"rounding": 1}])
def test_a_verdict_that_contradicts_itself_is_seen(change: dict):
    case = cases_for("token")[0]

    def wrong(draft, rows, chance):
        return replace(RULES["token"](draft, rows, chance), **change)

    with pytest.raises(ValueError, match=r"verdict: |path: "):
        emitted_law(case.under(checked(wrong)))


def test_a_law_that_is_off_by_one_path_is_seen():
    fair, off = {(0,): Fraction(1, 2), (1,): Fraction(1, 2)}, {(0,): Fraction(1, 2), (2,): Fraction(1, 2)}
    assert deviation(fair, fair) == 0
    assert deviation(fair, off) == Fraction(1, 2)


def test_target_law_is_the_product_of_its_rows():
    rows = {(0,): (1, 1, 2), (0, 0): (1, 0, 1), (0, 1): (0, 1, 0), (0, 2): (1, 2, 1)}
    case = LoopCase(
        row=lambda history: fractions_row(*rows[tuple(history)]),
        target=lambda: None,
        drafter=lambda: None,
        controller=Fixed(0),
        rule=RULES["token"],
        max_tokens=2,
        end_ids=frozenset({2}),
    )
    quarter, eighth = Fraction(1, 4), Fraction(1, 8)
    assert target_law(case) == {(0, 0): eighth, (0, 2): eighth, (1, 1): quarter, (2,): 2 * quarter}
