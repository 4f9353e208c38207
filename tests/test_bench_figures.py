"""The figures of a run are those that its measurements give by hand, and what cannot be had is None."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from draftproof.bench.bootstrap import FEWEST, Interval, ratio, student
from draftproof.bench.figures import Figures, Percentiles, Same, SystemFigures, figures
from draftproof.bench.pace import GroupRatio
from draftproof.bench.record import AGAIN, PLAIN, Bound, Depth, Divergence, Dropped, Run
from draftproof.bench.report import lines, sentences
from draftproof.bench.runner import Answer, Answers, Measurement, Setting
from draftproof.stats import Position, Stats

approx = pytest.approx


def drafting(**given) -> Stats:
    """Three rounds: drafts of 2, 2 and 1 tokens, of which 2, 1 and 0 came true."""
    stats = Stats(rounds=3, drafts=3, drafted=5, accepted=3, emitted=6)
    stats.drafted_per_position, stats.reached_per_position, stats.accepted_per_position = [3, 2], [3, 2], [2, 1]
    stats.drafted_by, stats.accepted_by = {"ngram": 4, "suffix": 1}, {"ngram": 3}
    stats.seconds |= {
        "prefill": 0.1,
        "propose": 0.2,
        "forward": 0.4,
        "verify": 0.1,
        "commit": 0.1,
        "total": 0.9,
    } | given
    return stats


def plainly(tokens: int) -> Stats:
    return Stats(rounds=tokens, emitted=tokens, plain=tokens)


def answers(seconds: float, *each: Answer, peak: int | None = None) -> Answers:
    return Answers(seconds, each, peak)


def answer(tokens: int = 4, stats: Stats | None = None, first: int = 0, arrivals=None) -> Answer:
    ids = tuple(range(first, first + tokens))
    return Answer(ids, arrivals or ((1.0, tokens),), None if stats is None else stats.as_dict())


def run_of(
    *measurements: tuple[str, int, int, Answers], setting: Setting | None = None, categories=("code", "code", "math")
) -> Run:
    """(system, question, repeat, answers) each; a batch's question is its first."""
    ours = [{"name": name, "kind": "ours", "claim": "bit-exact"} for name in (PLAIN, AGAIN, "suffix")]
    peers = [{"name": name, "kind": "peer"} for name in ("hf plain", "hf lookup")]
    questions = [{"id": f"q{i}", "category": name, "prompt_tokens": 3} for i, name in enumerate(categories)]
    run = Run({}, {}, ours + peers, [setting or Setting()], questions)
    for system, question, repeat, found in measurements:
        group = tuple(range(question, question + len(found.answers)))
        run.measurements.append(Measurement(0, group, system, repeat, found))
    return run


def of(found: Figures, name: str) -> SystemFigures:
    return next(each for each in found.settings[0].systems if each.name == name)


def three(system: str, *seconds: float) -> list[tuple[str, int, int, Answers]]:
    """Four tokens to each question, in so many seconds."""
    return [(system, i, 0, answers(each, answer())) for i, each in enumerate(seconds)]


# the bootstrap


def test_a_ratio_is_one_of_sums_and_not_a_mean_of_ratios():
    # (2 + 10) / 20 tokens over (1 + 10) / 20 tokens
    assert ratio([2.0, 10.0], [10, 10], [1.0, 10.0], [10, 10]).value == approx(12 / 11)


def test_the_interval_lies_between_the_extreme_groups_and_is_the_same_again():
    given = [2.0, 10.0, 3.0] * 3, [10] * 9, [1.0, 10.0, 2.0] * 3, [10] * 9
    found = ratio(*given)
    assert found.low is not None
    assert found.high is not None
    assert 1 <= found.low < found.value < found.high <= 2
    assert found == ratio(*given)


def test_what_slows_a_group_for_both_does_not_widen_the_interval():
    found = ratio([2.0, 200.0, 20.0] * 3, [10] * 9, [1.0, 100.0, 10.0] * 3, [10] * 9)
    assert (found.value, found.low, found.high) == (approx(2), approx(2), approx(2))


