"""A head at work says what its definition says, entry by entry, however it is fed; and keeps step with its target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from draftproof.base import ROOT, Feed
from draftproof.models.bits import LAW_PLAN
from draftproof.models.eagle import EagleHead
from draftproof.models.eagle_runner import EagleRunner
from draftproof.models.features import read_features
from draftproof.models.hf import HFTarget
from draftproof.trees import path_to
from tests.heads import LAYERS, layer_of, make_head
from tests.tiny import randomise

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = tuple(np.random.default_rng(5).integers(0, 257, 40).tolist())
TREE = (ROOT, ROOT, 0, 1, 1, 4, 2, 5)


@pytest.fixture(scope="module")
def target() -> HFTarget:
    model = LlamaForCausalLM(layer_of(num_hidden_layers=LAYERS)).eval()
    return HFTarget(randomise(model), LAW_PLAN)


@pytest.fixture(scope="module", params=[True, False], ids=["normed residual", "raw residual"])
def runner(request, target) -> EagleRunner:
    head = make_head(dtype=torch.float32)
    head.config = replace(head.config, norm_before_residual=request.param)
    return EagleRunner(target, head)


@torch.no_grad()
def by_definition(runner: EagleRunner, text: Sequence[int], guessed: Sequence[int] = ()) -> np.ndarray:
    """Logits [head's ids] after `text` and then `guessed`, one entry after the other, with the plainest attention."""
    head: EagleHead = runner.head
    [(states, _)] = read_features(runner._target, [text[:-1]], head.config.feature_layers)
    embeds = runner._target.model.get_input_embeddings().weight
    below, said, keys, values = list(head.fuse(states)), None, [], []
    for at, token in enumerate([*text[1:], *guessed]):
        hidden = below[at] if at < len(below) else said
        q, k, v, residual = head.attended(
            embeds[token][None, None], hidden[None, None], head.rotations(torch.tensor([at]))
        )
        keys.append(k[0, :, 0])
        values.append(v[0, :, 0])
        group = q.shape[1] // k.shape[1]
        all_keys = torch.stack(keys, 1).repeat_interleave(group, 0)
        weights = (all_keys @ q[0, :, 0, :, None] / q.shape[-1] ** 0.5).softmax(1)
        mixed = (weights * torch.stack(values, 1).repeat_interleave(group, 0)).sum(1)
        said = head.finished(mixed[None, None], residual)[0, 0]
    return head.logits(said).numpy()


def started(runner: EagleRunner, read: int) -> tuple[Any, Any]:
    """The target's session, which has read so many tokens of TEXT, and the head's."""
    session = runner._target.open(80)
    own = runner.open_over(session)
    advance(runner, session, TEXT[:read])
    return session, own


def advance(runner: EagleRunner, session: Any, tokens: Sequence[int]) -> None:
    runner._target.forward([Feed(session, tuple(tokens), want=())])
    runner._target.commit([session], [()])


def same(found: np.ndarray, runner: EagleRunner, expected: np.ndarray) -> None:
    """Rows over the target's vocabulary: the head's ids as expected, no others."""
    np.testing.assert_allclose(found[runner._ids], expected, rtol=1e-3, atol=1e-3)
    others = np.delete(found, runner._ids)
    assert np.all(others == -np.inf)


def test_a_text_in_pieces_and_then_a_tree_at_once(runner):
    _, own = started(runner, 12)
    assert runner.hear([own]) == [12]
    [scores] = runner.forward([Feed(own, TEXT[1:9], want=(3, 7))])
    same(scores.logits[0], runner, by_definition(runner, TEXT[:5]))
    runner.commit([own], [()])
    assert runner.cached(own) == 8
    nodes = tuple((7 * i + 3) % 257 for i in range(len(TREE)))
    [scores] = runner.forward([Feed(own, (*TEXT[9:13], *nodes), TREE)])
    same(scores.logits[0], runner, by_definition(runner, TEXT[:13]))
    for node in range(len(TREE)):
        path = [nodes[each] for each in path_to(TREE, node)]
        same(scores.logits[1 + node], runner, by_definition(runner, TEXT[:13], path))
    runner.commit([own], [()])
    assert runner.cached(own) == 12
    assert runner.check(own, TEXT[:13]) is None


def test_trees_of_two_requests_that_grow_level_by_level(runner):
    (_, one), (_, two) = started(runner, 9), started(runner, 4)
    runner.hear([one, two])
    tokens = {id(one): list(TEXT[1:10]), id(two): list(TEXT[1:5])}
    levels = ((ROOT, ROOT), (0, 1, 1), (3,))
    parents: tuple[int, ...] = ()
    for level in ((), *levels):
        feeds = []
        for own in (one, two):
            known = len(tokens[id(own)]) if level else 0
            tokens[id(own)] += [(11 * len(tokens[id(own)]) + node) % 257 for node in level]
            rows = tuple(range(max(known, len(tokens[id(own)]) - max(len(level), 1)), len(tokens[id(own)])))
            feeds.append(Feed(own, tuple(tokens[id(own)]), parents + level, rows, known))
        parents += level
        scores = runner.forward(feeds)
        for own, found, read in zip((one, two), scores, (9, 4), strict=True):
            nodes = tokens[id(own)][read:]
            for row, node in zip(found.logits, range(len(parents) - len(level), len(parents)) or [ROOT], strict=True):
                path = [nodes[each] for each in path_to(parents, node)]
                same(row, runner, by_definition(runner, TEXT[: read + 1], path))


def test_after_a_draft_the_targets_states_take_the_place_of_guesses(runner):
    session, own = started(runner, 6)
    runner.hear([own])
    runner.forward([Feed(own, (*TEXT[1:7], *TEXT[7:9]), (ROOT, 0))])
    runner.commit([own], [()])
    advance(runner, session, TEXT[6:9])
    assert runner.hear([own]) == [9]
    [scores] = runner.forward([Feed(own, TEXT[7:10])])
    same(scores.logits[0], runner, by_definition(runner, TEXT[:10]))
    runner.commit([own], [()])
    assert runner.check(own, TEXT[:10]) is None


def test_a_copy_begins_another_text(runner):
    session, own = started(runner, 12)
    runner.hear([own])
    runner.forward([Feed(own, TEXT[1:11], want=())])
    runner.commit([own], [()])
    kept = runner.keep(own)
    runner.close(own)
    other = runner._target.open(80)
    mine = runner.open_over(other)
    kept_target = runner._target.keep(session)
    runner._target.adopt(other, kept_target, 8)
    runner.adopt(mine, kept, 8)
    text = (*TEXT[:8], 3, 1, 4)
    advance(runner, other, text[8:10])
    assert runner.hear([mine]) == [10]
    assert runner.cached(mine) == 7
    [scores] = runner.forward([Feed(mine, text[8:])])
    same(scores.logits[0], runner, by_definition(runner, text))
    runner.commit([mine], [()])
    assert runner.check(mine, text) is None


def test_without_a_copy_it_begins_where_it_can_hear(runner):
    """What somebody else's session computed was not heard: the head then knows the text's end alone."""
    session, _ = started(runner, 12)
    other = runner._target.open(80)
    mine = runner.open_over(other)
    runner._target.adopt(other, session, 8)
    assert runner.hear([mine]) == [8]
    assert runner.cached(mine) == 8
    advance(runner, other, TEXT[8:12])
    assert runner.hear([mine]) == [12]
    [scores] = runner.forward([Feed(mine, TEXT[9:13])])
    assert np.isfinite(scores.logits[0, runner._ids]).all()
    runner.commit([mine], [()])
    assert runner.check(mine, TEXT[:13]) is None


def test_a_text_that_is_cut_is_gone_on_with(runner):
    session, own = started(runner, 12)
    runner.hear([own])
    runner.forward([Feed(own, TEXT[1:13], want=())])
    runner.commit([own], [()])
    runner._target.truncate(session, 7)
    text = (*TEXT[:7], 5, 6, 7)
    advance(runner, session, text[7:9])
    assert runner.hear([own]) == [9]
    assert runner.cached(own) == 6
    [scores] = runner.forward([Feed(own, text[7:])])
    same(scores.logits[0], runner, by_definition(runner, text))


def test_a_donor_that_knows_less_gives_nothing(runner):
    _, donor = started(runner, 6)
    other = runner._target.open(80)
    mine = runner.open_over(other)
    runner.adopt(mine, donor, 8)
    assert (mine.start, mine.told, mine.length) == (8, 0, 0)


def test_what_the_target_has_not_read_cannot_be_fed(runner):
    _, own = started(runner, 3)
    runner.hear([own])
    with pytest.raises(ValueError, match="4 committed tokens, and the target has not read so far"):
        runner.forward([Feed(own, TEXT[1:5])])


@pytest.mark.parametrize("what", ["fused", "keys", "values"])
def test_check_finds_what_is_wrong(runner, what):
    _, own = started(runner, 12)
    runner.hear([own])
    runner.forward([Feed(own, TEXT[1:13])])
    runner.commit([own], [()])
    assert runner.check(own, TEXT[:13]) is None
    with torch.inference_mode():
        getattr(own, what)[..., 5, :] = getattr(own, what)[..., 4, :]
    assert what.replace("fused", "states") in runner.check(own, TEXT[:13])


def test_it_finds_a_text_that_is_not_the_sessions(runner):
    _, own = started(runner, 12)
    runner.hear([own])
    assert "states are not those of a replay" in runner.check(own, TEXT[1:14])
    assert "12 tokens" in runner.check(own, TEXT[:5])


def test_a_head_in_bfloat16_turns_far_tokens_as_far_as_one_in_float32():
    """Cast with the head, the frequencies were off by so much that the turns of token 999 were others."""
    head, far = make_head(dtype=torch.float32), torch.tensor([999])
    wide = head.rotations(far)
    narrow = head.to(torch.bfloat16).rotations(far)
    assert all((a - b).abs().max() < 0.01 for a, b in zip(wide, narrow, strict=True))
