"""Every option of SamplingParams is one law for all rows: the ids are those of the plainest loop with the plainest
arithmetic, the emitted law is exactly the target's, and nobody's logits change."""

# ruff: noqa: N802  (the T is part of a case's name)

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor, TypicalLogitsWarper

from draftproof.audit.exact import LoopCase, deviation, emitted_law, fractions_row, target_law
from draftproof.base import Draft, Kind, token_key
from draftproof.chance import PhiloxChance
from draftproof.control import Fixed
from draftproof.drafters import ModelDrafter
from draftproof.laws import warp
from draftproof.models.looped import looped
from draftproof.models.table import TableTarget, hashed_logits
from draftproof.processors import chain_of
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of
from tests.toys import CHAIN_RULES, decoded, kind_for

END, BAD, FAVOURITE = 4, (1, 2), 3
V = 5


def no_doubles(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A processor of one's own, that also scribbles on what it is given."""
    scores[:, input_ids[0, -1]] = -torch.inf
    return scores


@dataclass(frozen=True)
class Plain:
    """An option in the plainest arithmetic, from the whole text, one token at a time."""

    params: SamplingParams
    reference: Callable[[list[float], list[int], list[int]], None]  # (logits to change, text, what of it was said)

    def chain(self, prompt_length: int, size: int = V):
        return chain_of(
            self.params,
            prompt_length=prompt_length,
            vocab_size=size,
            end_ids=frozenset({END}),
            bad_words=[BAD] if self.params.bad_words else (),
            looped=[looped(each) for each in self.params.logits_processors],
        )

    def law(self, logits: np.ndarray, text: Sequence[int], prompt_length: int) -> np.ndarray:
        row = [float(x) for x in logits]
        self.reference(row, list(text), list(text[prompt_length:]))
        p = self.params
        numbers = {name: getattr(p, name) for name in ("temperature", "top_k", "top_p", "min_p", "typical_p")}
        return warp(np.array(row), **numbers)


def nothing(row, text, said):
    pass


def bias(row, text, said):
    row[0] += 1.5
    row[FAVOURITE] += -100.0


def repeat(by):
    def change(row, text, said):
        for token in set(text):
            row[token] = row[token] / by if row[token] > 0 else row[token] * by

    return change


def frequency(row, text, said):
    for token, count in Counter(said).items():
        row[token] -= 0.5 * count


def presence(row, text, said):
    for token in set(said):
        row[token] -= 0.75


def bad(row, text, said):
    if text[-1] == BAD[0]:
        row[BAD[1]] = -np.inf


def least(row, text, said):
    if len(said) < 3:
        row[END] = -np.inf


def doubles(row, text, said):
    row[text[-1]] = -np.inf


def all_of(*changes):
    def change(row, text, said):
        for each in changes:
            each(row, text, said)

    return change


OPTIONS = {
    "temperature": Plain(SamplingParams(temperature=0.5), nothing),
    "greedy": Plain(SamplingParams(temperature=0.0), nothing),
    "top_k": Plain(SamplingParams(top_k=2), nothing),
    "top_p": Plain(SamplingParams(top_p=0.7), nothing),
    "min_p": Plain(SamplingParams(min_p=0.2), nothing),
    "typical_p": Plain(SamplingParams(typical_p=0.6), nothing),
    "logit_bias": Plain(SamplingParams(logit_bias={0: 1.5, FAVOURITE: -100}), bias),
    "repetition_penalty": Plain(SamplingParams(repetition_penalty=1.5), repeat(1.5)),
    "repetition_penalty below 1": Plain(SamplingParams(repetition_penalty=0.75), repeat(0.75)),
    "frequency_penalty": Plain(SamplingParams(frequency_penalty=0.5), frequency),
    "presence_penalty": Plain(SamplingParams(presence_penalty=0.75), presence),
    "bad_words": Plain(SamplingParams(bad_words="x"), bad),
    "min_tokens": Plain(SamplingParams(min_tokens=3), least),
    "logits_processors": Plain(SamplingParams(logits_processors=[no_doubles]), doubles),
    "all of them": Plain(
        SamplingParams(
            temperature=0.75,
            top_k=4,
            top_p=0.95,
            min_p=0.01,
            typical_p=0.95,
            logit_bias={0: 1.5, FAVOURITE: -100},
            repetition_penalty=1.5,
            frequency_penalty=0.5,
            presence_penalty=0.75,
            bad_words="x",
            min_tokens=3,
            logits_processors=[no_doubles],
        ),
        all_of(bias, repeat(1.5), frequency, presence, bad, least, doubles),
    ),
}
"""Numbers are such that every step of their arithmetic is exact or rounds as in float64."""
UNKNOWN_TO_KERNELS = [name for name, option in OPTIONS.items() if option.params.adjusts]


def read_only(history: Sequence[int]) -> np.ndarray:
    return _known(tuple(history[-2:]))


def off(history: Sequence[int]) -> np.ndarray:
    """Near the target's logits, and wrong now and then."""
    return read_only(history) + 0.7 * read_only([*history[-3:-1], 0])


@cache
def _known(end: tuple[int, ...]) -> np.ndarray:
    row = hashed_logits(V, order=2)(end)
    row.flags.writeable = False
    return row


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("k", [2, 8, 48])
def test_T35_ids_are_those_of_the_plainest_loop(name: str, k: int):
    """NOISY drafts, logits that nobody may write to; chains as deep as 48, so beyond a rejection."""
    option, prompt = OPTIONS[name], [1, 0, 2]
    rejected = longest = 0
    for seed in range(2):
        law = law_of(option.params, option.chain(len(prompt)))
        drafter = ModelDrafter(TableTarget(off, V), Kind.COUPLED)
        output, steps = decoded(
            read_only,
            V,
            drafter,
            PhiloxChance(seed),
            prompt=prompt,
            k=k,
            params=replace(option.params, max_tokens=60),
            law=law,
        )
        text = list(prompt)
        for _ in range(60):
            row = option.law(read_only(text), text, len(prompt))
            text += PhiloxChance(seed).pick(row, token_key(len(text)))
        assert output.token_ids == text[len(prompt) :]
        rejected += sum(step.verdict.last == "replacement" for step in steps)
        longest = max(longest, *(len(step.tokens) for step in steps))
    assert rejected > 0
    assert longest >= 3


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "rule"),
    [(name, rule) for name in OPTIONS for rule in (CHAIN_RULES if name == "all of them" else ("coupled", "token"))],
)
def test_the_emitted_law_is_exactly_the_targets(name: str, rule: str):
    """By enumeration. The target's law is the reference's, so a wrong chain is seen as well as a wrong rule."""
    option, prompt = OPTIONS[name], (1, 2)
    ours = law_of(option.params, option.chain(len(prompt)))

    def exactly(law):
        return lambda row, text: fractions_row(*law(np.array(row, np.float64), text))

    case = LoopCase(
        read_only,
        lambda: TableTarget(read_only, V),
        lambda: ModelDrafter(TableTarget(off, V), kind_for(rule)),
        Fixed(2),
        RULES[rule],
        prompt,
        max_tokens=3,
        end_ids=frozenset({END}),
        law=exactly(ours),
    )
    known = replace(case, law=exactly(lambda row, text: option.law(row, text, len(prompt))))
    assert deviation(emitted_law(case), target_law(known)) == 0


