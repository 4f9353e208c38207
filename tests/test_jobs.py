"""draftproof generate --prompts: a file of prompts, each answered as alone, whatever stops and resumes the run."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftproof.cli import generate as generate_module
from draftproof.cli import jobs
from draftproof.cli.app import run
from draftproof.control import Fixed
from draftproof.llm import LLM
from draftproof.trace import read as read_trace
from draftproof.trace import summed
from tests.folders import make_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(make_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def names(folder):
    """The options of nearly every run."""
    fixed = ("--draft", "ngram", "--num-speculative-tokens", 5)  # what a clock decides no two runs share
    return ("--model", folder, "--dtype", "float32", "--max-tokens", 24, "--seed", 5, *fixed)


@pytest.fixture
def asked(monkeypatch):
    """Names of the requests that were made: what was computed."""
    found, make = [], LLM.reply

    def reply(self, prompt, params=None, name=None):
        found.append(name)
        return make(self, prompt, params, name)

    monkeypatch.setattr(LLM, "reply", reply)
    return found


def generate(*words):
    return run(["generate", *map(str, words)])


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), encoding="utf-8")
    return path


def read(text: str) -> list[dict]:
    return [json.loads(line) for line in text.split("\n") if line]


def part_of(output: Path) -> Path:
    return output.with_name(output.name + ".part")


def untimed(record: dict) -> dict:
    """Without what no two runs share; without the answer where the machine's bits depend on the company of a row."""
    stats = {k: v for k, v in record["stats"].items() if k not in ("seconds", "tokens_per_second")}
    if record["config"]["claim"] == "bit-exact":
        return record | {"stats": stats}
    return {name: record[name] for name in ("id", "prompt", "seed", "config") if name in record}


def alone(capsys, prompt, *words):
    """What the prompt is answered without company."""
    capsys.readouterr()
    assert generate(prompt, "--json", *words) == 0
    return json.loads(capsys.readouterr().out)


def test_a_text_file_is_answered_line_by_line_each_as_alone(names, tmp_path, capsys):
    source = write(tmp_path / "p.txt", "abcabcabc", "", "hello there", "what is it?")
    assert generate("--prompts", source, "--max-num-seqs", 2, *names) == 0
    out, err = capsys.readouterr()
    found = read(out)
    assert [(each["id"], each["prompt"]) for each in found] == [
        (1, "abcabcabc"),
        (3, "hello there"),
        (4, "what is it?"),
    ]
    assert "3 of 3 prompts done, 0 failed, " in err.splitlines()[-1]
    for each in found:
        single = alone(capsys, each["prompt"], "--max-num-seqs", 2, *names)
        assert untimed(each) == untimed({"id": each["id"], "prompt": each["prompt"]} | single)


def test_a_line_of_json_may_have_settings_of_its_own(names, tmp_path, capsys):
    source = write(
        tmp_path / "p.jsonl",
        {"prompt": "abcabc", "id": "first", "temperature": 0, "max_tokens": 3},
        {"prompt": "abcabc", "system": "be brief", "seed": 9, "stop": "e", "stop_token_ids": [7]},
        {"prompt": "line\u2028separator", "id": 7, "top_k": 4, "top_p": 0.9, "min_p": 0.01},
    )
    assert generate("--prompts", source, *names) == 0
    first, second, third = read(capsys.readouterr().out)
    assert [first["id"], second["id"], third["id"]] == ["first", 2, 7]
    assert first["config"]["sampling"]["temperature"] == 0
    assert len(first["token_ids"]) <= 3
    assert "system" not in first
    assert (second["system"], second["seed"]) == ("be brief", 9)
    assert second["config"]["sampling"]["stop"] == ["e"]
    assert second["config"]["sampling"]["stop_token_ids"] == [7]
    assert third["config"]["sampling"] | {"top_k": 4, "top_p": 0.9, "min_p": 0.01} == third["config"]["sampling"]
    single = alone(capsys, "abcabc", *names[:-1], 9, "--system", "be brief", "--stop", "e")
    assert second["config"]["prompt_tokens"] == single["config"]["prompt_tokens"]


