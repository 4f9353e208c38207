"""Quicker products: the same numbers, the same module, no weight held twice, and a way back."""

import copy
import gc
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from draftproof.base import Feed
from draftproof.models import products
from draftproof.models.bits import measure_rows
from draftproof.models.hf import HFTarget
from draftproof.models.products import PackedLinear, SlicedLinear, TransposedLinear, quicken, restore
from tests.tiny import ARCHITECTURES, build, tokens_of

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@pytest.fixture(params=DTYPES)
def dtype(request):
    return DTYPES[request.param]


def layers_of(model):
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def logits(model, plan):
    target, text = HFTarget(model, plan), tokens_of(1, 40)
    session = target.open(len(text))
    [scores] = target.forward([Feed(session, text, want=tuple(range(len(text))))])
    return scores.logits


def small(dtype, **kwargs):
    torch.manual_seed(0)
    return nn.Linear(48, 64, **kwargs).to(dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [SlicedLinear, TransposedLinear, PackedLinear])
@torch.inference_mode()
def test_a_product_is_right_and_a_slice_has_its_bits(kind, bias, dtype):
    if kind is PackedLinear and (dtype is not torch.float32 or not torch.backends.mkldnn.is_available()):
        pytest.skip("only float32 is packed")
    layer, x = small(dtype, bias=bias), torch.randn(2, 10, 48).to(dtype)
    exact = x.double() @ layer.weight.double().T + (layer.bias.double() if bias else 0)
    products._become(layer, kind)
    y = layer(x)
    assert y.shape == (2, 10, 64)
    assert y.is_contiguous()
    np.testing.assert_allclose(y.double(), exact, atol=0.02 if dtype is torch.bfloat16 else 1e-5)
    layer.most = 4
    assert torch.equal(layer(x[:, :4]), torch.cat([layer.product(rows)[None] for rows in x[:, :4]]))
    assert torch.equal(layer(x)[0, :4], layer.product(x[0, :4]))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_bfloat16_model_gives_the_same_bits_and_a_float32_one_nearly(name, dtype):
    model = build(ARCHITECTURES[name], dtype)
    plain = logits(copy.deepcopy(model), plan := measure_rows(model))
    quicken(model)
    if dtype is torch.bfloat16:
        np.testing.assert_array_equal(logits(model, plan), plain)
    else:
        np.testing.assert_allclose(logits(model, plan), plain, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "gpt2"])
def test_restored_it_is_the_model_it_was(name, dtype):
    model = build(ARCHITECTURES[name], dtype, tie_word_embeddings=True)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    done = quicken(model)
    assert done or name == "gpt2"
    shown = model.state_dict()
    assert list(before) == list(shown) or sorted(before) == sorted(shown)
    assert all(torch.equal(value, shown[key]) for key, value in before.items())
    restore(done)
    assert {type(layer) for layer in layers_of(model)} <= {nn.Linear}
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items())
    assert {name for name, _ in model.named_parameters()} | {"lm_head.weight"} == set(before)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_a_tied_head_stays_tied(dtype):
    model = build(ARCHITECTURES["llama"], dtype, tie_word_embeddings=True)
    quicken(model)
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    assert head.weight is table.weight
    assert isinstance(head, SlicedLinear)
    assert not isinstance(head, PackedLinear)


@needs_onednn
def test_the_unpacked_weight_is_dropped():
    model = build(ARCHITECTURES["llama"])
    kept = [weakref.ref(layer.weight) for layer in layers_of(model)]
    quicken(model)
    gc.collect()
    assert [ref() for ref in kept] == [None] * len(kept)
    assert all(isinstance(layer, PackedLinear) and not layer._parameters.get("weight") for layer in layers_of(model))


class _Own(nn.Linear):
    pass


def _hooked(layer):
    layer.register_forward_hook(lambda module, args, out: out)
    return layer


def _wrapped(layer):
    layer.forward = layer.forward
    return layer


