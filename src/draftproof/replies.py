"""What a request gives to its reader: pieces of text as rounds commit them, and the whole when it has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from .base import Step
from .logprobs import Entry
from .seats import Request
from .stats import Stats, together

Owner = Literal["draft", "target"]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one round added to the streamed text: pieces in order, each the drafter's (accepted) or the target's own."""

    pieces: tuple[tuple[str, Owner], ...]
    step: Step

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer (vLLM's CompletionOutput). index: which of `n`. logprobs: an entry a token, if they were asked for.
    config: what was in effect, whoever chose it. error: why it ended without an answer (finish_reason "error"); the
    text is what it had said by then."""

    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: str | int | None
    seed: int
    config: dict[str, Any] = field(repr=False)
    stats: Stats = field(repr=False)
    index: int = 0
    logprobs: list[Entry] | None = None
    error: str | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """Of the whole answer, if logprobs were asked for."""
        if self.logprobs is None:
            return None
        return sum(entry[token].logprob for token, entry in zip(self.token_ids, self.logprobs, strict=True))

    def as_dict(self) -> dict[str, Any]:
        found = {
            "index": self.index,
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "seed": self.seed,
            "config": self.config,
            "stats": self.stats.as_dict(),
        }
        if self.logprobs is not None:
            found["logprobs"] = _as_json(self.logprobs)
        return found if self.error is None else found | {"error": self.error}


def _as_json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Log 0 is null, and keys are text."""
    return [{str(token): each.as_dict() for token, each in entry.items()} for entry in entries]


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """All answers to a prompt, as vLLM has them. prompt: its text, if it was one. prompt_logprobs: None for its first
    token, then an entry each, if they were asked for."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[Entry | None] | None
    outputs: list[Completion]
    finished: bool = True

    @property
    def stats(self) -> Stats:
        """Of all its answers."""
        return self.outputs[0].stats if len(self.outputs) == 1 else together([each.stats for each in self.outputs])


@runtime_checkable
class Follower(Protocol):
    """Is told what becomes of a request, as it happens."""

    def round(self, step: Step) -> None: ...

    def end(self, stats: Stats, error: str | None) -> None:
        """The last it is told."""
        ...


class Reply:
    """Follows one request. seed: of its chance. config, index: as in `Completion`. learn: is told the answer's tokens
    when it has ended. follower: is told every round."""

    def __init__(
        self,
        request: Request,
        seed: int,
        config: dict[str, Any],
        stats: Stats,
        index: int = 0,
        learn: Callable[[Sequence[int]], None] = lambda tokens: None,
        follower: Follower | None = None,
    ) -> None:
        self.request, self.seed, self.config, self.stats, self.index = request, seed, config, stats, index
        self._learn, self._follower = learn, follower
        self._owners: list[Owner] = []  # whose each token is
        self._shown = 0  # characters given out
        self._token = 0  # whose text holds the next of them

    def add(self, step: Step) -> Delta:
        """A round of this request."""
        self.stats.add(step)
        if self._follower is not None:
            self._follower.round(step)
        if self.request.output.finish_reason is not None:
            self._learn(self.request.output.token_ids)
            self._end(None)
        self._owners += ["draft"] * step.accepted + ["target"] * (len(step.tokens) - step.accepted)
        return Delta(tuple(self._new_pieces()), step)

    def fail(self, error: Exception) -> None:
        """An error has ended it."""
        self._end(str(error))

    def _end(self, error: str | None) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.end(self.stats, error)

    def _new_pieces(self) -> Iterator[tuple[str, Owner]]:
        """The newly released text, cut where it changes hands between drafter and target."""
        output = self.request.output
        while self._shown < output.released:
            owner = self._owners[self._token]
            end = output.released
            for at in range(self._token, len(self._owners)):
                self._token = at
                if self._owners[at] != owner:
                    end = output.ends[at - 1]
                    break
                if output.ends[at] >= output.released:
                    break
            if end > self._shown:
                yield output.text[self._shown : end], owner
                self._shown = end

    @property
    def prompt_logprobs(self) -> list[Entry | None] | None:
        output = self.request.output
        return None if output.prompt_note is None else [None, *output.prompt_noted]

    def completion(self, error: Exception | None = None) -> Completion:
        output = self.request.output
        if error is not None:
            self.fail(error)
        if error is None and output.finish_reason is None:
            raise RuntimeError("result: the request was interrupted or failed before it ended; start it again")
        return Completion(
            output.shown if error is not None else output.text,
            list(output.token_ids),
            "error" if error is not None else str(output.finish_reason),
            output.stop_reason,
            self.seed,
            self.config,
            self.stats,
            self.index,
            None if output.note is None else list(output.noted),
            None if error is None else f"request {self.request.name}: {error}",
        )