@pytest.mark.parametrize("text", ["abc\nxyz\n", '\n{"prompt": "abc"}\n{"prompt": "xyz"}\n'])
def test_standard_input_may_be_either(names, text, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert generate("--prompts", "-", "--check", "--no-prefix-caching", "--kv-cache-memory-bytes", "1M", *names) == 0
    found = read(capsys.readouterr().out)
    assert [each["prompt"] for each in found] == ["abc", "xyz"]
    engine = found[0]["config"]["engine"]
    assert (engine["enable_prefix_caching"], engine["check"]) == (False, True)
    assert engine["kv_cache_memory_bytes"] == 1 << 20


def test_a_line_may_be_a_conversation_with_options_of_its_own(names, tmp_path, capsys):
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    options = {"logit_bias": {"97": -100}, "repetition_penalty": 1.2, "logprobs": 1}
    source = write(tmp_path / "p.jsonl", {"id": "m", "messages": messages} | options, {"prompt": "hi", "system": "be"})
    output = tmp_path / "o.jsonl"
    for _ in range(2):  # the second time nothing is left to do
        assert generate("--prompts", source, "--output", output, *names) == 0
        found = {each["id"]: each for each in read(output.read_text(encoding="utf-8"))}
    assert found["m"]["messages"] == messages
    assert found["m"]["config"]["prompt_tokens"] == found[2]["config"]["prompt_tokens"]
    assert len(found["m"]["logprobs"]) == len(found["m"]["token_ids"])
    assert "all 2 prompts were answered before" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"prompt": "a"}, "{"], "line 2: it is not JSON: "),
        (["", {"prompt": "a"}, "[1]"], "line 3: it holds [1]; it must hold an object"),
        ([{"prompt": "a", "temp": 1}], "line 1: temp: this field is unknown; known are prompt, messages, id, system, "),
        ([{"id": 1}], "line 1: prompt: it is missing"),
        ([{"prompt": ["a"]}], "line 1: prompt: ['a'] is not allowed; it must be a string"),
        ([{"prompt": " "}], "line 1: prompt: ' ' is not allowed"),
        ([{"prompt": "a", "id": 1.5}], "line 1: id: 1.5 is not allowed; it must be a string or a whole number"),
        ([{"prompt": "a", "id": None}], "line 1: id: None is not allowed"),
        ([{"prompt": "a", "id": 2}, {"prompt": "b"}], "line 2: id: 2 is that of line 1 too"),
        ([{"prompt": "a", "id": "2"}, {"prompt": "b"}], "line 2: id: 2 is that of line 1 too"),
        ([{"prompt": "a", "system": 5}], "line 1: system: 5 is not allowed; it must be a string"),
        ([{"prompt": "a"}, {"prompt": "a", "temperature": -1}], "line 2: temperature: -1 is not allowed; it must be"),
        ([{"prompt": "a", "max_tokens": "9"}], "line 1: max_tokens: '9' is not allowed; it must be a whole number"),
        (['{"prompt": "\\ud800"}'], "line 1: prompt: '\\ud800' is not valid Unicode text"),
        ([{"prompt": "a", "messages": []}], "line 1: prompt: both are given"),
        ([{"messages": "a"}], "line 1: messages: 'a' is not allowed; it must be a list of objects with role"),
        ([{"messages": [{"role": "user", "content": "a"}], "system": "s"}], "line 1: system: 's' cannot be used with"),
        ([{"prompt": "a", "n": 2}], "line 1: n: 2 cannot be used in a file; one answer is written for a line"),
        ([{"prompt": "a", "logit_bias": {"b": 1}}], "line 1: logit_bias: 'b' is not allowed"),
        (["", "  "], "holds no prompt; give one a line"),
    ],
)
@pytest.mark.usefixtures("unchecked")  # the checks would see a wrong type before the product does
def test_a_mistake_in_the_file_is_named_before_a_model_is_loaded(lines, words, tmp_path, capsys):
    source = write(tmp_path / "p.jsonl", *lines)
    assert generate("--prompts", source, "--model", "no such model") == 2
    out, err = capsys.readouterr()
    assert words in err
    assert str(source) in err
    assert err.count("\n") == 1
    assert out == ""


