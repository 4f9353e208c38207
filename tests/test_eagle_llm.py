"""A head drafts for a whole model: the text is the target's, bit for bit, and everything else keeps step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from draftproof import LLM, SamplingParams
from draftproof.base import Feed
from draftproof.drafters import EagleDrafter
from draftproof.fingerprint import quick_fingerprint
from draftproof.models import shelf
from draftproof.models.eagle_files import save_head
from draftproof.solo import Generation
from draftproof.speculation import SpeculativeConfig
from tests.heads import ABOUT, VOCAB, make_head, make_target

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = ["the head of the tail", "the head of the table is", "x", "abcabcabcabc"]
SAMPLING = [SamplingParams(max_tokens=12, temperature=t, seed=7, ignore_eos=True) for t in (0.0, 1.0, 0.6, 1.0)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("eagle")
    target = make_target(root / "target", initializer_range=0.2, bos_token_id=None, eos_token_id=256)
    save_head(root / "head", make_head(known=VOCAB - 50), replace(ABOUT, fingerprint={}))
    return target, root / "head"


@pytest.fixture(scope="module")
def llm(folders) -> LLM:
    return LLM(str(folders[0]), dtype="float32", check=True, speculative_config={"method": "none"})


@pytest.fixture(scope="module")
def plain(llm) -> list[tuple[int, ...]]:
    return texts(llm)


def texts(llm: LLM) -> list[tuple[int, ...]]:
    return [tuple(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, SAMPLING)]


CONFIGS = {
    "a chain": {"method": "eagle3", "num_speculative_tokens": 4},
    "a tree": {"method": "eagle3", "tree": "3x2x1"},
    "as deep as pays": {"method": "eagle3"},
    "threshold": {"method": "eagle3", "controller": "threshold"},
    "beside suffixes": {"method": "auto"},
    "beside suffixes, a tree": {"method": "combined", "drafters": ["suffix", "eagle3"], "tree": "2x2"},
    "none named": {},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_text_is_the_targets(llm, plain, folders, name):
    """Four requests at once, whose caches and states the engine compares with replays after every round."""
    drafting = llm.speculating(CONFIGS[name] | {"model": str(folders[1])})
    assert texts(drafting) == plain
    assert drafting.claim == "bit-exact" or not llm.loaded.target.plan.exact


@pytest.mark.parametrize("rule", ["token", "block", "recursive", "traversal"])
def test_under_rules_that_sample_it_draws_with_noise_of_its_own(llm, folders, rule):
    config = {"method": "eagle3", "num_speculative_tokens": 3, "verify": rule, "model": str(folders[1])}
    [output] = llm.speculating(config).generate(PROMPTS[:1], SAMPLING[1:2])
    assert output.outputs[0].stats.drafted > 10


def test_it_drafts_from_the_first_round_after_the_prompt_on(llm, folders):
    drafting = llm.speculating(CONFIGS["a chain"] | {"model": str(folders[1])})
    [output] = drafting.generate([PROMPTS[1]], [replace(SAMPLING[0], max_tokens=8)])
    stats = output.outputs[0].stats
    assert stats.plain <= 2  # the prompt's round, and the last one, where nothing more may be drafted
    assert stats.drafted_by.keys() == {"eagle"}


def test_what_a_kept_text_knew_is_drafted_from(llm, folders):
    """A second question that begins like the first: its cache is copied, and with it what the head knows."""
    drafting = llm.speculating(CONFIGS["a chain"] | {"model": str(folders[1])})
    longer = "the head of the tail of the head of the tail of the head, and so on until it ends where it began, twice"
    reused = drafting.engine.counts.reused
    for end in (" a", " b"):
        [output] = drafting.generate([longer + end], [replace(SAMPLING[0], max_tokens=8)])
        assert output.outputs[0].stats.drafted > 0
    assert drafting.engine.counts.reused > reused


def spy_guides(monkeypatch) -> list:
    """The guides that a head opens from now on."""
    opened, before = [], EagleDrafter.open

    def seen(self, context):
        opened.append(before(self, context))
        return opened[-1]

    monkeypatch.setattr(EagleDrafter, "open", seen)
    return opened


def test_a_beginning_that_no_head_heard_is_read_again(llm, folders, monkeypatch):
    """Plain decoding computed it; taken over, it would leave the head without its states for good."""
    text = "a beginning that is long enough to be kept, and that plain decoding computed before any head was there"
    llm.generate([text], SAMPLING[:1])
    guides = spy_guides(monkeypatch)
    drafting = llm.speculating(CONFIGS["a chain"] | {"model": str(folders[1])})
    for _ in range(2):  # the second begins with what the first one's head heard
        before = drafting.engine.counts.reused
        drafting.generate([text], [replace(SAMPLING[0], max_tokens=4)])
        assert (guides[-1].own.start, guides[-1].heard > len(text)) == (0, True)
    assert drafting.engine.counts.reused > before


def test_answers_of_a_form_begin_with_what_others_of_it_computed(llm, folders):
    """Each has a drafter of its own, around the one head."""
    drafting = llm.speculating({"method": "auto", "model": str(folders[1])})
    formed = replace(SAMPLING[0], ignore_eos=False, structured_outputs={"regex": "[ab]{4,9}"})
    before = drafting.engine.counts.reused
    said = {drafting.generate(["one of many questions that begin alike"], [formed])[0].outputs[0].text for _ in "12"}
    assert len(said) == 1
    assert drafting.engine.counts.reused > before


def test_reading_a_text_is_known_to_cost_a_head_something(llm, folders):
    assert llm.speculating({"method": "eagle3", "model": str(folders[1])}).drafting.costs.reading("eagle", 10) > 0


def test_a_token_that_the_head_does_not_know_is_drafted_without_hope(llm, folders):
    """A processor leaves one token, of no probability under the head's law: how sure of it is it? Not NaN."""
    unknown = next(i for i in range(VOCAB) if i not in make_head(known=VOCAB - 50).token_ids.tolist())

    def only(ids, scores):
        return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([unknown]), 0.0)

    watched = []
    drafting = llm.speculating(CONFIGS["a tree"] | {"model": str(folders[1])})
    params = replace(SAMPLING[0], logits_processors=[only])
    watch = lambda draft, rows, verdict: watched.append(draft)  # noqa: E731
    Generation(llm.loaded.target, drafting.reply("xy", params, watch=watch)).result()
    sure = [each for draft in watched for each in draft.confidence]
    assert sure
    assert all(0 <= each <= 1 for each in sure)


