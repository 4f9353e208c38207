"""LLM.generate and LLM.chat: vLLM's names and shapes, every option under the engine and its kernels, and the cases of
the field again under this face."""

# ruff: noqa: N802  (the T is part of a case's name)

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from draftproof.base import token_key
from draftproof.chance import PhiloxChance
from draftproof.laws import warp
from draftproof.llm import LLM
from draftproof.sampling import SamplingParams
from tests.folders import answers, make_folder, said

pytestmark = pytest.mark.usefixtures("unchecked")  # shape checks treble its time; other tests of these rooms have them

PROMPT = "abcabcabcabc"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="module")
def plain(folder):
    llm = LLM(str(folder), dtype="float32")
    if llm.claim != "bit-exact":
        pytest.skip("the matrix products of this machine change with the row count: same law only")
    return llm


@pytest.fixture(scope="module", params=["ngram", "another model"])
def fast(plain, other, request):
    if request.param == "ngram":
        return plain.speculating({"method": "ngram", "num_speculative_tokens": 4})
    return plain.speculating({"model": str(other), "num_speculative_tokens": 8})


class Stock:
    """The model in transformers, the whole text at every call."""

    def __init__(self, folder) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.inference_mode()
    def logits(self, text) -> np.ndarray:
        """[tokens, v]."""
        return self._model(input_ids=torch.tensor([list(text)])).logits[0].double().numpy()


@pytest.fixture(scope="module")
def stock(folder):
    return Stock(folder)


def no_doubles(input_ids, scores):
    scores[:, input_ids[0, -1]] = -torch.inf
    return scores


OPTIONS = {
    "temperature": {"temperature": 0.6},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.2},
    "typical_p": {"typical_p": 0.5},
    "logit_bias": {"logit_bias": {97: 3.0, 98: -100}},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "frequency_penalty": {"frequency_penalty": 0.9},
    "presence_penalty": {"presence_penalty": -1.5},
    "bad_words": {"bad_words": ["ab", "c"]},
    "min_tokens": {"min_tokens": 20, "stop_token_ids": list(range(0, 257, 5))},
    "stop": {"stop": ["a", "b", "z"], "min_tokens": 4},
    "stop_token_ids": {"stop_token_ids": [5, 97, 200]},
    "ignore_eos": {"ignore_eos": True, "logit_bias": {256: 8}},
    "logits_processors": {"logits_processors": [no_doubles]},
    "logprobs": {"logprobs": 2},
    "prompt_logprobs": {"prompt_logprobs": 0},
    "all of them": {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.97,
        "min_p": 0.001,
        "typical_p": 0.97,
        "logit_bias": {97: 2.0},
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.2,
        "bad_words": ["ab"],
        "min_tokens": 20,
        "logits_processors": [no_doubles],
        "logprobs": 1,
    },
}


def params_of(name: str, seed: int = 3) -> SamplingParams:
    return SamplingParams(**{"seed": seed, "max_tokens": 32} | OPTIONS[name])


@pytest.mark.parametrize("name", OPTIONS)
def test_ids_are_those_of_the_oracle_without_speculation(plain, fast, name):
    """Alone, and in a batch of four with three others' settings."""
    names = [name, *(other for other in ["all of them", "greedy", "min_p", "logit_bias"] if other != name)][:4]
    params = [params_of(each, seed) for seed, each in enumerate(names)]
    together = answers(fast, [PROMPT] * 4, params)
    alone = said(fast, PROMPT, params[0])
    assert alone.token_ids == together[0].token_ids
    for each, found in zip(params, together, strict=True):
        known = plain.start(PROMPT, each).result()
        assert found.token_ids == known.token_ids
        assert found.text == known.text
        assert (found.finish_reason, found.stop_reason) == (known.finish_reason, known.stop_reason)
        assert found.logprobs == known.logprobs


def test_the_batches_bite(fast):
    """What the test above rests on: drafts were accepted, refused, and cut in mid block."""
    done = answers(fast, [PROMPT] * len(OPTIONS), [params_of(name) for name in OPTIONS])
    assert sum(answer.stats.accepted for answer in done) > 0
    assert sum(answer.stats.drafted - answer.stats.accepted for answer in done) > 0
    assert {answer.finish_reason for answer in done} == {"stop", "length"}


