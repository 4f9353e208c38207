"""Faults that one could ship: the proof must reject each of them, and pass what is harmless.

Each is a rule, or a way of drafting, that departs from a correct one in one point. A fault is looked for on the witness
(`toys.WITNESS`, four tokens), in the very cases that prove the rule it departs from, the small ones first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ..base import Drafter, Kind, Rule
from ..laws import acceptance, residual, without
from ..rules import RULES, block, coupled, lossy_lenient, lossy_typical, recursive, token, traversal
from . import faults as f
from . import toys
from .cases import Case, cases_for
from .exact import Laws, deviation, emitted_law, target_law
from .toys import Pair, argmax


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault. of: the rule it departs from. rule: the faulty one, None if the fault is not in the rule. make: the
    faulty drafter. draftings: the cases it is looked for in, by how they draft; empty for all that `of` takes."""

    name: str
    of: str
    rule: Rule | None = None
    make: Callable[[Pair], Drafter] | None = None
    draftings: tuple[str, ...] = ()

    def cases(self) -> list[Case]:
        fitting = [case for case in cases_for(self.of) if case.pair == "witness" and case.controller.depth <= 3]
        fitting = [case for case in fitting if not self.draftings or case.drafting in self.draftings]
        return sorted(fitting, key=lambda case: (case.controller.depth, case.rounds is None))


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a fault shows: a case, both of its laws, how far they are apart, and the text they differ most on."""

    case: str
    target: Laws
    emitted: Laws
    deviation: Fraction
    text: tuple[int, ...]


def first_difference(mutant: Mutant) -> Difference | None:
    """The first case in which the emitted law is not the target's; None if there is none."""
    for case in mutant.cases():
        loop = case.under(mutant.rule or RULES[mutant.of])
        if mutant.make is not None:
            loop = replace(loop, drafter=lambda make=mutant.make: make(toys.WITNESS))
        target, emitted = target_law(loop), emitted_law(loop)
        if target != emitted:
            texts = sorted(target.keys() | emitted.keys())
            worst = max(texts, key=lambda text: abs(target.get(text, 0) - emitted.get(text, 0)))
            return Difference(case.name, target, emitted, deviation(target, emitted), worst)
    return None


def wrong_rules(of: str, draftings: tuple[str, ...], rules: Mapping[str, Rule]) -> list[Mutant]:
    return [Mutant(name, of, rule, None, draftings) for name, rule in rules.items()]


def wrong_drafts(of: str, draftings: tuple[str, ...], make: Mapping[str, Callable[[Pair], Drafter]]) -> list[Mutant]:
    return [Mutant(name, of, None, maker, draftings) for name, maker in make.items()]


CHAIN, COUPLED = ("sampled",), ("coupled",)
LEVEL, DISTINCT, GREEDY, TREE = ("independent (3)",), ("distinct (3)",), ("greedy (3)",), ("independent (2, 1)",)

CHANGING = ("independent changing",)
WIDE, FORK = (-1, -1, -1), (-1, -1, 0, 1)  # parents of the drafts of LEVEL and TREE

