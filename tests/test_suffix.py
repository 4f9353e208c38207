"""Copying by the longest known ends: what is counted, what is believed, what is drafted, and at what expense."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.base import ROOT, Context, Draft, Kind
from draftproof.chance import PhiloxChance
from draftproof.commit import Output
from draftproof.control import Fixed
from draftproof.drafters.corpus import SuffixCorpus, corpus_of
from draftproof.drafters.occurrences import Occurrences
from draftproof.drafters.outlook import worthwhile
from draftproof.drafters.suffix import (
    CONTEXTS,
    CORPUS,
    FAINT,
    LOOKED,
    SPARE,
    SUREST,
    UNSEEN,
    SuffixDrafter,
    escape,
)
from draftproof.drafters.worth import BINS, bin_of, trusted
from draftproof.engine import Engine, EngineConfig
from draftproof.memory import KVMemory
from draftproof.models.table import TableTarget, hashed_logits
from draftproof.plan import Plan, Terms
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of
from draftproof.seats import Request
from tests.toys import Known

CHANCE = PhiloxChance(0)
CONTEXT = Context(law_of(SamplingParams()), 64, 1000)
TEXT = st.lists(st.integers(0, 3), max_size=30) | st.builds(
    lambda words, order: [token for word in order for token in words[word % len(words)]],
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=3),
    st.lists(st.integers(0, 2), max_size=12),
)
"""Letters in any order, or a few words in any order, in which much comes again."""
TEXTS = st.lists(TEXT, max_size=3)
LONGEST = st.integers(1, 6)


def opened(drafter: SuffixDrafter, *commits: Sequence[int]):
    session = drafter.open(CONTEXT)
    for tokens in commits:
        drafter.commit([session], [tokens])
    return session


def proposed(drafter: SuffixDrafter, text: Sequence[int], plan: Plan) -> Draft:
    [draft] = drafter.propose([opened(drafter, text)], [plan], [CHANCE])
    return draft


def corpus_with(texts: Sequence[Sequence[int]], max_tokens: int = 10_000, longest: int = 32) -> SuffixCorpus:
    corpus = SuffixCorpus(max_tokens, longest=longest)
    for text in texts:
        corpus.add(text)
    return corpus


def read(texts: Sequence[Sequence[int]], longest: int) -> Occurrences:
    seen = Occurrences(longest)
    for text in texts:
        seen.extend(0, text)
    return seen


def substrings(texts: Sequence[Sequence[int]], longest: int) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(text[i:j])
        for text in texts
        for i in range(len(text))
        for j in range(i + 1, min(i + longest, len(text)) + 1)
    )


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """The tokens down to each node."""
    out: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        out.append((*(out[parent] if parent != ROOT else ()), token))
    return out


def reaches(draft: Draft, trust: Sequence[Sequence[float]] | None = None) -> list[float]:
    """How likely each node's path is kept."""
    out: list[float] = []
    for node, parent in enumerate(draft.parents):
        elder = [i for i in range(node) if draft.parents[i] == parent]
        likely = [
            trusted(Known(trust) if trust else None, 0, rank, draft.confidence[i])
            for rank, i in enumerate([*elder, node])
        ]
        out.append((out[parent] if parent != ROOT else 1.0) * min(likely))
    return out


# -- what followed what


@given(TEXTS, LONGEST)
def test_every_short_context_is_counted_and_nothing_else(texts: list[list[int]], longest: int):
    seen, count = read(texts, longest), substrings(texts, longest + 1)
    assert seen.read == sum(map(len, texts))
    for context in [(), *(context for context in count if len(context) <= longest)]:
        state, matched = seen.find(context)
        assert matched == len(context)
        followed = {token: count[(*context, token)] for token in range(4) if (*context, token) in count}
        assert {token: n for token in range(4) if (n := seen.often(state, token))} == followed
        assert not context or seen.count[state] == count[context]
        if followed:
            assert seen.followers(state, 99) == (len(followed), followed)


