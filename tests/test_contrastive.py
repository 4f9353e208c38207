"""The contrastive target: its law, that the whole loop samples from it, and that drafting changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, partial
from math import exp, log

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from draftproof.audit.cases import PAIRS, checked, penalised
from draftproof.audit.exact import LoopCase, deviation, emitted_law, fractions_row, identity_law, target_law
from draftproof.audit.toys import Eager, exact_table, up_to
from draftproof.base import ROOT, Controller, Drafter, Feed, Kind, Law, Row, Scores, Step, Target
from draftproof.chance import PhiloxChance
from draftproof.commit import Output
from draftproof.contrast import LEAST_LOG_P, combined_law, combined_scores
from draftproof.control import Fixed
from draftproof.drafters import ModelDrafter, NGramDrafter, NoDrafter
from draftproof.engine import Engine, EngineConfig
from draftproof.kernels.lazy import KernelChance, fused, judge, raw_law_of
from draftproof.memory import KVMemory
from draftproof.models.bits import measure_rows
from draftproof.models.contrastive import ContrastiveTarget
from draftproof.models.hf import HFTarget
from draftproof.models.table import TableTarget, hashed_logits
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of, warped
from draftproof.seats import Request
from tests.hf_models import model_of, noisy
from tests.tiny import CONTEXT, VOCAB, tokens_of
from tests.toys import CHAIN_RULES, Watched, kind_for

FLOOR = Fraction(1, 1000)
ALPHA = Fraction(1, 4)
GREEDY, WARM = SamplingParams(temperature=0, max_tokens=24), SamplingParams(temperature=0.8, max_tokens=24)


def softmax(logits: np.ndarray) -> Row:
    return warped(logits, [], SamplingParams())


# --- one row: the law ---------------------------------------------------------------------------------------------


def test_by_hand():
    """p_E^2/p_A in the head set, which p_E = 0.1 < 0.6/4 is not in."""
    law = combined_law(fractions_row(6, 3, 1), fractions_row(18, 1, 1), ALPHA, 1, FLOOR)
    assert law.tolist() == [Fraction(2, 11), Fraction(9, 11), 0]
    scores = combined_scores(np.log([0.6, 0.3, 0.1]), np.log([0.9, 0.05, 0.05]), 0.25, 1.0)
    np.testing.assert_allclose(scores[:2], np.log([0.36 / 0.9, 0.09 / 0.05]), rtol=1e-6)
    assert scores[2] == -np.inf
    assert scores.dtype == np.float32


WEIGHTS = st.lists(st.integers(0, 10**4), min_size=1, max_size=8).filter(any)


@given(WEIGHTS, WEIGHTS, st.integers(0, 8), st.integers(0, 3))
def test_the_float_scores_are_the_exact_law(ours: list[int], theirs: list[int], eighths: int, beta: int):
    """The amateur's vocabulary is as large, smaller or larger; either may have zeros."""
    expert, amateur, alpha = fractions_row(*ours), fractions_row(*theirs), Fraction(eighths, 8)
    assume(sum(theirs[: len(ours)]) > 0)
    edge = alpha * max(expert)
    assume(alpha == 1 or not any(p == edge for p in expert if p > 0))  # where a rounding decides who is in
    with np.errstate(divide="ignore"):
        logits = [np.log(row.astype(np.float64)) for row in (expert, amateur)]
    law = softmax(combined_scores(logits[0], logits[1], float(alpha), float(beta)))
    exact = combined_law(expert, amateur, alpha, beta, Fraction(exp(LEAST_LOG_P)))
    np.testing.assert_allclose(law, exact.astype(np.float64), rtol=3e-5, atol=1e-6)
    assert sum(exact) == 1
    assert ((law > 0) <= (expert >= edge)).all()


@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.floats(0, 4))
def test_the_float_scores_are_the_float_law_on_random_rows(seed: int, alpha: float, beta: float):
    """Any beta, against the formula over probabilities."""
    rng = np.random.default_rng(seed)
    expert, amateur = (4 * rng.standard_normal((2, 50))).astype(np.float32)
    law = combined_law(softmax(expert), softmax(amateur), alpha, beta, exp(LEAST_LOG_P))
    scores = combined_scores(expert, amateur, alpha, beta)
    if np.count_nonzero(law) == np.isfinite(scores).sum():  # else a token is on the very edge of the head set
        np.testing.assert_allclose(softmax(scores), law, rtol=0, atol=1e-6)
    assert softmax(scores)[expert.argmax()] > 0


