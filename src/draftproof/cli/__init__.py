"""The command line. Only this room reads argv and the environment; one file a command."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `draftproof`."""
    from .app import run

    sys.exit(run(sys.argv[1:]))
