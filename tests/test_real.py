"""The embedded model itself: a few short runs, so that no toy hides what a real one does."""

import pytest

from draftproof.base import Kind
from draftproof.chance import PhiloxChance
from draftproof.commit import Output
from draftproof.control import Fixed
from draftproof.doctor import examine
from draftproof.drafters import ModelDrafter
from draftproof.llm import LLM
from draftproof.loop import decode
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of
from tests.folders import answers, said

pytestmark = [
    pytest.mark.real,
    pytest.mark.usefixtures("unchecked"),
]  # shape checks treble its time; tiny models have them
PROMPTS = ["Repeat after me, three times: the cat sat on the mat.", "Write a Python class for a stack."]


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def plain(request):
    return LLM("smollm2-135m", dtype=request.param)


def skip_unless_exact(llm):
    if llm.claim != "bit-exact":
        pytest.skip("the matrix products of this machine change with the row count: same law only")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_same_seed_gives_the_same_text_with_speculation_on_and_off(plain, prompt, temperature):
    skip_unless_exact(plain)
    params = SamplingParams(temperature=temperature, seed=11, max_tokens=48)
    fast = said(plain.speculating({"method": "ngram", "num_speculative_tokens": 5}), plain.encode(prompt), params)
    slow = said(plain, plain.encode(prompt), params)
    assert fast.token_ids == slow.token_ids
    assert fast.text == slow.text
    assert fast.stats.drafted > fast.stats.accepted


def test_greedy_speculation_accepts_and_saves_passes(plain):
    fast = plain.speculating({"method": "ngram", "num_speculative_tokens": 5})
    stats = said(fast, plain.encode(PROMPTS[0]), SamplingParams(temperature=0.0, max_tokens=48)).stats
    assert stats.accepted >= 4
    assert stats.rounds < stats.emitted


@pytest.mark.parametrize("rule", ["coupled", "token", "block"])
def test_a_model_that_drafts_for_itself_is_always_accepted(plain, rule):
    skip_unless_exact(plain)
    target = plain.loaded.target
    params = SamplingParams(seed=5, max_tokens=30)
    steps = decode(
        plain.encode(PROMPTS[1]),
        Output(params, 30),
        target=target,
        drafter=ModelDrafter(target, Kind.COUPLED if rule == "coupled" else Kind.SAMPLED),
        controller=Fixed(4),
        rule=RULES[rule],
        law=law_of(params),
        chance=PhiloxChance(5),
    )
    assert [step.accepted for step in steps] == [4] * 6


def test_the_doctor_finds_no_row_that_depends_on_its_company(plain):
    skip_unless_exact(plain)
    findings = examine(plain.loaded.target, lengths=(60, 540))
    chains = list(findings)
    assert sum(finding.rows for finding in chains) >= 90
    assert [finding.differ for finding in chains] == [0] * len(chains)


def test_eight_together_accept_what_each_accepts_alone(plain):
    skip_unless_exact(plain)
    fast = plain.speculating({"method": "ngram", "num_speculative_tokens": 5})
    prompts = [fast.encode(f"{prompt} {number}") for number in ["one", "two", "three", "four"] for prompt in PROMPTS]
    params = [SamplingParams(temperature=i // 6, seed=i, max_tokens=8 + i) for i in range(8)]
    together = answers(fast, prompts, params)
    for prompt, each, found in zip(prompts, params, together, strict=True):
        solo = fast.start(prompt, each).result()
        assert found.token_ids == solo.token_ids
        assert found.stats.accepted_per_position == solo.stats.accepted_per_position
        assert found.stats.rounds == solo.stats.rounds
    assert sum(found.stats.accepted for found in together) > 0
