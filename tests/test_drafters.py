"""Drafters: what they propose, and that their state follows what was committed and never what they proposed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.base import Chance, Context, Draft, Drafter, Key, Kind, Purpose, token_key
from draftproof.chance import PhiloxChance
from draftproof.control import Fixed
from draftproof.drafters import CombinedDrafter, ModelDrafter, NGramDrafter, NoDrafter, SuffixDrafter
from draftproof.kernels.lazy import KernelChance, raw_law_of
from draftproof.models.table import TableTarget, hashed_logits
from draftproof.plan import Plan
from draftproof.sampling import SamplingParams, law_of
from tests.toys import decoded

V = 16
LAW = law_of(SamplingParams())
TABLE = hashed_logits(V, order=1 << 30)  # every earlier token matters, so a wrong cache shows
TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=20)


def context(capacity: int = 100) -> Context:
    return Context(LAW, V, capacity)


def opened(drafter: Drafter, *commits: Sequence[int]):
    session = drafter.open(context())
    for tokens in commits:
        drafter.commit([session], [tokens])
    return session


def proposed(drafter: Drafter, session, depth: int, chance: Chance | None = None) -> Draft:
    [draft] = drafter.propose([session], [Plan(depth)], [chance or PhiloxChance(0)])
    return draft


def same(a: Draft, b: Draft) -> bool:
    rows = len(a.rows) == len(b.rows) and all(map(np.array_equal, a.rows, b.rows))
    return rows and (a.root, a.tokens, a.parents, a.kind, a.row_of) == (b.root, b.tokens, b.parents, b.kind, b.row_of)


DRAFTERS = {
    "none": NoDrafter,
    "ngram": lambda: NGramDrafter(3, 1),
    "sampled": lambda: ModelDrafter(TableTarget(TABLE, V), Kind.SAMPLED),
    "coupled": lambda: ModelDrafter(TableTarget(TABLE, V), Kind.COUPLED),
}


# -- all of them


@pytest.mark.parametrize("name", DRAFTERS)
@given(text=TEXT, depth=st.integers(0, 5), cuts=st.lists(st.integers(0, 20), max_size=6), tried=st.integers(0, 5))
def test_state_is_a_replay_of_what_was_committed(name: str, text: list[int], depth: int, cuts: list[int], tried: int):
    """Committed at once, or in pieces with drafts of any depth in between: the next draft is the same."""
    drafter = DRAFTERS[name]()
    known = proposed(drafter, opened(drafter, text), depth)
    session = drafter.open(context())
    edges = sorted({min(cut, len(text)) for cut in cuts if cut > 0} | {0, len(text)})
    for begin, end in pairwise(edges):
        drafter.commit([session], [text[begin:end]])
        proposed(drafter, session, tried, PhiloxChance(end))
    assert same(proposed(drafter, session, depth), known)
    assert same(proposed(drafter, session, depth), known), "asking again changes nothing"


@pytest.mark.parametrize("name", DRAFTERS)
@given(text=TEXT, depth=st.integers(-1, 6))
def test_never_more_than_planned_and_always_rooted_in_the_text(name: str, text: list[int], depth: int):
    drafter = DRAFTERS[name]()
    draft = proposed(drafter, opened(drafter, text), depth)
    assert len(draft) <= max(depth, 0)
    assert draft.root == len(text)
    assert len(set(draft.origin)) <= 1


@pytest.mark.parametrize("name", DRAFTERS)
def test_sessions_do_not_see_each_other(name: str):
    drafter = DRAFTERS[name]()
    texts = [[0, 1, 0, 1], [2, 2], [1, 0, 1]]
    sessions = [opened(drafter, text) for text in texts]
    plans, chances = [Plan(3), Plan(1), Plan(2)], [PhiloxChance(seed) for seed in range(3)]
    together = drafter.propose(sessions, plans, chances)
    for text, plan, chance, draft in zip(texts, plans, chances, together, strict=True):
        assert same(proposed(drafter, opened(drafter, text), plan.depth, chance), draft)


# -- models


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("chance_of", [PhiloxChance, KernelChance])
def test_coupled_tokens_come_true_as_often_as_they_are_said_to(temperature: float, chance_of):
    """A draft whose logits are the target's with errors of Gumbel's law: what is said of a token is its chance exactly,
    but for the tokens that were not looked at. By rank and class of what was said. 3000 rounds: .05 and three standard
    errors, of fewer than 60 classes."""
    rng, size, hits = np.random.default_rng(1), 40, {}
    params = SamplingParams(temperature=temperature)
    law = raw_law_of(params) if chance_of is KernelChance else law_of(params)
    for i, logits in enumerate((rng.gumbel(size=(3000, size)) * 2).astype(np.float32)):
        target = law((logits + rng.gumbel(size=size)).astype(np.float32), [])
        drafter = ModelDrafter(TableTarget(lambda history, at=logits: at, size), Kind.COUPLED)
        session = drafter.open(Context(law, size, 100, temperature=temperature))
        drafter.commit([session], [[0]])
        chance = chance_of(i)
        [made] = drafter.propose([session], [Plan(1, (3,))], [chance])
        [choice] = chance.pick(target, token_key(1))
        for rank, (token, said) in enumerate(zip(made.tokens, made.confidence, strict=True)):
            hits.setdefault((rank, min(int(5 * said), 4)), []).append((said, token == choice))
    assert len(hits) >= 8
    for some in hits.values():
        said, came = np.mean(some, 0)
        assert abs(said - came) < 0.05 + 3 * (max(came, 0.1) * (1 - came) / len(some)) ** 0.5


def test_of_greedy_tokens_the_plain_probability_is_said():
    law = law_of(SamplingParams(temperature=0))
    drafter = ModelDrafter(TableTarget(lambda history: np.log([0.5, 0.3, 0.2]), 3), Kind.COUPLED)
    session = drafter.open(Context(law, 3, 100))
    drafter.commit([session], [[0]])
    [made] = drafter.propose([session], [Plan(1, (3,))], [PhiloxChance(0)])
    assert made.tokens == (0, 1, 2)
    assert made.confidence == pytest.approx((0.5, 0.3, 0.2))


# -- n-gram


@pytest.mark.parametrize(
    ("text", "depth", "draft"),
    [
        ([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 2, (9, 2)),  # 1 2 3 beats the later 2 3
        ([3, 7, 5, 3, 8, 5, 3], 1, (8,)),  # 5 3 happened once, then 8
        ([3, 7, 3, 8, 3], 1, (8,)),  # among equals the most recent
        ([1, 2, 3, 1, 2], 6, (3, 1, 2, 3, 1, 2)),  # past the end of the text it copies its own copy
        ([4, 4], 5, (4, 4, 4, 4, 4)),
        ([1, 2, 3], 3, ()),  # nothing happened twice
        ([7], 3, ()),
        ([1, 1, 1], 0, ()),
    ],
)
def test_ngram_copies_what_followed_the_longest_and_latest_match(text: list[int], depth: int, draft: tuple[int, ...]):
    drafter = NGramDrafter(4, 1)
    made = proposed(drafter, opened(drafter, text), depth)
    assert made.tokens == draft
    assert set(made.kind) <= {Kind.CHOSEN}


def test_ngram_sizes_bound_the_match():
    text = [1, 2, 3, 9, 2, 3, 8, 1, 2, 3]
    assert proposed(NGramDrafter(2, 1), opened(NGramDrafter(2, 1), text), 1).tokens == (8,)
    assert proposed(NGramDrafter(4, 3), opened(NGramDrafter(4, 3), [1, 2, 9, 1, 2]), 1).tokens == ()
    for longest, shortest in ((2, 3), (2, 0)):
        with pytest.raises(ValueError, match="prompt_lookup_min"):
            NGramDrafter(longest, shortest)


@given(TEXT, st.integers(1, 4))
def test_ngram_equals_a_search_of_the_whole_text(text: list[int], depth: int):
    start = None
    for size in (3, 2, 1):
        found = [at + size for at in range(len(text) - size) if text[at : at + size] == text[len(text) - size :]]
        if found and start is None:
            start = max(found)
    copy = list(text)
    for i in range(depth if start is not None else 0):
        copy.append(copy[start + i])
    drafter = NGramDrafter(3, 1)
    assert proposed(drafter, opened(drafter, text), depth).tokens == tuple(copy[len(text) :])


# -- a model


class Spy:
    """Passes every pick on, and keeps what was picked from."""

    def __init__(self) -> None:
        self.inner, self.picks = PhiloxChance(3), []

    def uniform(self, key: Key):
        return self.inner.uniform(key)

    def coin(self, prob, key: Key) -> bool:
        return self.inner.coin(prob, key)

    def pick(self, weights, key: Key, k: int = 1) -> tuple[int, ...]:
        token = self.inner.pick(weights, key, k)
        self.picks.append((weights, key, token[0]))
        return token


@pytest.mark.parametrize("kind", [Kind.SAMPLED, Kind.COUPLED])
def test_a_model_records_the_very_arrays_it_drew_from(kind: Kind):
    drafter, spy = ModelDrafter(TableTarget(TABLE, V), kind, "small"), Spy()
    draft = proposed(drafter, opened(drafter, [5, 6]), 3, spy)
    assert draft.tokens == tuple(token for _, _, token in spy.picks)
    assert all(draft.law(node) is drawn_from for node, (drawn_from, _, _) in enumerate(spy.picks))
    assert (draft.kind, draft.origin) == ((kind,) * 3, ("small",) * 3)
    keys = [token_key(2 + i) if kind is Kind.COUPLED else Key(2, i, Purpose.DRAFT, i) for i in range(3)]
    assert [key for _, key, _ in spy.picks] == keys
    for node in range(3):
        history = [5, 6, *draft.tokens[:node]]
        assert np.array_equal(draft.law(node), LAW(TABLE(history), history))


def test_a_model_drafter_is_never_told_to_choose():
    with pytest.raises(ValueError, match="kind"):
        ModelDrafter(TableTarget(TABLE, V), Kind.CHOSEN)


@pytest.mark.parametrize(
    "rounds",
    [
        [(3, 4), (3, 4)],  # all accepted, and a bonus
        [(3, 1), (3, 2), (3, 1)],  # rejected at once, after one
        [(3, 3), (0, 1), (0, 1), (2, 1)],  # rounds without drafting in between
        [(0, 1), (5, 6), (1, 2)],
    ],
    ids=["full", "partial", "zero depth", "mixed"],
)
def test_the_models_cache_follows_commits(rounds: list[tuple[int, int]]):
    """Each round drafts, then its first tokens and one of the target's own are committed."""
    model = TableTarget(TABLE, V)
    drafter = ModelDrafter(model, Kind.SAMPLED)
    text = [1, 2, 3]
    session = opened(drafter, text)
    for depth, kept in rounds:
        draft = proposed(drafter, session, depth)
        fresh = proposed(drafter, opened(drafter, text), depth)
        assert same(draft, fresh)
        new = [*draft.tokens[: kept - 1], 9]
        drafter.commit([session], [new])
        text += new
    assert len(text) == 3 + sum(kept for _, kept in rounds)


