"""Speculative decoding that you can prove.

Importing this package imports neither torch nor transformers; `LLM` brings them when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import theory
    from .arrays import verify, verify_batch
    from .async_engine import AsyncEngine
    from .base import Verdict
    from .chance import PhiloxChance
    from .hf import generate, speculative
    from .llm import LLM
    from .sampling import SamplingParams, StructuredOutputsParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncEngine",
    "PhiloxChance",
    "SamplingParams",
    "StructuredOutputsParams",
    "Verdict",
    "generate",
    "speculative",
    "theory",
    "verify",
    "verify_batch",
]

_HOMES = {
    "AsyncEngine": "async_engine",
    "LLM": "llm",
    "PhiloxChance": "chance",
    "SamplingParams": "sampling",
    "StructuredOutputsParams": "sampling",
    "Verdict": "base",
    "generate": "hf",
    "speculative": "hf",
    "verify": "arrays",
    "verify_batch": "arrays",
}


def __getattr__(name: str) -> Any:
    if name == "theory":
        return import_module(".theory", __name__)
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module 'draftproof' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
