"""Early exit: the target's own first layers over the target's own cache. They say what a model of so many layers would,
take no memory, and leave no trace in what the target says next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from draftproof.base import ROOT, Feed
from draftproof.models.bits import LAW_PLAN, RowPlan, measure_rows
from draftproof.models.hf import HFTarget
from draftproof.models.products import quicken
from draftproof.models.shallow import first_layers
from draftproof.models.siblings import share
from draftproof.trees import path_to
from tests.tiny import ARCHITECTURES, Architecture, Stock, build, tokens_of

pytestmark = pytest.mark.usefixtures("one_thread")

PLANS = {"unpadded": LAW_PLAN, "padded": RowPlan(multiple=4, most=8, kv_step=16, exact=True, query_multiple=8)}
TREE = (ROOT, ROOT, 0, 1, 1, 4, 2, 5)
LAYERS = 3


@pytest.fixture(params=ARCHITECTURES)
def architecture(request) -> Architecture:
    return ARCHITECTURES[request.param]


@pytest.fixture(params=PLANS)
def plan(request) -> RowPlan:
    return PLANS[request.param]


def shorter(architecture: Architecture, model: PreTrainedModel, layers: int) -> Stock:
    """A model of fewer layers with copies of the same weights."""
    changed: dict[str, Any] = {"num_hidden_layers": layers}
    types = getattr(model.config, "layer_types", None)
    if types:
        changed["layer_types"] = types[:layers]
    small = build(architecture, model.dtype, **changed)
    missing, _ = small.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    return Stock(small)


def read(target: HFTarget, session: Any, tokens: Any) -> None:
    target.forward([Feed(session, tuple(tokens), want=())])
    target.commit([session], [()])


@pytest.mark.parametrize("provided", [False, True], ids=["own buffers", "arena"])
@pytest.mark.parametrize("layers", [1, LAYERS - 1])
def test_it_says_what_a_model_of_so_many_layers_says(architecture, plan, layers, provided):
    model = build(architecture)
    stock = shorter(architecture, model, layers)
    target = HFTarget(model, plan)
    if provided:
        target.provide(2, 128)
    early, text, nodes = target.early(layers), tokens_of(1, 30), tokens_of(2, len(TREE))
    session = target.open(60)
    over = early.open_over(session)
    read(target, session, text[:-3])
    assert early.cached(over) == 27
    chain = early.forward([Feed(over, text[-3:], want=(0, 1, 2))])[0].logits
    np.testing.assert_allclose(chain, stock.logits(text)[-3:], rtol=0, atol=1e-4)
    at_once = early.forward([Feed(over, (*text[-3:], *nodes), TREE)])[0].logits
    first = early.forward([Feed(over, (*text[-3:], *nodes[:2]), TREE[:2])])[0].logits
    rest = early.forward([Feed(over, (*text[-3:], *nodes), TREE, known=5)])[0].logits
    for found in (at_once, np.concatenate([first, rest])):
        for node in range(ROOT, len(TREE)):
            path = [nodes[i] for i in path_to(TREE, node)]
            want = stock.logits([*text, *path])[-1]
            np.testing.assert_allclose(found[node + 1], want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("provided", [False, True], ids=["own buffers", "arena"])
def test_the_target_says_the_same_bits_with_and_without_it(architecture, provided):
    """Rounds of a chain, a tree and a text, each after the first layers were fed something else."""
    model = build(architecture)
    quicken(model)
    share(model, lambda: _few_rows(model))
    plan = measure_rows(model)
    target = HFTarget(model, plan if plan.exact else PLANS["padded"])
    if provided:
        target.provide(4, 256)
    early, text = target.early(2), list(tokens_of(3, 20))
    plain, drafted = target.open(100), target.open(100)
    over = early.open_over(drafted)
    read(target, plain, text[:-1])
    read(target, drafted, text[:-1])
    for parents, path in (((ROOT, 0, 1), (0, 1)), (TREE, (1, 4, 5)), ((), ()), (TREE, ())):
        guess = tokens_of(len(text) + 1, 11)
        early.forward([Feed(over, (text[-1], *guess[:2]), (ROOT, ROOT))])
        early.forward([Feed(over, (text[-1], *guess), (ROOT, ROOT, *range(9)), known=3)])
        nodes = tokens_of(len(text), len(parents))
        one, other = (
            target.forward([Feed(session, (text[-1], *nodes), parents)])[0].logits for session in (plain, drafted)
        )
        np.testing.assert_array_equal(one, other)
        target.commit([plain, drafted], [path, path])
        text += [*(nodes[i] for i in path), len(text) % 60 + 3]
        assert early.cached(over) == target.cached(drafted) == len(text) - 1
    for (keys, values), (others, more) in zip(
        *(_cached(each, len(text) - 1) for each in (plain, drafted)), strict=True
    ):
        assert torch.equal(keys, others)
        assert torch.equal(values, more)
    early.close(over)
    assert target.cached(drafted) == len(text) - 1


def _few_rows(model: PreTrainedModel) -> np.ndarray:
    target = HFTarget(model, LAW_PLAN)
    return target.forward([Feed(target.open(4), (5, 6, 7, 8), want=(0, 1, 2, 3))])[0].logits


def _cached(session: Any, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(keys[:, :length], values[:, :length]) for keys, values in session.cache._layers.values()]


def test_it_takes_no_memory(architecture):
    model = build(architecture)
    target = HFTarget(model, LAW_PLAN)
    early, session = target.early(1), target.open(40)
    known = {weight.data_ptr() for weight in model.parameters()}
    assert {weight.data_ptr() for weight in early.model.parameters()} < known
    buffers = {each.data_ptr() for each in model.buffers()}
    assert {each.data_ptr() for each in early.model.buffers()} <= buffers
    assert sum(1 for _ in model.parameters()) > sum(1 for _ in early.model.parameters())
    over = early.open_over(session)
    read(target, session, tokens_of(1, 10))
    before = {layer: (keys.data_ptr(), values.data_ptr()) for layer, (keys, values) in session.cache._layers.items()}
    early.forward([Feed(over, (5, 6, 7), (ROOT, ROOT))])
    after = {layer: (keys.data_ptr(), values.data_ptr()) for layer, (keys, values) in session.cache._layers.items()}
    assert before == after
    assert len(after) == LAYERS
    assert early.plan is target.plan
    assert early._one_at_a_time is target._one_at_a_time
    assert early.kv_bytes_per_token * LAYERS == target.kv_bytes_per_token


def test_the_model_itself_stays_whole(architecture):
    model = build(architecture)
    stock, target, text = Stock(model), HFTarget(model, LAW_PLAN), tokens_of(4, 12)
    early = target.early(1)
    assert model.config.num_hidden_layers == LAYERS
    [scores] = target.forward([Feed(target.open(20), text)])
    np.testing.assert_allclose(scores.logits, stock.logits(text)[-1:], rtol=0, atol=1e-4)
    own = early.open(20)  # a session of its own is that of any model
    early.forward([Feed(own, text)])
    early.commit([own], [()])
    assert early.cached(own) == len(text)
    assert list(own.cache._layers) == [0]


@pytest.mark.parametrize("layers", [-1, 0, LAYERS, 100])
def test_fewer_than_one_layer_and_all_of_them_are_refused(layers):
    target = HFTarget(build(ARCHITECTURES["llama"]), LAW_PLAN)
    with pytest.raises(ValueError, match=rf"early exit: layers is {layers}; it must be in 1 \.\. 2"):
        target.early(layers)


def test_a_model_that_does_not_stop_where_it_is_cut_is_refused_by_name(monkeypatch):
    """One that runs its layers from another list, and one whose layers are in no list."""
    model = build(ARCHITECTURES["llama"])
    layers = tuple(model.model.layers)
    monkeypatch.setattr(type(model.model), "forward", _over(layers, type(model.model).forward))
    with pytest.raises(
        ValueError, match=r"LlamaForCausalLM \(model type llama\) cannot be cut: layers \[0, 1, 2\] attend"
    ):
        first_layers(model, 1)
    model.model.layers = torch.nn.Sequential(*layers)
    with pytest.raises(ValueError, match="cannot be cut: 0 lists of 3 layers"):
        first_layers(model, 1)


def _over(layers: Any, forward: Any) -> Any:
    def run(self, *args, **kwargs):
        known, self._modules["layers"] = self._modules["layers"], torch.nn.ModuleList(layers)
        try:
            return forward(self, *args, **kwargs)
        finally:
            self._modules["layers"] = known

    return run


def test_a_session_over_another_leaves_it_as_it_is():
    target = HFTarget(build(ARCHITECTURES["llama"]), LAW_PLAN)
    early, session = target.early(2), target.open(20)
    over = early.open_over(session)
    read(target, session, (3, 4, 5))
    early.forward([Feed(over, (6,))])
    for spoil in (
        lambda: early.commit([over], [()]),
        lambda: early.truncate(over, 1),
        lambda: early.adopt(over, session, 1),
    ):
        with pytest.raises(ValueError, match="this session reads what another has cached"):
            spoil()
    target.forward([Feed(session, (6, 7), (ROOT,))])
    with pytest.raises(ValueError, match="known is 1, but its session was fed nothing since its last commit"):
        early.forward([Feed(over, (6, 7), (ROOT,), known=1)])  # the target has written there
    early.forward([Feed(over, (6,))])
    with pytest.raises(ValueError, match="has been written over since"):
        target.commit([session], [(0,)])
