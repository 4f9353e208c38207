"""`draftproof.generate` against `model.generate`: the same ids, scores and errors, whatever drafts.

The reference is the stock model by Hugging Face's own loop. In float64 the ids must be equal; in float32 they may first
differ where the two likeliest tokens are closer than 1e-4, which is reported.
"""

from __future__ import annotations

import copy
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import Tokenizer, decoders, models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    T5Config,
    T5ForConditionalGeneration,
    TextIteratorStreamer,
    TextStreamer,
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

import draftproof
from draftproof import generate, speculative
from draftproof import hf as face
from draftproof.drafters import NGramDrafter
from draftproof.kernels.lazy import raw_law_of
from draftproof.models import borrow
from draftproof.models.hf import HFTarget
from draftproof.models.prepared import law_parts, texts_of
from tests.folders import make_folder
from tests.tiny import ARCHITECTURES, VOCAB, Stock, _softmax_as_given, build, randomise, tokens_of

PAD = 0
NEAR = 1e-4
LENGTHS = (3, 12, 1, 7, 9)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def model_of(name: str = "llama", dtype: torch.dtype = torch.float64, seed: int = 0) -> PreTrainedModel:
    """seed 0 is the target, others are strangers to it."""
    model = randomise(build(ARCHITECTURES[name]), seed).to(dtype)
    model.generation_config.pad_token_id = PAD
    return model


@cache
def noisy(dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """Often right about what the target says."""
    model = copy.deepcopy(model_of(dtype=dtype))
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=generator).to(dtype)
    return model


SELF, NOISY, WRONG = model_of, noisy, lambda: model_of(seed=5)
DRAFTERS: dict[str, Callable[[], dict[str, Any]]] = {
    "default": dict,
    "none": lambda: {"num_assistant_tokens": 0},
    "lookup": lambda: {"prompt_lookup_num_tokens": 3},
    "self": lambda: {"assistant_model": SELF()},
    "noisy": lambda: {"assistant_model": NOISY(), "num_assistant_tokens": 8},
    "wrong": lambda: {"assistant_model": WRONG(), "num_assistant_tokens": 2},
}


def batch(lengths: Sequence[int] = LENGTHS, seed: int = 20) -> dict[str, torch.Tensor]:
    """Prompts, padded on the left."""
    longest = max(lengths)
    ids, mask = torch.full((len(lengths), longest), PAD), torch.zeros(len(lengths), longest, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, longest - length :] = torch.tensor(tokens_of(seed + row, length))
        mask[row, longest - length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def one(length: int = 12, seed: int = 21) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor([tokens_of(seed, length)])}


def plainly(model: PreTrainedModel, **options: Any) -> Any:
    """What Hugging Face's loop gives, in the model's own precision (float64 padding is NaN in it otherwise)."""
    stock = copy.deepcopy(model)
    stock.set_attn_implementation("eager")
    with mock.patch.object(F, "softmax", _softmax_as_given):
        return stock.generate(**options)


def require_same(
    model: PreTrainedModel, inputs: dict[str, torch.Tensor], got: torch.Tensor, want: torch.Tensor
) -> None:
    """Equal; or, row by row, apart first where the stock model's two best logits nearly tie."""
    if torch.equal(got, want):
        return
    apart = 0
    for row, (mine, theirs) in enumerate(zip(got.tolist(), want.tolist(), strict=True)):
        at = next((i for i, (x, y) in enumerate(zip(mine, theirs, strict=False)) if x != y), None)
        if at is None:
            continue
        apart += 1
        mask = inputs.get("attention_mask")
        first = 0 if mask is None else int((mask[row] == 0).sum())
        second, best = np.sort(Stock(model).logits(mine[first:at])[-1])[-2:]
        assert best - second < NEAR, (
            f"row {row} differs at {at}: {mine[at]}, not {theirs[at]}; the gap is {best - second}"
        )
        warnings.warn(f"row {row} differs at {at} at a tie: the gap is {best - second:.1e}", stacklevel=2)
    assert apart, f"{tuple(got.shape)} and {tuple(want.shape)} agree as far as both go"