def test_the_shapes_are_vllms(fast):
    params = SamplingParams(n=2, seed=1, max_tokens=6, logprobs=1, prompt_logprobs=1)
    outputs = fast.generate(["abc", {"prompt": "abd"}, {"prompt_token_ids": [97, 98]}, [97, 98, 99]], params)
    assert [output.prompt for output in outputs] == ["abc", "abd", None, None]
    assert [output.prompt_token_ids for output in outputs][2:] == [[97, 98], [97, 98, 99]]
    assert len({output.request_id for output in outputs}) == 4
    for output in outputs:
        assert output.finished
        assert [answer.index for answer in output.outputs] == [0, 1]
        assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
        for answer in output.outputs:
            assert len(answer.logprobs) == len(answer.token_ids)
            assert answer.cumulative_logprob == pytest.approx(
                sum(entry[token].logprob for token, entry in zip(answer.token_ids, answer.logprobs, strict=True))
            )
        assert output.stats.emitted == sum(len(answer.token_ids) for answer in output.outputs)
    assert fast.generate([], params) == []
    assert fast.generate("abc", sampling_params=params)[0].outputs[0].token_ids == outputs[0].outputs[0].token_ids
    unasked = said(fast, "abc", SamplingParams(max_tokens=2))
    assert unasked.logprobs is None
    assert len(outputs[0].prompt_token_ids + outputs[0].outputs[0].token_ids) > 3
    assert unasked.cumulative_logprob is None


def test_each_of_n_has_noise_of_its_own_and_repeats(fast):
    params = SamplingParams(n=4, seed=5, max_tokens=12)
    [one], [two] = fast.generate([PROMPT], params), fast.generate([PROMPT], params)
    assert [answer.token_ids for answer in one.outputs] == [answer.token_ids for answer in two.outputs]
    assert len({tuple(answer.token_ids) for answer in one.outputs}) == 4
    assert one.outputs[0].token_ids == said(fast, PROMPT, replace(params, n=1)).token_ids
    [free] = fast.generate([PROMPT], replace(params, seed=None))
    assert len({answer.seed for answer in free.outputs}) == 1
    with pytest.raises(ValueError, match=r"^n: 4 is not allowed here; this gives one answer"):
        fast.start(PROMPT, params)


def test_chat_goes_through_the_template(fast):
    params = SamplingParams(seed=1, max_tokens=5)
    conversation = [{"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    [output] = fast.chat(conversation, params)
    assert fast.loaded.tokenizer.decode(output.prompt_token_ids) == "[system]be[user]hi[a]"
    assert output.outputs[0].token_ids == said(fast, "[system]be[user]hi[a]", params).token_ids
    both = fast.chat([conversation, conversation[1:]], params)
    assert both[0].outputs[0].token_ids == output.outputs[0].token_ids
    assert len(both) == 2
    assert output.prompt == "[system]be[user]hi[a]"
    [started] = fast.chat(
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "so f"}],
        params,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert fast.loaded.tokenizer.decode(started.prompt_token_ids).endswith("[assistant]so f")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda llm: llm.generate(["a", ""]), r"prompts\[1\]: prompt: it is empty"),
        (lambda llm: llm.generate(5), "prompts: 5 is not allowed; it must be"),
        (lambda llm: llm.generate(["a", 5.5]), r"prompts\[1\]: prompt: 5.5 is not allowed; it must be a text, tokens"),
        (lambda llm: llm.generate({"text": "a"}), "prompt: unknown key 'text'; known are prompt, prompt_token_ids"),
        (lambda llm: llm.generate([[1], [999]]), r"prompts\[1\]: prompt: 999 is not allowed"),
        (lambda llm: llm.generate([1, 2.5]), "prompt: 2.5 is not allowed"),
        (lambda llm: llm.generate({"role": "user", "content": "a"}), "prompt: .* is a message; use chat"),
        (lambda llm: llm.generate(["a"], [SamplingParams()] * 2), "sampling_params: 2 for 1 prompts; give one"),
        (lambda llm: llm.generate("a", {"temperature": 1}), "sampling_params: .* must be SamplingParams"),
        (lambda llm: llm.generate("a", SamplingParams(logit_bias={999: 1})), "logit_bias: 999"),
        (lambda llm: llm.chat([[]]), r"messages\[0\]: \[\] is not allowed; it must be a list of dicts"),
        (lambda llm: llm.chat("hi"), "messages: 'hi' is not allowed"),
        (lambda llm: llm.chat([{"role": "user"}]), r"messages\[0\]: content None is not allowed"),
        (
            lambda llm: llm.chat([{"role": "user", "content": [{"type": "image_url"}]}]),
            r"messages\[0\]: .* of type text",
        ),
        (lambda llm: llm.chat([[{"role": "user", "content": "a"}], "b"]), r"messages\[1\]: 'b' is not allowed"),
    ],
)
def test_a_wrong_call_is_one_line_that_names_it(plain, call, words):
    with pytest.raises(ValueError, match=f"^{words}") as caught:
        call(plain)
    assert "\n" not in str(caught.value)
    assert plain.engine.running == plain.engine.waiting == 0


