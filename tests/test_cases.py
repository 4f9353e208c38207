"""Faults that users of other systems reported, as small cases on table models; T numbers are those of the case list."""

# ruff: noqa: N802  (the T is part of a case's name)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from draftproof import verify
from draftproof.audit.exact import LoopCase, deviation, emitted_law, fractions_row, law_of_result, target_law
from draftproof.audit.toys import argmax, chooser
from draftproof.base import Chance, Draft, Key, Kind, Purpose, Row, Rule, Step, Verdict
from draftproof.chance import PhiloxChance
from draftproof.commit import Output
from draftproof.control import Fixed
from draftproof.drafters import ModelDrafter, NGramDrafter, NoDrafter
from draftproof.laws import acceptance, warp
from draftproof.models.table import TableTarget, hashed_logits
from draftproof.rules import RULES, block, token
from draftproof.sampling import SamplingParams, law_of
from draftproof.stats import Stats
from draftproof.theory import acceptance_report
from tests.toys import CHAIN_RULES, Letters, chi_square, chi_square_limit, constant, decoded, kind_for, reference

P, Q = fractions_row(5, 3, 2), fractions_row(6, 3, 1)
FAR = fractions_row(2, 3, 5)
V = 32
TAB, OTHER = hashed_logits(V), hashed_logits(V, salt=1)
GREEDY = SamplingParams(temperature=0, max_tokens=24)


def first_token(draft: Draft | Row, rule: Rule, p: Row = P) -> dict[int, Fraction]:
    """The exact law of a round's first token, for a given draft or for one token drawn from a row."""

    def run(chance: Chance) -> int:
        made = draft
        if not isinstance(made, Draft):
            made = Draft.chain(1, chance.pick(draft, Key(1, 0, Purpose.DRAFT)), Kind.SAMPLED, "q", [draft])
        return rule(made, (p, p), chance).tokens[0]

    return law_of_result(run)


def as_law(row: Row) -> dict[int, Fraction]:
    return {x: mass for x, mass in enumerate(row) if mass}


def counting(history: Sequence[int]) -> np.ndarray:
    """Greedily says 1, 2, 3, ...: the token is its own position."""
    return np.where(np.arange(V) == len(history), 9, 0).astype(np.float32)


def near(history: Sequence[int]) -> np.ndarray:
    """A draft model that is right more often than not."""
    return (0.9 * TAB(history) + 0.3 * OTHER(history)).astype(np.float32)


def bites(steps: Sequence[Step]) -> bool:
    """Long blocks and rejections both occurred, so the test meant something."""
    return max(len(step.tokens) for step in steps) >= 3 and any(step.verdict.last == "replacement" for step in steps)


def drawn(table=near, kind: Kind = Kind.COUPLED, **limits) -> ModelDrafter:
    return ModelDrafter(TableTarget(table, V, **limits), kind)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_T01_an_argmax_draft_is_a_point_mass(rule: Rule):
    draft = Draft.chain(1, [argmax(Q)])
    assert first_token(draft, rule) == as_law(P)
    accepted = law_of_result(lambda chance: len(rule(draft, (P, P), chance).path))
    assert accepted[1] == Fraction(1, 2)


def test_T01_its_soft_q_would_be_seen():
    soft = Draft.chain(1, [argmax(Q)], Kind.SAMPLED, rows=[Q])
    assert first_token(soft, token) == {0: Fraction(5, 6), 2: Fraction(1, 6)}