@given(TEXTS, TEXT, LONGEST)
def test_the_longest_known_end_is_found(texts: list[list[int]], text: list[int], longest: int):
    seen, count = read(texts, longest), substrings(texts, longest)
    known = [size for size in range(1, min(longest, len(text)) + 1) if tuple(text[-size:]) in count]
    state, matched = seen.find(text)
    assert min(matched, longest) == max(known, default=0)
    assert not matched or seen.length[seen.suffix[state]] < matched <= seen.length[state]


@given(TEXTS, LONGEST)
def test_no_step_looks_at_more_than_a_few_states(texts: list[list[int]], longest: int):
    seen = Occurrences(longest)
    for text in texts:
        state = 0
        for token in text:
            state = at = seen.extend(state, [token])
            chain = 0
            while at:
                chain, at = chain + 1, seen.suffix[at]
            assert chain <= longest + 2
    assert len(seen.length) <= 2 * seen.read + 1


def test_a_walk_stays_among_contexts_that_are_not_too_long():
    """Each text adds a state to the chain of ever shorter contexts, all longer than `longest`, that ended there too."""
    seen = read([[100 + i, *range(i, 60)] for i in range(30)], 4)
    state, matched = seen.find(range(60))
    assert matched >= 4
    assert seen.length[seen.suffix[state]] <= 4


def test_of_many_followers_the_first_and_the_last_new_ones_are_looked_at():
    seen = read([[token for i in range(10, 20) for token in (1, i)]], 4)
    assert seen.followers(seen.step(0, 1), 4) == (10, {19: 1, 18: 1, 10: 1, 11: 1})
    assert list(seen.followers(seen.step(0, 1), 10)[1]) == list(range(19, 9, -1)), "the last that was new first"


# -- what is believed


def by_definition(text: Sequence[int], path: Sequence[int], longest: int, width: int) -> list[tuple[float, int]]:
    """`guesses` after `path` from the words of its description: contexts that ended at the same places count once."""

    def ends(context: Sequence[int]) -> frozenset[int]:
        size = len(context)
        return frozenset(i for i in range(size, len(text) + 1) if tuple(text[i - size : i]) == tuple(context))

    whole, contexts = [*text, *path], {}
    for size in range(1, min(longest, len(whole)) + 1):
        if found := ends(whole[-size:]):
            contexts[found] = size  # the longest of those that ended at the same places
    followed = {size: Counter(text[i] for i in found if i < len(text)) for found, size in contexts.items()}
    sizes = sorted((size for size in followed if followed[size]), reverse=True)[:CONTEXTS]
    likely = {token: UNSEEN for size in sizes for token in followed[size]}
    for size in reversed(sizes):
        doubt = escape(size, len(followed[size]))
        for token in likely:
            total = followed[size].total()
            likely[token] = (followed[size][token] + doubt * likely[token]) / (total + doubt)
    return sorted(((min(chance, SUREST), token) for token, chance in likely.items()), reverse=True)[:width]


@given(TEXT, st.integers(0, 5), LONGEST)
def test_guesses_are_as_defined(text: list[int], depth: int, longest: int):
    drafter = SuffixDrafter(longest=longest, floor=1e-12)
    draft = proposed(drafter, text, Plan(depth, (4,) * depth, 40))
    for parent in {ROOT, *draft.parents}:
        path = paths(draft)[parent] if parent != ROOT else ()
        expected = by_definition(text, path, longest, 4)
        kids = [node for node, above in enumerate(draft.parents) if above == parent]
        assert len(kids) <= len(expected)
        for node, (chance, _) in zip(kids, expected, strict=False):
            assert draft.confidence[node] == pytest.approx(chance)
            assert draft.confidence[node] == pytest.approx(
                {token: sure for sure, token in expected}[draft.tokens[node]]
            )


