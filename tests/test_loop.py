"""The oracle loop: the promise that coupled verification makes, and the bookkeeping that every rule relies on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from draftproof.audit.toys import Eager, Moody, argmax, chooser
from draftproof.base import Feed, Kind, Step
from draftproof.chance import PhiloxChance
from draftproof.commit import Output
from draftproof.control import Fixed
from draftproof.drafters import ModelDrafter, NGramDrafter, NoDrafter
from draftproof.loop import decode
from draftproof.models.table import TableTarget, hashed_logits
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of
from tests.toys import CHAIN_RULES, decoded, reference

V = 12
TARGET = hashed_logits(V, order=3, scale=1.5)
NEAR = hashed_logits(V, order=3, scale=1.5, salt=1)


def noisy(history: Sequence[int]) -> np.ndarray:
    """A draft model that is right more often than not."""
    return (0.8 * TARGET(history) + 0.4 * NEAR(history)).astype(np.float32)


def padded(history: Sequence[int]) -> np.ndarray:
    """Three ids more than the target has, all of them likely."""
    return np.concatenate([noisy(history), np.full(3, 5, np.float32)])


DRAFTERS = {
    "none": NoDrafter,
    "ngram": lambda: NGramDrafter(3, 1),
    "self": lambda: ModelDrafter(TableTarget(TARGET, V), Kind.COUPLED),
    "noisy": lambda: ModelDrafter(TableTarget(noisy, V), Kind.COUPLED),
    "noisy, own noise": lambda: ModelDrafter(TableTarget(noisy, V), Kind.SAMPLED),
    "larger vocabulary": lambda: ModelDrafter(TableTarget(padded, V + 3), Kind.COUPLED),
    "wrong": lambda: chooser(lambda history: int(np.argmin(TARGET(history)))),
}
PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=40),
    "T = 1": SamplingParams(max_tokens=40),
    "T = 0.7, truncated": SamplingParams(temperature=0.7, top_k=6, top_p=0.9, min_p=0.02, max_tokens=40),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_same_seed_is_the_same_text_whatever_drafts(drafter: str, params: SamplingParams):
    """Under the coupled rule every drafter, depth and controller gives the text of the plainest loop."""
    rejected = longest = 0
    for seed in range(3):
        known = reference(TARGET, [1, 2], 40, PhiloxChance(seed), params)
        for controller in (Fixed(1), Fixed(4), Fixed(8), Eager(3), Moody()):
            output, steps = decoded(
                TARGET,
                V,
                DRAFTERS[drafter](),
                PhiloxChance(seed),
                prompt=[1, 2],
                params=params,
                controller=controller,
            )
            assert output.token_ids == known
            rejected += sum(step.verdict.last == "replacement" for step in steps)
            longest = max(longest, *(len(step.tokens) for step in steps))
    assert (longest >= 3) == (drafter not in ("none", "wrong"))
    assert (rejected > 0) == (drafter not in ("none", "self"))


def test_seeds_and_samples_differ():
    texts = {
        tuple(decoded(TARGET, V, NoDrafter(), PhiloxChance(seed, sample), params=PARAMS["T = 1"])[0].token_ids)
        for seed in (1, 2)
        for sample in (0, 1)
    }
    assert len(texts) == 4


class Checked(TableTarget):
    """Checks the contract of a target from inside: one pending token, and no more room than was asked for."""

    def open(self, capacity: int):
        session = super().open(capacity)
        self.capacity, self.known = capacity, session
        return session

    def _forward(self, feed: Feed):
        assert len(feed.session.tokens) + len(feed.tokens) <= self.capacity, "more rows than the session has room for"
        return super()._forward(feed)


@pytest.mark.parametrize("end_ids", [frozenset(), frozenset({3})])
@pytest.mark.parametrize("rule", CHAIN_RULES)
@pytest.mark.parametrize("drafter", ["none", "ngram", "noisy, own noise", "wrong"])
def test_one_token_is_always_pending_and_the_cache_is_the_text_before_it(drafter: str, rule: str, end_ids: frozenset):
    for seed in range(5):
        params = SamplingParams(max_tokens=20)
        output, target = Output(params, 20, end_ids), Checked(TARGET, V)
        prompt = [1, 2, 1, 2]
        for _ in decode(
            prompt,
            output,
            target=target,
            drafter=DRAFTERS[drafter](),
            controller=Fixed(4),
            rule=RULES[rule],
            law=law_of(params),
            chance=PhiloxChance(seed),
        ):
            assert target.known.tokens == [*prompt, *output.token_ids][:-1]
            assert target.cached(target.known) == len(prompt) + len(output.token_ids) - 1


@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_each_law_is_told_the_history_that_its_row_belongs_to(rule: str):
    """Rows of a draft carry the drafted prefix, so that history-dependent laws see what they will follow."""
    seen = []

    def law(logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
        assert np.array_equal(logits, TARGET(history))
        seen.append(tuple(history))
        return plain(logits, history)

    plain = law_of(PARAMS["T = 1"])
    drafter = ModelDrafter(TableTarget(TARGET, V), Kind.SAMPLED)
    output, _ = decoded(
        TARGET, V, drafter, PhiloxChance(2), rule=rule, k=3, law=law, params=SamplingParams(max_tokens=9)
    )
    text = (0, *output.token_ids)
    assert {text[:n] for n in range(1, len(text))} <= set(seen)


def test_a_drafter_is_told_the_prompt_and_then_what_was_kept():
    told = []

    class Told(ModelDrafter):
        def commit(self, sessions, tokens) -> None:
            told.append(list(tokens[0]))
            super().commit(sessions, tokens)

    cut = 0
    for seed in range(10):
        told.clear()
        params = SamplingParams(max_tokens=30)
        output = Output(params, 30, frozenset({3}))
        drafter = Told(TableTarget(TARGET, V), Kind.COUPLED)
        _, steps = decoded(TARGET, V, drafter, PhiloxChance(seed), prompt=[5, 6], k=4, output=output)
        assert told == [[5, 6], *(list(step.tokens) for step in steps)]
        cut += len(steps[-1].tokens) < len(steps[-1].verdict.tokens)
    assert cut > 0, "an end inside a block occurred"


def test_steps_add_up_to_the_text():
    output, steps = decoded(TARGET, V, DRAFTERS["noisy"](), PhiloxChance(5), k=4, params=PARAMS["T = 1"])
    assert [token for step in steps for token in step.tokens] == output.token_ids
    roots = [step.draft.root for step in steps]
    assert roots == [1 + sum(len(step.tokens) for step in steps[:i]) for i in range(len(steps))]
    assert all(seconds >= 0 for step in steps for seconds in step.seconds.values())


def test_time_is_taken_from_the_clock_that_is_passed_in():
    ticks = iter(range(1000))
    params = SamplingParams(max_tokens=3)
    steps: list[Step] = list(
        decode(
            [0],
            Output(params, 3),
            target=TableTarget(TARGET, V),
            drafter=NoDrafter(),
            controller=Fixed(2),
            rule=RULES["coupled"],
            law=law_of(params),
            chance=PhiloxChance(0),
            clock=lambda: next(ticks),
        )
    )
    phases = {"propose": 1, "forward": 1, "verify": 1, "commit": 1}
    assert [dict(step.seconds) for step in steps] == [{"prefill": 1, **phases}, phases, phases]


@pytest.mark.parametrize("depth", [-1, -5])
def test_a_depth_below_zero_is_refused(depth: int):
    with pytest.raises(ValueError, match="num_speculative_tokens"):
        Fixed(depth)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_greedy_decoding_is_the_argmax_under_every_rule(rule: str):
    params = PARAMS["greedy"]
    for drafter in ("ngram", "noisy, own noise", "wrong"):
        output, _ = decoded(TARGET, V, DRAFTERS[drafter](), PhiloxChance(9), rule=rule, k=5, params=params)
        history = [0]
        for _ in range(params.max_tokens):
            history.append(argmax(TARGET(history)))
        assert output.token_ids == history[1:]
