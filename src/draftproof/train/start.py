"""A head before it is trained: its shape from the target's, its weights from the target's where they fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import nn
from transformers import LlamaConfig, PreTrainedModel

from ..models.eagle import FEATURES, EagleConfig, EagleHead, feature_layers_of
from ..models.eagle_files import load_head
from ..models.load import Loaded
from ..models.shallow import layer_list
from .settings import Settings
from .target_head import TargetHead

Tell = Callable[[str], None]

_SPREAD = 0.02  # of random weights, as in Llama
_QUIET = 0.15  # of the target's norm, and so of its logits


def config_for(model: PreTrainedModel, draft_vocab_size: int, intermediate_size: int | None = None) -> EagleConfig:
    """A head for a target: its hidden size, heads, rotation and context; its MLP's size unless another is given."""
    target: Any = model.config.get_text_config()
    layers: int = target.num_hidden_layers
    heads: int = target.num_attention_heads
    rope = getattr(target, "rope_parameters", None)
    plain = isinstance(rope, dict) and rope.get("rope_type", "default") == "default" and "rope_theta" in rope
    layer = LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=intermediate_size or getattr(target, "intermediate_size", None) or 4 * target.hidden_size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=getattr(target, "num_key_value_heads", None) or heads,
        head_dim=getattr(target, "head_dim", None) or target.hidden_size // heads,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=getattr(target, "rms_norm_eps", None) or 1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": float(rope["rope_theta"]) if plain else 10000.0},
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    return EagleConfig(layer, draft_vocab_size, feature_layers_of(layers))


def random_head(config: EagleConfig, token_ids: Int[torch.Tensor, " d"], seed: int) -> EagleHead:
    """In float32, from the seed alone: matrices normal with deviation 0.02, norms 1."""
    head = EagleHead(config, token_ids)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in head.parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, _SPREAD, generator=generator)
    return head


def trained_before(loaded: Loaded, fingerprint: Mapping[str, str], settings: Settings, tell: Tell) -> EagleHead | None:
    """The head that `settings.init` names, in float32, if it names one. ValueError: it is for another target, or not
    what the settings say."""
    if settings.begins_anew:
        return None
    head, about = load_head(Path(settings.init).expanduser(), loaded, fingerprint=fingerprint, notify=tell)
    if about.embeddings is not None:
        raise ValueError(f"init: {settings.init!r} has embeddings of its own, which are not trained; give another head")
    known, asked = len(head.token_ids), settings.draft_vocab_size
    if known != (head.config.layer.vocab_size if asked is None else asked):
        raise ValueError(
            f"--draft-vocab-size: {asked or 'full'} is not allowed; {settings.init!r} knows {known} ids (leave it out)"
        )
    inside = head.config.layer.intermediate_size
    if settings.intermediate_size not in (None, inside):
        raise ValueError(
            f"--intermediate-size: {settings.intermediate_size} is not allowed; that of {settings.init!r} is {inside} "
            "(leave it out)"
        )
    tell(f"it goes on from {settings.init}")
    return head.float().requires_grad_(True)


@torch.no_grad()
def take_from_target(head: EagleHead, model: PreTrainedModel, target_head: TargetHead, *, layer: bool) -> list[str]:
    """Start near the target: output rows and norm its own, and of the fused states the highest ones. Its norm is made
    smaller, so that the law is nearly flat at first: what a layer that has learnt nothing says with the target's own
    certainty costs more than knowing the target's words saves.

    layer: take its last layer too, for the half that reads hidden states. Returns what was taken; what has another
    shape stays as it was.
    """
    taken: list[str] = []

    def take(name: str, into: torch.Tensor, weight: Any, scale: float = 1.0) -> None:
        if isinstance(weight, torch.Tensor) and weight.shape == into.shape:
            into.copy_(weight * scale)
            taken.append(name)

    size = head.config.hidden_size
    take("lm_head", head.lm_head.weight, target_head.only(head.token_ids).weight * target_head.scale)
    take("norm", head.norm.weight, _found(model.base_model, "norm.weight"), _QUIET)
    head.fc.weight[:, (FEATURES - 1) * size :] += torch.eye(size)
    taken.append("fc")
    if layer:
        own: Any = head.layers[0]
        last = layer_list(model)[-1]
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
            take(name, own.get_submodule(name).weight[:, size:], _found(last, f"{name}.weight"))
        for name in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm"):
            take(name, own.get_submodule(name).weight, _found(last, f"{name}.weight"))
        take("hidden_norm", own.hidden_norm.weight, _found(last, "input_layernorm.weight"))
    return taken


def parameters_of(head: EagleHead, *, freeze_head: bool) -> list[nn.Parameter]:
    """Those that are trained."""
    if freeze_head:
        head.lm_head.weight.requires_grad_(False)
    return [each for each in head.parameters() if each.requires_grad]


def _found(module: nn.Module, path: str) -> torch.Tensor | None:
    at: Any = module
    for name in path.split("."):
        at = getattr(at, name, None)
    return at


def special_ids(generation: dict[str, Any], tokenizer: Any, vocab_size: int) -> Sequence[int]:
    """The ids that end an answer."""
    given = generation.get("eos_token_id")
    found = [*(given if isinstance(given, list) else [given]), getattr(tokenizer, "eos_token_id", None)]
    return sorted({int(each) for each in found if each is not None and 0 <= int(each) < vocab_size})
