"""Many prompts at once, from a file: answered by the engine, written as they finish, gone on with where one stopped.

With --output OUT every finished line is appended to OUT.part. When all are done they are written to OUT in the order of
the input, and OUT.part goes. So whatever stops a job, what was finished is in one of the two.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..aside import part_of, whole
from .notes import note
from .options import params
from .places import check_place
from .prompts import Item, read_items
from .shown import Caught, acceptance

if TYPE_CHECKING:
    from ..engine import Engine
    from ..llm import LLM
    from ..replies import Reply

_REMEDY = "use another --output or remove the file"
_FAILURES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Found:
    """A line that an earlier run finished. where: its file and number, for errors."""

    where: str
    line: str
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked for, and what of it is there. output: None is standard output."""

    items: list[Item]
    output: Path | None
    raw: bool
    found: dict[str, Found]  # by the names of their items


def prepare(source: str, output: Path | None, sampling: dict[str, Any], system: str | None, raw: bool) -> Job:
    """Read and check all that needs no model."""
    items = read_items(source, sampling, system, raw)
    if output is None:
        return Job(items, None, raw, {})
    path = _place(output, source)
    by_name = {item.name: item for item in items}
    found: dict[str, Found] = {}
    for file in (path, part_of(path)):
        if file.exists():
            found |= _finished(file, by_name)
    return Job(items, path, raw, found)


def _place(output: Path, source: str) -> Path:
    path = output.resolve()
    check_place("--output", output)
    if path.exists() and not path.is_file():
        raise ValueError(f"--output: {str(output)!r} is no plain file; leave it out to write to standard output")
    if source != "-" and Path(source).resolve() in (path, part_of(path)):
        raise ValueError(f"--output: {str(output)!r} would overwrite the prompts; give another file")
    return path


# what an earlier run left


def _finished(file: Path, by_name: dict[str, Item]) -> dict[str, Found]:
    """The finished lines of a file, each that of an item as it is now. Failed ones are left out: they run again."""
    found = {}
    for number, line in _lines(file):
        where = f"{file}, line {number}"
        record = json.loads(line)
        if not isinstance(record, dict) or "id" not in record:
            raise ValueError(f"{where}: it is no answer, having no id; {_REMEDY}")
        item = by_name.get(str(record["id"]))
        if item is None:
            raise ValueError(f"{where}: its id {record['id']!r} is not in the prompts; {_REMEDY}")
        if "error" in record:
            continue
        for name, now in ((item.kind, item.prompt), ("system", item.system)):
            if record.get(name) != now:
                raise ValueError(
                    f"{where}: it answers the {name} {record.get(name)!r}, and {now!r} is asked now; {_REMEDY}"
                )
        if not isinstance(record.get("config"), dict):
            raise ValueError(f"{where}: it has no configuration to compare; {_REMEDY}")
        found[item.name] = Found(where, line, record)
    return found


def _lines(file: Path) -> list[tuple[int, str]]:
    """Lines that are JSON, with their numbers. The last, if what stopped the run has cut it, does not count."""
    lines = [(number, line) for number, line in enumerate(file.read_bytes().split(b"\n"), 1) if line.strip()]
    whole = []
    for number, line in lines:
        try:
            text = line.decode()
            json.loads(text)
        except ValueError as error:
            if (number, line) == lines[-1]:
                break
            raise ValueError(f"{file}, line {number}: it is not JSON: {error}; {_REMEDY}") from None
        whole.append((number, text))
    return whole


def require_same(job: Job, llm: LLM) -> None:
    """Refuse to go on with answers that another configuration gave."""
    for item in job.items:
        found = job.found.get(item.name)
        if found is None:
            continue
        tokens = len(_tokens(job, item, llm))
        now = json.loads(json.dumps(llm.effective_config(params(llm, item.sampling), tokens, 1)))
        seed = item.sampling.get("seed")
        was = found.record["config"] | {"seed": seed if seed is None else found.record.get("seed")}
        for name, old, new in _differences(was, now | {"seed": seed}):
            raise ValueError(f"{found.where}: it was made with {name} {old!r}, now it is {new!r}; {_REMEDY}")


