"""A bar on standard error, if that is a terminal."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """So many of so many, and how long the rest will take."""

    def __init__(self, what: str) -> None:
        self._what, self._bar, self._task = what, None, None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._bar = _bar(self._what)
            self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(*error)
            self._bar = None

    def show(self, done: int, total: int) -> None:
        if self._bar is None:
            return
        if self._task is None:
            self._task = self._bar.add_task("", total=total, completed=done)
        self._bar.update(self._task, completed=done)


def _bar(what: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    return Bar(
        MofNCompleteColumn(),
        TextColumn(what),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
