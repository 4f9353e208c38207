"""The data that a drafter is trained on, as a folder: written line by line, and read again.

data.json, the manifest, says what made the data: format, target (a name), fingerprint, dtype, recipe, sources, tasks
(a digest of them all), how many examples, whether it is complete, and in the end totals. examples.jsonl holds one
example a line, in the order in which they were finished: whatever stopped the work, the same recipe goes on with it.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from ..aside import whole
from ..jsonl import object_of
from .recipe import Recipe, Task, tasks_digest

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None

FORMAT, VERSION = "draftproof train data", 1
MANIFEST, EXAMPLES = "data.json", "examples.jsonl"
_REMEDY = "use another --out or remove the folder"
_COMPARED = ("format", "fingerprint", "dtype", "recipe", "sources", "tasks", "examples")


@dataclass(frozen=True, slots=True)
class Example:
    """prompt, tokens: ids. kind "answer": tokens are what the target said, with the end token if it came to one; kind
    "text": they are somebody's text, and the prompt is empty. finish: "stop", "length", or "text"."""

    id: int
    kind: str
    source: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    temperature: float
    seed: int
    finish: str


@dataclass(slots=True)
class Totals:
    """Of examples. answer_tokens: those that the target said; text_tokens: those of texts."""

    examples: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    text_tokens: int = 0

    def add(self, example: Example) -> None:
        self.examples += 1
        self.prompt_tokens += len(example.prompt)
        if example.kind == "text":
            self.text_tokens += len(example.tokens)
        else:
            self.answer_tokens += len(example.tokens)


@dataclass(frozen=True, slots=True)
class Data:
    """examples: by id. left_out: what of the folder is none, a line each with the reason."""

    manifest: dict[str, Any]
    examples: list[Example]
    left_out: tuple[str, ...]


# writing


def manifest_of(
    target: str,
    fingerprint: Mapping[str, str],
    dtype: str,
    recipe: Recipe,
    sources: Sequence[Mapping[str, Any]],
    tasks: Sequence[Task],
    version: str,
) -> dict[str, Any]:
    """What a folder says of itself from its first moment on. sources: option, name, bytes and sha256 of each file.
    version: draftproof's."""
    found = {
        "format": {"name": FORMAT, "version": VERSION},
        "draftproof": version,
        "target": target,
        "fingerprint": dict(fingerprint),
        "dtype": dtype,
        "recipe": asdict(recipe),
        "sources": [dict(source) for source in sources],
        "tasks": tasks_digest(tasks),
        "examples": len(tasks),
        "complete": False,
        "seconds": 0.0,
    }
    return json.loads(json.dumps(found))  # as it will be read


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """All or nothing: a reader never sees half of it."""
    with whole(folder / MANIFEST) as place:
        place.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def appending(folder: Path) -> Generator[IO[str]]:
    """examples.jsonl, to add lines to. ValueError: another process does so."""
    with (folder / EXAMPLES).open("a", encoding="utf-8", newline="\n") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"--out: {str(folder)!r} is being written by another process; wait for it") from None
        yield file


def line_of(example: Example) -> str:
    return json.dumps(asdict(example), ensure_ascii=False, separators=(",", ":"))


def resumed(folder: Path, manifest: Mapping[str, Any], tasks: Sequence[Task]) -> tuple[list[Example], float]:
    """What an earlier run finished of the same tasks, and its seconds; a torn last line is cut off. ValueError names
    what differs from `manifest`, or the line that is no such example."""
    file = folder / EXAMPLES
    if not (folder / MANIFEST).exists():
        if file.exists() and file.stat().st_size:
            raise ValueError(f"{file}: there is no {MANIFEST} beside it; {_REMEDY}")
        return [], 0.0
    was = read_manifest(folder)
    if differ := [f"{name} {old!r}, now it is {new!r}" for name, old, new in _differences(was, manifest)]:
        chosen = [each for each in differ if each.startswith("recipe ")] or differ[:1]  # of which the others follow
        raise ValueError(f"{folder / MANIFEST}: it was made with {', '.join(chosen)}; {_REMEDY}")
    _cut(file)
    examples = [example for _, example in _examples(file, len(tasks))] if file.exists() else []
    for example in examples:
        task = tasks[example.id]
        for name in ("kind", "source", "temperature", "seed"):
            old, new = getattr(example, name), getattr(task, name)
            if old != new:
                raise ValueError(f"{file}: example {example.id} has {name} {old!r}, it should be {new!r}; {_REMEDY}")
    return examples, float(was.get("seconds", 0.0))


