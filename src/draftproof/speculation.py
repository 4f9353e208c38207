"""SpeculativeConfig: how a caller asks for speculation, validated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .rules import RULES
from .sampling import check_integer

METHODS = ("ngram", "draft_model", "none")


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """How to speculate; vLLM's names.

    method: "ngram" (prompt lookup), "draft_model" (needs `model`), "none". num_speculative_tokens: most tokens drafted
    a round. prompt_lookup_max, prompt_lookup_min: n-gram sizes. verify: the rule; "coupled" keeps the text of a seed.
    """

    method: str = "ngram"
    model: str | None = None
    num_speculative_tokens: int = 5
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 1
    verify: str = "coupled"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method: {self.method!r} is unknown; known are {', '.join(METHODS)}")
        if (self.method == "draft_model") != (self.model is not None):
            raise ValueError(f"model: method {self.method!r} with draft model {self.model!r}; draft_model needs one")
        if self.verify not in RULES:
            raise ValueError(f"verify: {self.verify!r} is unknown; known are {', '.join(RULES)}")
        check_integer("num_speculative_tokens", self.num_speculative_tokens, lambda n: n >= 0, ">= 0")
        check_integer("prompt_lookup_min", self.prompt_lookup_min, lambda n: n >= 1, ">= 1")
        check_integer(
            "prompt_lookup_max",
            self.prompt_lookup_max,
            lambda n: n >= self.prompt_lookup_min,
            f">= prompt_lookup_min ({self.prompt_lookup_min})",
        )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SpeculativeConfig:
        """From a mapping, refusing keys that mean nothing."""
        if not isinstance(given, Mapping):
            raise ValueError(f"speculative_config: {given!r} is not allowed; it must be a mapping, such as a dict")
        known = [f.name for f in fields(cls)]
        for key in given:
            if key not in known:
                raise ValueError(f"speculative_config: unknown key {key!r}; known are {', '.join(known)}")
        return cls(**given)