@pytest.mark.parametrize("kind", ["answer", "prompt"])
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_T46_logprobs_are_those_of_a_forward_of_the_stock_model(plain, folder, stock, kind, mode):
    """One entry a token, all accepted (the model drafts for itself) and all refused, raw ones without the warping."""
    params = SamplingParams(temperature=0.7, top_k=3, seed=2, max_tokens=20, logprobs_mode=mode)
    params = replace(params, **{"logprobs" if kind == "answer" else "prompt_logprobs": 5})
    itself = plain.speculating({"model": str(folder), "num_speculative_tokens": 5})
    refused = plain.speculating({"method": "ngram", "num_speculative_tokens": 5})
    found = []
    for llm in (itself, refused):
        [output] = llm.generate([PROMPT], params)
        [answer] = output.outputs
        text = [*output.prompt_token_ids, *answer.token_ids]
        logits, told = stock.logits(text), answer.logprobs if kind == "answer" else output.prompt_logprobs
        first = len(output.prompt_token_ids) if kind == "answer" else 1
        assert len(told) == (len(answer.token_ids) if kind == "answer" else len(output.prompt_token_ids))
        for at, entry in enumerate(told[first if kind == "prompt" else 0 :], first):
            row = logits[at - 1] - logits[at - 1].max()
            row -= np.log(np.exp(row).sum())
            if mode == "processed_logprobs":
                with np.errstate(divide="ignore"):
                    row = np.log(warp(logits[at - 1], temperature=0.7, top_k=3))
            ids = list(entry)
            assert ids[0] == text[at]
            assert 5 <= len(ids) <= 6
            for token, each in entry.items():
                assert each.logprob == pytest.approx(row[token], abs=1e-5)
                assert each.decoded_token == llm.loaded.tokenizer.decode([token])
            ranks = sorted(each.rank for each in entry.values())
            assert ranks[0] == 1
            assert all(each.rank == 1 + int((row > row[token] + 1e-9).sum()) for token, each in entry.items())
        found.append(told)
    assert found[0] == found[1], "whoever drafts"
    stats = said(itself, PROMPT, params).stats
    assert stats.accepted == stats.drafted > 0
    assert said(refused, PROMPT, params).stats.drafted > 0


def test_prompt_logprobs_of_a_long_prompt_come_in_pieces_and_reuse_nothing(folder):
    """Beside others, with little room a round; then again, when its beginning is kept."""
    small = LLM(str(folder), dtype="float32", max_num_batched_tokens=8, check=True)
    prompt, params = "xyz" * 30, SamplingParams(seed=1, max_tokens=4, prompt_logprobs=1)
    known = small.start(prompt, params)
    known.result()
    for _ in range(2):
        found = small.generate([prompt, "abc", prompt[:50]], [params, SamplingParams(seed=2, max_tokens=30), params])
        assert found[0].prompt_logprobs == known.reply.prompt_logprobs
        assert found[2].prompt_logprobs == known.reply.prompt_logprobs[:50]
    reused = small.engine.counts.reused
    small.generate(prompt, replace(params, prompt_logprobs=None))
    assert small.engine.counts.reused > reused


def test_T37_a_bias_of_minus_100_on_a_frequent_token(plain):
    """2,000 tokens; and each token of min_p .2 has at least a fifth of the largest probability."""
    free = answers(plain, ["ab"] * 5, [SamplingParams(seed=i, max_tokens=400, ignore_eos=True) for i in range(5)])
    [(frequent, times)] = Counter(token for answer in free for token in answer.token_ids).most_common(1)
    params = SamplingParams(max_tokens=400, ignore_eos=True, logit_bias={frequent: -100}, min_p=0.2, logprobs=0)
    params = replace(params, logprobs_mode="processed_logprobs")
    fast = plain.speculating({"method": "ngram", "num_speculative_tokens": 4})
    done = answers(fast, ["ab"] * 5, [replace(params, seed=i) for i in range(5)])
    tokens = [token for answer in done for token in answer.token_ids]
    assert len(tokens) == 2000
    assert times > 20
    assert frequent not in tokens
    best = answers(fast, ["ab"] * 2, [replace(params, seed=i, logprobs=1, max_tokens=60) for i in range(2)])
    for answer in best:
        for token, entry in zip(answer.token_ids, answer.logprobs, strict=True):
            most = max(each.logprob for each in entry.values())
            assert entry[token].logprob >= most + np.log(0.2) - 1e-9


