"""The cases of the proof: every way of drafting, on every kind of law, under every rule that takes such drafts.

A rule that joins RULES is proven on all that its needs allow (the coupled rule not on the longest sampled drafts, see
`_too_long`); a way of drafting that joins CHAINS or WAYS is proven under all rules that take it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np

from ..base import ROOT, Chance, Context, Draft, Drafter, Kind, Row, Rule, Verdict
from ..control import Fixed
from ..drafters import (
    CombinedDrafter,
    EagleDrafter,
    EarlyExitDrafter,
    ModelDrafter,
    NGramDrafter,
    NoDrafter,
    SuffixDrafter,
)
from ..drafters.suffix import SuffixCorpus
from ..laws import total
from ..models.table import TableTarget
from ..plan import Plan
from ..rules import why_not
from ..trees import children, path_to, require_path
from . import toys
from .exact import EnumeratedChance, LoopCase, deviation, emitted_law, fractions_row, identity_law, target_law
from .toy_head import HeadTable
from .toys import (
    WITNESS,
    Eager,
    Moody,
    Pair,
    ShallowTable,
    Spread,
    argmax,
    exact_table,
    nearly_equal,
    sharp,
    up_to,
)

CHOSEN, SAMPLED, COUPLED = Kind.CHOSEN, Kind.SAMPLED, Kind.COUPLED

PAIRS = {
    "witness": WITNESS,
    "dense": Pair(exact_table(3, "p", up_to(9)), exact_table(3, "q", up_to(9)), 3),
    "holes": Pair(exact_table(3, "p", holes=True), exact_table(3, "q", holes=True), 3),
    "some p are 0": Pair(exact_table(3, "p", support=(0, 2)), exact_table(3, "q"), 3),
    "some q are 0": Pair(exact_table(3, "p"), exact_table(3, "q", support=(0, 1)), 3),
    "supports share one token": Pair(exact_table(3, "p", support=(0, 1)), exact_table(3, "q", support=(1, 2)), 3),
    "supports disjoint": Pair(exact_table(4, "p", support=(0, 1)), exact_table(4, "q", support=(2, 3)), 4),
    "p = q": Pair(exact_table(3, "p"), exact_table(3, "p"), 3),
    "sharp": Pair(exact_table(3, "p", sharp), exact_table(3, "q", sharp), 3),
    "nearly equal": Pair(exact_table(3, "p", nearly_equal), exact_table(3, "q", nearly_equal), 3),
    "V = 2": Pair(exact_table(2, "p", up_to(9)), exact_table(2, "q", up_to(9)), 2),
    "V = 1": Pair(exact_table(1, "p"), exact_table(1, "q"), 1),
}
EDGES = [name for name in PAIRS if name not in ("witness", "dense")]


@dataclass(frozen=True, slots=True)
class Drafting:
    """A way of drafting.

    shape(committed tokens): the tree; None: a chain as long as planned. kinds[depth % len](k): the kinds of k siblings.
    prompt: what it needs to draft from the first round on.
    """

    make: Callable[[Pair], Drafter]
    kinds: Sequence[Callable[[int], Sequence[Kind]]]
    shape: Callable[[int], toys.Shape] | None = None
    prompt: tuple[int, ...] = (0,)

    def form(self, depth: int, root: int = 1) -> tuple[list[int], list[Kind]]:
        """Parents and kinds of its largest draft of that depth, when `root` tokens are committed."""
        parents = list(range(-1, depth - 1)) if self.shape is None else toys.to_depth(self.shape(root), depth)
        kinds: dict[int, Kind] = {}
        for node in (ROOT, *range(len(parents))):
            below = toys.siblings_below(parents, node)
            kinds |= zip(below, self.kinds[len(path_to(parents, node)) % len(self.kinds)](len(below)), strict=True)
        return parents, [kinds[node] for node in range(len(parents))]


def _all(kind: Kind) -> Callable[[int], Sequence[Kind]]:
    return lambda k: [kind] * k


def _chosen(choose: Callable[[Pair, Sequence[int]], int]) -> Drafting:
    return Drafting(lambda pair: toys.chooser(lambda history: choose(pair, history)), [_all(CHOSEN)])


def _drawn(kind: Kind, more: int = 0) -> Drafting:
    def make(pair: Pair) -> Drafter:
        size = pair.vocab_size + more
        return ModelDrafter(TableTarget(exact_table(size, "other", up_to(9)) if more else pair.q, size), kind)

    return Drafting(make, [_all(kind)])


CHAINS = {
    "no drafts": Drafting(lambda pair: NoDrafter(), [_all(CHOSEN)]),
    "n-gram": Drafting(lambda pair: NGramDrafter(2, 1), [_all(CHOSEN)]),
    "always wrong": _chosen(lambda pair, history: argmax(-pair.p(history))),
    "partly right": _chosen(lambda pair, history: argmax(pair.p(history) * (1 if len(history) % 3 else -1))),
    "sampled": _drawn(SAMPLED),
    "coupled": _drawn(COUPLED),
}
UNEQUAL = {"sampled, one token more": _drawn(SAMPLED, 1), "sampled, one token less": _drawn(SAMPLED, -1)}
WAYS: dict[str, tuple[toys.Siblings, Callable[[int], Sequence[Kind]]]] = {
    "independent": (toys.independent, _all(SAMPLED)),
    "distinct": (toys.distinct, _all(SAMPLED)),
    "chosen": (toys.chosen, _all(CHOSEN)),
    "chosen first": (toys.chosen_first, lambda k: [CHOSEN, *[SAMPLED] * (k - 1)] if k else []),
    "sampled first": (toys.sampled_first, lambda k: [SAMPLED, *[CHOSEN] * (k - 1)] if k else []),
    "greedy": (toys.greedy, lambda k: [*[CHOSEN] * (k - 1), SAMPLED] if k else []),
}
MIXED = {
    "chosen, sampled": ("chosen", "independent"),
    "sampled, chosen": ("independent", "chosen"),
    "sampled, sampled, chosen": ("independent", "independent", "chosen"),
}
SHAPES: dict[str, toys.Shape] = {
    "(3)": (-1, -1, -1),
    "(4)": (-1, -1, -1, -1),
    "(2, 1)": (-1, -1, 0, 1),
    "(1, 2)": (-1, 0, 0),
    "(1, 3)": (-1, 0, 0, 0),
    "(2, 2)": (-1, -1, 0, 0, 1, 1),
    "(1, 2, 1)": (-1, 0, 0, 1, 2),
    "(2, 1, 1)": (-1, -1, 0, 1, 2, 3),
}
UNEVEN: dict[str, toys.Shape] = {
    "a leaf beside a chain": (-1, -1, 1),
    "a chain beside a leaf, depth first": (-1, 0, -1),
    "(2, 1), depth first": (-1, 0, -1, 2),
}


def _changing(root: int) -> toys.Shape:
    """A chain of two after an odd number of tokens, two leaves after an even one."""
    return (-1, 0) if root % 2 else (-1, -1)


def _trees() -> dict[str, Drafting]:
    out = {}
    forms: dict[str, Callable[[int], toys.Shape]] = {name: lambda root, s=s: s for name, s in (SHAPES | UNEVEN).items()}
    for name, form in (forms | {"changing": _changing}).items():
        for way, (siblings, kinds) in WAYS.items():
            out[f"{way} {name}"] = Drafting(lambda p, f=form, s=siblings: toys.grower(p.q, f, [s]), [kinds], form)
        out[f"coupled {name}"] = Drafting(lambda p, f=form: toys.coupled_grower(p.q, f), [_all(COUPLED)], form)
    for name, ways in MIXED.items():
        siblings, kinds = zip(*(WAYS[way] for way in ways), strict=True)
        out[name] = Drafting(lambda p, s=siblings: toys.grower(p.q, _chain, s), kinds, _chain)
    return out


def _chain(root: int) -> toys.Shape:
    return (-1, 0, 1)


# the package's own drafters, as they are planned for


def _suffix(*, well_read: bool = True) -> SuffixDrafter:
    """well_read: it knows other texts, so that it has something to say at once."""
    if not well_read:
        return SuffixDrafter(floor=0.01)
    corpus = SuffixCorpus(100)
    for text in ([0, 1, 2, 0, 1, 1], [0, 2, 1, 0, 1, 2, 2], [1, 0, 0, 2]):
        corpus.add(text)
    return SuffixDrafter([corpus], floor=0.01)


def _early(pair: Pair, kind: Kind) -> EarlyExitDrafter:
    return EarlyExitDrafter(ShallowTable(pair.q, pair.vocab_size), kind)


def _head(pair: Pair, kind: Kind) -> EagleDrafter:
    return EagleDrafter(HeadTable(pair.q, pair.vocab_size), kind)


def _both(pair: Pair, kind: Kind, *, merge: bool) -> CombinedDrafter:
    model = ModelDrafter(TableTarget(pair.q, pair.vocab_size), kind)
    return CombinedDrafter({"suffix": _suffix(well_read=merge), "model": model}, merge=merge)


def _own() -> dict[str, Drafting]:
    """Chains and, where `widths` plan them, trees. Of two drafters in one tree the chosen nodes come first."""
    out = {"suffix": Drafting(lambda pair: _suffix(), [_all(CHOSEN)])}
    out["suffix tree"] = Drafting(lambda pair: _suffix(), [_all(CHOSEN)], lambda root: _PLANNED)
    for kind in (SAMPLED, COUPLED):
        name = kind.name.lower()
        out[f"early exit, {name}"] = Drafting(lambda pair, k=kind: _early(pair, k), [_all(kind)])
        out[f"early exit tree, {name}"] = Drafting(lambda p, k=kind: _early(p, k), [_all(kind)], lambda root: _PLANNED)
        out[f"head, {name}"] = Drafting(lambda pair, k=kind: _head(pair, k), [_all(kind)], prompt=(0, 1))
        out[f"head tree, {name}"] = Drafting(
            lambda pair, k=kind: _head(pair, k), [_all(kind)], lambda root: _PLANNED, prompt=(0, 1)
        )
        out[f"suffix or {name}"] = Drafting(lambda pair, k=kind: _both(pair, k, merge=False), [_all(kind)])
        made = partial(_both, kind=kind, merge=True)
        out[f"suffix and {name}"] = Drafting(
            made, [lambda n, k=kind: [CHOSEN, *[k] * (n - 1)] if n else []], lambda root: _PLANNED
        )
    return out


_PLANNED: toys.Shape = (-1, -1, 0, 1)
WIDTHS = (2, 1)
"""The plan that makes trees of that shape."""

OWN = _own()
DRAFTINGS = CHAINS | UNEQUAL | _trees() | OWN


_PLANS = {"Fixed": "depth", "Eager": "always depth", "Moody": "depth 0 to", "Spread": "tree of depth"}


@dataclass(frozen=True, slots=True)
class Case:
    """What to prove under a rule. rounds: see `LoopCase`."""

    drafting: str
    pair: str
    controller: Fixed | Eager | Moody | Spread
    max_tokens: int
    end_ids: frozenset[int] = frozenset()
    rounds: int | None = None
    penalty: bool = False  # the law of a row depends on what was said before, as with a repetition penalty

    @property
    def name(self) -> str:
        plan = f"{_PLANS[type(self.controller).__name__]} {self.controller.depth}"
        rounds = "" if self.rounds is None else ", one round"
        end = f", {min(self.end_ids)} ends" if self.end_ids else ""
        penalty = ", penalised" if self.penalty else ""
        return f"{self.drafting}, {self.pair}, {plan}, {self.max_tokens} tokens{rounds}{end}{penalty}"

    def refusal(self, rule: str) -> str | None:
        """Why `rule` does not take its drafts, None if it does."""
        forms = [DRAFTINGS[self.drafting].form(self.controller.depth, root) for root in (1, 2)]
        return next((reason for form in forms if (reason := why_not(rule, *form))), None)

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
            law=penalised if self.penalty else identity_law,
            prompt=DRAFTINGS[self.drafting].prompt,
        )


def all_cases() -> list[Case]:
    """Whole decodes of several rounds with chains and small trees, then single rounds of everything."""
    end = frozenset({1})
    out: list[Case] = []
    out += [Case(name, "dense", Fixed(k), 3) for name in UNEQUAL for k in (1, 2)]
    for name in CHAINS:
        pair = "some p are 0" if name == "always wrong" else "dense"
        out += [Case(name, pair, Fixed(k), 4) for k in (1, 2, 3)]
        out += [Case(name, pair, Fixed(3), 4, end), Case(name, pair, Eager(2), 3, end)]
    for name in ("sampled", "coupled"):
        out += [Case(name, "witness", Fixed(2), 3), Case(name, "dense", Moody(), 4)]
        out += [Case(name, pair, Fixed(2), 3) for pair in EDGES]
        out += [Case(name, "witness", Fixed(k), k + 1, rounds=1) for k in (1, 2, 3, 4)]
        out += [Case(name, pair, Fixed(3), 4, rounds=1) for pair in EDGES]
    out += [Case("independent changing", "witness", Fixed(2), 3)]
    for name in ("sampled", "coupled", "n-gram", "partly right"):
        out += [Case(name, "dense", Fixed(2), 3, penalty=True)]
    for name in ("independent (2, 1)", "chosen (2, 2)"):
        out += [Case(name, "dense", Fixed(2), 3, rounds=1, penalty=True)]
    for name in MIXED:
        out += [Case(name, "dense", Fixed(3), 4), Case(name, "witness", Fixed(3), 4, rounds=1)]
        out += [Case(name, "holes", Fixed(3), 4, rounds=1)]
    for name, drafting in OWN.items():
        plan = Fixed(2) if drafting.shape is None else Spread(2, WIDTHS)
        out += [Case(name, "dense", plan, 3), Case(name, "witness", plan, 3, rounds=1)]
        out += [Case(name, "holes", plan, 3, end), Case(name, "dense", plan, 3, rounds=1, penalty=True)]
    for way in (*WAYS, "coupled"):
        out += [Case(f"{way} (3)", "dense", Fixed(1), 3), Case(f"{way} changing", "dense", Fixed(2), 3)]
        out += [Case(f"{way} (2, 1)", "dense", Fixed(2), 3), Case(f"{way} (2, 1)", "V = 2", Eager(2), 3, end)]
        out += [Case(f"{way} {shape}", "witness", Fixed(2), 3, rounds=1) for shape in ("(2, 1)", "(1, 2)")]
        out += [Case(f"{way} {shape}", "witness", Fixed(1), 2, rounds=1) for shape in ("(3)", "(4)")]
        out += [Case(f"{way} (2, 2)", pair, Fixed(2), 3, rounds=1) for pair in ("dense", "holes", "V = 2", "V = 1")]
        out += [Case(f"{way} (2, 1)", pair, Fixed(2), 3, rounds=1) for pair in EDGES]
        out += [Case(f"{way} (3)", pair, Fixed(1), 2, rounds=1) for pair in EDGES]
        out += [Case(f"{way} {shape}", "dense", Fixed(3), 3, rounds=1) for shape in UNEVEN]
        out += [Case(f"{way} (1, 3)", "dense", Fixed(2), 3, rounds=1)]
        out += [Case(f"{way} (1, 2, 1)", "dense", Fixed(3), 4, rounds=1)]
        out += [Case(f"{way} (2, 1, 1)", "V = 2", Fixed(3), 4, rounds=1)]
    return out


def cases_for(rule: str) -> list[Case]:
    """All cases whose drafts the rule takes."""
    return [case for case in all_cases() if case.refusal(rule) is None and not _too_long(rule, case)]


def _too_long(rule: str, case: Case) -> bool:
    """The coupled rule never looks at q and branches on a drafter's noise and its own: it gets fewer sampled drafts."""
    drafting = DRAFTINGS[case.drafting]
    if rule != "coupled" or SAMPLED not in drafting.kinds[0](2):
        return False
    if drafting.shape is None:
        return case.rounds is None and case.max_tokens > 3
    return case.rounds is None or case.pair not in ("witness", "holes")


