"""What is in effect for a request, whoever chose it, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from .models.load import Loaded
from .sampling import SamplingParams, as_config


def in_effect(
    loaded: Loaded, ours: Mapping[str, Any], params: SamplingParams, prompt_tokens: int, limit: int
) -> dict[str, Any]:
    """ours: what the `LLM` adds of its own. limit: most tokens of the answer."""
    target = loaded.target
    return {
        "model": loaded.name,
        "dtype": str(target.model.dtype).removeprefix("torch."),
        "device": str(target.model.device),
        "threads": torch.get_num_threads(),
        **ours,
        "rows": asdict(target.plan),
        "sampling": as_config(params),
        "prompt_tokens": prompt_tokens,
        "limit": limit,
    }
