"""Speculative decoding that you can prove.

Importing this package imports neither torch nor transformers; `LLM` brings them when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arrays import verify, verify_batch
    from .llm import LLM
    from .sampling import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "verify", "verify_batch"]

_HOMES = {"LLM": "llm", "SamplingParams": "sampling", "verify": "arrays", "verify_batch": "arrays"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module 'draftproof' has no attribute {name!r}")
