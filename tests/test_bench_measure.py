"""The measuring loop and the run file: everybody answers everything in turns, and what was finished is never lost."""

from __future__ import annotations

import json
import re

import pytest

from draftproof.bench.files import Part, cost_line, group_line, part_of, read_run, write_run
from draftproof.bench.measure import Asked, Group, measure
from draftproof.bench.record import AGAIN, PLAIN, Bound, Depth, Divergence, Dropped, ForwardCosts, Run
from draftproof.bench.runner import Answer, Answers, Ask, RunnerError, Setting, checked

END = 9


class Scripted:
    """Answers with three tokens and an end; fails at the calls it is told to. asked: by all of them, in order."""

    def __init__(self, name: str, asked: list[str], fails: tuple[int, ...] = (), refuses: str | None = None) -> None:
        self.name, self._asked, self._fails, self._refuses, self._calls = name, asked, fails, refuses, 0

    def cannot(self, setting: Setting) -> str | None:
        return self._refuses

    def describe(self) -> dict:
        return {"kind": "ours"}

    def answer(self, ask: Ask) -> Answers:
        self._calls += 1
        if self._calls in self._fails:
            raise RunnerError(f"{self.name}: it fell over")
        self._asked.append(f"{self.name} {len(ask.prompts[0])}")
        answer = Answer((1, 2, 3, END), ((0.1, 1), (0.2, 3)), None)
        return Answers(0.25, (answer,) * len(ask.prompts), 1 << 20)


def run_of(questions: int = 3, batch: int = 1) -> Run:
    return Run(
        {"draftproof": "0"},
        {"max_tokens": 8},
        [{"name": PLAIN, "kind": "ours"}],
        [Setting(0.0, batch)],
        [{"id": str(i), "category": "all", "prompt_tokens": i + 1} for i in range(questions)],
    )


def asked_of(questions: int = 3, repeat: int = 2) -> Asked:
    return Asked(
        [(5,) * (i + 1) for i in range(questions)], [str(i) for i in range(questions)], (END,), 10, 8, repeat, seed=0
    )


def nothing(*_):
    return []


def measured(run: Run, asked: Asked, runners: list[Scripted]) -> list[Group]:
    groups = []
    for group in measure(run, asked, [runners], nothing):
        run.measurements += group.measurements
        run.dropped += group.dropped
        groups.append(group)
    return groups


def test_everybody_answers_a_question_before_anybody_the_next():
    said: list[str] = []
    runners = [Scripted(name, said) for name in (PLAIN, AGAIN, "fast")]
    run = run_of()
    measured(run, asked_of(), runners)
    lengths = [int(line.rpartition(" ")[2]) for line in said[3:]]  # after the warm-up
    assert lengths == [1] * 6 + [2] * 6 + [3] * 6
    assert len({tuple(line.rpartition(" ")[0] for line in said[i : i + 3]) for i in range(3, 21, 3)}) > 1, "one order"
    assert len(run.measurements) == 3 * 3 * 2


def test_who_fails_is_out_with_a_word_and_the_others_go_on():
    said: list[str] = []
    runners = [Scripted(PLAIN, said), Scripted("weak", said, fails=(4,)), Scripted("absent", said, refuses="no Python")]
    run = run_of()
    measured(run, asked_of(), runners)
    assert run.dropped == [Dropped("absent", 0, "no Python"), Dropped("weak", 0, "weak: it fell over")]
    assert sum(each.system == PLAIN for each in run.measurements) == 6
    assert sum(each.system == "weak" for each in run.measurements) == 2


def test_without_plain_decoding_there_is_nothing_to_compare_with():
    with pytest.raises(RunnerError, match="plain: it fell over"):
        measured(run_of(), asked_of(), [Scripted(PLAIN, [], fails=(1,))])


def test_an_answer_that_cannot_be_puts_its_system_out():
    class Long(Scripted):
        def answer(self, ask: Ask) -> Answers:
            return Answers(1.0, (Answer((1,) * 20, ((1.0, 20),)),))

    run = run_of()
    measured(run, asked_of(), [Scripted(PLAIN, []), Long("long", [])])
    assert [each.why for each in run.dropped] == ["long: answer 0 has 20 tokens; 1 to 8 were asked for"]


@pytest.mark.parametrize(
    ("ids", "arrivals", "said"),
    [
        ((1, 2), ((0.1, 2),), "stops after 2 tokens without an end-of-sequence token"),
        ((END, 1, END), ((0.1, 3),), "goes on after an end-of-sequence token"),
        ((1, 10, END), ((0.1, 3),), "has a token that is none of 10"),
        ((1, END), ((0.1, 1),), "of which ((0.1, 1),) tells otherwise"),
        ((), (), "has 0 tokens"),
    ],
)
def test_what_is_no_answer_is_told(ids, arrivals, said):
    ask = asked_of().ask(Setting(), (0,), 0)
    with pytest.raises(RunnerError, match=re.escape(said)):
        checked(ask, Answers(1.0, (Answer(ids, arrivals),)), "odd")


