"""`draftproof.generate` against `model.generate`: the same ids, scores and errors, whatever drafts.

The reference is the stock model by Hugging Face's own loop. In float64 the ids must be equal; in float32 they may first
differ where the two likeliest tokens are closer than 1e-4, which is reported.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    WatermarkingConfig,
)
from transformers.generation import (
    EpsilonLogitsWarper,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftproof import generate, speculative
from draftproof import hf as face
from draftproof.drafters import NGramDrafter
from draftproof.kernels.lazy import raw_law_of
from draftproof.models.prepared import law_parts, texts_of
from tests.hf_models import (
    DRAFTERS,
    NOISY,
    Recorder,
    batch,
    model_of,
    noisy,
    one,
    plainly,
    require_same,
)
from tests.tiny import ARCHITECTURES, VOCAB

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_ids_are_those_of_generate(name, dtype):
    model = model_of(name, dtype)
    for inputs in (one(), batch()):
        want = plainly(model, **inputs, max_new_tokens=20)
        require_same(model, inputs, generate(model, **inputs, max_new_tokens=20), want)


def test_a_difference_would_be_found():
    model, inputs = model_of(), one()
    want = plainly(model, **inputs, max_new_tokens=8)
    other = want.clone()
    other[0, 15] = (other[0, 15] + 1) % VOCAB
    with pytest.raises(AssertionError, match="row 0 differs at 15"):
        require_same(model, inputs, other, want)
    with pytest.raises(AssertionError, match="agree as far as"):
        require_same(model, inputs, want[:, :-1], want)


@pytest.mark.parametrize("how", DRAFTERS)
def test_whatever_drafts(how, drafted):
    model, drafters, streamer = model_of(), DRAFTERS[how](), Recorder()
    options = {"max_new_tokens": 24, "eos_token_id": None}
    want = plainly(model, **one(), **options)
    assert torch.equal(generate(model, **one(), **options, **drafters, streamer=streamer), want)
    factory = speculative(**drafters)
    assert torch.equal(model.generate(**one(), **options, custom_generate=factory), want)
    assert torch.equal(model.generate(**one(), **options, custom_generate=factory), want)  # once more
    want = plainly(model, **batch(), **options)
    assert torch.equal(generate(model, **batch(), **options, **drafters), want)
    sizes = [len(block) for block in streamer.blocks]
    if how == "none":
        assert not any(drafted)
        assert set(sizes) == {1}
    if how == "self":
        assert sizes[:-1] == [6] * (len(sizes) - 1)
    if how in ("noisy", "wrong"):  # drafts were refused, and noisy ones also taken
        rounds = drafted[: len(sizes)]
        assert any(size <= draft for size, draft in zip(sizes, rounds, strict=True))
        assert max(sizes) >= 3 or how == "wrong"


def test_a_call_may_say_how_much_is_drafted(drafted):
    model, options = model_of(), {"max_new_tokens": 24, "eos_token_id": None}
    want = plainly(model, **one(), **options)
    for said, factory, most in (
        ({"num_assistant_tokens": 20}, {"assistant_model": model}, 20),
        ({"num_assistant_tokens": 3}, {"assistant_model": model, "num_assistant_tokens": 9}, 3),
        ({"prompt_lookup_num_tokens": 7}, {}, 7),
        ({"generation_config": GenerationConfig(prompt_lookup_num_tokens=7)}, {}, 7),
        ({"generation_config": GenerationConfig(num_assistant_tokens=4)}, {"assistant_model": model}, 4),
    ):
        drafted.clear()
        got = model.generate(**one(), **options, **said, custom_generate=speculative(**factory))
        assert torch.equal(got, want)
        assert max(drafted) == most
    helper = copy.deepcopy(model)
    helper.generation_config.num_assistant_tokens = 2
    drafted.clear()
    assert torch.equal(generate(model, **one(), **options, assistant_model=helper), want)
    assert max(drafted) == 2


def test_prompt_lookup_takes_generates_options(monkeypatch):
    made = []
    monkeypatch.setattr(face, "NGramDrafter", lambda longest: (made.append(longest), NGramDrafter(longest))[1])
    model = model_of()
    for options in ({}, {"max_matching_ngram_size": 2}, {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 7}):
        generate(model, **one(), max_new_tokens=2, **options)
    assert made == [4, 2, 7]


def test_no_prompt_begins_with_the_first_token():
    model = model_of()
    assert torch.equal(generate(model, max_new_tokens=6), plainly(model, max_new_tokens=6))


def test_inputs_by_position_and_a_mask_of_booleans_and_given_positions():
    model, inputs = model_of(), batch()
    want = plainly(model, **inputs, max_new_tokens=6)
    mask = inputs["attention_mask"]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    got = generate(model, inputs["input_ids"], attention_mask=mask.bool(), position_ids=positions, max_new_tokens=6)
    assert torch.equal(got, want)
    assert torch.equal(
        generate(model, **one(), cache=DynamicCache(), max_new_tokens=6), plainly(model, **one(), max_new_tokens=6)
    )


class Shift:
    """A user's own: what the text began with decides."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at = (input_ids.sum(-1) + input_ids.shape[1]) % VOCAB  # which padding moves
        scores[torch.arange(len(scores)), at] += 6  # in place, as users do
        return scores


