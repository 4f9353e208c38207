"""What a model's generation_config.json asks for: what of it is applied, and what is named because it is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .sampling import SamplingParams


def default_params(generation: Mapping[str, Any]) -> SamplingParams:
    """What a generation_config.json asks for; temperature 1 where it says nothing, greedy if it says not to sample."""
    given: dict[str, Any] = {name: generation[name] for name in _SAMPLING if generation.get(name) is not None}
    if generation.get("do_sample") is False:
        given = {name: value for name, value in given.items() if name == "repetition_penalty"} | {"temperature": 0.0}
    return SamplingParams(**given)


_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
_APPLIED = {*_SAMPLING, "do_sample", "eos_token_id"}
_ABOUT_NO_TOKEN = {  # entries of a generation_config.json that change no token
    *("bos_token_id", "pad_token_id", "decoder_start_token_id", "transformers_version", "_from_model_config"),
    *("use_cache", "cache_implementation", "cache_config", "return_dict_in_generate", "output_attentions"),
    *("output_hidden_states", "output_scores", "output_logits", "trust_remote_code", "max_length"),
}
_NEUTRAL = {
    "encoder_repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "num_beams": 1,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "guidance_scale": 1.0,
}


def not_applied(generation: Mapping[str, Any]) -> dict[str, Any]:
    """What a generation_config.json asks for beyond that, and does not get yet: reported, never silently dropped."""
    ignored = _APPLIED | _ABOUT_NO_TOKEN
    return {
        name: value
        for name, value in generation.items()
        if name not in ignored and value not in (None, False, 0, [], {}) and value != _NEUTRAL.get(name)
    }


def end_ids(generation: Mapping[str, Any], fallback: int | None) -> frozenset[int]:
    """The ids that end a text: generation_config.json's, else the tokenizer's."""
    given = generation.get("eos_token_id", fallback)
    if given is None:
        return frozenset()
    return frozenset(given if isinstance(given, list) else [given])