def sure(repeats: int, length: int) -> float:
    """The confidence after a context of `length` tokens that went on the same way `repeats` times."""
    phrase = list(range(10, 10 + length))
    text = [token for i in range(repeats) for token in (100 + i, *phrase, 7)]
    return proposed(SuffixDrafter(floor=1e-9), [*text, 99, *phrase], Plan(1)).confidence[0]


def test_longer_and_more_frequent_matches_are_believed_more():
    for length in (1, 2, 4, 8, 16, 31):
        assert [sure(n, length) for n in range(1, 6)] == sorted({sure(n, length) for n in range(1, 6)})
    for repeats in (1, 3):
        by_length = [sure(repeats, length) for length in range(1, 33)]
        assert by_length == sorted(set(by_length))
    assert sure(1, 1) < 0.3
    assert sure(5, 8) > 0.8
    assert sure(3, 32) > 0.99


def test_a_wide_context_believes_nobody():
    text = [token for i in range(10, 10 + 2 * LOOKED) for token in (1, i)]
    draft = proposed(SuffixDrafter(floor=1e-9), [*text, 1], Plan(1, (3,)))
    assert draft.tokens == tuple(range(9 + 2 * LOOKED, 6 + 2 * LOOKED, -1))
    assert max(draft.confidence) < 1 / LOOKED


def test_a_frequent_follower_is_found_among_many():
    text = [token for i in range(100, 100 + 3 * LOOKED) for token in (1, 7, 1, i)]
    draft = proposed(SuffixDrafter(longest=1, floor=1e-9), [*text, 1], Plan(1, (2,)))
    assert draft.tokens[0] == 7
    kinds, total = 3 * LOOKED + 1, 6 * LOOKED + 1  # of all followers, not of those looked at; the end counts as well
    doubt = escape(1, kinds)
    assert draft.confidence[0] == pytest.approx((3 * LOOKED + doubt * UNSEEN) / (total + doubt))


def test_what_a_longer_context_names_is_looked_up_in_a_wide_one():
    wide = [token for i in range(100, 100 + 3 * LOOKED) for token in ((0, 1, i) if i == 100 + LOOKED else (1, i))]
    [confidence] = proposed(SuffixDrafter(), [*wide, 0, 1], Plan(1)).confidence
    after_one = backed(1, 3 * LOOKED + 1, escape(1, 3 * LOOKED))
    assert confidence == pytest.approx(backed(1, 1, E2, after_one), rel=1e-6)


def test_a_number():
    [confidence] = proposed(SuffixDrafter(), [1, 2, 3, 1, 2], Plan(1)).confidence
    assert confidence == pytest.approx(0.30029, abs=2e-5)


# -- what is drafted

E1, E2, E3, E4 = (escape(length, 1) for length in (1, 2, 3, 4))


def backed(hits: float, total: float, doubt: float, prior: float = UNSEEN) -> float:
    return (hits + doubt * prior) / (total + doubt)


