"""Known faults of this field (cases.md) under the Hugging Face face."""

# ruff: noqa: N802  (the T is part of a case's name)

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    TextIteratorStreamer,
)

from draftproof import generate, speculative
from tests.folders import make_folder
from tests.hf_models import (
    DRAFTERS,
    LENGTHS,
    NOISY,
    PAD,
    Recorder,
    Scaled,
    batch,
    model_of,
    one,
    plainly,
    words,
)
from tests.tiny import Stock

pytestmark = pytest.mark.usefixtures("one_thread")


def test_T19_tiny_temperatures_are_greedy():
    model = model_of()
    want = plainly(model, **batch(), max_new_tokens=12)
    for temperature in (1e-8, 1e-5, 1e-3):
        got = generate(model, **batch(), max_new_tokens=12, do_sample=True, temperature=temperature)
        assert torch.equal(got, want), temperature


def test_T26_an_end_in_the_middle_of_a_block():
    model = model_of()
    whole = plainly(model, **one(), max_new_tokens=14, eos_token_id=None)[0, 12:].tolist()
    for j in range(1, 11):
        streamer = Recorder()
        options = {"max_new_tokens": 14, "eos_token_id": whole[j], "assistant_model": model}
        got = generate(model, **one(), **options, streamer=streamer)[0, 12:].tolist()
        first = whole.index(whole[j])
        assert got == streamer.said == whole[: first + 1], j
    assert {len(block) for block in streamer.blocks} == {6, 5}  # the last end was amid a block


def test_T27_a_stop_string_in_the_middle_of_a_block():
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


def test_T29_the_earliest_of_several_stops():
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
def test_T30_never_more_than_asked_for_and_never_a_draft_for_nothing(most, drafted):
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
def test_T35_a_repetition_penalty_under_refused_drafts(depth):
    model, inputs = model_of(), one()
    ids = inputs["input_ids"].clone()
    want = plainly(model, **inputs, max_new_tokens=40, repetition_penalty=1.3, eos_token_id=None)
    assert not torch.equal(want, plainly(model, **inputs, max_new_tokens=40, eos_token_id=None))
    options = {"max_new_tokens": 40, "repetition_penalty": 1.3, "eos_token_id": None, "num_assistant_tokens": depth}
    streamer = Recorder()
    assert torch.equal(generate(model, **inputs, **options, assistant_model=NOISY(), streamer=streamer), want)
    assert 3 <= max(len(block) for block in streamer.blocks) < 40
    assert torch.equal(inputs["input_ids"], ids)


def test_T37_a_bias_of_minus_100_and_min_p():
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


def test_T39_five_drafted_a_round_twice_the_same_and_unknown_options_refused(drafted):
    model, options = model_of(), {"max_new_tokens": 30, "eos_token_id": None}
    first = generate(model, **one(), **options, assistant_model=NOISY(), num_assistant_tokens=5)
    assert torch.equal(generate(model, **one(), **options, assistant_model=NOISY(), num_assistant_tokens=5), first)
    assert max(drafted) == 5
    with pytest.raises(ValueError, match="num_asistant_tokens"):
        generate(model, **one(), num_asistant_tokens=5)
    with pytest.raises(TypeError, match="num_asistant_tokens"):
        speculative(num_asistant_tokens=5)


@pytest.mark.parametrize("how", ["self", "wrong"])
def test_T46_scores_whether_all_is_taken_or_all_refused(how):
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
def test_T13_temperature_and_top_k_hold_at_every_row(how):
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


def test_T47_characters_split_across_blocks_stream_whole(tmp_path):
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
