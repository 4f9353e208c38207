"""A draft model in 8 or 4 bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from draftproof.base import Feed
from draftproof.models.bits import LAW_PLAN
from draftproof.models.hf import HFTarget
from draftproof.models.narrow import NarrowTarget
from draftproof.models.quantised import LINEARS, quantise
from draftproof.speculation import QUANTIZATIONS
from tests.tiny import ARCHITECTURES, build, tokens_of

pytestmark = pytest.mark.usefixtures("one_thread")

ERROR = {"int8": 0.02, "int4": 0.2}


def test_what_may_be_asked_for_is_there():
    assert set(QUANTIZATIONS) == set(LINEARS) == set(ERROR)


@pytest.mark.parametrize("rows", [1, 3, 6, 7, 20])  # twice that: the last that few make, the first that many do
@pytest.mark.parametrize("outputs", [96, 101])
@pytest.mark.parametrize("to", LINEARS)
def test_a_product_is_that_of_the_rounded_weights(to: str, outputs: int, rows: int):
    torch.manual_seed(0)
    linear = nn.Linear(64, outputs).bfloat16()
    linear.weight.data[5] += 3  # far from zero: an offset that is left out shows
    x = torch.randn(2, 64, rows).bfloat16().transpose(1, 2)
    with torch.inference_mode():
        found, known = LINEARS[to](linear)(x), linear(x)
    assert found.shape == (2, rows, outputs)
    assert torch.equal(found, known) == (to == "int4" and rows > 6)
    for some in (slice(0, 5), slice(5, 6), slice(6, outputs)):
        assert (found - known)[..., some].abs().max() < ERROR[to] * known[..., some].abs().max()


@pytest.mark.parametrize("to", LINEARS)
def test_no_row_of_zeros_becomes_not_a_number(to: str):
    linear = nn.Linear(32, 32, bias=False).bfloat16()
    linear.weight.data[3] = 0
    with torch.inference_mode():
        found = LINEARS[to](linear)(torch.ones(1, 32).bfloat16())
    assert found[0, 3].abs() < 1e-6
    assert found.isfinite().all()


def weight_of(linear: nn.Module) -> torch.Tensor:
    """The weights that its products have, from products with unit vectors."""
    units = torch.eye(linear.in_features).bfloat16().split(8)
    found = torch.cat([linear(some) for some in units]) - linear(torch.zeros(1, linear.in_features).bfloat16())
    return found.t().contiguous()


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("to", LINEARS)
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
def test_a_model_is_the_one_of_its_rounded_weights(name: str, to: str, narrow: bool):
    plain, rounded = (HFTarget(build(ARCHITECTURES[name], torch.bfloat16), LAW_PLAN) for _ in range(2))
    if narrow:
        plain, rounded = NarrowTarget(plain, 35), NarrowTarget(rounded, 35)
    quantise(rounded, to)
    modules = dict(plain.model.named_modules())
    assert isinstance(rounded.model.get_output_embeddings(), LINEARS[to])
    tokens, rows = tokens_of(1, 12), []
    with torch.inference_mode():
        for place, module in rounded.model.named_modules():
            if isinstance(module, LINEARS[to]):
                modules[place].weight = nn.Parameter(weight_of(module), requires_grad=False)
    for target in (plain, rounded):
        session = target.open(16)
        for token in tokens:  # one at a time: int4 reads many at once with the weights as they were
            [scores] = target.forward([Feed(session, (token,))])
            target.commit([session], [()])
        rows.append(scores.logits[0, :35])
    assert np.corrcoef(*rows)[0, 1] > 0.999


@pytest.mark.parametrize("to", LINEARS)
def test_what_cannot_be_rounded_is_refused(to: str):
    with pytest.raises(ValueError, match=f"quantization: {to} is for bfloat16 on a CPU"):
        quantise(HFTarget(build(ARCHITECTURES["llama"]), LAW_PLAN), to)
    with pytest.raises(ValueError, match=f"quantization: {to} rounds linear layers .*GPT2.* has too few"):
        quantise(HFTarget(build(ARCHITECTURES["gpt2"], torch.bfloat16), LAW_PLAN), to)