def test_a_head_that_overflows_ends_no_request(llm, plain, folders):
    drafting = llm.speculating(CONFIGS["a chain"] | {"model": str(folders[1])})
    weight = drafting.drafting.models["eagle"].head.lm_head.weight
    kept = weight.detach().clone()
    weight.data.fill_(torch.nan)
    try:
        assert texts(drafting) == plain
    finally:
        weight.data.copy_(kept)


def test_heads_are_loaded_once(llm, folders):
    one, other = (llm.speculating(CONFIGS[name] | {"model": str(folders[1])}) for name in ("a chain", "a tree"))
    assert one.drafting.models["eagle"] is other.drafting.models["eagle"]


def test_a_head_alone_is_enough_to_say_so(folders):
    assert SpeculativeConfig.of({"model": str(folders[1])}).method == "eagle3"
    assert SpeculativeConfig.of({"method": "auto", "model": str(folders[1])}).parts == ("suffix", "eagle3")
    assert SpeculativeConfig.of({"model": str(folders[0])}).method == "draft_model"


def test_a_head_for_another_target_is_refused(llm, folders, tmp_path):
    save_head(tmp_path / "other", make_head(hidden_size=32), ABOUT)
    with pytest.raises(ValueError, match="is for a target of hidden_size 32; this one has 64"):
        llm.speculating({"model": str(tmp_path / "other")})
    save_head(tmp_path / "other", make_head(), ABOUT)
    with pytest.raises(ValueError, match="another target"):  # its tokenizer
        llm.speculating({"model": str(tmp_path / "other")})