def test_what_was_measured_is_not_measured_again():
    run = run_of()
    measured(run, asked_of(), [Scripted(PLAIN, [])])
    run.measurements = [each for each in run.measurements if each.questions != (1,)]
    said: list[str] = []
    measured(run, asked_of(), [Scripted(PLAIN, said)])
    assert said[1:] == ["plain 2", "plain 2"]


def whole() -> Run:
    run = run_of()
    measured(run, asked_of(), [Scripted(PLAIN, []), Scripted("fast", [], refuses="why")])
    run.divergences.append(Divergence("fast", 0, 1, 3, 0.5, 2.0, True))
    run.bounds.append(Bound("fast", 0, (Depth(4, 2, 2.5),)))
    run.costs.append(ForwardCosts(64, {1: 0.01, 2: 0.02}, {"fast": 0.03}, {"fast": 0.001}))
    return run


def test_a_run_comes_back_from_its_file(tmp_path):
    run, path = whole(), tmp_path / "r.json"
    write_run(path, run, {"some": "figures"})
    assert read_run(path) == run
    assert json.loads(path.read_text())["figures"] == {"some": "figures"}
    assert list(tmp_path.iterdir()) == [path]


def lines_of(run: Run, path) -> None:
    with Part(path) as part:
        part.begin(run_of())
        for at in range(0, len(run.measurements), 2):
            part.write(group_line(run.measurements[at : at + 2], run.dropped if at == 0 else [], []))
        part.write(cost_line(run.costs[0]))


@pytest.mark.parametrize("more", [1, 40, -1], ids=["one byte", "in the middle", "all but its end of line"])
def test_a_line_that_was_cut_does_not_count_and_the_run_goes_on_behind_the_last_whole_one(tmp_path, more):
    run, path = whole(), tmp_path / "r.json"
    lines_of(run, path)
    part = part_of(path)
    lines = part.read_text().splitlines(keepends=True)
    kept = 3 if more < 0 else 2  # a line whose end alone is missing is whole
    part.write_text("".join(lines[:2]) + lines[2][:more])
    with Part(path) as again:
        found = again.begin(run_of())
        assert found.measurements == run.measurements[: 2 * (kept - 1)]
        again.write(group_line(run.measurements[2 * (kept - 1) :], [], []))
    assert read_run(part).measurements == run.measurements


def test_a_head_that_was_cut_before_its_end_of_line_goes_on(tmp_path):
    path = tmp_path / "r.json"
    with Part(path) as part:
        part.begin(run_of())
    part_of(path).write_text(part_of(path).read_text().rstrip("\n"))
    run = whole()
    with Part(path) as part:
        assert part.begin(run_of()).measurements == []
        part.write(group_line(run.measurements, [], []))
    assert read_run(part_of(path)).measurements == run.measurements


def test_two_runs_do_not_write_one_file(tmp_path):
    path = tmp_path / "r.json"
    with Part(path), pytest.raises(ValueError, match="another run is writing it"), Part(path):
        pass
    with Part(path):
        pass


def test_another_run_is_not_gone_on_with(tmp_path):
    path = tmp_path / "r.json"
    lines_of(whole(), path)
    other = run_of()
    other.asked = {"max_tokens": 16}
    with Part(path) as part:
        with pytest.raises(ValueError, match=r"begun with asked\.max_tokens 8, now it is 16; use another --output"):
            part.begin(other)
        other = run_of()
        other.questions[1]["id"] = "x"
        with pytest.raises(ValueError, match=r"begun with questions\[1\]\.id '1', now it is 'x'"):
            part.begin(other)
        other = run_of()
        other.provenance = {"draftproof": "1"}
        with pytest.raises(ValueError, match=r"begun with made\.draftproof '0', now it is '1'"):
            part.begin(other)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("no JSON", "line 1: it is not JSON"),
        ('{"some": "object"}', "no run file of version 1: it does not say that it is one"),
        ('{"draftproof_bench": 7}', "no run file of version 1: it has version 7"),
        ('{"draftproof_bench": 1}', "line 1: it is damaged: 'provenance' is missing"),
        ("[1, 2]\n", "line 1: it holds no object"),
    ],
)
def test_what_is_no_run_file_is_told_in_a_line(tmp_path, text, said):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        read_run(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    run, path = whole(), tmp_path / "r.json"
    lines_of(run, path)
    lines = part_of(path).read_text().splitlines()
    for damage, said in (
        ("{" + lines[2][5:], "line 3: it is not JSON"),
        ('{"measurements": [{"setting": 7}]}', "line 3"),
    ):
        part_of(path).write_text("\n".join([*lines[:2], damage, *lines[3:]]))
        with pytest.raises(ValueError, match=said):
            read_run(part_of(path))


def test_a_folder_and_a_missing_file_are_told(tmp_path):
    with pytest.raises(ValueError, match="it is a folder"):
        read_run(tmp_path)
    with pytest.raises(ValueError, match="there is no such file"):
        read_run(tmp_path / "none.json")
