"""The theory against the proof: every closed form equals what enumeration finds, every bound what brute force finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import chain, combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.audit import toys
from draftproof.audit.exact import fractions_row, paths
from draftproof.base import Context, Row, token_key
from draftproof.chance import PhiloxChance
from draftproof.plan import Plan
from draftproof.rules import RULES
from draftproof.theory import (
    acceptance_report,
    best_depth,
    best_tree,
    chosen_acceptance,
    coupled_match,
    distinct_acceptance,
    distinct_bound,
    expected_tokens,
    greedy_acceptance,
    independent_acceptance,
    independent_bound,
    single_draft_bound,
    speed_up,
    survival,
)
from draftproof.transport import distinct_estimate

pytestmark = pytest.mark.usefixtures("unchecked")


@st.composite
def pairs(draw, least: int = 1) -> tuple[Row, Row]:
    """Two exact laws over one vocabulary, with zeros and ties."""
    size = draw(st.integers(least, 5))
    weights = st.lists(st.integers(0, 4), min_size=size, max_size=size).filter(any)
    return fractions_row(*draw(weights)), fractions_row(*draw(weights))


def accepted(rule: str, p: Row, q: Row, k: int, siblings: toys.Siblings) -> Fraction:
    """The exact probability that the rule accepts one of k drafts of one position."""
    rows = [p] * (k + 1)

    def run(chance) -> int:
        drafter = toys.grower(lambda history: q, lambda root: (-1,) * k, [siblings])
        session = drafter.open(Context(lambda row, history: row, len(p), 2))
        [draft] = drafter.propose([session], [Plan(1)], [chance])
        return RULES[rule](draft, rows, chance).accepted

    return sum((weight * hits for weight, hits in paths(run)), Fraction(0))


SCHEMES: dict[str, tuple[Callable, str, toys.Siblings]] = {
    "independent": (independent_acceptance, "recursive", toys.independent),
    "distinct": (distinct_acceptance, "recursive", toys.distinct),
    "chosen": (chosen_acceptance, "recursive", toys.chosen),
    "greedy": (greedy_acceptance, "greedy_multi", toys.greedy),
    "independent, traversal": (independent_acceptance, "traversal", toys.independent),
    "distinct, traversal": (distinct_acceptance, "traversal", toys.distinct),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@given(pair=pairs(), k=st.integers(1, 3))
def test_a_closed_form_is_what_the_rule_accepts(scheme: str, pair: tuple[Row, Row], k: int):
    closed_form, rule, siblings = SCHEMES[scheme]
    p, q = pair
    assert closed_form(p, q, k) == accepted(rule, p, q, k, siblings)


@given(pairs())
def test_token_verification_reaches_the_single_draft_bound(pair: tuple[Row, Row]):
    p, q = pair
    assert single_draft_bound(p, q) == accepted("token", p, q, 1, toys.independent)
    assert independent_bound(p, q, 1) == distinct_bound(p, q, 1) == single_draft_bound(p, q)


# -- bounds


def subsets(size: int):
    return chain.from_iterable(combinations(range(size), n) for n in range(size + 1))


def all_distinct_within(q: Row, ids: Sequence[int], k: int) -> Fraction:
    """Probability that k draws without replacement all fall into `ids`, sequence by sequence."""
    k = min(k, int((q > 0).sum()))
    out = Fraction(0)
    for order in permutations([i for i in ids if q[i] > 0], k):
        left, weight = Fraction(1), Fraction(1)
        for i in order:
            weight *= q[i] / left
            left -= q[i]
        out += weight
    return out


@given(pairs(), st.integers(1, 3))
def test_the_bound_of_independent_drafts_is_the_least_over_all_subsets(pair: tuple[Row, Row], k: int):
    p, q = pair
    slack = [sum(p[i] for i in ids) - sum(q[i] for i in ids) ** k for ids in subsets(len(p))]
    assert independent_bound(p, q, k) == 1 + min(slack)


@given(pairs(), st.integers(1, 4))
def test_the_bound_of_distinct_drafts_is_the_least_over_all_subsets(pair: tuple[Row, Row], k: int):
    p, q = pair
    slack = [sum(p[i] for i in ids) - all_distinct_within(q, ids, k) for ids in subsets(len(p))]
    found = distinct_bound(p, q, k)
    if min(k, int((q > 0).sum())) <= 2:
        assert found == 1 + min(slack)
    else:
        assert float(found) == pytest.approx(float(1 + min(slack)), abs=1e-10)


@given(pairs(), st.integers(1, 3))
def test_no_rule_beats_its_bound_and_more_drafts_never_hurt(pair: tuple[Row, Row], k: int):
    p, q = pair
    tiny = 1e-9 if k > 2 else 0  # the quadrature's
    assert independent_acceptance(p, q, k) <= independent_bound(p, q, k)
    assert distinct_acceptance(p, q, k) <= distinct_bound(p, q, k) + tiny
    for scheme in (independent_acceptance, independent_bound, distinct_acceptance):
        assert scheme(p, q, k) <= scheme(p, q, k + 1)


@pytest.mark.parametrize("k", [2, 3])
def test_the_estimate_of_distinct_drafts_is_an_upper_bound_and_close(k: int):
    """20 pairs of laws, 200 estimates each; one is a share of 256 draws, with a standard deviation of at most .5/√256.
    Five of those of the mean."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        logits = rng.standard_normal(40) * rng.choice([1.0, 3.0])
        p, q = (np.exp(each) / np.exp(each).sum() for each in (logits, logits + rng.standard_normal(40)))
        off = np.mean([distinct_estimate(p, q, k, rng) for _ in range(200)]) - distinct_bound(p, q, k)
        assert -5 * 0.5 / np.sqrt(256 * 200) < off < 0.03