def test_a_file_of_another_encoding_is_named_with_its_line(tmp_path, capsys):
    (tmp_path / "p.txt").write_bytes(b"abc\nna\xefve\n")
    assert generate("--prompts", tmp_path / "p.txt") == 2
    assert "is not UTF-8 text (line 2)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["x", "--prompts", "{p}"], "prompt: 'x' and --prompts '{p}' are both given"),
        (["--prompts", "{p}", "--trace", "{p}"], "--trace: '{p}' is that of --prompts too; give another file"),
        (["--prompts", "{p}", "--output", "o", "--trace", "o.part"], "--trace: 'o.part' is that of --output too"),
        (["--prompts", "{p}", "--json"], "--json: it is for one prompt"),
        (["x", "--output", "o"], "--output: 'o' needs --prompts"),
        (["--prompts", "/no/such/file"], "--prompts: there is no file '/no/such/file'"),
        (["--prompts", "/"], "--prompts: '/' is a folder"),
        (["--prompts", "{p}", "--output", "/"], "--output: '/' is a folder"),
        (["--prompts", "{p}", "--output", "/no/such/o"], "--output: there is no folder '/no/such'"),
        (["--prompts", "{p}", "--output", "/dev/null"], "--output: '/dev/null' is no plain file"),
        (["--prompts", "{p}", "--output", "{p}"], "--output: '{p}' would overwrite the prompts"),
        (["--prompts", "{p}", "--raw", "--system", "s"], "line 1: system: 's' cannot be used with --raw"),
        (["--prompts", "{p}", "--temperature", "-1"], "temperature: -1.0 is not allowed"),
        (["--prompts", "{p}", "--max-num-seqs", "0"], "max_num_seqs: 0 is not allowed"),
        (["x", "--max-num-batched-tokens", "0"], "max_num_batched_tokens: 0 is not allowed"),
        (["x", "--kv-cache-memory-bytes", "4GB"], "--kv-cache-memory-bytes: '4GB' is not allowed; give a whole number"),
        (["x", "--kv-cache-memory-bytes", "1.5"], "--kv-cache-memory-bytes: '1.5' is not allowed"),
        (["x", "--kv-cache-memory-bytes", "0"], "--kv-cache-memory-bytes: '0' is not allowed"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(words, line, tmp_path, capsys):
    source = str(write(tmp_path / "p.txt", "abc"))
    assert generate(*(word.replace("{p}", source) for word in words)) == 2
    out, err = capsys.readouterr()
    assert line.replace("{p}", source) in err
    assert err.count("\n") == 1
    assert out == ""


def test_what_cannot_run_fails_alone_and_runs_again(names, tmp_path, capsys, monkeypatch, asked):
    """One prompt is too long for the model, one too long for the memory, one meets a fault of ours."""
    source = write(tmp_path / "p.txt", "a" * 600, "abcabc", "b" * 300, "xyzxyz")
    output = tmp_path / "o.jsonl"
    words = ("--prompts", source, "--output", output, "--kv-cache-memory-bytes", "128K", *names)
    make = LLM.reply

    class Poisoned(Fixed):
        def plan(self, state, load):
            raise RuntimeError("poisoned")

    def poisoned(self, prompt, params=None, name=None):
        reply = make(self, prompt, params, name)
        if name == "4":
            reply.request.controller = Poisoned(1)
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(LLM, "reply", poisoned)
        assert generate(*words) == 1
    first, second, third, fourth = read(output.read_text())
    assert first["error"].startswith("request 1: prompt: 609 tokens leave no room")
    assert third["error"].startswith("request 3: prompt: with its answer it may grow to 333 tokens")
    assert fourth["error"] == "request 4: poisoned"
    assert [each["finish_reason"] for each in (first, third, fourth)] == ["error"] * 3
    assert "error" not in second
    *_, one, three, four, last = capsys.readouterr().err.splitlines()
    assert [line.split(" failed: ")[0] for line in sorted((one, three, four))] == [
        f"draftproof: prompt {n}" for n in (1, 3, 4)
    ]
    assert "1 of 4 prompts done, 3 failed" in last
    asked.clear()
    assert generate(*words) == 1
    assert asked == ["1", "3", "4"]
    assert "error" not in read(output.read_text())[3]
    assert not part_of(output).exists()


def test_many_failures_are_counted_and_ten_are_named(names, tmp_path, capsys):
    source = write(tmp_path / "p.txt", *["a" * 600] * 12)
    assert generate("--prompts", source, *names) == 1
    err = capsys.readouterr().err
    assert err.count(" failed: ") == 10
    assert "and 2 more failed" in err


@pytest.fixture(scope="module")
def whole(names, tmp_path_factory):
    """A file of prompts, and the answers of a run that nothing stopped."""
    path = tmp_path_factory.mktemp("whole")
    source = write(path / "p.jsonl", *[{"prompt": f"abc{n}abc{n}", "id": f"q{n}"} for n in range(6)])
    assert generate("--prompts", source, "--output", path / "o.jsonl", "--max-num-seqs", 2, *names) == 0
    assert sorted(each.name for each in path.iterdir()) == ["o.jsonl", "p.jsonl"]
    return source, (path / "o.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)


def same(output: Path, lines: list[str]) -> None:
    expected = [untimed(json.loads(line)) for line in lines]
    assert [untimed(each) for each in read(output.read_text(encoding="utf-8"))] == expected
    assert not part_of(output).exists()


@pytest.mark.parametrize("cut", ["in a character", "in a line", "before its end", "nothing"])
def test_a_killed_run_goes_on_with_what_is_missing(names, whole, tmp_path, asked, cut):
    source, lines = whole
    output = tmp_path / "o.jsonl"
    rest = {
        "in a character": lines[0].encode()[: lines[0].encode().index(b"\xef") + 1],
        "in a line": b'{"id": "q0", "pro',
    }
    done = [lines[4], lines[1]] + ([lines[0].rstrip("\n")] if cut == "before its end" else [])
    part_of(output).write_bytes("".join(done).encode() + rest.get(cut, b""))
    assert generate("--prompts", source, "--output", output, "--max-num-seqs", 2, *names) == 0
    missing = {"q0", "q2", "q3", "q5"} - ({"q0"} if cut == "before its end" else set())
    assert set(asked) == missing
    same(output, lines)
    assert lines[4] in output.read_text(encoding="utf-8"), "as it was, to the byte"
    asked.clear()
    assert generate("--prompts", source, "--output", output, "--max-num-seqs", 2, *names) == 0
    assert asked == []
    same(output, lines)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--temperature", "0.5"], "line 1: it was made with temperature 1.0, now it is 0.5; use another --output or "),
        (["--max-tokens", "9"], "it was made with max_tokens 24, now it is 9"),
        (["--seed", "6"], "it was made with seed 5, now it is 6"),
        (["--dtype", "bfloat16"], "it was made with dtype 'float32', now it is 'bfloat16'"),
        (["--exact", "law"], "it was made with exact 'bits', now it is 'law'"),
        (["--num-speculative-tokens", "2"], "it was made with num_speculative_tokens 5, now it is 2"),
        (["--raw"], "it was made with prompt_tokens"),
        (["--system", "s"], "it answers the system None, and 's' is asked now"),
    ],
)
def test_answers_of_another_configuration_are_refused(names, whole, tmp_path, capsys, words, line):
    source, lines = whole
    output = tmp_path / "o.jsonl"
    part_of(output).write_text("".join(lines[:2]), encoding="utf-8")
    assert generate("--prompts", source, "--output", output, *names, *words) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert line in err
    assert str(part_of(output)) in err
    assert part_of(output).read_text(encoding="utf-8") == "".join(lines[:2])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"id": "q9", "prompt": "x"}], "line 1: its id 'q9' is not in the prompts; use another --output"),
        (["{", {"id": "q0"}], "line 1: it is not JSON: "),
        ([{"prompt": "x"}], "line 1: it is no answer, having no id"),
        (["5"], "line 1: it is no answer, having no id"),
        ([{"id": "q0", "prompt": "x"}], "line 1: it answers the prompt 'x', and 'abc0abc0' is asked now"),
        ([{"id": "q0", "prompt": "abc0abc0"}], "line 1: it has no configuration to compare"),
    ],
)
def test_a_file_of_something_else_is_refused(whole, tmp_path, capsys, lines, words):
    output = write(tmp_path / "o.jsonl", *lines)
    assert generate("--prompts", whole[0], "--output", output, "--model", "no such model") == 2
    assert words in capsys.readouterr().err