def resampled_from_p(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
    """The fault of T05."""
    verdict = token(draft, rows, chance)
    if verdict.last == "replacement":
        verdict = replace(verdict, tokens=chance.pick(rows[0], Key(1, 9, Purpose.REPLACE)))
    return verdict


def test_T05_a_rejection_draws_from_the_residual():
    assert first_token(FAR, token) == first_token(FAR, block) == as_law(P)
    faulty = first_token(FAR, resampled_from_p)
    assert [float(faulty[x]) for x in range(3)] == [0.35, 0.39, 0.26]
    assert deviation(faulty, as_law(P)) == Fraction(15, 100)


class Forced(PhiloxChance):
    """Coins fall as told, and the rows that were picked from are kept."""

    def __init__(self, heads: bool) -> None:
        super().__init__(1)
        self.heads, self.seen = heads, []

    def coin(self, prob: float, key: Key) -> bool:
        return self.heads

    def pick(self, weights: Row, key: Key, k: int = 1) -> tuple[int, ...]:
        self.seen.append(weights)
        return super().pick(weights, key, k)


def bf16(row: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16, as float32."""
    bits = row.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("rule", [token, block])
def test_T10_the_recorded_q_is_the_array_the_token_was_drawn_from(rule: Rule):
    """A bfloat16 drafter under a float32 verifier, 1000 nearly equal tokens: the law of a round, summed over drafts."""
    size = 1000
    fine = (0.05 * np.random.default_rng(0).standard_normal(size)).astype(np.float32)
    drafter = ModelDrafter(TableTarget(lambda history: bf16(fine), size), Kind.SAMPLED)
    chance = Forced(heads=False)
    _, steps = decoded(
        constant(fine), size, drafter, chance, rule=rule, k=1, params=SamplingParams(max_tokens=2, temperature=1.0)
    )
    [q] = steps[0].draft.rows
    assert any(q is row for row in chance.seen)
    p = warp(fine)
    assert 0 < np.abs(p - q).max() < 1e-4
    law = np.zeros(size)
    for x in range(size):
        draft = Draft.chain(1, [x], Kind.SAMPLED, rows=[q])
        forced = Forced(heads=False)
        [test] = rule(draft, (p, p), forced).tests
        law[x] += q[x] * test.prob
        if test.prob < 1:
            law += q[x] * (1 - test.prob) * forced.seen[0] / forced.seen[0].sum()
    assert np.abs(law - p).sum() / 2 < 1e-13


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", CHAIN_RULES)
def test_T13_temperature_and_top_k_jointly_over_three_tokens(name: str):
    kind = kind_for(name)
    params = SamplingParams(temperature=0.5, top_k=2, max_tokens=3)
    law = law_of(params)
    p, q = hashed_logits(4, salt=1), hashed_logits(4, salt=8)

    # exactly: the floats of the warped rows are exact numbers
    exact_p, exact_q = (lambda history, row=row: fractions_row(*law(row(history), history)) for row in (p, q))
    made = (lambda: TableTarget(exact_p, 4)), (lambda: ModelDrafter(TableTarget(exact_q, 4), kind))
    case = LoopCase(exact_p, *made, Fixed(2), RULES[name], max_tokens=3)
    known = target_law(case)
    assert deviation(emitted_law(case), known) == 0
    assert len(known) == 8, "two tokens a position"

    # on production noise, from logits: seeded; a right law fails with probability below 1e-9
    counts, drafter = dict.fromkeys(known, 0), ModelDrafter(TableTarget(q, 4), kind)
    rejected = long = 0
    for seed in range(2000):
        output, steps = decoded(p, 4, drafter, PhiloxChance(seed), rule=name, k=2, params=params, law=law)
        counts[tuple(output.token_ids)] += 1
        rejected += steps[0].verdict.last == "replacement"
        long += len(steps[0].tokens) == 3
    assert chi_square(list(counts.values()), [float(mass) for mass in known.values()]) < chi_square_limit(7)
    assert min(rejected, long) > 500


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "coupled"])
@pytest.mark.parametrize("size", [8193, 10_000, 151_936])
def test_T15_a_residual_at_the_very_end_of_the_vocabulary(size: int, rule: str):
    """p and q differ at the first and the last token alone, so that a refused first token is replaced by the last."""
    p = np.full(size, 1 / size)
    q = p.copy()
    q[0], q[-1] = 2 / size, 0
    replaced = {
        verdict.tokens for seed in range(12) if not (verdict := verify([0], [p], [q], rule=rule, rng=seed)).path
    }
    assert replaced == {(size - 1,)}


def test_T15_the_residual_may_vanish_in_the_last_tile():
    p, q = np.zeros(10_000), np.full(10_000, 1e-4)
    p[:5000] = 2e-4
    for seed in range(20):
        [y] = verify([9_999], [p], [q], rng=seed).tokens
        assert 0 <= y < 5000


def test_T16_equal_laws_are_always_accepted():
    probabilities = np.random.default_rng(1).random(1_000_000) * 10.0 ** np.random.default_rng(2).integers(
        -300, 0, 10**6
    )
    assert all(acceptance(p, p) == 1 for p in probabilities.tolist() if p > 0)
    params = SamplingParams(max_tokens=300)
    for rule in ("token", "block"):
        _, steps = decoded(TAB, V, drawn(TAB, Kind.SAMPLED), PhiloxChance(3), rule=rule, k=5, params=params)
        assert all(test.prob == 1 and test.accepted for step in steps for test in step.verdict.tests)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_T16_far_laws_leave_p(rule: Rule):
    assert first_token(FAR, rule) == as_law(P)


class Constant(PhiloxChance):
    """Every uniform is the same number."""

    def __init__(self, u: float) -> None:
        super().__init__(0)
        self._u = u

    def uniform(self, key: Key) -> float:
        return self._u


@pytest.mark.parametrize("rule", [rule for name, rule in RULES.items() if name != "coupled"])
def test_T17_the_comparison_is_strict_at_both_ends(rule: Rule):
    p, q = np.array([0.0, 0.5, 0.5]), np.array([0.4, 0.3, 0.3])
    draft = Draft.chain(1, [0], Kind.SAMPLED, rows=[q])
    assert rule(draft, (p, p), Constant(0.0)).path == ()
    assert rule(draft, (q, p), Constant(np.nextafter(1, 0))).path == (0,)


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-5, 1e-3])
def test_T19_cold_is_the_argmax(temperature: float):
    rng = np.random.default_rng(4)
    for _ in range(50):
        logits = rng.uniform(-1e4, 1e4, 50).astype(np.float32)
        logits[rng.integers(0, 50, 10)] = -np.inf
        law = warp(logits, temperature=temperature)
        assert law[argmax(logits)] == 1
        assert np.isfinite(law).all()


def test_T19_ties_go_to_id_0_alone_and_beside_a_warm_row():
    tied = np.array([1.0, 1.0, 0.0])
    alone = warp(tied, temperature=0)
    warm = warp(tied, temperature=1)
    assert alone.tolist() == warp(tied, temperature=0).tolist() == [1, 0, 0]
    assert warm[0] == warm[1] < 0.5


@pytest.mark.parametrize("k", range(1, 9))
def test_T23_a_prompt_of_one_token(k: int):
    positions = []

    def table(history: Sequence[int]) -> np.ndarray:
        positions.append(len(history))
        return TAB(history)

    output, steps = decoded(table, V, drawn(), PhiloxChance(6), prompt=[5], k=k, params=SamplingParams(max_tokens=40))
    assert output.token_ids == reference(TAB, [5], 40, PhiloxChance(6))
    assert set(positions) == set(range(1, 41)), "a row after 1 .. 40 tokens, and none further"
    assert bites(steps) == (k > 1)


@pytest.mark.parametrize("size", range(28, 63))
def test_T24_a_draft_model_with_half_the_context(size: int):
    prompt = [i % V for i in range(size)]
    params = SamplingParams(max_tokens=64 - size)
    drafter = drawn(max_context=32)  # it raises if it is fed more
    output, steps = decoded(TAB, V, drafter, PhiloxChance(7), prompt=prompt, k=4, params=params, max_context=64)
    assert output.token_ids == reference(TAB, prompt, 64 - size, PhiloxChance(7))
    assert all(len(step.draft) <= max(0, 33 - step.draft.root) for step in steps)
    stats = Stats()
    for step in steps:
        stats.add(step)
    assert (stats.acceptance_rate is None) == (size > 32)
    assert (stats.drafted > 0) == (size <= 32)
    if size <= 29:
        assert max(len(step.tokens) for step in steps) >= 3


@pytest.mark.parametrize("name", ["model", "ngram"])
def test_T26_the_first_occurrence_of_an_end_token_ends_it(name: str):
    k, table = 4, hashed_logits(6, order=1, scale=3)  # few tokens, so that they return

    def run(end_ids: frozenset[int]) -> tuple[Output, list[Step]]:
        output = Output(SamplingParams(max_tokens=24), 24, end_ids, Letters("abcdef"))
        model = ModelDrafter(TableTarget(hashed_logits(6, order=1, scale=2), 6), Kind.COUPLED)
        drafter = model if name == "model" else NGramDrafter(3, 1)
        return decoded(table, 6, drafter, PhiloxChance(0), prompt=prompt, k=k, output=output)

    prompt = reference(table, [0], 30, PhiloxChance(1))  # n-grams copy only what was said before
    free, steps = run(frozenset())
    assert bites(steps)
    cut_inside = 0
    for j in range(1, 2 * k + 1):
        end = free.token_ids[j]
        output, steps = run(frozenset({end}))
        kept = free.token_ids[: free.token_ids.index(end) + 1]
        assert (output.token_ids, output.finish_reason) == (kept, "stop")
        assert output.shown == output.text == "".join("abcdef"[t] for t in kept[:-1])
        cut_inside += len(steps[-1].tokens) < len(steps[-1].verdict.tokens)
    assert cut_inside > 0


WORDS = [*"abcdefghijklmnopqrstuvwxyz", *"012345"]  # token i reads WORDS[i]; the text is "bcdefg..."


def streamed(pieces: Sequence[str], stop: tuple[str, ...], k: int, limit: int = 20) -> tuple[Output, list[str]]:
    """What the counting model says, and what may be shown after each token that arrives."""
    params = replace(GREEDY, stop=stop)
    shown = []

    class Listening(Letters):
        def add(self, token: int) -> str:
            shown.append(output.shown)
            return super().add(token)

    output = Output(params, limit, detokenizer=Listening(pieces))
    _, steps = decoded(counting, V, drawn(counting), PhiloxChance(0), k=k, output=output, params=params)
    assert len(steps[0].verdict.tokens) == min(k + 1, limit)
    return output, [*shown, output.shown]


@pytest.mark.parametrize(
    ("stop", "kept", "text"),
    [("c", 2, "b"), ("f", 5, "bcde"), ("l", 11, "bcdefghijk"), ("ef", 5, "bcd"), ("defgh", 7, "bc")],
    ids=["2nd", "5th", "11th", "spans two", "spans five"],
)
def test_T27_a_stop_string_inside_a_block_of_twelve(stop: str, kept: int, text: str):
    plain, _ = streamed(WORDS, (stop,), k=0)
    fast, shown = streamed(WORDS, (stop,), k=11)
    for output in (plain, fast):
        assert output.token_ids == list(range(1, kept + 1))
        assert (output.text, output.finish_reason, output.stop_reason) == (text, "stop", stop)
        assert output.shown == text
    assert all(text.startswith(so_far) for so_far in shown)


@pytest.mark.parametrize("k", [0, 1, 3, 11])
def test_T29_the_stop_that_comes_first_in_the_text_wins(k: int):
    pieces = ["", " The", " user", " is", " a", ",", *["."] * (V - 6)]
    output, shown = streamed(pieces, ("a", "is", ","), k)
    assert (output.text, output.stop_reason) == (" The user ", "is")
    assert all(" The user ".startswith(so_far) for so_far in shown)


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_T30_exactly_max_tokens_and_no_draft_that_cannot_be_emitted(limit: int, rule: str):
    params = SamplingParams(max_tokens=limit)
    prompt = [1, 2] * 4
    output, steps = decoded(TAB, V, NGramDrafter(), PhiloxChance(1), prompt=prompt, rule=rule, k=3, params=params)
    assert (len(output.token_ids), output.finish_reason) == (limit, "length")
    left = limit
    for step in steps:
        assert len(step.draft) <= min(3, left - 1)
        left -= len(step.tokens)
    assert len(steps[0].draft) == limit - 1, "the prompt repeats itself, so it drafts all it may"


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_T34_a_round_without_drafts_replaces_nothing(rule: Rule):
    chance, p = Forced(heads=False), warp(TAB([1, 2]))
    verdict = rule(Draft(2), (p,), chance)
    assert verdict.last == "target"
    assert len(chance.seen) == 1
    assert chance.seen[0] is p


@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_T34_other_seeds_say_other_things(rule: str):
    params = SamplingParams(max_tokens=20)
    texts = [decoded(TAB, V, NoDrafter(), PhiloxChance(seed), rule=rule, params=params)[0] for seed in range(20)]
    assert len({tuple(text.token_ids) for text in texts}) >= 19


@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_T39_never_more_than_k_and_the_second_call_is_the_first(rule: str):
    drafter, params = drawn(kind=kind_for(rule)), SamplingParams(max_tokens=40)
    calls = [decoded(TAB, V, drafter, PhiloxChance(8), rule=rule, k=5, params=params) for _ in range(2)]
    assert calls[0][0] == calls[1][0]
    assert [step.verdict for step in calls[0][1]] == [step.verdict for step in calls[1][1]]
    assert max(len(step.draft) for step in calls[0][1]) == 5
    assert bites(calls[0][1])


def counted(mask: Sequence[bool], k: int, limit: int) -> list:
    """The rounds of a drafter that is right where the mask says so, by position of the text."""
    right = dict(enumerate(mask, start=1))
    drafter = chooser(lambda history: len(history) if right.get(len(history), True) else 0)
    return decoded(counting, V, drafter, PhiloxChance(0), k=k, params=replace(GREEDY, max_tokens=limit))[1]


def test_T44_what_follows_a_rejection_is_not_accepted():
    first = counted([True, False, True, True], k=4, limit=12)[0]
    assert (len(first.draft), first.accepted, first.bonus) == (4, 1, 0)
    assert first.tokens == (1, 2)


def test_T44_the_last_draft_counts_its_own_length_and_the_bonus_apart():
    steps = counted([True] * 12, k=4, limit=7)
    assert [(len(step.draft), step.accepted, step.bonus) for step in steps] == [(4, 4, 1), (1, 1, 1)]


def test_T44_a_request_that_never_drafted_has_no_rate():
    stats = Stats()
    for step in counted([], k=0, limit=3):
        stats.add(step)
    assert (stats.drafted, stats.accepted, stats.bonus, stats.emitted) == (0, 0, 0, 3)
    assert stats.acceptance_length is stats.acceptance_rate is None


def test_T51_an_argmax_draft_or_a_sampled_one():
    sharp, flat = np.array([0.9, 0.05, 0.05]), np.array([0.4, 0.3, 0.3])
    one, other = acceptance_report(sharp, [0.5, 0.3, 0.2]), acceptance_report(flat, flat)
    assert (one.chosen, one.token) == pytest.approx((0.9, 0.6))
    assert (other.chosen, other.token) == pytest.approx((0.4, 1.0))