def penalised(row: Row, history: Sequence[int]) -> Row:
    """Half the weight for every time that a token was said: a law that is wrong if its history is."""
    scaled = np.array([x / 2 ** list(history).count(token) for token, x in enumerate(row)], dtype=object)
    return scaled / total(scaled)


def checked(rule: Rule) -> Rule:
    """The rule, its verdicts held to what `Verdict` promises."""
    return partial(_checked, rule)


def _checked(rule: Rule, draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
    verdict = rule(draft, rows, chance)
    require_path(draft.parents, verdict.path)
    below = children(draft.parents, verdict.path[-1] if verdict.path else ROOT)
    last = "replacement" if below else "bonus" if verdict.path else "target"
    if verdict.last != last or verdict.rounding:
        raise ValueError(f"verdict: last is {verdict.last!r}, rounding {verdict.rounding}; they must be {last!r} and 0")
    if verdict.tokens[:-1] != tuple(draft.tokens[node] for node in verdict.path):
        raise ValueError(f"verdict: tokens {verdict.tokens} do not follow the path {verdict.path}")
    for test in verdict.tests:
        x, q = draft.tokens[test.node], draft.law(test.node)
        if (test.p, test.q) != (rows[draft.parents[test.node] + 1][x], 1 if q is None else q[x]):
            raise ValueError(f"verdict: {test} does not give the p and q of its token")
    accepted = {test.node for test in verdict.tests if test.accepted}
    if not set(verdict.path[-1:]) <= accepted <= set(verdict.path):
        raise ValueError(f"verdict: nodes {accepted} tested as accepted, the path is {verdict.path}")
    return verdict


def specimen(case: Case) -> Draft:
    """One draft of the case."""
    pair = PAIRS[case.pair]
    drafter = DRAFTINGS[case.drafting].make(pair)
    session = drafter.open(Context(identity_law, pair.vocab_size, 8, pair.target().open(8)))
    drafter.commit([session], [(0,)])
    [draft] = drafter.propose([session], [Plan(case.controller.depth)], [EnumeratedChance([])])
    return draft


def refuses(rule: Rule, draft: Draft) -> bool:
    """Whether the rule itself refuses the draft, whatever its laws are."""
    row = fractions_row(*[1] * (max(draft.tokens, default=0) + 1))
    try:
        rule(draft, [row] * (len(draft) + 1), EnumeratedChance([]))
    except ValueError as error:
        return str(error).startswith("draft: ")
    return False


def deviation_of(case: LoopCase) -> Fraction:
    """How far the emitted law is from the target's."""
    return deviation(emitted_law(case), target_law(case))
