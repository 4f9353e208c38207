"""Remarks to the person at the terminal: on standard error, so that standard output stays the answer."""

from __future__ import annotations

import sys


def note(message: str) -> None:
    """One line, marked as ours."""
    print(f"draftproof: {' '.join(message.split())}", file=sys.stderr)