@pytest.mark.parametrize(
    ("text", "plan", "tokens", "parents", "confidence"),
    [
        ([], Plan(3), (), (), ()),
        ([7], Plan(3), (), (), ()),
        ([1, 2, 3], Plan(3), (), (), ()),  # nothing happened twice
        ([4, 4], Plan(0), (), (), ()),
        # 2 only ever stood after 1: one context, 1 2; then 1 2 3; then 1 2 3 1, and 1, which 2 followed twice
        (
            [1, 2, 3, 1, 2],
            Plan(3),
            (3, 1, 2),
            (-1, 0, 1),
            (backed(1, 1, E2), backed(1, 1, E3), backed(1, 1, E4, backed(2, 2, E1))),
        ),
        # 5 3 was followed by 7; 3, also by 8
        (
            [5, 3, 7, 6, 3, 8, 5, 3],
            Plan(1, (2,)),
            (7, 8),
            (-1, -1),
            (backed(1, 1, E2, backed(1, 2, 2 * E1)), backed(0, 1, E2, backed(1, 2, 2 * E1))),
        ),
        # among equals the one that was new last, as wide as planned
        ([3, 7, 3, 8, 3], Plan(1), (8,), (-1,), (backed(1, 2, 2 * E1),)),
        ([3, 7, 3, 8, 3], Plan(1, (3,)), (8, 7), (-1, -1), (backed(1, 2, 2 * E1),) * 2),
        # best first: the second child of the root comes before the child of its second
        (
            [3, 7, 9, 3, 7, 9, 3, 8, 3],
            Plan(2, (2,), 3),
            (7, 8, 9),
            (-1, -1, 0),
            (backed(2, 3, 2 * E1), backed(1, 3, 2 * E1), backed(2, 2, E2)),
        ),
    ],
)
def test_hand_made_trees(
    text: list[int], plan: Plan, tokens: tuple[int, ...], parents: tuple[int, ...], confidence: tuple[float, ...]
):
    draft = proposed(SuffixDrafter(floor=1e-3), text, plan)
    assert (draft.root, draft.tokens, draft.parents) == (len(text), tokens, parents)
    assert draft.confidence == pytest.approx(confidence)
    assert draft.kind == (Kind.CHOSEN,) * len(tokens)
    assert draft.origin == ("suffix",) * len(tokens)
    assert (draft.rows, draft.row_of) == ((), (-1,) * len(tokens))


@pytest.mark.parametrize("loop", [[4], [4, 9], [1, 2, 3]], ids=str)
@pytest.mark.parametrize("turns", [2, 10, 200, 2000])
def test_a_loop_is_followed_round(loop: list[int], turns: int):
    draft = proposed(SuffixDrafter(floor=1e-15), loop * turns, Plan(20))
    assert draft.tokens == tuple((loop * 20)[:20])
    assert draft.parents == tuple(range(-1, 19))
    assert max(draft.confidence) < 1
    assert turns < 200 or min(draft.confidence) > 0.99


def test_the_floor_makes_drafts_short_where_little_is_known():
    once, often = [1, 2, 3, 1, 2], [1, 2, 3, 4, 5] * 10
    assert len(proposed(SuffixDrafter(floor=0.2), once, Plan(5))) == 1
    assert len(proposed(SuffixDrafter(), often, Plan(5))) == 5
    assert len(proposed(SuffixDrafter(floor=0.5), once, Plan(5))) == 0


def test_the_length_of_matches_is_bounded():
    text = [1, 2, 3, 9, 2, 3, 8, 1, 2, 3]
    assert proposed(SuffixDrafter(), text, Plan(1)).tokens == (9,)
    assert proposed(SuffixDrafter(longest=2), text, Plan(1)).tokens == (8,)
    assert proposed(SuffixDrafter(shortest=3), text, Plan(1)).tokens == (9,)
    assert proposed(SuffixDrafter(shortest=4), text, Plan(1)).tokens == ()


SHAPES = st.tuples(
    st.integers(-1, 6), st.lists(st.integers(1, 4), max_size=6).map(tuple), st.none() | st.integers(0, 12)
)
ROUNDS = st.lists(st.floats(0, 0.5), min_size=1, max_size=12).map(
    lambda steps: [1 + sum(steps[:n]) for n in range(len(steps))]
)
TRUST = st.lists(st.tuples(*[st.floats(0, 1)] * (BINS + 1)), min_size=1, max_size=3).map(tuple)


