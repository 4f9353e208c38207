"""ContrastiveConfig: how a caller asks for a contrastive target, validated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from .models.contrastive import ContrastiveTarget, require_contrast
from .models.load import Loaded, require_same_vocabulary
from .speculation import SpeculativeConfig


@dataclass(frozen=True, slots=True)
class ContrastiveConfig:
    """Decode from expert against amateur (docs/drafters.md). model: the amateur's name. alpha: least share of the
    expert's largest probability that a token must have. beta: the weight of the contrast; 0 is the expert alone."""

    model: str
    alpha: float = 0.1
    beta: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ValueError(f"contrastive: model {self.model!r} is not allowed; give the amateur's name")
        require_contrast(self.alpha, self.beta)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ContrastiveConfig:
        known = [f.name for f in fields(cls)]
        if not isinstance(given, Mapping) or "model" not in given or not set(given) <= set(known):
            raise ValueError(f"contrastive: {given!r} is not allowed; give model, and perhaps alpha and beta")
        return cls(**given)

    def drafting(self, given: Mapping[str, Any]) -> SpeculativeConfig:
        """A `speculative_config`, with the amateur as draft model if it does not say who drafts."""
        if isinstance(given, Mapping) and given.get("method", "auto") == "auto" and given.get("model") is None:
            given = {"method": "auto"} | dict(given) | {"model": self.model}
        speculation = SpeculativeConfig.of(given)
        for part in {"early_exit", "eagle3"} & set(speculation.parts):
            raise ValueError(f"contrastive: it does not go with {part!r}, which reads the expert's layers alone")
        return speculation

    def of_models(self, expert: Loaded, amateur: Loaded) -> Loaded:
        """The expert, contrasted."""
        require_same_vocabulary(expert, amateur, "contrastive")
        target: Any = ContrastiveTarget(expert.target, amateur.target, alpha=self.alpha, beta=self.beta)
        return replace(expert, target=target)
