"""Where files are to be written: what cannot be is refused before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..aside import part_of


def check_place(option: str, path: Path) -> None:
    """Refuse what no file can be written at."""
    if path.is_dir():
        raise ValueError(f"{option}: {str(path)!r} is a folder; it must be a file")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ValueError(f"{option}: there is no folder {str(folder)!r} to write {path.name} in")


def check_trace(trace: Path | None, others: Mapping[str, Path | None]) -> None:
    """Refuse a trace that could not be written. others: files that it must not be, by their options."""
    if trace is not None:
        check_place("--trace", trace)
        check_apart("--trace", trace, others)


def check_apart(option: str, path: Path, others: Mapping[str, Path | None]) -> None:
    """Refuse a file to write that is another option's too."""
    for name, other in others.items():
        if other is not None and not _names(path).isdisjoint(_names(other)):
            raise ValueError(f"{option}: {str(path)!r} is that of {name} too; give another file")


def check_laws(laws: int | None, trace: Path | None) -> None:
    """--trace-laws, which needs --trace."""
    if laws is not None and trace is None:
        raise ValueError(f"--trace-laws: {laws} needs --trace, the file that they are written to")
    if laws is not None and laws < 1:
        raise ValueError(f"--trace-laws: {laws} is not allowed; it must be >= 1")


def _names(path: Path) -> set[Path]:
    """Where a file is, and where it is before it is complete."""
    return {path.resolve(), part_of(path)}