MUTANTS: list[Mutant] = [
    *wrong_rules(
        "token",
        CHAIN,
        {
            "accepted if it is the argmax": f.token_like(accept=lambda p, q, x: Fraction(x == argmax(p))),
            "p/(q + 1e-10)": f.token_like(accept=lambda p, q, x: acceptance(p[x], q[x] + Fraction(1, 10**10))),
            "lenience 2/3": lossy_lenient(Fraction(2, 3)).admitted(allow_lossy=True),
            "typical acceptance": lossy_typical().admitted(allow_lossy=True),
            "replaced from p": f.token_like(rest=lambda p, q, x: p),
            "replaced by the argmax of p": f.token_like(rest=lambda p, q, x: f.point(argmax(p), p)),
            "replaced by the argmax of the residual": f.token_like(
                rest=lambda p, q, x: f.point(argmax(residual(p, q)), p)
            ),
            "replaced from |p - q|": f.token_like(rest=lambda p, q, x: abs(p - q)),
            "replaced from the softmax of the residual": f.token_like(rest=lambda p, q, x: f.softmax(residual(p, q))),
            "replaced from p without the drafted token": f.token_like(rest=lambda p, q, x: without(p, x)),
            "drafted anew until accepted": f.token_like(rest=lambda p, q, x: np.minimum(p, q)),
            "bonus from the row before": f.token_like(bonus=lambda rows, draft: rows[len(draft) - 1]),
            "bonus from q": f.token_like(bonus=lambda rows, draft: draft.rows[-1]),
            "one noise for draft and replacement": f.rekeyed(token, f.replacement_with_the_draft),
            "one noise for coin and replacement": f.rekeyed(token, f.replacement_with_the_coin),
            "one coin for the whole chain": f.rekeyed(token, f.one_coin_a_chain),
        },
    ),
    *wrong_drafts(
        "token",
        CHAIN,
        {
            "soft q on argmax drafts": f.soft_argmax,
            "q recorded at another temperature": f.edited(f.recorded_colder),
            "a sampled token dropped by its value": f.edited(f.stop_at(f.unlikely_token)),
            "the more confident of two drafts": f.grown((-1, 0), f.better_of_two),
        },
    ),
    Mutant(
        "coupled noise under u < p/q",
        "token",
        f.rekeyed(token, f.the_targets_noise),
        f.edited(f.as_sampled, Kind.COUPLED),
        CHAIN,
    ),
    *wrong_rules(
        "block",
        CHAIN,
        {
            "block, the first failure ends": f.block_like(first_failure_ends=True),
            "block, residual of the whole p": f.block_like(weighted=False),
            "block, q of a token that is not verified": f.block_like(last_judged_by_q=True),
            "block, accept noise by position alone": f.rekeyed(block, f.position_alone),
        },
    ),
    *wrong_drafts(
        "block",
        CHAIN,
        {
            "block, draft noise by position alone": f.redrawn(f.drawn(), f.position_alone),
            "block, soft q on argmax drafts": f.soft_argmax,
            "block, q recorded at another temperature": f.edited(f.recorded_colder),
        },
    ),
    *wrong_rules(
        "recursive",
        LEVEL,
        {
            "siblings tried by probability": f.siblings_sorted(recursive),
            "repeated siblings skipped": f.recursive_like(skip_duplicates=True),
            "every sibling scored against p": f.recursive_like(update=False),
            "residual not normalised between siblings": f.recursive_like(normalise=False),
            "one coin for all siblings": f.rekeyed(recursive, f.one_coin_a_depth),
        },
    ),
    *wrong_rules("recursive", DISTINCT, {"distinct siblings tried by probability": f.siblings_sorted(recursive)}),
    *wrong_drafts(
        "recursive",
        DISTINCT,
        {
            "distinct siblings scored with the full q": f.grown(WIDE, f.recorded(lambda q, drawn_from: q)),
            "distinct siblings with q not renormalised": f.grown(WIDE, f.recorded(f.unnormalised)),
        },
    ),
    *wrong_drafts("recursive", LEVEL, {"the least likely sibling dropped": f.grown(WIDE, f.least_likely_dropped)}),
    *wrong_rules("traversal", LEVEL, {"traversal, siblings tried by probability": f.siblings_sorted(traversal)}),
    *wrong_rules(
        "traversal",
        TREE,
        {
            "traversal, one coin for cousins": f.rekeyed(traversal, f.one_coin_for_cousins),
            "traversal, weight kept after a refusal": f.traversal_like(update_weight=False),
            "traversal, law kept after a refusal": f.traversal_like(update_law=False),
        },
    ),
    *wrong_rules(
        "traversal",
        CHANGING,
        {"traversal, accept noise by position and node": f.rekeyed(traversal, f.position_and_node)},
    ),
    *wrong_drafts(
        "traversal",
        TREE,
        {"traversal, one draw for cousins": f.redrawn(f.grown(FORK, toys.independent), f.one_draw_for_cousins)},
    ),
    *wrong_drafts("greedy_multi", GREEDY, {"greedy multi-draft scored with the full q": f.grown(WIDE, f.greedy_full)}),
    *wrong_rules(
        "coupled",
        COUPLED,
        {
            "coupled, drawn again after a mismatch": f.drawn_again,
            "coupled, one noise for all positions": f.rekeyed(coupled, f.one_noise),
        },
    ),
]

HARMLESS: list[Mutant] = [
    *wrong_rules("token", (), {"sample and match": f.sample_and_match, "no bonus token": f.without_bonus}),
    *wrong_drafts("token", CHAIN, {"stopped before a token is sampled": f.edited(f.stop_at(f.unsure_law))}),
    *wrong_drafts(
        "coupled",
        COUPLED,
        {
            "a coupled token dropped by its value": f.edited(f.stop_at(f.unlikely_token), Kind.COUPLED),
            "a coupled draft from another law": f.edited(f.recorded_colder, Kind.COUPLED),
        },
    ),
    *wrong_rules("token", CHAIN, {"token verification, plainly": f.token_like()}),
    *wrong_rules("block", CHAIN, {"block verification, plainly": f.block_like()}),
    *wrong_rules("recursive", (*LEVEL, *DISTINCT, *TREE), {"recursive rejection, plainly": f.recursive_like()}),
    *wrong_rules("traversal", (*LEVEL, *DISTINCT, *TREE), {"traversal verification, plainly": f.traversal_like()}),
    *wrong_rules("recursive", (*LEVEL, *DISTINCT, *TREE), {"sample and match on trees": f.sample_and_match}),
]
"""What looks suspicious and is lossless: the proof must not reject it."""
