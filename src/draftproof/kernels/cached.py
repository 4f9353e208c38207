"""Compiled once: a cache on disk that knows all files of the kernels.

Numba's own cache watches the file of the compiled function alone; here a function is compiled from several, and an old
one must never outlive a change in any of them.
"""

from __future__ import annotations

import hashlib
import inspect
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numba
import numba.extending
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from platformdirs import user_cache_path


def njit(function: Callable | None = None, **options: Any) -> Any:
    """numba.njit of the function as it is written, whatever a test run's import hook has wrapped around it."""
    if function is None:
        return partial(njit, **options)
    return numba.njit(**options)(inspect.unwrap(function))


def intrinsic(function: Callable) -> Any:
    return numba.extending.intrinsic(inspect.unwrap(function))


_SOURCES = ("../chance.py", *(f"{name}.py" for name in ("numeric", "scan", "support", "race", "judge", "batch")))


@cache
def _stamp() -> str:
    """Changes with every file that a kernel is compiled from."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:16]


def _folder() -> Path:
    return user_cache_path("draftproof") / "kernels" / _stamp()


def known() -> bool:
    """Whether these very kernels have been compiled on this machine."""
    return any(_folder().glob("*.nbc"))


class _Locator:
    """What numba asks of a locator: where the files are, what they depend on, and what tells functions apart."""

    def __init__(self, line: int) -> None:
        self._line = line

    def get_cache_path(self) -> str:
        return str(_folder())

    def ensure_cache_path(self) -> None:
        path = Path(self.get_cache_path())
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()  # an OSError where it cannot be written

    def get_source_stamp(self) -> str:
        return _stamp()

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, function: Any, path: str) -> _Locator | None:
        locator = cls(function.__code__.co_firstlineno)
        try:
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator


class _Implementation(CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class _Cache(FunctionCache):
    _impl_class = _Implementation


def kernel(parallel: bool = False) -> Callable[[Callable], Any]:
    """njit for the functions that Python calls."""

    def compiled(function: Callable) -> Any:
        dispatcher = njit(function, parallel=parallel, nogil=True)
        with suppress(RuntimeError):  # nowhere to write: compiled again by every process
            dispatcher._cache = _Cache(dispatcher.py_func)
        return dispatcher

    return compiled
