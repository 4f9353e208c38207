"""The heads that come with the package: whole, small, and worth drafting with."""

from __future__ import annotations

import pytest

from draftproof import LLM, SamplingParams
from draftproof.models.eagle_files import read_about, read_head
from draftproof.models.shelf import SHELF, shelved, shipped_for

MOST_BYTES = 20_000_000
QUESTIONS = [
    "Why is the sky blue?",
    "A farmer has 12 cows and buys 3 more each year. How many has he after 4 years?",
    "Write a short letter to a friend who has moved to another city.",
    "What are the advantages of trains over planes?",
]


@pytest.mark.parametrize("name", shelved())
def test_a_shipped_head_is_whole_small_and_says_what_it_is(name):
    found = read_head(SHELF / name)
    assert found.size <= MOST_BYTES
    assert str(found.dtype) == "torch.bfloat16"
    assert {"weights", "config", "tokenizer", "template"} == set(found.about.fingerprint)
    assert found.about.training["data"]
    assert found.about.measured["sampled"] > 1.5
    assert found.about.measured["greedy"] > 1.5


@pytest.mark.real
@pytest.mark.usefixtures("unchecked")
def test_auto_drafts_for_the_embedded_model_with_its_head_and_says_the_same():
    llm = LLM("smollm2-135m", enable_prefix_caching=False, speculative_config={"method": "auto"})
    assert shipped_for(llm.loaded) == "smollm2-135m"
    assert llm.drafting.config.parts == ("suffix", "eagle3")
    if llm.claim != "bit-exact":
        pytest.skip("the matrix products of this machine change with the row count: same law only")
    first = llm.drafting.controller(1.0).init().record.of("eagle").share(0, 0, None)
    assert first == pytest.approx(read_about(SHELF / "smollm2-135m").acceptance[0]), "begins with what was measured"
    plain = llm.speculating({"method": "none"})
    head = llm.speculating({"method": "eagle3", "model": "smollm2-135m", "num_speculative_tokens": 3})
    talks = [[{"role": "user", "content": question}] for question in QUESTIONS]
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=32, temperature=temperature, seed=3)
        known, drafted, both = (
            [output.outputs[0] for output in system.chat(talks, params, use_tqdm=False)]
            for system in (plain, head, llm)
        )
        for others in (drafted, both):
            assert [each.token_ids for each in others] == [each.token_ids for each in known]
        emitted, rounds = (sum(getattr(each.stats, name) for each in drafted) for name in ("emitted", "rounds"))
        assert emitted / rounds > 1.3  # a head of noise brings 1.0