@pytest.mark.parametrize("name", UNKNOWN_TO_KERNELS)
def test_an_option_is_never_ignored(name: str):
    with pytest.raises(ValueError, match=r"^\w+: it needs a request's chain of processors"):
        law_of(OPTIONS[name].params)


def test_what_the_chain_remembers_changes_no_result():
    """The same rows in an order that jumps between texts, by one chain and by fresh ones."""
    option, rng = OPTIONS["all of them"], np.random.default_rng(0)
    texts = [rng.integers(0, V, int(n)).tolist() for n in rng.integers(3, 30, 60)]
    texts += [text[: int(n)] for text in texts for n in rng.integers(3, len(text) + 1, 2)]
    one = option.chain(3)
    for i in rng.permutation(len(texts)):
        row = read_only(texts[i])
        assert np.array_equal(one(row, texts[i]), option.chain(3)(row, texts[i]))


@pytest.mark.parametrize(("penalty", "text"), [(1.3, [1, 0, 1]), (0.6, [3, 4])])
def test_penalties_are_hugging_faces(penalty: float, text: list[int]):
    row = np.array([1.5, -2.0, 0.0, 3.25, -0.5], np.float32)
    chain = chain_of(SamplingParams(repetition_penalty=penalty), prompt_length=1, vocab_size=V)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([text]), torch.tensor(row)[None].clone())
    assert np.array_equal(chain(row, text), theirs[0].numpy())


