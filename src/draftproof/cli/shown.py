"""How an answer looks at the terminal, and what stops it there."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..llm import Delta
    from ..stats import Stats

_DRAFT, _RESET = "\033[32m", "\033[0m"


def coloured() -> bool:
    """Whether accepted drafts are to be green."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def rendered(delta: Delta, colour: bool) -> str:
    """The delta as it is printed: accepted draft tokens green, the target's own tokens plain."""
    if not colour:
        return delta.text
    return "".join(f"{_DRAFT}{text}{_RESET}" if owner == "draft" else text for text, owner in delta.pieces)


def summary(stats: Stats, seed: int) -> str:
    """The last line: what was said, at what cost."""
    return (
        f"{stats.emitted} tokens, {stats.rounds} target passes, {stats.tokens_per_pass or 0:.2f} tokens/pass, "
        f"{stats.tokens_per_second or 0:.1f} tokens/s ({acceptance(stats.accepted, stats.drafted)}, seed {seed})"
    )


def acceptance(accepted: int, drafted: int) -> str:
    """
    >>> acceptance(1, 4), acceptance(0, 0)
    ('1 of 4 drafted accepted (25%)', 'no drafts')
    """
    return f"{accepted} of {drafted} drafted accepted ({accepted / drafted:.0%})" if drafted else "no drafts"


class Caught:
    """While entered, remembers that a signal came instead of acting on it, or, with `interrupts`, stops what runs as
    Ctrl-C does. The second one acts as before."""

    def __init__(self, number: signal.Signals, *, interrupts: bool = False) -> None:
        self.came = False
        self._interrupts = interrupts
        self._number = number
        self._before: Any = None
        self._ours = threading.current_thread() is threading.main_thread()  # others may not set handlers

    def __enter__(self) -> Caught:
        if self._ours:
            self._before = signal.signal(self._number, self._remember) or signal.SIG_DFL
        return self

    def __exit__(self, *error: object) -> None:
        if self._ours:
            signal.signal(self._number, self._before)

    def _remember(self, number: int, frame: object) -> None:
        self.came = True
        signal.signal(self._number, self._before)
        if self._interrupts:
            raise KeyboardInterrupt
