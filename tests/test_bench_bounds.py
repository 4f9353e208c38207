"""The bound of a level against the best coupling there is, and against what each rule accepts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product
from math import prod
from typing import Any

import numpy as np
import pytest
from folders import make_folder
from hypothesis import given
from hypothesis import strategies as st

from draftproof.audit.exact import fractions_row, paths
from draftproof.audit.toys import Pair, exact_table, up_to
from draftproof.base import ROOT, Context, Draft, Kind, Row, Verdict
from draftproof.bench.bounds import Levels, most_accepted, observed
from draftproof.bench.record import Depth
from draftproof.drafters import ModelDrafter
from draftproof.drafters.combined import merged
from draftproof.laws import total, without
from draftproof.llm import LLM
from draftproof.models.table import TableTarget
from draftproof.plan import Plan
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams
from draftproof.trees import path_to

pytestmark = pytest.mark.usefixtures("unchecked")

Drawn = list[tuple[Fraction, list[int], list[Row]]]
"""Every outcome of some draws: its probability, the tokens, and the law of each."""


def best_coupling(p: Row, sets: Sequence[tuple[Fraction, set[int]]]) -> Fraction:
    """The most often that a token from p can be in a random set: the maximal flow from the sets to the tokens."""
    sink = len(sets) + len(p) + 1
    room: dict[tuple[int, int], Fraction] = {}
    for i, (weight, tokens) in enumerate(sets, 1):
        room[0, i] = weight
        room |= {(i, len(sets) + 1 + x): Fraction(1) for x in tokens}
    room |= {(len(sets) + 1 + x, sink): p[x] for x in range(len(p))}
    flow = Fraction(0)
    while True:
        above, waiting = {0: 0}, deque([0])
        while waiting and sink not in above:
            node = waiting.popleft()
            for (a, b), left in room.items():
                if a == node and left > 0 and b not in above:
                    above[b] = a
                    waiting.append(b)
        if sink not in above:
            return flow
        edges, node = [], sink
        while node:
            edges.append((above[node], node))
            node = above[node]
        step = min(room[edge] for edge in edges)
        for a, b in edges:
            room[a, b] -= step
            room[b, a] = room.get((b, a), Fraction(0)) + step
        flow += step


def independent(q: Row, k: int) -> Drawn:
    return [
        (prod((q[x] for x in xs), start=Fraction(1)), list(xs), [q] * k)
        for xs in product(range(len(q)), repeat=k)
        if all(q[x] > 0 for x in xs)
    ]


def distinct(q: Row, k: int) -> Drawn:
    out: Drawn = []
    for xs in permutations([x for x in range(len(q)) if q[x] > 0], min(k, int((q > 0).sum()))):
        law, weight, laws = q, Fraction(1), []
        for x in xs:
            weight *= law[x]
            laws.append(law)
            rest = without(law, x)
            law = rest / total(rest) if total(rest) > 0 else rest
        out.append((weight, list(xs), laws))
    return out


def siblings(tokens: Sequence[int], kind: Kind, laws: Sequence[Row] = (), origin: str = "model") -> Draft:
    """One level of nodes; laws that are the same are held once."""
    n, rows = len(tokens), list({id(law): law for law in laws}.values())
    row_of = tuple([id(row) for row in rows].index(id(law)) for law in laws) or (-1,) * n
    return Draft(1, tuple(tokens), (ROOT,) * n, (kind,) * n, (origin,) * n, tuple(rows), row_of)


def bound_on(draft: Draft, p: Row) -> Any:
    return most_accepted(draft, range(len(draft)), p, np.random.default_rng(0))


@st.composite
def cases(draw, count: int = 2) -> tuple[list[Row], list[int]]:
    """Exact laws over one vocabulary, with zeros and ties, and some tokens of it."""
    size = draw(st.integers(3, 4))
    weights = st.lists(st.integers(0, 4), min_size=size, max_size=size).filter(any)
    laws = [fractions_row(*draw(weights)) for _ in range(count)]
    return laws, draw(st.lists(st.integers(0, size - 1), unique=True, max_size=2))


@pytest.mark.parametrize(("way", "k"), [(independent, 1), (independent, 2), (independent, 3), (distinct, 2)])
@given(case=cases())
def test_the_bound_is_what_the_best_coupling_accepts(way, k: int, case: tuple[list[Row], list[int]]):
    """Of tokens that were chosen and draws of one drafter."""
    (p, q), chosen = case
    drawn = way(q, k)
    best = best_coupling(p, [(weight, {*chosen, *tokens}) for weight, tokens, _ in drawn])
    for _, tokens, laws in drawn:
        assert bound_on(merged(siblings(chosen, Kind.CHOSEN), siblings(tokens, Kind.SAMPLED, laws)), p) == best


@given(case=cases())
def test_of_chosen_tokens_it_is_their_mass_each_counted_once(case: tuple[list[Row], list[int]]):
    (p, _), chosen = case
    assert bound_on(siblings([*chosen, *chosen], Kind.CHOSEN), p) == sum(p[x] for x in chosen)


def coupled_level(chosen: Sequence[int], tokens: Sequence[int], q: Row) -> Draft:
    """As `CombinedDrafter` merges them: what both have is there once."""
    return merged(siblings(chosen, Kind.CHOSEN), siblings(tokens, Kind.COUPLED, [q] * len(tokens)))


@given(case=cases(), k=st.integers(1, 2))
def test_coupled_siblings_are_distinct_draws_although_they_share_a_row(case: tuple[list[Row], list[int]], k: int):
    (p, q), _ = case
    drawn = distinct(q, k)
    best = best_coupling(p, [(weight, set(tokens)) for weight, tokens, _ in drawn])
    assert all(bound_on(coupled_level([], tokens, q), p) == best for _, tokens, _ in drawn)


@given(case=cases(), k=st.integers(1, 3))
def test_a_coupled_draw_that_is_merged_into_a_chosen_token_is_accounted_for(case: tuple[list[Row], list[int]], k: int):
    """In expectation: for one draw exactly, for several at least."""
    (p, q), chosen = case
    if not chosen:
        return
    drawn = distinct(q, k)
    best = best_coupling(p, [(weight, {*chosen, *tokens}) for weight, tokens, _ in drawn])
    found = sum(weight * bound_on(coupled_level(chosen, tokens, q), p) for weight, tokens, _ in drawn)
    assert found == best if k == 1 else found >= best


@given(case=cases(3))
def test_of_draws_of_two_drafters_it_is_an_upper_bound(case: tuple[list[Row], list[int]]):
    (p, first, second), chosen = case
    both = list(product(independent(first, 1), distinct(second, 2)))
    best = best_coupling(p, [(a * b, {*chosen, *xs, *ys}) for (a, xs, _), (b, ys, _) in both])
    for (_, xs, law), (_, ys, laws) in both:
        draft = merged(siblings(xs, Kind.SAMPLED, law, "one"), siblings(ys, Kind.SAMPLED, laws, "two"))
        assert bound_on(merged(siblings(chosen, Kind.CHOSEN), draft), p) >= best


def test_tokens_that_fill_up_a_greedy_level_were_chosen():
    p, q = np.array([0.0, 1.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0, 0.0])
    assert bound_on(coupled_level([], [0, 2], q), p) == 0
    assert bound_on(coupled_level([], [0, 1], q), p) == 1
    assert bound_on(coupled_level([3], [0, 1], q), p) == 1


def test_of_what_is_not_known_all_might_be_accepted():
    p, q = fractions_row(1, 1, 2), fractions_row(2, 1, 1)
    lawless = replace(siblings([1], Kind.SAMPLED, [q]), kind=(Kind.COUPLED,), rows=(), row_of=(-1,))
    assert bound_on(lawless, p) == 1
    two = siblings([0, 1], Kind.COUPLED, [q, q])
    assert bound_on(replace(two, origin=("one", "two")), p) >= 1


def test_a_draft_row_may_be_shorter_than_the_targets():
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.75])
    assert bound_on(siblings([1], Kind.SAMPLED, [q]), p) == 0.5


def test_three_distinct_draws_are_estimated_closely():
    p, q = np.array([0.5, 0.2, 0.15, 0.1, 0.05]), np.array([0.1, 0.1, 0.1, 0.3, 0.4])
    exact = [(float(w), set(xs)) for w, xs, _ in distinct(fractions_row(*map(Fraction, q.tolist())), 3)]
    best = best_coupling(fractions_row(*map(Fraction, p.tolist())), [(Fraction(w), xs) for w, xs in exact])
    rng = np.random.default_rng(0)
    draft = coupled_level([], [0, 1, 2], q)
    found = np.mean([most_accepted(draft, range(3), p, rng) for _ in range(400)])
    # an answer's standard deviation is at most .5/√256; five of those of the mean
    assert -5 * 0.5 / np.sqrt(256 * 400) < found - float(best) < 0.02


# -- rules


def round_of(rule: str, pair: Pair, plan: Plan, chance) -> Levels:
    """One round of a model drafter: what its watch counts."""
    kind = Kind.COUPLED if rule == "coupled" else Kind.SAMPLED
    drafter = ModelDrafter(TableTarget(pair.q, pair.vocab_size), kind)
    guide = drafter.open(Context(lambda row, history: row, pair.vocab_size, 8))
    drafter.commit([guide], [[0]])
    [draft] = drafter.propose([guide], [plan], [chance])
    texts = [[0, *(draft.tokens[node] for node in path_to(draft.parents, i))] for i in range(-1, len(draft))]
    rows = [pair.p(text) for text in texts]
    levels = Levels()
    levels.watch(draft, rows, RULES[rule](draft, rows, chance))
    return levels


def expected(rule: str, pair: Pair, plan: Plan) -> list[tuple[Fraction, Fraction]]:
    """Of each level: how often its nodes are accepted, and the bound on it. Exact."""
    accepted, bound = [Fraction(0)] * plan.depth, [Fraction(0)] * plan.depth
    for weight, levels in paths(lambda chance: round_of(rule, pair, plan, chance)):
        for i in range(len(levels.reached)):
            accepted[i] += weight * levels.accepted[i]
            bound[i] += weight * levels.bound[i]
    return list(zip(accepted, bound, strict=True))


def pair_of(salt: int) -> Pair:
    return Pair(exact_table(3, f"p {salt}", up_to(9)), exact_table(3, f"q {salt}", up_to(9)), 3)


SALTS = range(6)
CHAIN, TREE = Plan(2), Plan(2, (2, 1))


@pytest.mark.parametrize("salt", SALTS)
def test_token_verification_reaches_the_bound_at_every_level(salt: int):
    assert all(accepted == bound > 0 for accepted, bound in expected("token", pair_of(salt), CHAIN))


@pytest.mark.parametrize(("rule", "plan"), [("recursive", TREE), ("coupled", CHAIN), ("coupled", TREE)])
def test_rules_that_decide_level_by_level_stay_within_the_bound(rule: str, plan: Plan):
    found = [each for salt in SALTS for each in expected(rule, pair_of(salt), plan)]
    assert all(0 < accepted <= bound for accepted, bound in found)
    assert any(accepted < bound for accepted, bound in found)


@pytest.mark.parametrize(("rule", "plan"), [("block", CHAIN), ("traversal", CHAIN), ("traversal", TREE)])
def test_rules_that_judge_jointly_stay_within_the_bound_at_level_one_alone(rule: str, plan: Plan):
    first, second = zip(*(expected(rule, pair_of(salt), plan) for salt in SALTS), strict=True)
    assert all(accepted <= bound for accepted, bound in first)
    assert any(accepted > bound for accepted, bound in second)


# -- the watch


def test_levels_are_counted_along_the_path():
    half = np.array([0.5, 0.5, 0.0])
    draft = Draft(1, (0, 1, 1), (-1, 0, 1), (Kind.CHOSEN,) * 3, ("",) * 3, (), (-1,) * 3)
    levels = Levels()
    levels.watch(draft, [half] * 4, Verdict((0, 1), (0, 1, 2), "replacement"))
    levels.watch(draft, [half] * 4, Verdict((), (1,), "replacement"))
    levels.watch(Draft(1), [half], Verdict((), (1,), "target"))
    assert levels.depths() == (Depth(2, 1, 1.0), Depth(1, 1, 0.5), Depth(1, 0, 0.5))


def test_a_row_that_no_rule_could_see_is_not_asked_for():
    """Where a verdict has no last token the row after its path could not be made."""
    draft = Draft.chain(1, [0, 1])
    levels = Levels()
    levels.watch(draft, [np.array([0.5, 0.5])], Verdict((0,), (0,), None))
    assert levels.depths() == (Depth(1, 1, 0.5),)


# -- a model


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[str, str]:
    path = tmp_path_factory.mktemp("bounds")
    return str(make_folder(path / "target")), str(make_folder(path / "draft", seed=1))


PROMPTS = [[65, 66, 67], [70, 71]]


def asked(temperature: float) -> list[SamplingParams]:
    return [SamplingParams(temperature=temperature, seed=i, max_tokens=40, ignore_eos=True) for i in range(2)]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_drafts_for_itself_reaches_a_bound_of_one(folders, temperature: float):
    own = {"model": folders[0], "num_speculative_tokens": 3}
    depths = observed(LLM(folders[0], speculative_config=own, exact="law"), PROMPTS, asked(temperature))
    assert len(depths) == 3
    for depth in depths:
        assert depth.accepted == depth.reached > 0
        assert depth.bound == pytest.approx(depth.reached, rel=0.02)  # drafter and target may round otherwise


@pytest.mark.usefixtures("one_thread")
def test_a_controller_by_costs_is_held_to_a_fixed_depth(folders, tmp_path):
    llm = LLM(folders[0], speculative_config={"model": folders[1]}, exact="law", cache_dir=tmp_path)
    assert llm.speculation.control == "cost"
    depths = observed(llm, PROMPTS, asked(1.0))
    assert llm.speculation.control == "cost"
    rounds = 80 - sum(depth.accepted for depth in depths)
    assert depths[0].reached >= rounds - 2, "every round drafts but each answer's last, although it does not pay"


@pytest.mark.usefixtures("one_thread")
def test_an_interrupt_passes_and_leaves_the_model_free(folders, monkeypatch):
    llm = LLM(folders[0], speculative_config={"method": "ngram"}, exact="law")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Levels, "watch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        observed(llm, PROMPTS, asked(1.0))
    monkeypatch.undo()
    assert observed(llm, PROMPTS, asked(0.0))[0].reached > 0
