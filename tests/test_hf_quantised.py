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


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("to", LINEARS)
def test_a_product_is_that_of_the_rounded_weights(to: str, rows: int):
    torch.manual_seed(0)
    linear = nn.Linear(64, 96).bfloat16()
    linear.weight.data[5] += 3  # far from zero: an offset that is left out shows
    x = torch.randn(2, rows, 64).bfloat16()
    with torch.inference_mode():
        found, known = LINEARS[to](linear)(x), linear(x)
    assert found.shape == (2, rows, 96)
    for some in (slice(0, 5), slice(5, 6), slice(6, 96)):
        assert (found - known)[..., some].abs().max() < ERROR[to] * known[..., some].abs().max()


@pytest.mark.parametrize("to", LINEARS)
def test_no_row_of_zeros_becomes_not_a_number(to: str):
    linear = nn.Linear(32, 32, bias=False).bfloat16()
    linear.weight.data[3] = 0
    with torch.inference_mode():
        found = LINEARS[to](linear)(torch.ones(1, 32).bfloat16())
    assert found[0, 3].abs() < 1e-6
    assert found.isfinite().all()


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("to", LINEARS)
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
def test_a_model_is_nearly_what_it_was(name: str, to: str, narrow: bool):
    tokens, rows = tokens_of(1, 12), []
    for rounded in (False, True):
        target = HFTarget(build(ARCHITECTURES[name], torch.bfloat16), LAW_PLAN)
        target = NarrowTarget(target, 32) if narrow else target
        if rounded:
            quantise(target, to)
            assert any(isinstance(module, LINEARS[to]) for module in target.model.modules())
        [scores] = target.forward([Feed(target.open(16), tokens)])
        rows.append(scores.logits[0, :32])
    assert np.corrcoef(*rows)[0, 1] > 0.9
    assert not np.array_equal(*rows)


def test_what_cannot_be_rounded_is_refused():
    with pytest.raises(ValueError, match="quantization: int8 is for bfloat16 on a CPU"):
        quantise(HFTarget(build(ARCHITECTURES["llama"]), LAW_PLAN), "int8")
