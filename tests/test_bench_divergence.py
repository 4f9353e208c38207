"""Where two answers differ, and what the target says there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from folders import make_folder, said
from transformers import LlamaForCausalLM

from draftproof.bench.divergence import explained, first_divergence, step_at
from draftproof.llm import LLM
from draftproof.loop import PIECE
from draftproof.models.table import TableTarget
from draftproof.sampling import SamplingParams


def leaning(*logits: float) -> TableTarget:
    """A target that says the same after every text."""
    return TableTarget(lambda history: np.array(logits, np.float32), len(logits))


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ((1, 2, 3), (1, 2, 3), None),
        ((1, 2, 3), (1, 9, 3), 1),
        ((4,), (5,), 0),
        ((1, 2), (1, 2, 3), None),  # asked for less
        ((1, 2, 0), (1, 2, 3, 4), 2),  # ended: its end token is where it differs
        ((), (1,), None),
    ],
)
def test_answers_differ_where_their_tokens_first_do(a, b, found):
    assert first_divergence(a, b) == first_divergence(b, a) == found


@pytest.mark.parametrize(("dtype", "torch_dtype"), [(name, getattr(torch, name)) for name in ("bfloat16", "float16")])
@pytest.mark.parametrize("size", [1.0, 1.9, 2.0, 17.3, -24.0, 0.3])
def test_a_step_is_the_distance_of_neighbours_in_that_dtype(dtype: str, torch_dtype, size: float):
    below = torch.tensor(abs(size)).to(torch_dtype)
    below = torch.where(below.float() > abs(size), torch.nextafter(below, torch.zeros_like(below)), below)
    above = torch.nextafter(below, torch.full_like(below, torch.inf))
    assert step_at(size, dtype) == float(above) - float(below)


@pytest.mark.parametrize("size", [1.0, 17.3, 0.3])
def test_a_step_of_float32_is_numpys(size: float):
    assert step_at(-size, "float32") == np.spacing(np.float32(size))


def test_an_unknown_dtype_is_named():
    with pytest.raises(ValueError, match="dtype: 'int8' is unknown; known are bfloat16"):
        step_at(1.0, "int8")


def test_the_gap_is_counted_in_steps_at_the_larger_logit():
    target = leaning(1.0, 20.25, 20.0, 19.0)
    assert explained(target, [0], [1, 1], [1, 2], "bfloat16") == (1, 0.25, 2.0, True)
    assert explained(target, [0], [1, 1], [1, 3], "bfloat16") == (1, 1.25, 10.0, False)
    assert explained(target, [0], [1, 1], [1, 2], "float32").tie is False


def test_a_gap_the_wrong_way_round_is_a_tie_only_if_it_is_small():
    target = leaning(1.0, 20.25, 20.0, 19.0)
    assert explained(target, [0], [2], [1], "bfloat16") == (0, -0.25, -2.0, True)
    assert explained(target, [0], [3], [1], "bfloat16") == (0, -1.25, -10.0, False)


def test_equal_logits_are_a_tie_even_at_nought():
    assert explained(leaning(0.0, 0.0), [0], [0], [1], "float32") == (0, 0.0, 0.0, True)


def test_the_target_reads_the_prompt_and_what_both_say():
    """In pieces, however long that is; and its session is closed."""
    closed, seen = [], []

    class Spied(TableTarget):
        def close(self, session):
            closed.append(session)
            super().close(session)

    def row(history):
        seen.append(list(history))
        return np.zeros(3, np.float32)

    prompt = [i % 3 for i in range(2 * PIECE + 5)]
    explained(Spied(row, 3), prompt, [0, 1, 1], [0, 1, 2], "float32")
    assert seen == [[*prompt, 0, 1]]
    assert len(closed) == 1
    with pytest.raises(ValueError, match=r"other_ids: token 3 is not in 0 \.\. 2"):
        explained(Spied(row, 3), prompt, [0], [3], "float32")


def test_a_session_is_closed_after_an_error():
    closed = []

    class Failing(TableTarget):
        def close(self, session):
            closed.append(session)

    with pytest.raises(ValueError, match="context: 2 tokens"):
        explained(Failing(lambda history: np.zeros(3), 3, 1), [0, 1], [0], [1], "float32")
    assert len(closed) == 1


def test_answers_that_do_not_differ_are_not_explained():
    with pytest.raises(ValueError, match="other_ids: 2 tokens that nowhere differ"):
        explained(leaning(0.0, 1.0), [0], [1, 1, 1], [1, 1], "float32")


@pytest.mark.usefixtures("one_thread")
def test_a_models_own_greedy_answer_leads_at_every_position(tmp_path):
    """In float32 by the very gap between its best two logits."""
    path = make_folder(tmp_path / "model")
    llm, model = LLM(str(path), dtype="float32", exact="law"), LlamaForCausalLM.from_pretrained(path).eval()
    prompt = [65, 66, 67]
    ids = said(llm, prompt, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)).token_ids
    for position in range(8):
        other = [*ids[:position], (ids[position] + 1) % 257]
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *ids[:position]]])).logits[0, -1]
        found = explained(llm.loaded.target, prompt, ids, other, "float32")
        assert found.position == position
        assert found.gap > 0
        assert found.gap == pytest.approx(float(logits[ids[position]] - logits[other[-1]]), abs=1e-4)
        assert not found.tie
