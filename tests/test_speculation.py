"""What may be asked of speculation, and what follows from it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from draftproof.base import Kind
from draftproof.cli.options import drafter_named
from draftproof.llm import LLM
from draftproof.sampling import SamplingParams
from draftproof.speculation import SpeculativeConfig, full_tree, widths_of
from tests.folders import make_folder

MODEL = {"method": "draft_model", "model": "m"}


@pytest.mark.parametrize(
    ("given", "control", "depth", "widths", "parts"),
    [
        ({}, "cost", 16, (3, 2), ("suffix",)),
        ({"method": "auto", "model": "m"}, "cost", 16, (3, 2), ("suffix", "draft_model")),
        ({"model": "m"}, "cost", 16, (3, 2), ("draft_model",)),
        ({"method": "ngram", "num_speculative_tokens": 7}, "fixed", 7, (), ("ngram",)),
        ({"verify": "token"}, "fixed", 5, (), ("suffix",)),
        ({"verify": "token", "num_speculative_tokens": "auto"}, "cost", 16, (), ("suffix",)),
        ({"verify": "traversal", **MODEL, "tree": "2x2"}, "fixed", 2, (2, 2), ("draft_model",)),
        ({"tree": "4x2x1"}, "fixed", 3, (4, 2, 1), ("suffix",)),
        ({"tree": [4, 2], "num_speculative_tokens": "auto"}, "cost", 16, (4, 2), ("suffix",)),
        ({"controller": "threshold"}, "threshold", 5, (), ("suffix",)),
        ({"controller": "cost", "num_speculative_tokens": 3}, "cost", 3, (3, 2), ("suffix",)),
        (
            {"method": "combined", "drafters": ["draft_model", "suffix"], "model": "m"},
            *("cost", 16, (3, 2), ("suffix", "draft_model")),
        ),
        ({"method": "none"}, "cost", 0, (3, 2), ()),
    ],
)
def test_what_follows_from_a_configuration(given, control, depth, widths, parts):
    config = SpeculativeConfig.of(given)
    assert (config.control, config.depth, config.widths, config.parts) == (control, depth, widths, parts)


def test_a_model_draws_as_its_rule_takes_it():
    assert SpeculativeConfig.of(MODEL).kind is Kind.COUPLED
    assert SpeculativeConfig.of(MODEL | {"verify": "block"}).kind is Kind.SAMPLED


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tree": "4y2"}, "tree: '4y2' is not allowed; give children a node"),
        ({"tree": "0"}, "tree: '0' is not allowed"),
        ({"tree": "64x64"}, "of at most 256 nodes"),
        ({"tree": "2x2x2", "num_speculative_tokens": 2}, "num_speculative_tokens: 2 is not allowed; it must be >= 3"),
        ({"tree": "2", "verify": "token"}, "'token' takes a chain, but auto drafts a tree, 2; use coupled, recursive"),
        (
            {"controller": "fixed", "num_speculative_tokens": "auto"},
            "'auto' is not allowed with",
        ),
        ({"controller": "clever"}, "controller: 'clever' is unknown; known are fixed, threshold, cost"),
        ({"method": "combined"}, "drafters: [] with method 'combined'"),
        ({"method": "suffix", "drafters": ["ngram"]}, "they go with 'combined'"),
        ({"method": "combined", "drafters": "suffix"}, "drafters: 'suffix' is not allowed; give a list"),
        ({"method": "combined", "drafters": ["suffix", "suffix"]}, "each may be there once"),
        ({"method": "combined", "drafters": ["suffix", "eagle"]}, "drafters: 'eagle' is unknown"),
        ({"method": "early_exit"}, "early_exit_layers: None is not allowed; method 'early_exit' needs one"),
        ({"early_exit_layers": 3}, "early_exit_layers: 3 is not used by method 'auto'; use 'early_exit'"),
        ({"method": "ngram", "suffix_corpus": "."}, "suffix_corpus: '.' is not used by method 'ngram'"),
        ({"method": "ngram", "model": "x"}, "model: 'x' is not used by method 'ngram'"),
        ({"draft_vocabulary": 5}, "draft_vocabulary: 5 is not used by method 'auto'"),
        ({"quantization": "fp8", **MODEL}, "quantization: 'fp8' is unknown; known are int8, int4"),
        ({"method": "ngram", "tree": "4x2"}, "tree: '4x2' is not used by method 'ngram', which drafts chains"),
        ({"tree": "2", "vocabulary": "slem", **MODEL}, "tree: '2' is not used by method 'draft_model'"),
        ({"method": "none", "controller": "cost"}, "controller: 'cost' is not used by method 'none'"),
        ({"method": "none", "tree": "2"}, "tree: '2' is not used by method 'none'"),
        ({"prompt_lookup_max": 5}, "prompt_lookup_max: 5 is not used by method 'auto'"),
        ({"method": "ngram", "suffix_cache": False}, "suffix_cache: False is not used by method 'ngram'"),
        ({"suffix_corpus": "no/such"}, "suffix_corpus: there is no folder 'no/such'"),
        ({"suffix_corpus": ""}, "suffix_corpus: '' is not allowed"),
        ({"model": ""}, "model: '' is not allowed"),
        ({"tree": [True]}, "tree: [True] is not allowed"),
        ({"vocabulary": "slam", **MODEL}, "vocabulary: 'slam' is unknown; known are auto, same, tli, slem"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(given: dict, message: str):
    with pytest.raises(ValueError, match=message.replace("[", r"\[").replace("]", r"\]")) as caught:
        SpeculativeConfig.of(given)
    assert "\n" not in str(caught.value)


def test_trees_are_counted_level_by_level():
    assert widths_of("4X2x1") == (4, 2, 1)
    assert len(full_tree((4, 2, 1), 3)) == 4 + 8 + 8
    assert full_tree((), 3) == (-1, 0, 1)


@pytest.mark.parametrize(
    ("draft", "config"),
    [
        ("auto", {"method": "auto"}),
        ("auto:small", {"method": "auto", "model": "small"}),
        ("early_exit:7", {"method": "early_exit", "early_exit_layers": 7}),
        ("combined:suffix,model:a:b", {"method": "combined", "drafters": ["suffix", "draft_model"], "model": "a:b"}),
    ],
)
def test_the_names_of_the_command_line(draft: str, config: dict):
    assert drafter_named(draft) == config


@pytest.mark.parametrize("draft", ["eagle", "early_exit", "early_exit:x", "model:", "combined:", "combined:x"])
def test_a_name_that_means_nothing_lists_those_that_do(draft: str):
    with pytest.raises(ValueError, match="is unknown; use auto, auto:NAME, suffix"):
        drafter_named(draft)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return LLM(str(make_folder(tmp_path_factory.mktemp("model"))), dtype="float32", kv_cache_memory_bytes=1 << 28)


CONFIGS = {
    "auto": {"method": "auto"},
    "suffix, tree": {"method": "suffix", "tree": "3x2"},
    "early exit": {"method": "early_exit", "early_exit_layers": 1},
    "early exit, tree": {"method": "early_exit", "early_exit_layers": 1, "tree": "2x2"},
    "both": {"method": "combined", "drafters": ["suffix", "early_exit"], "early_exit_layers": 1, "tree": "2x1"},
    "threshold": {"method": "suffix", "controller": "threshold", "num_speculative_tokens": 6},
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", CONFIGS)
def test_the_text_is_that_of_plain_decoding_and_the_configuration_is_told(plain, name: str):
    """Alone and in company, and what is in effect is JSON."""
    if plain.claim != "bit-exact":
        pytest.skip("on this machine a row's bits depend on the rows beside it")
    fast = plain.speculating(CONFIGS[name])
    prompts = ["abcabcabcabc", "the cat and the cat and", "x"]
    for params in (SamplingParams(temperature=0, max_tokens=40), SamplingParams(seed=3, top_p=0.9, max_tokens=40)):
        known = [each.outputs[0].token_ids for each in plain.generate(prompts, params, use_tqdm=False)]
        found = [each.outputs[0] for each in fast.generate(prompts, params, use_tqdm=False)]
        assert [each.token_ids for each in found] == known
        assert [fast.start(prompt, params).result().token_ids for prompt in prompts] == known
        assert json.loads(json.dumps(found[0].config))["speculation"]["controller"] in ("cost", "fixed", "threshold")


@pytest.mark.usefixtures("unchecked")
def test_answers_are_remembered_where_they_cannot_change_a_text(plain):
    params = SamplingParams(temperature=0, max_tokens=40)
    for config, remembers in (({}, True), ({"verify": "token"}, False), ({"suffix_cache": False}, False)):
        fast = plain.speculating({"method": "suffix", **config})
        fast.generate("abc", params, use_tqdm=False)
        assert bool(len(fast.drafting.answers)) == remembers


def test_a_folder_of_texts_is_read(plain, tmp_path):
    (tmp_path / "a.txt").write_text("a text of its own")
    fast = plain.speculating({"method": "suffix", "suffix_corpus": str(tmp_path)})
    assert sum(len(corpus) for corpus in fast.drafting.drafter._corpora) > 5
    for _ in range(3):
        fast.generate("abc", SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
    assert not fast.drafting.drafter._corpora[1].forgotten, "answers do not push it out"
    with pytest.raises(ValueError, match="suffix_corpus: there is no folder"):
        plain.speculating({"method": "suffix", "suffix_corpus": str(tmp_path / "nowhere")})


@pytest.mark.usefixtures("unchecked")
def test_a_contrastive_target_says_the_same_with_its_amateur_drafting(tmp_path):
    ours, theirs = tmp_path / "expert", tmp_path / "amateur"
    make_folder(ours)
    make_folder(theirs, seed=1)
    contrast = {"model": str(theirs), "alpha": 0.2, "beta": 0.7}
    llm = LLM(str(ours), dtype="float32", contrastive=contrast, kv_cache_memory_bytes=1 << 28)
    fast, params = llm.speculating({"method": "auto"}), SamplingParams(seed=5, max_tokens=30)
    assert fast.speculation.model == str(theirs)
    assert fast.drafting.draft.target is llm._amateur.target, "it is not loaded twice"
    [known], [found] = (each.generate("abc", params, use_tqdm=False) for each in (llm, fast))
    assert known.outputs[0].config["contrastive"] == contrast
    if llm.claim == "bit-exact":
        assert found.outputs[0].token_ids == known.outputs[0].token_ids
    plain = LLM(str(ours), dtype="float32", kv_cache_memory_bytes=1 << 28)
    assert plain.generate("abc", params, use_tqdm=False)[0].outputs[0].token_ids != known.outputs[0].token_ids
    with pytest.raises(ValueError, match="it does not go with 'early_exit'"):
        llm.speculating({"method": "early_exit", "early_exit_layers": 1})
    for bad in ({}, {"model": ""}, {"model": "x", "gamma": 1}, "x"):
        with pytest.raises(ValueError, match="contrastive: "):
            LLM(str(ours), contrastive=bad)


@pytest.mark.usefixtures("unchecked")
def test_int8_leaves_a_contrastive_targets_own_amateur_alone(tmp_path):
    ours, theirs = (make_folder(tmp_path / name, seed=seed) for seed, name in enumerate(("expert", "amateur")))
    llm = LLM(str(ours), contrastive={"model": str(theirs)}, kv_cache_memory_bytes=1 << 28)
    params = SamplingParams(seed=5, max_tokens=30)
    known = llm.generate("abc", params, use_tqdm=False)[0].outputs[0].token_ids
    fast = llm.speculating({"quantization": "int8", "draft_vocabulary": 200})
    assert fast.speculation.model == str(theirs)
    assert fast.drafting.draft.target is not llm._amateur.target
    found = fast.generate("abc", params, use_tqdm=False)[0].outputs[0].token_ids
    assert llm.generate("abc", params, use_tqdm=False)[0].outputs[0].token_ids == known
    if llm.claim == "bit-exact":
        assert found == known


@pytest.mark.usefixtures("unchecked")
def test_a_short_context_has_costs_too(tmp_path):
    llm = LLM(str(make_folder(tmp_path, context=16)), dtype="float32", speculative_config={"method": "suffix"})
    assert llm.generate("ab", SamplingParams(max_tokens=8, seed=1), use_tqdm=False)[0].outputs[0].token_ids


def test_records_are_few_whatever_temperatures_are_asked_for(plain):
    drafting = plain.speculating({}).drafting
    for i in range(200):
        drafting.controller(i / 3)
    assert len(drafting.records) <= 9


def test_costs_are_measured_once_and_a_damaged_file_is_measured_again(plain, tmp_path):
    from draftproof.calibrate import calibrated

    said: list[str] = []
    first = calibrated(plain.loaded, {}, cache_dir=tmp_path, notify=said.append)
    [file] = (tmp_path / "costs").iterdir()
    again = calibrated(plain.loaded, {}, cache_dir=tmp_path, notify=said.append)
    assert len(said) == 1
    assert first.rounds(1, 0, 8) == again.rounds(1, 0, 8)
    assert np.all(np.diff(first.rounds(1, 0, 20)) >= 0)
    read = calibrated(plain.loaded, {"model": plain.loaded.target}, cache_dir=tmp_path / "other")
    assert read.reading("model", 100) > 0
    assert read.reading("suffix", 100) == 0
    damages = ["", "{", "[]", '{"rounds": {}}', '{"rounds": {"1": -1}, "levels": {}, "branch": 0, "reading": {}}']
    for number in ("NaN", "Infinity", "9" * 400):
        damages.append(f'{{"rounds": {{"1": 1, "4": {number}}}, "levels": {{}}, "branch": 0, "reading": {{}}}}')
    damages.append('{"rounds": {"1": 1}, "levels": {}, "branch": 0, "reading": {"model": 0}}')
    damages.append('{"rounds": {"1": 1}, "levels": {}, "branch": 0}')
    for damage in damages:
        file.write_text(damage)
        calibrated(plain.loaded, {}, cache_dir=tmp_path, notify=said.append)
        assert json.loads(file.read_text())["rounds"]
    assert len(said) == 1 + len(damages)
    file.unlink()
    file.parent.rmdir()
    file.parent.write_text("no folder")
    assert calibrated(plain.loaded, {}, cache_dir=tmp_path).rounds(1, 0, 3)
