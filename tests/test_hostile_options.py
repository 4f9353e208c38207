"""What a hostile reader of the options and of LLM's face broke, each mended for its whole kind."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
import torch
from transformers.generation import SynthIDTextWatermarkLogitsProcessor

from draftproof.assemble import spellings
from draftproof.async_engine import AsyncEngine, RequestError
from draftproof.cli.app import run
from draftproof.llm import LLM
from draftproof.sampling import SamplingParams, StructuredOutputsParams
from tests.folders import answers, make_folder, said

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def plain(folder):
    llm = LLM(str(folder), dtype="float32")
    if llm.claim != "bit-exact":
        pytest.skip("the matrix products of this machine change with the row count: same law only")
    return llm


@pytest.fixture(scope="module")
def drafted(plain, folder, tmp_path_factory):
    """The same target with each drafter."""
    other = str(make_folder(tmp_path_factory.mktemp("other"), seed=1))
    return [
        plain.speculating({"method": "ngram"}),
        plain.speculating({"model": other, "num_speculative_tokens": 4}),
        plain.speculating({"model": str(folder), "num_speculative_tokens": 4}),
    ]


def no_doubles(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return scores.index_fill(1, ids[0, -1:], -torch.inf)


class Halved:
    """A pure function that writes its result into the same tensor every time."""

    def __init__(self) -> None:
        self._out = torch.empty(1, 257)

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.mul(scores, 0.5, out=self._out)


def until(length: int):
    """A processor that fails on longer texts, which none of the answers asked for here reaches."""

    def check(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] > length:
            raise KeyError("too long")
        return scores

    return check


MANY = " | ".join(f'"x{i}"' for i in range(2100))
CASES = {
    "a processor that gives the same tensor": ("abcabcabcabc", {"logits_processors": [Halved()], "max_tokens": 16}),
    "no law beyond a drafted end": (
        [64, 65, 66, 256] * 3 + [64],
        {"temperature": 0, "structured_outputs": {"regex": "bc"}, "logits_processors": [no_doubles]},
    ),
    "no law on a path that is not taken": (
        "hello",
        {"temperature": 0, "min_tokens": 3, "structured_outputs": {"regex": "b|aaaa"}},
    ),
    "no law on a path of the model's own": (
        "abc",
        {"seed": 1, "structured_outputs": {"regex": "[ab]{2,4}"}, "logits_processors": [no_doubles]},
    ),
    "a form that fails on a path that is not taken": (
        "aitaitaita",
        {
            "structured_outputs": {"grammar": f'start: "zebra" | "i" big\nbig: {MANY}'},
            "logit_bias": {89: 30.0},
        },
    ),
    "an error beyond a stop string": (
        "abaababa",
        {"temperature": 0, "logit_bias": {64: 50}, "stop": "aaa", "logits_processors": [until(10)]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_answer_never_reaches_does_not_change_it(plain, drafted, name):
    prompt, options = CASES[name]
    params = SamplingParams(**({"seed": 1, "max_tokens": 12} | options))
    known = said(plain, prompt, params)
    assert known.error is None
    for llm in drafted:
        alone = llm.start(prompt, params).result()
        found, mate = answers(llm, [prompt, "abc"], [params, SamplingParams(seed=2, max_tokens=8)])
        assert (found.error, found.token_ids, found.text) == (None, known.token_ids, known.text)
        assert alone.token_ids == known.token_ids
        assert mate.token_ids == said(plain, "abc", SamplingParams(seed=2, max_tokens=8)).token_ids


def test_an_error_that_the_answer_reaches_comes_after_the_tokens_before_it(plain, drafted):
    params = SamplingParams(seed=1, max_tokens=12, logits_processors=[until(9)])
    for llm in (plain, *drafted):
        found, _ = answers(llm, ["abcabc", "abc"], [params, SamplingParams(seed=2, max_tokens=8)])
        assert found.finish_reason == "error"
        assert found.error.endswith("position 10: logits_processors: function failed: KeyError: 'too long'")
        assert len(found.token_ids) == 4


def test_a_processor_that_remembers_is_refused(plain):
    marked = SynthIDTextWatermarkLogitsProcessor(5, [1, 2, 3], 1024, 0, 16, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"^logits_processor: SynthIDTextWatermarkLogitsProcessor is not supported"):
        said(plain, "abc", SamplingParams(logits_processors=[marked]))


def test_banning_white_space_does_not_ban_a_space(plain):
    tokenizer = plain.loaded.tokenizer
    space, newline, a = (tokenizer(text).input_ids[0] for text in (" ", "\n", "a"))
    assert spellings("\n", tokenizer) == [(newline,)]
    assert spellings(" a", tokenizer) == [(space, a), (a,)]
    assert spellings("a", tokenizer) == [(a,), (space, a)]


def test_many_choices(plain):
    choices = [f"item {i} {i * 7919 % 10007}" for i in range(2100)]
    params = SamplingParams(seed=1, max_tokens=30, structured_outputs={"choice": choices})
    assert said(plain, "abc", params).text in choices


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"bad_words": ["\ud800"]}, "bad_words: '\\ud800' is not allowed"),
        ({"stop": ["\ud800"]}, "stop: '\\ud800' is not allowed"),
        ({"stop_token_ids": [10**30], "min_tokens": 2}, "stop_token_ids: 1000"),
        ({"temperature": 10**400}, "temperature: so large a number is not allowed"),
        ({"top_k": 10**30}, "top_k: 1000"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias: '9999"),
        ({"structured_outputs": {"json_object": "no"}}, "json_object: 'no' is not allowed"),
        ({"structured_outputs": {"choice": 5}}, "choice: 5 is not allowed"),
    ],
)
def test_wrong_options_are_one_line_and_a_line_of_a_file_too(folder, tmp_path, capsys, wrong, words):
    with pytest.raises(ValueError, match=r"^\w+: ") as caught:
        SamplingParams(**wrong)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
    source = tmp_path / "p.jsonl"
    source.write_text(json.dumps({"prompt": "a"}) + "\n" + json.dumps({"prompt": "b"} | wrong) + "\n")
    assert run(["generate", "--prompts", str(source), "--model", str(folder)]) == 2
    err = capsys.readouterr().err
    assert "line 2: " in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda llm: llm.generate(b"abc"), "prompts: b'abc' is not allowed"),
        (lambda llm: llm.generate([b"abc"]), r"prompts\[0\]: prompt: b'abc' is not allowed"),
        (lambda llm: llm.generate({"prompt_token_ids": "abc"}), "prompt: 'abc' is not allowed"),
        (lambda llm: llm.generate({"prompt_token_ids": {"prompt": "abc"}}), "prompt: {'prompt': 'abc'} is not allowed"),
        (lambda llm: llm.generate([[{"role": "user", "content": "a"}]]), "prompts: .* is a conversation; use chat"),
        (lambda llm: llm.generate("a", 5), "sampling_params: 5 is not allowed; it must be SamplingParams"),
        (lambda llm: llm.start("a", 5), "sampling_params: 5 is not allowed; it must be SamplingParams"),
        (lambda llm: llm.generate(["a"], ["b"]), "sampling_params: 'b' is not allowed; it must be SamplingParams"),
    ],
)
def test_another_prompt_is_never_answered(plain, call, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        call(plain)


def test_numbers_may_be_numpys(plain):
    given = SamplingParams(
        seed=np.int64(1),
        temperature=np.float32(0.5),
        top_k=np.int32(5),
        max_tokens=np.int64(4),
        stop_token_ids=np.array([1, 2]),
        logit_bias={np.int64(3): np.float64(1.5)},
    )
    assert given == SamplingParams(
        seed=1, temperature=0.5, top_k=5, max_tokens=4, stop_token_ids=[1, 2], logit_bias={3: 1.5}
    )
    known = said(plain, [97, 98], given).token_ids
    for prompt in ([np.int64(97), np.int64(98)], np.array([97, 98]), {"prompt_token_ids": np.array([97, 98])}):
        assert said(plain, prompt, given).token_ids == known
    json.dumps(said(plain, [97, 98], given).as_dict())


def test_without_max_tokens_the_context_is_filled(folder):
    llm = LLM(str(folder), dtype="float32")
    done = said(llm, [1] * 500, SamplingParams(seed=1, max_tokens=None, ignore_eos=True))
    assert len(done.token_ids) == 12


def test_a_stop_string_that_ends_behind_min_tokens_counts(plain):
    params = SamplingParams(seed=1, max_tokens=8, structured_outputs={"regex": "abxabx"}, stop="ab")
    assert said(plain, "abc", params).text == ""
    assert said(plain, "abc", SamplingParams(**(vars_of(params) | {"min_tokens": 1}))).text == ""
    assert said(plain, "abc", SamplingParams(**(vars_of(params) | {"min_tokens": 2}))).text == "abx"


def vars_of(params: SamplingParams) -> dict:
    return {name: getattr(params, name) for name in ("seed", "max_tokens", "structured_outputs", "stop")}


def test_broken_characters_of_the_prompt_are_not_the_answers(plain):
    """The prompt ends in two of a character's three bytes: alone they are nobody's text, finished the answer's."""
    tokenizer = plain.loaded.tokenizer
    first, second, third = tokenizer("漢").input_ids
    [a] = tokenizer("a").input_ids
    for forced, text in ((a, "aaa"), (third, None)):
        done = said(plain, [a, first, second], SamplingParams(seed=1, max_tokens=3, logit_bias={forced: 100}))
        if text is not None:
            assert done.text == text
        else:
            assert done.text.startswith("漢")