@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_beta_0_is_the_expert_within_its_head_set(seed: int, alpha: float):
    rng = np.random.default_rng(seed)
    expert, amateur = (4 * rng.standard_normal((2, 50))).astype(np.float32)
    exact = expert.astype(np.float64) - expert.max()
    exact -= log(np.exp(exact).sum())
    scores = combined_scores(expert, amateur, alpha, 0.0)
    kept = np.isfinite(scores)
    assert np.array_equal(scores[kept], exact.astype(np.float32)[kept])
    assert kept.all() or exact[~kept].max() < exact[kept].min()
    assert combined_scores(expert, amateur, 0.0, 0.0).tolist() == exact.astype(np.float32).tolist()


def test_ties_at_the_largest_stay_in_whatever_alpha_is():
    expert, amateur = np.float32([2.5, 1, 2.5, 2.5]), np.float32([0, 1, 2, 0])
    for alpha in (1, 1.0, 0.999):
        scores = combined_scores(expert, amateur, alpha, 1.0)
        assert np.isfinite(scores).tolist() == [True, False, True, True]
        assert scores[0] == scores[3] > scores[2]


def test_a_token_on_the_edge_of_the_head_set_is_in_it():
    expert = np.array([0, 0, log(0.5), log(0.5) - 1e-9])
    assert np.isfinite(combined_scores(expert, expert, 0.5, 1.0)).tolist() == [True, True, True, False]
    law = combined_law(fractions_row(4, 4, 2, 1), fractions_row(1, 1, 1, 1), Fraction(1, 2), 1, FLOOR)
    assert law.tolist() == [Fraction(4, 9), Fraction(4, 9), Fraction(1, 9), 0]


def test_an_amateurs_law_is_that_over_the_ids_that_both_have():
    """Cut to (1, 0), the second at the floor: one to a thousand, not a quarter to a thousand."""
    law = combined_law(fractions_row(1, 1), fractions_row(1, 0, 3), ALPHA, 1, FLOOR)
    assert law[1] / law[0] == 1 / FLOOR


def test_a_vocabulary_of_one():
    assert combined_scores(np.float32([3]), np.float32([-7]), 1.0, 2.0).tolist() == [0.0]
    assert combined_law(fractions_row(1), fractions_row(1), ALPHA, 3, FLOOR).tolist() == [1]


def test_what_the_amateur_rules_out_has_a_finite_score():
    """Masked, or beyond its vocabulary: at the floor, and no further; the other ids' law is over those both have."""
    expert, beta = np.float32([0, 0, 0, 0]), 0.5
    masked = combined_scores(expert, np.float32([0, -np.inf, 0, -np.inf]), 0.1, beta)
    assert np.array_equal(masked, combined_scores(expert, np.float32([0, -200, 0, -300]), 0.1, beta))
    np.testing.assert_allclose(masked[1] - masked[0], beta * (log(0.5) - LEAST_LOG_P), rtol=1e-6)
    narrow = combined_scores(expert, np.float32([0, -np.inf, 0]), 0.1, beta)
    assert np.array_equal(narrow, masked)
    wide = combined_scores(expert, np.float32([0, -np.inf, 0, -np.inf, 9, 9]), 0.1, beta)
    assert np.array_equal(wide, masked)
    out = combined_scores(np.float32([0, -np.inf]), np.float32([0, -np.inf]), 0.0, beta)
    assert out.tolist() == [0.0, -np.inf], "the expert's zeros stay zeros"


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_without_a_law_stays_one(bad: float, beta: float):
    """The usual error names the expert's own token; one of the amateur leaves no token that could be drawn."""
    good, broken = np.zeros(4, np.float32), np.float32([0, 0, bad, 0])
    if bad == -np.inf:
        broken[:] = bad
    with pytest.raises(ValueError, match="largest entry is") as known:
        warped(broken, [1, 2], SamplingParams())
    with pytest.raises(ValueError, match="largest entry is") as found:
        warped(combined_scores(broken, good, 0.1, beta), [1, 2], SamplingParams())
    assert str(found.value) == str(known.value)
    assert np.isnan(combined_scores(good, broken, 0.1, beta)).all()
    both = combined_scores(broken, broken, 0.1, beta)
    assert np.array_equal(both, broken, equal_nan=True)


def test_scores_beyond_float32_are_an_error_and_no_law():
    scores = combined_scores(np.float32([0, -1]), np.float32([-1, 0]), 0.1, 1e40)
    with pytest.raises(ValueError, match="largest entry is"):
        softmax(scores)


