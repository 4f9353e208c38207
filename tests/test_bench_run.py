"""draftproof bench run, sweep and report, end to end on a tiny model: what is counted is repeatable, and nothing is
lost."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from draftproof.bench import session
from draftproof.bench.files import part_of, read_run
from draftproof.bench.record import AGAIN, PLAIN, Run
from draftproof.bench.sweep import points
from draftproof.cli import app
from draftproof.cli.measure import Given, configurations
from draftproof.stats import Stats, together
from draftproof.trace import read, summed
from tests.folders import make_folder

pytestmark = pytest.mark.usefixtures("unchecked")

FIXED = ("--draft", "ngram", "--num-speculative-tokens", "3", "--max-tokens", "12")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(make_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
def prompts(tmp_path) -> str:
    file = tmp_path / "q.txt"
    file.write_text("abcabcabcabc\nbcdbcdbcd\nabababab\n")
    return str(file)


def bench(capsys, *argv: object) -> tuple[int, str, str]:
    code = app.run(["bench", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


def counts(run: Run) -> list:
    return [
        (each.setting, each.questions, each.system, answer.token_ids, answer.stats["accepted"], answer.stats["rounds"])
        for each in sorted(run.measurements, key=lambda each: (each.setting, each.questions, each.system))
        for answer in each.answers.answers
    ]


def test_a_run_twice_has_the_same_tokens_and_acceptances(folder, prompts, capsys, tmp_path):
    runs = []
    for name in ("a.json", "b.json"):
        argv = ("--model", folder, *FIXED, "--prompts", prompts, "--temperature", 0, "--temperature", 1, "--batch", 1)
        code, out, err = bench(capsys, "run", *argv, "--batch", 2, "--output", tmp_path / name)
        assert code == 0, err
        assert "ngram K=3" in out
        assert "noise: plain against itself" in out
        runs.append(read_run(tmp_path / name))
    assert counts(runs[0]) == counts(runs[1])
    assert len(runs[0].measurements) == 2 * (3 + 2) * 3
    assert {each["name"] for each in runs[0].systems} == {PLAIN, AGAIN, "ngram K=3"}
    assert not runs[0].divergences, "the coupled rule keeps the text at any temperature"
    assert [bound.setting for bound in runs[0].bounds] == [0, 2], "batches have the same laws"
    assert runs[0].provenance["models"][0]["sha256"]


def test_options_alone_mean_run_and_a_report_repeats_it(folder, prompts, capsys, tmp_path):
    path = tmp_path / "r.json"
    code, out, _ = bench(capsys, "--model", folder, *FIXED, "--prompts", prompts, "--json", "--output", path)
    assert code == 0
    figures = json.loads(out)
    code, out, _ = bench(capsys, "report", path, "--json")
    assert code == 0
    again = json.loads(out)
    assert again["settings"][0]["name"] == figures["settings"][0]["name"]
    assert [each["name"] for each in again["settings"][0]["systems"]] == [PLAIN, AGAIN, "ngram K=3"]
    assert bench(capsys, "--model", folder, *FIXED, "--prompts", prompts, "--output", path)[0] == 2, (
        "it would overwrite"
    )


def test_an_interrupted_run_goes_on_where_it_was(folder, prompts, capsys, tmp_path, monkeypatch):
    path, real = tmp_path / "r.json", session.Ours.answer
    argv = ("run", "--model", folder, *FIXED, "--prompts", prompts, "--output", path)
    asked: list[int] = []

    def answer(self, ask):
        asked.append(len(ask.prompts))
        if len(asked) == 3 + 4:  # the warm-up, one prompt, and a part of the next
            raise KeyboardInterrupt
        return real(self, ask)

    monkeypatch.setattr(session.Ours, "answer", answer)
    code, out, err = bench(capsys, *argv)
    assert code == 130
    assert "the same command goes on with the rest" in err
    assert "ngram K=3" in out, "what there is is told"
    assert not path.exists()
    assert {each.questions for each in read_run(part_of(path)).measurements} == {(0,)}
    assert bench(capsys, "report", part_of(path))[0] == 0
    code, _, err = bench(capsys, *argv[:-4], "--max-tokens", 13, *argv[-4:])
    assert code == 2
    assert "begun with asked.max_tokens 12, now it is 13" in err
    code, _, err = bench(capsys, *argv)
    assert code == 0, err
    assert {each.questions for each in read_run(path).measurements} == {(0,), (1,), (2,)}
    assert not part_of(path).exists()
    assert len(asked) == 3 + 4 + 3 + 2 * 3, "the first prompt was not answered again"


def test_the_trace_of_a_run_adds_up_to_its_counts(folder, prompts, capsys, tmp_path):
    path, trace = tmp_path / "r.json", tmp_path / "t.jsonl"
    argv = ("run", "--model", folder, "--draft", "early_exit:1", "--num-speculative-tokens", 2, "--prompts", prompts)
    argv = (*argv, "--max-tokens", 24, "--bounds", 0, "--output", path, "--trace", trace, "--trace-laws", 3)
    assert bench(capsys, *argv)[0] == 0
    name = "early_exit:1 K=2"
    traced = [each for each in read(trace).requests if each.begin["label"]["system"] == name]
    assert [each.begin["label"]["question"] for each in traced] == [None, "1", "2", "3"], "the warm-up is no question"
    run = read_run(path)
    stats = [
        Stats.of(answer.stats) for each in run.measurements if each.system == name for answer in each.answers.answers
    ]
    measured, rounds = together(stats), together([summed(each) for each in traced[1:]])  # without the warm-up
    for name in ("rounds", "drafts", "drafted", "accepted", "bonus", "emitted", "accepted_per_position"):
        assert getattr(measured, name) == getattr(rounds, name)
    assert measured.accepted > 0


def test_a_prompt_that_leaves_no_room_is_left_out_and_the_others_are_answered(folder, capsys, tmp_path):
    file, path = tmp_path / "long.txt", tmp_path / "r.json"
    file.write_text("ab" * 248 + "\nabab\n")  # with its template 502 of 512 tokens
    code, _, err = bench(capsys, "run", "--model", folder, *FIXED, "--prompts", file, "--output", path)
    assert code == 0, err
    assert "prompt 1 is left out" in err
    assert [each["id"] for each in read_run(path).questions] == ["2"]


def test_a_broken_promise_is_told_and_is_a_failure(folder, prompts, capsys, tmp_path, monkeypatch):
    real, path = session.Ours.answer, tmp_path / "r.json"

    def answer(self, ask):
        found = real(self, ask)
        if self.name != "ngram K=3" or ask.max_tokens < 12:
            return found
        [first, *rest] = found.answers
        other = replace(first, token_ids=(*first.token_ids[:2], first.token_ids[2] ^ 1, *first.token_ids[3:]))
        return replace(found, answers=(other, *rest))

    monkeypatch.setattr(session.Ours, "answer", answer)
    argv = ("run", "--model", folder, *FIXED, "--prompts", prompts, "--temperature", 0, "--temperature", 1)
    code, _, err = bench(capsys, *argv, "--bounds", 0, "--output", path)
    assert code == 1
    assert "ngram K=3 promises plain decoding's text, and 3 of its answers at T=1 differ" in err
    found = read_run(path).divergences
    assert [(each.position, each.tie) for each in found] == [(2, False)] * 6
    assert [each.gap is None for each in found] == [False] * 3 + [True] * 3


def test_what_a_controller_learns_in_one_setting_is_not_known_in_the_next(folder):
    plan = session.Plan(folder, {"auto": {"method": "auto"}}, temperatures=(0.0, 1.0), questions=None, count=1)
    found = session.prepare(plan, ["draftproof"], lambda message: None)
    first, second = (next(each for each in some if each.name == "auto").llm.drafting for some in found.ours)
    assert first is not second
    assert first.records is not second.records
    assert first.costs is not second.costs


def test_an_absent_peer_is_skipped_with_a_word(folder, prompts, capsys):
    argv = ("run", "--model", folder, *FIXED, "--prompts", prompts, "--count", 1, "--bounds", 0)
    code, out, _ = bench(capsys, *argv, "--peer", "hf:plain", "--peer-python", "/no/such/python")
    assert code == 0
    assert "hf plain is out" in out
    assert "/no/such/python" in out


def test_a_peer_takes_part(folder, prompts, capsys):
    argv = ("run", "--model", folder, *FIXED, "--prompts", prompts, "--count", 1, "--bounds", 0, "--json")
    code, out, err = bench(capsys, *argv, "--peer", "hf:plain", "--dtype", "float32")
    assert code == 0, err
    [setting] = json.loads(out)["settings"]
    [peer] = [each for each in setting["systems"] if each["name"] == "hf plain"]
    assert peer["same"]["equal"] == 1
    assert setting["systems"][0]["against_hf"]["groups"] == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--peer", "vllm"), "--peer: 'vllm' is unknown; known are hf"),
        (("--peer", "hf:best"), "'best' is unknown"),
        (("--count", 4), "--count: 4 is more than there are"),
        (("--draft", "ngram", "--tree", "2x2"), "ngram 2x2: tree: '2x2' is not used by method 'ngram'"),
        (("--config", "fast"), "--config: 'fast' is not NAME=JSON"),
        (("--config", 'plain={"method": "ngram"}'), "the name 'plain' is taken"),
        (("--trace-laws", 3), "--trace-laws: 3 needs --trace"),
        (("--output", "/no/such/folder/r.json"), "--output: there is no folder"),
        (("--plot", "r.pdf"), "must end in .svg or .png"),
        (("--batch", 0), "batch: 0 is not allowed"),
        (("--temperature", -1), "temperature: -1.0 is not allowed"),
        (("--repeat", 0), "repeat: 0 is not allowed"),
        (("--max-tokens", 0), "max_tokens: 0 is not allowed"),
        (("--bounds", -1), "bounds: -1 is not allowed"),
        (("--seed", -1), "seed: -1 is not allowed"),
        (("--peer", "hf", "--peer-timeout", 0), "--peer-timeout: 0.0 is not allowed"),
        (("--peer-timeout", 9), "--peer-timeout: 9.0 is for peers; give --peer"),
        (("--assistant", "x"), "--assistant: 'x' is for peers; give --peer"),
        (("--verify", "block", "--config", 'fast={"method": "ngram"}'), "--verify: 'block' is for --draft"),
        (("--draft", "ngram", "--draft-vocabulary", 99), "--draft-vocabulary: 99 is for a draft model"),
        (("--draft", "model:a/x", "--draft", "model:b/x"), "--draft: two systems are called 'model:x'"),
        (("--draft", "ngram", "--config", 'ngram={"method": "suffix"}'), "--config: the name 'ngram' is taken"),
        (("--config", 'x={"method": "suffix", "suffix_cache": true}'), "suffix_cache: True is not allowed for 'x'"),
        (("--config", 'hf plain={"method": "ngram"}'), "the name 'hf plain' is taken"),
        (("--seed", 2**64 - 2), "seed: 18446744073709551616 is not allowed"),
        (("--output", "{tmp}/z.svg", "--plot", "{tmp}/z.svg"), "z.svg' is that of --output too"),
        (("--output", "{tmp}/z.json", "--trace", "{tmp}/z.json.part"), "z.json.part' is that of --output too"),
        (("--trace", "{tmp}/q.txt"), "q.txt' is that of --prompts too"),
        (("--bounds", 2, "--batch", 8), "--bounds: 2 is for one prompt at once"),
        (("--dtype", "int3"), "dtype: 'int3' is unknown"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(folder, prompts, capsys, argv, said, tmp_path):
    argv = [each.replace("{tmp}", str(tmp_path)) if isinstance(each, str) else each for each in argv]
    code, out, err = bench(capsys, "run", "--model", folder, "--prompts", prompts, *argv)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_combinations_that_cannot_be_are_left_out_with_a_word(capsys):
    found = configurations(Given(["ngram", "suffix", "none"], depths=["2", "4"], trees=["2x2"]))
    assert list(found) == ["suffix K=2 2x2", "suffix K=4 2x2"]
    assert "left out: ngram K=2 2x2" in capsys.readouterr().err


def test_a_sweep_sets_predictions_beside_what_was_measured(folder, prompts, capsys, tmp_path):
    path = tmp_path / "s.json"
    argv = ("sweep", "--model", folder, "--depths", "0-2", "--tree", "2x1", "--prompts", prompts, "--count", 2)
    code, out, err = bench(capsys, *argv, "--max-tokens", 12, "--output", path)
    assert code == 0, err
    assert "predictions are off by" in out
    assert "* from its own acceptances" in out
    run = read_run(path)
    assert len(run.costs) == 2
    assert set(run.costs[0].rows) == {1, 2, 3}
    found = points(run)
    assert [each.label for each in found] == ["K=1", "K=2", "2x1"]
    assert all(each.predicted and each.predicted > 0 for each in found)
    assert [each.own for each in found] == [False, True, True]
    code, out, _ = bench(capsys, "report", path, "--json")
    told = json.loads(out)
    assert len(told["points"]) == 3
    assert told["agreement"]["median"] == told["agreement"]["largest"], "of one depth"


def test_early_exits_of_several_sizes_are_swept(folder, prompts, capsys):
    argv = ("sweep", "--model", folder, "--layers", 1, "--depths", "1", "--prompts", prompts, "--count", 1)
    code, out, err = bench(capsys, *argv, "--max-tokens", 6)
    assert code == 0, err
    assert "early_exit:1" in out
    assert "a drafted level: early_exit:1" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--depths", "1-"), "--depths: '1-' is not allowed"),
        (("--depths", "1-99"), "--depths: '1-99' is not allowed"),
        (("--depths", ""), "--depths: '' is not allowed"),
        (("--depths", "0"), "--depths: nothing but 0"),
        (("--draft", "auto"), "--draft: 'auto' chooses no depth"),
        (("--draft", "suffix", "--layers", 2), "--layers: [2] cannot be used with --draft suffix"),
    ],
)
def test_a_sweep_of_nothing_is_told_in_a_line(folder, capsys, argv, said):
    code, out, err = bench(capsys, "sweep", "--model", folder, *argv)
    assert (code, out) == (2, "")
    assert said in err


def test_sigterm_stops_a_run_as_an_interrupt_does(folder, prompts, capsys, tmp_path, monkeypatch):
    real, path = session.Ours.answer, tmp_path / "r.json"
    asked: list[int] = []

    def answer(self, ask):
        asked.append(1)
        if len(asked) == 3 + 3 + 1:  # the warm-up, the first prompt
            signal.raise_signal(signal.SIGTERM)
        return real(self, ask)

    monkeypatch.setattr(session.Ours, "answer", answer)
    before = signal.getsignal(signal.SIGTERM)
    code, _, err = bench(capsys, "run", "--model", folder, *FIXED, "--prompts", prompts, "--output", path)
    assert code == 143
    assert "stopped; what was measured is in" in err
    assert len(read_run(part_of(path)).measurements) == 3
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_report_is_not_drawn_over_its_run(capsys, tmp_path):
    file = tmp_path / "r.svg"
    file.write_text("{}")
    code, _, err = bench(capsys, "report", file, "--plot", file)
    assert code == 2
    assert "is that of FILE too" in err


def test_a_trace_is_not_written_over_that_of_the_run_that_goes_on(folder, prompts, capsys, tmp_path):
    for name in ("r.json.part", "t.jsonl.part"):
        (tmp_path / name).write_text("")
    argv = ("run", "--model", folder, "--prompts", prompts, "--output", tmp_path / "r.json")
    code, _, err = bench(capsys, *argv, "--trace", tmp_path / "t.jsonl")
    assert code == 2
    assert "holds rounds of the run that would go on" in err


def test_a_foreign_file_is_no_run(capsys, tmp_path):
    file = Path(tmp_path / "x.json")
    file.write_text('{"draftproof_trace": 2}\n')
    code, _, err = bench(capsys, "report", file)
    assert code == 2
    assert "no run file of version 1" in err