def test_T13_temperature_and_top_k_hold_at_every_row(fast, stock):
    """T = .5, top-k 2: no token outside the two largest of the stock model's row; the picks are the law's own."""
    params = SamplingParams(temperature=0.5, top_k=2, max_tokens=30)
    done = answers(fast, [PROMPT] * 8, [replace(params, seed=i) for i in range(8)])
    for seed, answer in enumerate(done):
        text = [*fast.loaded.tokenizer(PROMPT).input_ids, *answer.token_ids]
        rows = stock.logits(text)
        for at in range(len(PROMPT), len(text)):
            law = warp(rows[at - 1], temperature=0.5, top_k=2)
            assert law[text[at]] > 0
            assert PhiloxChance(seed).pick(law, token_key(at)) == (text[at],)
    assert sum(answer.stats.drafted for answer in done) > 0


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-5, 1e-3])
def test_T19_cold_is_the_argmax_beside_a_warm_row(fast, stock, temperature):
    done = answers(
        fast,
        [PROMPT, "zzz"],
        [SamplingParams(temperature=temperature, seed=1, max_tokens=16), SamplingParams(seed=2, max_tokens=16)],
    )
    text = [*fast.loaded.tokenizer(PROMPT).input_ids, *done[0].token_ids]
    rows = stock.logits(text)
    assert [int(rows[at - 1].argmax()) for at in range(len(PROMPT), len(text))] == list(done[0].token_ids)


def test_T26_the_first_occurrence_of_an_end_token_ends_it(plain, folder):
    """The token at index j of the greedy text, declared an end: all its blocks were cut at it."""
    itself = plain.speculating({"model": str(folder), "num_speculative_tokens": 4})
    known = said(plain, PROMPT, SamplingParams(temperature=0.0, max_tokens=12)).token_ids
    for token in known[1:9]:
        params = SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=[token])
        request = itself.start(PROMPT, params)
        shown = "".join(delta.text for delta in request)
        for done in (request.result(), said(itself, PROMPT, params)):
            assert done.token_ids == known[: known.index(token) + 1]
            assert (done.finish_reason, done.stop_reason) == ("stop", token)
            assert done.text == shown


@pytest.mark.parametrize("cut", [1, 2, 5, 11])
def test_T27_a_stop_string_in_a_block_cuts_ids_text_logprobs_and_usage_alike(plain, folder, cut):
    """A block of twelve tokens; the stop string is the text of tokens cut and cut + 1, so it spans two."""
    itself = plain.speculating({"model": str(folder), "num_speculative_tokens": 12})
    params = SamplingParams(seed=4, max_tokens=13, logprobs=1, ignore_eos=True, logit_bias=ASCII)
    whole = said(itself, PROMPT, params)
    stop = whole.text[cut : cut + 2]
    at = whole.text.index(stop)
    for llm in (plain, itself):
        done = said(llm, PROMPT, replace(params, stop=stop))
        assert done.text == whole.text[:at]
        assert done.token_ids == whole.token_ids[: at + 2]
        assert done.logprobs == whole.logprobs[: at + 2]
        assert (done.finish_reason, done.stop_reason, done.stats.emitted) == ("stop", stop, at + 2)


ASCII = {token: -100.0 for token in range(257) if not 33 <= token <= 93}
"""One character a token, so that texts can be counted."""


@pytest.mark.parametrize("streams", [True, False])
def test_T29_the_stop_that_comes_first_in_the_text_wins(plain, folder, streams):
    itself = plain.speculating({"model": str(folder), "num_speculative_tokens": 12})
    params = SamplingParams(seed=4, max_tokens=30, ignore_eos=True, logit_bias=ASCII)
    whole = said(plain, PROMPT, params).text
    stops = [whole[9], whole[6:8], whole[12]]
    at, first = min((whole.index(stop), stop) for stop in stops)
    asked = replace(params, stop=stops)
    request = itself.start(PROMPT, asked)
    text = "".join(delta.text for delta in request) if streams else said(itself, PROMPT, asked).text
    assert text == whole[:at]
    assert request.result().stop_reason == first


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_T30_exactly_max_tokens_and_no_draft_that_cannot_be_emitted(plain, limit):
    fast = plain.speculating({"method": "ngram", "num_speculative_tokens": 3})
    request = fast.start("ab" * 20, SamplingParams(seed=1, max_tokens=limit, ignore_eos=True))
    left = limit
    for delta in request:
        assert len(delta.step.draft) <= left - 1
        left -= len(delta.step.tokens)
    assert len(request.result().token_ids) == len(
        said(fast, "ab" * 20, SamplingParams(seed=1, max_tokens=limit)).token_ids
    )
    assert left == 0