@pytest.fixture
def at_first(monkeypatch):
    """Sends this process a signal when the first prompt is finished; returns where the LLM will be found."""
    used, show = [], jobs._Bar.show

    def perform(job, llm):
        used.append(llm)
        return jobs.perform(job, llm)

    def arm(number):
        def shown(self, tally):
            if tally.done == 1 and used[1:] == []:
                used.append(number)
                os.kill(os.getpid(), number)
            show(self, tally)

        monkeypatch.setattr(jobs._Bar, "show", shown)
        monkeypatch.setattr(generate_module, "perform", perform)
        return used

    return arm


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_is_finished(names, whole, tmp_path, capsys, at_first, number, status):
    source, lines = whole
    output, used = tmp_path / "o.jsonl", at_first(number)
    words = ("--prompts", source, "--output", output, "--max-num-seqs", 2, *names)
    before = signal.getsignal(number)
    assert generate(*words) == status
    assert signal.getsignal(number) == before
    kept = read(part_of(output).read_text(encoding="utf-8"))
    # the first two start together; when one ends nobody else starts
    assert len(kept) == (1 if number == signal.SIGINT else 2)
    assert {each["id"] for each in kept} <= {"q0", "q1"}
    err = capsys.readouterr().err
    assert f"stopped: {len(kept)} of 6 prompts are finished, kept in {part_of(output)}; the same command goes on" in err
    assert (used[0].engine.running, used[0].engine.waiting) == (0, 0)
    assert generate(*words) == 0
    same(output, lines)


