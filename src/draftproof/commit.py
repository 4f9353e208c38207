"""The one commit function: what a round's tokens add to the text, cut token by token at the first reason to stop.

Token ids, text and finish reason are cut at the same index here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from .sampling import SamplingParams

Note = Callable[[int, np.ndarray, Callable[[], Any]], Any]
"""(token, the logits of the row it was drawn from, what makes the row's law) -> what is written down of the token."""

Judged = Callable[[int], tuple[np.ndarray, Callable[[], Any]]]
"""The row that token i of a verdict was drawn from: its logits, and what makes its law."""


@runtime_checkable
class Detokenizer(Protocol):
    """Turns a request's tokens into text, one at a time."""

    def add(self, token: int) -> str:
        """The text that `token` completes: "" while a character is still missing bytes."""
        ...

    def flush(self) -> str:
        """What is left at the end, without the remains of a broken character."""
        ...


@dataclass(slots=True)
class Output:
    """What one request has said so far. Only `commit` changes it.

    limit: most tokens it may emit (max_tokens, or less where the context ends). released: characters of `text` that are
    safe to show; the rest may yet turn out to be the beginning of a stop string. note, prompt_note: what is written
    down of each token of the answer and of the prompt (but its first), in `noted` and `prompt_noted`. ends_when: a
    caller's own reason to end, asked after each token with all so far.
    """

    params: SamplingParams
    limit: int
    end_ids: frozenset[int] = frozenset()  # the model's own end-of-sequence ids
    detokenizer: Detokenizer | None = None
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    ends: list[int] = field(default_factory=list)  # length of the text after each token, as it stood then
    released: int = 0
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: str | int | None = None
    note: Note | None = None
    noted: list[Any] = field(default_factory=list)
    prompt_note: Note | None = None
    prompt_noted: list[Any] = field(default_factory=list)
    ends_when: Callable[[Sequence[int]], bool] | None = None

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"limit: {self.limit} is not allowed; a request emits at least one token")

    @property
    def remaining(self) -> int:
        return self.limit - len(self.token_ids)

    @property
    def shown(self) -> str:
        """The text that may be streamed: it is never taken back."""
        return self.text[: self.released]


def commit(output: Output, tokens: Sequence[int], judged: Judged | None = None) -> tuple[int, ...]:
    """Append `tokens` until one ends the request (end of sequence, then stop string, then a caller's reason, then
    length); return those kept. judged: what the notes, if any, are made of.

    The ending token is kept among the ids. Text: an end-of-sequence or stop id adds none; a stop string and all that
    follows it is cut away. Of several stop strings completed by one token the earliest in the text wins.
    """
    kept: list[int] = []
    for i, token in enumerate(tokens):
        if output.finish_reason is not None:
            break
        if output.note is not None and judged is not None:
            output.noted.append(output.note(token, *judged(i)))
        kept.append(token)
        output.token_ids.append(token)
        _commit_one(output, token)
        output.ends.append(len(output.text))
    return tuple(kept)


def _commit_one(output: Output, token: int) -> None:
    params = output.params
    if token in output.end_ids or token in params.stop_token_ids:
        output.finish_reason = "stop"
        output.stop_reason = None if token in output.end_ids else token
    elif output.detokenizer is not None:
        searched = len(output.text)
        output.text += output.detokenizer.add(token)
        _cut_at_stop(output, searched)
    if output.finish_reason is None and output.ends_when is not None and output.ends_when(output.token_ids):
        output.finish_reason = "stop"
    if output.finish_reason is None and output.remaining == 0:
        output.finish_reason = "length"
    if output.finish_reason is None:
        output.released = len(output.text) - _withheld(output.text, params.stop)
        return
    if output.detokenizer is not None and output.stop_reason not in params.stop:
        searched = len(output.text)
        output.text += output.detokenizer.flush()
        _cut_at_stop(output, searched)
    output.released = len(output.text)


def _cut_at_stop(output: Output, searched: int) -> None:
    """End at the earliest stop string that reaches beyond the first `searched` characters, if there is one."""
    if len(output.token_ids) <= output.params.min_tokens:
        return  # one that ends in what follows counts, wherever it begins: vLLM's rule
    hits = []
    for stop in output.params.stop:
        at = output.text.find(stop, max(0, searched - len(stop) + 1))
        if at >= 0:
            hits.append((at, -len(stop), stop))
    if hits:
        at, _, stop = min(hits)
        output.text = output.text[:at]
        output.finish_reason = "stop"
        output.stop_reason = stop


def _withheld(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins a stop string."""
    longest = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest
