"""A request assembled from plain configuration, on a tiny model in a folder."""

import pytest

from draftproof.llm import LLM, default_params, not_applied
from draftproof.sampling import SamplingParams
from tests.folders import make_folder, said


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="module")
def plain(folder):
    return LLM(str(folder), dtype="float32")


def sampled(seed=3, **kwargs):
    return SamplingParams(**{"temperature": 1.0, "seed": seed, "max_tokens": 60} | kwargs)


@pytest.mark.parametrize("params", [sampled(), sampled(temperature=0.0), sampled(top_k=5, top_p=0.9, min_p=0.01)])
@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("method", ["ngram", "draft_model", "self"])
def test_the_same_seed_gives_the_same_ids_with_every_drafter(plain, folder, other, method, depth, params):
    if plain.claim != "bit-exact":
        pytest.skip("the matrix products of this machine change with the row count: same law only")
    models = {"ngram": {}, "draft_model": {"model": str(other)}, "self": {"model": str(folder)}}
    config = {"method": "ngram" if method == "ngram" else "draft_model", "num_speculative_tokens": depth}
    fast = plain.speculating(config | models[method])
    got, expected = said(fast, "abcabcabcabc", params), said(plain, "abcabcabcabc", params)
    assert got.token_ids == expected.token_ids
    assert got.text == expected.text
    assert got.stats.drafted > 0
    if method == "self":
        assert got.stats.accepted >= got.stats.drafted - depth, "only the end may cut a draft short"


@pytest.mark.parametrize("verify", ["token", "block"])
def test_rules_with_noise_of_their_own_repeat_for_a_seed(plain, other, verify):
    fast = plain.speculating({"method": "draft_model", "model": str(other), "verify": verify})
    assert said(fast, "hello", sampled()).token_ids == said(fast, "hello", sampled()).token_ids


def test_a_fresh_seed_is_drawn_reported_and_repeats_the_text(plain):
    first = said(plain, "hello", sampled(seed=None))
    assert said(plain, "hello", sampled(seed=first.seed)).text == first.text
    assert said(plain, "hello", sampled(seed=None)).seed != first.seed


def test_the_stream_concatenates_to_the_text_and_says_whose_it_is(plain, folder):
    fast = plain.speculating({"method": "draft_model", "model": str(folder), "num_speculative_tokens": 2})
    request = fast.start(fast.encode("abcabcabc"), sampled())
    deltas = list(request)
    done = request.result()
    assert "".join(delta.text for delta in deltas) == done.text
    assert {owner for delta in deltas for _, owner in delta.pieces} == {"draft", "target"}
    assert sum(delta.step.accepted for delta in deltas) == done.stats.accepted > 0


def test_a_stop_string_is_never_streamed(plain):
    whole = said(plain, "abcabcabc", sampled()).text
    stop = whole[20:23]
    request = plain.start("abcabcabc", sampled(stop=(stop,)))
    shown = "".join(delta.text for delta in request)
    done = request.result()
    assert shown == done.text == whole[: whole.index(stop)]
    assert (done.finish_reason, done.stop_reason) == ("stop", stop)


def test_the_context_is_filled_to_the_limit_and_no_further(folder):
    llm = LLM(str(folder), dtype="float32", speculative_config={"method": "ngram"})
    prompt = llm.encode("ab" * 245, raw=True)
    done = llm.start(prompt, sampled(max_tokens=500)).result()
    assert len(prompt) + len(done.token_ids) == 512 or (done.stop_reason is None and done.finish_reason == "stop")
    assert done.config["limit"] == 512 - len(prompt)


def test_one_stop_string_may_stand_alone():
    assert SamplingParams(stop="x", stop_token_ids=[3]) == SamplingParams(stop=("x",), stop_token_ids=(3,))


def test_two_requests_interleaved_do_not_disturb_each_other(plain):
    expected = [plain.start([1, 2, 3, seed], sampled(seed)).result().token_ids for seed in range(2)]
    requests = [plain.start([1, 2, 3, seed], sampled(seed)) for seed in range(2)]
    for _ in zip(*requests, strict=False):
        pass
    assert [request.result().token_ids for request in requests] == expected


def test_a_draft_of_another_vocabulary_is_refused(plain, tmp_path):
    permuted = make_folder(tmp_path, reverse=True)
    with pytest.raises(ValueError, match="its vocabulary is the target's, permuted"):
        plain.speculating({"method": "draft_model", "model": str(permuted)})


def test_generation_config_gives_the_defaults_and_what_is_not_applied_is_named():
    given = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
    given |= {"no_repeat_ngram_size": 3, "typical_p": 1.0}
    params = default_params(given)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.7, 20, 0.8, 0.0)
    assert (params.repetition_penalty, params.typical_p) == (1.05, 1.0)
    assert not_applied(given) == {"no_repeat_ngram_size": 3}
    asked = {"num_beams": 4, "stop_strings": ["x"], "max_new_tokens": 9, "num_return_sequences": 1, "use_cache": True}
    assert set(not_applied(asked)) == {"num_beams", "stop_strings", "max_new_tokens"}
    assert default_params({}).temperature == 1.0
    assert default_params({"do_sample": False, "temperature": 0.6}).greedy
