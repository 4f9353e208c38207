"""Trees of drafts: where a plan promises bits every node has those of its path read as text; a tree that grows level by
level gives what it gives at once; and what there is no room for is refused before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from draftproof.base import ROOT, Feed, Session
from draftproof.models.arena import KVArena
from draftproof.models.bits import LAW_PLAN, RowPlan, measure_rows
from draftproof.models.hf import HFTarget
from draftproof.models.load import load
from draftproof.models.products import quicken
from draftproof.trees import ancestors, depths, path_to
from tests.tiny import ARCHITECTURES, VOCAB, build, tokens_of

pytestmark = pytest.mark.usefixtures("one_thread")

DTYPES = ["bfloat16", "float32"]
PADDED = RowPlan(multiple=4, most=8, kv_step=16, exact=True, query_multiple=8)
TOLERANCE = 2e-4  # float32 logits that reach 16


@cache
def exact_target(name: str, dtype: str) -> HFTarget | None:
    """None where this machine promises nothing."""
    model = build(ARCHITECTURES[name], getattr(torch, dtype))
    quicken(model)
    plan = measure_rows(model)
    return HFTarget(model, plan) if plan.exact else None


@pytest.fixture(params=DTYPES)
def dtype(request) -> str:
    return request.param


@pytest.fixture(params=ARCHITECTURES)
def target(request, dtype) -> HFTarget:
    found = exact_target(request.param, dtype)
    if found is None:
        pytest.skip(f"on this machine {dtype} rows of this model change with the shape of their forward")
    return _fresh(found)


def _fresh(target: HFTarget, **changed) -> HFTarget:
    """The same model, no arena."""
    return HFTarget(target.model, replace(target.plan, **changed))


# --- trees --------------------------------------------------------------------------------------------------------


def random_tree(rng: np.random.Generator, kind: str, count: int) -> tuple[int, ...]:
    if kind == "bushy":
        return tuple(int(rng.integers(ROOT, i)) for i in range(count))
    if kind == "siblings":  # a chain, and beside each of its nodes others that end there
        parents, last = [], ROOT
        while len(parents) < count:
            first = len(parents)
            parents += [last] * int(rng.integers(1, 4))
            last = int(rng.integers(first, len(parents)))
        return tuple(parents[:count])
    if kind == "depth first":
        parents: list[int] = []
        for i in range(count):
            above = path_to(parents, i - 1)
            parents.append([ROOT, *above][int(rng.integers(max(len(above) - 2, 0), len(above) + 1))])
        return tuple(parents)
    return (ROOT,) * count  # star


KINDS = ["bushy", "siblings", "depth first", "star"]


def leaves(parents: Sequence[int]) -> list[int]:
    return [node for node in range(len(parents)) if node not in parents]


def read(target: HFTarget, session: Session, tokens: Sequence[int], want: Sequence[int] = ()) -> np.ndarray:
    [scores] = target.forward([Feed(session, tuple(tokens), want=tuple(want))])
    target.commit([session], [()])
    return scores.logits


def opened(target: HFTarget, text: Sequence[int]) -> Session:
    """All of the text is cached but its last token."""
    session = target.open(len(text) + 40)
    read(target, session, text[:-1])
    return session


def rows_of_paths(
    target: HFTarget, text: Sequence[int], nodes: Sequence[int], parents: Sequence[int], most: int
) -> np.ndarray:
    """What a tree should give: each path read as text after the last token, at most `most` tokens at once."""
    session, rows = opened(target, text), {}
    for leaf in leaves(parents):
        target.truncate(session, len(text) - 1)
        path = path_to(parents, leaf)
        tokens = [text[-1], *(nodes[node] for node in path)]
        pieces = [tokens[at : at + most] for at in range(0, len(tokens), most)]
        logits = np.concatenate([read(target, session, piece, range(len(piece))) for piece in pieces])
        rows |= dict(zip([ROOT, *path], logits, strict=True))
    return np.stack([rows[node] for node in range(ROOT, len(parents))])


def differing(got: np.ndarray, want: np.ndarray) -> int:
    return int((got != want).any(axis=1).sum())


# --- bits ---------------------------------------------------------------------------------------------------------


def test_every_node_has_the_bits_of_its_path(target):
    rng = np.random.default_rng(0)
    for length, kind in zip((60, 125, 61, 9), KINDS, strict=True):  # those but the last cross a step of the buffer
        text, parents = tokens_of(length, length), random_tree(rng, kind, 9)
        nodes = tuple(rng.integers(3, 3 + 5, len(parents)).tolist())  # few tokens: siblings repeat
        [scores] = target.forward([Feed(opened(target, text), (text[-1], *nodes), parents)])
        for most in (1, 100):
            np.testing.assert_array_equal(scores.logits, rows_of_paths(target, text, nodes, parents, most))


def test_under_one_mask_rows_have_other_bits():
    """Or the test above would prove nothing."""
    targets = [found for name in ARCHITECTURES if (found := exact_target(name, "float32"))]
    if not targets:
        pytest.skip("no promise to break on this machine")
    rng, rows = np.random.default_rng(0), 0
    for found in targets:
        masked, text, parents = _fresh(found, exact=False), tokens_of(1, 60), random_tree(rng, "bushy", 12)
        nodes = tokens_of(2, 12)
        [scores] = masked.forward([Feed(opened(masked, text), (text[-1], *nodes), parents)])
        rows += differing(scores.logits, rows_of_paths(masked, text, nodes, parents, 1))
    assert rows > 0


@pytest.mark.parametrize("provided", [False, True], ids=["own buffers", "arena"])
def test_what_follows_a_committed_path_has_the_bits_of_a_text_without_a_tree(target, provided):
    if provided:
        target.provide(2, 256)
    rng, text = np.random.default_rng(5), list(tokens_of(6, 57))
    session, plain = opened(target, text), opened(target, text)
    for kind in KINDS[:3]:
        parents = random_tree(rng, kind, 10)
        nodes = tokens_of(len(text), len(parents))
        target.forward([Feed(session, (text[-1], *nodes), parents)])
        path = path_to(parents, int(rng.integers(len(parents))))
        target.commit([session], [path])
        ahead = [nodes[node] for node in path]
        read(target, plain, [text[-1], *ahead])
        text += [*ahead, *tokens_of(len(text) + 1, 2)]
        assert target.check(session, text) is None
        for token in text[-2:-1]:
            np.testing.assert_array_equal(read(target, session, [token], [0]), read(target, plain, [token], [0]))
    assert target.cached(session) == len(text) - 1


@pytest.mark.parametrize(("provided", "most"), [(False, None), (True, 8)], ids=["own buffers", "arena, cut into tiles"])
def test_trees_and_chains_of_several_requests_in_one_forward(target, provided, most):
    target = _fresh(target, **({} if most is None else {"most": most}))
    if provided:
        target.provide(4, 256)
    rng = np.random.default_rng(7)
    texts = [tokens_of(8 + i, length) for i, length in enumerate((30, 62, 100, 5))]
    trees = [random_tree(rng, "bushy", 11), (ROOT, 0, 1), random_tree(rng, "siblings", 7), (ROOT, ROOT)]
    nodes = [tokens_of(20 + i, len(parents)) for i, parents in enumerate(trees)]
    sessions = [opened(target, text) for text in texts]
    order = rng.permutation(len(texts))
    found = target.forward([Feed(sessions[i], (texts[i][-1], *nodes[i]), trees[i]) for i in order])
    for i, scores in zip(order, found, strict=True):
        np.testing.assert_array_equal(scores.logits, rows_of_paths(target, texts[i], nodes[i], trees[i], 1))
    paths = [path_to(parents, leaves(parents)[-1]) for parents in trees]
    target.commit(sessions, paths)
    for i, path in enumerate(paths):
        assert target.check(sessions[i], [*texts[i], *(nodes[i][node] for node in path)]) is None


def test_a_prompt_and_a_tree_in_one_feed(target):
    """The tree begins in the middle of a tile, or of one after the first; some of its rows are wanted."""
    rng, text = np.random.default_rng(11), tokens_of(12, 75)
    for most in {8, 64, target.plan.most}:
        narrow = _fresh(target, most=min(most, target.plan.most))
        parents = random_tree(rng, "bushy", 12)
        nodes, session = tokens_of(13, 12), narrow.open(100)
        want = (74, 75, 78, 80, 86)
        [scores] = narrow.forward([Feed(session, (*text, *nodes), parents, want)])
        rows = rows_of_paths(target, text, nodes, parents, 1)
        np.testing.assert_array_equal(scores.logits, rows[[row - 74 for row in want]])
        path = path_to(parents, 11)
        narrow.commit([session], [path])
        assert narrow.check(session, [*text, *(nodes[node] for node in path)]) is None


@pytest.mark.real
@pytest.mark.usefixtures("unchecked")
def test_two_hundred_rows_of_the_embedded_model():
    target = load("smollm2-135m").target
    if not target.plan.exact:
        pytest.skip("the matrix products of this machine change with the row count: same law only")
    rng, rows = np.random.default_rng(0), 0
    for length in (50, 63, 64, 130, 500):
        for kind in KINDS:
            text, parents = rng.integers(0, target.vocab_size, length).tolist(), random_tree(rng, kind, 9)
            nodes = tuple(rng.integers(0, target.vocab_size, len(parents)).tolist())
            [scores] = target.forward([Feed(opened(target, text), (text[-1], *nodes), parents)])
            most = 1 if kind == "bushy" else 100  # others of these tests say that it is the same
            assert differing(scores.logits, rows_of_paths(target, text, nodes, parents, most)) == 0, (length, kind)
            rows += len(scores.logits)
    assert rows == 200


# --- growing ------------------------------------------------------------------------------------------------------


def levels_of(parents: Sequence[int]) -> list[list[int]]:
    """Nodes by depth; a tree whose nodes are numbered level by level."""
    depth = depths(parents)
    return [[node for node in range(len(parents)) if depth[node] == level] for level in range(1, max(depth) + 1)]


# siblings of parents that stand apart, and a branch of more levels than the tiny windows see
LEVELLED = (ROOT, ROOT, ROOT, 0, 0, 2, 3, 5, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17)


def grown(session: Session, committed: Sequence[int], nodes: Sequence[int], parents: Sequence[int]) -> list[Feed]:
    """The tree as feeds, a level each."""
    feeds, known = [Feed(session, tuple(committed))], len(committed)
    for level in levels_of(parents):
        count = level[-1] + 1
        feeds.append(Feed(session, (*committed, *nodes[:count]), tuple(parents[:count]), known=known))
        known = len(committed) + count
    return feeds


@pytest.fixture(params=ARCHITECTURES)
def model(request):
    return build(ARCHITECTURES[request.param])


@pytest.mark.parametrize("provided", [False, True], ids=["own buffers", "arena"])
@pytest.mark.parametrize("plan", [LAW_PLAN, PADDED], ids=["unpadded", "padded"])
def test_a_tree_that_grows_gives_what_it_gives_at_once(model, plan, provided):
    target = HFTarget(model, plan)
    if provided:
        target.provide(4, 256)
    text, nodes = tokens_of(30, 23), tokens_of(31, len(LEVELLED))
    session, whole = opened(target, text[:-2]), opened(target, text[:-2])
    [want] = target.forward([Feed(whole, (*text[-3:], *nodes), LEVELLED)])
    rows = [target.forward([feed])[0].logits for feed in grown(session, text[-3:], nodes, LEVELLED)]
    assert [len(some) for some in rows] == [1, *(len(level) for level in levels_of(LEVELLED))]
    np.testing.assert_allclose(np.concatenate(rows), want.logits, rtol=0, atol=TOLERANCE)
    path = path_to(LEVELLED, 15)
    target.commit([session, whole], [path, path])
    text = (*text, *(nodes[node] for node in path), 5)
    assert target.cached(session) == target.cached(whole) == len(text) - 1
    assert target.check(session, text) is None
    [one, other] = target.forward([Feed(session, text[-1:]), Feed(whole, text[-1:])])
    np.testing.assert_allclose(one.logits, other.logits, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("provided", [False, True], ids=["own buffers", "arena"])
def test_trees_that_grow_together_beside_a_text(model, provided):
    """Two trees, a chain and a text that is read, in the same forwards."""
    target = HFTarget(model, PADDED)
    if provided:
        target.provide(8, 256)
    trees = [LEVELLED[:9], (ROOT, ROOT, 0, 1, 2), (ROOT, 0, 1)]
    texts = [tokens_of(40 + i, 12 + i) for i in range(len(trees))]
    nodes = [tokens_of(50 + i, len(parents)) for i, parents in enumerate(trees)]
    sessions, at_once = [opened(target, text) for text in texts], [opened(target, text) for text in texts]
    want = target.forward([Feed(at_once[i], (texts[i][-1], *nodes[i]), parents) for i, parents in enumerate(trees)])
    feeds = [grown(sessions[i], texts[i][-1:], nodes[i], parents) for i, parents in enumerate(trees)]
    reader, prompt, rows = target.open(60), tokens_of(60, 60), [[] for _ in trees]
    for level in range(max(map(len, feeds))):
        fed = [(i, each[level]) for i, each in enumerate(feeds) if level < len(each)]
        at = target.cached(reader)
        *found, _ = target.forward([*(feed for _, feed in fed), Feed(reader, prompt[at : at + 10])])
        target.commit([reader], [()])
        for (i, _), scores in zip(fed, found, strict=True):
            rows[i].append(scores.logits)
    for some, scores in zip(rows, want, strict=True):
        np.testing.assert_allclose(np.concatenate(some), scores.logits, rtol=0, atol=TOLERANCE)
    assert target.check(reader, prompt) is None


def test_the_check_sees_more_than_the_length_of_what_grew():
    target = HFTarget(build(ARCHITECTURES["llama"], torch.float64), PADDED)
    text, nodes = tokens_of(70, 20), tokens_of(71, len(LEVELLED))
    session = opened(target, text)
    for feed in grown(session, text[-1:], nodes, LEVELLED):
        target.forward([feed])
    path = path_to(LEVELLED, 15)
    target.commit([session], [path])
    ahead = [nodes[node] for node in path]
    assert target.check(session, [*text, *ahead]) is None
    wrong = [*ahead[:-1], 3 if ahead[-1] != 3 else 4]
    assert "layer 0" in target.check(session, [*text, *wrong])
    kept = target.keep(session)
    again = target.open(60)
    target.adopt(again, kept, len(text) + 2)
    assert target.check(again, [*text, *ahead]) is None
    with torch.inference_mode():
        session.cache._layers[1][0][0, 7, 0] += 1e-9
    assert "layer 1" in target.check(session, [*text, *ahead])


def test_a_tree_that_ran_in_branches_may_grow():
    """Its nodes are then seen in slots of their own."""
    target = HFTarget(build(ARCHITECTURES["gemma3"]), replace(PADDED, most=64))
    text, nodes = tokens_of(72, 20), tokens_of(73, 9)
    session, whole, parents = opened(target, text), opened(target, text), LEVELLED[:9]
    first = target.forward([Feed(session, (text[-1], *nodes[:6]), parents[:6])])[0].logits
    rest = target.forward([Feed(session, (text[-1], *nodes), parents, known=7)])[0].logits
    want = target.forward([Feed(whole, (text[-1], *nodes), parents)])[0].logits
    np.testing.assert_allclose(np.concatenate([first, rest]), want, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("feed", "why"),
    [
        ({"known": -1}, "known is -1; it must be at least 0 and less than 4"),
        ({"known": 4}, "known is 4; it must be at least 0 and less than 4"),
        ({"tokens": (9, 5, 8, 7), "known": 3}, "not those that its session was fed before"),
        ({"parents": (ROOT, 0, 1), "known": 3}, "not those that its session was fed before"),
        ({"parents": (0, 0), "known": 2}, "not those that its session was fed before"),
        ({"tokens": (9, 5, 6, 7, 8), "parents": (ROOT, ROOT, 0, 1), "known": 4}, "not those"),
        ({"want": (2, 3), "known": 3}, "row 2 is wanted, but known is 3"),
    ],
)  # fmt: skip
def test_known_rows_that_are_not_known_are_refused(feed, why):
    target = HFTarget(build(ARCHITECTURES["llama"]), LAW_PLAN)
    session = opened(target, tokens_of(1, 9))
    target.forward([Feed(session, (9, 5, 6), (ROOT, ROOT))])
    with pytest.raises(ValueError, match=why):
        target.forward([Feed(session, **{"tokens": (9, 5, 6, 7), "parents": (ROOT, ROOT, 0)} | feed)])
    target.forward([Feed(session, (9, 5, 6, 7), (ROOT, ROOT, 0), known=3)])  # nothing was spoilt


def test_rows_are_known_until_something_is_committed_or_cut_off():
    target = HFTarget(build(ARCHITECTURES["llama"]), LAW_PLAN)
    session = target.open(20)
    grows = Feed(session, (9, 5, 6), (ROOT, ROOT), known=1)
    with pytest.raises(ValueError, match="was fed nothing since its last commit"):
        target.forward([grows])
    target.forward([Feed(session, (9,))])
    target.commit([session], [()])
    with pytest.raises(ValueError, match="was fed nothing since its last commit"):
        target.forward([grows])
    target.forward([Feed(session, (9,))])
    target.truncate(session, 0)
    with pytest.raises(ValueError, match="was fed nothing since its last commit"):
        target.forward([grows])
    with pytest.raises(ValueError, match="written over since, or cut off"):
        target.commit([session], [()])


# --- room ---------------------------------------------------------------------------------------------------------

WIDE = (ROOT,) * 6 + (0, 0, 1)


@pytest.mark.parametrize("plan", [LAW_PLAN, PADDED], ids=["masked", "branches"])
@pytest.mark.parametrize("provided", [False, True], ids=["own buffers", "arena"])
def test_a_tree_with_more_nodes_than_there_are_positions_left(plan, provided):
    """Positions count levels, slots count nodes."""
    model = build(ARCHITECTURES["llama"], torch.float64, max_position_embeddings=32)
    target, nodes = HFTarget(model, plan), tokens_of(81, len(WIDE))
    if provided:
        target.provide(2, 32)
    text = tokens_of(80, 30)
    for capacity in (30 + len(WIDE), 30):
        session = opened_with(target, text, capacity)
        [scores] = target.forward([Feed(session, (text[-1], *nodes), WIDE)])
        want = rows_of_paths(target, text, nodes, WIDE, 1)
        np.testing.assert_allclose(scores.logits, want, rtol=0, atol=1e-6)
        target.commit([session], [(0, 7)])
        assert target.check(session, [*text, nodes[0], nodes[7]]) is None
        target.close(session)


def opened_with(target: HFTarget, text: Sequence[int], capacity: int) -> Session:
    session = target.open(capacity)
    read(target, session, text[:-1])
    return session


@pytest.mark.skipif(not KVArena.works(torch.device("cpu")), reason="only Linux takes memory by the page")
@pytest.mark.parametrize("plan", [LAW_PLAN, PADDED], ids=["masked", "branches"])
def test_beyond_a_row_of_the_arena_a_tree_is_refused_and_nothing_is_touched(plan):
    target = HFTarget(build(ARCHITECTURES["llama"], max_position_embeddings=8192), plan)
    target.provide(2, 64)
    arena = target._arena
    assert arena is not None
    assert arena.slots >= 64 + 1024, "the largest draft fits beside the longest text"
    text = tokens_of(82, 20)
    session, mate = opened(target, text), opened(target, text)
    arena.slots = 24  # pretended: as if rows were that short
    before = [x.clone() for layer in range(3) for x in arena.layer(layer)]
    with pytest.raises(ValueError, match="context: a request was opened for fewer than 29 tokens"):
        target.forward([Feed(mate, (5,)), Feed(session, (text[-1], *tokens_of(83, 9)), WIDE)])
    assert all(map(torch.equal, before, [x for layer in range(3) for x in arena.layer(layer)]))
    assert target.cached(session) == 19


def test_the_trees_of_these_tests_are_what_they_are_called():
    rng = np.random.default_rng(0)
    for kind in KINDS:
        for _ in range(20):
            parents = random_tree(rng, kind, 9)
            assert ancestors(parents).shape == (9, 9)
            assert max(tokens_of(1, 9)) < VOCAB
    assert [len(level) for level in levels_of(LEVELLED)][:3] == [3, 3, 3]
    assert max(depths(LEVELLED)) > 8


def test_a_tree_beside_a_chain_says_what_it_says_alone(dtype):
    """Where a tree has the tile for itself its rows come out in one piece; else they are put in their places."""
    target = exact_target("llama", dtype)
    if target is None:
        pytest.skip("this machine keeps no bits")
    tree, chain = target.open(64), target.open(64)
    for session, seed in ((tree, 1), (chain, 2)):
        target.forward([Feed(session, tokens_of(seed, 9), want=())])
        target.commit([session], [()])
    feeds = [Feed(tree, tokens_of(3, 6), (-1, -1, 0, 1, 1)), Feed(chain, tokens_of(4, 3), (-1, 0))]
    alone = [target.forward([feed])[0].logits for feed in feeds]
    for order in ((0, 1), (1, 0)):
        together = target.forward([feeds[i] for i in order])
        for i, scores in zip(order, together, strict=True):
            np.testing.assert_array_equal(scores.logits, alone[i])
