"""draftproof chat: a conversation, turn by turn, what was said before computed once."""

from __future__ import annotations

import io
import os
import re
import signal
from dataclasses import replace

import pytest

from draftproof.cli import chat as chat_module
from draftproof.cli.app import run
from draftproof.llm import LLM
from draftproof.sampling import SamplingParams
from tests.folders import make_folder

LONG = "tell me what there is to say"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(make_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def plain(folder):
    return LLM(folder, dtype="float32", enable_prefix_caching=False)


@pytest.fixture
def chat(folder, capsys, monkeypatch):
    """Lines typed -> status, what was answered, what was remarked."""

    def typed(*lines, words=(), model=folder):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        status = run(["chat", "--model", model, "--dtype", "float32", *map(str, words)])
        return status, *capsys.readouterr()

    return typed


def answers(llm, *texts, seed=3, max_tokens=12, messages=()):
    """The same conversation by the oracle, which keeps nothing between turns."""
    if llm.claim != "bit-exact":
        pytest.skip("the matrix products of this machine change with the row count: same law only")
    said, messages = [], list(messages)
    params = SamplingParams(max_tokens=max_tokens)
    for turn, text in enumerate(texts):
        messages.append({"role": "user", "content": text})
        done = llm.start(list(messages), replace(params, seed=seed + turn)).result()
        messages.append({"role": "assistant", "content": done.text})
        said.append(done.text)
    return said


def reused(err):
    return [int(n) for n in re.findall(r"(\d+) of \d+ prompt tokens reused", err)]


SEEDED = ("--seed", 3, "--max-tokens", 12)


@pytest.mark.parametrize("draft", ["ngram", "none", "model"])
def test_turns_reuse_what_was_said_and_say_what_they_would_without(chat, plain, folder, draft):
    words = (*SEEDED, "--draft", f"model:{folder}" if draft == "model" else draft)
    status, out, err = chat(LONG, "go on", "", "and then", words=words)
    assert status == 0
    first, *later = reused(err)
    assert first == 0
    assert len(later) == 2
    assert 16 <= later[0] < later[1]
    assert [f"seed {3 + n})" in line for n, line in enumerate(err.splitlines()[-3:])] == [True] * 3
    assert out == "".join(said + "\n" for said in answers(plain, LONG, "go on", "and then"))


def test_reset_forgets_and_starts_anew(chat, plain):
    status, out, err = chat("hi", "again", "/reset", "hi", words=SEEDED)
    assert status == 0
    [hi, again] = answers(plain, "hi", "again")
    assert out == f"{hi}\n{again}\n{hi}\n"
    assert "the conversation is forgotten" in err


def test_commands_are_listed_and_unknown_ones_named(chat):
    status, out, err = chat("/help", "/quit", "  ", "/exit", "never asked")
    assert (status, out) == (0, "")
    assert "draftproof: /reset forgets the conversation\n" in err
    assert "draftproof: /quit: there is no such command; known are /exit, /reset, /help\n" in err
    assert "> " not in err


def test_a_system_message_opens_the_conversation_also_after_a_reset(chat, plain):
    _, out, _ = chat("hi", "/reset", "hi", words=(*SEEDED, "--system", "be brief"))
    [said] = answers(plain, "hi", messages=[{"role": "system", "content": "be brief"}])
    assert out == f"{said}\n{said}\n"


def test_a_full_context_is_one_line_and_the_conversation_goes_on(chat, plain):
    status, out, err = chat("hi", "a" * 600, "again", words=SEEDED)
    assert status == 0
    assert out == "".join(said + "\n" for said in answers(plain, "hi", "again"))
    [line] = [line for line in err.splitlines() if "/reset" in line]
    assert re.fullmatch(
        r"draftproof: messages: the conversation, \d+ tokens, does not fit the model's context of 512; .*", line
    )


def test_too_little_memory_is_one_line_too(chat):
    status, _, err = chat("a" * 200, "hi", words=(*SEEDED, "--kv-cache-memory-bytes", "64K"))
    assert status == 0
    assert "prompt: with its answer it may grow to " in err
    assert len(reused(err)) == 1


def test_an_answer_that_the_context_cuts_says_so(chat):
    _, _, err = chat("a" * 495, words=("--seed", 3))
    assert "the answer was cut: the model's context is full; /reset starts anew" in err.splitlines()[-1]


def test_an_interrupt_stops_the_answer_alone_and_keeps_what_was_said(chat, plain, monkeypatch):
    shown, render = [], chat_module.rendered

    def rendered(delta, colour):
        shown.append(render(delta, colour))
        if len(shown) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return shown[-1]

    monkeypatch.setattr(chat_module, "rendered", rendered)
    before = signal.getsignal(signal.SIGINT)
    status, out, err = chat(LONG, "go on", words=(*SEEDED, "--no-speculation"))
    assert status == 0
    assert signal.getsignal(signal.SIGINT) == before
    partial = "".join(shown[:4])
    messages = [{"role": "user", "content": LONG}, {"role": "assistant", "content": partial}]
    [second] = answers(plain, "go on", seed=4, messages=messages)
    assert out == f"{partial}\n{second}\n"
    assert "draftproof: stopped\n" in err
    assert reused(err)[1] >= 16, "what was computed before the interrupt is kept"


def test_an_interrupt_at_the_prompt_ends(chat, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(chat_module, "_line", interrupted)
    assert chat()[0] == 130


def test_a_person_is_asked_for_a_line(chat, capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Terminal("x\n"))
    assert chat_module._line() == "x\n"
    assert chat_module._line() is None
    assert capsys.readouterr() == ("", "> > ")


def test_a_model_without_a_chat_template_is_refused(chat, tmp_path):
    make_folder(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    status, _, err = chat("hi", model=str(tmp_path))
    assert status == 2
    assert f"--model: {str(tmp_path)!r} has no chat template to talk with; use draftproof generate" in err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--draft", "eagle"], "--draft: 'eagle' is unknown"),
        (["--temperature", "-1"], "temperature: -1.0 is not allowed"),
        (["--kv-cache-memory-bytes", "lots"], "--kv-cache-memory-bytes: 'lots' is not allowed"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(chat, words, line):
    status, out, err = chat(words=words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert line in err
