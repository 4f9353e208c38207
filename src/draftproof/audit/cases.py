"""The cases of the proof: every way of drafting, on every kind of law, under every rule that takes such drafts.

A rule that joins RULES is proven on all that its needs allow; a way of drafting that joins DRAFTINGS is proven under
all rules that take it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..base import ROOT, Drafter, Kind, Rule
from ..control import Fixed
from ..drafters import ModelDrafter, NGramDrafter, NoDrafter
from ..models.table import TableTarget
from ..rules import why_not
from . import toys
from .exact import LoopCase, deviation, emitted_law, target_law
from .toys import WITNESS, Eager, Moody, Pair, argmax, exact_table

CHOSEN, SAMPLED, COUPLED = Kind.CHOSEN, Kind.SAMPLED, Kind.COUPLED

PAIRS = {
    "witness": WITNESS,
    "dense": Pair(exact_table(3, "p", most=9), exact_table(3, "q", most=9), 3),
    "holes": Pair(exact_table(3, "p", holes=True), exact_table(3, "q", holes=True), 3),
    "some p are 0": Pair(exact_table(3, "p", support=(0, 2)), exact_table(3, "q"), 3),
    "some q are 0": Pair(exact_table(3, "p"), exact_table(3, "q", support=(0, 1)), 3),
    "supports share one token": Pair(exact_table(3, "p", support=(0, 1)), exact_table(3, "q", support=(1, 2)), 3),
    "supports disjoint": Pair(exact_table(4, "p", support=(0, 1)), exact_table(4, "q", support=(2, 3)), 4),
    "p = q": Pair(exact_table(3, "p"), exact_table(3, "p"), 3),
    "V = 2": Pair(exact_table(2, "p", most=9), exact_table(2, "q", most=9), 2),
    "V = 1": Pair(exact_table(1, "p"), exact_table(1, "q"), 1),
}
EDGES = [name for name in PAIRS if name not in ("witness", "dense")]


@dataclass(frozen=True, slots=True)
class Drafting:
    """A way of drafting. kinds: of a node's children, in order, given how many there are."""

    make: Callable[[Pair], Drafter]
    kinds: Callable[[int], Sequence[Kind]]
    widths: tuple[int, ...] | None = None  # children a level; None: a chain as long as planned

    def form(self, depth: int) -> tuple[list[int], list[Kind]]:
        """Parents and kinds of its largest draft of that depth."""
        parents: list[int] = []
        kinds: list[Kind] = []
        level = [ROOT]
        for width in ((1,) * depth if self.widths is None else self.widths)[:depth]:
            grown: list[int] = []
            for parent in level:
                grown += range(len(parents), len(parents) + width)
                parents += [parent] * width
                kinds += self.kinds(width)
            level = grown
        return parents, kinds


def _all(kind: Kind) -> Callable[[int], Sequence[Kind]]:
    return lambda k: [kind] * k


def _chosen(choose: Callable[[Pair, Sequence[int]], int]) -> Drafting:
    return Drafting(lambda pair: toys.chooser(lambda history: choose(pair, history)), _all(CHOSEN))


def _drawn(kind: Kind) -> Drafting:
    return Drafting(lambda pair: ModelDrafter(TableTarget(pair.q, pair.vocab_size), kind), _all(kind))


CHAINS = {
    "no drafts": Drafting(lambda pair: NoDrafter(), _all(CHOSEN)),
    "n-gram": Drafting(lambda pair: NGramDrafter(2, 1), _all(CHOSEN)),
    "always wrong": _chosen(lambda pair, history: argmax(-pair.p(history))),
    "partly right": _chosen(lambda pair, history: argmax(pair.p(history) * (1 if len(history) % 3 else -1))),
    "sampled": _drawn(SAMPLED),
    "coupled": _drawn(COUPLED),
}
WAYS: dict[str, tuple[toys.Siblings, Callable[[int], Sequence[Kind]]]] = {
    "independent": (toys.independent, _all(SAMPLED)),
    "distinct": (toys.distinct, _all(SAMPLED)),
    "chosen": (toys.chosen, _all(CHOSEN)),
    "chosen first": (toys.chosen_first, lambda k: [CHOSEN, *[SAMPLED] * (k - 1)]),
    "sampled first": (toys.sampled_first, lambda k: [SAMPLED, *[CHOSEN] * (k - 1)]),
    "greedy": (toys.greedy, lambda k: [*[CHOSEN] * (k - 1), SAMPLED]),
}
WIDTHS = ((3,), (2, 1), (1, 2), (2, 2))


