"""draftproof train data: what drafters learn from is a function of its recipe, whatever stops and resumes the work."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import draftproof.llm
from draftproof import fingerprint
from draftproof.cli import train_told
from draftproof.cli.app import run
from draftproof.llm import LLM
from draftproof.sampling import SamplingParams
from draftproof.train import corpus
from draftproof.train.corpus import Example, appending, line_of, read_data
from draftproof.train.labels import conversations_of, labels_from_messages, mask_of
from draftproof.train.passages import passages_of, tidy
from draftproof.train.recipe import INSTRUCTIONS, Recipe, prompts_of, tasks_digest, tasks_of, text_of
from tests.folders import byte_tokenizer, make_folder, said

pytestmark = pytest.mark.usefixtures("one_thread", "unchecked")

TURNS = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<eos>\n{% endfor %}"
CHAT = TURNS + "{% if add_generation_prompt %}<assistant>{% endif %}"


# the recipe


def a_text(words: int = 40, paragraphs: int = 12) -> str:
    """Paragraphs of sentences of ten words, no two alike."""
    return "\n".join(
        " ".join(f"Word{p}x{w} {' '.join(f'w{p}x{w}x{i}' for i in range(8))} end." for w in range(words // 10))
        for p in range(paragraphs)
    )


PROMPTS = [("p.jsonl", f"question {i}") for i in range(7)]
TEXTS = [("t.txt", a_text())]


def test_every_prefix_is_a_mix():
    chosen = Recipe(samples=3, teacher_forced=2, max_tokens=32)
    tasks = tasks_of(chosen, PROMPTS, TEXTS)
    share = Counter((task.kind, task.source) for task in tasks)
    assert share == {("answer", "p.jsonl"): 21, ("answer", "t.txt"): 6, ("text", "t.txt"): 2}
    for length in range(1, len(tasks) + 1):
        found = Counter((task.kind, task.source) for task in tasks[:length])
        for name, count in share.items():
            assert abs(found[name] - count * length / len(tasks)) <= 1.5
        limited = Recipe(samples=3, teacher_forced=2, max_tokens=32, limit=length)
        assert tasks_of(limited, PROMPTS, TEXTS) == tasks[:length]
    assert len({task.seed for task in tasks}) == len(tasks)
    assert {task.prompt for task in tasks if task.source == "p.jsonl"} == {
        task.prompt for task in [task for task in tasks if task.source == "p.jsonl"][:7]
    }


def test_a_prompt_is_asked_greedily_once_and_at_every_temperature():
    tasks = tasks_of(Recipe(samples=8), PROMPTS)
    for _, prompt in PROMPTS:
        found = Counter(task.temperature for task in tasks if task.prompt == prompt)
        assert found[0.0] == 1
        assert found[0.7] in (2, 3)
        assert found[0.7] + found[1.0] == 7
    first = Counter(task.temperature for task in tasks[: len(PROMPTS)])
    assert set(first) == {0.0, 0.7, 1.0}, "a prefix would be all greedy"


def test_every_instruction_meets_every_temperature():
    texts = [("t.txt", a_text(60, 40 * len(INSTRUCTIONS)))]
    tasks = tasks_of(Recipe(), (), texts)
    heads = [instruction.partition("\n")[0].partition("{")[0] for instruction in INSTRUCTIONS]
    met = {(head, task.temperature) for task in tasks for head in heads if head and task.prompt.startswith(head)}
    assert {head for head, _ in met} == {head for head in heads if head}
    assert len(met) == 3 * len({head for head in heads if head})


def test_more_instructions_are_others():
    tasks = tasks_of(Recipe(instructions=3), (), TEXTS)
    passages = passages_of(TEXTS[0][1], 60, 250)
    for passage in passages:
        assert len({task.prompt for task in tasks if passage in task.prompt}) == 3
    assert len(tasks_of(Recipe(passages=2, instructions=3), (), TEXTS)) == 6


def test_the_order_and_the_seeds_are_what_they_were():
    """Data that was made before is gone on with, and is the same on every machine."""
    tasks = tasks_of(Recipe(samples=2, teacher_forced=1), PROMPTS, TEXTS)
    assert tasks_digest(tasks) == DIGEST
    assert tasks_digest(tasks_of(Recipe(samples=2, teacher_forced=1, seed=1), PROMPTS, TEXTS)) != DIGEST


DIGEST = "5152db7ce6e35e05981069b7d93b721136252d5ca646837f63a0e8cdf3e6ecbf"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"temperatures": ()}, "temperatures: there are none"),
        ({"temperatures": (-1.0,)}, "temperatures: -1.0 is not allowed; it must be a number >= 0"),
        ({"temperatures": (0.0,), "samples": 2}, "samples: 2 is not allowed with temperature 0 alone"),
        ({"samples": 0}, "samples: 0 is not allowed"),
        ({"max_tokens": 0}, "max_tokens: 0 is not allowed"),
        ({"instructions": 99}, "instructions: 99 is not allowed"),
        ({"teacher_forced": -1}, "teacher_forced: -1 is not allowed"),
        ({"seed": -1}, "seed: -1 is not allowed"),
        ({"passages": -1}, "passages: -1 is not allowed"),
        ({"limit": 0}, "limit: 0 is not allowed"),
    ],
)
def test_a_recipe_refuses(given, told):
    with pytest.raises(ValueError, match="^" + told):
        Recipe(**given)


# the sources


def test_text_is_tidied():
    given = "The players ' union , the band 's \" best \" and ' Ritual ' : 1 @,@ 000 , in 1990 \u2013 91 ; "
    given += "it was n't £ 3 ."
    assert tidy(given) == "The players' union, the band's \"best\" and 'Ritual': 1,000, in 1990\u201391; it wasn't £3."


def test_passages_are_of_one_section_and_of_bounded_length():
    text = " = Title = \n" + a_text(40, 3) + "\n = = Part = = \n" + a_text(400, 1) + "\n = End = \nToo short.\n"
    passages = passages_of(text, 60, 250)
    assert all(60 <= len(passage.split()) <= 250 for passage in passages)
    assert [passage.count("\n\n") for passage in passages] == [1, 0, 0]
    assert not any("=" in passage for passage in passages)
    assert all(passage.endswith("end.") for passage in passages)


def test_missing_words_become_names():
    [passage] = passages_of("He met <unk> in 1990 . It was $ 25 @,@ <unk> . Too <unk> , <unk> , <unk> <unk> .", 4, 250)
    assert passage == "He met Marlow in 1990. It was $25,500."


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), encoding="utf-8")
    return path


def test_prompts_of_every_form(tmp_path):
    turn = {"role": "user", "content": "d"}
    path = write(
        tmp_path / "p.jsonl",
        {"instruction": "a", "input": "b", "id": 3},
        {"instruction": "a", "input": ""},
        {"prompt": "b"},
        {"turns": ["c", "x"]},
        {"messages": [turn, {"role": "assistant", "content": "e"}]},
    )
    assert prompts_of(path) == [("p.jsonl", each) for each in ("a\n\nb", "a", "b", "c", [turn])]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"text": "a"}, "prompt: it is missing; every line needs one of instruction, prompt, turns, messages"),
        ({"prompt": "a", "turns": ["a"]}, "prompt: prompt and turns are both given"),
        ({"prompt": " "}, "prompt: ' ' is not allowed"),
        ({"instruction": "a", "input": 3}, "input: 3 is not allowed"),
        ({"turns": []}, r"turns: \[\] is not allowed"),
        ({"messages": "a"}, "messages: 'a' is not allowed"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\]: content: 3 is not allowed"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "messages: they hold an answer alone"),
        ({"prompt": "\ud800"}, "prompt: it is not valid Unicode"),
        ("[1]", "it holds"),
        ("{", "it is not JSON"),
    ],
)
def test_a_wrong_prompt_is_named_with_its_line(tmp_path, line, told):
    with pytest.raises(ValueError, match=rf"p\.jsonl, line 2: {told}"):
        prompts_of(write(tmp_path / "p.jsonl", {"prompt": "fine"}, line))


# labels


def example(**changed) -> Example:
    given = {"id": 3, "kind": "answer", "source": "p", "prompt": (1, 2, 3), "tokens": (4, 5)}
    return Example(**given | {"temperature": 0.0, "seed": 1, "finish": "stop"} | changed)


def test_the_labels_of_an_example():
    assert mask_of(example()) == (False, False, False, True, True)
    assert mask_of(example(kind="text", prompt=(), tokens=(4, 5, 6))) == (False, True, True)
    for none in (example(tokens=()), example(kind="text", prompt=(), tokens=(4,)), example(prompt=(), tokens=())):
        with pytest.raises(ValueError, match="example 3: it has no label"):
            mask_of(none)


def talk(*contents: str) -> list[dict]:
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


def a_tokenizer(template: str):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("answers", [["five!"], ["a", "bc", "five!"]])
def test_t50_every_token_that_the_assistant_says_is_a_label_once(answers):
    tokenizer = a_tokenizer(CHAT)
    found = labels_from_messages(talk(*[x for answer in answers for x in ("Hi", answer)]), tokenizer)
    said = [token for token, label in zip(found.tokens, found.labels, strict=True) if label]
    assert tokenizer.decode(said) == "".join(f"{answer}<eos>" for answer in answers)
    assert len(found.tokens) == len(found.labels)


def test_a_template_without_markers_still_tells_the_answer():
    """SpecForge #392: found by markers, such an answer has no labels at all."""
    tokenizer = a_tokenizer("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    found = labels_from_messages(talk("Hi", "five!"), tokenizer)
    assert found.labels == (False,) * 2 + (True,) * 5
    assert tokenizer.decode(found.tokens) == "Hifive!"


@pytest.mark.parametrize(
    ("template", "messages", "told"),
    [
        ("{% for m in messages %}{% if m['role'] == 'user' %}Hi{% endif %}{% endfor %}", talk("a", "b"), "no token"),
        (CHAT, talk("a"), "no token of an assistant"),
        (CHAT, talk("a", "b")[1:], r"messages\[0\]: it is the assistant's"),
        (
            "{{ messages | length }}" + CHAT,
            talk("a", "b"),
            r"messages\[1\]: .* otherwise when the conversation goes on",
        ),
        (CHAT + "[a]", talk("a", "b", "c", "d"), r"messages\[1\]: .* otherwise"),
        (CHAT, [], "messages: there are none"),
        (None, talk("a", "b"), "no chat template"),
    ],
)
def test_t50_labels_that_cannot_be_told_are_refused(template, messages, told):
    with pytest.raises(ValueError, match=told):
        labels_from_messages(messages, a_tokenizer(template))


def test_conversations_are_read_from_a_file(tmp_path):
    path = write(tmp_path / "c.jsonl", {"messages": talk("Hi", "five!")}, "", {"messages": talk("a", "b", "c", "d")})
    found = conversations_of(path, a_tokenizer(CHAT))
    assert [sum(each.labels) for each in found] == [6, 4]
    with pytest.raises(ValueError, match=r"c\.jsonl, line 1: messages: no token of an assistant"):
        conversations_of(write(path, {"messages": talk("a")}), a_tokenizer(CHAT))
    with pytest.raises(ValueError, match=r"c\.jsonl: it holds no conversation"):
        conversations_of(write(path), a_tokenizer(CHAT))


# the command


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    """Loading takes longer than all answers here."""
    known: dict[tuple, LLM] = {}

    def load(model, **options):
        key = model, options["dtype"], options["max_num_seqs"]
        if key not in known:
            known[key] = LLM(model, **options)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftproof.llm.LLM", load)
        yield


def loaded(folder: str) -> LLM:
    """The one that the command uses."""
    return draftproof.llm.LLM(folder, dtype="float32", max_num_seqs=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(make_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    place = tmp_path_factory.mktemp("sources")
    prompts = write(place / "p.jsonl", *[{"instruction": "abc" * (i + 1), "input": "x"} for i in range(3)])
    text = place / "t.txt"
    text.write_text("\n".join(" ".join(f"{letter.upper()}x {letter}." for letter in "abcdefghij" * 3) for _ in "123"))
    return prompts, text


@pytest.fixture(scope="module")
def words(folder, sources):
    """The options of nearly every run: 6 answers to prompts, 3 to instructions, and 2 texts."""
    found = ["train", "data", "--target", folder, "--dtype", "float32", "--prompts", sources[0], "--text", sources[1]]
    return list(map(str, [*found, "--samples", 2, "--max-tokens", 12, "--teacher-forced", 2, "--seed", 5]))


CHOSEN = Recipe(samples=2, max_tokens=12, teacher_forced=2, seed=5)
COUNT = 11


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory):
    """A folder that was made at once."""
    out = tmp_path_factory.mktemp("whole") / "data"
    assert run([*words, "--out", str(out)]) == 0
    return out


def lines(out: Path) -> list[str]:
    return sorted((out / "examples.jsonl").read_text(encoding="utf-8").splitlines())


def copied(whole: Path, out: Path, count: int, torn: str = "") -> Path:
    """A folder whose work was stopped."""
    out.mkdir()
    manifest = json.loads((whole / "data.json").read_text())
    for name in ("totals", "failed"):
        del manifest[name]
    (out / "data.json").write_text(json.dumps(manifest | {"complete": False, "seconds": 100.0}))
    kept = (whole / "examples.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:count]
    (out / "examples.jsonl").write_text("".join(kept) + torn, encoding="utf-8")
    return out


@pytest.fixture
def asked(monkeypatch):
    """Names of the requests that were made: what was computed."""
    found, make = [], LLM.reply

    def reply(self, prompt, params=None, name=None):
        found.append(name)
        return make(self, prompt, params, name)

    monkeypatch.setattr(LLM, "reply", reply)
    return found


def test_the_answers_are_the_models_own(folder, sources, whole):
    found = read_data(whole)
    assert [each.id for each in found.examples] == list(range(COUNT))
    assert found.left_out == ()
    llm = loaded(folder)
    if llm.claim != "bit-exact":
        pytest.skip("the matrix products of this machine change with the row count: same law only")
    tasks = tasks_of(CHOSEN, prompts_of(sources[0]), [text_of(sources[1])])
    for each, task in zip(found.examples, tasks, strict=True):
        assert (each.kind, each.source) == (task.kind, task.source)
        assert (each.temperature, each.seed) == (task.temperature, task.seed)
        if each.kind == "text":
            assert list(each.tokens) == llm.encode(task.prompt, raw=True)[:24]
            continue
        assert list(each.prompt) == llm.encode(task.prompt)
        alone = said(
            llm, list(each.prompt), SamplingParams(temperature=each.temperature, seed=each.seed, max_tokens=12)
        )
        assert (list(each.tokens), each.finish) == (alone.token_ids, alone.finish_reason)


def test_the_manifest_says_all(whole, sources):
    manifest = read_data(whole).manifest
    examples = read_data(whole).examples
    assert manifest["complete"]
    assert manifest["examples"] == COUNT
    assert manifest["recipe"] == json.loads(json.dumps(asdict(CHOSEN)))
    assert [(each["option"], each["name"]) for each in manifest["sources"]] == [
        ("prompts", "p.jsonl"),
        ("text", "t.txt"),
    ]
    assert manifest["sources"][0]["bytes"] == sources[0].stat().st_size
    assert manifest["totals"] == {
        "examples": COUNT,
        "prompt_tokens": sum(len(each.prompt) for each in examples),
        "answer_tokens": sum(len(each.tokens) for each in examples if each.kind == "answer"),
        "text_tokens": 48,
    }
    assert set(manifest["fingerprint"]) == {"weights", "config", "tokenizer", "template"}


def test_another_batch_gives_the_same_data_and_says_what_to_expect(words, whole, tmp_path, capsys):
    status = run([*words, "--out", str(tmp_path / "o"), "--batch", "2", "--max-num-batched-tokens", "40", "--json"])
    assert status == 0
    assert lines(tmp_path / "o") == lines(whole)
    out, err = capsys.readouterr()
    assert json.loads(out) == read_data(tmp_path / "o").manifest
    assert "11 examples (6 of p.jsonl, 3 of t.txt, 2 of t.txt as it is), 0 of them there" in err.replace("\n", " ")
    assert "at most 108 tokens to generate" in err
    assert re.search(r"a trial wrote \d+ tokens/s and read \d+: at most about \d+ s", err)
    assert "11 of 11 examples, 0 failed" in err


@pytest.mark.parametrize("torn", ["", '{"id":7,"ki'])
def test_the_same_command_goes_on(words, whole, tmp_path, asked, torn):
    out = copied(whole, tmp_path / "o", 5, torn)
    there = {str(json.loads(line)["id"]) for line in lines(out) if line != torn}
    with pytest.raises(ValueError, match=r"data\.json: it is not complete"):
        read_data(out)
    assert [each.id for each in read_data(out, incomplete=True).examples] == sorted(map(int, there))
    assert run([*words, "--out", str(out)]) == 0
    assert lines(out) == lines(whole)
    assert not there & set(asked)
    assert read_data(out).manifest["seconds"] > 100
    asked.clear()
    assert run([*words, "--out", str(out)]) == 0
    assert asked == []
    assert lines(out) == lines(whole)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (["--seed", 6], "it was made with recipe seed 5, now it is 6; use another --out or remove the folder"),
        (["--max-tokens", 13], "recipe max_tokens 12, now it is 13"),
        (["--temperatures", "0,1"], "recipe temperatures [0.0, 0.7, 1.0, 1.0], now it is [0.0, 1.0]"),
        (["--limit", 3], "recipe limit None, now it is 3"),
    ],
)
def test_another_recipe_is_refused(words, whole, tmp_path, capsys, changed, told):
    out = copied(whole, tmp_path / "o", 5)
    before = lines(out)
    assert run([*words, "--out", str(out), *map(str, changed)]) == 2
    assert told in capsys.readouterr().err
    assert lines(out) == before


def test_other_sources_or_another_target_are_refused(words, whole, sources, tmp_path, capsys, monkeypatch):
    out = copied(whole, tmp_path / "o", 5)
    other = write(tmp_path / "p.jsonl", {"prompt": "other"})
    changed = [str(other) if word == str(sources[0]) else word for word in words]
    assert run([*changed, "--out", str(out)]) == 2
    assert re.search(r"sources \['p.jsonl \(\w{8}\)', .* now it is \['p.jsonl", capsys.readouterr().err)
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "weights_fingerprint", lambda folder: "other")
        assert run([*words, "--out", str(out)]) == 2
    assert re.search("fingerprint weights '\\w+', now it is 'other'", capsys.readouterr().err)
    (out / "data.json").unlink()
    assert run([*words, "--out", str(out)]) == 2
    assert "examples.jsonl: there is no data.json beside it" in capsys.readouterr().err