def _differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in _COMPARED:
        old, new = was.get(name), now[name]
        if isinstance(old, dict) and isinstance(new, dict):
            keys = [key for key in new | old if old.get(key) != new.get(key)]
            yield from ((f"{name} {key}", old.get(key), new.get(key)) for key in keys)
        elif name == "sources" and old != new:
            yield name, _named(old), _named(new)
        elif old != new:
            yield name, old, new


def _named(sources: Any) -> list[str]:
    """Each with the beginning of its hash, as a file may have changed under its name."""
    return [f"{each['name']} ({each['sha256'][:8]})" for each in sources or ()]


def _cut(file: Path) -> None:
    """Take off a last line without an end: it was being written when the writer was stopped."""
    if file.exists():
        with file.open("rb+") as opened:
            content = opened.read()
            opened.truncate(content.rfind(b"\n") + 1)


# reading


def read_data(folder: Path, *, incomplete: bool = False) -> Data:
    """The examples of a folder, by id. incomplete: accept one that is still being made, as far as it is.

    ValueError names file and line. What could not be answered, or has no token to learn, is in `left_out`.
    """
    manifest = read_manifest(folder)
    if not manifest["complete"] and not incomplete:
        raise ValueError(f"{folder / MANIFEST}: it is not complete; the command that made it goes on with it")
    file = folder / EXAMPLES
    failed = manifest.get("failed", {})
    left_out = [f"{folder / MANIFEST}: example {name} failed: {error}" for name, error in failed.items()]
    examples = []
    for number, example in _examples(file, manifest["examples"], torn=incomplete):
        if len(example.tokens) < (2 if example.kind == "text" else 1):
            left_out.append(f"{file}, line {number}: example {example.id} has no token to learn")
        else:
            examples.append(example)
    missing = manifest["examples"] - len(examples) - len(left_out)
    if missing and not incomplete:
        raise ValueError(f"{file}: {missing} of {manifest['examples']} examples are missing; {_REMEDY}")
    return Data(manifest, sorted(examples, key=lambda example: example.id), tuple(left_out))


def read_manifest(folder: Path) -> dict[str, Any]:
    """ValueError: there is none, or it is not one that this version reads."""
    file = folder / MANIFEST
    try:
        found = object_of(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{file}: there is no such file; draftproof train data makes it") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    form = found.get("format")
    if not isinstance(form, dict) or form.get("name") != FORMAT:
        raise ValueError(f"{file}: format {form!r} is not allowed; it must be that of draftproof train data")
    if form.get("version") != VERSION:
        raise ValueError(f"{file}: format version {form.get('version')!r} is not allowed; {VERSION} is read here")
    if not isinstance(found.get("examples"), int) or not isinstance(found.get("complete"), bool):
        raise ValueError(f"{file}: it does not say how many examples there are, and whether it is complete")
    return found


def _examples(file: Path, count: int, *, torn: bool = False) -> Iterator[tuple[int, Example]]:
    """With their lines' numbers. torn: a last line without an end does not count."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise ValueError(f"{file}: there is no such file") from None
    if lines[-1] and torn:
        lines.pop()
    seen: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            example = _example(object_of(line))
            if not 0 <= example.id < count:
                raise ValueError(f"id: {example.id} is not allowed; it must be in 0 .. {count - 1}")
            if example.id in seen:
                raise ValueError(f"id: {example.id} is that of line {seen[example.id]} too; ids must differ")
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: {error}") from None
        seen[example.id] = number
        yield number, example


_NAMES = tuple(field.name for field in fields(Example))
_TYPES = {"id": int, "kind": str, "source": str, "temperature": float | int, "seed": int, "finish": str}


def _example(found: dict[str, Any]) -> Example:
    for name in _NAMES:
        if name not in found:
            raise ValueError(f"{name}: it is missing; an example has {', '.join(_NAMES)}")
    for name in found:
        if name not in _NAMES:
            raise ValueError(f"{name}: this field is unknown; known are {', '.join(_NAMES)}")
    for name, kind in _TYPES.items():
        if not isinstance(found[name], kind) or isinstance(found[name], bool):
            raise ValueError(f"{name}: {found[name]!r} is not allowed there")
    for name in ("prompt", "tokens"):
        ids = found[name]
        if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
            raise ValueError(f"{name}: it must be a list of token ids")
    if found["kind"] not in ("answer", "text"):
        raise ValueError(f"kind: {found['kind']!r} is not allowed; it must be answer or text")
    if bool(found["prompt"]) != (found["kind"] == "answer"):
        raise ValueError(f"prompt: it must be {'empty for a text' if found['prompt'] else 'there for an answer'}")
    given: dict[str, Any] = found | {"prompt": tuple(found["prompt"]), "tokens": tuple(found["tokens"])}
    return Example(**given)
