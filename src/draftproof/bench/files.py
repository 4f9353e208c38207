"""Run files: one JSON object when a run is complete, and before that, a line for every group of questions.

OUT.part begins with the head of the run and grows by a line at a time, so that whatever stops a run, the groups that
were finished count. OUT is written aside and renamed when all is there; then OUT.part goes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

from ..aside import part_of, whole
from .record import Bound, Depth, Divergence, Dropped, ForwardCosts, Run
from .runner import Answer, Answers, Measurement, Setting

try:
    import fcntl
except ImportError:  # Windows: two runs of one --output are not kept apart
    fcntl = None

VERSION = 1
_MARK = "draftproof_bench"
_REMEDY = "use another --output or remove the file"
_HEAD = ("asked", "settings", "questions", "systems")
_MAY_DIFFER = ("date", "command", "memory", "models")  # models: their hashes are among what was asked


# reading


def read_run(path: Path) -> Run:
    """A complete run, or what there is of one (OUT.part). ValueError, a line, for anything else."""
    records, _ = _records(path)
    run = _guarded(path, 1, lambda: _run_of(records[0]))
    for number, record in enumerate(records[1:], 2):
        _guarded(path, number, lambda record=record: extend(run, record))
    return run


def _records(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The objects of a run file's lines, and how many bytes of it are whole lines."""
    data = _bytes(path)
    try:
        once = json.loads(data)
    except ValueError:
        once = None  # a record a line
    if isinstance(once, dict):
        _require_mark(path, once)
        return [once], len(data)
    found: list[dict[str, Any]] = []
    lines, at, whole = data.split(b"\n"), 0, 0
    for number, line in enumerate(lines, 1):
        at += len(line)
        if line.strip():
            try:
                record = json.loads(line.decode("utf-8"))
            except ValueError as error:
                if found and not any(each.strip() for each in lines[number:]):
                    break  # what stopped the run has cut it
                raise ValueError(
                    f"{path}, line {number}: it is not JSON ({error}); it is damaged or no run file"
                ) from None
            if not isinstance(record, dict):
                raise ValueError(f"{path}, line {number}: it holds no object; it is damaged or no run file")
            found.append(record)
            whole = at
        at += 1
    if not found:
        raise ValueError(f"{path}: it is empty; {_REMEDY}")
    _require_mark(path, found[0])
    return found, whole


def _bytes(path: Path) -> bytes:
    if path.is_dir():
        raise ValueError(f"{path}: it is a folder; give a run file")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; give a run file") from None


def _require_mark(path: Path, record: Mapping[str, Any]) -> None:
    if record.get(_MARK) != VERSION:
        said = f"it has version {record[_MARK]!r}" if _MARK in record else "it does not say that it is one"
        raise ValueError(f"{path}: no run file of version {VERSION}: {said}; {_REMEDY}")


def _guarded(path: Path, number: int, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path}, line {number}: it is damaged: {what}; {_REMEDY}") from None


def _run_of(record: Mapping[str, Any]) -> Run:
    run = Run(
        record["provenance"],
        record["asked"],
        list(record["systems"]),
        [Setting(**each) for each in record["settings"]],
        list(record["questions"]),
    )
    extend(run, record)
    return run


def extend(run: Run, record: Mapping[str, Any]) -> None:
    """Add what a line holds."""
    for each in record.get("measurements", ()):
        run.measurements.append(_measurement(each, run))
    run.dropped += [Dropped(**each) for each in record.get("dropped", ())]
    run.divergences += [Divergence(**each) for each in record.get("divergences", ())]
    for each in record.get("bounds", ()):
        depths = tuple(Depth(**depth) for depth in each["depths"])
        run.bounds.append(Bound(each["system"], each["setting"], depths))
    for each in record.get("costs", ()):
        rows = {int(rows): seconds for rows, seconds in each["rows"].items()}
        run.costs.append(ForwardCosts(each["context"], rows, each["trees"], each["levels"]))


def _measurement(record: Mapping[str, Any], run: Run) -> Measurement:
    questions = tuple(record["questions"])
    if not 0 <= record["setting"] < len(run.settings) or not all(0 <= i < len(run.questions) for i in questions):
        raise ValueError(f"setting {record['setting']} or questions {questions} are not of this run")
    answers = tuple(
        Answer(tuple(each["ids"]), tuple((at, count) for at, count in each["arrivals"]), each["stats"])
        for each in record["answers"]
    )
    if len(answers) != len(questions):
        raise ValueError(f"{len(answers)} answers to {len(questions)} questions")
    found = Answers(record["seconds"], answers, record["peak_bytes"])
    return Measurement(record["setting"], questions, record["system"], record["repeat"], found)


# writing