def _trees() -> dict[str, Drafting]:
    out = {}
    for widths in WIDTHS:
        for way, (siblings, kinds) in WAYS.items():
            out[f"{way} {widths}"] = Drafting(
                lambda pair, w=widths, s=siblings: toys.grower(pair.q, w, s), kinds, widths
            )
        out[f"coupled {widths}"] = Drafting(
            lambda pair, w=widths: toys.coupled_grower(pair.q, w), _all(COUPLED), widths
        )
    return out


DRAFTINGS = CHAINS | _trees()


_PLANS = {"Fixed": "depth", "Eager": "always depth", "Moody": "depth 0 to"}


@dataclass(frozen=True, slots=True)
class Case:
    """What to prove under a rule. rounds: see `LoopCase`."""

    drafting: str
    pair: str
    controller: Fixed | Eager | Moody
    max_tokens: int
    end_ids: frozenset[int] = frozenset()
    rounds: int | None = None

    @property
    def name(self) -> str:
        plan = f"{_PLANS[type(self.controller).__name__]} {self.controller.depth}"
        rounds = "" if self.rounds is None else ", one round"
        end = f", {min(self.end_ids)} ends" if self.end_ids else ""
        return f"{self.drafting}, {self.pair}, {plan}, {self.max_tokens} tokens{rounds}{end}"

    def refusal(self, rule: str) -> str | None:
        """Why `rule` does not take its drafts, None if it does."""
        return why_not(rule, *DRAFTINGS[self.drafting].form(self.controller.depth))

    def under(self, rule: Rule) -> LoopCase:
        """The decode to enumerate."""
        pair, make = PAIRS[self.pair], DRAFTINGS[self.drafting].make
        return LoopCase(
            row=pair.p,
            target=pair.target,
            drafter=lambda: make(pair),
            controller=self.controller,
            rule=rule,
            max_tokens=self.max_tokens,
            end_ids=self.end_ids,
            rounds=self.rounds,
        )


def all_cases() -> list[Case]:
    """Whole decodes of several rounds with chains and small trees, then single rounds of everything."""
    end = frozenset({1})
    out: list[Case] = []
    for name in CHAINS:
        pair = "some p are 0" if name == "always wrong" else "dense"
        out += [Case(name, pair, Fixed(k), 4) for k in (1, 2, 3)]
        out += [Case(name, pair, Fixed(3), 4, end), Case(name, pair, Eager(2), 3, end)]
    for name in ("sampled", "coupled"):
        out += [Case(name, "witness", Fixed(2), 3), Case(name, "dense", Moody(), 4)]
        out += [Case(name, pair, Fixed(2), 3) for pair in EDGES]
        out += [Case(name, "witness", Fixed(k), k + 1, rounds=1) for k in (1, 2, 3, 4)]
        out += [Case(name, pair, Fixed(3), 4, rounds=1) for pair in EDGES]
    for way in (*WAYS, "coupled"):
        out += [Case(f"{way} {(3,)}", "dense", Fixed(1), 3)]
        out += [Case(f"{way} {(2, 1)}", "dense", Fixed(2), 3), Case(f"{way} {(2, 1)}", "V = 2", Eager(2), 3, end)]
        out += [Case(f"{way} {widths}", "witness", Fixed(2), len(widths) + 1, rounds=1) for widths in WIDTHS[:3]]
        out += [Case(f"{way} {(2, 2)}", pair, Fixed(2), 3, rounds=1) for pair in ("dense", *EDGES)]
        out += [Case(f"{way} {(3,)}", pair, Fixed(1), 2, rounds=1) for pair in EDGES]
    return out


def cases_for(rule: str) -> list[Case]:
    """All cases whose drafts the rule takes."""
    return [case for case in all_cases() if case.refusal(rule) is None and not _too_long(rule, case)]


def _too_long(rule: str, case: Case) -> bool:
    """The coupled rule branches on a drafter's noise AND on its own at every position: it gets the smaller ones."""
    drafting = DRAFTINGS[case.drafting]
    if rule != "coupled" or SAMPLED not in drafting.kinds(2):
        return False
    return drafting.widths == (2, 2) or (case.rounds is None and case.max_tokens > 3)


def deviation_of(case: LoopCase) -> Fraction:
    """How far the emitted law is from the target's."""
    return deviation(emitted_law(case), target_law(case))
