"""What a sweep says is what its measurements give by hand: of decoding alone, and nothing predicted from itself counts
as a prediction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftproof.bench import sweep
from draftproof.bench.files import read_run, write_run
from draftproof.bench.ours import Ours
from draftproof.bench.record import AGAIN, PLAIN, Dropped, ForwardCosts, Run
from draftproof.bench.runner import Answer, Answers, Measurement, Setting
from draftproof.bench.sweep import SweepPoint, agreement, costs_of, decoding, left_out, of_chain, points
from draftproof.cli.told import tell_sweep
from draftproof.llm import LLM
from draftproof.stats import Stats
from draftproof.theory import speed_up
from tests.folders import make_folder

approx = pytest.approx

Arrivals = tuple[tuple[float, int], ...]


def counted(rounds: int, drafted: list[int], accepted: list[int], drafts: int | None = None) -> Stats:
    """By depth. Every round yields one token beside those that it accepts."""
    found = Stats(
        rounds=rounds,
        drafts=drafted[0] if drafts is None else drafts,
        drafted=sum(drafted),
        accepted=sum(accepted),
        emitted=rounds + sum(accepted),
    )
    found.drafted_per_position, found.accepted_per_position = drafted, accepted
    return found


PAIRS = counted(4, [4, 4], [3, 1])
"""Four rounds that draft two tokens each; 1 + 3/4 + 1/4 tokens a round."""


def one(*arrivals: tuple[float, int], stats: Stats = PAIRS) -> Answers:
    """One answer; all of its seconds are told by what arrived when."""
    answer = Answer(tuple(range(sum(count for _, count in arrivals))), arrivals, stats.as_dict())
    return Answers(arrivals[-1][0], (answer,))


def evenly(began: float, seconds: float, tokens: int = 4, stats: Stats = PAIRS) -> Answers:
    """A token at `began`, and in `seconds` more the others, one by one."""
    return one((began, 1), *((began + seconds * (i + 1) / tokens, 1) for i in range(tokens)), stats=stats)


def drafting(depth: int, tree: str | None = None) -> dict:
    return {"depth": depth, "tree": tree}


CHAINS = {"suffix K=1": drafting(1), "suffix K=2": drafting(2)}


def run_of(
    systems: dict[str, dict], *measurements: tuple[str, int, int, Answers], costs: tuple[ForwardCosts, ...] = ()
) -> Run:
    """(system, question, repeat, answers) each."""
    described = [{"name": name, "kind": "ours", "speculation": drafting(0)} for name in (PLAIN, AGAIN)]
    described += [{"name": name, "kind": "ours", "speculation": each} for name, each in systems.items()]
    questions = [{"id": f"q{i}", "category": "code", "prompt_tokens": 3} for i in range(3)]
    run = Run({}, {}, described, [Setting()], questions, costs=list(costs))
    run.measurements = [Measurement(0, (i,), system, repeat, found) for system, i, repeat, found in measurements]
    return run


def costs(one_row: float = 0.01, **given: dict) -> ForwardCosts:
    rows = {1: one_row, 2: 1.2 * one_row, 3: 1.5 * one_row}
    return ForwardCosts(**{"context": 64, "rows": rows, "trees": {}, "levels": {}} | given)


# decoding alone


def test_decoding_begins_when_the_last_of_a_group_has_begun():
    slow, late = ((1.0, 1), (2.0, 2), (4.0, 1)), ((1.5, 3), (3.0, 1))
    both = Answers(9.0, tuple(Answer((7, 8, 9, 6), arrivals) for arrivals in (slow, late)))
    [found] = decoding({(0, 1): {0: both}})[0, 1].values()
    assert found.seconds == approx(2.5)
    assert [answer.token_ids for answer in found.answers] == [(8, 9, 6), (6,)]


@pytest.mark.parametrize("arrivals", [((0.5, 5),), ((0.5, 1), (0.5, 4))])
def test_an_answer_that_was_over_at_once_has_no_decoding(arrivals):
    assert decoding({(0,): {0: one(*arrivals)}, (1,): {0: evenly(1.0, 4.0)}}).keys() == {(1,)}


def test_a_speed_up_is_of_decoding_without_the_reading():
    run = run_of(
        CHAINS,
        (PLAIN, 0, 0, evenly(1.0, 4.0)),
        (PLAIN, 1, 0, evenly(1.0, 8.0)),
        ("suffix K=2", 0, 0, evenly(50.0, 2.0)),
        ("suffix K=2", 1, 0, evenly(50.0, 2.0)),
    )
    [found] = points(run)
    assert (found.label, found.series, found.depth, found.ended) == ("K=2", "suffix", 2, 0)
    assert found.speed_up == approx(12 / 4)
    assert found.tokens_per_pass == approx(2.0)
    assert (found.predicted, found.own) == (None, False)


def test_only_repeats_that_both_have_are_compared():
    plain = [(PLAIN, 0, repeat, evenly(1.0, seconds)) for repeat, seconds in enumerate((4.0, 8.0, 8.0))]
    [found] = points(run_of(CHAINS, *plain, ("suffix K=2", 0, 0, evenly(1.0, 2.0))))
    assert found.speed_up == approx(4 / 2)


def test_who_says_more_in_a_repeat_is_not_slower_for_it():
    plain = [(PLAIN, 0, repeat, evenly(1.0, 4.0)) for repeat in (0, 1)]
    longer = ("suffix K=2", 0, 0, evenly(1.0, 4.0, 4)), ("suffix K=2", 0, 1, evenly(1.0, 8.0, 8))
    [found] = points(run_of(CHAINS, *plain, *longer))
    assert found.speed_up == approx(1.0)


def ended(*last: tuple[str, int, int, Answers]) -> Run:
    """Of two prompts one is answered in a single round."""
    run = run_of(
        CHAINS, (PLAIN, 0, 0, evenly(1.0, 40.0)), (PLAIN, 1, 0, evenly(1.0, 4.0)), ("suffix K=2", 0, 0, one((1.0, 5)))
    )
    run.measurements += [Measurement(0, (i,), system, repeat, found) for system, i, repeat, found in last]
    return run


def test_a_prompt_that_ended_in_its_first_round_counts_for_neither_side_and_is_told(capsys):
    run = ended(("suffix K=2", 1, 0, evenly(1.0, 2.0)))
    [found] = points(run)
    assert found.ended == 1
    assert found.speed_up == approx(4 / 2)
    tell_sweep(run, None, as_json=False)
    assert "T=0: 1 prompt ended in its first round and does not count: suffix K=2\n" in capsys.readouterr().out


def test_a_point_without_any_prompt_is_left_out_with_a_word(capsys, tmp_path):
    run = ended()
    run.dropped.append(Dropped("suffix K=1", 0, "it broke"))
    assert points(run) == []
    assert left_out(run) == [
        "suffix K=1 at T=0 is out: it broke",
        "suffix K=2 at T=0 is left out: none of its prompts was answered in more than one round both here and by plain "
        "decoding",
    ]
    tell_sweep(run, Path(tmp_path / "never.svg"), as_json=False)
    out, err = capsys.readouterr()
    assert out.splitlines() == left_out(run)
    assert "nothing to compare with plain decoding" in err
    assert not list(tmp_path.iterdir())
    tell_sweep(run, None, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "points": [],
        "left_out": left_out(run),
        "costs": [],
        "agreement": None,
    }


def test_arrivals_that_a_file_rounds_to_one_are_no_error(tmp_path):
    quick = one((0.1, 1), (0.1 + 1e-9, 4))
    run = run_of(CHAINS, (PLAIN, 0, 0, evenly(1.0, 4.0)), ("suffix K=2", 0, 0, quick))
    assert len(points(run)) == 1
    write_run(tmp_path / "s.json", run, {})
    assert points(read_run(tmp_path / "s.json")) == []


def test_a_system_is_what_it_is_under_the_dtype_of_the_setting():
    both = (PLAIN, 0, 0, evenly(1.0, 4.0)), ("suffix K=2", 0, 0, evenly(1.0, 2.0))
    run = run_of(CHAINS, *both, costs=(costs(),))
    run.settings.append(Setting(dtype="float32"))
    run.measurements += [Measurement(1, each.questions, each.system, 0, each.answers) for each in run.measurements]
    run.systems = [{**each, "dtype": "bfloat16"} for each in run.systems]
    run.systems.append({"name": "suffix K=2", "dtype": "float32", "kind": "ours", "speculation": drafting(3)})
    assert [each.label for each in points(run)] == ["K=2", "K=3"]
    assert [each.predicted is None for each in points(run)] == [False, True], "costs are of the first dtype"


# the prediction


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_chains_that_always_draft_so_many_are_predicted_as_theory_has_it(depth):
    counts, rows, level = counted(8, [8, 8, 8], [6, 3, 3]), {1: 0.02, 2: 0.022, 3: 0.026, 4: 0.032}, 0.001
    conditional = [6 / 8, 3 / 6, 3 / 3]
    by_theory = speed_up(conditional[:depth], level / rows[1], lambda n: rows[n] / rows[1])
    assert of_chain(counts, depth, rows, level) == approx(by_theory)


def test_a_position_that_nothing_reaches_adds_rows_and_no_tokens():
    # 1 + 1/2 tokens in (1.5 + 2 · 0.1) passes
    assert of_chain(counted(2, [2, 2], [1, 0]), 2, {1: 1.0, 2: 1.2, 3: 1.5}, 0.1) == approx(1.5 / 1.7)


def test_drafts_that_end_early_cost_what_they_are_long():
    # lengths 0, 1, 3, 3, of which two tokens at most: 1 + 2/4 + 1/4 tokens in (1 + 1.3 + 1.7 + 1.7)/4 passes
    counts = counted(4, [3, 2, 2], [2, 1, 0])
    assert of_chain(counts, 2, {1: 1.0, 2: 1.2, 3: 1.5, 4: 9.0}, 0.1) == approx(1.75 / 1.425)


def swept() -> Run:
    """Two chains and a tree, each on one prompt, and costs from before and after."""
    tree = counted(4, [4, 2], [4, 2], drafts=2)
    given = {"trees": {"suffix 2x1": 0.03}, "levels": {"suffix K=1": 0.001, "suffix K=2": 0.001, "suffix 2x1": 0.001}}
    before = costs(0.01, **given)
    after = costs(0.03, **{kind: {name: 3 * each for name, each in of.items()} for kind, of in given.items()})
    return run_of(
        {**CHAINS, "suffix 2x1": drafting(2, "2x1")},
        (PLAIN, 0, 0, evenly(1.0, 4.0)),
        ("suffix K=1", 0, 0, evenly(1.0, 2.0, stats=counted(4, [4], [0]))),
        ("suffix K=2", 0, 0, evenly(1.0, 2.0)),
        ("suffix 2x1", 0, 0, evenly(1.0, 2.0, stats=tree)),
        costs=(before, after),
    )


def test_chains_are_predicted_from_the_deepest_and_trees_from_themselves():
    found = {each.label: each for each in points(swept())}
    assert {label: each.own for label, each in found.items()} == {"K=1": False, "K=2": True, "2x1": True}
    assert found["K=1"].predicted == approx(1.75 / 1.3), "its own four rounds accepted nothing"
    assert found["K=2"].predicted == approx(2.0 / 1.7)
    # 10 tokens in 4 rounds; 6 of 16 nodes at two passes more, and two levels in every other round
    assert found["2x1"].predicted == approx(2.5 / (1 + 6 / 16 * 2 + 2 * 0.1 / 2))
    assert found["2x1"].series == "suffix, trees"


def point(speed_up: float, predicted: float | None, own: bool = False) -> SweepPoint:
    return SweepPoint("K=1", 1, 0.0, speed_up, None, None, predicted, 2.0, "suffix", own)


def test_what_is_predicted_from_itself_is_no_agreement():
    found = [point(2.0, 2.2), point(1.0, 0.7), point(1.0, None), point(1.0, 9.0, own=True)]
    far = agreement(found)
    assert far is not None
    assert (far.median, far.largest) == (approx(0.2), approx(0.3))
    assert agreement(found[2:]) is None
    assert agreement([]) is None


def test_a_table_marks_what_is_predicted_from_itself_and_tells_the_farthest_too(capsys):
    tell_sweep(swept(), None, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith(" *") for line in lines if line.startswith("T=0")] == [False, True, True]
    assert "* from its own acceptances, which tests no prediction" in lines
    # 1.75/1.3 against 2
    assert lines[-1] == "predictions are off by 32.7% in the middle, by 32.7% at most"


def test_a_drafted_level_is_told_once_a_series(capsys):
    run = swept()
    levels = {f"model:a K={depth}": 0.001 * depth for depth in (1, 2, 9)} | {"model:a 2x1": 0.005, "model:b K=1": 0.004}
    run.costs = [costs(levels=levels, trees={"suffix 2x1": 0.03})]
    tell_sweep(run, None, as_json=False)
    [line] = [line for line in capsys.readouterr().out.splitlines() if "a drafted level" in line]
    assert line.endswith("a drafted level: model:a 0.200; model:a, trees 0.500; model:b 0.400")


# what forwards cost


@pytest.fixture(scope="module")
def systems(tmp_path_factory) -> list[Ours]:
    """Plain, and one that drafts with two models; that of its own has room for 64 tokens."""
    folder, draft = (
        make_folder(tmp_path_factory.mktemp(name), context=room) for name, room in (("model", 512), ("draft", 64))
    )
    llm = LLM(str(folder), device="cpu", max_num_seqs=1, enable_prefix_caching=False)
    both = {"method": "combined", "drafters": ["draft_model", "early_exit"], "model": str(draft)}
    two = llm.speculating({**both, "early_exit_layers": 1, "num_speculative_tokens": 2})
    return [Ours("plain", llm, "bfloat16"), Ours("two", two, "bfloat16")]


class Watched:
    """How many sessions of a model were opened and closed."""

    def __init__(self, model, monkeypatch) -> None:
        self.opened, self.closed = 0, 0
        opening, closing = model.open, model.close

        def opened(capacity):
            self.opened += 1
            return opening(capacity)

        def closed(session):
            self.closed += 1
            closing(session)

        monkeypatch.setattr(model, "open", opened)
        monkeypatch.setattr(model, "close", closed)


def test_a_level_of_two_models_costs_both_and_every_session_is_closed(systems, monkeypatch):
    models = [systems[0].llm.loaded.target, *systems[1].llm.drafting.models.values()]
    watched = [Watched(model, monkeypatch) for model in models]
    monkeypatch.setattr(sweep, "_in_turns", lambda tasks: dict.fromkeys(tasks, 1.0))
    found = costs_of(systems[0].llm, systems, 100)
    assert found.rows == {1: 1.0, 2: 1.0, 3: 1.0}
    assert found.levels == {"two": 2.0}
    assert found.context == 62, "the draft takes 64 tokens"
    assert [(each.opened, each.closed) for each in watched] == [(3, 3), (1, 1), (1, 1)]


def test_what_fails_on_the_way_leaves_no_session_open(systems, monkeypatch):
    models = systems[1].llm.drafting.models
    draft = models["model"]
    watched = [Watched(model, monkeypatch) for model in (systems[0].llm.loaded.target, draft)]

    def fails(feeds):
        raise MemoryError

    monkeypatch.setattr(draft, "forward", fails)
    with pytest.raises(MemoryError):
        costs_of(systems[0].llm, systems, 30)
    assert [each.opened for each in watched] == [3, 1]
    assert [each.closed for each in watched] == [3, 1]


def test_costs_are_measured(systems):
    found = costs_of(systems[0].llm, systems[:1], 30)
    assert found.context == 30
    assert found.rows[1] > 0