class Recorder:
    """A streamer that writes down what it is given."""

    def __init__(self) -> None:
        self.puts: list[torch.Tensor] = []
        self.ends = 0

    def put(self, value: torch.Tensor) -> None:
        assert not self.ends
        self.puts.append(value.clone())

    def end(self) -> None:
        self.ends += 1

    @property
    def blocks(self) -> list[list[int]]:
        return [each.tolist() for each in self.puts[1:]]

    @property
    def said(self) -> list[int]:
        return [token for block in self.blocks for token in block]


@pytest.fixture
def drafted(monkeypatch) -> list[int]:
    """How many tokens were drafted in each round, as the target saw them."""
    seen: list[int] = []
    forward = HFTarget.forward

    def spy(self, feeds):
        seen.extend(len(feed.parents) for feed in feeds if feed.wanted)
        return forward(self, feeds)

    monkeypatch.setattr(HFTarget, "forward", spy)
    return seen


# --- greedy --------------------------------------------------------------------------------------------------------


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


# --- processors ----------------------------------------------------------------------------------------------------


class Shift:
    """A user's own: what the text began with decides."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at = (input_ids.sum(-1) + input_ids.shape[1]) % VOCAB  # which padding moves
        scores[torch.arange(len(scores)), at] += 6  # in place, as users do
        return scores


class Scaled:
    """Halves its scores in place."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.mul_(0.5)


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


# --- sampling ------------------------------------------------------------------------------------------------------


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


# --- the end -------------------------------------------------------------------------------------------------------


def words(named: dict[int, str]) -> PreTrainedTokenizerFast:
    """A word for every id; `named` ones as they are asked for."""
    vocabulary = {named.get(i, f"<{i}>").replace(" ", "Ġ"): i for i in range(VOCAB)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=next(iter(vocabulary))))
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_several_ends_and_padding_after_them():
    """Rows end by different ids of a list, and by none."""
    model, options = model_of(), {"max_new_tokens": 20, "pad_token_id": 1}
    whole = plainly(model, **batch(), **options, eos_token_id=None)
    for ends in ([63, int(whole[0, 16]), int(whole[2, 21])], int(whole[1, 19])):
        want = plainly(model, **batch(), **options, eos_token_id=ends)
        assert (want[:, -1] == 1).any()
        assert not (want[:, -1] == 1).all()
        for how in ("default", "self"):
            assert torch.equal(generate(model, **batch(), **options, eos_token_id=ends, **DRAFTERS[how]()), want)


class After:
    """Ends a text that has so many tokens, counted with its padding; asked, it writes down what it saw."""

    def __init__(self, length: int, as_tensor: bool) -> None:
        self.length, self.as_tensor, self.seen = length, as_tensor, []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **other: Any) -> Any:
        assert scores is None
        assert len(input_ids) == 1
        self.seen.append(input_ids.shape[1])
        done = input_ids.shape[1] >= self.length
        return torch.tensor([done]) if self.as_tensor else done


@pytest.mark.parametrize("as_tensor", [True, False])
def test_a_criterion_is_asked_after_every_token(as_tensor):
    model, mine = model_of(), After(17, as_tensor)
    options = {"max_new_tokens": 20, "eos_token_id": None}
    want = plainly(model, **one(), **options)
    streamer = Recorder()
    got = generate(model, **one(), **options, assistant_model=model, stopping_criteria=[mine], streamer=streamer)
    assert torch.equal(got, want[:, :17])
    assert mine.seen == [13, 14, 15, 16, 17]
    assert streamer.said == want[0, 12:17].tolist()
    mine.seen.clear()
    listed = StoppingCriteriaList([mine])
    got = model.generate(**batch(), **options, stopping_criteria=listed, custom_generate=speculative())
    assert got.shape == (5, 17)
    assert sorted(mine.seen) == sorted([13, 14, 15, 16, 17] * 5)


