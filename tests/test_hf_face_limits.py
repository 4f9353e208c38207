"""The Hugging Face face: how texts end, what is returned, what is refused, and models left as they were found."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    PreTrainedModel,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    T5Config,
    T5ForConditionalGeneration,
    TextStreamer,
)

import draftproof
from draftproof import generate, speculative
from draftproof.models import borrow
from tests.hf_models import (
    DRAFTERS,
    NOISY,
    PAD,
    Recorder,
    Scaled,
    batch,
    model_of,
    noisy,
    one,
    plainly,
    words,
)
from tests.tiny import ARCHITECTURES, build

pytestmark = pytest.mark.usefixtures("one_thread")


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


@pytest.mark.usefixtures("unchecked")
def test_an_assistant_that_is_none_or_asks_for_a_schedule_is_refused():
    with pytest.raises(ValueError, match=r"^assistant_model: 'small' is not allowed; it must be a transformers model"):
        generate(model_of(), **one(), assistant_model="small")
    helper = copy.deepcopy(noisy())
    helper.generation_config.num_assistant_tokens_schedule = "heuristic"
    with pytest.raises(ValueError, match=r"^num_assistant_tokens_schedule: 'heuristic' is not supported by draftproof"):
        generate(model_of(), **one(), assistant_model=helper)


def test_arguments_by_position_are_generates():
    model, config = model_of(), GenerationConfig(max_new_tokens=5, pad_token_id=PAD)
    given = one()["input_ids"], config, [Scaled()], []  # which change no argmax
    assert torch.equal(generate(model, *given), plainly(model, inputs=given[0], generation_config=config))


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