def test_two_do_not_write_to_one_folder(words, tmp_path, capsys):
    out = tmp_path / "o"
    out.mkdir()
    with appending(out):
        assert run([*words, "--out", str(out)]) == 2
    assert "is being written by another process" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_is_finished(words, whole, tmp_path, capsys, monkeypatch, number, status):
    out, made, before = tmp_path / "o", [], signal.getsignal(number)

    def line(example):
        made.append(example.id)
        if len(made) == 4:
            signal.raise_signal(number)
        return line_of(example)

    with monkeypatch.context() as patch:
        patch.setattr(corpus, "line_of", line)
        assert run([*words, "--out", str(out), "--batch", "2"]) == status
    assert signal.getsignal(number) == before
    assert len(lines(out)) == 3
    err = capsys.readouterr().err
    assert f"stopped: what is finished is in {out}; the same command goes on with the rest" in err
    assert "3 of 11 examples, 0 failed" in err
    assert run([*words, "--out", str(out)]) == 0
    assert lines(out) == lines(whole)


def test_what_cannot_be_answered_fails_alone(folder, tmp_path, capsys):
    prompts = write(tmp_path / "p.jsonl", {"prompt": "abc"}, {"prompt": "x" * 600}, {"messages": talk("abc", "d", "e")})
    words = ["train", "data", "--target", folder, "--dtype", "float32", "--prompts", str(prompts), "--samples", "1"]
    assert run([*words, "--max-tokens", "4", "--out", str(tmp_path / "o")]) == 1
    found = read_data(tmp_path / "o")
    assert len(found.examples) == 2
    [left_out] = found.left_out
    assert re.search(r"example \d failed: prompt: 609 tokens leave no room", left_out)
    err = capsys.readouterr().err
    assert re.search(r"example \d failed: prompt: 609 tokens", err)
    assert "2 of 3 examples, 1 failed" in err