def test_a_trace_holds_what_this_run_answers(names, whole, tmp_path):
    source, lines = whole
    output, trace = tmp_path / "o.jsonl", tmp_path / "t.jsonl"
    part_of(output).write_text("".join(lines[:4]), encoding="utf-8")
    words = ("--prompts", source, "--output", output, "--max-num-seqs", 2, *names)
    assert generate(*words, "--trace", trace) == 0
    answers = {each["id"]: each for each in read(output.read_text(encoding="utf-8"))}
    requests = read_trace(trace).requests
    assert {each.name for each in requests} == {"q4", "q5"}
    for each in requests:
        assert each.text == answers[each.name]["text"]
        assert summed(each).as_dict() == answers[each.name]["stats"]
    same(output, lines)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_trace_in_its_part(names, whole, tmp_path, capsys, at_first, number, status):
    source, _ = whole
    trace = tmp_path / "t.jsonl"
    trace.write_text("old")
    at_first(number)
    assert generate("--prompts", source, "--trace", trace, "--max-num-seqs", 2, *names) == status
    assert f"the trace as far as it came is in {part_of(trace)}" in capsys.readouterr().err
    assert trace.read_text() == "old"
    assert any(each.end is not None for each in read_trace(part_of(trace)).requests)


def test_a_signal_without_an_output_still_shows_what_is_finished(names, whole, capsys, at_first):
    at_first(signal.SIGTERM)
    assert generate("--prompts", whole[0], "--max-num-seqs", 2, *names) == 143
    out, err = capsys.readouterr()
    assert [each["id"] for each in read(out)] == ["q0", "q1"]
    assert "stopped: 2 of 6 prompts are finished, nothing else is kept without --output" in err


@pytest.mark.usefixtures("unchecked")  # for the sake of time
def test_a_process_asked_to_end_drains_and_resumes(folder, tmp_path):
    source = write(tmp_path / "p.txt", *[f"abc{n}abc" for n in range(16)])
    words = ["--prompts", source, "--model", folder, "--dtype", "float32", "--seed", 1, "--max-tokens", 60]
    words += ["--max-num-seqs", 2, "--draft", "ngram", "--num-speculative-tokens", 5]
    output = tmp_path / "o.jsonl"
    start = [sys.executable, "-c", "from draftproof.cli import main; main()", "generate", *map(str, words)]
    with subprocess.Popen([*start, "--output", str(output)], stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (part_of(output).exists() and part_of(output).stat().st_size):
            time.sleep(0.005)
        process.terminate()
        err = process.communicate(timeout=60)[1]
    assert process.returncode == 143, err
    kept = read(part_of(output).read_text(encoding="utf-8"))
    assert 1 <= len(kept) < 16
    assert f"stopped: {len(kept)} of 16 prompts are finished" in err
    assert not output.exists()
    assert generate(*words, "--output", output) == 0
    assert generate(*words, "--output", tmp_path / "whole.jsonl") == 0
    same(output, (tmp_path / "whole.jsonl").read_text(encoding="utf-8").splitlines())


def test_progress_is_shown_on_a_terminal_alone(names, whole, tmp_path, capsys, monkeypatch):
    output = tmp_path / "o.jsonl"
    part_of(output).write_text("".join(whole[1][:5]), encoding="utf-8")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert generate("--prompts", whole[0], "--output", output, "--max-num-seqs", 2, *names) == 0
    out, err = capsys.readouterr()
    assert "/6" in err
    assert "6 of 6 prompts done (5 of them before), 0 failed" in err.splitlines()[-1]
    assert out == ""
