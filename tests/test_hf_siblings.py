"""Layers that read the same input share one product: the same bits, whatever is called in which order."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from draftproof.models import products
from draftproof.models.bits import LAW_PLAN, measure_rows
from draftproof.models.products import TransposedLinear, quicken, restore
from draftproof.models.siblings import Shared, SiblingLinear, share
from tests.test_hf_products import logits
from tests.tiny import ARCHITECTURES, build


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Other work on the machine must not talk a test out of a product."""
    monkeypatch.setattr(products, "_is_quicker", lambda module, x: True)


SHARED = {
    "llama": {("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")},
    "qwen2": {("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")},
    "qwen3": {("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")},
    "gemma3": {("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")},
    "phi3": set(),
    "gpt2": set(),
    "opt": {("q_proj", "k_proj", "v_proj")},
}


def quick(name):
    """A model with transposed and shared products, and its twin with transposed ones alone."""
    model = build(ARCHITECTURES[name], torch.bfloat16)
    quicken(model)
    twin = copy.deepcopy(model)
    share(model, lambda: logits(model, LAW_PLAN))
    return model, twin


def trio(bias=False):
    """Three transposed layers and what they share."""
    torch.manual_seed(0)
    layers = [nn.Linear(48, out, bias=bias).to(torch.bfloat16) for out in (64, 16, 16)]
    quicken(nn.ModuleList(layers))
    alone = copy.deepcopy(layers)
    for layer in layers:
        assert type(layer) is TransposedLinear
        layer.__class__ = SiblingLinear
    kin = Shared(layers)
    for index, layer in enumerate(layers):
        layer.shared, layer.index = kin, index
    return layers, alone, kin


def rows(count, seed=0):
    return torch.randn(1, count, 48, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_has_the_same_bits_and_the_same_weights(name):
    model, twin = quick(name)
    plan = measure_rows(model)
    np.testing.assert_array_equal(logits(model, plan), logits(twin, plan))
    shown, known = model.state_dict(), twin.state_dict()
    assert list(shown) == list(known)
    assert all(torch.equal(shown[key], known[key]) for key in known)


@pytest.mark.parametrize("name", SHARED)
def test_who_shares_is_seen_in_a_forward(name):
    model, _ = quick(name)
    names = {module: path.rpartition(".")[2] for path, module in model.named_modules()}
    kin = {layer.shared for layer in model.modules() if isinstance(layer, SiblingLinear) and layer.shared is not None}
    assert {tuple(names[layer] for layer in one.layers) for one in kin} == SHARED[name]
    assert len(kin) == len(SHARED[name]) * model.config.num_hidden_layers


def test_what_a_norm_reads_stays_row_by_row():
    """Qwen 3 normalises queries and keys: the order of a sum over a row must not hang on the number of rows."""
    model, _ = quick("qwen3")
    loose = {
        path.rpartition(".")[2]: module.loose for path, module in model.named_modules() if hasattr(module, "loose")
    }
    assert loose == {
        "q_proj": False,
        "k_proj": False,
        "v_proj": True,
        "o_proj": True,
        "gate_proj": True,
        "up_proj": True,
        "down_proj": True,
    }


def test_no_weight_is_held_twice():
    model, twin = quick("llama")
    stored = [
        {w.untyped_storage().data_ptr(): w.untyped_storage().nbytes() for w in m.parameters()} for m in (model, twin)
    ]
    assert sum(stored[0].values()) == sum(stored[1].values())
    assert not any(weight.is_inference() for weight in model.parameters()), "such could not be used outside of it"
    for layer in model.modules():
        if isinstance(layer, SiblingLinear) and layer.shared is not None:
            assert layer.weight.untyped_storage().data_ptr() == layer.shared.weight.untyped_storage().data_ptr()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("loose", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1,), (0, 0, 2), (0, 2, 1), (0, 2, 2), (1, 0, 1, 2, 2)])