def test_a_base_model_reads_raw_text(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(loaded(folder).loaded.tokenizer, "chat_template", None)
    prompts = write(tmp_path / "p.jsonl", {"prompt": "abc"}, {"messages": talk("abc", "d", "e")})
    words = ["train", "data", "--target", folder, "--dtype", "float32", "--prompts", str(prompts), "--samples", "1"]
    assert run([*words, "--max-tokens", "4", "--out", str(tmp_path / "o")]) == 0
    tokenizer = byte_tokenizer()
    assert {tokenizer.decode(each.prompt) for each in read_data(tmp_path / "o").examples} == {"abc", "abc\n\nd\n\ne"}


def test_a_line_now_and_then_where_there_is_no_terminal(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(train_told, "_SECONDS_BETWEEN_LINES", 0.0)
    assert run([*words, "--out", str(tmp_path / "o"), "--limit", "4"]) == 0
    assert re.search(r"4 of 4 examples, [\d.]+ tokens/s, about \d+ s left", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--out", "o"], "--prompts: it is missing, and --text too"),
        (["--prompts", "p.jsonl"], "--out: it is missing"),
        (["--prompts", "none.jsonl", "--out", "o"], "--prompts: there is no file 'none.jsonl'"),
        (["--prompts", ".", "--out", "o"], "--prompts: '.' is a folder"),
        (["--text", "short.txt", "--out", "o"], "--text: 'short.txt' has no passage of 60 words"),
        (["--prompts", "p.jsonl", "--out", "p.jsonl"], "--out: 'p.jsonl' is a file"),
        (["--prompts", "p.jsonl", "--out", "a/b"], "to make b in"),
        (["--prompts", "p.jsonl", "--out", "o", "--passages", "3"], "--passages: it needs --text"),
        (["--prompts", "p.jsonl", "--out", "o", "--teacher-forced", "3"], "--teacher-forced: it needs --text"),
        (["--prompts", "p.jsonl", "--out", "o", "--temperatures", "a"], "--temperatures: 'a' is not allowed"),
        (["--prompts", "p.jsonl", "--out", "o", "--samples", "0"], "samples: 0 is not allowed"),
        (["--prompts", "p.jsonl", "--out", "o", "--batch", "0"], "--batch: 0 is not allowed; it must be at least 1"),
        (["--prompts", "latin.jsonl", "--out", "o"], "'latin.jsonl' is not UTF-8 text (line 1)"),
    ],
)
def test_a_wrong_command_is_refused_before_a_model_is_loaded(tmp_path, monkeypatch, capsys, given, told):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("draftproof.llm.LLM", lambda *args, **options: pytest.fail("it was loaded"))
    write(Path("p.jsonl"), {"prompt": "a"})
    Path("short.txt").write_text("Too short.")
    Path("latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    assert run(["train", "data", *given]) == 2
    assert told in capsys.readouterr().err
    assert not Path("o").exists()


# reading


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"id": 11}, r"id: 11 is not allowed; it must be in 0 \.\. 10"),
        ({"id": True}, "id: True is not allowed"),
        ({"tokens": [1.5]}, "tokens: it must be a list of token ids"),
        ({"prompt": [-1]}, "prompt: it must be a list of token ids"),
        ({"prompt": []}, "prompt: it must be there for an answer"),
        ({"kind": "text"}, "prompt: it must be empty for a text"),
        ({"kind": "other"}, "kind: 'other' is not allowed"),
        ({"other": 1}, "other: this field is unknown"),
        ({"seed": None}, "seed: None is not allowed"),
    ],
)
def test_a_broken_line_is_named(whole, tmp_path, changed, told):
    out = copied(whole, tmp_path / "o", 0, json.dumps(asdict(example()) | changed) + "\n")
    with pytest.raises(ValueError, match=rf"examples\.jsonl, line 1: {told}"):
        read_data(out, incomplete=True)


