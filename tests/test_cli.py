"""The command line: what a person types and what comes back."""

import json
import os
import subprocess
import sys

import pytest

from draftproof import __version__
from draftproof.cli.app import run
from draftproof.rules import NEEDS, RULES
from draftproof.trace import read, summed
from tests.folders import make_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(
        make_folder(tmp_path_factory.mktemp("model"), generation={"temperature": 0.5, "no_repeat_ngram_size": 5})
    )


def generate(*words):
    return run(["generate", *map(str, words)])


def test_json_is_one_object_with_the_effective_configuration(folder, capsys):
    assert generate("abcabcabc", "--model", folder, "--json", "--max-tokens", 20, "--dtype", "float32") == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["finish_reason"] in ("stop", "length")
    assert len(answer["token_ids"]) == answer["stats"]["emitted"] <= 20
    assert answer["config"]["sampling"]["temperature"] == 0.5
    speculation = answer["config"]["speculation"]
    assert (speculation["num_speculative_tokens"], speculation["controller"]) == ("auto", "cost")
    assert (speculation["parts"], speculation["depth"]) == (["suffix"], 16)
    assert answer["config"]["not_applied"] == {"no_repeat_ngram_size": 5}
    assert "no_repeat_ngram_size 5, which is not applied" in err
    assert set(answer["stats"]["seconds"]) == {"load", "prefill", "propose", "forward", "verify", "commit", "total"}


def test_a_reported_seed_repeats_the_run_and_the_text_is_the_streamed_one(folder, capsys):
    generate("abcabc", "--model", folder, "--json", "--max-tokens", 20)
    first = json.loads(capsys.readouterr().out)
    generate("abcabc", "--model", folder, "--max-tokens", 20, "--seed", first["seed"])
    out, err = capsys.readouterr()
    assert out == first["text"] + "\n"
    assert f"seed {first['seed']}" in err.splitlines()[-1]
    assert "target passes" in err.splitlines()[-1]


def test_no_speculation_drafts_nothing_and_says_so(folder, capsys):
    assert generate("abcabc", "--model", folder, "--no-speculation", "--max-tokens", 5, "--temperature", 0) == 0
    assert "(no drafts," in capsys.readouterr().err


def test_a_trace_holds_one_round_a_line(folder, capsys, tmp_path):
    trace = tmp_path / "trace.jsonl"
    words = ("abcabcabc", "--model", folder, "--json", "--max-tokens", 30, "--temperature", 0, "--trace", trace)
    generate(*words, "--trace-laws", 2)
    answer = json.loads(capsys.readouterr().out)
    [request] = read(trace).requests
    assert len(request.rounds) == answer["stats"]["rounds"]
    assert [token for each in request.rounds for token in each["tokens"]] == answer["token_ids"]
    assert summed(request).as_dict() == answer["stats"]
    assert all("laws" in each for each in request.rounds)
    assert list(tmp_path.iterdir()) == [trace]


def test_an_interrupt_leaves_the_trace_as_far_as_it_came(folder, capsys, tmp_path, monkeypatch):
    told = iter(range(3))

    def rendered(delta, colour):
        if next(told, None) is None:
            raise KeyboardInterrupt
        return delta.text

    monkeypatch.setattr("draftproof.cli.generate.rendered", rendered)
    trace = tmp_path / "trace.jsonl"
    trace.write_text("old")
    assert generate("abcabcabc", "--model", folder, "--max-tokens", 30, "--seed", 1, "--trace", trace) == 130
    assert f"the trace as far as it came is in {trace}.part" in capsys.readouterr().err
    assert trace.read_text() == "old"
    assert len(read(f"{trace}.part").requests[0].rounds) == 4


