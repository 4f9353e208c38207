"""SpeculativeConfig: how a caller asks for speculation, validated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .base import Kind
from .rules import NEEDS, RULES, rule_named, why_not
from .sampling import check_integer

METHODS = ("ngram", "draft_model", "none")


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """How to speculate; vLLM's names.

    method: "ngram" (prompt lookup), "draft_model" (needs `model`), "none". num_speculative_tokens: most tokens drafted
    a round. disable_by_batch_size: draft nothing while more requests than this run at once. prompt_lookup_max,
    prompt_lookup_min: n-gram sizes. verify: the rule; "coupled" keeps the text of a seed. allow_lossy: admit rules that
    change what the model says.
    """

    method: str = "ngram"
    model: str | None = None
    num_speculative_tokens: int = 5
    disable_by_batch_size: int | None = None
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 1
    verify: str = "coupled"
    allow_lossy: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method: {self.method!r} is unknown; known are {', '.join(METHODS)}")
        if self.method == "draft_model" and self.model is None:
            raise ValueError("model: None is not allowed; method 'draft_model' needs a draft model's name")
        if self.method != "draft_model" and self.model is not None:
            raise ValueError(f"model: {self.model!r} is not used by method {self.method!r}; use method 'draft_model'")
        if not isinstance(self.allow_lossy, bool):
            raise ValueError(f"allow_lossy: {self.allow_lossy!r} is not allowed; it must be True or False")
        rule_named(self.verify, allow_lossy=self.allow_lossy, argument="verify")
        check_integer("num_speculative_tokens", self.num_speculative_tokens, lambda n: 0 <= n <= 1024, "in 0 .. 1024")
        if self.disable_by_batch_size is not None:
            check_integer("disable_by_batch_size", self.disable_by_batch_size, lambda n: n >= 1, ">= 1, or None")
        check_integer("prompt_lookup_min", self.prompt_lookup_min, lambda n: n >= 1, ">= 1")
        check_integer(
            "prompt_lookup_max",
            self.prompt_lookup_max,
            lambda n: n >= self.prompt_lookup_min,
            f">= prompt_lookup_min ({self.prompt_lookup_min})",
        )
        self._require_rule_for_drafts()

    @property
    def kind(self) -> Kind:
        """How tokens are drafted: chosen, drawn with the target's noise if the rule takes that, or drawn."""
        return self._kind_under(self.verify)

    def _kind_under(self, rule: str) -> Kind:
        if self.method != "draft_model":
            return Kind.CHOSEN
        return Kind.COUPLED if NEEDS[rule].coupled else Kind.SAMPLED

    def _cannot(self, rule: str, depth: int) -> bool:
        """Whether `rule` could not verify what this method drafts: chains, so far."""
        return why_not(rule, range(-1, depth - 1), (self._kind_under(rule),) * depth) is not None

    def _require_rule_for_drafts(self) -> None:
        depth = 0 if self.method == "none" else self.num_speculative_tokens
        if not self._cannot(self.verify, depth):
            return
        able = [rule for rule in RULES if not self._cannot(rule, depth)]
        one = "" if self._cannot(self.verify, 1) else ", or draft one token (num_speculative_tokens 1)"
        raise ValueError(
            f"verify: {self.verify!r} takes {NEEDS[self.verify].takes}, but {self.method} drafts a chain of up to "
            f"{depth} tokens; use {', '.join(able)}{one}"
        )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SpeculativeConfig:
        """From a mapping, refusing keys that mean nothing. A model without a method is a draft model, as in vLLM."""
        if not isinstance(given, Mapping):
            raise ValueError(f"speculative_config: {given!r} is not allowed; it must be a mapping, such as a dict")
        known = [f.name for f in fields(cls)]
        for key in given:
            if key not in known:
                raise ValueError(f"speculative_config: unknown key {key!r}; known are {', '.join(known)}")
        guessed: dict[str, Any] = {"method": "draft_model"} if given.get("model") is not None else {}
        return cls(**(guessed | dict(given)))