def test_rows_are_not_written_to():
    rows = np.float32([[1, 2, 3], [3, 2, 1]])
    rows.flags.writeable = False
    combined_scores(rows[0], rows[1], 0.5, 0.5)


# --- the target ---------------------------------------------------------------------------------------------------


def tables(v: int = 12, narrow: int | None = None) -> tuple[TableTarget, TableTarget]:
    size = narrow or v
    return TableTarget(hashed_logits(v, order=3), v), TableTarget(hashed_logits(size, order=3, salt=1), size)


def test_it_is_a_target():
    assert isinstance(ContrastiveTarget(*tables()), Target)


@pytest.mark.parametrize(
    "wrong", [{"alpha": -0.1}, {"alpha": 1.1}, {"alpha": float("nan")}, {"beta": -1}, {"beta": float("inf")}]
)
def test_numbers_that_mean_nothing_are_refused(wrong: dict):
    [name] = wrong
    with pytest.raises(ValueError, match=f"^{name}: .* is not allowed; it must be a number"):
        ContrastiveTarget(*tables(), **wrong)


def test_every_row_is_the_combination_of_the_rows_of_both():
    """A prompt, a tree of which a path is kept, and a cut: each row is that of its own text, the leaves' too."""
    expert, amateur = tables()
    target = ContrastiveTarget(expert, amateur, alpha=0.2, beta=0.7)
    ours, theirs = hashed_logits(12, order=3), hashed_logits(12, order=3, salt=1)

    def check(row: np.ndarray, *text: int) -> None:
        assert np.array_equal(row, combined_scores(ours(text), theirs(text), 0.2, 0.7))

    session = target.open(20)
    [scores] = target.forward([Feed(session, (1, 2, 3), want=())])
    assert scores.logits.shape == (0, 12)
    target.commit([session], [()])
    [scores] = target.forward([Feed(session, (4, 5, 6, 7), (ROOT, ROOT, 1))])
    for row, text in zip(scores.logits, [(), (5,), (6,), (6, 7)], strict=True):
        check(row, 1, 2, 3, 4, *text)
    target.commit([session], [(1, 2)])
    assert target.cached(session) == 6
    assert target.check(session, [1, 2, 3, 4, 6, 7]) is None
    target.truncate(session, 4)
    [scores] = target.forward([Feed(session, (9,))])
    check(scores.logits[0], 1, 2, 3, 4, 9)
    kept, other = target.keep(session), target.open(20)
    target.adopt(other, kept, 3)
    for done in (kept, session):
        target.close(done)
        assert (done.expert.tokens, done.amateur.tokens) == ([], [])
    [scores] = target.forward([Feed(other, (8,))])
    check(scores.logits[0], 1, 2, 3, 8)
    assert target.kv_cost(65) == expert.kv_cost(65) + amateur.kv_cost(65)


def test_rows_known_to_both_are_not_computed_again():
    target = ContrastiveTarget(*tables())
    whole, grown = target.open(8), target.open(8)
    [known] = target.forward([Feed(whole, (1, 2, 5, 6, 7), (ROOT, ROOT, 1))])
    [first] = target.forward([Feed(grown, (1, 2, 5, 6), (ROOT, ROOT))])
    [second] = target.forward([Feed(grown, (1, 2, 5, 6, 7), (ROOT, ROOT, 1), known=4)])
    assert np.array_equal(np.concatenate([first.logits, second.logits]), known.logits)
    target.commit([whole, grown], [(1, 2), (1, 2)])
    assert target.check(grown, [1, 2, 6, 7]) is None


def test_a_check_names_the_one_whose_cache_is_wrong():
    target = ContrastiveTarget(*tables())
    session = target.open(8)
    target.forward([Feed(session, (1, 2))])
    target.commit([session], [()])
    session.amateur.tokens[0] = 5
    assert str(target.check(session, [1, 2])).startswith("amateur: ")
    session.expert.tokens[0] = 6
    assert str(target.check(session, [1, 2])).startswith("expert: ")
    session.amateur.tokens.pop()
    assert "the expert has cached 2 tokens, the amateur 1" in str(target.check(session, [1, 2]))