LEFT = {
    "another class": lambda dtype: _Own(48, 64).to(dtype),
    "a hook": lambda dtype: _hooked(small(dtype)),
    "a wrapped forward": lambda dtype: _wrapped(small(dtype)),
    "parametrised": lambda dtype: nn.utils.parametrizations.weight_norm(small(dtype)),
    "float64": lambda dtype: small(torch.float64),
    "float16": lambda dtype: small(torch.float16),
    "another device": lambda dtype: small(dtype).to("meta"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_exchanged_is_left_alone(name, dtype):
    layer = LEFT[name](dtype)
    kind = type(layer)
    assert quicken(nn.Sequential(layer)) == []
    assert type(layer) is kind


@pytest.mark.parametrize("fault", ["wrong", "absent"])
def test_a_product_that_is_wrong_or_absent_is_not_used(monkeypatch, fault, dtype):
    def product(self, x):
        if fault == "absent":
            raise RuntimeError("no such kernel")
        return F.linear(x, self.weight, self.bias) * (1 + 2**-6)

    monkeypatch.setattr(TransposedLinear, "product", product)
    monkeypatch.setattr(PackedLinear, "product", product)
    layer, x = small(dtype), torch.randn(8, 48).to(dtype)
    weight, before = layer.weight, layer(x)
    quicken(nn.Sequential(layer))
    assert type(layer) is SlicedLinear
    assert layer.weight is weight
    assert torch.equal(layer(x), before)


def test_a_weight_at_an_odd_address_is_moved_and_keeps_its_numbers():
    layer = small(torch.bfloat16)
    odd = torch.empty(48 * 64 + 4, dtype=torch.bfloat16)[4:].view(64, 48).copy_(layer.weight.detach())
    layer.weight = nn.Parameter(odd, requires_grad=False)
    parameter, numbers = layer.weight, layer.weight.detach().clone()
    quicken(nn.Sequential(layer))
    assert layer.weight is parameter
    assert layer.weight.data_ptr() % 64 == 0
    assert torch.equal(layer.weight, numbers)


@needs_onednn
def test_a_packed_layer_can_be_copied_cast_loaded_and_differentiated():
    layer = small(torch.float32)
    weight, model = layer.weight.detach().clone(), nn.Sequential(layer)
    quicken(model)
    twin = copy.deepcopy(model)
    assert type(layer) is type(twin[0]) is PackedLinear
    assert torch.equal(twin[0].weight, weight)
    x = torch.randn(3, 48, requires_grad=True)
    model(x).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(3, -1))
    model.load_state_dict({"0.weight": 2 * weight, "0.bias": layer.bias.detach().clone()})
    assert torch.equal(layer.weight, 2 * weight)
    assert torch.equal(twin.double()[0].weight, weight.double())
    assert type(twin[0]) is nn.Linear


class _OtherAbove(SlicedLinear):
    """Another order of additions above 12 rows."""

    def product(self, x):
        return super().product(x) * (1 if len(x) <= 12 else 1 + 2**-6)


def test_a_layer_whose_kernel_changes_slices_its_rows_and_the_plan_goes_on(dtype):
    layer = small(dtype)
    layer.__class__ = _OtherAbove
    plan = measure_rows(nn.Sequential(layer))
    if not plan.exact:
        pytest.skip("this machine keeps no bits")
    assert layer.most <= 12 < plan.most
    x = torch.randn(1, 40, 48).to(dtype)
    with torch.inference_mode():
        assert torch.equal(layer(x)[:, :4], layer(x[:, :4]))


class _NeverAgrees(TransposedLinear):
    """A row's bits depend on its place."""

    def product(self, x):
        return super().product(x) * (1 + 2**-6 * torch.arange(len(x), dtype=x.dtype)[:, None])


def test_a_quick_product_that_keeps_no_bits_is_undone(dtype):
    layer = small(dtype)
    layer.__class__ = _NeverAgrees
    measure_rows(nn.Sequential(layer))
    assert type(layer) is SlicedLinear
