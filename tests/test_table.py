"""The table target: it keeps the contract of a real one, and refuses what would hide a fault of its caller."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.base import ROOT, Feed
from draftproof.models.table import TableTarget, hashed_logits

V = 8
ROW = hashed_logits(V, order=1 << 30)


def target(max_context: int = 100) -> TableTarget:
    return TableTarget(ROW, V, max_context)


def test_a_tree_scores_each_node_after_its_own_path():
    table = target()
    session = table.open(20)
    [scores] = table.forward([Feed(session, (1, 2, 5, 6, 7), (ROOT, ROOT, 0))])
    histories = [(1, 2), (1, 2, 5), (1, 2, 6), (1, 2, 5, 7)]
    assert np.array_equal(scores.logits, np.stack([ROW(history) for history in histories]))


def test_a_commit_keeps_the_path_and_forgets_the_other_nodes():
    table = target()
    session = table.open(20)
    table.forward([Feed(session, (1, 2, 5, 6, 7), (ROOT, ROOT, 0))])
    table.commit([session], [(0, 2)])
    assert table.cached(session) == 4
    [scores] = table.forward([Feed(session, (3,))])
    assert np.array_equal(scores.logits[0], ROW((1, 2, 5, 7, 3)))


def test_what_is_not_committed_is_not_cached():
    table = target()
    session = table.open(20)
    table.forward([Feed(session, (1, 2))])
    assert table.cached(session) == 0
    table.forward([Feed(session, (4,))])
    table.commit([session], [()])
    [scores] = table.forward([Feed(session, (5,))])
    assert np.array_equal(scores.logits[0], ROW((4, 5)))


def test_truncate_forgets_the_end():
    table = target()
    session = table.open(20)
    table.forward([Feed(session, (1, 2, 3))])
    table.commit([session], [()])
    table.truncate(session, 1)
    [scores] = table.forward([Feed(session, (7,))])
    assert np.array_equal(scores.logits[0], ROW((1, 7)))


@pytest.mark.parametrize("path", [(1, 2), (2,), (0, 1)])
def test_a_commit_along_no_path_of_the_draft_is_refused(path: tuple[int, ...]):
    table = target()
    session = table.open(20)
    table.forward([Feed(session, (1, 5, 6, 7), (ROOT, ROOT, 0))])
    with pytest.raises(ValueError, match="not a path"):
        table.commit([session], [path])


def test_a_commit_without_a_feed_is_refused():
    table = target()
    session = table.open(20)
    with pytest.raises(ValueError, match="nothing was fed"):
        table.commit([session], [()])


@pytest.mark.parametrize("parents", [(), (ROOT,), (ROOT, 0)])
def test_more_than_the_context_is_refused(parents: tuple[int, ...]):
    table = target(max_context=3)
    session = table.open(3)
    table.forward([Feed(session, (1, 2, 3))])
    with pytest.raises(ValueError, match="context: 4 tokens, the model takes 3"):
        table.forward([Feed(session, (1, 2, 3, 4), parents)])


LEVELS = [((1, 2), ()), ((1, 2, 5, 6), (ROOT, ROOT)), ((1, 2, 5, 6, 7), (ROOT, ROOT, 0))]


def test_a_tree_that_grows_gives_what_it_gives_at_once():
    table = target()
    session, known, rows = table.open(20), 0, []
    for tokens, parents in LEVELS:
        [scores] = table.forward([Feed(session, tokens, parents, known=known)])
        known = len(tokens)
        rows.append(scores.logits)
    [at_once] = table.forward([Feed(table.open(20), *LEVELS[-1])])
    assert np.array_equal(np.concatenate(rows), at_once.logits)
    table.commit([session], [(0, 2)])
    assert session.tokens == [1, 2, 5, 7]


@pytest.mark.parametrize(
    ("feed", "why"),
    [
        ({"known": 5}, "known is 5; it must be at least 0 and less than 5"),
        ({"known": -1}, "known is -1"),
        ({"tokens": (1, 2, 6, 6, 7)}, "not those that its session was fed before"),
        ({"parents": (ROOT, 0, 0)}, "not those that its session was fed before"),
        ({"want": (3,)}, "row 3 is wanted, but known is 4"),
    ],
)
def test_known_rows_that_are_not_known_are_refused(feed, why):
    table = target()
    session = table.open(20)
    table.forward([Feed(session, *LEVELS[1])])
    with pytest.raises(ValueError, match=why):
        table.forward([Feed(session, **{"tokens": LEVELS[2][0], "parents": LEVELS[2][1], "known": 4} | feed)])
    table.forward([Feed(session, *LEVELS[2], known=4)])


@pytest.mark.parametrize("spoil", ["commit", "truncate"])
def test_rows_are_known_until_something_is_committed_or_cut_off(spoil):
    table = target()
    session = table.open(20)
    table.forward([Feed(session, (1, 2))])
    table.commit([session], [()])
    table.forward([Feed(session, (3,))])
    if spoil == "commit":
        table.commit([session], [()])
    else:
        table.truncate(session, 1)
    with pytest.raises(ValueError, match="was fed nothing since its last commit"):
        table.forward([Feed(session, (3, 4), (ROOT,), known=1)])