def test_lines_that_are_missing_or_double_are_told(whole, tmp_path):
    line = line_of(example()) + "\n"
    out = copied(whole, tmp_path / "o", 0, line + line)
    with pytest.raises(ValueError, match=r"line 2: id: 3 is that of line 1 too"):
        read_data(out, incomplete=True)
    (out / "examples.jsonl").write_text(line)
    (out / "data.json").write_bytes((whole / "data.json").read_bytes())
    with pytest.raises(ValueError, match=r"examples\.jsonl: 10 of 11 examples are missing"):
        read_data(out)
    (out / "examples.jsonl").write_text('{"id": 3}\n')
    with pytest.raises(ValueError, match="line 1: kind: it is missing"):
        read_data(out)
    (out / "examples.jsonl").write_text(line[:20])
    with pytest.raises(ValueError, match="line 1: it is not JSON"):
        read_data(out)


def test_an_empty_answer_is_told(whole, tmp_path):
    out = copied(whole, tmp_path / "o", 0, line_of(example(tokens=())) + "\n")
    found = read_data(out, incomplete=True)
    assert found.examples == []
    assert found.left_out == (f"{out / 'examples.jsonl'}, line 1: example 3 has no token to learn",)


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        (None, "there is no such file; draftproof train data makes it"),
        ("{", "it is not JSON"),
        ({}, "format None is not allowed"),
        (
            {"format": {"name": "draftproof train data", "version": 2}},
            "format version 2 is not allowed; 1 is read here",
        ),
        ({"format": {"name": "draftproof train data", "version": 1}}, "how many examples"),
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path, manifest, told):
    if manifest is not None:
        write(tmp_path / "data.json", manifest)
    with pytest.raises(ValueError, match=rf"data\.json: .*{told}"):
        read_data(tmp_path)


