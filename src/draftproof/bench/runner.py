"""What a benchmark asks, and what whoever answers gives back: ours in this process, a peer in its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Setting:
    """What all systems of a comparison share. temperature 0 is greedy. batch: prompts answered at once."""

    temperature: float = 0.0
    batch: int = 1
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        """
        >>> Setting(0.0).name, Setting(1.0, batch=8, dtype="float32").name
        ('T=0', 'T=1 batch 8 float32')
        """
        batch = f" batch {self.batch}" if self.batch > 1 else ""
        return f"T={self.temperature:g}{batch}{'' if self.dtype == 'bfloat16' else f' {self.dtype}'}"


@dataclass(frozen=True, slots=True)
class Ask:
    """Prompts to be answered together, as tokens, each with its seed. Nothing but the temperature shapes the law: no
    top-k, no penalties. An answer ends at one of end_ids, which is kept, or with max_tokens; its tokens are below
    vocab_size. about: what each is asked for, for traces."""

    prompts: tuple[tuple[int, ...], ...]
    seeds: tuple[int, ...]
    temperature: float
    max_tokens: int
    end_ids: tuple[int, ...]
    vocab_size: int
    about: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """To one prompt. arrivals: (seconds since the whole was asked, how many tokens came then), in order; they add up
    to the tokens. stats: `Stats.as_dict` of who counts."""

    token_ids: tuple[int, ...]
    arrivals: tuple[tuple[float, int], ...]
    stats: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Answers:
    """To all prompts of an `Ask`, in order. seconds: from the first token in to the last out, reading the prompts
    included. peak_bytes: most memory of the process meanwhile; None where the system does not say."""

    seconds: float
    answers: tuple[Answer, ...]
    peak_bytes: int | None = None


@runtime_checkable
class Runner(Protocol):
    """A system under measurement: one way to answer, under one name."""

    @property
    def name(self) -> str: ...

    def cannot(self, setting: Setting) -> str | None:
        """Why it takes no part in a setting, in a word for people; None if it does."""
        ...

    def answer(self, ask: Ask) -> Answers:
        """RunnerError if it crashed, hangs, or answered nonsense: it is out, and the others go on."""
        ...

    def describe(self) -> dict[str, Any]:
        """Its options and versions, for the file."""
        ...


class RunnerError(RuntimeError):
    """One line: who failed, and how."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt of a prompt file. id is unique in it."""

    id: str
    category: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """A group of questions answered once. setting, questions: indices into the run's."""

    setting: int
    questions: tuple[int, ...]
    system: str
    repeat: int
    answers: Answers


def checked(ask: Ask, answers: Answers, name: str) -> Answers:
    """The answers, if they can be: of the right number, not too long, ended where they may."""
    if len(answers.answers) != len(ask.prompts):
        raise RunnerError(f"{name}: {len(answers.answers)} answers to {len(ask.prompts)} prompts")
    for i, answer in enumerate(answers.answers):
        ids = answer.token_ids
        if not 1 <= len(ids) <= ask.max_tokens:
            raise RunnerError(f"{name}: answer {i} has {len(ids)} tokens; 1 to {ask.max_tokens} were asked for")
        if len(ids) < ask.max_tokens and ids[-1] not in ask.end_ids:
            raise RunnerError(f"{name}: answer {i} stops after {len(ids)} tokens without an end-of-sequence token")
        if any(token in ask.end_ids for token in ids[:-1]):
            raise RunnerError(f"{name}: answer {i} goes on after an end-of-sequence token")
        if not all(0 <= token < ask.vocab_size for token in ids):
            raise RunnerError(f"{name}: answer {i} has a token that is none of {ask.vocab_size}")
        if sum(count for _, count in answer.arrivals) != len(ids):
            raise RunnerError(f"{name}: answer {i} has {len(ids)} tokens, of which {answer.arrivals} tells otherwise")
    return answers


def groups(questions: Sequence[Mapping[str, Any]], batch: int) -> list[tuple[int, ...]]:
    """The questions of a run in groups that are answered together; the last may be smaller. Those of a category go
    together, and of these those of like length, so that who pads a batch pads little.

    >>> asked = [{"category": "b", "prompt_tokens": 9}, {"category": "a", "prompt_tokens": 2}]
    >>> asked += [{"category": "b", "prompt_tokens": 3}, {"category": "b", "prompt_tokens": 8}]
    >>> groups(asked, 2), groups(asked, 1)
    ([(2, 3), (0, 1)], [(0,), (1,), (2,), (3,)])
    """
    first: dict[str, int] = {}
    for at, question in enumerate(questions):
        first.setdefault(question["category"], at)

    def place(at: int) -> tuple[int, int]:
        return first[questions[at]["category"]], questions[at]["prompt_tokens"]

    order = sorted(range(len(questions)), key=place) if batch > 1 else range(len(questions))
    return [tuple(order[at : at + batch]) for at in range(0, len(questions), batch)]


def seeds_of(seed: int, questions: Sequence[int]) -> tuple[int, ...]:
    """A seed for each question: the same in every setting, system and repeat."""
    return tuple(seed + question for question in questions)