def test_nothing_is_sorted_for_the_tokens_own_logprob(plain, monkeypatch):
    monkeypatch.setattr(np, "argsort", lambda *args, **kwargs: pytest.fail("sorted"))
    done = said(plain, "abc", SamplingParams(seed=1, max_tokens=3, logprobs=0))
    assert [len(entry) for entry in done.logprobs] == [1, 1, 1]


def test_the_prompt_of_several_answers_is_noted_once(plain):
    before = plain.engine.counts.rows
    [output] = plain.generate(["abc" * 60], SamplingParams(n=4, seed=1, max_tokens=2, prompt_logprobs=0))
    assert len(output.prompt_logprobs) == 180
    assert plain.engine.counts.rows - before < 600


def test_streams_refuse_what_they_do_not_tell(plain):
    async def main() -> None:
        async with AsyncEngine(plain) as engine:
            with pytest.raises(ValueError, match=r"^prompt_logprobs: 1 is not allowed here"):
                await engine.generate("abc", SamplingParams(prompt_logprobs=1))
            with pytest.raises(ValueError, match=r"^n: 2 is not allowed here"):
                await engine.generate("abc", SamplingParams(n=2))
            with pytest.raises(ValueError, match=r"^sampling_params: 5 is not allowed"):
                await engine.generate("abc", 5)

    asyncio.run(main())


def test_readers_are_told_whatever_ends_the_engines_thread(folder):
    llm = LLM(str(folder), dtype="float32")

    def leave(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise SystemExit(3)

    async def main() -> None:
        engine = AsyncEngine(llm)
        asked = [engine.generate("abc", SamplingParams(max_tokens=5, logits_processors=each)) for each in ([leave], [])]
        found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)
        assert all(isinstance(each, RequestError) for each in found)

    asyncio.run(main())


def test_the_form_may_be_given_by_its_class(plain):
    params = SamplingParams(seed=1, structured_outputs=StructuredOutputsParams(choice=("red", "blue")))
    assert said(plain, "abc", params).text in ("red", "blue")
