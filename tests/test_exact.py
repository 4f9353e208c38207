"""The exact proofs: under every rule, all random paths of a decode add up to the target's own law. No tolerance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from draftproof.audit.exact import LoopCase, deviation, emitted_law, fractions_row, target_law
from draftproof.base import Controller, Draft, Drafter, Kind
from draftproof.control import Fixed
from draftproof.drafters import ModelDrafter, NGramDrafter, NoDrafter
from draftproof.models.table import TableTarget
from draftproof.rules import RULES
from tests.toys import WITNESS, Chooser, Eager, Edited, Moody, Table, Watched, argmax, exact_table

pytestmark = pytest.mark.usefixtures("unchecked")

Maker = Callable[[Table, Table, int], Drafter]  # target table, draft table, vocabulary size


@dataclass(frozen=True)
class Pair:
    """A target and a draft model."""

    p: Table
    q: Table
    vocab_size: int = 3


PAIRS = {
    "dense": Pair(*WITNESS),
    "some p are 0": Pair(exact_table(3, "p", support=(0, 2)), exact_table(3, "q")),
    "some q are 0": Pair(exact_table(3, "p"), exact_table(3, "q", support=(0, 1))),
    "supports share one token": Pair(exact_table(3, "p", support=(0, 1)), exact_table(3, "q", support=(1, 2))),
    "supports disjoint": Pair(exact_table(4, "p", support=(0, 1)), exact_table(4, "q", support=(2, 3)), 4),
    "p = q": Pair(exact_table(3, "p"), exact_table(3, "p")),
    "V = 4": Pair(exact_table(4, "p", most=9), exact_table(4, "q", most=9), 4),
    "V = 1": Pair(exact_table(1, "p"), exact_table(1, "q"), 1),
}


def _tree(draft: Draft) -> Draft:
    """Two children of the root and two of its first child, all chosen: tokens 0, 1 on both levels."""
    if len(draft) < 2:
        return draft
    kind, origin = (Kind.CHOSEN,) * 4, ("tree",) * 4
    return Draft(draft.root, (0, 1, 1, 0), (-1, -1, 0, 0), kind, origin, (), (-1,) * 4)


DRAFTERS: dict[str, Maker] = {
    "none": lambda p, q, v: NoDrafter(),
    "ngram": lambda p, q, v: NGramDrafter(2, 1),
    "always wrong": lambda p, q, v: Chooser(lambda history: int(np.argmin(p(history)))),
    "partly right": lambda p, q, v: Chooser(lambda history: (argmax if len(history) % 3 else np.argmin)(p(history))),
    "sampled": lambda p, q, v: ModelDrafter(TableTarget(q, v), Kind.SAMPLED),
    "coupled": lambda p, q, v: ModelDrafter(TableTarget(q, v), Kind.COUPLED),
    "tree": lambda p, q, v: Edited(Chooser(lambda history: 0), _tree),
}
ONLY_COUPLED = {"coupled", "tree"}  # drafts that the chain rules refuse


@dataclass(frozen=True)
class Proof:
    rule: str
    drafter: str
    pair: str
    controller: Controller
    max_tokens: int
    end_ids: frozenset[int] = frozenset()


def name(proof: Proof) -> str:
    end = "-end" if proof.end_ids else ""
    return f"{proof.rule}-{proof.drafter}-{proof.pair}-{proof.controller}-{proof.max_tokens}{end}"


def proofs() -> list[Proof]:
    """The one list. A new rule or drafter that joins its dict is proven with all the others."""
    out = []
    for rule in RULES:
        for drafter in DRAFTERS:
            if rule != "coupled" and drafter in ONLY_COUPLED:
                continue
            # coupled verification of independent draws branches on both, at every position: fewer tokens
            tokens = 3 if (rule, drafter) == ("coupled", "sampled") else 4
            pair = "some p are 0" if drafter == "always wrong" else "dense"
            depths = (2, 3) if drafter == "tree" else (1, 2, 3)
            out += [Proof(rule, drafter, pair, Fixed(k), tokens) for k in depths]
            out += [Proof(rule, drafter, pair, Fixed(tokens - 1), tokens, frozenset({2}))]
            out += [Proof(rule, drafter, pair, Eager(2), tokens - 1, frozenset({2}))]
            if drafter in ("sampled", "coupled"):
                out += [Proof(rule, drafter, "V = 4", Fixed(2), tokens)]
                out += [Proof(rule, drafter, other, Fixed(2), 3) for other in PAIRS if other not in (pair, "V = 4")]
                out += [Proof(rule, drafter, pair, Moody(), tokens)]
    return out


@cache
def proven(proof: Proof) -> tuple[Fraction, Watched]:
    """The deviation from the target's law, and what the rounds of all paths went through."""
    pair = PAIRS[proof.pair]
    watched = Watched(proof.controller)
    case = LoopCase(
        row=pair.p,
        target=lambda: TableTarget(pair.p, pair.vocab_size),
        drafter=lambda: DRAFTERS[proof.drafter](pair.p, pair.q, pair.vocab_size),
        controller=watched,
        rule=RULES[proof.rule],
        prompt=(0,),
        max_tokens=proof.max_tokens,
        end_ids=proof.end_ids,
    )
    return deviation(emitted_law(case), target_law(case)), watched


@pytest.mark.parametrize("proof", proofs(), ids=name)
def test_the_emitted_law_is_the_targets(proof: Proof):
    assert proven(proof)[0] == 0


@pytest.mark.parametrize("rule", RULES)
def test_the_proofs_bite(rule: str):
    """Long blocks, rejections, bonus tokens and cuts inside a block all occurred among the enumerated rounds."""
    seen = [proven(proof)[1] for proof in proofs() if proof.rule == rule]
    assert max(watched.longest for watched in seen) >= 3
    for event in ("rejected", "bonus", "cut"):
        assert any(getattr(watched, event) for watched in seen), event


@pytest.mark.parametrize("proof", [proof for proof in proofs() if proof.controller == Fixed(3)], ids=name)
def test_drafters_are_as_good_as_they_are_meant_to_be(proof: Proof):
    """Else the list above would prove less than it says."""
    watched = proven(proof)[1]
    if proof.drafter in ("none", "always wrong"):
        assert watched.longest == 1
        assert watched.rejected == (proof.drafter == "always wrong")
    else:
        assert watched.longest >= 3
        assert watched.rejected


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
