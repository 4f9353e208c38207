"""What to generate to train a drafter on: a recipe, and the list of tasks that it stands for.

The list is a function of the recipe and of the sources' text alone. All kinds of source are spread evenly over it, so
that every prefix is a mix of them, and a shorter list is a prefix of the longer one, with the same seeds.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal

from ..inputs import is_conversation, require_unicode
from ..jsonl import object_of
from ..sampling import check_integer, check_number
from .passages import passages_of

Kind = Literal["answer", "text"]
"""What the labels are: the model's own answer to a prompt, or every token of a text that somebody wrote."""

Prompt = str | Sequence[Mapping[str, Any]]
"""A question, or a conversation that waits for its next answer."""

_WORDS = 60, 250  # of a passage that an instruction is about

INSTRUCTIONS = (
    "Summarise the following text in two or three sentences.\n\n{}",
    "Continue the following text.\n\n{}",
    "What is the following text about?\n\n{}",
    "List the key facts of this text as bullet points.\n\n{}",
    "{}\n\nWrite three questions about the text above, each with its answer.",
    "Explain the following text so that a child understands it.\n\n{}",
    "Translate the following text into German.\n\n{}",
    "Translate the following text into French.\n\n{}",
    "Translate the following text into Spanish.\n\n{}",
    "Rewrite the following text in simple words.\n\n{}",
    "Use only the passage below to answer: who or what is it mainly about, and what happens?\n\nPassage: {}",
    "{}\n\nGive the text above a title, and say in one sentence why it fits.",
    "I am reading this and would like to know more. What else should I know?\n\n{}",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """temperatures: the answers', in turn; 0 once a prompt, as it says the same again. samples: answers a prompt of the
    prompt files. max_tokens: of an answer; a text has at most twice as many. passages: of the text files, at most
    (None: all there are). instructions: that are made of each passage, with an answer each. teacher_forced: texts
    whose own tokens are the labels. limit: most examples (None: all)."""

    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0, 1.0)
    samples: int = 4
    max_tokens: int = 256
    passages: int | None = None
    instructions: int = 1
    teacher_forced: int = 0
    seed: int = 0
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.temperatures:
            raise ValueError("temperatures: there are none; give at least one")
        for temperature in self.temperatures:
            check_number("temperatures", temperature, lambda t: math.isfinite(t) and t >= 0, ">= 0 (0 is greedy)")
        check_integer("samples", self.samples, lambda n: 1 <= n <= 10_000, "in 1 .. 10000")
        if self.samples > 1 and not any(self.temperatures):
            raise ValueError(
                f"samples: {self.samples} is not allowed with temperature 0 alone, which says the same each time; "
                "use 1, or add a temperature"
            )
        check_integer("max_tokens", self.max_tokens, lambda n: n >= 1, ">= 1")
        most = len(INSTRUCTIONS)
        check_integer("instructions", self.instructions, lambda n: 1 <= n <= most, f"in 1 .. {most}")
        check_integer("teacher_forced", self.teacher_forced, lambda n: n >= 0, ">= 0")
        check_integer("seed", self.seed, lambda seed: 0 <= seed < 2**64, "in 0 .. 2**64 - 1")
        if self.passages is not None:
            check_integer("passages", self.passages, lambda n: n >= 0, ">= 0")
        if self.limit is not None:
            check_integer("limit", self.limit, lambda n: n >= 1, ">= 1")


@dataclass(frozen=True, slots=True)
class Task:
    """One example to be made. source: the file's name. prompt: of kind "text", the text itself."""

    id: int
    kind: Kind
    source: str
    prompt: Prompt
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class _Draft:
    """A task that has no place yet."""

    kind: Kind
    source: str
    prompt: Prompt
    temperature: float = 0.0


def tasks_of(
    recipe: Recipe, prompts: Sequence[tuple[str, Prompt]], texts: Sequence[tuple[str, str]] = ()
) -> list[Task]:
    """prompts: (source, prompt) each. texts: (source, all the text of a file) each."""
    drafts = [_of_prompts(recipe, prompts), _of_passages(recipe, texts), _of_texts(recipe, texts)]
    return [
        Task(i, each.kind, each.source, each.prompt, each.temperature, example_seed(recipe.seed, i))
        for i, each in enumerate(islice(_interleaved(drafts), recipe.limit))
    ]


def tasks_digest(tasks: Sequence[Task]) -> str:
    """sha256 of all of them: it changes with the recipe, the sources, and with how this module reads them."""
    found = hashlib.sha256()
    for task in tasks:
        found.update(json.dumps([task.id, task.kind, task.source, task.prompt, task.temperature, task.seed]).encode())
    return found.hexdigest()


def example_seed(seed: int, index: int) -> int:
    """The seed of one example, 48 bits: the same on every machine and in every version of Python.

    >>> example_seed(0, 0) == example_seed(0, 0) != example_seed(0, 1)
    True
    """
    return int.from_bytes(_digest(seed, "example", index)[:6], "big")


def _of_prompts(recipe: Recipe, prompts: Sequence[tuple[str, Prompt]]) -> list[_Draft]:
    """Round by round: every prompt once before any comes again."""
    drafts = []
    order = _shuffled(range(len(prompts)), recipe.seed, "prompts")
    temperatures = [list(islice(_temperatures(recipe.temperatures, at), recipe.samples)) for at in range(len(order))]
    for sample in range(recipe.samples):
        for at in _shuffled(range(len(order)), recipe.seed, f"round {sample}"):
            drafts.append(_Draft("answer", *prompts[order[at]], temperatures[at][sample]))
    return drafts