def head(run: Run) -> dict[str, Any]:
    """A run without what was measured."""
    return {
        _MARK: VERSION,
        "provenance": run.provenance,
        "asked": run.asked,
        "systems": run.systems,
        "settings": [asdict(each) for each in run.settings],
        "questions": run.questions,
    }


def measured(measurement: Measurement) -> dict[str, Any]:
    return {
        "setting": measurement.setting,
        "questions": measurement.questions,
        "system": measurement.system,
        "repeat": measurement.repeat,
        "seconds": round(measurement.answers.seconds, 5),
        "peak_bytes": measurement.answers.peak_bytes,
        "answers": [
            {
                "ids": each.token_ids,
                "arrivals": [(round(at, 6), count) for at, count in each.arrivals],
                "stats": None if each.stats is None else _rounded(each.stats),
            }
            for each in measurement.answers.answers
        ],
    }


def _rounded(stats: Mapping[str, Any]) -> dict[str, Any]:
    return {**stats, "seconds": {phase: round(seconds, 5) for phase, seconds in stats["seconds"].items()}}


def group_line(
    measurements: Sequence[Measurement], dropped: Sequence[Dropped], divergences: Sequence[Divergence]
) -> dict[str, Any]:
    """All that came of one group of questions in one setting."""
    return {
        "measurements": [measured(each) for each in measurements],
        "dropped": [asdict(each) for each in dropped],
        "divergences": [asdict(each) for each in divergences],
    }


def bound_line(bounds: Sequence[Bound]) -> dict[str, Any]:
    return {"bounds": [asdict(each) for each in bounds]}


def cost_line(costs: ForwardCosts) -> dict[str, Any]:
    return {"costs": [asdict(costs)]}


class Part:
    """OUT.part while a run is under way, for one writer at a time; without a path nothing is written."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._file = path, None

    def __enter__(self) -> Part:
        if self._path is not None:
            part = part_of(self._path)
            self._file = part.open("a", encoding="utf-8", newline="\n")
            if not _locked(self._file):
                self._file.close()
                raise ValueError(f"{part}: another run is writing it; wait for that one, or use another --output")
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def begin(self, run: Run) -> Run:
        """The run that goes on here, with what it has; `run` itself if there is none."""
        if self._path is None or self._file is None:
            return run
        part = part_of(self._path)
        if not part.stat().st_size:
            self.write(head(run))
            return run
        found, (_, whole) = read_run(part), _records(part)
        _require_same(part, found, run)
        self._file.truncate(whole)
        self._file.write("\n")
        return found

    def write(self, record: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(_json(record) + "\n")
            self._file.flush()

    def complete(self, run: Run, figures: Mapping[str, Any]) -> None:
        """The whole run under its name."""
        if self._path is not None:
            write_run(self._path, run, figures)
            part_of(self._path).unlink(missing_ok=True)


def _locked(file: IO[str]) -> bool:
    """Whether the file is ours alone, where the system has such locks; they end with the process."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def write_run(path: Path, run: Run, figures: Mapping[str, Any]) -> None:
    """All of it, aside and renamed: a member a line, and a line for each measurement, so that runs can be compared."""
    members = head(run) | {
        "figures": figures,
        "dropped": [asdict(each) for each in run.dropped],
        "divergences": [asdict(each) for each in run.divergences],
        "bounds": [asdict(each) for each in run.bounds],
        "costs": [asdict(each) for each in run.costs],
    }
    with whole(path) as place, place.open("w", encoding="utf-8", newline="\n") as file:
        file.write("{")
        for name, value in members.items():
            file.write(f"{_json(name)}:{_json(value)},\n")
        file.write('"measurements":[\n')
        file.write(",\n".join(_json(measured(each)) for each in run.measurements))
        file.write("\n]}\n")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _require_same(part: Path, found: Run, now: Run) -> None:
    """What was asked, and by which versions on which machine: a run's figures belong together."""
    for name, was, new in (
        *((name, head(found)[name], head(now)[name]) for name in _HEAD),
        ("made", _made(found), _made(now)),
    ):
        old, new = json.loads(_json(was)), json.loads(_json(new))
        if old != new:
            what, before, after = _difference(name, old, new)
            raise ValueError(f"{part}: it was begun with {what} {before!r}, now it is {after!r}; {_REMEDY}")


def _made(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.provenance.items() if name not in _MAY_DIFFER}


def _difference(name: str, was: Any, now: Any) -> tuple[str, Any, Any]:
    """The first place at which two values differ."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in {**was, **now}:
            if was.get(key) != now.get(key):
                return _difference(f"{name}.{key}", was.get(key), now.get(key))
    if isinstance(was, list) and isinstance(now, list):
        for at, (old, new) in enumerate(zip_longest(was, now)):
            if old != new:
                return _difference(f"{name}[{at}]", old, new)
    return name, was, now
