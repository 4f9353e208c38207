"""Compiled once: a cache on disk that knows all files of the kernels.

Numba's own cache watches the file of the compiled function alone; here a function is compiled from several, and an old
one must never outlive a change in any of them.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from platformdirs import user_cache_path

_SOURCES = ("../chance.py", *(f"{name}.py" for name in ("numeric", "scan", "support", "race", "decide", "batch")))


@cache
def _stamp() -> str:
    """Changes with every file that a kernel is compiled from."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:16]


class _Locator:
    """What numba asks of a locator: where the files are, what they depend on, and what tells functions apart."""

    def __init__(self, line: int) -> None:
        self._line = line

    def get_cache_path(self) -> str:
        return str(user_cache_path("draftproof") / "kernels" / _stamp())

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
    _locator_classes = (_Locator, *CompileResultCacheImpl._locator_classes)


class _Cache(FunctionCache):
    _impl_class = _Implementation


def kernel(parallel: bool = False) -> Callable[[Callable], Any]:
    """njit for the functions that Python calls."""

    def compiled(function: Callable) -> Any:
        dispatcher: Any = njit(parallel=parallel, nogil=True)(function)
        dispatcher._cache = _Cache(function)
        return dispatcher

    return compiled
