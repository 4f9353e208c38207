"""A file of prompts: read whole and checked whole, before a model is loaded."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..jsonl import object_of

_OWN = ("prompt", "messages", "id", "system")
_NOT_HERE = {
    "n": "one answer is written for a line; repeat the line with other seeds",
    "logits_processors": "a file holds none",
    "prompt_logprobs": "they are not written",
}


@dataclass(frozen=True, slots=True)
class Item:
    """A prompt of the file, or a conversation. sampling: what is asked for, by the command line or, before that, by its
    own line."""

    id: str | int
    prompt: str | list[Any]
    system: str | None
    sampling: dict[str, Any]

    @property
    def kind(self) -> str:
        """What its prompt is called in files."""
        return "prompt" if isinstance(self.prompt, str) else "messages"

    @property
    def name(self) -> str:
        """Unique among the file's."""
        return str(self.id)

    def head(self) -> dict[str, Any]:
        """What its line of the output begins with."""
        found: dict[str, Any] = {"id": self.id, self.kind: self.prompt}
        return found if self.system is None else found | {"system": self.system}


def read_items(source: str, sampling: dict[str, Any], system: str | None, raw: bool) -> list[Item]:
    """The prompts of a file, or of standard input ("-"). The rest is what holds for lines that do not say."""
    where = "standard input" if source == "-" else source
    text = _text_of(source)
    # not splitlines, which would also cut at characters that JSON allows within a string
    lines = [(number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ValueError(f"--prompts: {where} holds no prompt; give one a line")
    as_json = lines[0][1].lstrip().startswith("{") if source == "-" else _named_json(source)
    items: dict[str, tuple[int, Item]] = {}
    for number, line in lines:
        try:
            item = _item(object_of(line) if as_json else {"prompt": line}, number, sampling, system)
            if item.name in items:
                raise ValueError(f"id: {item.id!r} is that of line {items[item.name][0]} too; ids must differ")
            if raw and item.system is not None:
                raise ValueError(f"system: {item.system!r} cannot be used with --raw; leave one of them out")
            if raw and item.kind == "messages":
                raise ValueError("messages: they cannot be used with --raw; give a prompt, or leave --raw out")
        except ValueError as error:
            raise ValueError(f"{where}, line {number}: {error}") from None
        items[item.name] = number, item
    return [item for _, item in items.values()]


def _named_json(source: str) -> bool:
    return Path(source).suffix.lower() in (".jsonl", ".ndjson")


def _text_of(source: str) -> str:
    try:
        if source == "-":
            return sys.stdin.read().removeprefix("\ufeff")
        path = Path(source)
        if path.is_dir():
            raise ValueError(f"--prompts: {source!r} is a folder; it must be a file")
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"--prompts: there is no file {source!r}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"--prompts: {source!r} is not UTF-8 text (line {line}); save it as UTF-8") from None


def _item(found: dict[str, Any], number: int, sampling: dict[str, Any], system: str | None) -> Item:
    from ..inputs import is_conversation
    from ..sampling import SamplingParams

    for name, why in _NOT_HERE.items():
        if name in found:
            raise ValueError(f"{name}: {found[name]!r} cannot be used in a file; {why}")
    own = [field.name for field in fields(SamplingParams) if field.name not in _NOT_HERE]
    for name in found:
        if name not in _OWN and name not in own:
            raise ValueError(f"{name}: this field is unknown; known are {', '.join((*_OWN, *own))}")
    if ("prompt" in found) == ("messages" in found):
        both = "both are given" if "prompt" in found else "it is missing"
        raise ValueError(f"prompt: {both}; every line needs a prompt or messages")
    name = found.get("id", number)
    if "prompt" in found:
        prompt, system = found["prompt"], found.get("system", system)
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError(f"prompt: {prompt!r} is not allowed; it must be a string, not empty")
    else:
        prompt, system = found["messages"], found.get("system")
        if not is_conversation(prompt):
            raise ValueError(f"messages: {prompt!r} is not allowed; it must be a list of objects with role and content")
        if system is not None:
            raise ValueError(f"system: {system!r} cannot be used with messages; make it the first of them")
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise ValueError(f"id: {name!r} is not allowed; it must be a string or a whole number")
    if not isinstance(system, str | None):
        raise ValueError(f"system: {system!r} is not allowed; it must be a string")
    asked = sampling | {name: value for name, value in found.items() if name in own}
    SamplingParams(**asked)
    _require_unicode({"prompt": prompt, "id": name, "system": system, "stop": asked.get("stop")})
    return Item(name, prompt, system, asked)


def _require_unicode(values: dict[str, Any]) -> None:
    """JSON can spell halves of surrogate pairs, which no file can hold."""
    for name, value in values.items():
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{name}: {value!r} is not valid Unicode text") from None