def _differences(was: dict[str, Any], now: dict[str, Any]) -> Iterable[tuple[str, Any, Any]]:
    # prompt_tokens: --raw and the chat template are nowhere else in the configuration
    for name in ("model", "dtype", "exact", "speculation", "sampling", "seed", "prompt_tokens"):
        old, new = was.get(name), now[name]
        if isinstance(old, dict) and isinstance(new, dict):
            yield from ((key, old.get(key), new.get(key)) for key in new | old if old.get(key) != new.get(key))
        elif old != new:
            yield name, old, new


# running


@dataclass(slots=True)
class Tally:
    """What a run has done so far."""

    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    began: float = field(default_factory=time.perf_counter)

    def add(self, item: Item, record: dict[str, Any]) -> None:
        if "error" in record:
            self.failed[item.name] = record["error"]
        else:
            self.done += 1
        stats = record.get("stats", {})
        self.drafted += stats.get("drafted", 0)
        self.accepted += stats.get("accepted", 0)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / max(time.perf_counter() - self.began, 1e-9)


def perform(job: Job, llm: LLM) -> int:
    """Answer what is not answered yet. Exit status: 1 if a prompt failed, 130 and 143 if a signal stopped it."""
    require_same(job, llm)
    if len(job.found) == len(job.items):
        note(f"all {len(job.items)} prompts were answered before; nothing is left to do")
    tally, bar = Tally(), _Bar(job)
    sink = _Screen(job) if job.output is None else _Files(job, job.output)

    def finish(item: Item, record: dict[str, Any]) -> None:
        sink.write(item, json.dumps(record, ensure_ascii=False))
        tally.add(item, record)
        bar.show(tally)

    def tick(tokens: int) -> None:
        tally.tokens += tokens
        bar.show(tally)

    status = 0
    try:
        with Caught(signal.SIGTERM) as term, bar:
            _run(job, llm, term, finish, tick)
        status = 143 if term.came else 0
    except KeyboardInterrupt:
        status = 130
    finally:
        sink.close()
    if len(job.found) + tally.done + len(tally.failed) == len(job.items):
        sink.complete()
        status = 0
    _report(job, tally, status)
    return status or (1 if tally.failed else 0)


def _run(
    job: Job, llm: LLM, stop: Caught, finish: Callable[[Item, dict[str, Any]], None], tick: Callable[[int], None]
) -> None:
    """Feed the engine in portions, so that a file may be long, until all is answered. stop: only what runs ends."""
    waiting = deque(item for item in job.items if item.name not in job.found)
    under_way: dict[str, tuple[Item, Reply]] = {}  # in order of arrival
    with llm.running() as engine:
        most = 2 * engine.config.max_num_seqs
        while under_way or (waiting and not stop.came):
            if stop.came:
                _withdraw(engine, under_way)
            while waiting and len(under_way) < most and not stop.came:
                _start(job, waiting.popleft(), llm, engine, under_way, finish)
            for event in engine.step() if under_way else ():
                item, reply = under_way[event.request.name]
                if event.step is not None:
                    reply.add(event.step)
                    tick(len(event.step.tokens))
                if event.ended:
                    del under_way[event.request.name]
                    finish(item, item.head() | reply.completion(event.error).as_dict())


def _start(
    job: Job,
    item: Item,
    llm: LLM,
    engine: Engine,
    under_way: dict[str, tuple[Item, Reply]],
    finish: Callable[[Item, dict[str, Any]], None],
) -> None:
    """Give one to the engine. One that can never run, being too long, fails alone."""
    try:
        reply = llm.reply(_tokens(job, item, llm), params(llm, item.sampling), item.name)
        engine.add(reply.request)
    except ValueError as error:
        failed = {"text": "", "token_ids": [], "finish_reason": "error"}
        finish(item, item.head() | failed | {"error": f"request {item.name}: {error}"})
    else:
        under_way[item.name] = item, reply