def allowed(batch_id: int, ids: torch.Tensor) -> list[int]:
    return [token for token in range(3, VOCAB) if (token + batch_id + int(ids[-1])) % 3]


PROCESSORS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": [[i] for i in range(3, 40)] + [[41, 42]]},
    "min_new_tokens": {"min_new_tokens": 9, "eos_token_id": list(range(20, 60))},
    "min_length": {"min_length": 18, "eos_token_id": list(range(20, 60))},
    "suppress_tokens": {"suppress_tokens": list(range(3, 30))},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(64))[::2] + list(range(35))},
    "sequence_bias": {"sequence_bias": {(7,): 3.0, (9, 8): 9.0, (30,): -100.0}},
    "forced_eos_token_id": {"forced_eos_token_id": 5},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (4, 1.9), "eos_token_id": [2, 33, 60]},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 3.0},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": allowed},
    "renormalize_logits": {"renormalize_logits": True, "repetition_penalty": 1.3},
    "logits_processor": {"logits_processor": LogitsProcessorList([Shift()])},
    "a list": {"logits_processor": [Shift()]},
    "its own penalty": {"logits_processor": [RepetitionPenaltyLogitsProcessor(1.4, 2)]},
    "penalty of padding": {"logits_processor": [RepetitionPenaltyLogitsProcessor(1.4)], "repetition_penalty": 2.0},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=6.0)},
    "selfhash": {"watermarking_config": WatermarkingConfig(bias=6.0, seeding_scheme="selfhash")},
    "several": {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 2,
        "min_new_tokens": 6,
        "sequence_bias": {(7,): 2.0},
        "logits_processor": [Shift()],
    },
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_processors_do_what_they_do_in_generate(name):
    model, options = model_of(), {"max_new_tokens": 14} | PROCESSORS[name]
    with_none = {"max_new_tokens": 14, "eos_token_id": options.get("eos_token_id", 2)}
    changed = False
    for inputs, how in ((one(), "default"), (batch(), "noisy")):
        want = plainly(model, **inputs, **options)
        changed = changed or not torch.equal(want, plainly(model, **inputs, **with_none))
        assert torch.equal(generate(model, **inputs, **options, **DRAFTERS[how]()), want)
    assert changed, "this case tests nothing"


def test_processors_of_a_batch_know_their_row_when_sequences_are_repeated():
    """Of 2 prompts 3 each: the allowed tokens are those of the prompt's own number."""
    model = model_of()
    asked: set[tuple[int, int]] = set()

    def mine(batch_id: int, ids: torch.Tensor) -> list[int]:
        asked.add((batch_id, int(ids[0])))
        return [10 + batch_id, 20 + batch_id]

    ids = torch.tensor([[5, 6], [7, 8]])
    options = {"do_sample": True, "temperature": 60.0, "num_return_sequences": 3, "max_new_tokens": 5}
    options |= {"encoder_no_repeat_ngram_size": 1, "encoder_repetition_penalty": 2.0}
    got = generate(model, ids, **options, prefix_allowed_tokens_fn=mine)
    assert asked == {(0, 5), (1, 7)}
    assert got.shape == (6, 7)
    assert got[:, :2].tolist() == [[5, 6]] * 3 + [[7, 8]] * 3
    assert set(got[:3, 2:].flatten().tolist()) == {10, 20}
    assert set(got[3:, 2:].flatten().tolist()) == {11, 21}


