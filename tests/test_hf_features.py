"""What layers say: the states that enter them, whatever the forwards that computed them looked like."""

from __future__ import annotations

import pytest
import torch

from draftproof.base import ROOT, Feed
from draftproof.models.bits import LAW_PLAN, RowPlan, measure_rows
from draftproof.models.features import read_features
from draftproof.models.hf import HFTarget
from draftproof.models.products import quicken
from tests.tiny import ARCHITECTURES, Architecture, Stock, build, tokens_of

pytestmark = pytest.mark.usefixtures("one_thread")

PLANS = {"unpadded": LAW_PLAN, "padded": RowPlan(multiple=4, most=8, kv_step=16, exact=True, query_multiple=8)}
LAYERS = (0, 2)
TEXT = tokens_of(3, 21)


@pytest.fixture(params=ARCHITECTURES)
def architecture(request) -> Architecture:
    return ARCHITECTURES[request.param]


@pytest.fixture(params=PLANS)
def plan(request) -> RowPlan:
    return PLANS[request.param]


@torch.inference_mode()
def stock_states(model, tokens) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the stock model: what enters LAYERS, side by side, and what the head reads."""
    out = Stock(model).model(input_ids=torch.tensor([list(tokens)]), use_cache=False, output_hidden_states=True)
    return torch.cat([out.hidden_states[layer][0] for layer in LAYERS], -1), out.hidden_states[-1][0]


def read(target: HFTarget, session, tokens) -> None:
    target.forward([Feed(session, tuple(tokens), want=())])
    target.commit([session], [()])


def test_they_are_those_of_the_stock_model(architecture, plan):
    model = build(architecture)
    states, last = stock_states(model, TEXT)
    [(found, found_last)] = read_features(HFTarget(model, plan), [TEXT], LAYERS)
    torch.testing.assert_close(found, states, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found_last, last, rtol=1e-4, atol=1e-4)


def test_pieces_trees_and_mates_say_the_same(architecture, plan):
    """A prompt in two pieces, then a tree, of which one path is kept, beside two other requests."""
    model = build(architecture)
    states, _ = stock_states(model, TEXT)
    target = HFTarget(model, plan)
    session, mate, quiet = (target.open(40) for _ in range(3))
    heard, others = target.follow(session, LAYERS), target.follow(mate, LAYERS)
    feeds = [Feed(session, TEXT[:7], want=()), Feed(quiet, TEXT[:3], want=()), Feed(mate, TEXT[:9], want=())]
    target.forward(feeds)
    target.commit([session, mate, quiet], [()] * 3)
    read(target, session, TEXT[7:12])
    wrong = (TEXT[13] + 1) % 60
    tree = Feed(session, (TEXT[12], wrong, TEXT[13], TEXT[14], wrong, TEXT[15]), (ROOT, ROOT, 1, 1, 2))
    target.forward([Feed(mate, TEXT[9:10]), tree])
    target.commit([mate, session], [(), (1, 2, 4)])
    start, found = heard.take()
    assert start == 0
    torch.testing.assert_close(found, states[:16], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(others.take()[1], states[:10], rtol=1e-4, atol=1e-4)
    assert quiet.heard is None
    read(target, session, TEXT[16:])
    start, found = heard.take()
    assert start == 16
    torch.testing.assert_close(found, states[16:], rtol=1e-4, atol=1e-4)
    assert heard.take() == (21, None)


def test_a_tree_that_grows_says_them_too():
    model = build(ARCHITECTURES["llama"])
    states, _ = stock_states(model, TEXT)
    target = HFTarget(model, LAW_PLAN)
    session = target.open(40)
    heard = target.follow(session, LAYERS)
    read(target, session, TEXT[:5])
    tokens = (TEXT[5], 9, TEXT[6])
    target.forward([Feed(session, tokens, (ROOT, ROOT))])
    target.forward([Feed(session, (*tokens, 8, TEXT[7]), (ROOT, ROOT, 0, 1), known=3)])
    target.commit([session], [(1, 3)])
    torch.testing.assert_close(heard.take()[1], states[:8], rtol=1e-4, atol=1e-4)


def test_where_bits_are_kept_a_tree_says_them_bit_for_bit():
    model = build(ARCHITECTURES["llama"], torch.bfloat16)
    quicken(model)
    target = HFTarget(model, measure_rows(model))
    if not target.plan.exact:
        pytest.skip("this machine keeps no bits")
    [(states, _)] = read_features(target, [TEXT], LAYERS)
    session = target.open(40)
    heard = target.follow(session, LAYERS)
    read(target, session, TEXT[:5])
    target.forward([Feed(session, (TEXT[5], 9, TEXT[6], 8, TEXT[7]), (ROOT, ROOT, 0, 1))])
    target.commit([session], [(1, 3)])
    assert torch.equal(heard.take()[1], states[:8])


def test_what_is_cut_off_is_forgotten_and_what_is_adopted_was_never_heard():
    target = HFTarget(build(ARCHITECTURES["llama"]), LAW_PLAN)
    donor, session = target.open(40), target.open(40)
    first, heard = target.follow(donor, LAYERS), target.follow(session, LAYERS)
    read(target, donor, TEXT[:10])
    target.truncate(donor, 6)
    read(target, donor, TEXT[6:8])
    assert len(first.take()[1]) == 8
    target.adopt(session, donor, 7)
    read(target, session, TEXT[7:9])
    start, states = heard.take()
    assert (start, len(states)) == (7, 2)
    target.truncate(session, 3)
    read(target, session, TEXT[3:5])
    assert heard.take()[0] == 3


def fails(module, args, result) -> None:
    raise RuntimeError("broken")


def test_nothing_is_kept_of_a_forward_that_failed_or_of_another_caller():
    target = HFTarget(build(ARCHITECTURES["llama"]), LAW_PLAN)
    session = target.open(40)
    heard = target.follow(session, LAYERS)
    hook = target.model.model.layers[2].register_forward_hook(fails)
    with pytest.raises(RuntimeError, match="broken"):
        target.forward([Feed(session, TEXT)])
    hook.remove()
    read(target, target.open(40), TEXT)
    assert heard.take() == (0, None)
    assert all(each is None for each in heard.ear._said)


def test_of_refused_nodes_nothing_stays_in_memory():
    target = HFTarget(build(ARCHITECTURES["llama"]), LAW_PLAN)
    session = target.open(40)
    heard = target.follow(session, LAYERS)
    target.forward([Feed(session, TEXT[:9], tuple(range(-1, 7)))])
    target.commit([session], [()])
    [part] = heard.parts
    assert part.untyped_storage().nbytes() == part.nbytes


def test_who_follows_late_hears_what_comes():
    target = HFTarget(build(ARCHITECTURES["llama"]), LAW_PLAN)
    session = target.open(40)
    target.forward([Feed(session, TEXT[:5], want=())])
    heard = target.follow(session, LAYERS)
    target.commit([session], [()])
    read(target, session, TEXT[5:7])
    start, states = heard.take()
    assert (start, len(states)) == (5, 2)
    with pytest.raises(ValueError, match="followed already"):
        target.follow(session, LAYERS)


def test_layers_that_are_not_there_are_named():
    target = HFTarget(build(ARCHITECTURES["llama"]), LAW_PLAN)
    with pytest.raises(ValueError, match=r"layers \[0, 7\] are not allowed; they must be in 0 .. 2"):
        target.follow(target.open(4), (0, 7))
