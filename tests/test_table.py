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
