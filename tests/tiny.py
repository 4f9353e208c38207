"""Tiny random models of many architectures, and the stock model run the plain way, to compare a target against."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB = 64
CONTEXT = 2048
WINDOW = 8

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_GATED = {**_COMMON, "intermediate_size": 64, "num_key_value_heads": 2}
_GEMMA = {**_GATED, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": WINDOW}


@dataclass(frozen=True)
class Architecture:
    """How to build one. Each of `bites` is a change of its config that must change its logits, or a test is blind."""

    model_type: str
    config: Mapping[str, Any]
    bites: Sequence[Mapping[str, Any]] = field(default=())
    learned_positions: bool = False


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", {**_GATED, "head_dim": 12}),
    "mistral": Architecture(
        "mistral", {**_GATED, "head_dim": 16, "sliding_window": WINDOW}, [{"sliding_window": None}]
    ),
    "qwen2": Architecture("qwen2", _GATED),
    "qwen2-sliding": Architecture(
        "qwen2",
        {**_GATED, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
        [{"sliding_window": CONTEXT}],
    ),
    "qwen3": Architecture("qwen3", {**_GATED, "head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": Architecture(
        "gemma2",
        {**_GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 10.0},
        [{"sliding_window": CONTEXT}, {"attn_logit_softcapping": None}],
    ),
    "gemma3": Architecture(
        "gemma3_text",
        {**_GEMMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        [{"sliding_window": CONTEXT}],
    ),
    "gpt2": Architecture("gpt2", _COMMON, learned_positions=True),
    "phi3": Architecture("phi3", {**_GATED, "sliding_window": WINDOW}, [{"sliding_window": None}]),
    "opt": Architecture("opt", {**_COMMON, "ffn_dim": 64, "word_embed_proj_dim": 64}, learned_positions=True),
}


def build(architecture: Architecture, dtype: torch.dtype = torch.float32, **changed: Any) -> PreTrainedModel:
    """The stock model, eager attention. Weights depend on their shapes alone, so a changed config shares them."""
    config = AutoConfig.for_model(architecture.model_type, **{**architecture.config, **changed})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    return randomise(model).to(dtype)


@torch.no_grad()
def randomise(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Weights large enough that every attention is peaked, and norms and biases that do something."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim == 1:
            weight += 0.3 * noise
        else:
            weight.copy_(0.3 * noise)
    return model


def tokens_of(seed: int, count: int) -> tuple[int, ...]:
    return tuple(int(t) for t in np.random.default_rng(seed).integers(3, VOCAB, count))


class Stock:
    """The model as transformers runs it: eager attention, no cache, the whole sequence in one forward.

    A copy, so that nothing a target does to its model reaches it.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = copy.deepcopy(model).eval()
        self.model.set_attn_implementation("eager")
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """[tokens, vocabulary]: row i are the logits after token i."""
        tokens = tuple(tokens)
        if tokens not in self._known:
            self._known[tokens] = self.run(tokens)
        return self._known[tokens]

    @torch.inference_mode()
    def run(self, tokens: Sequence[int], **inputs: Any) -> np.ndarray:
        with mock.patch.object(F, "softmax", _softmax_as_given):
            return self.model(input_ids=torch.tensor([list(tokens)]), use_cache=False, **inputs).logits[0].numpy()


def _softmax_as_given(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None, **other: Any) -> torch.Tensor:
    """Eager attention rounds a float64 model's weights to float32, which would hide errors below 1e-5."""
    return torch.softmax(x, dim, None if x.dtype is torch.float64 else dtype)