@pytest.mark.parametrize("name", ["nowhere/at/all", "./nowhere", "/nowhere"])
def test_a_folder_that_is_not_there_is_named(llm, name):
    with pytest.raises(ValueError, match=f"head: there is no folder '{name}'"):
        llm.speculating({"method": "eagle3", "model": name})


# -- heads that come with the package


@pytest.fixture
def shelved(llm, folders, tmp_path, monkeypatch) -> Path:
    """A shelf with a head for the target and one for another."""
    known = quick_fingerprint(folders[0], llm.loaded.tokenizer)
    save_head(tmp_path / "another", make_head(1), replace(ABOUT, fingerprint=known | {"config": "other"}))
    save_head(tmp_path / "tiny", make_head(2), replace(ABOUT, fingerprint=known))
    monkeypatch.setattr(shelf, "SHELF", tmp_path)
    return tmp_path


def test_auto_drafts_with_the_head_that_comes_for_the_target(llm, plain, shelved):
    drafting = llm.speculating({"method": "auto"})
    said = drafting.drafting.as_config()
    assert (said["parts"], said["model"]) == (("suffix", "eagle3"), "tiny")
    assert "comes with draftproof: it drafts, too" in said["why"][0]
    assert texts(drafting) == plain


def test_it_can_be_named(llm, shelved):
    assert llm.speculating({"method": "eagle3", "model": "another"}).drafting.origins == ("eagle",)


def test_under_a_rule_that_takes_no_such_drafts_auto_is_lookup_and_says_why(llm, shelved):
    drafting = llm.speculating({"method": "auto", "verify": "greedy_multi", "tree": "4"}).drafting
    assert drafting.config.parts == ("suffix",)
    assert "does not draft: verify: 'greedy_multi' takes" in drafting.why[0]


def test_where_none_comes_auto_is_lookup(llm):
    assert llm.speculating({"method": "auto"}).drafting.config.parts == ("suffix",)


def test_a_contrasted_target_has_no_head(folders):
    with pytest.raises(ValueError, match="it does not go with 'eagle3'"):
        LLM(
            str(folders[0]),
            contrastive={"model": str(folders[0])},
            speculative_config={"method": "eagle3", "model": str(folders[1])},
        )


def test_a_bfloat16_target_and_a_float32_one_take_the_same_head(folders):
    llm = LLM(str(folders[0]), dtype="bfloat16", exact="law", speculative_config={"model": str(folders[1])})
    assert llm.drafting.models["eagle"].head.fc.weight.dtype is torch.bfloat16
    [output] = llm.generate(PROMPTS[:1], SAMPLING[:1])
    assert len(output.outputs[0].token_ids) == 12


@pytest.mark.parametrize("to", ["int8", "int4"])
def test_a_head_in_fewer_bits_says_nearly_the_same(folders, to):
    llm = LLM(str(folders[0]), dtype="bfloat16", exact="law", speculative_config={"method": "none"})
    logits = []
    for quantization in (None, to):
        config = {"method": "eagle3", "model": str(folders[1]), "quantization": quantization}
        head = llm.speculating(config).drafting.models["eagle"]
        session = head.open(8)
        [scores] = head.forward([Feed(session, (1, 2, 3, 4))])
        logits.append(scores.logits[0][head._ids])
    off = np.abs(logits[1] - logits[0]).max() / np.abs(logits[0]).max()
    assert 0 < off < 0.3


def test_what_cannot_be_rounded_is_said(llm, folders):
    with pytest.raises(ValueError, match=r"int8 is for bfloat16 on a CPU; this draft model is torch\.float32"):
        llm.speculating({"method": "eagle3", "model": str(folders[1]), "quantization": "int8"})