@pytest.mark.parametrize("words", [[[2]], [[1, 2]], [[1, 2], [0, 1, 3], [4, 4]]])
def test_bans_are_hugging_faces(words: list[list[int]]):
    params = SamplingParams(bad_words="x")
    chain = chain_of(params, prompt_length=0, vocab_size=V, bad_words=words)
    theirs = NoBadWordsLogitsProcessor(words)
    for text in ([0, 1], [1], [0, 1, 4], [2, 0, 1], [4]):
        row = np.arange(V, dtype=np.float32)
        expected = theirs(torch.tensor([text]), torch.tensor(row)[None].clone())[0].numpy()
        assert np.array_equal(chain(row, text), expected), text


@pytest.mark.parametrize("mass", [0.05, 0.3, 0.6, 0.9, 0.999])
def test_typical_is_hugging_faces(mass: float):
    rng = np.random.default_rng(3)
    for _ in range(20):
        logits = rng.normal(0, 3, 40)
        theirs = TypicalLogitsWarper(mass)(torch.zeros(1, 1, dtype=torch.long), torch.tensor(logits)[None])
        expected = torch.softmax(theirs[0], -1).numpy()
        assert np.allclose(warp(logits, typical_p=mass), expected, atol=1e-12)


def test_typical_keeps_the_last_one_that_is_needed_and_all_as_near():
    assert np.array_equal(warp(np.zeros(4), typical_p=0.5), np.full(4, 0.25)), "equal ones stay together"
    assert np.array_equal(warp(np.array([0.0, -np.inf, -np.inf]), typical_p=0.5), [1, 0, 0])


def test_a_row_without_tokens_names_who_ruled_them_out():
    params = SamplingParams(min_tokens=2, logits_processors=[lambda ids, scores: torch.full_like(scores, -torch.inf)])
    chain = chain_of(
        params,
        prompt_length=1,
        vocab_size=V,
        end_ids=frozenset({END}),
        looped=[looped(each) for each in params.logits_processors],
    )
    with pytest.raises(ValueError, match="position 2: no token is left: min_tokens and logits_processors rule out"):
        law_of(params, chain)(np.zeros(V, np.float32), [1, 2])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda ids, scores: None, "returned NoneType"),
        (lambda ids, scores: scores[0], r"returned \(5,\)"),
        (lambda ids, scores: scores[:, :3], r"returned \(1, 3\)"),
    ],
)
def test_a_processor_that_returns_no_scores_is_named(given, words):
    with pytest.raises(ValueError, match=rf"^logits_processors: function {words}; it must return scores of \(1, 5\)"):
        looped(given)(np.zeros(V, np.float32), [1])