@torch.inference_mode()
def test_any_order_of_calls_gives_each_layer_its_own_result(order, loose, bias):
    layers, alone, _ = trio(bias)
    for layer in layers:
        layer.loose = loose
    x, y = rows(4), rows(4, seed=1)
    for index in order:
        assert torch.equal(layers[index](x), alone[index](x))
    for index, (layer, other) in enumerate(zip(layers, alone, strict=True)):
        input = y if index == 1 else x  # a stranger between two siblings
        assert torch.equal(layer(input), other(input))


@torch.inference_mode()
def test_an_equal_input_that_is_another_tensor_is_multiplied_again():
    layers, alone, _ = trio()
    x = rows(4)
    layers[0](x)
    changed = x.clone()
    changed[0, 0] = 1
    assert torch.equal(layers[1](changed), alone[1](changed))


@torch.inference_mode()
def test_nothing_is_remembered_when_all_have_been_called():
    layers, _, kin = trio()
    x = rows(4)
    for layer in layers:
        layer(x)
    assert kin._input is None
    assert kin._result is None


@torch.inference_mode()
def test_more_rows_than_the_kernel_keeps_are_sliced():
    layers, alone, kin = trio()
    kin.most = 8
    x = rows(20)
    for layer, other in zip(layers, alone, strict=True):
        other.most = 8
        assert torch.equal(layer(x), other(x))


@pytest.mark.parametrize("shape", [(48,), (4, 48), (2, 4, 48), (2, 1, 2, 48)])
@torch.inference_mode()
def test_inputs_of_any_shape(shape):
    layers, alone, _ = trio()
    x = torch.randn(shape).to(torch.bfloat16)
    for layer, other in zip(layers, alone, strict=True):
        assert layer(x).shape == (*shape[:-1], layer.out_features)
        assert torch.equal(layer(x), other(x))


@torch.inference_mode()
def test_a_weight_that_was_replaced_is_used():
    layers, _, _ = trio()
    fresh = torch.randn(16, 48).to(torch.bfloat16)
    layers[1].weight = nn.Parameter(fresh, requires_grad=False)
    x = rows(4)
    layers[0](x)
    assert torch.equal(layers[1](x), TransposedLinear.raw(x[0], fresh, None).t()[None])


@torch.inference_mode()
def test_a_weight_that_was_loaded_is_used_by_both():
    layers, _, _ = trio()
    fresh = torch.randn(16, 48).to(torch.bfloat16)
    layers[1].load_state_dict({"weight": fresh})
    x = rows(4)
    layers[0](x)
    assert torch.equal(layers[1](x), TransposedLinear.raw(x[0], fresh, None).t()[None])


@torch.inference_mode()
def test_copies_and_restored_layers_are_ordinary():
    layers, alone, _ = trio()
    copies = copy.deepcopy(nn.ModuleList(layers))
    x = rows(4)
    assert all(torch.equal(one(x), other(x)) for one, other in zip(copies, alone, strict=True))
    restore(layers)
    assert all(type(layer) is nn.Linear and "shared" not in layer.__dict__ for layer in layers)
    assert all(torch.equal(one.weight, other.weight) for one, other in zip(layers, alone, strict=True))


def test_sharing_that_changes_a_bit_is_undone(monkeypatch):
    part = Shared.part
    monkeypatch.setattr(Shared, "part", lambda self, index, input: -part(self, index, input))
    model, _ = quick("llama")
    assert not any(type(module) is SiblingLinear for module in model.modules())
    monkeypatch.undo()
    assert np.isfinite(logits(model, LAW_PLAN)).all()


def test_a_shared_product_that_does_not_keep_its_bits_is_given_up(monkeypatch):
    model, twin = quick("llama")
    calls = iter(range(10**9))
    monkeypatch.setattr(Shared, "product", lambda self, x: torch.full((len(x), self.out_features), next(calls)))
    plan = measure_rows(model)
    assert all(layer.shared is None for layer in model.modules() if isinstance(layer, SiblingLinear))
    np.testing.assert_array_equal(logits(model, plan), logits(twin, plan))
