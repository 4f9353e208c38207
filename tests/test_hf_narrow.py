"""A draft model's output layer cut to the first token ids."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftproof.base import Feed
from draftproof.models.bits import LAW_PLAN
from draftproof.models.hf import HFTarget
from draftproof.models.narrow import NarrowTarget
from tests.tiny import ARCHITECTURES, VOCAB, build, tokens_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_first_logits_are_the_models_own_and_the_others_nothing(name: str):
    target = HFTarget(build(ARCHITECTURES[name]), LAW_PLAN)
    narrow = NarrowTarget(target, 20)
    tokens = tokens_of(1, 9)
    [whole], [cut] = ([s.logits for s in t.forward([Feed(t.open(16), tokens)])] for t in (target, narrow))
    assert cut.shape == whole.shape == (1, VOCAB)
    np.testing.assert_allclose(cut[:, :20], whole[:, :20], rtol=1e-5, atol=1e-5)
    assert np.isneginf(cut[:, 20:]).all()


def test_no_weight_is_copied_and_the_whole_model_stays_whole():
    target = HFTarget(build(ARCHITECTURES["llama"]), LAW_PLAN)
    narrow = NarrowTarget(target, 20)
    own = {weight.data_ptr() for weight in target.model.parameters()}
    assert {weight.data_ptr() for weight in narrow.model.parameters()} <= own
    assert narrow.model.get_output_embeddings().weight.shape[0] == 20
    assert target.model.get_output_embeddings().weight.shape[0] == VOCAB
    assert torch.equal(narrow.model.get_output_embeddings().weight, target.model.get_output_embeddings().weight[:20])


@pytest.mark.parametrize("ids", [0, VOCAB + 1])
def test_a_size_that_cannot_be_is_refused(ids: int):
    with pytest.raises(ValueError, match=f"draft_vocabulary: {ids} is not allowed"):
        NarrowTarget(HFTarget(build(ARCHITECTURES["llama"]), LAW_PLAN), ids)