def test_an_id_that_the_amateur_does_not_have_is_its_last_one_to_it():
    target = ContrastiveTarget(*tables(12, narrow=9), alpha=0.0)
    ours, theirs = hashed_logits(12, order=3), hashed_logits(9, order=3, salt=1)
    session = target.open(8)
    [scores] = target.forward([Feed(session, (1, 11), want=(1,))])
    assert np.array_equal(scores.logits[0], combined_scores(ours((1, 11)), theirs((1, 8)), 0.0, 0.5))
    target.commit([session], [()])
    assert target.check(session, [1, 11]) is None


def test_the_shorter_context_counts():
    expert, amateur = tables()
    amateur.max_context = 9
    assert ContrastiveTarget(expert, amateur).max_context == 9


# --- exactly: the whole loop --------------------------------------------------------------------------------------


def exactly(alpha: Fraction, beta: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The combination over fractions, each pair of rows worked out once."""

    @cache
    def known(expert: tuple, amateur: tuple) -> Row:
        row = combined_law(np.array(expert, dtype=object), np.array(amateur, dtype=object), alpha, beta, FLOOR)
        row.flags.writeable = False
        return row

    return lambda expert, amateur: known(tuple(expert), tuple(amateur))


def proof(
    rule: str,
    controller: Controller,
    pair: str = "dense",
    *,
    make: Callable[..., Target] = ContrastiveTarget,
    drafter: Callable[[Target], Drafter] | None = None,
    alpha: Fraction = ALPHA,
    beta: int = 1,
    max_tokens: int = 4,
    end_ids: frozenset[int] = frozenset(),
    law: Law = identity_law,
    amateur: tuple[Callable[[Sequence[int]], Row], int] | None = None,
) -> LoopCase:
    """A decode of the very class over fractions; the amateur's own table drafts, unless `drafter` says who."""
    expert, size = PAIRS[pair].p, PAIRS[pair].vocab_size
    other, width = amateur or (PAIRS[pair].q, size)
    combine = exactly(alpha, beta)
    table = TableTarget(other, width)

    def row(history: Sequence[int]) -> Row:
        return combine(expert(history), other([min(token, width - 1) for token in history]))

    return LoopCase(
        row=row,
        target=lambda: make(TableTarget(expert, size), table, combine=combine),
        drafter=lambda: (drafter or (lambda model: ModelDrafter(model, kind_for(rule))))(table),
        controller=controller,
        rule=checked(RULES[rule]),
        max_tokens=max_tokens,
        end_ids=end_ids,
        law=law,
    )


def off(case: LoopCase) -> Fraction:
    return deviation(emitted_law(case), target_law(case))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_the_loop_samples_from_the_contrastive_law(rule: str, depth: int):
    watched = Watched(Fixed(depth))
    assert off(proof(rule, watched)) == 0
    assert watched.longest == depth + 1
    assert watched.rejected
    assert watched.bonus


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_on_every_kind_of_law(rule: str, pair: str):
    """Zeros of either, disjoint supports (all of the expert at the floor), equal laws, sharp ones."""
    for beta in (0, 2):
        assert off(proof(rule, Fixed(2), pair, beta=beta, max_tokens=3)) == 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_whatever_else_there_is(rule: str):
    """A cut inside a block and an end, penalties after the contrast, other drafters, other head sets, an amateur whose
    vocabulary is larger or smaller."""
    end = frozenset({1})
    cases = [
        proof(rule, Eager(2), max_tokens=3, end_ids=end),
        proof(rule, Fixed(2), max_tokens=3, law=penalised),
        proof(rule, Fixed(3), drafter=lambda model: NGramDrafter(2, 1)),
        proof(rule, Fixed(3), drafter=lambda model: NoDrafter()),
        proof(rule, Fixed(2), drafter=lambda model: ModelDrafter(TableTarget(PAIRS["dense"].p, 3), kind_for(rule))),
        proof(rule, Fixed(2), alpha=Fraction(0), max_tokens=3),
        proof(rule, Fixed(2), alpha=Fraction(1), max_tokens=3),
        *(proof(rule, Fixed(2), max_tokens=3, amateur=(exact_table(size, "other", up_to(9)), size)) for size in (2, 4)),
    ]
    assert [off(case) for case in cases] == [0] * len(cases)


class BonusOfTheExpert(ContrastiveTarget):
    """The fault of the field: the amateur has drafted, so its laws are known at every row but the last, and the token
    after a draft that was accepted whole comes from the expert alone."""

    def forward(self, feeds: Sequence[Feed]) -> list[Scores]:
        scores, found = super().forward(feeds), []
        for feed, each in zip(feeds, scores, strict=True):
            rows = each.logits.copy()
            if feed.parents:
                bare = Feed(feed.session.expert, feed.tokens, feed.parents)
                rows[-1] = self.expert.forward([bare])[0].logits[-1]
            found.append(Scores(rows))
        return found


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_the_enumeration_sees_a_bonus_that_is_the_experts(rule: str):
    seen = [off(proof(rule, Fixed(depth), make=BonusOfTheExpert, max_tokens=3)) for depth in (1, 2)]
    assert all(each > Fraction(1, 100) for each in seen), seen
    assert off(proof(rule, Fixed(2), make=BonusOfTheExpert, max_tokens=3, beta=0, alpha=Fraction(0))) == 0


# --- the same text, whoever drafts --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> tuple[ContrastiveTarget, HFTarget]:
    """Tiny models, and the amateur, which the target and a drafter share."""
    models = [copy.deepcopy(model) for model in (model_of(dtype=torch.float32), noisy(torch.float32))]
    expert, amateur = (HFTarget(model, measure_rows(model)) for model in models)
    target = ContrastiveTarget(expert, amateur)
    target.provide(4, CONTEXT)
    return target, amateur


PROMPTS = [tokens_of(30 + i, 20 + 7 * i) for i in range(3)]


def answered(
    target: Target, drafter: Drafter, params: SamplingParams, prompts: Sequence[Sequence[int]] = PROMPTS, **config
) -> tuple[list[list[int]], list[Step]]:
    """Through an engine that checks all caches after every round."""
    engine = Engine(target, KVMemory(1 << 30), EngineConfig(**{"check": True, "max_num_batched_tokens": 32} | config))
    outputs = [Output(params, params.max_tokens) for _ in prompts]
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        parts = drafter, Fixed(2), RULES["coupled"], law_of(params), PhiloxChance(i)
        engine.add(Request(str(i), prompt, output, *parts))
    return [output.token_ids for output in outputs], steps_of(engine)


def steps_of(engine: Engine) -> list[Step]:
    steps = []
    while engine.busy:
        for event in engine.step():
            assert event.error is None, event.error
            steps.append(event.step)
    return steps


def require_bits(target: ContrastiveTarget) -> None:
    if not target.plan.exact:
        pytest.skip("on this machine a row's bits depend on the rows beside it")


@pytest.mark.usefixtures("unchecked", "one_thread")
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "T = 0.8"])
def test_the_same_seed_gives_the_same_ids_with_the_amateur_drafting(pair, params: SamplingParams):
    """Three requests together, each alone, and none drafted for: one text."""
    target, amateur = pair
    require_bits(target)
    drafter = ModelDrafter(amateur, Kind.COUPLED)
    plain, _ = answered(target, NoDrafter(), params)
    drafted, steps = answered(target, drafter, params)
    assert plain == drafted
    assert sum(step.accepted for step in steps) > 5
    assert {step.verdict.last for step in steps} >= {"replacement", "bonus"}
    assert answered(target, NoDrafter(), params, PROMPTS[:1])[0] == plain[:1]
    assert answered(target, drafter, params, PROMPTS[:1])[0] == plain[:1]
    assert answered(target, NGramDrafter(2, 1), params)[0] == plain


