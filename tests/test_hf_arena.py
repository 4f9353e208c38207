"""Requests whose caches are neighbours share calls of attention; memory is taken and given back by the page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from draftproof.base import ROOT, Feed
from draftproof.models import hf
from draftproof.models.arena import PAGE, KVArena
from draftproof.models.bits import LAW_PLAN, RowPlan
from draftproof.models.hf import HFTarget
from draftproof.models.layout import Layout, Span
from draftproof.models.sizes import of_config
from draftproof.models.together import _cheapest
from tests.tiny import ARCHITECTURES, CONTEXT, Stock, build, tokens_of

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not KVArena.works(torch.device("cpu")), reason="only Linux takes memory by the page"),
]
PADDED = RowPlan(multiple=4, most=64, kv_step=16, exact=True, query_multiple=8, query_most=32)


@pytest.mark.parametrize("plan", [LAW_PLAN, PADDED], ids=["unpadded", "padded"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_neighbours_of_any_length_and_a_tree_and_a_prompt_among_them(name, plan, monkeypatch):
    """Chains of 1 to 9 rows, more sessions than rows of the arena, rows that come free in the middle."""
    model = build(ARCHITECTURES[name], torch.float64)
    stock, target = Stock(model), HFTarget(model, plan)
    target.provide(6, CONTEXT - 64)
    calls = _count_calls(monkeypatch)
    rng = np.random.default_rng(0)
    texts = [list(tokens_of(i, 200)) for i in range(8)]
    sessions = [target.open(200) for _ in texts]
    for round_ in range(6):
        if round_ == 3:  # one leaves, another takes its row
            target.close(sessions[2])
            sessions[2] = target.open(200)
        feeds, wants = [], []
        for i in rng.permutation(len(texts)):
            at = target.cached(sessions[i])
            count = 60 if at == 0 and i == 4 else int(rng.integers(1, 10))
            feeds.append(Feed(sessions[i], tuple(texts[i][at : at + count]), want=tuple(range(count))))
            wants.append((i, at, count))
        tree = Feed(sessions[7], (*feeds[0].tokens[:0], texts[7][target.cached(sessions[7])], 5, 6, 7), (ROOT, ROOT, 0))
        feeds = [tree if feed.session is sessions[7] else feed for feed in feeds]
        for (i, at, count), scores in zip(wants, target.forward(feeds), strict=True):
            rows = stock.logits([*texts[i][:at], *texts[i][at : at + count]])[at:]
            if i == 7:
                rows = rows[:1]
            np.testing.assert_allclose(scores.logits[: len(rows)], rows, rtol=0, atol=1e-6)
        target.commit(sessions, [()] * len(sessions))
    assert any(members > 2 for members in calls)
    assert 1 in calls


def _count_calls(monkeypatch) -> list[int]:
    """How many requests each call of attention was for."""
    calls, attend = [], hf.attend
    monkeypatch.setattr(hf, "attend", lambda q, *other: calls.append(len(q)) or attend(q, *other))
    return calls


def test_requests_that_may_not_share_calls_do_not(monkeypatch):
    calls = _count_calls(monkeypatch)
    target = HFTarget(build(ARCHITECTURES["llama"]), replace(PADDED, together=False))
    target.provide(3, 100)
    sessions = [target.open(50) for _ in range(3)]
    target.forward([Feed(session, (3, 4)) for session in sessions])
    assert set(calls) == {1}


def test_memory_is_taken_as_texts_grow_and_given_back_at_once():
    target = HFTarget(build(ARCHITECTURES["llama"], head_dim=32), PADDED)
    target.provide(4, 100_000)
    arena = target._arena
    assert isinstance(arena, KVArena)
    assert arena.resident() == 0
    sessions = [target.open(2000) for _ in range(4)]
    assert arena.resident() == 0
    per_page = PAGE // (32 * 4)
    for length in (1, per_page, per_page + 1, 5 * per_page):
        for session in sessions:
            fed = length - target.cached(session)
            target.forward([Feed(session, tokens_of(1, fed), want=())])
            target.commit([session], [()])
        pages = 3 * 2 * 2 * -(-length // per_page)  # layers, keys and values, heads
        assert 4 * pages * PAGE <= arena.resident() <= 4 * pages * PAGE + PAGE * 24
    before = arena.resident()
    target.close(sessions[1])
    assert arena.resident() == before * 3 // 4
    target.close(sessions[1])
    del sessions, session
    assert arena.resident() == 0
    assert [target.open(10).cache.row for _ in range(1)] == [0], "rows of dropped sessions are free again"


def test_a_row_that_comes_back_is_empty():
    """What was there could be NaN, and a masked NaN is still one."""
    model = build(ARCHITECTURES["llama"])
    target, stock = HFTarget(model, PADDED), Stock(model)
    target.provide(2, 64)
    first = target.open(64)
    target.forward([Feed(first, tokens_of(1, 40), want=())])
    keys, values = first.cache.arena.layer(1)
    keys[first.cache.row, :, :30] = values[first.cache.row, :, :30] = float("nan")
    target.close(first)
    text = tokens_of(2, 9)
    again, mate = target.open(64), target.open(64)
    [scores, _] = target.forward([Feed(again, text), Feed(mate, text)])
    np.testing.assert_allclose(scores.logits, stock.logits(text)[-1:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("provided", [False, True])
def test_a_session_may_begin_where_another_was(provided):
    model = build(ARCHITECTURES["gemma3"])
    target = HFTarget(model, PADDED)
    if provided:
        target.provide(3, 128)
    text = tokens_of(1, 60)
    first = target.open(100)
    target.forward([Feed(first, text[:40], want=())])
    target.commit([first], [()])
    kept = target.keep(first)
    assert kept.cache.row is None
    assert sum(x.nbytes for pair in kept.cache._layers.values() for x in pair) == 40 * target.kv_bytes_per_token
    target.close(first)
    known = target.open(100)
    want = target.forward([Feed(known, text, want=(59,))])[0].logits
    second = target.open(100)
    target.adopt(second, kept, 33)
    assert target.cached(second) == 33
    got = target.forward([Feed(second, text[33:], want=(26,))])[0].logits
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
    target.commit([second, known], [(), ()])
    assert target.check(known, text) is None


def test_what_was_only_written_beside_others_can_be_kept_compared_and_compacted():
    model = build(ARCHITECTURES["llama"], torch.float64)
    target, stock = HFTarget(model, PADDED), Stock(model)
    target.provide(3, 100)
    text, mate = tokens_of(1, 30), tokens_of(2, 30)
    one, two = target.open(60), target.open(60)
    for at in range(0, 20, 4):
        target.forward([Feed(one, text[at : at + 4]), Feed(two, mate[at : at + 4])])
        target.commit([one, two], [(), ()])
    assert target.check(one, text) is None
    assert target.check(one, mate) is not None
    kept = target.keep(one)
    again = target.open(60)
    target.adopt(again, kept, 20)
    assert target.check(again, text) is None
    [scores] = target.forward([Feed(again, (text[20], 5, 6, 7), (ROOT, ROOT, 1))])
    target.commit([again], [(1, 2)])
    assert target.check(again, (*text[:21], 6, 7)) is None
    np.testing.assert_allclose(scores.logits[3], stock.logits([*text[:21], 6, 7])[-1], atol=1e-6)


def test_a_text_longer_than_the_arenas_rows_has_buffers_of_its_own():
    target = HFTarget(build(ARCHITECTURES["llama"]), PADDED)
    target.provide(3, 64)
    assert target.open(64).cache.row == 0
    long = target.open(65)
    assert long.cache.row is None
    target.forward([Feed(long, tokens_of(1, 200), want=())])


def test_the_check_sees_a_wrong_cache():
    target = HFTarget(build(ARCHITECTURES["llama"], torch.float64), PADDED)
    target.provide(3, 64)
    session, text = target.open(60), tokens_of(1, 30)
    target.forward([Feed(session, text, want=())])
    target.commit([session], [()])
    assert target.check(session, text) is None
    assert "layer 0" in target.check(session, [*text[:-1], 3 if text[-1] != 3 else 4])
    assert target.check(session, text[:20]) == "30 tokens are cached and 20 committed"
    session.cache._layers[2][1][0, 7, 0] += 1e-9
    assert "layer 2" in target.check(session, text)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_a_token_takes_is_known_from_the_config_alone(name):
    model = build(ARCHITECTURES[name])
    assert of_config(model.config.get_text_config()) * 4 == HFTarget(model, LAW_PLAN).kv_bytes_per_token


def test_runs_are_cut_where_looking_in_vain_costs_more_than_a_call():
    target = HFTarget(build(ARCHITECTURES["llama"]), PADDED)
    target.provide(12, 4000)

    def spans(lengths, skip=()):
        out, sessions = [], [target.open(100) for _ in lengths]
        for i, (session, length) in enumerate(zip(sessions, lengths, strict=True)):
            session.cache.length = length
            if i not in skip:
                out.append(Span(Layout(Feed(session, (3,))), 0, 1, 0, 4, -(-(length + 1) // 16) * 16))
        return [[span.layout.start for span in run] for run in _cheapest(out)]

    assert spans([10, 20, 30]) == [[10, 20, 30]]
    assert spans([10, 20, 3900, 30]) == [[10, 20], [3900], [30]]
    assert spans([10, 20, 30, 40], skip=(1,)) == [[10], [30, 40]]


def test_rows_of_two_arenas_are_no_neighbours():
    model = build(ARCHITECTURES["llama"], torch.float64)
    target, stock, text = HFTarget(model, PADDED), Stock(model), tokens_of(1, 12)
    sessions = []
    for _ in range(2):
        target.provide(2, 64)
        sessions += [target.open(64), target.open(64)]
    assert [session.cache.row for session in sessions] == [0, 1, 0, 1]
    for at in (0, 4, 8):
        found = target.forward([Feed(session, text[at : at + 4]) for session in sessions])
        target.commit(sessions, [()] * 4)
        for scores in found:
            np.testing.assert_allclose(scores.logits[-1], stock.logits(text[: at + 4])[-1], rtol=0, atol=1e-6)


def test_where_there_is_no_arena_buffers_grow_with_the_text(monkeypatch):
    monkeypatch.setattr(KVArena, "works", staticmethod(lambda device: False))
    target = HFTarget(build(ARCHITECTURES["llama"]), PADDED)
    target.provide(4, 1000)
    assert target.kv_cost(1) == 64 * target.kv_bytes_per_token
    session = target.open(1000)
    for _ in range(3):
        target.forward([Feed(session, tokens_of(1, 10), want=())])
        target.commit([session], [()])
        assert session.cache._layers[0][0].shape[1] == -(-session.cache.length // 16) * 16
    target.close(session)
    assert not session.cache._layers
