"""Reading a trace: its requests, their rounds, and what they add up to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base import Step
from ..stats import Stats
from ..trees import require_path
from .fields import FIELDS, HEADER, LAWS, require
from .record import step_of
from .writer import VERSION


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
    if type(version) is not int or version != VERSION:
        raise ValueError(f"trace: {str(path)!r} is of version {version!r}; this draftproof reads version {VERSION}")
    try:
        require(header, HEADER)
    except ValueError as error:
        raise ValueError(f"trace: {str(path)!r}, line 1: {error}") from None
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
    if not (isinstance(event, str) and event in FIELDS and isinstance(name, str)):
        raise ValueError(f"it is damaged: it holds event {event!r} of request {name!r}")
    require(record, FIELDS[event])
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
        _require_sound(record)
        requests[name].rounds.append(record)
        texts.update((int(token), text) for token, text in record["texts"].items())


def _require_sound(record: Mapping[str, Any]) -> None:
    """A round whose fields are of their sorts must be one, too: `step_of` takes it, and what it tells twice agrees."""
    step = step_of(record)
    require_path(step.draft.parents, step.verdict.path)
    nodes = [test.node for test in step.verdict.tests]
    if not all(node < len(step.draft) for node in nodes):
        raise ValueError(f"it is damaged: tests ask about nodes {nodes} of {len(step.draft)}")
    if step.tokens != step.verdict.tokens[: len(step.tokens)]:
        raise ValueError("it is damaged: tokens are not what verdict_tokens begin with")
    if (step.accepted, step.bonus) != (record["accepted"], record["bonus"]):
        raise ValueError(f"it is damaged: accepted and bonus must be {step.accepted} and {step.bonus}")
    if len(record["pieces"]) != len(step.tokens):
        raise ValueError(f"it is damaged: it has {len(record['pieces'])} pieces for {len(step.tokens)} tokens")
    if "laws" in record:
        require(record, LAWS)
        if len(record["laws"]["tests"]) != len(nodes):
            raise ValueError(f"it is damaged: laws.tests has {len(record['laws']['tests'])} for {len(nodes)} tests")


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
