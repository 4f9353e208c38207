"""The config.json of an EAGLE-3 head: what the `speculators` library and vLLM read there, and what we add.

Of what they allow, this is what `eagle.py` computes: one Llama layer, no biases, three fused states, none of the norms
that came later. Everything else is refused by its name, as a head that is run as what it is not guesses nonsense.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from transformers import LlamaConfig

from .eagle import FEATURES, EagleConfig

FORMAT = 1
"""Of our own part, under OURS."""
OURS = "draftproof"
SPECULATORS = "0.9.0"
"""The version of `speculators` whose layout this is."""

_NEEDED = ("speculators_config", "transformer_layer_config", "draft_vocab_size", "norm_before_residual")
_LATER = ("norm_before_fc", "fc_norm", "norm_output")  # each changes what the head computes
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")
_LAYER = (
    *_SIZES,
    *("num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings", "initializer_range"),
    *("bos_token_id", "eos_token_id"),
)
_TURNS = ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")
_ROPES = ("default", "linear", "llama3", "yarn")  # the others turn a position by how long the text is


@dataclass(frozen=True, slots=True)
class About:
    """What a head's folder says beside its weights.

    target: the model it drafts for, a name or a folder, and its architectures. tokens: how many it is meant to draft at
    once. fingerprint: what the target was, by part, when it was trained; empty for heads that others trained. training,
    measured: how, and what came of it on texts it had not seen; as its maker wrote it. embeddings: the head's own,
    where it does not read the target's.
    """

    target: str | None
    architectures: tuple[str, ...] = ()
    tokens: int = 5
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)
    ours: bool = True
    embeddings: Float[torch.Tensor, "v h"] | None = field(default=None, compare=False, repr=False)

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Of each drafted token on texts it had not seen, over all places; empty where nobody measured it."""
        kinds = [self.measured.get(name) for name in ("overlap", "agreement")]
        if not all(isinstance(shares, list) and all(_is_share(share) for share in shares) for shares in kinds):
            return ()
        return tuple(min(shares) for shares in zip(*kinds, strict=False))


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def as_json(config: EagleConfig, about: About) -> dict[str, Any]:
    """What is written as config.json."""
    if list(config.feature_layers) != sorted(set(config.feature_layers)) or len(config.feature_layers) != FEATURES:
        raise ValueError(
            f"feature_layers: {list(config.feature_layers)} is not allowed; they must be {FEATURES} layers, rising, as "
            "vLLM fuses them in that order"
        )
    rope = _rope(config.layer)
    if rope.get("rope_type", "default") not in _ROPES:
        raise ValueError(f"rope_type: {rope['rope_type']!r} is not allowed; it must be one of {', '.join(_ROPES)}")
    layer = {key: getattr(config.layer, key) for key in _LAYER}
    # an older vLLM knows these two alone, and without them takes 10000
    layer |= {"rope_parameters": rope, "rope_theta": rope["rope_theta"]}
    layer |= {} if rope.get("rope_type", "default") == "default" else {"rope_scaling": rope}
    layer |= {"model_type": "llama", "num_hidden_layers": 1, "attention_bias": False, "mlp_bias": False}
    layer |= {"tie_word_embeddings": False, "dtype": "bfloat16"}
    greedy = {
        "proposal_type": "greedy",
        "speculative_tokens": about.tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {"name_or_path": about.target, "architectures": list(about.architectures)},
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(config.feature_layers),
        "norm_before_residual": config.norm_before_residual,
        **dict.fromkeys(_LATER, False),
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        OURS: {
            "format": FORMAT,
            "fingerprint": dict(about.fingerprint),
            "training": dict(about.training),
            "measured": dict(about.measured),
        },
    }


def from_json(found: Mapping[str, Any]) -> tuple[EagleConfig, About]:
    """What a config.json says; feature_layers is () where it leaves them to the target. ValueError: 'key: what is
    wrong', for the first that is."""
    _require_eagle3(found)
    missing = [key for key in _NEEDED if key not in found]
    if missing:
        raise ValueError(f"{', '.join(missing)}: missing; an eagle3 head's config has all of {', '.join(_NEEDED)}")
    for key in _LATER:
        if found.get(key):
            raise ValueError(f"{key}: {found[key]!r} is not allowed; heads with this norm are not supported")
    layer = _layer(_object(found["transformer_layer_config"], "transformer_layer_config"))
    known = _whole(found["draft_vocab_size"], "draft_vocab_size")
    if known > layer.vocab_size:
        raise ValueError(f"draft_vocab_size: {known} is not allowed; it must be <= vocab_size, {layer.vocab_size}")
    size = found.get("target_hidden_size")
    if size is not None and size != layer.hidden_size:
        raise ValueError(
            f"target_hidden_size: {size!r} is not allowed; it must be the head's own hidden_size, {layer.hidden_size}"
        )
    if not isinstance(found["norm_before_residual"], bool):
        raise ValueError(
            f"norm_before_residual: {found['norm_before_residual']!r} is not allowed; it must be a boolean"
        )
    features = _features(found.get("eagle_aux_hidden_state_layer_ids"))
    return EagleConfig(layer, known, features, found["norm_before_residual"]), _about(found)