@pytest.mark.parametrize("prompt", [28, 30, 31, 32, 33, 34, 40, 62])
def test_a_model_does_not_draft_beyond_its_context(prompt: int):
    """32 tokens of context foretell the token after them, and none after that."""
    drafter = ModelDrafter(TableTarget(TABLE, V, max_context=32), Kind.SAMPLED)
    draft = proposed(drafter, opened(drafter, [i % V for i in range(prompt)]), 8)
    assert len(draft) == max(0, min(8, 33 - prompt))


@pytest.mark.parametrize("draft_size", [V - 4, V + 4])
def test_the_recorded_law_has_the_targets_vocabulary(draft_size: int):
    drafter = ModelDrafter(TableTarget(hashed_logits(draft_size), draft_size), Kind.SAMPLED)
    draft = proposed(drafter, opened(drafter, [1, 2]), 4)
    assert all(len(row) == V and row.sum() == pytest.approx(1) for row in draft.rows)
    assert max(draft.tokens) < min(V, draft_size)


def test_a_token_that_the_draft_model_does_not_know_stops_its_drafting():
    drafter = ModelDrafter(TableTarget(hashed_logits(V - 4), V - 4), Kind.SAMPLED)
    assert len(proposed(drafter, opened(drafter, [1, V - 1]), 4)) == 0


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize(
    ("rule", "kind"), [("coupled", Kind.COUPLED), ("token", Kind.SAMPLED), ("block", Kind.SAMPLED)], ids=str
)
@pytest.mark.usefixtures("unchecked")
def test_the_target_as_its_own_drafter_is_always_accepted(rule: str, kind: Kind, k: int):
    drafter = ModelDrafter(TableTarget(TABLE, V), kind)
    params = SamplingParams(max_tokens=200)
    output, steps = decoded(TABLE, V, drafter, PhiloxChance(4), rule=rule, controller=Fixed(k), params=params)
    assert len(output.token_ids) == 200
    assert all(step.accepted == len(step.draft) for step in steps)
    assert len(steps) == -(-200 // (k + 1))


def test_a_greedy_tree_proposes_only_what_the_target_has_and_the_draft_can_say():
    """A draft model that pads its vocabulary further, and whose output layer was cut: siblings are its likeliest tokens
    among those that both have."""
    wide = hashed_logits(V + 5, order=2)

    def row(history: Sequence[int]) -> np.ndarray:
        logits = wide(history) + np.where(np.arange(V + 5) >= V, 100, 0).astype(np.float32)
        logits[3:V] = -np.inf
        return logits

    drafter = ModelDrafter(TableTarget(row, V + 5), Kind.COUPLED)
    session = drafter.open(Context(law_of(SamplingParams(temperature=0)), V, 100))
    drafter.commit([session], [[1, 2]])
    [draft] = drafter.propose([session], [Plan(2, (5, 2))], [PhiloxChance(0)])
    assert set(draft.tokens) <= {0, 1, 2}
    assert draft.parents.count(-1) == 3
    assert np.isfinite(draft.confidence).all()


def test_what_is_kept_of_a_combination_holds_on_to_no_request():
    model = ModelDrafter(TableTarget(TABLE, V), Kind.COUPLED)
    drafter = CombinedDrafter({"suffix": SuffixDrafter(), "model": model})
    session = opened(drafter, [1, 2, 3])
    proposed(drafter, session, 2)
    kept = drafter.keep(session)
    assert kept.context.law is not LAW
    assert kept.parts["model"].context.law is not LAW