def _of_passages(recipe: Recipe, texts: Sequence[tuple[str, str]]) -> list[_Draft]:
    found = [(source, passage) for source, text in texts for passage in passages_of(text, *_WORDS)]
    chosen = _shuffled(found, recipe.seed, "passages")[: recipe.passages]
    drafts = []
    for turn in range(recipe.instructions):
        for at, (source, passage) in enumerate(chosen):
            which, rounds = (at + turn) % len(INSTRUCTIONS), at // len(INSTRUCTIONS) + turn
            # the round too, or an instruction might meet the same temperature for ever
            temperature = next(_temperatures(recipe.temperatures, which + rounds))
            drafts.append(_Draft("answer", source, INSTRUCTIONS[which].format(passage), temperature))
    return drafts


def _of_texts(recipe: Recipe, texts: Sequence[tuple[str, str]]) -> list[_Draft]:
    if not recipe.teacher_forced:
        return []
    most = max(recipe.max_tokens * 3 // 2, 2)  # in words; tokens are cut where they are made
    found = [(source, passage) for source, text in texts for passage in passages_of(text, most // 2, most)]
    chosen = _shuffled(found, recipe.seed, "texts")[: recipe.teacher_forced]
    return [_Draft("text", source, passage) for source, passage in chosen]


def _temperatures(given: Sequence[float], start: int) -> Iterator[float]:
    """For the samples of a prompt, from the start-th on: greedy once, as it would say the same again."""
    greedy = False
    for temperature in islice(cycle(given), start % len(given), None):
        if temperature > 0 or not greedy:
            yield temperature
        greedy = greedy or temperature == 0


def _interleaved(sources: Sequence[Sequence[_Draft]]) -> Iterator[_Draft]:
    """Each source in its own order, all at the pace of their lengths."""
    places = [((at + 0.5) / len(each), number, at) for number, each in enumerate(sources) for at in range(len(each))]
    for _, number, at in sorted(places):
        yield sources[number][at]


def _shuffled(items: Sequence[Any], seed: int, what: str) -> list[Any]:
    """By a stable hash of the place: libraries' shuffles may change."""
    order = sorted(range(len(items)), key=lambda at: _digest(seed, what, at))
    return [items[at] for at in order]


def _digest(seed: int, what: str, index: int) -> bytes:
    return hashlib.sha256(f"draftproof train\n{seed}\n{what}\n{index}".encode()).digest()


# reading


def prompts_of(path: Path) -> list[tuple[str, Prompt]]:
    """(source, prompt) a line of a JSON Lines file: instruction (and input), prompt, turns (the first is asked) or
    messages (an answer that ends them is left out: the target gives its own). ValueError names file and line."""
    found: list[tuple[str, Prompt]] = []
    for number, line in enumerate(_read("--prompts", path).split("\n"), 1):
        if line.strip():
            try:
                found.append((path.name, _prompt(object_of(line))))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if not found:
        raise ValueError(f"--prompts: {str(path)!r} holds no prompt; give one a line")
    return found


def text_of(path: Path) -> tuple[str, str]:
    """(source, text) of a plain text file that has something to say."""
    text = _read("--text", path)
    if not passages_of(text, *_WORDS):
        raise ValueError(f"--text: {str(path)!r} has no passage of {_WORDS[0]} words; give a longer text")
    return path.name, text


def _read(option: str, path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{option}: there is no file {str(path)!r}") from None
    except IsADirectoryError:
        raise ValueError(f"{option}: {str(path)!r} is a folder; it must be a file") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"{option}: {str(path)!r} is not UTF-8 text (line {line}); save it as UTF-8") from None


def _prompt(line: dict[str, Any]) -> Prompt:
    given = [name for name in ("instruction", "prompt", "turns", "messages") if name in line]
    if len(given) != 1:
        told = f"{' and '.join(given)} are both given" if given else "it is missing"
        raise ValueError(f"prompt: {told}; every line needs one of instruction, prompt, turns, messages")
    [name] = given
    if name == "messages":
        return _asked(line["messages"])
    if name == "turns":
        turns = line["turns"]
        if not isinstance(turns, list) or not turns:
            raise ValueError(f"turns: {turns!r} is not allowed; it must be a list of strings, not empty")
        return _text(name, turns[0])
    asked = _text(name, line[name])
    about = line.get("input") if name == "instruction" else None
    return asked if about in (None, "") or not str(about).strip() else f"{asked}\n\n{_text('input', about)}"


def _text(name: str, given: Any) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ValueError(f"{name}: {given!r} is not allowed; it must be a string, not empty")
    require_unicode(name, given)
    return given


def _asked(messages: Any) -> Prompt:
    if not is_conversation(messages):
        raise ValueError(f"messages: {messages!r} is not allowed; it must be a list of objects with role and content")
    for i, each in enumerate(messages):
        if not isinstance(each, Mapping) or not isinstance(each.get("role"), str):
            raise ValueError(f"messages[{i}]: {each!r} is not allowed; it must be an object with role and content")
        _text(f"messages[{i}]: content", each.get("content"))
    asked = messages[:-1] if messages[-1]["role"] == "assistant" else messages
    if not asked:
        raise ValueError("messages: they hold an answer alone; give what it answers")
    return asked