@given(TEXT, TEXTS, SHAPES, st.integers(1, 3), st.none() | st.tuples(ROUNDS, st.none() | TRUST))
def test_a_draft_keeps_to_plan_and_to_what_was_seen(text, texts, shape, shortest: int, terms):
    trust, plan = terms[1] if terms else None, Plan(*shape)
    if terms:
        known = Terms(
            tuple(terms[0]), trust={"suffix": Known(trust), "other": Known(((0.0,) * (BINS + 1),))} if trust else {}
        )
        plan = Plan(*shape, terms=known)
    draft = proposed(SuffixDrafter([corpus_with(texts)], longest=8, shortest=shortest), text, plan)
    assert draft.root == len(text)
    assert len(draft) <= (min(plan.nodes, len(terms[0]) - 1) if terms else plan.nodes)
    counts = substrings([text, *texts], shortest + 1)
    for path in paths(draft):
        assert len(path) <= plan.depth
        assert tuple([*text, *path][-shortest - 1 :]) in counts, "it went on so before"
    for parent in {ROOT, *draft.parents}:
        kids = [node for node, above in enumerate(draft.parents) if above == parent]
        assert len(kids) <= plan.width(len(paths(draft)[parent]) if parent != ROOT else 0)
        assert len({draft.tokens[node] for node in kids}) == len(kids)
        assert [draft.confidence[node] for node in kids] == sorted(
            (draft.confidence[node] for node in kids), reverse=True
        )
    assert all(0 < confidence < 1 for confidence in draft.confidence)
    reach = reaches(draft, trust)
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(reach)), "the likeliest first"
    assert min(reach, default=1) >= (FAINT if terms else 0.1)


# -- state


@given(TEXT, st.lists(st.integers(0, 30), max_size=6), st.integers(0, 4), TEXTS)
def test_a_session_is_a_replay_of_what_was_committed(text, cuts, depth: int, texts):
    drafter = SuffixDrafter([corpus_with(texts)], longest=4)
    whole, session = opened(drafter, text), drafter.open(CONTEXT)
    edges = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    for begin, end in pairwise(edges):
        drafter.propose([session], [Plan(depth, (2, 2))], [CHANCE])
        drafter.commit([session], [text[begin:end]])
    assert session == whole
    drafts = drafter.propose([session, whole, session], [Plan(3, (2,))] * 3, [CHANCE, PhiloxChance(5), CHANCE])
    assert drafts[0] == drafts[1] == drafts[2]


@given(TEXT, TEXT)
def test_sessions_of_other_texts_differ(a: list[int], b: list[int]):
    drafter = SuffixDrafter(longest=4)
    assert (opened(drafter, a) == opened(drafter, b)) == (a == b)


def test_committing_after_the_end_does_not_touch_other_sessions():
    drafter = SuffixDrafter()
    first, second = opened(drafter, [1, 2]), opened(drafter, [1, 2])
    drafter.commit([first], [[1, 2]])
    assert second == opened(drafter, [1, 2])


# -- what it costs


