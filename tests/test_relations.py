"""How the rules relate, exactly: which accepts more, and where two of them are one."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from draftproof.audit.cases import DRAFTINGS, Case, cases_for
from draftproof.audit.exact import Laws, law_of_result, paths, steps_of
from draftproof.base import Kind
from draftproof.rules import RULES

pytestmark = pytest.mark.usefixtures("unchecked")


def first_rounds(rule: str, wanted) -> list[Case]:
    """The rule's cases, cut to their first round, of the wanted ways of drafting."""
    cases = {replace(case, rounds=1) for case in cases_for(rule) if wanted(DRAFTINGS[case.drafting])}
    return sorted(cases, key=lambda case: case.name)


def is_chain(drafting) -> bool:
    return drafting.widths is None


def is_chosen(drafting) -> bool:
    return set(drafting.kinds(3)) == {Kind.CHOSEN}


def outcome(rule: str, case: Case) -> Laws:
    """The joint law of what is drafted, accepted and emitted."""

    def run(chance):
        [step] = steps_of(case.under(RULES[rule]), chance)[1]
        return step.draft.tokens, step.verdict.path, step.verdict.tokens, step.verdict.last

    return law_of_result(run)


def expected_length(rule: str, case: Case) -> Fraction:
    loop = case.under(RULES[rule])
    return sum(
        (w * len(steps[0].verdict.path) for w, (_, steps) in paths(lambda chance: steps_of(loop, chance))), Fraction(0)
    )


CHAINS = first_rounds("block", is_chain)


@pytest.mark.parametrize("case", CHAINS, ids=lambda case: case.name)
def test_block_accepts_at_least_as_much_as_token_and_the_same_of_chosen_drafts(case: Case):
    by_block, by_token = expected_length("block", case), expected_length("token", case)
    assert by_block >= by_token
    if is_chosen(DRAFTINGS[case.drafting]) or case.controller.depth == 1:
        assert outcome("block", case) == outcome("token", case)


def test_block_sometimes_accepts_more():
    sampled = [case for case in CHAINS if case.drafting == "sampled" and case.controller.depth > 1]
    assert sum(expected_length("block", case) > expected_length("token", case) for case in sampled) >= 5


@pytest.mark.parametrize("case", CHAINS, ids=lambda case: case.name)
def test_traversal_is_block_and_recursive_is_token_on_chains(case: Case):
    assert outcome("traversal", case) == outcome("block", case)
    assert outcome("recursive", case) == outcome("token", case)


@pytest.mark.parametrize(
    "case", first_rounds("recursive", lambda drafting: drafting.widths == (3,)), ids=lambda case: case.name
)
def test_traversal_is_recursive_rejection_at_depth_one(case: Case):
    assert outcome("traversal", case) == outcome("recursive", case)


@pytest.mark.parametrize("case", first_rounds("recursive", is_chosen), ids=lambda case: case.name)
def test_traversal_is_recursive_rejection_on_chosen_trees(case: Case):
    assert outcome("traversal", case) == outcome("recursive", case)


@pytest.mark.parametrize(
    "case", first_rounds("recursive", lambda drafting: not is_chain(drafting)), ids=lambda case: case.name
)
def test_traversal_accepts_at_least_as_much_as_recursive_rejection(case: Case):
    assert expected_length("traversal", case) >= expected_length("recursive", case)


@pytest.mark.parametrize("case", first_rounds("greedy_multi", lambda d: d.widths == (3,)), ids=lambda case: case.name)
def test_greedy_multi_accepts_what_its_closed_form_says(case: Case):
    """The sampled token first, then the chosen ones: recursive rejection in that order has the same law."""
    if case.drafting.startswith("greedy"):
        assert expected_length("greedy_multi", case) >= expected_length("recursive", case)
    elif case.drafting.startswith("chosen "):
        assert expected_length("greedy_multi", case) == expected_length("recursive", case)