def test_the_prompt_may_come_from_standard_input(folder, capsys, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("abcabc"))
    assert generate("-", "--model", folder, "--max-tokens", 5, "--seed", 1) == 0
    piped = capsys.readouterr().out
    generate("abcabc", "--model", folder, "--max-tokens", 5, "--seed", 1)
    assert capsys.readouterr().out == piped


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["x", "--draft", "eagle"], "--draft: 'eagle' is unknown; use auto, auto:NAME, suffix, ngram, model:NAME,"),
        (["x", "--verify", "typical"], "verify: 'typical' is unknown; known are coupled, token, block"),
        (
            ["x", "--verify", "lossy_typical"],
            "verify: 'lossy_typical' changes what the model says; allow_lossy",
        ),
        (
            ["x", "--verify", "greedy_multi"],
            "takes one level: nodes that all follow the last committed token, but auto drafts a chain of up to 5 "
            "tokens; use coupled, token, block, recursive, traversal, or draft one token (num_speculative_tokens 1)",
        ),
        (["x", "--num-speculative-tokens", "-1"], "num_speculative_tokens: -1 is not allowed"),
        (["x", "--temperature", "-1"], "temperature: -1.0 is not allowed"),
        (["x", "--top-k", "many"], "Invalid value for '--top-k'"),
        (["x", "--no-such-option"], "No such option: --no-such-option"),
        (["x", "--model", "/no/such/file.gguf"], "there is no file"),
        (["x", "--model", "no such model"], "no name a hub could have"),
        (["x", "--dtype", "int4"], "dtype: 'int4' is unknown"),
        (["x", "--exact", "maybe"], "exact: 'maybe' is unknown"),
        (["x", "--device", "abacus"], "device: 'abacus' cannot be used"),
        (["x", "--threads", "0"], "threads: 0 is not allowed"),
        (["x", "--device", "meta"], "device: 'meta' cannot be used"),
        (["x", "--trace", "/no/such/folder/t.jsonl"], "there is no folder '/no/such/folder'"),
        (["x", "--trace", "/"], "--trace: '/' is a folder"),
        (["x", "--trace-laws", "2"], "--trace-laws: 2 needs --trace"),
        (["x", "--trace", "t", "--trace-laws", "0"], "--trace-laws: 0 is not allowed; it must be >= 1"),
        (["x", "--no-speculation", "--draft", "eagle"], "--draft: 'eagle' is unknown"),
        (["x", "--stop", ""], "stop: '' is not allowed"),
        (["x", "--seed", "-1"], "seed: -1 is not allowed"),
        (["  "], "prompt: it is empty"),
        ([], "prompt: it is missing; give a prompt, - to read it from standard input, or --prompts FILE"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(words, line, capsys):
    assert generate(*words) == 2
    out, err = capsys.readouterr()
    assert line in err
    assert err.count("\n") == 1
    assert out == ""


def test_a_prompt_longer_than_the_context_is_refused(folder, capsys):
    assert generate("a" * 600, "--model", folder) == 2
    assert "leave no room in the model's context of 512" in capsys.readouterr().err


def test_a_draft_of_another_vocabulary_is_refused(folder, tmp_path, capsys):
    assert generate("a", "--model", folder, "--draft", f"model:{make_folder(tmp_path, reverse=True)}") == 2
    assert "its vocabulary is the target's, permuted" in capsys.readouterr().err


def test_a_trace_follows_links_and_leaves_pipes_and_devices_what_they_are(folder, capsys, tmp_path):
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(real)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for trace in (link, pipe):
        assert generate("ab", "--model", folder, "--max-tokens", 2, "--temperature", 0, "--trace", trace) == 0
    assert link.is_symlink()
    assert real.read_text().startswith('{"draftproof_trace": 2')
    assert pipe.is_fifo()
    assert os.read(reader, 40).startswith(b'{"draftproof_trace": 2')
    os.close(reader)


def test_a_fault_of_ours_is_one_line_too_and_debug_shows_it(folder, capsys, monkeypatch):
    def fail(*args):
        raise TypeError("a fault")

    monkeypatch.setattr("draftproof.cli.generate.summary", fail)
    assert generate("x", "--model", folder, "--max-tokens", 1) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "draftproof: unexpected TypeError: a fault (--debug shows where)"
    with pytest.raises(TypeError, match="a fault"):
        generate("x", "--model", folder, "--max-tokens", 1, "--debug")


def test_without_a_command_the_help_is_printed_and_nothing_else(capsys):
    assert run([]) == 2
    out, err = capsys.readouterr()
    assert "generate" in out + err
    assert "draftproof: \n" not in err


def test_help_has_an_example(capsys):
    assert run(["generate", "--help"]) == 0
    assert "Example:" in capsys.readouterr().out


def test_the_doctor_reports_a_claim(folder, capsys):
    assert run(["doctor", "--model", folder, "--dtype", "float32", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["claim"] in ("bit-exact", "same law")
    assert {"machine", "rows", "findings", "forward_ms"} <= set(report)
    assert all(finding["rows"] > 0 for finding in report["findings"])


@pytest.mark.parametrize("verify", RULES)
@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_every_rule_can_be_asked_for(folder, capsys, verify, draft):
    """With both drafters; one token a round where the rule takes one level. Drafts are accepted, and seeds repeat."""
    depth = 1 if NEEDS[verify].shape == "level" else 3
    words = ["abcabcabc", "--model", folder, "--draft", draft if draft == "ngram" else f"model:{folder}", "--json"]
    words += [
        "--verify",
        verify,
        "--num-speculative-tokens",
        depth,
        "--max-tokens",
        24,
        "--seed",
        5,
        "--dtype",
        "float32",
    ]
    answers = []
    for _ in range(2):
        assert generate(*words) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0]["token_ids"] == answers[1]["token_ids"]
    assert answers[0]["config"]["speculation"]["verify"] == verify
    assert answers[0]["config"]["claim"] == ("same law" if verify != "coupled" else answers[0]["config"]["claim"])
    if draft == "model":  # it drafts for itself: p = q, but for the rows' bits
        assert answers[0]["stats"]["acceptance_rate"] > 0.9


def test_a_lossy_rule_says_so_when_it_runs(folder, capsys):
    words = ("abcabc", "--model", folder, "--verify", "lossy_lenient", "--allow-lossy", "--max-tokens", 4, "--json")
    assert generate(*words) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["config"]["claim"] == "lossy"
    assert "lossy_lenient changes what the model says" in err


def test_every_sampling_option_reaches_the_request(folder, capsys):
    words = ("--json", "--max-tokens", 6, "--dtype", "float32", "--typical-p", 0.9, "--repetition-penalty", 1.1)
    words += ("--frequency-penalty", 0.1, "--presence-penalty", 0.2, "--logit-bias", "97=-100", "--logit-bias", "98=2")
    words += ("--bad-word", "xy", "--min-tokens", 2, "--ignore-eos", "--stop-token-id", 5, "--stop-token-id", 6)
    assert generate("abc", "--model", folder, *words, "--logprobs", 1, "--processed-logprobs") == 0
    answer = json.loads(capsys.readouterr().out)
    sampling = answer["config"]["sampling"]
    assert sampling["logit_bias"] == {"97": -100, "98": 2}
    assert (sampling["bad_words"], sampling["stop_token_ids"]) == (["xy"], [5, 6])
    assert (sampling["min_tokens"], sampling["ignore_eos"], sampling["typical_p"]) == (2, True, 0.9)
    penalties = [sampling[f"{name}_penalty"] for name in ("repetition", "frequency", "presence")]
    assert penalties == [1.1, 0.1, 0.2]
    assert sampling["logprobs_mode"] == "processed_logprobs"
    assert len(answer["logprobs"]) == len(answer["token_ids"])
    assert 97 not in answer["token_ids"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--logit-bias", "97"], "--logit-bias: '97' is not allowed; give ID=BIAS, such as 42=-100"),
        (["--logit-bias", "97=101"], "logit_bias of 97: 101.0 is not allowed"),
        (["--repetition-penalty", "0"], "repetition_penalty: 0.0 is not allowed"),
        (["--min-tokens", "999"], "min_tokens: 999 is not allowed; it must be a whole number in 0 .. max_tokens (256)"),
        (["--logprobs", "1"], "--logprobs: 1 needs --json"),
        (["--json", "--processed-logprobs"], "--processed-logprobs: it needs --logprobs"),
        (["--json-schema", "/no/such"], "--json-schema: '/no/such' is neither a JSON object nor a file that holds one"),
        (["--json-schema", "{}", "--regex", "a"], "--regex: it cannot be used with --json-schema"),
        (["--json-schema", '{"type":'], "--json-schema: it is not JSON: "),
    ],
)
def test_a_wrong_option_is_named_before_a_model_is_loaded(words, line, capsys):
    assert generate("abc", "--model", "no such model", *words) == 2
    out, err = capsys.readouterr()
    assert line in err
    assert err.count("\n") == 1
    assert out == ""


def test_the_package_runs_as_a_module():
    found = subprocess.run(
        [sys.executable, "-m", "draftproof", "--version"], capture_output=True, text=True, check=True
    )
    assert found.stdout == f"draftproof {__version__}\n"