def adversaries(n: int) -> dict[str, list[int]]:
    rng = Random(1)
    return {
        "same": [5] * n,
        "period 2": [5, 6] * (n // 2),
        "random": [rng.randrange(50_000) for _ in range(n)],
        "bits": [rng.randrange(2) for _ in range(n)],
        "four letters": [rng.randrange(4) for _ in range(n)],
        "wide": [token for i in range(n // 4) for token in (7, 8, 9, 1000 + i)],
        "ever shorter": [token for i in range(n // 50) for token in (999 + i, *range(100 + i % 40, 150))][:n],
    }


@pytest.mark.parametrize("name", adversaries(4))
def test_work_and_memory_are_bounded_for_every_text(name: str, monkeypatch: pytest.MonkeyPatch):
    """Counts entries that are visited, not seconds: steps from state to state, and followers looked at."""
    visits = 0
    step, followers = Occurrences.step, Occurrences.followers

    def counted_step(self, state, token):
        nonlocal visits
        visits += 1
        return step(self, state, token)

    def counted_followers(self, state, most):
        nonlocal visits
        found = followers(self, state, most)
        visits += len(found[1])
        return found

    monkeypatch.setattr(Occurrences, "step", counted_step)
    monkeypatch.setattr(Occurrences, "followers", counted_followers)
    text, drafter = adversaries(3000)[name], SuffixDrafter()
    session = opened(drafter, text[:2000])
    assert visits < 12 * 2000, "a token takes a few steps"
    worst = 0
    for token in text[2000:2200]:
        visits = 0
        drafter.commit([session], [[token]])
        drafter.propose([session], [Plan(5)], [CHANCE])
        worst = max(worst, visits)
    assert worst < 5 * CONTEXTS * (LOOKED + SPARE) + 200
    seen = session.seen
    tables = (seen.length, seen.suffix, seen.count, seen.only, seen.after, seen.branches, *seen.branches.values())
    assert sum(map(sys.getsizeof, tables)) < 600 * seen.read


# -- a corpus


def test_a_corpus_speaks_before_the_text_has_repeated_itself():
    corpus = corpus_with([[1, 2, 3, 4]])
    draft = proposed(SuffixDrafter([corpus], floor=1e-3), [9, 1, 2], Plan(2))
    assert draft.tokens == (3, 4)
    assert draft.confidence == pytest.approx([backed(1, 1, CORPUS * E2), backed(1, 1, CORPUS * E3)])
    assert len(proposed(SuffixDrafter(floor=1e-3), [9, 1, 2], Plan(2))) == 0


def test_the_own_text_weighs_more_than_the_corpus():
    corpus = corpus_with([[5, 6, 8]])
    draft = proposed(SuffixDrafter([corpus], floor=1e-9), [5, 6, 7, 5, 6], Plan(1, (2,)))
    assert draft.tokens == (7, 8)
    drafter = SuffixDrafter([corpus_with([[1, 5, 6, 8]])])
    assert proposed(drafter, [1, 5, 6, 0, 5, 6, 7, 1, 5, 6], Plan(1)).tokens == (0,)


def test_a_longer_match_in_the_corpus_beats_a_short_one_in_the_text():
    corpus = corpus_with([list(range(20, 30))] * 3)
    assert proposed(SuffixDrafter([corpus]), [27, 99, *range(20, 28)], Plan(1)).tokens == (28,)


def test_a_match_in_the_corpus_is_followed_to_its_full_length():
    corpus = corpus_with([list(range(20, 60))])
    [sure] = proposed(SuffixDrafter([corpus]), range(20, 50), Plan(1)).confidence
    assert sure == pytest.approx(backed(1, 1, CORPUS * escape(30, 1)))
    [cut] = proposed(SuffixDrafter([corpus], longest=12), range(20, 50), Plan(1)).confidence
    assert cut == pytest.approx(backed(1, 1, CORPUS * escape(12, 1)))


def test_among_equal_texts_of_a_corpus_the_latest_speaks_last():
    corpus = corpus_with([[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 8]], max_tokens=28)
    assert [len(part.length) for part in corpus.parts] == [8, 8]
    assert proposed(SuffixDrafter([corpus]), [5, 6], Plan(1)).tokens == (8,)


def test_nothing_matches_across_the_boundary_of_two_texts():
    corpus = corpus_with([[1, 2], [3, 4]])
    drafter = SuffixDrafter([corpus], floor=1e-9)
    assert proposed(drafter, [1, 2], Plan(3)).tokens == ()
    assert proposed(drafter, [1], Plan(3)).tokens == (2,)
    assert proposed(drafter, [3], Plan(3)).tokens == (4,)
    assert corpus.parts[0].find([2, 3]) == corpus.parts[0].find([3]), "one token, not two"


@given(TEXTS, LONGEST)
def test_a_corpus_knows_each_text_and_no_more(texts: list[list[int]], longest: int):
    corpus = corpus_with(texts, longest=longest)
    assert len(corpus) == sum(map(len, texts))
    assert corpus.parts in ((), (read(texts, longest),))


def test_the_oldest_texts_are_forgotten_first_and_the_room_is_kept():
    corpus = SuffixCorpus(40)
    texts = [[10 * i + j for j in range(5)] for i in range(20)]
    for i, text in enumerate(texts):
        corpus.add(text)
        assert len(corpus) <= 40
        known = [old for old in texts[: i + 1] if any(part.find(old)[1] == 5 for part in corpus.parts)]
        assert known == texts[i + 1 - len(known) : i + 1]
        assert len(known) >= min(i + 1, 6)
        assert len(corpus) + corpus.forgotten == 5 * (i + 1)


def test_a_text_larger_than_the_corpus_leaves_its_end():
    corpus = corpus_with([list(range(100))], max_tokens=40)
    assert len(corpus) == 40
    assert [part.find([99])[1] for part in corpus.parts] == [0, 0, 0, 1]
    assert [part.find([59])[1] for part in corpus.parts] == [0] * 4


def test_a_corpus_may_grow_under_a_session():
    corpus = SuffixCorpus()
    drafter = SuffixDrafter([corpus], floor=1e-3)
    session = opened(drafter, [1, 2])
    assert drafter.propose([session], [Plan(1)], [CHANCE])[0].tokens == ()
    corpus.add([1, 2, 3])
    assert drafter.propose([session], [Plan(1)], [CHANCE])[0].tokens == (3,)
    assert session == opened(SuffixDrafter(), [1, 2])


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_a_folder_becomes_a_corpus(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("abc")
    (tmp_path / "b.jsonl").write_text(json.dumps({"id": 3, "turns": ["de", "fg"]}) + "\n\n" + json.dumps("hi") + "\n")
    (tmp_path / ".hidden").write_bytes(b"\xff\xff")
    corpus = corpus_of(tmp_path, letters)
    assert corpus.parts == corpus_with([letters(text) for text in ("de", "fg", "hi", "abc")], 10**6).parts


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no file in it holds text"),
        ({"a.txt": b""}, "no file in it holds text"),
        ({"a.txt": b"fine", "b.bin": b"\xff\xfe\x00"}, "b.bin.* must be a readable UTF-8"),
        ({"a.jsonl": b'"fine"\n{'}, "line 2 of .*a.jsonl.* must be JSON"),
        ({"a.txt": b"x" * 50}, "max_tokens: 40 .* holds 50 tokens"),
    ],
    ids=["empty folder", "empty file", "binary", "broken", "too much"],
)
def test_nothing_in_a_folder_is_left_out_silently(tmp_path: Path, files: dict[str, bytes], message: str):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        corpus_of(tmp_path, letters, max_tokens=40)
    assert "\n" not in str(caught.value)


def test_a_folder_must_be_there(tmp_path: Path):
    with pytest.raises(ValueError, match="must be a folder"):
        corpus_of(tmp_path / "none", letters)


# -- under terms


@given(TEXT, ROUNDS, SHAPES, st.none() | TRUST)
def test_as_many_nodes_as_pay_are_drafted(text: list[int], rounds: list[float], shape, trust):
    """The best of all counts, as if every node that the plan allows had been looked for."""
    free = Terms((1.0,) * 60, trust={"suffix": Known(trust)} if trust else {})
    every = proposed(SuffixDrafter(longest=4), text, Plan(*shape, terms=free))
    terms = Terms(tuple(rounds), trust=free.trust)
    draft = proposed(SuffixDrafter(longest=4), text, Plan(*shape, terms=terms))
    limit = min(len(every), len(rounds) - 1)
    rates = [(1 + sum(reaches(every, trust)[:n])) / rounds[n] for n in range(limit + 1)]
    assert draft.tokens == every.tokens[: len(draft)]
    assert rates[len(draft)] == pytest.approx(max(rates))


def test_a_step_in_the_cost_is_looked_over():
    text = [1, 2, 3] * 40
    plan = Plan(6, terms=Terms((1.0, 3.0, 3.0, 3.0, 3.0, 3.0, 6.0)))  # one node does not pay, five do, six do not
    assert len(proposed(SuffixDrafter(), text, plan)) == 5
    assert len(proposed(SuffixDrafter(), text, Plan(6, terms=Terms((1.0, 3.0, 3.0))))) == 0


@pytest.mark.parametrize("rounds", [(), (1.0,)])
def test_terms_may_leave_no_room(rounds: tuple[float, ...]):
    assert proposed(SuffixDrafter(), [4] * 9, Plan(3, terms=Terms(rounds))) == Draft(9)


def test_what_was_observed_counts_for_more_than_what_is_believed():
    text, rounds = [1, 2, 3] * 40, tuple(1 + 0.3 * n for n in range(4))
    never, always = ((0.0,) * (BINS + 1),), ((1.0,) * (BINS + 1),)
    for trust, nodes in ((never, 0), (always, 3)):
        draft = proposed(SuffixDrafter(), text, Plan(3, terms=Terms(rounds, trust={"suffix": Known(trust)})))
        assert len(draft) == nodes
    assert draft.confidence == proposed(SuffixDrafter(), text, Plan(3)).confidence, (
        "its own estimate, as trust is by it"
    )


def test_a_later_sibling_is_never_trusted_more_than_an_earlier_one():
    text = [3, 7, 3, 8, 3]
    trust = ((0.2,) * (BINS + 1), (0.9,) * (BINS + 1))
    plan = Plan(1, (2,), terms=Terms((1.0, 1.0, 1.0), trust={"suffix": Known(trust)}))
    assert proposed(SuffixDrafter(), text, plan).tokens == (8, 7)
    dear = Plan(1, (2,), terms=Terms((1.0, 1.1, 1.5), trust={"suffix": Known(trust)}))
    assert proposed(SuffixDrafter(), text, dear).tokens == (8,)


# -- what a token is worth


def test_classes_of_confidence_rise():
    classes = [bin_of(i / 1000) for i in range(1001)]
    assert classes == sorted(classes)
    assert set(classes) == set(range(BINS))


@given(st.lists(st.floats(0, 1), max_size=10), ROUNDS)
def test_the_best_count_is_the_best_of_all(gains: list[float], rounds: list[float]):
    gains = sorted(gains, reverse=True)
    rates = [(1 + sum(gains[:n])) / rounds[n] for n in range(min(len(gains) + 1, len(rounds)))]
    chain = range(-1, len(gains) - 1)
    best = len(worthwhile(chain, gains, Terms(tuple(rounds)))[1])
    assert rates[best] == pytest.approx(max(rates))
    assert all(rate < rates[best] + 1e-12 for rate in rates[:best])


# -- at work


V = 8
TABLE = hashed_logits(V, order=1, scale=3.0)  # a text that repeats itself


def answered(depth: int, rule: str) -> tuple[list[int], int]:
    """Tokens and rounds of a request; the engine compares its session with a replay after every round."""
    params, drafter = SamplingParams(max_tokens=60), SuffixDrafter([corpus_with([[1, 2, 3]])])
    output = Output(params, 60, frozenset())
    law, chance = law_of(params), PhiloxChance(3)
    engine = Engine(TableTarget(TABLE, V), KVMemory(1 << 30), EngineConfig(check=True))
    engine.add(Request("a", (0,), output, drafter, Fixed(depth), RULES[rule], law, chance))
    rounds = 0
    while engine.busy:
        for event in engine.step():
            if event.error is not None:
                raise event.error
            rounds += 1
    return list(output.token_ids), rounds


@pytest.mark.parametrize("rule", ["coupled", "token", "block"])
@pytest.mark.usefixtures("unchecked")
def test_in_an_engine_that_compares_states_with_a_replay(rule: str):
    tokens, rounds = answered(4, rule)
    assert len(tokens) == 60
    assert rounds < 50, "something was accepted"
    if rule == "coupled":
        assert tokens == answered(0, rule)[0]