def _withdraw(engine: Engine, under_way: dict[str, tuple[Item, Reply]]) -> None:
    """Take back what has not started."""
    for name, (_, reply) in list(under_way.items()):
        if engine.waits(name) and not reply.request.output.token_ids:
            engine.cancel(name)
            del under_way[name]


def _tokens(job: Job, item: Item, llm: LLM) -> list[int]:
    from ..inputs import chat_tokens

    if not isinstance(item.prompt, str):
        return chat_tokens(item.prompt, llm.loaded.tokenizer)
    return llm.encode(item.prompt, system=item.system, raw=job.raw)


# writing


class _Screen:
    """Lines to standard output in the order of the input, each as soon as all before it are there."""

    def __init__(self, job: Job) -> None:
        self._left = deque(item.name for item in job.items)
        self._ready: dict[str, str] = {}

    def write(self, item: Item, line: str) -> None:
        self._ready[item.name] = line
        while self._left and self._left[0] in self._ready:
            print(self._ready.pop(self._left.popleft()), flush=True)

    def close(self) -> None:
        """Also what is finished behind one that is not."""
        for name in self._left:
            if name in self._ready:
                print(self._ready.pop(name), flush=True)

    def complete(self) -> None:
        pass


class _Files:
    """Lines to OUT.part as they come, at the end to OUT in the order of the input."""

    def __init__(self, job: Job, path: Path) -> None:
        self._names, self._path = [item.name for item in job.items], path
        self._lines = {name: found.line for name, found in job.found.items()}
        part = part_of(path)
        if part.exists():  # anew, without what was cut and what failed
            _write(part, [found.line for found in job.found.values()])
        self._file = part.open("a", encoding="utf-8", newline="\n")

    def write(self, item: Item, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()
        self._lines[item.name] = line

    def close(self) -> None:
        self._file.close()

    def complete(self) -> None:
        _write(self._path, [self._lines[name] for name in self._names])
        part_of(self._path).unlink(missing_ok=True)


def _write(path: Path, lines: Iterable[str]) -> None:
    with whole(path) as place, place.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)


# telling


class _Bar:
    """Progress on standard error, if that is a terminal and the answers do not go there too."""

    def __init__(self, job: Job) -> None:
        self._before = len(job.found)
        self._bar: Any = None
        if sys.stderr.isatty() and not (job.output is None and sys.stdout.isatty()):
            self._bar = _progress()
            self._task = self._bar.add_task("", total=len(job.items), completed=self._before, rate=0.0)

    def __enter__(self) -> None:
        if self._bar is not None:
            self._bar.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(*error)

    def show(self, tally: Tally) -> None:
        if self._bar is not None:
            done = self._before + tally.done + len(tally.failed)
            self._bar.update(self._task, completed=done, rate=tally.rate)


def _progress() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[rate]:.1f} tokens/s"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,  # standard output is the answers'
        redirect_stderr=False,
    )


def _report(job: Job, tally: Tally, status: int) -> None:
    for name, error in list(tally.failed.items())[:_FAILURES_SHOWN]:
        note(f"prompt {name} failed: {error.removeprefix(f'request {name}: ')}")
    if len(tally.failed) > _FAILURES_SHOWN:
        note(f"and {len(tally.failed) - _FAILURES_SHOWN} more failed")
    done, before = len(job.found) + tally.done, f" ({len(job.found)} of them before)" if job.found else ""
    if status:
        kept = "nothing else is kept without --output"
        if job.output is not None:
            kept = f"kept in {part_of(job.output)}; the same command goes on with the rest"
        note(f"stopped: {done} of {len(job.items)} prompts are finished, {kept}")
    note(
        f"{done} of {len(job.items)} prompts done{before}, {len(tally.failed)} failed, {tally.tokens} tokens, "
        f"{tally.rate:.1f} tokens/s ({acceptance(tally.accepted, tally.drafted)})"
    )