def test_the_estimate_is_right_where_it_is_easy():
    rng, q = np.random.default_rng(3), np.array([0.4, 0.3, 0.2, 0.1])
    assert distinct_estimate(q, q, 3, rng) == pytest.approx(1)
    assert distinct_estimate(np.array([0.0, 0.0, 0.0, 1.0]), q, 4, rng) == 1, "all are drafted"
    assert distinct_estimate(np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.5, 0.5]), 3, rng) == 0


@pytest.mark.filterwarnings("error")
def test_the_estimate_survives_a_sharp_law():
    """Beside a token of nearly all mass the second draft is one of three alike."""
    p, q = np.array([0.0, 0.5, 0.5, 0.0]), np.array([1.0, 1e-18, 1e-18, 1e-18])
    found = np.mean([distinct_estimate(p, q, 2, np.random.default_rng(seed)) for seed in range(200)])
    assert found == pytest.approx(2 / 3, abs=5 * 0.5 / np.sqrt(256 * 200))


SHARP = {
    "a tail of 1e-6": [1 - 3e-6, 1e-6, 1e-6, 1e-6],
    "1e-18 beside .9 and .1": [0.9, 0.1, 1e-18],
    "one token and dust": [1.0, 1e-17, 1e-17, 1e-17],
    "a softmax with a gap of 40": np.exp([0.0, -40, -41, -42, -43, -60]),
    "two scales": [0.9918938104232259, 5.03e-20, 0.008106189576774114],
    "all but one are dust": [1e-30, 1e-20, 1.0],
    "dust and nothing": [0.0, 1e-18, 1e-20, 1.0],
    "denormal": [0.5, 0.5 - 1e-9, 1e-9, 1e-310],
}


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("name", SHARP)
@pytest.mark.filterwarnings("error")
def test_bounds_and_acceptances_survive_sharp_laws(name: str, k: int):
    """Against the same in exact fractions: the third draft may come after a million million lifetimes of the first."""
    q = np.array(SHARP[name]) / np.sum(SHARP[name])
    p = np.array([(i + 1.0) for i in range(len(q))])
    p /= p.sum()
    exact_p, exact_q = fractions_row(*map(Fraction, p)), fractions_row(*map(Fraction, q))
    slack = [sum(exact_p[list(ids)], Fraction(0)) - all_distinct_within(exact_q, ids, k) for ids in subsets(len(q))]
    assert distinct_bound(p, q, k) == pytest.approx(float(1 + min(slack)), abs=1e-10)
    assert distinct_acceptance(p, q, k) == pytest.approx(float(distinct_acceptance(exact_p, exact_q, k)), abs=1e-10)
    assert independent_bound(p, q, k) == pytest.approx(float(independent_bound(exact_p, exact_q, k)), abs=1e-10)
    assert coupled_match(p, q) == pytest.approx(float(coupled_match(exact_p, exact_q)), abs=1e-10)


# -- the coupling


@given(pairs())
def test_coupled_match_is_its_formula_term_by_term(pair: tuple[Row, Row]):
    p, q = pair
    terms = []
    for i in range(len(p)):
        if p[i] * q[i] > 0:
            terms.append(1 / sum(max(p[j] / p[i], q[j] / q[i]) for j in range(len(p))))
    overlap = single_draft_bound(p, q)
    assert coupled_match(p, q) == sum(terms)
    assert overlap / (2 - overlap) <= coupled_match(p, q) <= overlap  # TV = 1 − overlap


def test_coupled_match_is_what_production_noise_gives():
    """20,000 seeds; a bound that a binomial leaves with probability 2·exp(−2·n·ε²) = 1e-9 (Hoeffding)."""
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.ones(8)), rng.dirichlet(np.ones(8))
    n = 20_000
    hits = sum(
        chance.pick(p, token_key(0)) == chance.pick(q, token_key(0))
        for chance in (PhiloxChance(seed) for seed in range(n))
    )
    assert abs(hits / n - coupled_match(p, q)) < np.sqrt(np.log(2e9) / (2 * n))


# -- lengths


@given(st.fractions(0, 1, max_denominator=20).filter(lambda a: a < 1), st.integers(0, 6))
def test_expected_tokens_of_equal_acceptances_is_the_geometric_sum(alpha: Fraction, k: int):
    assert expected_tokens([alpha] * k) == (1 - alpha ** (k + 1)) / (1 - alpha)
    assert survival([alpha] * k) == [alpha**i for i in range(1, k + 1)]


