"""What a benchmark asks: a file of prompts, read whole and checked whole, or draftproof's own set."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..jsonl import object_of
from .runner import Question

_OWN_SET = Path(__file__).with_name("questions.jsonl")
_GZIP = b"\x1f\x8b"
_FIELDS = ("prompt", "id", "category")


def read_questions(source: str | Path | None, count: int | None = None) -> list[Question]:
    """The questions of a file, None being our own set; count: so many of them, spread evenly over it.

    A line is that of Spec-Bench or MT-bench (turns, of which the first is asked), of HumanEval (task_id, prompt), or
    {"prompt", "id", "category"}, of which only the prompt is needed. A text file holds a prompt a line. Either may be
    compressed by gzip.
    """
    if count is not None and count < 1:
        raise ValueError(f"--count: {count} is not allowed; it must be at least 1")
    where = "draftproof's own set" if source is None else str(source)
    path = _OWN_SET if source is None else Path(source)
    # not splitlines, which would also cut at characters that JSON allows within a string
    lines = [line.removesuffix("\r") for line in _text_of(path, where).split("\n")]
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ValueError(f"--prompts: {where} holds no prompt; give one a line")
    as_text = _holds_text(path, numbered[0][1])
    found: dict[str, tuple[int, Question]] = {}
    for number, line in numbered:
        try:
            question = _checked(number, line, "text") if as_text else _question(object_of(line), number)
            if question.id in found:
                raise ValueError(f"id: {question.id!r} is that of line {found[question.id][0]} too; ids must differ")
        except ValueError as error:
            raise ValueError(f"{where}, line {number}: {error}") from None
        found[question.id] = number, question
    questions = [question for _, question in found.values()]
    return questions if count is None else _spread(questions, count, where)


def fingerprint(questions: Sequence[Question]) -> str:
    """A hash of ids, categories and prompts, in order: the same for the same questions, wherever they were read."""
    fields = [[question.id, question.category, question.prompt] for question in questions]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def _spread(questions: list[Question], count: int, where: str) -> list[Question]:
    """Evenly over the whole, so that a file sorted by category gives some of each."""
    n = len(questions)
    if count > n:
        raise ValueError(f"--count: {count} is more than there are; {where} holds {n} prompts")
    return [questions[i * n // count] for i in range(count)]


def _text_of(path: Path, where: str) -> str:
    try:
        if path.is_dir():
            raise ValueError(f"--prompts: {where!r} is a folder; it must be a file")
        data = path.read_bytes()
        return (gzip.decompress(data) if data.startswith(_GZIP) else data).decode("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"--prompts: there is no file {where!r}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"--prompts: {where!r} is not UTF-8 text (line {line}); save it as UTF-8") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"--prompts: {where!r} cannot be unpacked: {error}; download it again") from None
    except OSError as error:
        raise ValueError(f"--prompts: {where!r} cannot be read: {error.strerror or error}") from None


def _holds_text(path: Path, first: str) -> bool:
    """By the name where it says; else it is JSON if it begins like an object."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith((".jsonl", ".ndjson", ".json")):
        return False
    return name.endswith(".txt") or not first.lstrip().startswith("{")


def _question(found: dict[str, Any], number: int) -> Question:
    if "messages" in found:
        raise ValueError("messages: conversations are not asked here; give each line one prompt")
    category = found.get("category", "all")
    if "turns" in found:
        return _checked(found.get("question_id", number), _first_turn(found["turns"]), category)
    if "prompt" not in found:
        raise ValueError("prompt: it is missing; every line needs a prompt, or turns")
    if "task_id" in found:
        return _checked(found["task_id"], found["prompt"], "coding")
    for name in found:
        if name not in _FIELDS:
            raise ValueError(f"{name}: this field is unknown; known are {', '.join(_FIELDS)}")
    return _checked(found.get("id", number), found["prompt"], category)


def _first_turn(turns: Any) -> Any:
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"turns: {turns!r} is not allowed; it must be a list of strings, not empty")
    return turns[0]


def _checked(name: Any, prompt: Any, category: Any) -> Question:
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"prompt: {prompt!r} is not allowed; it must be a string, not empty")
    if not isinstance(category, str) or not category.strip():
        raise ValueError(f"category: {category!r} is not allowed; it must be a string, not empty")
    if isinstance(name, bool) or not isinstance(name, str | int) or not str(name).strip():
        raise ValueError(f"id: {name!r} is not allowed; it must be a string, not empty, or a whole number")
    for field, value in (("id", str(name)), ("category", category), ("prompt", prompt)):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:  # JSON can spell halves of surrogate pairs, which no file can hold
            raise ValueError(f"{field}: {value!r} is not valid Unicode text") from None
    return Question(str(name), category, prompt)