def test_max_time_ends_a_text_between_tokens():
    model = model_of()
    generate(model, **one(), max_new_tokens=1)  # measured and compiled
    got = generate(model, **one(), max_new_tokens=1900, eos_token_id=None, max_time=0.05)
    assert 13 <= got.shape[1] < 1000


def test_the_context_bounds_the_answer():
    model, prompt = model_of(), one(40)
    with pytest.raises(ValueError, match=r"max_new_tokens: 2009 after a prompt of 40 .* at most 2008"):
        generate(model, **prompt, max_new_tokens=2009)


def test_a_text_that_ends_apart_needs_padding():
    model, criteria = copy.deepcopy(model_of()), [After(14, True)]
    model.generation_config.pad_token_id = model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="pad_token_id: None"):
        generate(model, **batch(), stopping_criteria=criteria, max_new_tokens=4)
    assert generate(model, **batch(), max_new_tokens=4).shape == (5, 16)
    assert generate(model, **one(), stopping_criteria=criteria, max_new_tokens=4).shape == (1, 14)


# --- what is returned ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("rows", ["one", "several"])
def test_scores_and_logits_are_those_of_generate(rows, dtype):
    model, inputs = model_of(dtype=dtype), one() if rows == "one" else batch()
    options = {"max_new_tokens": 12, "repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "eos_token_id": [2, 30, 31]}
    options |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    want = plainly(model, **inputs, **options)
    for how in ("default", "noisy") if dtype is torch.float64 else ("default",):
        got = generate(model, **inputs, **options, **DRAFTERS[how]())
        assert type(got) is type(want)
        assert torch.equal(got.sequences, want.sequences)
        assert len(got.scores) == len(got.logits) == len(want.scores)
        ended = torch.zeros(len(got.sequences), dtype=torch.bool)
        for step, (mine, theirs, raw, their_raw) in enumerate(
            zip(got.scores, want.scores, got.logits, want.logits, strict=True)
        ):
            live = ~ended
            torch.testing.assert_close(mine[live], theirs[live], rtol=0, atol=1e-4)
            torch.testing.assert_close(raw[live], their_raw[live], rtol=0, atol=1e-4)
            assert not mine[ended].any()
            ended |= torch.isin(got.sequences[:, 12 + step], torch.tensor([2, 30, 31]))
        assert got.attentions is got.hidden_states is got.cache is None
    alone = generate(model, **inputs, max_new_tokens=2, return_dict_in_generate=True)
    assert alone.scores is alone.logits is None
    assert isinstance(generate(model, **inputs, max_new_tokens=2, output_scores=True), torch.Tensor)


def test_a_streamer_gets_the_prompt_once_and_then_what_rounds_commit():
    model, inputs = model_of(), one()
    for how in DRAFTERS:
        streamer = Recorder()
        got = generate(model, **inputs, max_new_tokens=15, streamer=streamer, **DRAFTERS[how]())
        assert torch.equal(streamer.puts[0], inputs["input_ids"])
        assert all(each.ndim == 1 and len(each) for each in streamer.puts[1:])
        assert streamer.said == got[0, 12:].tolist()
        assert streamer.ends == 1


def test_the_text_streamer(capsys):
    tokenizer, model = words({}), model_of()
    got = generate(model, **one(), max_new_tokens=6, streamer=TextStreamer(tokenizer, skip_prompt=True))
    assert capsys.readouterr().out == tokenizer.decode(got[0, 12:]) + "\n"


# --- what is refused -----------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {
    "num_beams": 2,
    "num_beam_groups": 2,
    "diversity_penalty": 0.5,
    "constraints": [1],
    "force_words_ids": [[1]],
    "penalty_alpha": 0.6,
    "dola_layers": "low",
    "guidance_scale": 1.5,
    "token_healing": True,
    "use_cache": False,
    "cache_implementation": "static",
    "output_attentions": True,
    "output_hidden_states": True,
    "use_mtp": True,
    "assistant_early_exit": 1,
    "assistant_ensemble_weight": 0.5,
    "speculation_type": "dflash",
    "num_assistant_tokens_schedule": "heuristic",
    "assistant_confidence_threshold": 0.9,
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_is_not_done_is_refused_by_name(name):
    model, given = copy.deepcopy(model_of()), {name: OPTIONS[name], "max_new_tokens": 4}
    with pytest.raises(ValueError, match=rf"^{name}: .* is not supported by draftproof; it must be "):
        generate(model, **one(), **given)
    with pytest.raises(ValueError, match=rf"^{name}: "):
        generate(model, **one(), generation_config=GenerationConfig(**given))
    first = "tokenizer" if name == "token_healing" else f"^{name}: "  # there Hugging Face's own code is before us
    with pytest.raises(ValueError, match=first):
        model.generate(**one(), **given, custom_generate=speculative())
    assert model.config._attn_implementation == "eager"


def _held() -> DynamicCache:
    held = DynamicCache()
    held.update(torch.zeros(1, 2, 3, 12), torch.zeros(1, 2, 3, 12), 0)
    return held


def _row(*mask: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.full((1, len(mask)), 5), "attention_mask": torch.tensor([mask])}


CALLS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "paged": (lambda: {"cache_implementation": "paged"}, "^cache_implementation: 'paged'"),
    "quantized": (lambda: {"cache_implementation": "quantized"}, "^cache_implementation: 'quantized'"),
    "offloaded": (lambda: {"cache_implementation": "offloaded"}, "^cache_implementation: 'offloaded'"),
    "assistant_tokenizer": (lambda: {"assistant_tokenizer": words({})}, "^assistant_tokenizer: "),
    "synced_gpus": (lambda: {"synced_gpus": True}, "^synced_gpus: True"),
    "custom_generate": (lambda: {"custom_generate": "some/repo"}, "^custom_generate: 'some/repo'"),
    "a typo": (lambda: {"max_new_tokns": 3}, "max_new_tokns"),
    "inputs_embeds": (lambda: {"input_ids": None, "inputs_embeds": torch.zeros(1, 3, 64)}, "^inputs_embeds: "),
    "cache": (lambda: {"cache": _held()}, "^cache: it holds 3 tokens"),
    "past_key_values": (lambda: {"past_key_values": _held()}, "^cache: it holds 3 tokens"),
    "position_ids": (lambda: {"position_ids": torch.arange(1, 13)[None]}, "^position_ids: those of row 0"),
    "positions of 3 sorts": (lambda: {"position_ids": torch.zeros(3, 1, 12).long()}, "^position_ids: those of row 0"),
    "right padding": (lambda: _row(1, 1, 0), "^attention_mask: row 0 ends in padding"),
    "a gap": (lambda: _row(1, 0, 1), "^attention_mask: row 0 has a gap"),
    "nothing": (lambda: _row(0, 0, 0), "^attention_mask: row 0 has no tokens"),
    "a short mask": (lambda: {"attention_mask": torch.ones(1, 9).long()}, "attention_mask"),
    "two streams": (lambda: {**batch(), "streamer": Recorder()}, "^streamer: it cannot follow 5 texts"),
    "two drafters": (
        lambda: {"assistant_model": NOISY(), "prompt_lookup_num_tokens": 3},
        "^assistant_model: it is not used with prompt_lookup_num_tokens",
    ),
    "two depths": (
        lambda: {"num_assistant_tokens": 3, "prompt_lookup_num_tokens": 3},
        "^num_assistant_tokens: it is not used with prompt_lookup_num_tokens",
    ),
    "a negative depth": (lambda: {"num_assistant_tokens": -1}, "^num_assistant_tokens: -1"),
    "no number": (lambda: {"prompt_lookup_num_tokens": True}, "^prompt_lookup_num_tokens: True"),
    "no lookup": (lambda: {"prompt_lookup_num_tokens": 0}, "^prompt_lookup_num_tokens: 0"),
    "ngram size": (lambda: {"max_matching_ngram_size": -2}, "^max_matching_ngram_size: -2"),
    "exact": (lambda: {"exact": "maybe"}, "^exact: 'maybe'"),
    "no memory": (lambda: {"kv_cache_memory_bytes": 0}, "^kv_cache_memory_bytes: 0"),
    "little memory": (lambda: {"kv_cache_memory_bytes": 9}, "kv_cache_memory_bytes is 9"),
    "synth id": (
        lambda: {"watermarking_config": SynthIDTextWatermarkingConfig(ngram_len=3, keys=[1, 2]), "do_sample": True},
        "^logits_processor: SynthIDTextWatermarkLogitsProcessor",
    ),
    "strings alone": (lambda: {"stop_strings": ["a"]}, "tokenizer"),
    "temperature 0": (lambda: {"do_sample": True, "temperature": 0.0}, "temperature"),
    "greedy copies": (lambda: {"num_return_sequences": 2}, "num_return_sequences|Greedy"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_cannot_be_answered_is_refused_by_name(name):
    make, message = CALLS[name]
    model = model_of()
    with pytest.raises(ValueError, match=message):
        generate(model, **{**one(), "max_new_tokens": 4, **make()})
    assert model.config._attn_implementation == "eager"


def test_models_that_cannot_be_driven_are_refused():
    small = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    with pytest.raises(ValueError, match=r"model: T5ForConditionalGeneration .* is an encoder-decoder"):
        generate(T5ForConditionalGeneration(small), **one(), max_new_tokens=2)
    bloom = AutoConfig.for_model("bloom", vocab_size=64, hidden_size=16, n_layer=1, n_head=2)
    with pytest.raises(ValueError, match=r"model: BloomForCausalLM .* ALiBi"):
        generate(AutoModelForCausalLM.from_config(bloom), **one(), max_new_tokens=2)
    model = model_of()
    with pytest.raises(ValueError, match=r"^model: 'gpt2' is not allowed; it must be a transformers model"):
        generate("gpt2", **one())
    other = build(ARCHITECTURES["llama"], vocab_size=60)
    with pytest.raises(
        ValueError, match=r"^assistant_model: it has 60 tokens, and the model 64; .*assistant_tokenizer"
    ):
        generate(model, **one(), assistant_model=other)
    gpt2 = model_of("gpt2")
    with pytest.raises(ValueError, match=r"^token_type_ids: it is not supported"):
        generate(gpt2, **one(), token_type_ids=torch.zeros(1, 12, dtype=torch.long))


# --- the model is left as it was found -----------------------------------------------------------------------------


def _look(model: PreTrainedModel) -> tuple:
    weights = {name: (each.data_ptr(), each.clone()) for name, each in model.state_dict().items()}
    modes = {name: (type(module), module.training, dict(vars(module)).keys()) for name, module in model.named_modules()}
    return weights, modes, model.config._attn_implementation, model.generation_config.to_dict(), set(vars(model))


def _same(found: tuple, left: tuple) -> bool:
    weights = zip(found[0].values(), left[0].values(), strict=True)
    return found[1:] == left[1:] and all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in weights)


class Angry:
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise KeyError("a user's own error")


class Impatient(Recorder):
    def put(self, value: torch.Tensor) -> None:
        raise KeyboardInterrupt


@pytest.mark.usefixtures("unchecked")  # checks would read a row that its processor does not give
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_models_are_left_as_they_were_found(attention):
    model, helper = copy.deepcopy(model_of(dtype=torch.float32)), copy.deepcopy(noisy(torch.float32))
    for each in (model, helper):
        each.set_attn_implementation(attention)
        each.train()
        each.model.layers[1].eval()  # a user's own mixture
    found = [_look(each) for each in (model, helper)]
    before = model.generate(**batch(), max_new_tokens=6)
    generate(model, **batch(), max_new_tokens=6, assistant_model=helper)
    assert all(_same(a, _look(b)) for a, b in zip(found, (model, helper), strict=True))
    for wrong, error in (({"logits_processor": [Angry()]}, KeyError), ({"streamer": Impatient()}, KeyboardInterrupt)):
        with pytest.raises(error):
            generate(model, **one(), assistant_model=helper, **wrong)
        assert all(_same(a, _look(b)) for a, b in zip(found, (model, helper), strict=True))
    assert torch.equal(model.generate(**batch(), max_new_tokens=6), before)
    model(**one(), labels=one()["input_ids"]).loss.backward()  # it can be trained on
    assert model.lm_head.weight.grad is not None


def test_a_change_would_be_seen():
    model = copy.deepcopy(model_of())
    found = _look(model)
    model.model.layers[0].mlp.train()
    assert not _same(found, _look(model))


def test_a_model_is_measured_once_and_again_when_it_has_changed(monkeypatch):
    measured = []
    real = borrow.measure_rows
    monkeypatch.setattr(borrow, "measure_rows", lambda model: (measured.append(1), real(model))[1])
    model = copy.deepcopy(model_of())
    for _ in range(2):
        generate(model, **one(), max_new_tokens=2)
    assert len(measured) == 1
    generate(model, **one(), max_new_tokens=2, exact="law")
    assert len(measured) == 1
    model.float()
    generate(model, **one(), max_new_tokens=2)
    assert len(measured) == 2
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    generate(model, **one(), max_new_tokens=2, assistant_model=model)
    assert len(measured) == 3


def test_nothing_keeps_a_model():
    model = copy.deepcopy(model_of())
    generate(model, **one(), max_new_tokens=2, assistant_model=model)
    known = weakref.ref(model)
    del model
    gc.collect()
    assert known() is None


def test_two_threads_may_ask_one_model():
    model, helper = model_of(), NOISY()
    pairs = [(model, helper), (helper, model)] * 2
    want = {id(each): plainly(each, **one(), max_new_tokens=10) for each in (model, helper)}
    got: list[bool] = []

    def ask(target: PreTrainedModel, assistant: PreTrainedModel) -> None:
        got.append(
            torch.equal(generate(target, **one(), max_new_tokens=10, assistant_model=assistant), want[id(target)])
        )

    threads = [threading.Thread(target=ask, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == [True] * 4


def test_both_names_are_the_packages():
    assert draftproof.generate is generate
    assert draftproof.speculative is speculative


# --- known faults of this field (cases.md), under this face --------------------------------------------------------


def test_t19_tiny_temperatures_are_greedy():
    model = model_of()
    want = plainly(model, **batch(), max_new_tokens=12)
    for temperature in (1e-8, 1e-5, 1e-3):
        got = generate(model, **batch(), max_new_tokens=12, do_sample=True, temperature=temperature)
        assert torch.equal(got, want), temperature


def test_t26_an_end_in_the_middle_of_a_block():
    model = model_of()
    whole = plainly(model, **one(), max_new_tokens=14, eos_token_id=None)[0, 12:].tolist()
    for j in range(1, 11):
        streamer = Recorder()
        options = {"max_new_tokens": 14, "eos_token_id": whole[j], "assistant_model": model}
        got = generate(model, **one(), **options, streamer=streamer)[0, 12:].tolist()
        first = whole.index(whole[j])
        assert got == streamer.said == whole[: first + 1], j
    assert {len(block) for block in streamer.blocks} == {6, 5}  # the last end was amid a block


def test_t27_a_stop_string_in_the_middle_of_a_block():
    model = model_of()
    whole = plainly(model, **one(), max_new_tokens=20, eos_token_id=None)[0, 12:].tolist()
    places = [i for i in range(12) if whole.index(whole[i]) == i]
    assert {1, 4, 10} <= set(places), "the texts repeat themselves there"
    for at in (1, 4, 10):
        for named, stop in (
            ({whole[at]: " stop"}, "stop"),
            ({whole[at - 1]: " st", whole[at]: "op"}, "stop"),
            ({whole[at]: "unstoppable"}, "stop"),
        ):
            options = {"max_new_tokens": 20, "eos_token_id": None, "stop_strings": stop, "tokenizer": words(named)}
            want = plainly(model, **one(), **options)
            streamer = Recorder()
            drafting = {"assistant_model": model, "num_assistant_tokens": 11, "streamer": streamer}
            got = generate(model, **one(), **options, **drafting)
            assert torch.equal(got, want)
            assert streamer.said == whole[: at + 1]
            told = {"return_dict_in_generate": True, "output_scores": True}
            assert len(generate(model, **one(), **options, **told, **(drafting | {"streamer": None})).scores) == at + 1
            config = GenerationConfig(stop_strings=[stop], max_new_tokens=20, pad_token_id=PAD)
            assert torch.equal(generate(model, **one(), generation_config=config, tokenizer=options["tokenizer"]), want)


def test_t29_the_earliest_of_several_stops():
    """A block " The user is a", stops "a", "is", ",": it ends after " is", which Hugging Face keeps."""
    model = model_of()
    whole = plainly(model, **one(), max_new_tokens=20, eos_token_id=None)[0, 12:].tolist()
    tokenizer = words(dict(zip(whole[:4], (" The", " user", " is", " a"), strict=True)))
    assert tokenizer.decode(whole[:4]) == " The user is a"
    for helper in ({"assistant_model": model}, {}):
        streamer = Recorder()
        options = {"stop_strings": ["a", "is", ","], "tokenizer": tokenizer, "max_new_tokens": 20, "eos_token_id": None}
        got = generate(model, **one(), **options, **helper, streamer=streamer)
        assert got[0, 12:].tolist() == streamer.said == whole[:3]
        assert torch.equal(got, plainly(model, **one(), **options))


@pytest.mark.parametrize("most", [1, 2, 3])
def test_t30_never_more_than_asked_for_and_never_a_draft_for_nothing(most, drafted):
    model = model_of()
    ids = torch.tensor([[7, 8, 9] * 4])
    for drafting in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": model, "num_assistant_tokens": 3}):
        drafted.clear()
        streamer = Recorder()
        got = generate(model, ids, max_new_tokens=most, eos_token_id=None, streamer=streamer, **drafting)
        assert got.shape == (1, 12 + most)
        assert torch.equal(got, plainly(model, input_ids=ids, max_new_tokens=most, eos_token_id=None))
        remaining = most
        for count, block in zip(drafted[-len(streamer.blocks) :], streamer.blocks, strict=True):
            assert count <= min(3, remaining - 1)
            remaining -= len(block)
        assert remaining == 0
        assert drafted[-len(streamer.blocks)] == most - 1


@pytest.mark.parametrize("depth", [2, 8, 48])
def test_t35_a_repetition_penalty_under_refused_drafts(depth):
    model, inputs = model_of(), one()
    ids = inputs["input_ids"].clone()
    want = plainly(model, **inputs, max_new_tokens=40, repetition_penalty=1.3, eos_token_id=None)
    assert not torch.equal(want, plainly(model, **inputs, max_new_tokens=40, eos_token_id=None))
    options = {"max_new_tokens": 40, "repetition_penalty": 1.3, "eos_token_id": None, "num_assistant_tokens": depth}
    streamer = Recorder()
    assert torch.equal(generate(model, **inputs, **options, assistant_model=NOISY(), streamer=streamer), want)
    assert 3 <= max(len(block) for block in streamer.blocks) < 40
    assert torch.equal(inputs["input_ids"], ids)


def test_t37_a_bias_of_minus_100_and_min_p():
    model, inputs = model_of(), one()
    options = {"do_sample": True, "max_new_tokens": 80, "eos_token_id": None, "num_return_sequences": 6, "top_k": 0}
    torch.manual_seed(2)
    plain = generate(model, **inputs, **options)[:, 12:].flatten().tolist()
    often = max(set(plain), key=plain.count)
    assert plain.count(often) > 15
    texts = generate(model, **inputs, **options, sequence_bias={(often,): -100.0}, min_p=0.2)
    assert often not in texts[:, 12:].flatten().tolist()
    stock = Stock(model)
    for row in texts[:2].tolist():
        logits = stock.logits(row[:-1])[11:]
        logits[:, often] -= 100
        p = np.exp(logits - logits.max(-1, keepdims=True))
        assert (p[np.arange(len(p)), row[12:]] >= 0.2 - 1e-9).all()


def test_t39_five_drafted_a_round_twice_the_same_and_unknown_options_refused(drafted):
    model, options = model_of(), {"max_new_tokens": 30, "eos_token_id": None}
    first = generate(model, **one(), **options, assistant_model=NOISY(), num_assistant_tokens=5)
    assert torch.equal(generate(model, **one(), **options, assistant_model=NOISY(), num_assistant_tokens=5), first)
    assert max(drafted) == 5
    with pytest.raises(ValueError, match="num_asistant_tokens"):
        generate(model, **one(), num_asistant_tokens=5)
    with pytest.raises(TypeError, match="num_asistant_tokens"):
        speculative(num_asistant_tokens=5)


@pytest.mark.parametrize("how", ["self", "wrong"])
def test_t46_scores_whether_all_is_taken_or_all_refused(how):
    model, told = model_of(), {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    told["logits_processor"] = [Scaled()]
    options = {"do_sample": True, "temperature": 0.7, "top_k": 3, "max_new_tokens": 20, "eos_token_id": None}
    torch.manual_seed(6)
    streamer = Recorder()
    got = generate(model, **one(), **options, **told, **DRAFTERS[how](), streamer=streamer)
    assert [len(block) for block in streamer.blocks[:3]] == ([6, 6, 6] if how == "self" else [1, 1, 1])
    assert len(got.scores) == len(got.logits) == 20
    text = got.sequences[0].tolist()
    reference = Stock(model).logits(text)[11:-1]
    np.testing.assert_allclose(torch.cat(got.logits).numpy(), reference, rtol=0, atol=1e-5)
    scores = torch.cat(got.scores)
    assert (scores.isfinite().sum(-1) == 3).all()
    chosen = scores[range(20), text[12:]]
    assert chosen.isfinite().all()
    np.testing.assert_allclose(chosen.numpy(), reference[range(20), text[12:]] / 2 / 0.7, rtol=0, atol=1e-5)


@pytest.mark.parametrize("how", ["self", "wrong", "none"])
def test_t13_temperature_and_top_k_hold_at_every_row(how):
    """T = .5, top-k 2: no token outside the two largest of the stock model's row, and the same ids whoever drafts."""
    model, options = model_of(), {"temperature": 0.5, "top_k": 2, "do_sample": True, "max_new_tokens": 12}
    drafter = DRAFTERS[how]()  # to make a model takes randomness
    torch.manual_seed(13)
    found = generate(model, **batch(), **options, **drafter)
    torch.manual_seed(13)
    assert torch.equal(found, generate(model, **batch(), **options, num_assistant_tokens=0))
    stock = Stock(model)
    for length, text in zip(LENGTHS, found.tolist(), strict=True):
        text = text[max(LENGTHS) - length :]
        rows = stock.logits(text)
        for at in range(length, len(text)):
            if text[at] == PAD and 2 in text[length:at]:
                break  # it has ended
            assert text[at] in np.argsort(rows[at - 1])[-2:]


def test_t47_characters_split_across_blocks_stream_whole(tmp_path):
    """Every byte is a token, and a processor spells emoji and CJK; Hugging Face's own streamer shows the text."""
    folder = make_folder(tmp_path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    wanted = "é漢字🙂🇨🇭 end"
    ids, prompt = tokenizer(wanted).input_ids, tokenizer("abc", return_tensors="pt").input_ids

    def spell(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(1, torch.tensor([ids[(input_ids.shape[1] - 3) % len(ids)]]), 1e4)

    for depth in (0, 2, 5):
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
        options = {"max_new_tokens": len(ids), "logits_processor": [spell], "streamer": streamer}
        found = generate(model, prompt, assistant_model=model, num_assistant_tokens=depth, **options)
        pieces = list(streamer)
        assert "".join(pieces) == wanted == tokenizer.decode(found[0, 3:])
        assert not any("\ufffd" in piece for piece in pieces)