def test_a_stronger_draft_is_not_always_faster():
    weak = speed_up([0.6] * 4, 0.02, lambda rows: 1.0)
    strong = speed_up([0.8] * 4, 0.4, lambda rows: 1.0)
    assert strong < 1.3 < weak
    assert best_depth([0.8] * 4, 1.0, lambda rows: 1.0)[0] == 0, "a draft as slow as the target is no use at all"


def test_best_depth_looks_beyond_a_step_in_the_cost():
    """Rows cost nothing up to 4 and from 5 to 12, with a step between: depth 4 is worse than 3, 11 better than both."""
    cost = lambda rows: 1.0 if rows <= 4 else 1.4  # noqa: E731
    depth, gain = best_depth([0.95] * 11, 0.01, cost)
    assert depth == 11
    assert speed_up([0.95] * 4, 0.01, cost) < speed_up([0.95] * 3, 0.01, cost) < gain


def shapes(nodes: int) -> list[tuple[int, ...]]:
    """All parent arrays of that many nodes in which parents precede children."""
    out: list[tuple[int, ...]] = [()]
    for node in range(nodes):
        out = [(*parents, parent) for parents in out for parent in range(-1, node)]
    return out


def yields(parents: Sequence[int], acceptances: Sequence[Fraction]) -> Fraction:
    seen: dict[int, int] = {}
    reach: list[Fraction] = []
    for parent in parents:
        slot = seen.get(parent, 0)
        seen[parent] = slot + 1
        reach.append(
            (Fraction(1) if parent < 0 else reach[parent]) * (acceptances[slot] if slot < len(acceptances) else 0)
        )
    return 1 + sum(reach, Fraction(0))


@given(st.lists(st.fractions(0, 1, max_denominator=10), min_size=1, max_size=3), st.integers(0, 5))
def test_best_tree_is_the_best_of_all_trees(acceptances: list[Fraction], nodes: int):
    if sum(acceptances) > 1:
        acceptances = [a / sum(acceptances) for a in acceptances]
    tree = best_tree(acceptances, nodes)
    assert tree.tokens == max(yields(parents, acceptances) for parents in shapes(nodes))
    assert yields(tree.parents, acceptances) == tree.tokens
    assert len(tree.parents) <= nodes


# -- the report


def test_the_report_agrees_with_its_parts_and_checks_what_it_is_given():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    report = acceptance_report(p.tolist(), q, 2)
    schemes = chosen_acceptance, independent_acceptance, distinct_acceptance, greedy_acceptance
    several = [each(p, q, 2) for each in (*schemes, independent_bound, distinct_bound)]
    parts = single_draft_bound(p, q), coupled_match(p, q), *several
    assert tuple(report) == pytest.approx(parts)
    for wrong, match in (
        (([0.5, 0.2], q), "p: not a law; .* add up to 0.7"),
        ((p, [0.5, 0.5]), "q: shape"),
        ((p, q, 4), "k: 4 is not allowed"),
        (([[1.0]], q), "p: shape"),
        (([0.5, np.nan, 0.5], q), "p: not a law"),
    ):
        with pytest.raises(ValueError, match=match):
            acceptance_report(*wrong)


@pytest.mark.parametrize("scheme", [independent_acceptance, distinct_acceptance, greedy_acceptance, distinct_bound])
def test_wrong_input_is_named(scheme: Callable):
    for k in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=f"k: {k} is not allowed"):
            scheme([0.5, 0.5], [0.5, 0.5], k)
    with pytest.raises(ValueError, match=r"p, q: shapes \(2,\) and \(1,\)"):
        scheme([0.5, 0.5], [1.0], 1)


def test_wrong_acceptances_are_named():
    with pytest.raises(ValueError, match=r"acceptances: 1.2 at 0 is not allowed"):
        expected_tokens([1.2])
    with pytest.raises(ValueError, match=r"acceptances: nan at 1 is not allowed"):
        best_tree([0.5, float("nan")], 3)
    with pytest.raises(ValueError, match=r"nodes: 1.5 is not allowed"):
        best_tree([0.5], 1.5)
    with pytest.raises(ValueError, match=r"draft_cost: -1 is not allowed"):
        speed_up([0.5], -1, lambda rows: 1.0)


def test_the_report_runs_on_a_real_vocabulary():
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.full(50_000, 0.02)), rng.dirichlet(np.full(50_000, 0.02))
    two = acceptance_report(p, q, 2)
    assert two.distinct is not None
    assert two.token <= two.independent <= two.independent_bound <= 1


def test_what_would_take_too_long_is_none():
    p = np.full(2000, 1 / 2000)
    q = p.copy()
    q[:2] += [1e-4, -1e-4]
    assert acceptance_report(p, q, 5).distinct is None
    assert acceptance_report(p, q, 2000).distinct_bound is None