def test_a_draft_models_shorter_row_is_adjusted_as_far_as_it_goes():
    option = OPTIONS["all of them"]
    text = [4, 1, 0, 4, 2]
    whole, short = option.chain(2)(read_only(text), text), option.chain(2)(read_only(text)[:3], text)
    assert np.array_equal(short, whole[:3])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"n": 0}, "n: 0 is not allowed; it must be a whole number in 1 .. 1024"),
        ({"repetition_penalty": 0}, "repetition_penalty: 0"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty: inf"),
        ({"frequency_penalty": 2.5}, r"frequency_penalty: 2.5 is not allowed; it must be a number in \[-2, 2\]"),
        ({"presence_penalty": "1"}, "presence_penalty: '1'"),
        ({"typical_p": 0}, "typical_p: 0"),
        ({"logit_bias": [1]}, r"logit_bias: \[1\] is not allowed; it must map token ids to numbers"),
        ({"logit_bias": {1: 101}}, r"logit_bias of 1: 101 is not allowed; it must be a number in \[-100, 100\]"),
        ({"logit_bias": {"a": 1}}, "logit_bias: 'a'"),
        ({"logit_bias": {-1: 1}}, "logit_bias: -1"),
        ({"bad_words": [""]}, "bad_words: ''"),
        ({"min_tokens": -1}, "min_tokens: -1"),
        ({"min_tokens": 9, "max_tokens": 8}, r"min_tokens: 9 is not allowed; .* in 0 .. max_tokens \(8\)"),
        ({"logprobs": -1}, "logprobs: -1"),
        ({"prompt_logprobs": True}, "prompt_logprobs: True"),
        ({"logprobs_mode": "raw"}, "logprobs_mode: 'raw' is unknown; known are raw_logprobs, processed_logprobs"),
        ({"ignore_eos": 1}, "ignore_eos: 1"),
        ({"logits_processors": [3]}, "logits_processors: 3"),
        ({"structured_outputs": "json"}, "structured_outputs: 'json'"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs: unknown key 'jsn'; known are json, regex"),
        ({"structured_outputs": {}}, "structured_outputs: none of them given"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs: regex, choice given"),
        ({"structured_outputs": {"choice": []}}, r"choice: \[\] is not allowed"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos: True is not allowed with structured"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(wrong: dict, words: str):
    with pytest.raises(ValueError, match=f"^{words}") as caught:
        SamplingParams(**wrong)
    assert "\n" not in str(caught.value)


def test_a_bias_for_no_token_is_named_with_the_range():
    with pytest.raises(
        ValueError, match=r"^logit_bias: 5 is not allowed; it must be a whole number in 0 .. 4, a token"
    ):
        chain_of(SamplingParams(logit_bias={5: 1}), prompt_length=1, vocab_size=V)


def test_logit_bias_may_come_from_json():
    assert SamplingParams(logit_bias={"3": 1}) == SamplingParams(logit_bias={3: 1.0})
    assert SamplingParams(logit_bias={}).adjusts == ()


def test_counts_are_a_recount_of_the_committed_tokens():
    """Each token's frequency penalty, read off the laws' logits along a text, against counting anew."""
    chain = chain_of(SamplingParams(frequency_penalty=0.5), prompt_length=2, vocab_size=V)
    text = [0, 1, 1, 3, 1, 3, 0]
    for end in range(2, len(text)):
        found = -chain(np.zeros(V, np.float32), text[:end]) / 0.5
        assert found.tolist() == [text[2:end].count(token) for token in range(V)]


def test_the_drafts_law_is_the_targets_own_chain():
    """A draft model of the target's own logits is always accepted, whatever the options: one law for both."""
    option, prompt = OPTIONS["all of them"], [1, 0]
    law = law_of(option.params, option.chain(len(prompt)))
    drafter = ModelDrafter(TableTarget(read_only, V), Kind.SAMPLED)
    params = replace(option.params, max_tokens=40)
    _, steps = decoded(read_only, V, drafter, PhiloxChance(1), prompt=prompt, rule="token", k=4, params=params, law=law)
    assert all(step.accepted == len(step.draft) for step in steps)
    assert all(isinstance(step.draft, Draft) and len(step.draft) == 4 for step, _ in pairwise(steps))