@pytest.mark.usefixtures("unchecked", "one_thread")
def test_it_is_neither_of_the_two_models(pair):
    """Else the test above would prove nothing about the combination."""
    target, amateur = pair
    said = [answered(model, NoDrafter(), GREEDY)[0] for model in (target, target.expert, amateur)]
    assert said[0] != said[1]
    assert said[0] != said[2]


@pytest.mark.usefixtures("unchecked", "one_thread")
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "T = 0.8"])
def test_the_kernels_take_its_rows(pair, params: SamplingParams):
    """The production path: most of a row is -inf."""
    target, amateur = pair
    require_bits(target)
    known, _ = answered(target, NoDrafter(), params)
    for drafter in (NoDrafter(), ModelDrafter(amateur, Kind.COUPLED)):
        engine = Engine(target, KVMemory(1 << 30), EngineConfig(check=True), judge=judge)
        outputs = [Output(params, params.max_tokens) for _ in PROMPTS]
        for i, (prompt, output) in enumerate(zip(PROMPTS, outputs, strict=True)):
            parts = drafter, Fixed(3), fused("coupled", params), raw_law_of(params), KernelChance(i)
            engine.add(Request(str(i), prompt, output, *parts))
        steps_of(engine)
        assert [output.token_ids for output in outputs] == known


