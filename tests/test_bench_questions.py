"""Prompt files of four shapes are read and checked whole; what is wrong with one is said with its line."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from draftproof.bench.questions import fingerprint, read_questions
from draftproof.bench.runner import Question


def written(folder: Path, *records: object, name: str = "prompts.jsonl") -> Path:
    """A file with a line for each record: JSON, or the text itself if it is one."""
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path = folder / name
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def complaint(source: str | Path | None, count: int | None = None) -> str:
    with pytest.raises(ValueError, match=r".+") as caught:
        read_questions(source, count)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# our own set


def test_our_own_set_holds_eight_prompts_of_each_of_six_categories():
    questions = read_questions(None)
    kinds = ("chat", "coding", "math", "translation", "summary", "context")
    assert Counter(question.category for question in questions) == dict.fromkeys(kinds, 8)
    assert len({question.prompt for question in questions}) == 48
    assert all(question.prompt == question.prompt.strip() for question in questions)


def test_summaries_and_contexts_come_with_their_text_and_the_others_are_short():
    for question in read_questions(None):
        words = len(question.prompt.split())
        assert 130 < words < 270 if question.category in ("summary", "context") else words < 130


@pytest.mark.parametrize("count", [6, 7, 12, 47, 48])
def test_some_of_our_own_set_are_of_every_category(count):
    questions = read_questions(None, count)
    assert len({question.id for question in questions}) == count
    assert len({question.category for question in questions}) == 6


# formats


def test_the_first_turn_of_spec_bench_is_asked(tmp_path):
    path = written(
        tmp_path,
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."], "reference": ["x"]},
        {"question_id": 161, "category": "rag", "turns": ["Read."]},
    )
    assert read_questions(path) == [Question("81", "writing", "Write."), Question("161", "rag", "Read.")]


def test_human_eval_is_read_as_it_is_distributed(tmp_path):
    record = {
        "task_id": "HumanEval/0",
        "prompt": "def f():\n",
        "entry_point": "f",
        "canonical_solution": "",
        "test": "",
    }
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(record).encode()))
    assert read_questions(path) == [Question("HumanEval/0", "coding", "def f():\n")]
    assert read_questions(written(tmp_path, record)) == read_questions(path)


def test_an_id_is_the_line_and_a_category_all_where_they_are_missing(tmp_path):
    path = written(tmp_path, {"prompt": "One"}, "", {"id": "b", "category": "c", "prompt": "Two"}, {"turns": ["Three"]})
    assert read_questions(str(path)) == [
        Question("1", "all", "One"),
        Question("b", "c", "Two"),
        Question("4", "all", "Three"),
    ]


def test_a_text_file_holds_a_prompt_a_line_whatever_it_begins_with(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeff{not JSON\r\n\r\n  \nÜber\u2028uns\n".encode())
    assert read_questions(path) == [Question("1", "text", "{not JSON"), Question("4", "text", "Über\u2028uns")]


def test_a_name_that_says_nothing_leaves_it_to_the_content(tmp_path):
    assert read_questions(written(tmp_path, {"prompt": "One"}, name="a"))[0].prompt == "One"
    assert read_questions(written(tmp_path, "One", name="b"))[0].category == "text"


# count


def test_a_count_takes_as_many_evenly_and_in_order(tmp_path):
    path = written(tmp_path, *({"prompt": str(i)} for i in range(10)))
    assert [question.prompt for question in read_questions(path, 4)] == ["0", "2", "5", "7"]
    assert read_questions(path, 10) == read_questions(path)


def test_more_than_there_are_and_less_than_one_are_refused(tmp_path):
    path = written(tmp_path, {"prompt": "One"}, {"prompt": "Two"})
    assert complaint(path, 3) == f"--count: 3 is more than there are; {path} holds 2 prompts"
    assert complaint(None, 49) == "--count: 49 is more than there are; draftproof's own set holds 48 prompts"
    for count in (0, -1):
        assert complaint(path, count) == f"--count: {count} is not allowed; it must be at least 1"


# what is wrong


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "it is not JSON: "),
        ("[" * 100_000, "it is not JSON: "),
        ("[1]", "it holds [1]; it must hold an object"),
        ({"id": "x"}, "prompt: it is missing; every line needs a prompt, or turns"),
        ({"task_id": "x"}, "prompt: it is missing"),
        ({"prompt": 5}, "prompt: 5 is not allowed; it must be a string, not empty"),
        ({"prompt": " \n"}, "prompt: ' \\n' is not allowed"),
        ({"turns": []}, "turns: [] is not allowed; it must be a list of strings, not empty"),
        ({"turns": "Hello"}, "turns: 'Hello' is not allowed"),
        ({"turns": [["Hello"]]}, "prompt: ['Hello'] is not allowed"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages: conversations are not asked here"),
        ({"prompt": "x", "temperature": 1}, "temperature: this field is unknown; known are prompt, id, category"),
        ({"prompt": "x", "category": None}, "category: None is not allowed; it must be a string, not empty"),
        ({"prompt": "x", "id": True}, "id: True is not allowed"),
        ({"prompt": "x", "id": 1.5}, "id: 1.5 is not allowed; it must be a string, not empty, or a whole number"),
        ({"prompt": "x", "id": ""}, "id: '' is not allowed"),
        ({"prompt": "\ud83d"}, "prompt: '\\ud83d' is not valid Unicode text"),
        ({"prompt": "x", "id": "\ud83d"}, "id: '\\ud83d' is not valid Unicode text"),
        ({"prompt": "x", "category": "\ud83d"}, "category: '\\ud83d' is not valid Unicode text"),
        ({"question_id": "a", "turns": ["x"]}, "id: 'a' is that of line 1 too; ids must differ"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, says):
    path = written(tmp_path, {"id": "a", "prompt": "fine"}, "", line)
    assert complaint(path).startswith(f"{path}, line 3: {says}")


def test_a_number_and_its_digits_are_the_same_id(tmp_path):
    path = written(tmp_path, {"question_id": 7, "turns": ["x"]}, {"id": "7", "prompt": "y"})
    assert complaint(path) == f"{path}, line 2: id: '7' is that of line 1 too; ids must differ"


def test_a_json_file_is_not_read_as_text(tmp_path):
    path = written(tmp_path, "[", {"prompt": "x"}, "]", name="prompts.json")
    assert complaint(path).startswith(f"{path}, line 1: it is not JSON")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    empty, latin, cut = tmp_path / "empty.txt", tmp_path / "latin.txt", tmp_path / "cut.jsonl.gz"
    empty.write_text("\n \n")
    latin.write_bytes(b"one\n\xfcber\n")
    cut.write_bytes(gzip.compress(b'{"prompt": "x"}' * 100)[:-9])
    assert complaint(empty) == f"--prompts: {empty} holds no prompt; give one a line"
    assert complaint(latin) == f"--prompts: '{latin}' is not UTF-8 text (line 2); save it as UTF-8"
    assert complaint(cut).startswith(f"--prompts: '{cut}' cannot be unpacked: ")
    assert complaint(tmp_path) == f"--prompts: '{tmp_path}' is a folder; it must be a file"
    assert complaint(tmp_path / "no.txt") == f"--prompts: there is no file '{tmp_path / 'no.txt'}'"
    assert complaint(empty / "no.txt").startswith(f"--prompts: '{empty / 'no.txt'}' cannot be read: ")


# fingerprint


def test_the_fingerprint_sees_every_field_and_the_order_and_nothing_else(tmp_path):
    first, second = Question("1", "all", "One"), Question("2", "all", "Two")
    seen = {
        fingerprint(questions)
        for questions in (
            [first, second],
            [second, first],
            [first],
            [replace(first, id="3"), second],
            [replace(first, category="text"), second],
            [replace(first, prompt="one"), second],
            [Question("1", "al", "lOne"), second],
        )
    }
    assert len(seen) == 7
    lines = written(tmp_path, {"turns": ["One"]}, {"prompt": "Two", "id": 2})
    assert fingerprint(read_questions(lines)) == fingerprint([first, second])