LAWS: dict[str, tuple[dict[str, Any], set[str], int]] = {  # options; those that become params; how many are looped
    "defaults": ({}, {"top_k"}, 0),
    "all": (
        {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.8},
        {"temperature", "top_k", "top_p", "min_p", "typical_p"},
        0,
    ),
    "temperature": ({"temperature": 1.7, "top_k": 0}, {"temperature"}, 0),
    "top_p": ({"top_p": 0.5, "top_k": 0}, {"top_p"}, 0),
    "top_p 0": ({"top_p": 0.0, "top_k": 0}, set(), 1),
    "min_p": ({"min_p": 0.2, "top_k": 0}, {"min_p"}, 0),
    "typical_p": ({"typical_p": 0.3, "top_k": 0}, {"typical_p"}, 0),
    "penalty": ({"repetition_penalty": 1.5, "temperature": 0.6}, {"repetition_penalty", "temperature", "top_k"}, 0),
    "penalty second": ({"repetition_penalty": 1.5, "sequence_bias": {(5,): 2.0}, "top_k": 0}, set(), 2),
    "penalty, then ours": (
        {"repetition_penalty": 1.5, "no_repeat_ngram_size": 1, "top_k": 9},
        {"repetition_penalty", "top_k"},
        1,
    ),
    "top_h": ({"top_h": 0.4, "temperature": 0.7, "top_k": 6, "top_p": 0.9}, {"top_k", "top_p"}, 2),
    "epsilon": ({"epsilon_cutoff": 0.03, "temperature": 0.7, "top_k": 9}, set(), 3),
    "eta": ({"eta_cutoff": 0.05, "temperature": 0.7, "top_k": 0}, set(), 2),
    "normalised": ({"renormalize_logits": True, "temperature": 0.7, "top_k": 9}, set(), 3),
    "watermark": ({"watermarking_config": WatermarkingConfig(bias=3.0), "temperature": 0.5, "top_k": 9}, set(), 3),
    "another order": (
        {"logits_processor": [TopKLogitsWarper(5), TemperatureLogitsWarper(0.5)], "top_k": 0},
        {"temperature"},
        1,
    ),
    "twice": ({"logits_processor": [TopPLogitsWarper(0.9)], "top_p": 0.7, "top_k": 0}, {"top_p"}, 1),
    "two tokens kept": ({"logits_processor": [MinPLogitsWarper(0.9, min_tokens_to_keep=2)], "top_k": 0}, set(), 1),
    "another filter": ({"logits_processor": [TopKLogitsWarper(5, filter_value=-2.0)], "top_k": 0}, set(), 1),
    "a user's between": (
        {"logits_processor": [EpsilonLogitsWarper(0.02), Shift()], "temperature": 0.8, "top_p": 0.9, "top_k": 0},
        {"temperature", "top_p"},
        2,
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_the_law_is_that_of_the_processors(name):
    options, recognised, loops = LAWS[name]
    model = model_of(dtype=torch.float32)
    config, _ = model._prepare_generation_config(None, do_sample=True, max_length=99, **options)
    own = config.__dict__.pop("logits_processor", None) or options.get("logits_processor", [])
    inputs = batch((4, 9))
    model._prepare_special_tokens(config, True, device="cpu")
    processors = model._get_logits_processor(config, 9, inputs["input_ids"], logits_processor=own, device="cpu")
    rng = np.random.default_rng(3)
    for text in texts_of(inputs["input_ids"], inputs["attention_mask"])[1:]:
        params, adjust = law_parts(
            processors, text, sampled=True, limit=9, vocab_size=VOCAB, device=torch.device("cpu")
        )
        neutral = type(params)(max_tokens=9)
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
        assert {name for name in names if getattr(params, name) != getattr(neutral, name)} == recognised
        assert len(params.logits_processors) == loops
        for _ in range(20):
            row = (3 * rng.standard_normal(VOCAB)).astype(np.float32)
            said = rng.integers(3, VOCAB, 3).tolist()
            scores = processors(text.ids(said, torch.device("cpu")), torch.tensor(row)[None])
            law = raw_law_of(params, adjust)(row, [*text.prompt, *said])
            np.testing.assert_allclose(np.asarray(law), scores.double().softmax(-1)[0].numpy(), atol=2e-6)


def test_processors_in_a_sampled_text():
    """What is drawn is allowed, and does not depend on the drafts."""
    model, inputs, texts = model_of(), batch((2, 4)), []
    for drafters in [DRAFTERS[how]() for how in ("none", "noisy", "default")]:
        torch.manual_seed(3)
        options = {"do_sample": True, "no_repeat_ngram_size": 1, "epsilon_cutoff": 0.01, "eos_token_id": None}
        texts.append(generate(model, **inputs, **options, max_new_tokens=20, **drafters))
    assert all(torch.equal(text, texts[0]) for text in texts)
    for row in texts[0].tolist():
        said = row[4:]
        assert len(set(said)) == len(said)
        assert not set(said) & set(row[:4])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_the_same_seed_gives_the_same_text_whatever_drafts(dtype):
    model = model_of(dtype=dtype)
    helpers = [{"num_assistant_tokens": 0}, {}, {"assistant_model": model}, {"assistant_model": noisy(dtype)}]
    for inputs in (one(), batch()):
        texts = []
        for helper in helpers:
            torch.manual_seed(11)
            options = {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "max_new_tokens": 20}
            texts.append(generate(model, **inputs, **options, **helper))
            state = torch.get_rng_state()
        assert all(torch.equal(text, texts[0]) for text in texts)
        again = generate(model, **inputs, do_sample=True, temperature=0.8, top_p=0.95, max_new_tokens=20)
        assert not torch.equal(state, torch.get_rng_state())
        assert not (again.shape == texts[0].shape and torch.equal(again, texts[0]))
        torch.manual_seed(12)
        other = generate(model, **inputs, do_sample=True, temperature=0.8, top_p=0.95, max_new_tokens=20)
        assert not (other.shape == texts[0].shape and torch.equal(other, texts[0]))


def test_greedy_takes_no_randomness():
    state = torch.get_rng_state()
    generate(model_of(), **one(), max_new_tokens=5, assistant_model=NOISY())
    assert torch.equal(state, torch.get_rng_state())


def test_every_row_is_a_sample_of_its_own_and_the_first_is_that_of_a_prompt_alone():
    model, options = model_of(), {"do_sample": True, "max_new_tokens": 8, "eos_token_id": None}
    torch.manual_seed(1)
    several = generate(model, **one(), **options, num_return_sequences=6)
    torch.manual_seed(1)
    alone = generate(model, **one(), **options)
    torch.manual_seed(1)
    padded = generate(model, **batch((12, 15)) | {}, **options)
    assert several.shape == (6, 20)
    assert torch.equal(several[:1], alone)
    assert len({tuple(row) for row in several.tolist()}) == 6
    prompt = batch((12, 15))["input_ids"][0, 3:]
    torch.manual_seed(1)
    assert torch.equal(generate(model, prompt[None], **options)[0], padded[0, 3:])


def test_draws_have_the_law():
    """One token, 600 times: chi-square against the processed scores."""
    model, options = model_of(), {"temperature": 1.5, "top_k": 6, "max_new_tokens": 1, "do_sample": True}
    torch.manual_seed(4)
    draws = generate(model, **one(), **options, num_return_sequences=600)[:, -1]
    scores = plainly(model, **one(), **options, return_dict_in_generate=True, output_scores=True).scores[0][0]
    p = scores.double().softmax(-1).numpy()
    seen = np.bincount(draws.numpy(), minlength=VOCAB)
    assert not seen[p == 0].any()
    chi = ((seen - 600 * p)[p > 0] ** 2 / (600 * p[p > 0])).sum()
    assert chi < 20.5  # 1 in 1,000 for 5 degrees of freedom