def test_few_groups_have_a_ratio_and_no_interval():
    assert ratio([3.0], [10], [2.0], [10]) == Interval(1.5, None, None)
    few = FEWEST - 1
    assert ratio([3.0] * few, [10] * few, [2.0] * few, [10] * few) == Interval(1.5, None, None)


@pytest.mark.parametrize(
    ("probability", "freedom", "right"),
    [(0.975, 7, 2.3646), (0.975, 11, 2.2010), (0.975, 47, 2.0117), (0.995, 11, 3.1058), (0.5, 7, 0.0)],
)
def test_students_quantiles_are_those_of_the_tables(probability, freedom, right):
    assert student(probability, freedom) == approx(right, abs=5e-4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("groups", [FEWEST, 12, 48])
def test_intervals_hold_the_true_ratio_as_often_as_they_say(groups):
    """Log-normal seconds, most of whose spread both systems share. The budget is 3 points on either side of 95 %; the
    share of 2000 has a standard error of half a point. Of many more it is 93 % for 8 groups, 94 % for 12 and 48."""
    random, held = np.random.default_rng(groups), 0
    for trial in range(2000):
        shared, base, own = np.exp(random.standard_normal((3, groups)) * [[0.5], [0.3], [0.3]])
        found = ratio(1.5 * shared * base, [10] * groups, shared * own, [10] * groups, samples=500, seed=trial)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1.5 <= found.high
    assert 0.92 <= held / 2000 <= 0.98


@pytest.mark.parametrize(
    ("arguments", "word"), [(([], [], [], []), "it is empty"), (([1.0], [10], [0.0], [10]), "above 0")]
)
def test_a_ratio_of_nothing_is_an_error(arguments, word):
    with pytest.raises(ValueError, match=word):
        ratio(*arguments)


# speed


def test_speed_ups_are_of_what_both_have_measured():
    run = run_of(*three(PLAIN, 2.0, 2.0, 8.0), *three("suffix", 1.0, 2.5), *three("hf plain", 4.0, 1.0, 9.0))
    found = of(figures(run), "suffix")
    assert (found.questions, found.pace.tokens, found.pace.tokens_per_second) == (2, 8, approx(8 / 3.5))
    assert found.against_plain is not None
    assert found.against_plain.groups == 2
    assert found.against_plain.mix.value == approx(4 / 3.5)
    assert found.against_plain.categories.keys() == {"code"}
    assert found.against_plain.worst == GroupRatio(("q1",), 2.0 / 2.5)
    assert found.against_plain.slow == (found.against_plain.worst,)
    assert found.against_hf is not None
    assert found.against_hf.mix.value == approx(5 / 3.5)


def test_a_system_is_that_of_the_settings_dtype():
    run = run_of(*three(PLAIN, 2.0), *three("suffix", 1.0))
    run.systems = [each | {"dtype": "bfloat16"} for each in run.systems]
    run.systems += [each | {"dtype": "float32", "claim": "same law"} for each in run.systems]
    run.settings.append(Setting(dtype="float32"))
    run.measurements += [replace(each, setting=1) for each in run.measurements]
    claims = [[each.claim for each in setting.systems] for setting in figures(run).settings]
    assert claims == [["bit-exact"] * 2, ["same law"] * 2]


def test_of_the_peers_the_best_one_counts():
    run = run_of(*three(PLAIN, 2.0, 2.0), *three("suffix", 1.0, 1.0), *three("hf plain", 2.2, 2.2))
    run.measurements += run_of(*three("hf lookup", 0.9, 0.8)).measurements
    found = of(figures(run), "suffix").against_best_peer
    assert found is not None
    assert (found.name, found.speed_up.mix.value) == ("hf lookup", approx(1.7 / 2))
    assert of(figures(run), "hf plain").against_best_peer is None
    assert of(figures(run_of(*three(PLAIN, 2.0), *three("suffix", 1.0))), "suffix").against_best_peer is None


def test_a_peer_that_answered_the_easy_prompt_alone_is_not_the_best_for_it():
    run = run_of(*three(PLAIN, 1.0, 9.0), *three("suffix", 1.0, 9.0), *three("hf plain", 0.9, 8.0))
    run.measurements += run_of(*three("hf lookup", 1.0)).measurements
    found = of(figures(run), "suffix").against_best_peer
    assert found is not None
    assert (found.name, found.speed_up.groups) == ("hf plain", 2)


def test_plain_is_no_multiple_of_itself_but_of_hugging_face_it_is():
    found = of(figures(run_of(*three(PLAIN, 2.0, 2.0), *three("hf plain", 3.0, 3.0))), PLAIN)
    assert found.against_plain is None
    assert found.against_hf is not None
    assert found.against_hf.mix.value == approx(1.5)


def test_categories_have_their_own_figures_and_few_questions_have_no_interval():
    names = ("code",) * 8 + ("math",)
    run = run_of(*three(PLAIN, *[2.0] * 8, 8.0), *three("suffix", *[1.0] * 8, 4.0), categories=names)
    found = of(figures(run), "suffix")
    assert list(found.categories) == ["code", "math"]
    assert found.categories["math"].tokens_per_second == approx(1.0)
    assert found.against_plain is not None
    assert found.against_plain.categories["code"].low == approx(2.0)
    assert found.against_plain.categories["math"] == Interval(2.0, None, None)


def test_of_repeats_the_median_counts_and_only_those_that_both_have():
    plain = [(PLAIN, 0, repeat, answers(seconds, answer())) for repeat, seconds in enumerate((2.0, 2.0, 80.0))]
    suffix = [("suffix", 0, repeat, answers(seconds, answer())) for repeat, seconds in enumerate((1.0, 1.0))]
    found = figures(run_of(*plain, *suffix))
    assert of(found, PLAIN).pace.seconds == approx(2.0)
    assert of(found, "suffix").against_plain.mix.value == approx(2.0)
    late = [("suffix", 0, 2, answers(1.0, answer()))]
    assert of(figures(run_of(*plain, *late)), "suffix").against_plain.mix.value == approx(80.0)


def test_who_says_more_in_a_repeat_is_not_slower_for_it():
    run = run_of(
        *[(PLAIN, 0, repeat, answers(4.0, answer(4))) for repeat in (0, 1)],
        ("hf plain", 0, 0, answers(4.0, answer(4))),
        ("hf plain", 0, 1, answers(8.0, answer(8))),
    )
    assert of(figures(run), "hf plain").against_plain.mix.value == approx(1.0)


def test_a_group_of_two_categories_counts_for_the_mix_alone():
    pair = [answers(seconds, answer(), answer()) for seconds in (4.0, 2.0)]
    run = run_of((PLAIN, 1, 0, pair[0]), ("suffix", 1, 0, pair[1]), setting=Setting(batch=2))
    found = of(figures(run), "suffix")
    assert found.categories == {}
    assert found.pace.tokens == 8
    assert found.against_plain.mix == Interval(2.0, None, None)
    assert found.against_plain.categories == {}
    assert found.against_plain.worst.questions == ("q1", "q2")


def test_noise_is_plain_against_itself():
    found = figures(run_of(*three(PLAIN, 2.0, 2.0), *three(AGAIN, 2.1, 2.0)))
    assert found.settings[0].noise is not None
    assert found.settings[0].noise.value == approx(4 / 4.1)
    assert figures(run_of(*three(PLAIN, 2.0))).settings[0].noise is None


def test_nothing_in_common_is_no_ratio():
    run = run_of((PLAIN, 0, 0, answers(1.0, answer())), ("suffix", 1, 0, answers(1.0, answer())))
    found = of(figures(run), "suffix")
    assert found.against_plain is None
    assert found.same is None


def test_a_run_that_was_cut_before_plain_says_so():
    with pytest.raises(ValueError, match="run: T=0 holds no measurement of 'plain'"):
        figures(run_of(*three("suffix", 1.0)))
    with pytest.raises(ValueError, match="run: it holds no measurements"):
        figures(run_of())


def test_settings_that_were_not_reached_are_left_out():
    run = run_of(*three(PLAIN, 2.0))
    run.settings.append(Setting(1.0))
    assert [each.name for each in figures(run).settings] == ["T=0"]


# drafting


def drafted(*stats: Stats, seconds: float = 1.2, setting: Setting | None = None) -> SystemFigures:
    """Six tokens by each."""
    plain = answers(2.0, *(answer(6, plainly(6)) for _ in stats))
    ours = answers(seconds, *(answer(6, each) for each in stats))
    return of(figures(run_of((PLAIN, 0, 0, plain), ("suffix", 0, 0, ours), setting=setting)), "suffix")


def test_counts_are_those_of_the_statistics():
    found = drafted(drafting()).drafting
    assert found is not None
    assert (found.passes, found.drafts, found.drafted, found.accepted) == (3, 3, 5, 3)
    assert (found.tokens_per_pass, found.acceptance_length, found.acceptance_rate) == (2.0, 2.0, approx(3 / 5))
    assert {name: (each.drafted, each.accepted) for name, each in found.origins.items()} == {
        "ngram": (4, 3),
        "suffix": (1, 0),
    }


def test_acceptance_by_depth_is_of_all_rounds_and_of_those_that_came_so_far():
    found = drafted(drafting()).drafting
    assert found is not None
    # two of three rounds accept the first token; both drafted a second one, and one of them accepts it
    assert found.positions == (Position(1, 3, 3, 2, 2 / 3, 2 / 3), Position(2, 2, 2, 1, 1 / 3, 1 / 2))


def test_a_depth_was_reached_as_often_as_was_counted_and_not_as_often_as_could_be():
    """Ten rounds accept the one token they draft, ten refuse the first of two."""
    stats = Stats(rounds=20, drafts=20, drafted=30, accepted=10, emitted=30)
    stats.drafted_per_position, stats.accepted_per_position, stats.reached_per_position = [20, 10], [10, 0], [20, 0]
    found = drafted(stats).drafting
    assert found is not None
    assert [(each.reached, each.conditional) for each in found.positions] == [(20, 1 / 2), (0, None)]


def test_no_drafts_have_no_rates():
    plain = figures(run_of((PLAIN, 0, 0, answers(1.0, answer(4, plainly(4))))))
    found = of(plain, PLAIN).drafting
    assert found is not None
    assert (found.passes, found.drafts, found.tokens_per_pass) == (4, 0, 1.0)
    assert (found.acceptance_length, found.acceptance_rate, found.positions) == (None, None, ())
    assert of(plain, PLAIN).phases is None


def test_who_does_not_count_has_no_counts():
    found = of(figures(run_of(*three(PLAIN, 2.0), *three("hf plain", 2.0))), "hf plain")
    assert (found.drafting, found.phases, found.same_counts) == (None, None, None)
    assert (found.claim, found.bounds, found.peak_bytes) == (None, (), None)


def test_phases_add_up_to_what_was_measured():
    found = drafted(drafting())
    assert found.phases == {
        "propose": approx(1e3 * 0.2 / 6),
        "forward": approx(1e3 * 0.4 / 6),
        "verify": approx(1e3 * 0.1 / 6),
        "commit": approx(1e3 * 0.1 / 6),
        "prefill": approx(1e3 * 0.1 / 6),
        "rest": approx(1e3 * 0.3 / 6),
    }
    assert sum(found.phases.values()) == approx(found.token_ms) == approx(200.0)


@pytest.mark.parametrize("seconds", [(1.2, 9.0, 1.5), (1.2, 9.0), (1.2, 1.2, 30.0, 0.9)])
def test_phases_and_tokens_a_second_are_of_the_same_repeats(seconds):
    """A repeat that something else on the machine slowed down is in neither."""
    run = run_of(
        (PLAIN, 0, 0, answers(2.0, answer(6, plainly(6)))),
        *[("suffix", 0, i, answers(each, answer(6, drafting()))) for i, each in enumerate(seconds)],
        ("suffix", 1, 0, answers(1.1, answer(12, drafting()))),
    )
    found = of(figures(run), "suffix")
    assert found.phases is not None
    assert sum(found.phases.values()) == approx(found.token_ms) == approx(1e3 / found.pace.tokens_per_second)


def test_a_round_of_many_counts_its_seconds_once_and_its_passes_for_each():
    shorter = drafting(forward=0.1, total=0.6)
    found = drafted(drafting(), shorter, setting=Setting(batch=2))
    assert found.phases is not None
    assert found.phases["forward"] == approx(1e3 * 0.4 / 12)
    assert found.drafting is not None
    assert found.drafting.passes == 6


def test_bounds_stand_beside_what_was_accepted():
    run = run_of(*three(PLAIN, 2.0), *three("suffix", 1.0))
    run.bounds.append(Bound("suffix", 0, (Depth(10, 7, 8.0), Depth(0, 0, 0.0))))
    one, two = of(figures(run), "suffix").bounds
    assert (one.depth, one.reached, one.accepted, one.bound) == (1, 10, 0.7, 0.8)
    assert (two.depth, two.reached, two.accepted, two.bound) == (2, 0, None, None)


def test_a_rule_that_no_bound_holds_is_shown_without_one():
    run = run_of(*three(PLAIN, 2.0), *three("suffix", 1.0))
    run.bounds.append(Bound("suffix", 0, (Depth(10, 9, 5.0),)))
    assert "  bound" in lines(run)
    run.systems[2]["claim"] = "lossy"
    [one] = of(figures(run), "suffix").bounds
    assert (one.accepted, one.bound) == (0.9, None)
    assert "  seen " in lines(run)
    assert "  bound" not in lines(run)


def test_whose_drafts_follow_costs_is_said_to_be_seen_with_others():
    run = run_of(*three(PLAIN, 2.0), *three("suffix", 1.0))
    run.bounds.append(Bound("suffix", 0, (Depth(10, 9, 9.5),)))
    assert "(fixed lengths)" not in lines(run)
    run.systems[2]["speculation"] = {"controller": "cost"}
    assert {"  seen (fixed lengths)", "  bound (fixed lengths)"} <= {
        line[:23].rstrip() for line in lines(run).split("\n")
    }


# waiting


def pair(found: Percentiles | None) -> tuple[float, float]:
    assert found is not None
    return found.p50, found.p95


def test_a_reader_waits_for_the_first_and_between_arrivals():
    arrivals = ((0.5, 1), (0.6, 3), (0.9, 1))
    run = run_of((PLAIN, 0, 0, answers(1.0, answer(5, arrivals=arrivals), peak=7)))
    found = of(figures(run), PLAIN)
    assert pair(found.waiting.first) == approx((500, 500))
    assert pair(found.waiting.between) == approx((200, 290))  # of 100 and 300
    assert pair(found.waiting.token) == approx((100, 100))  # 0.4 s, 4 tokens
    assert found.peak_bytes == 7


def test_what_comes_at_once_has_nothing_between():
    found = of(figures(run_of((PLAIN, 0, 0, answers(1.0, answer(5))))), PLAIN).waiting
    assert found.first is not None
    assert (found.between, found.token) == (None, None)


# sameness


def differing(temperature: float) -> Run:
    return run_of(
        *three(PLAIN, 2.0, 2.0, 2.0),
        *three(AGAIN, 2.0, 2.0, 2.0),
        ("hf plain", 0, 0, answers(2.0, answer())),
        *[("hf plain", i, 0, answers(2.0, answer(first=9))) for i in (1, 2)],
        setting=Setting(temperature),
    )


def test_texts_are_counted_and_their_partings_told_apart():
    run = differing(0.0)
    run.divergences = [
        Divergence("hf plain", 0, 1, 0, 0.01, 1.0, tie=True),
        Divergence("hf plain", 0, 0, 0, 3.0, 90.0, tie=False),  # of a later repeat
        Divergence("hf lookup", 0, 2, 0, 3.0, 90.0, tie=False),
        Divergence("hf plain", 1, 2, 0, 3.0, 90.0, tie=False),
    ]
    assert of(figures(run), "hf plain").same == Same(equal=1, compared=3, ties=1, others=0, unseen=1)
    assert of(figures(run), AGAIN).same == Same(3, 3, 0, 0, 0)
    assert of(figures(run), PLAIN).same is None


def test_where_chance_decides_only_those_who_promise_the_same_text_are_compared():
    found = figures(differing(1.0))
    assert of(found, "hf plain").same is None
    assert of(found, AGAIN).same == Same(3, 3, 0, 0, 0)
    run = differing(1.0)
    run.systems[1]["claim"] = "same law"
    assert of(figures(run), AGAIN).same is None


@pytest.mark.parametrize(
    ("again", "first", "tokens", "counts"),
    [(drafting(), 0, True, True), (plainly(6), 0, True, False), (drafting(), 1, False, True)],
)
def test_repeats_are_compared_with_each_other(again, first, tokens, counts):
    run = run_of(
        *[(PLAIN, 0, repeat, answers(2.0, answer(6, plainly(6)))) for repeat in (0, 1)],
        ("suffix", 0, 0, answers(1.0, answer(6, drafting(forward=0.5)))),
        ("suffix", 0, 1, answers(1.0, answer(6, again, first=first))),
    )
    found = of(figures(run), "suffix")
    assert (found.same_tokens, found.same_counts) == (tokens, counts)


def test_what_was_not_repeated_is_neither_same_nor_different():
    found = drafted(drafting())
    assert (found.same_tokens, found.same_counts) == (None, None)


# what is said of it


def losing() -> Run:
    run = run_of(*three(PLAIN, 2.0, 2.0, 2.0), *three("suffix", 2.5, 2.6, 1.9), *three("hf plain", 2.2, 2.2, 1.0))
    run.dropped.append(Dropped("hf lookup", 0, "hf lookup: it has not answered for 60 s"))
    return run


def test_where_ours_lose_is_said():
    eight = ("code",) * 8
    run = run_of(
        *three(PLAIN, *[2.0] * 8), *three("suffix", *[2.5] * 8), *three("hf plain", *[2.2] * 8), categories=eight
    )
    assert sentences(figures(run)) == [
        "T=0: suffix is slower than plain: 0.80 [0.80, 0.80].",
        "T=0: suffix is slower than the best peer, hf plain: 0.88 [0.88, 0.88].",
        "T=0: suffix is slower than hf plain in code (0.88 [0.88, 0.88]).",
        "T=0: suffix is below 0.97 of plain on 8 of 8 prompts; worst: q0 (0.80).",
    ]
    assert sentences(figures(run_of(*three(PLAIN, 2.0), *three("suffix", 1.0), *three("hf plain", 3.0)))) == []


def test_who_loses_to_the_best_peer_is_told_how_surely():
    eight, uneven = ("code",) * 8, (0.5, 1.6) * 4
    run = run_of(*three(PLAIN, *[2.0] * 8), *three("suffix", *[1.1] * 8), categories=eight)
    run.measurements += run_of(
        *three("hf plain", *[3.0] * 8), *three("hf lookup", *uneven), categories=eight
    ).measurements
    [said] = [each for each in sentences(figures(run)) if "suffix" in each]
    assert said.startswith("T=0: suffix is slower than the best peer, hf lookup: 0.95 [")
    assert said.endswith("]; its interval reaches 1.")
    shown = lines(run)
    assert "best peer: hf lookup" in shown
    assert next(line for line in shown.splitlines() if line.startswith("suffix ")).count("0.95 ") == 1


def test_few_prompts_do_not_hide_a_loss():
    said = sentences(figures(run_of(*three(PLAIN, 2.0, 2.0), *three("suffix", 2.5, 2.5))))
    assert said[0] == "T=0: suffix is slower than plain: 0.80; too few for an interval."


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_promise_comes_before_all_losses(temperature):
    run = run_of(*three(PLAIN, 2.0, 2.0, 2.0), *three("suffix", 2.5, 2.5), setting=Setting(temperature))
    run.measurements += run_of(*three("hf plain", 1.0)).measurements
    run.measurements.append(Measurement(0, (2,), "suffix", 0, answers(2.5, answer(first=9))))
    run.divergences = [Divergence("suffix", 0, 2, 0, None, None, tie=False)]
    told = "suffix promises plain's text and has it in 2 of 3 answers"
    assert sentences(figures(run))[0] == f"T={temperature:g}: {told}."
    assert told.replace(" ", ": ", 1) in lines(run)
    assert "tie" not in lines(run)
    run.systems[2]["claim"] = "same law"
    assert not any("promises" in each for each in sentences(figures(run)))


def test_the_title_says_what_intervals_are_over():
    assert "T=0: 9 prompts, intervals over 9 prompts" in lines(run_of(*three(PLAIN, *[2.0] * 9), categories=("a",) * 9))
    assert "T=0: 3 prompts, too few for intervals: 2 prompts of the 8" in lines(run_of(*three(PLAIN, 2.0, 2.0)))
    pairs = [(PLAIN, 2 * i, 0, answers(2.0, answer(), answer())) for i in range(8)]
    shown = lines(run_of(*pairs, setting=Setting(batch=2), categories=("a",) * 16))
    assert "T=0 batch 2: 16 prompts, intervals over 8 groups" in shown


def test_the_report_holds_every_system_with_its_figures():
    shown = lines(losing())
    rows = {line.split("  ")[0]: line for line in reversed(shown.splitlines())}
    assert "0.86  " in rows["suffix"]  # 6 s over 7 s
    assert "baseline" in rows[PLAIN]
    assert "1.11  " in rows["hf plain"]  # 6 s over 5.4 s
    assert "hf lookup is out: it has not answered for 60 s" in shown
    assert "noise: not known, since 'plain again' was not measured" in shown
    assert "suffix is slower than hf plain in code (0.86), math (0.53)" in shown
    assert lines(figures(losing())) == shown


def test_the_report_of_one_question_that_failed_half_way_is_whole():
    run = run_of(*three(PLAIN, 2.0, 2.0), *three("suffix", 1.0))
    shown = lines(run)
    assert "suffix: 1 of 3 prompts measured" in shown
    assert not any(word in shown for word in ("nan", "None", "inf"))


@pytest.mark.parametrize("width", [100, 120])
def test_the_report_is_no_wider_than_asked(width):
    run = losing()
    run.systems[2]["name"] = "draft_model smollm2-135m-instruct with an adaptive controller, K=8"
    run.measurements = [
        Measurement(
            0, each.questions, run.systems[2]["name"] if each.system == "suffix" else each.system, 0, each.answers
        )
        for each in run.measurements
    ]
    for i, question in enumerate(run.questions):
        question["category"] = f"retrieval-augmented generation {i}"
    run.bounds.append(Bound("hf plain", 0, (Depth(9, 4, 6.0),) * 24))
    assert max(map(len, lines(run, width).splitlines())) <= width


def test_figures_are_json_without_what_json_has_not():
    run = losing()
    run.bounds.append(Bound("suffix", 0, (Depth(0, 0, 0.0),)))
    found = json.loads(json.dumps(figures(run).as_dict(), allow_nan=False))
    suffix = found["settings"][0]["systems"][1]
    assert suffix["name"] == "suffix"
    assert suffix["against_plain"]["worst"] == {"questions": ["q1"], "ratio": approx(2 / 2.6)}
