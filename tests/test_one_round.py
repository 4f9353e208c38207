"""One round in isolation, exactly: its law on random tables, and how much each rule accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest

from draftproof.audit.exact import Laws, deviation, fractions_row, law_of_result, paths
from draftproof.audit.toys import Table
from draftproof.base import Chance, Draft, Key, Kind, Purpose, Row, Rule, Verdict
from draftproof.rules import RULES, block, coupled, token
from tests.toys import CHAIN_RULES

pytestmark = pytest.mark.usefixtures("unchecked")

V = 3
ROOT_TEXT = (0,)
CASES = [(salt, k) for k in (1, 2, 3) for salt in range(12)]


def holey_table(salt: str) -> Table:
    """Laws with zeros in random places, one-hot rows and equal rows among them."""

    @cache
    def known(history: tuple[int, ...]) -> Row:
        rng = Random(f"{salt} {history}")
        weights = [0]
        while sum(weights) == 0:
            weights = [rng.choice((0, 0, 1, 1, 2, 3)) for _ in range(V)]
        return fractions_row(*weights)

    return lambda history: known(tuple(history))


def rows_along(p: Table, tokens: Sequence[int]) -> list[Row]:
    return [p((*ROOT_TEXT, *tokens[:i])) for i in range(len(tokens) + 1)]


def sampled_round(rule: Rule, p: Table, q: Table, k: int, chance: Chance) -> Verdict:
    tokens: list[int] = []
    laws = []
    for i in range(k):
        laws.append(q((*ROOT_TEXT, *tokens)))
        tokens += chance.pick(laws[-1], Key(len(ROOT_TEXT), i, Purpose.DRAFT, i))
    draft = Draft.chain(len(ROOT_TEXT), tokens, Kind.SAMPLED, rows=laws)
    return rule(draft, rows_along(p, tokens), chance)


def chosen_round(rule: Rule, p: Table, tokens: Sequence[int], chance: Chance) -> Verdict:
    return rule(Draft.chain(len(ROOT_TEXT), tokens), rows_along(p, tokens), chance)


def text_law(p: Table, length: int) -> Laws:
    law = {
        text: prod((p((*ROOT_TEXT, *text[:i]))[text[i]] for i in range(length)), start=Fraction(1))
        for text in product(range(V), repeat=length)
    }
    return {text: weight for text, weight in law.items() if weight}


def completed(law: Laws, p: Table, length: int) -> Laws:
    """Texts shorter than `length` are continued by the target itself."""
    out: Laws = {}
    for text, weight in law.items():
        for rest in product(range(V), repeat=length - len(text)):
            whole = (*text, *rest)
            more = weight * prod(p((*ROOT_TEXT, *whole[:i]))[whole[i]] for i in range(len(text), length))
            out[whole] = out.get(whole, Fraction(0)) + more
    return out


def expected_length(run: Callable[[Chance], Verdict]) -> Fraction:
    return sum((weight * len(verdict.path) for weight, verdict in paths(run)), Fraction(0))


@pytest.mark.parametrize("rule", CHAIN_RULES)
@pytest.mark.parametrize(("salt", "k"), CASES)
def test_a_sampled_draft_leaves_the_law_alone(rule: str, salt: int, k: int):
    p, q = holey_table(f"p{salt}"), holey_table(f"q{salt}")
    law = law_of_result(lambda chance: sampled_round(RULES[rule], p, q, k, chance).tokens)
    assert deviation(completed(law, p, k + 1), text_law(p, k + 1)) == 0


@pytest.mark.parametrize("rule", CHAIN_RULES)
@pytest.mark.parametrize("tokens", [(0,), (1, 2), (2, 2), (0, 1, 2), (1, 1, 1)])
def test_a_chosen_draft_leaves_the_law_alone(rule: str, tokens: tuple[int, ...]):
    for salt in range(8):
        p = holey_table(f"p{salt}")
        law = law_of_result(lambda chance, p=p: chosen_round(RULES[rule], p, tokens, chance).tokens)
        length = len(tokens) + 1
        assert deviation(completed(law, p, length), text_law(p, length)) == 0


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [((0, 1), (-1, -1)), ((0, 1, 1, 0), (-1, -1, 0, 0)), ((2, 2, 0), (-1, -1, 1)), ((1, 0, 2), (-1, 0, 0))],
    ids=["two children", "two levels", "duplicate siblings", "fork below"],
)
def test_a_chosen_tree_leaves_the_law_alone_under_the_coupled_rule(tokens: tuple[int, ...], parents: tuple[int, ...]):
    n = len(tokens)
    draft = Draft(len(ROOT_TEXT), tokens, parents, (Kind.CHOSEN,) * n, ("",) * n, (), (-1,) * n)
    for salt in range(8):
        p = holey_table(f"p{salt}")
        rows = [p(ROOT_TEXT)]
        for i, parent in enumerate(parents):
            rows.append(p((*ROOT_TEXT, *(() if parent < 0 else (tokens[parent],)), tokens[i])))
        law = law_of_result(lambda chance, rows=rows: coupled(draft, rows, chance).tokens)
        assert deviation(completed(law, p, 3), text_law(p, 3)) == 0


@pytest.mark.parametrize(("salt", "k"), CASES)
def test_token_verification_accepts_the_overlaps(salt: int, k: int):
    """E[accepted] = Σ over drafted prefixes of Π min(p, q)."""
    p, q = holey_table(f"p{salt}"), holey_table(f"q{salt}")
    known = sum(
        (
            prod((np.minimum(p(ROOT_TEXT + x[:j]), q(ROOT_TEXT + x[:j]))[x[j]] for j in range(i)), start=Fraction(1))
            for i in range(1, k + 1)
            for x in product(range(V), repeat=i)
        ),
        Fraction(0),
    )
    assert expected_length(lambda chance: sampled_round(token, p, q, k, chance)) == known


@pytest.mark.parametrize(("salt", "k"), CASES)
def test_block_verification_accepts_what_the_target_owes(salt: int, k: int):
    """E[accepted] = Σ over drafted prefixes of q(prefix)·w, with w carried along the prefix as min(w·p/q, 1)."""
    p, q = holey_table(f"p{salt}"), holey_table(f"q{salt}")

    def owed(prefix: tuple[int, ...], drawn: Fraction, w: Fraction) -> Fraction:
        whole = drawn * w if prefix else Fraction(0)
        if len(prefix) < k:
            for x in range(V):
                p_x, q_x = p(ROOT_TEXT + prefix)[x], q(ROOT_TEXT + prefix)[x]
                if q_x > 0:
                    whole += owed((*prefix, x), drawn * q_x, min(w * p_x / q_x, Fraction(1)))
        return whole

    assert expected_length(lambda chance: sampled_round(block, p, q, k, chance)) == owed((), Fraction(1), Fraction(1))


def test_block_never_accepts_less_than_token_and_sometimes_more():
    gains = []
    for salt, k in CASES:
        p, q = holey_table(f"p{salt}"), holey_table(f"q{salt}")
        by_block = expected_length(lambda chance, p=p, q=q, k=k: sampled_round(block, p, q, k, chance))
        by_token = expected_length(lambda chance, p=p, q=q, k=k: sampled_round(token, p, q, k, chance))
        gains.append((k, by_block - by_token))
    assert min(gain for _, gain in gains) == 0
    assert all(gain == 0 for k, gain in gains if k == 1)
    assert sum(gain > 0 for _, gain in gains) >= 5


@pytest.mark.parametrize("tokens", [*product(range(V), repeat=2), (0, 1, 2)])
def test_block_equals_token_on_chosen_drafts(tokens: tuple[int, ...]):
    """Not only on average: the joint law of what is accepted and what is emitted is the same."""

    def outcome(rule: Rule, p: Table):
        def run(chance: Chance):
            verdict = chosen_round(rule, p, tokens, chance)
            return verdict.path, verdict.tokens, verdict.last

        return law_of_result(run)

    for salt in range(6):
        p = holey_table(f"p{salt}")
        assert outcome(block, p) == outcome(token, p)
