"""What draftproof train data tells while it runs, and at the end."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .notes import note

if TYPE_CHECKING:
    from ..train.corpus import Totals

_SECONDS_BETWEEN_LINES = 60.0  # where there is no terminal
_FAILURES_SHOWN = 10


@dataclass(slots=True)
class Tally:
    """totals: of all examples that are there. made: of those, by this run. tokens: that this run has emitted, those of
    answers under way too."""

    totals: Totals
    made: int = 0
    tokens: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    @property
    def done(self) -> int:
        return self.totals.examples + len(self.failed)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / max(self.seconds, 1e-9)


def duration(seconds: float) -> str:
    """
    >>> duration(7), duration(200), duration(5000)
    ('7 s', '3 min', '1 h 23 min')
    """
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Told:
    """A bar on standard error if that is a terminal, else a line every minute."""

    def __init__(self, tally: Tally, count: int) -> None:
        self._tally, self._count, self._last = tally, count, tally.began
        self._bar: Any = None

    def __enter__(self) -> Told:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task("", total=self._count, completed=self._tally.done, rate=0.0)
            self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(*error)

    def show(self) -> None:
        tally, now = self._tally, time.perf_counter()
        if self._bar is not None:
            self._bar.update(self._task, completed=tally.done, rate=tally.rate)
        elif now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last, left = now, self._count - tally.done
            when = f", about {duration(left * tally.seconds / tally.made)} left" if tally.made else ""
            note(f"{tally.done:,} of {self._count:,} examples, {tally.rate:.1f} tokens/s{when}")


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[rate]:.1f} tokens/s"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def report(out: Path, count: int, tally: Tally, seconds: float, status: int) -> None:
    """count: examples asked for. seconds: of all runs."""
    for name, error in list(tally.failed.items())[:_FAILURES_SHOWN]:
        note(f"example {name} failed: {error}")
    if len(tally.failed) > _FAILURES_SHOWN:
        note(f"and {len(tally.failed) - _FAILURES_SHOWN} more failed")
    totals = tally.totals
    if status:
        note(f"stopped: what is finished is in {out}; the same command goes on with the rest")
    note(
        f"{totals.examples:,} of {count:,} examples, {len(tally.failed)} failed, {totals.prompt_tokens:,} "
        f"prompt tokens, {totals.answer_tokens:,} answer tokens, {totals.text_tokens:,} of texts; "
        f"{duration(seconds)}, {tally.rate:.1f} tokens/s"
    )
