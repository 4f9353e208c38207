"""A draft model in 8 bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from draftproof.base import Feed
from draftproof.models.bits import LAW_PLAN
from draftproof.models.hf import HFTarget
from draftproof.models.narrow import NarrowTarget
from draftproof.models.quantised import Int8Linear, to_int8
from tests.tiny import ARCHITECTURES, build, tokens_of

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_product_is_that_of_the_rounded_weights():
    torch.manual_seed(0)
    linear = nn.Linear(64, 96).bfloat16()
    x = torch.randn(2, 3, 64).bfloat16()
    with torch.inference_mode():
        found, known = Int8Linear(linear)(x), linear(x)
    assert found.shape == (2, 3, 96)
    assert (found - known).abs().max() < 0.02 * known.abs().max()


def test_no_row_of_zeros_becomes_not_a_number():
    linear = nn.Linear(32, 32, bias=False).bfloat16()
    linear.weight.data[3] = 0
    with torch.inference_mode():
        assert torch.equal(Int8Linear(linear)(torch.ones(1, 32).bfloat16())[:, 3], torch.zeros(1).bfloat16())


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
def test_a_model_is_nearly_what_it_was(name: str, narrow: bool):
    tokens, rows = tokens_of(1, 12), []
    for rounded in (False, True):
        target = HFTarget(build(ARCHITECTURES[name], torch.bfloat16), LAW_PLAN)
        target = NarrowTarget(target, 32) if narrow else target
        if rounded:
            to_int8(target)
            assert any(isinstance(module, Int8Linear) for module in target.model.modules())
        [scores] = target.forward([Feed(target.open(16), tokens)])
        rows.append(scores.logits[0, :32])
    assert np.corrcoef(*rows)[0, 1] > 0.9
    assert not np.array_equal(*rows)


def test_what_cannot_be_rounded_is_refused():
    with pytest.raises(ValueError, match="quantization: int8 is for bfloat16 on a CPU"):
        to_int8(HFTarget(build(ARCHITECTURES["llama"]), LAW_PLAN))
