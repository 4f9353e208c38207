"""Speculative decoding that you can prove.

Importing this package imports neither torch nor transformers; `LLM` brings them when it is first asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .llm import LLM
    from .sampling import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from .llm import LLM

        return LLM
    if name == "SamplingParams":
        from .sampling import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'draftproof' has no attribute {name!r}")