# fingerprints


def weights(folder: Path, name: str, **tensors: torch.Tensor) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / name, metadata={"format": name})
    return folder


def test_weights_are_the_same_however_they_lie_in_files(tmp_path):
    a, b = torch.arange(6.0).reshape(2, 3), torch.arange(4, dtype=torch.bfloat16)
    one = weights(tmp_path / "one", "model.safetensors", a=a, b=b)
    two = weights(weights(tmp_path / "two", "2.safetensors", a=a), "1.safetensors", b=b)
    assert fingerprint.weights_fingerprint(one) == fingerprint.weights_fingerprint(two)
    others = [{"a": a + 1, "b": b}, {"a": a.reshape(3, 2), "b": b}, {"a": a, "c": b}, {"a": a, "b": b.half()}, {"a": a}]
    others.append({"a": a.view(torch.int32), "b": b})
    found = {
        fingerprint.weights_fingerprint(weights(tmp_path / str(i), "m.safetensors", **x)) for i, x in enumerate(others)
    }
    assert len(found | {fingerprint.weights_fingerprint(one)}) == 1 + len(others)


def test_weights_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"it holds no weights as \.safetensors files"):
        fingerprint.weights_fingerprint(tmp_path)
    twice = weights(weights(tmp_path / "a", "1.safetensors", a=torch.zeros(1)), "2.safetensors", a=torch.zeros(1))
    with pytest.raises(ValueError, match=r"tensor a is in 1\.safetensors too"):
        fingerprint.weights_fingerprint(twice)
    file = weights(tmp_path / "b", "1.safetensors", a=torch.zeros(100)) / "1.safetensors"
    content = file.read_bytes()
    for broken, told in ((content[:-1], "it ends within a tensor"), (b"", "no safetensors"), (content[:20], "broken")):
        file.write_bytes(broken)
        with pytest.raises(ValueError, match=told):
            fingerprint.weights_fingerprint(file.parent)


def test_a_config_is_what_it_says_of_the_model(tmp_path):
    def of(**config):
        return fingerprint.config_fingerprint(write(tmp_path / "config.json", config).parent)

    assert of(hidden_size=4, transformers_version="5") == of(dtype="float32", hidden_size=4) != of(hidden_size=8)


def test_a_tokenizer_is_its_vocabulary_and_special_tokens_and_its_template_is_told_apart(tmp_path):
    folder, tokenizer = make_folder(tmp_path / "model"), byte_tokenizer()
    before = fingerprint.quick_fingerprint(folder, tokenizer)
    assert before == fingerprint.quick_fingerprint(folder, byte_tokenizer())
    tokenizer.chat_template = CHAT
    changed = fingerprint.quick_fingerprint(folder, tokenizer)
    assert [part for part in changed if changed[part] != before[part]] == ["template"]
    tokenizer.pad_token = "<eos>"
    others = [tokenizer, byte_tokenizer(reverse=True)]
    assert before["tokenizer"] not in [fingerprint.tokenizer_fingerprint(each) for each in others]
