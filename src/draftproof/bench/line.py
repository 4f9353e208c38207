"""A process that is asked a line of JSON at a time. Whatever it does, there is a reply or a RunnerError of one line."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

import psutil

from .runner import RunnerError

PATIENCE = 60.0  # seconds, for what takes one
_LONGEST = 1 << 28  # bytes of a reply
_GRACE = 2.0  # seconds between the end of what a process says and its own


class Line:
    """A process that answers a line of JSON with a line of JSON. It ends with this object, and with the interpreter."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # not a pipe, since nobody reads it meanwhile; _end closes it
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(environment),
                start_new_session=True,  # what it starts goes with it, and Ctrl-C is for us alone
            )
        except (OSError, ValueError) as error:
            self._errors.close()
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise RunnerError(f"it cannot be started: {reason}") from None
        self.close = weakref.finalize(self, _end, self._process, self._errors)

    @property
    def open(self) -> bool:
        return self.close.alive

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The reply. RunnerError if it is an error, in which case the process goes on, or if there is none."""
        try:
            line = _exchanged(self._process, json.dumps(request).encode() + b"\n", timeout)
            if not line:
                raise RunnerError(self._last_words())
            reply = _parsed(line)
        except BaseException:  # also Ctrl-C: its late reply would pass for one to the next request
            self.close()
            raise
        if "error" in reply:
            raise RunnerError(_short(str(reply["error"])))
        return reply

    def _last_words(self) -> str:
        """How a process went that says nothing any more."""
        ended = _ended(self._process, _GRACE)
        file = self._errors.fileno()
        size = os.fstat(file).st_size
        # pread: the process writes where the file's one position is
        tail = os.pread(file, 4096, max(0, size - 4096)).decode(errors="replace").strip()
        self.close()
        how = _ending(self._process.returncode if ended else None)
        return f"{how}: {_short(tail.splitlines()[-1])}" if tail else how


def _exchanged(process: subprocess.Popen[bytes], line: bytes, timeout: float) -> bytes:
    """Write a line and read one, b"" if there is none to come. Both by the clock: who hangs does not read either."""
    assert process.stdin is not None
    assert process.stdout is not None
    deadline, left, reply = time.monotonic() + timeout, memoryview(line), bytearray()
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        while not reply.endswith(b"\n") and len(reply) < _LONGEST:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready or time.monotonic() > deadline:
                raise RunnerError(f"no reply within {timeout:g} seconds")
            for key, _ in ready:
                if key.fileobj is process.stdout:
                    piece = os.read(key.fd, 1 << 16)
                    if not piece:
                        return b""
                    reply += piece
                else:
                    left = left[_written(key.fd, left) :]
                    if not left:
                        selector.unregister(process.stdin)
    return bytes(reply)


def _written(file: int, data: memoryview) -> int:
    """Bytes that went out: all, where nobody listens. What was said before may still be there to read."""
    try:
        return os.write(file, data)
    except BrokenPipeError:
        return len(data)


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        raise RunnerError(f"it wrote {_short(line[:200].decode(errors='replace'))!r} instead of a reply")
    return reply


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether it ends within so many seconds. It is not asked how: until then no other can have its number."""
    deadline, found = time.monotonic() + seconds, psutil.Process(process.pid)
    while found.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _end(process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    """Kill what is left of it and of what it has started, and leave no zombie."""
    if process.returncode is None:  # so far nobody has asked how it ended: the group of its number is its own
        with suppress(ProcessLookupError, PermissionError):  # where only a zombie is left of the group
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)  # much memory takes a while to go
    for file in (process.stdin, process.stdout, errors):
        if file is not None:
            file.close()


def _ending(code: int | None) -> str:
    """
    >>> _ending(3), _ending(-9)
    ('its process ended with exit status 3', 'SIGKILL ended its process')
    """
    if code is None:
        return "its process closed its output"
    if code >= 0:
        return f"its process ended with exit status {code}"
    named = {each.value: each.name for each in signal.Signals}
    return f"{named.get(-code, f'signal {-code}')} ended its process"


def _short(text: str) -> str:
    """
    >>> _short("one\\n two")
    'one two'
    """
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:200]}..."
