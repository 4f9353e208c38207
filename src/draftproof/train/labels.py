"""What of a text is to be predicted: of an example that `train data` made, and of a conversation of others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..inputs import Message, chat_tokens, is_conversation
from ..jsonl import object_of
from .corpus import Example


class Labelled(NamedTuple):
    """Tokens, and for each whether it is to be predicted from those before it."""

    tokens: tuple[int, ...]
    labels: tuple[bool, ...]


def mask_of(example: Example) -> tuple[bool, ...]:
    """For each token of prompt + tokens whether it is a label: an answer's tokens, or all of a text but its first.
    ValueError if none is."""
    first = len(example.prompt) or 1
    count = len(example.prompt) + len(example.tokens)
    if count <= first and not (example.prompt and example.tokens):
        raise ValueError(f"example {example.id}: it has no label; there is no token to learn")
    return (False,) * first + (True,) * (count - first)


def labels_from_messages(messages: Sequence[Message], tokenizer: Any) -> Labelled:
    """A conversation through the chat template: the labels are what the assistant says, in each of its turns, with the
    end token where the template writes one (what it writes after that is nobody's).

    Each turn is found by rendering the conversation up to it, ready for an answer, and with it. ValueError: nothing
    is said by the assistant, or a beginning is rendered otherwise when the conversation goes on.
    """
    tokens = chat_tokens(messages, tokenizer, add_generation_prompt=False)
    labels = [False] * len(tokens)
    for at, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if not at:
            raise ValueError("messages[0]: it is the assistant's; give what it answers before it")
        head = chat_tokens(messages[:at], tokenizer)
        turn = chat_tokens(messages[: at + 1], tokenizer, add_generation_prompt=False)
        if turn[: len(head)] != head or tokens[: len(turn)] != turn:
            raise ValueError(
                f"messages[{at}]: the chat template renders what is before it, or with it, otherwise when the "
                "conversation goes on, so its tokens cannot be told; give prompts to draftproof train data instead"
            )
        said = _until_end(turn[len(head) :], tokenizer.eos_token_id)
        labels[len(head) : len(head) + said] = [True] * said
    if not any(labels):
        raise ValueError("messages: no token of an assistant is in what the chat template makes of them")
    return Labelled(tuple(tokens), tuple(labels))


def _until_end(turn: Sequence[int], end: int | None) -> int:
    """How many tokens of a turn there are up to its end token; all, if it has none."""
    return len(turn) - turn[::-1].index(end) if end in turn else len(turn)


def conversations_of(path: Path, tokenizer: Any) -> list[Labelled]:
    """A JSON Lines file of {"messages": [...]}, as training data. ValueError names file and line."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            messages: Any = object_of(line).get("messages")
            if not is_conversation(messages):
                raise ValueError(f"messages: {messages!r} is not allowed; it must be a list of messages, not empty")
            found.append(labels_from_messages(messages, tokenizer))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not found:
        raise ValueError(f"{path}: it holds no conversation; give one a line")
    return found
