"""Telling a trace: a line at a time, while requests run."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np

from ..aside import growing
from ..base import Draft, Step, Verdict, Watch
from ..sampling import check_integer
from ..seats import Request
from ..stats import Stats
from .record import laws_of, round_record

VERSION = 2


class TraceWriter:
    """The lines of one trace; made by `writing`, given to `LLM.traced`. Threads may share it."""

    def __init__(self, file: IO[str], laws: int) -> None:
        self.laws = laws
        self._file, self._lock = file, Lock()
        self._model: str | None = None
        self._headed = False
        self._names: set[str] = set()
        self._spelled: set[int] = set()

    def labelled(self, tokenizer: Any, label: Mapping[str, Any] | None) -> Callable[..., Tracer]:
        """`follow` for requests of one tokenizer and one label."""
        try:
            told = {} if label is None else json.loads(_encode(dict(label)))
        except (TypeError, ValueError):
            raise ValueError(f"label: {label!r} is not allowed; it must be a dict that JSON can hold") from None
        return partial(self.follow, tokenizer=tokenizer, label=told)

    def follow(
        self,
        request: Request,
        seed: int,
        sample: int,
        config: Mapping[str, Any],
        load_seconds: float,
        *,
        tokenizer: Any,
        label: Mapping[str, Any],
    ) -> Tracer:
        """Who tells this trace of a request. Nothing is written before its first round."""
        self._require_open()
        if self._model not in (None, config["model"]):
            raise ValueError(f"trace: it is of {self._model!r}; {config['model']!r} needs a trace of its own")
        self._model = config["model"]
        begin = {
            "seed": seed,
            "sample": sample,
            "label": label,
            "prompt_token_ids": list(request.prompt),
            "load_seconds": load_seconds,
            "config": config,
        }
        return Tracer(self, request, begin, lambda token: _spelling(tokenizer, token))

    def begin(self, name: str, record: Mapping[str, Any]) -> str:
        """The request's own name in this file: that of an earlier one is given a number."""
        with self._lock:
            self._head(record["config"])
            own = next(each for each in _numbered(name) if each not in self._names)
            self._names.add(own)
            self._write({"event": "begin", "request": own, **record})
            return own

    def round(self, record: Mapping[str, Any], tokens: Sequence[int], spell: Callable[[int], str]) -> None:
        """With the texts of those of its tokens that no line has spelled yet."""
        with self._lock:
            texts = {str(token): spell(token) for token in tokens if token not in self._spelled}
            self._spelled.update(tokens)
            self._write({**record, "texts": texts})

    def end(self, record: Mapping[str, Any]) -> None:
        with self._lock:
            self._write(record)

    def complete(self) -> None:
        """The end, whether or not anything was told."""
        with self._lock:
            self._head({})

    def _head(self, config: Mapping[str, Any]) -> None:
        if not self._headed:
            self._headed = True
            about = {"model": config.get("model"), "dtype": config.get("dtype"), "laws": self.laws}
            self._write({"draftproof_trace": VERSION, "draftproof": version("draftproof"), **about})

    def _write(self, record: Mapping[str, Any]) -> None:
        self._require_open()
        self._file.write(_encode(record) + "\n")  # line-buffered: it is in the file when this returns

    def _require_open(self) -> None:
        if self._file.closed:
            raise ValueError("trace: its file is closed; a traced LLM is for within `with trace.writing(...)`")


class Tracer:
    """Tells a trace of one request: a `replies.Follower`. watch: shows it the laws, where they are asked for."""

    def __init__(
        self, writer: TraceWriter, request: Request, begin: Mapping[str, Any], spell: Callable[[int], str]
    ) -> None:
        self._writer, self._request, self._begin, self._spell = writer, request, begin, spell
        self._name: str | None = None
        self._rounds = self._tokens = 0
        self._shown = 0  # characters given out
        self._laws: dict[str, Any] | None = None
        self.watch: Watch | None = self._look if writer.laws else None

    def round(self, step: Step) -> None:
        record: dict[str, Any] = {"event": "round", "request": self._begun()}
        record |= round_record(self._rounds, step, self._request.chance)
        record["pieces"] = list(self._pieces(len(step.tokens)))
        tokens = [*step.draft.tokens, *step.verdict.tokens]
        if self._laws is not None:
            record["laws"] = self._laws
            laws = [self._laws["last"], *(law for test in self._laws["tests"] for law in test.values())]
            tokens += [token for law in laws if law is not None for token, _ in law["top"]]
        self._writer.round(record, tokens, self._spell)
        self._rounds += 1

    def end(self, stats: Stats, error: str | None) -> None:
        output = self._request.output
        record = {
            "event": "end",
            "request": self._begun(),
            "finish_reason": output.finish_reason if error is None else "error",
            "stop_reason": output.stop_reason,
            "error": error,
            "stats": stats.as_dict(),
        }
        self._writer.end(record)

    def _begun(self) -> str:
        if self._name is None:
            self._name = self._writer.begin(self._request.name, self._begin)
        return self._name

    def _look(self, draft: Draft, rows: Sequence[Any], verdict: Verdict) -> None:
        self._laws = laws_of(draft, rows, verdict, self._writer.laws)

    def _pieces(self, count: int) -> Iterator[str]:
        """The text of the next tokens. What may yet be the beginning of a stop string comes with a later one."""
        output = self._request.output
        for at in range(self._tokens, self._tokens + count):
            end = max(self._shown, min(output.ends[at], output.released))
            yield output.text[self._shown : end]
            self._shown = end
        self._tokens += count


@contextmanager
def writing(path: str | Path, laws: int = 0) -> Generator[TraceWriter]:
    """A trace to tell to: `llm.traced(writer)`. Every line is in PATH.part at once, which becomes PATH at the end.

    laws: tokens to tell of each law that decided something, the likeliest first; 0 tells none. It makes rounds slower.
    """
    check_integer("laws", laws, lambda n: n >= 0, ">= 0")
    with growing(Path(path)) as file:
        writer = TraceWriter(file, laws)
        yield writer
        writer.complete()


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name} ({number})"
        number += 1


def _spelling(tokenizer: Any, token: int) -> str:
    return tokenizer.decode([token], clean_up_tokenization_spaces=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is no plain data")


_encode = json.JSONEncoder(ensure_ascii=False, default=_plain).encode