@pytest.mark.usefixtures("unchecked", "one_thread")
def test_a_beginning_is_reused_and_the_text_is_the_same(pair):
    """Both models adopt what both computed; so does the amateur as drafter."""
    target, amateur = pair
    require_bits(target)
    drafter = ModelDrafter(amateur, Kind.COUPLED)
    known, _ = answered(target, drafter, WARM, PROMPTS[:1], enable_prefix_caching=False)
    engine = Engine(target, KVMemory(1 << 30), EngineConfig(check=True))
    for _ in range(3):
        output = Output(WARM, 24)
        parts = output, drafter, Fixed(3), RULES["coupled"], law_of(WARM), PhiloxChance(0)
        engine.add(Request("again", PROMPTS[0], *parts))
        steps_of(engine)
        assert output.token_ids == known[0]
    assert engine.counts.reused >= 2 * (len(PROMPTS[0]) - 1)


@pytest.mark.usefixtures("unchecked")
def test_requests_that_give_up_their_memory_say_the_same():
    """Both caches are given up and computed anew. Tables: their bits depend on nothing."""
    target = ContrastiveTarget(*tables())
    drafter = ModelDrafter(target.amateur, Kind.COUPLED)
    prompts = [tuple(token % 12 for token in tokens_of(i, 30)) for i in range(3)]
    params = SamplingParams(max_tokens=60)
    known, _ = answered(target, NoDrafter(), params, prompts)
    engine = Engine(target, KVMemory(3 * 2 * 128), EngineConfig(check=True, max_num_batched_tokens=32))
    outputs = [Output(params, 60) for _ in prompts]
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        parts = drafter, Fixed(3), RULES["coupled"], law_of(params), PhiloxChance(i)
        engine.add(Request(str(i), prompt, output, *parts))
    steps_of(engine)
    assert [output.token_ids for output in outputs] == known
    assert engine.counts.preempted > 0


@pytest.mark.usefixtures("one_thread")
def test_bits_do_not_depend_on_company(pair):
    """Rows of three sessions and a tree in one forward, and each text alone."""
    target, _ = pair
    require_bits(target)
    sessions = [target.open(64) for _ in PROMPTS]
    feeds = [Feed(session, text[:8], want=tuple(range(8))) for session, text in zip(sessions, PROMPTS, strict=True)]
    feeds[2] = Feed(sessions[2], PROMPTS[2][:8], (ROOT, 0, 0, ROOT), want=tuple(range(8)))
    together = target.forward(feeds)
    for feed, scores in zip(feeds, together, strict=True):
        [alone] = target.forward([Feed(target.open(64), feed.tokens, feed.parents, feed.want)])
        assert np.array_equal(alone.logits, scores.logits)
    committed = target.forward([Feed(target.open(64), PROMPTS[0][:8], want=(4,))])[0].logits[0]
    assert np.array_equal(committed, together[0].logits[4])


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from([1, 7, 64, 1000]))
def test_a_row_alone_has_the_bits_it_has_among_many(seed: int, count: int, size: int):
    rng = np.random.default_rng(seed)
    rows = (4 * rng.standard_normal((2, count, size))).astype(np.float32)
    target = ContrastiveTarget(*tables(size))
    many = target._scores(Scores(rows[0]), Scores(rows[1])).logits
    for i in range(count):
        one = target._scores(Scores(rows[0, i : i + 1].copy()), Scores(rows[1, i : i + 1].copy())).logits
        assert np.array_equal(one[0], many[i])


def test_a_plan_is_exact_only_if_both_are(pair):
    target, amateur = pair
    assert target.plan.exact == (target.expert.plan.exact and amateur.plan.exact)
    inexact = copy.copy(amateur)
    inexact.plan = type(amateur.plan)(multiple=1, most=8)
    assert not ContrastiveTarget(target.expert, inexact).plan.exact
    assert target.kv_bytes_per_token == target.expert.kv_bytes_per_token + amateur.kv_bytes_per_token
    assert target.model is target.expert.model
    assert target.vocab_size == VOCAB


def test_a_model_against_itself_is_the_expert_within_its_head_set():
    table = TableTarget(hashed_logits(12), 12)
    target = ContrastiveTarget(table, table, alpha=0.05, beta=3.0)
    [scores] = target.forward([Feed(target.open(4), (1, 2))])
    logits = hashed_logits(12)((1, 2))
    expected = partial(combined_scores, logits, logits, 0.05)
    np.testing.assert_allclose(scores.logits[0], expected(0.0), rtol=1e-5)
