"""Reading a trace: its requests, their rounds, and what they add up to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base import Step
from ..stats import Stats
from .record import step_of
from .writer import VERSION

_BEGIN = {"seed", "sample", "label", "prompt_token_ids", "load_seconds", "config"}
_ROUND = {"round", "root", "draft", "path", "verdict_tokens", "last", "tests", "rounding", "tokens", "seconds", "rows"}
_ROUND |= {"requests", "why", "pieces", "texts"}
_END = {"finish_reason", "stop_reason", "error", "stats"}
_HOLDS = {"begin": _BEGIN, "round": _ROUND, "end": _END}


@dataclass(slots=True)
class Traced:
    """A request of a trace: the lines it has there. end: None if the trace ended before it."""

    name: str
    begin: dict[str, Any]
    rounds: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return "".join(piece for record in self.rounds for piece in record["pieces"])


@dataclass(frozen=True, slots=True)
class Trace:
    """requests: in the order in which they began. texts: of the tokens that it names. cut: whether what stopped the
    run has cut the last line, which is left out."""

    header: dict[str, Any]
    requests: tuple[Traced, ...]
    texts: dict[int, str]
    cut: bool


def read(path: str | Path) -> Trace:
    """The trace in a file. A ValueError says in one line what it is instead, or which line is damaged."""
    lines = _bytes_of(Path(path)).split(b"\n")
    whole, rest = lines[:-1], lines[-1]  # after the last line's end there is nothing, or what was cut
    cut = bool(rest) and _parsed(rest) is None
    if rest and not cut:
        whole.append(rest)
    header = _header(path, whole)
    requests: dict[str, Traced] = {}
    texts: dict[int, str] = {}
    for number, line in enumerate(whole[1:], 2):
        record = _parsed(line)
        try:
            _take(record, requests, texts)
        except ValueError as error:
            raise ValueError(f"trace: {str(path)!r}, line {number}: {error}") from None
    return Trace(header, tuple(requests.values()), texts, cut)


def _bytes_of(path: Path) -> bytes:
    if path.is_dir():
        raise ValueError(f"trace: {str(path)!r} is a folder; it must be a file")
    if not path.exists():
        raise ValueError(f"trace: there is no file {str(path)!r}")
    found = path.read_bytes()
    if not found:
        raise ValueError(f"trace: {str(path)!r} is empty; a trace begins with a header")
    return found


def _header(path: str | Path, lines: Sequence[bytes]) -> dict[str, Any]:
    header = _parsed(lines[0]) if lines else None
    if header is None or "draftproof_trace" not in header:
        raise ValueError(f"trace: {str(path)!r} is no trace; it does not begin with a draftproof trace header")
    version = header["draftproof_trace"]
    if version != VERSION:
        raise ValueError(f"trace: {str(path)!r} is of version {version}; this draftproof reads version {VERSION}")
    return header


def _parsed(line: bytes) -> dict[str, Any] | None:
    """None for what is no JSON object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _take(record: dict[str, Any] | None, requests: dict[str, Traced], texts: dict[int, str]) -> None:
    """Put a line where it belongs."""
    if record is None:
        raise ValueError("it is damaged: it is no JSON object")
    event, name = record.get("event"), record.get("request")
    if event not in _HOLDS or not isinstance(name, str):
        raise ValueError(f"it is damaged: it holds event {event!r} of request {name!r}")
    missing = _HOLDS[event] - record.keys()
    if missing:
        raise ValueError(f"it is damaged: it has no {min(missing)}")
    if (event == "begin") == (name in requests):
        raise ValueError(f"request {name!r} has {'begun before' if event == 'begin' else 'not begun'}")
    if event == "begin":
        requests[name] = Traced(name, record)
    elif requests[name].end is not None:
        raise ValueError(f"request {name!r} has ended before")
    elif event == "end":
        requests[name].end = record
    else:
        if record["round"] != len(requests[name].rounds):
            raise ValueError(f"round {record['round']} of request {name!r} comes after {len(requests[name].rounds)}")
        requests[name].rounds.append(record)
        texts.update((int(token), text) for token, text in record["texts"].items())


def steps_of(request: Traced) -> list[Step]:
    return [step_of(record) for record in request.rounds]


def summed(request: Traced) -> Stats:
    """Its statistics, counted from its rounds as they were when they ran: `Stats.add` is told of each again."""
    stats = Stats()
    stats.seconds["load"] = request.begin["load_seconds"]
    for step in steps_of(request):
        stats.add(step)
    return stats


def origins_of(step: Step) -> list[str | None]:
    """Who drafted each token that the round added to the text; None for the target's own."""
    drafted = [step.draft.origin[node] for node in step.verdict.path[: step.accepted]]
    return [*drafted, *[None] * (len(step.tokens) - step.accepted)]