def test_T39_never_more_than_k_and_the_second_call_is_the_first(plain):
    fast = plain.speculating({"method": "ngram", "num_speculative_tokens": 5})
    params = SamplingParams(seed=8, max_tokens=40)
    one, two = said(fast, PROMPT, params), said(fast, PROMPT, params)
    assert one.token_ids == two.token_ids
    assert one.stats.accepted_per_position == two.stats.accepted_per_position
    assert len(one.stats.drafted_per_position) <= 5
    assert one.config["speculation"]["num_speculative_tokens"] == 5
    assert json.loads(json.dumps(one.config))["sampling"]["top_p"] == 1.0
    with pytest.raises(TypeError, match="topk"):
        SamplingParams(topk=3)
    with pytest.raises(
        ValueError, match=r"unknown key 'num_draft_tokens'; known are method, model, num_speculative_tok"
    ):
        plain.speculating({"num_draft_tokens": 3})


def test_T47_characters_split_across_blocks_are_never_shown_in_part(plain, folder):
    """Every byte is a token; UTF-8 of emoji and CJK is made likely by a processor that follows it."""
    wanted = "é漢字🙂🇨🇭 end"
    ids = plain.loaded.tokenizer(wanted).input_ids

    def spell(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at = input_ids.shape[1] - 3
        return scores if at >= len(ids) else scores.index_fill(1, torch.tensor([ids[at]]), 1e4)

    params = SamplingParams(seed=1, max_tokens=len(ids), logits_processors=[spell])
    for depth in (1, 2, 3, 5):
        llm = plain.speculating({"model": str(folder), "num_speculative_tokens": depth})
        request = llm.start("abc", params)
        deltas = [delta.text for delta in request]
        assert "".join(deltas) == request.result().text == wanted
        assert not any("\ufffd" in delta for delta in deltas)
        assert any(len(delta.step.tokens) > 1 for delta in [*llm.start("abc", params)])


def test_vllms_getters_and_what_a_template_asks_for(plain):
    assert plain.get_tokenizer() is plain.loaded.tokenizer
    assert plain.get_default_sampling_params() == SamplingParams()
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ '!' if loud else '.' }}"
    tokenizer = plain.get_tokenizer()
    before, tokenizer.chat_template = tokenizer.chat_template, template
    try:
        conversation = [{"role": "user", "content": "hi"}]
        [output] = plain.chat(conversation, SamplingParams(max_tokens=1), chat_template_kwargs={"loud": True})
    finally:
        tokenizer.chat_template = before
    assert output.prompt == "hi!"


def test_a_stop_id_outside_the_vocabulary_is_named(plain):
    with pytest.raises(ValueError, match=r"^stop_token_ids: 257 is not allowed; it must be a whole number in 0 .. 256"):
        plain.generate("a", SamplingParams(stop_token_ids=[257]))


@pytest.mark.parametrize("k", [2, 8, 48])
def test_T35_penalties_count_the_committed_tokens_and_the_path(plain, other, stock, k):
    """Against the stock model, its logits adjusted by counting anew at every position."""
    fast = plain.speculating({"model": str(other), "num_speculative_tokens": k})
    params = SamplingParams(
        seed=35, max_tokens=30, repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.25, ignore_eos=True
    )
    [output] = fast.generate(PROMPT, params)
    text = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    rows, first = stock.logits(text), len(output.prompt_token_ids)
    for at in range(first, len(text)):
        row, said_so_far = rows[at - 1].astype(np.float32), Counter(text[first:at])
        for token in set(text[:at]):
            row[token] = row[token] / 1.5 if row[token] > 0 else row[token] * 1.5
        for token, count in said_so_far.items():
            row[token] -= 0.5 * count + 0.25
        assert PhiloxChance(35).pick(warp(row), token_key(at)) == (text[at],)
    assert output.stats.drafted > output.stats.accepted