def _require_eagle3(found: Mapping[str, Any]) -> None:
    kind = found.get("speculators_model_type")
    if kind == "eagle3":
        return
    if kind is not None:
        raise ValueError(f"speculators_model_type: {kind!r} is not allowed; it must be 'eagle3'")
    if "draft_vocab_size" in found or "eagle" in str(found.get("architectures")).lower():
        raise ValueError(
            "speculators_model_type: missing; this looks like a head in the layout of the EAGLE repositories: convert "
            "it with `speculators convert`"
        )
    raise ValueError(f"speculators_model_type: missing; this is {found.get('model_type') or 'a model'}, no eagle3 head")


def _layer(found: Mapping[str, Any]) -> LlamaConfig:
    name = "transformer_layer_config"
    missing = [key for key in ("model_type", "num_hidden_layers", *_SIZES) if key not in found]
    if missing:
        raise ValueError(f"{name}: it lacks {', '.join(missing)}")
    for key, right in (("model_type", "llama"), ("num_hidden_layers", 1)):
        if found[key] != right:
            raise ValueError(f"{name}.{key}: {found[key]!r} is not allowed; it must be {right!r}")
    for key in ("attention_bias", "mlp_bias"):
        if found.get(key):
            raise ValueError(f"{name}.{key}: {found[key]!r} is not allowed; heads with biases are not supported")
    if "sliding_attention" in (found.get("layer_types") or ()):
        raise ValueError(f"{name}.layer_types: sliding_attention is not supported; it must be full_attention")
    for key in _SIZES:
        _whole(found[key], f"{name}.{key}")
    try:
        layer: Any = LlamaConfig(
            num_hidden_layers=1, **{key: found[key] for key in (*_LAYER, *_TURNS) if found.get(key) is not None}
        )
    except Exception as error:  # whatever transformers' own checks raise
        raise ValueError(f"{name}: {' '.join(str(error).split())}") from None
    if layer.num_attention_heads % layer.num_key_value_heads:
        raise ValueError(
            f"{name}.num_key_value_heads: {layer.num_key_value_heads} is not allowed; it must divide "
            f"num_attention_heads, {layer.num_attention_heads}"
        )
    rope = _rope(layer)
    if rope.get("rope_type", "default") not in _ROPES:
        raise ValueError(f"{name}: rope_type {rope['rope_type']!r} is not supported; it must be one of {_ROPES}")
    if rope.get("partial_rotary_factor", 1) != 1:
        raise ValueError(f"{name}: partial_rotary_factor {rope['partial_rotary_factor']!r} is not supported")
    return layer


def _rope(layer: Any) -> dict[str, Any]:
    return dict(layer.rope_parameters)


def _features(found: Any) -> tuple[int, ...]:
    if found is None:
        return ()
    name = "eagle_aux_hidden_state_layer_ids"
    right = isinstance(found, Sequence) and all(type(each) is int and each >= 0 for each in found)
    if not right or len(found) != FEATURES or list(found) != sorted(set(found)):
        raise ValueError(f"{name}: {found!r} is not allowed; it must be {FEATURES} rising layer numbers")
    return tuple(found)


def _about(found: Mapping[str, Any]) -> About:
    name = "speculators_config"
    theirs = _object(found[name], name)
    verifier = _object(theirs.get("verifier"), f"{name}.verifier")
    methods = theirs.get("proposal_methods")
    if not isinstance(methods, list) or not methods or not isinstance(methods[0], Mapping):
        raise ValueError(f"{name}.proposal_methods: {methods!r} is not allowed; it must be a list of objects")
    tokens = _whole(methods[0].get("speculative_tokens"), f"{name}.proposal_methods[0].speculative_tokens")
    target, architectures = verifier.get("name_or_path"), tuple(map(str, verifier.get("architectures") or ()))
    if target is not None and not isinstance(target, str):
        raise ValueError(f"{name}.verifier.name_or_path: {target!r} is not allowed; it must be a string")
    if OURS not in found:
        return About(target, architectures, tokens, ours=False)
    own = _object(found[OURS], OURS)
    if own.get("format") != FORMAT:
        raise ValueError(f"{OURS}.format: {own.get('format')!r} is not allowed; this draftproof reads {FORMAT}")
    fingerprint, training, measured = (
        dict(_object(own.get(key), f"{OURS}.{key}")) for key in ("fingerprint", "training", "measured")
    )
    if not all(isinstance(value, str) for value in fingerprint.values()):
        raise ValueError(f"{OURS}.fingerprint: {fingerprint!r} is not allowed; its values must be strings")
    return About(target, architectures, tokens, fingerprint, training, measured)


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: {value!r} is not allowed; it must be an object")
    return value


def _whole(value: Any, name: str) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}: {value!r} is not allowed; it must be a whole number >= 1")
    return value
