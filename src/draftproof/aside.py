"""Files that are written aside, under another name, and renamed when they are complete.

Links are followed: what they lead to is replaced, not they. What is there and no plain file, such as a pipe, is written
as it is.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def whole(path: Path) -> Generator[Path]:
    """All or nothing: where to write what becomes PATH at the end. If anything goes wrong PATH is what it was."""
    path = path.resolve()
    if not _replaceable(path):
        yield path
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def growing(path: Path) -> Generator[IO[str]]:
    """A file to write by lines, each of which is there at once: PATH.part, which becomes PATH at the end. If something
    goes wrong it stays, unless nothing was written."""
    path, part = path.resolve(), part_of(path)
    # half a surrogate pair becomes its JSON escape
    with part.open("w", buffering=1, encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        try:
            yield file
        except BaseException:
            if part != path and not part.stat().st_size:
                part.unlink()
            raise
        if part != path:
            file.flush()
            os.fsync(file.fileno())
    if part != path:
        part.replace(path)


def part_of(path: Path) -> Path:
    """Where a file grows before it is complete."""
    path = path.resolve()
    return path.with_name(path.name + ".part") if _replaceable(path) else path


def _replaceable(path: Path) -> bool:
    return path.is_file() or not path.exists()
