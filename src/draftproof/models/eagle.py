"""An EAGLE-3 head: one decoder layer that guesses from what a target felt, and from the token that came of it.

Entry i of a text is made of token i + 1 and of the target's own hidden states at token i, low, middle and high, fused
by `fc`; its output says what token i + 2 will be. Where the target has not read yet, the head's own last output stands
in for the fused states, so it goes on alone (Li et al., EAGLE-3, 2503.01840). Output ids are those of a reduced
vocabulary, frequent tokens first of all (Zhao et al., FR-Spec, 2502.14856).

Names and shapes are those of the `speculators` library's `eagle3`, so that what is trained here runs in vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

FEATURES = 3
"""Hidden states of the target that are fused."""


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """layer: its one decoder layer, as a Llama's. vocab_size in it is the target's, draft_vocab_size the head's own.

    feature_layers: the target's layers whose INPUTS are fused. norm_before_residual: what the layer adds to is the
    normalised hidden state, not the raw one.
    """

    layer: LlamaConfig
    draft_vocab_size: int
    feature_layers: tuple[int, ...]
    norm_before_residual: bool = True

    @property
    def hidden_size(self) -> int:
        return self.layer.hidden_size


def feature_layers_of(layers: int) -> tuple[int, int, int]:
    """Low, middle and high, of a target with so many layers: from 7 on as in EAGLE-3 and vLLM.

    >>> feature_layers_of(30), feature_layers_of(5)
    ((2, 15, 27), (1, 2, 4))
    """
    if layers < 4:
        raise ValueError(f"target: it has {layers} layers; features of three are needed, so 4 or more")
    return (2, layers // 2, layers - 3) if layers >= 7 else (1, layers // 2, layers - 1)


Rotations = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of some positions, each [1, n, d]."""


class _Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size: int = config.head_dim or config.hidden_size // config.num_attention_heads
        wide = 2 * config.hidden_size
        self.heads, self.size = config.num_attention_heads, size
        self.kv_heads: int = config.num_key_value_heads or self.heads
        self.q_proj = nn.Linear(wide, self.heads * size, bias=False)
        self.k_proj = nn.Linear(wide, self.kv_heads * size, bias=False)
        self.v_proj = nn.Linear(wide, self.kv_heads * size, bias=False)
        self.o_proj = nn.Linear(self.heads * size, config.hidden_size, bias=False)


class _Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)


class EagleHead(nn.Module):
    """The head's weights, and all of its mathematics but attention, which differs between training and drafting.

    embed_tokens is the target's, and not the head's own: it is given, and neither trained nor saved.
    """

    d2t: torch.Tensor
    t2d: torch.Tensor
    layers: Any

    def __init__(self, config: EagleConfig, token_ids: Int[torch.Tensor, " d"]) -> None:
        """token_ids: the target's ids that the head knows, rising."""
        super().__init__()
        self.config = config
        size, known = config.hidden_size, config.draft_vocab_size
        self.fc = nn.Linear(FEATURES * size, size, bias=False)
        self.layers = nn.ModuleList([_Layer(config.layer)])
        self.norm = LlamaRMSNorm(size, config.layer.rms_norm_eps)
        self.lm_head = nn.Linear(size, known, bias=False)
        # no part of the module: cast to bfloat16 with it, its frequencies would turn far tokens to other places
        self._rotary = (LlamaRotaryEmbedding(config.layer),)
        self.register_buffer("d2t", token_ids - torch.arange(known))
        seen = torch.zeros(config.layer.vocab_size, dtype=torch.bool)
        seen[token_ids] = True
        self.register_buffer("t2d", seen)

    @property
    def token_ids(self) -> Int[torch.Tensor, " d"]:
        """The target's id of each of the head's own."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def fuse(self, features: Float[torch.Tensor, "*b f"]) -> Float[torch.Tensor, "*b h"]:
        """Low, middle and high states, side by side -> what the layer takes."""
        return self.fc(features)

    def rotations(self, positions: Int[torch.Tensor, " n"]) -> Rotations:
        return self._rotary[0](self.fc.weight, positions[None])

    def attended(
        self,
        embeds: Float[torch.Tensor, "b n h"],
        hidden: Float[torch.Tensor, "b n h"],
        rotations: Rotations,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What enters attention: query [b, heads, n, d], key and value [b, kv_heads, n, d], and what its result is
        added to [b, n, h]."""
        layer = self.layers[0]
        own = layer.self_attn
        normed = layer.hidden_norm(hidden)
        both = torch.cat([layer.input_layernorm(embeds), normed], -1)
        q, k, v = (
            project(both).view(*both.shape[:-1], -1, own.size).transpose(1, 2)
            for project in (own.q_proj, own.k_proj, own.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *rotations)
        return q, k, v, normed if self.config.norm_before_residual else hidden

    def finished(
        self, attention: Float[torch.Tensor, "b n heads d"], residual: Float[torch.Tensor, "b n h"]
    ) -> Float[torch.Tensor, "b n h"]:
        """The layer's output: what `logits` reads, and the hidden state of the entry after."""
        layer = self.layers[0]
        hidden = residual + layer.self_attn.o_proj(attention.flatten(-2))
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

    def logits(self, hidden: Float[torch.Tensor, "*b h"]) -> Float[torch.Tensor, "*b d"]:
        """Over the head's own ids."""
        return self.lm_head(self.norm(hidden))
