"""Whether a model can be driven: what is not understood is refused by name, never guessed.

A model's flags do not tell how its layers attend. So a model whose flags look right is tried once: it runs a few tokens
through an attention function that only writes down what it was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_TRIAL = "draftproof-trial"
_HARMLESS = {
    *("dropout", "scaling", "is_causal", "position_ids", "use_cache"),
    *("output_attentions", "output_hidden_states", "output_router_logits"),
}
_ACTIVATIONS = {"torch.nn.modules.activation", "transformers.activations"}
_PLAIN_LAYERS = {"full_attention", "sliding_attention"}


class NoCache:
    """The cache object a model sees. Storage is the attention function's business."""

    is_compileable = False

    def update(self, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return key, value

    def get_seq_length(self, *args: Any) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Call:
    """How a layer called its attention function. wants: what it asked for that draftproof's attention does not do."""

    layer: int
    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    window: int | None
    softcap: float | None
    wants: tuple[str, ...]


def _write_down(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    draftproof: list[Call] | None = None,
    **other: Any,
) -> tuple[torch.Tensor, None]:
    if draftproof is None:
        raise ValueError("its attention does not hand on the keywords of the forward")
    wants = [name for name, given in other.items() if given is not None and name not in _HARMLESS]
    if attention_mask is not None:
        wants.append("a mask of its own")
    if False in (getattr(module, "is_causal", True), other.get("is_causal", True)):
        wants.append("attention to later tokens")
    sizes = query.shape[1], key.shape[1], key.shape[3], value.shape[3]
    draftproof.append(Call(module.layer_idx, *sizes, sliding_window, softcap, tuple(wants)))
    return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


ALL_ATTENTION_FUNCTIONS.register(_TRIAL, _write_down)


@dataclass(frozen=True, slots=True)
class Seen:
    """Which linear layers ran, in order, on which input, and whose result another module read. The tensors are kept, so
    that none takes another's place in memory."""

    linears: list[tuple[nn.Module, torch.Tensor]] = field(default_factory=list)
    results: dict[int, tuple[nn.Module, torch.Tensor]] = field(default_factory=dict)  # by storage
    by_rows: set[nn.Module] = field(default_factory=set)

    def enter(self, module: nn.Module, args: tuple) -> None:
        if not args or not isinstance(args[0], torch.Tensor):
            return
        if isinstance(module, nn.Linear):
            self.linears.append((module, args[0]))
        elif not is_activation(module):
            source = self.results.get(args[0].untyped_storage().data_ptr())
            if source is not None:
                self.by_rows.add(source[0])

    def leave(self, module: nn.Module, args: tuple, result: object) -> None:
        if isinstance(module, nn.Linear) and isinstance(result, torch.Tensor):
            self.results[result.untyped_storage().data_ptr()] = module, result

    def is_read_by_rows(self, module: nn.Module) -> bool:
        """Whether a norm, say, reads its result row by row; then its layout could change what it adds up first."""
        return module in self.by_rows


def is_activation(module: nn.Module) -> bool:
    """A module that treats every number alike."""
    return any(kind.__module__ in _ACTIVATIONS for kind in type(module).__mro__)


@dataclass(frozen=True, slots=True)
class Trial:
    """What a forward over text does. modules: those that ran, so not a vision tower's."""

    calls: list[Call] = field(default_factory=list)
    modules: set[nn.Module] = field(default_factory=set)
    seen: Seen = field(default_factory=lambda: Seen())


def try_out(model: PreTrainedModel) -> Trial:
    """Run a few tokens and leave the model as it was. A ValueError that names the model if it cannot be driven."""
    config = model.config.get_text_config()
    why, trial = next(_flags_against(model, config), None), Trial()
    if why is None:
        try:
            run_trial(model, trial)
        except (AttributeError, TypeError, ValueError, KeyError, NotImplementedError) as error:
            why = f"does not run through draftproof's attention: {error}"
        else:
            why = next(_calls_against(trial.calls, config), None)
    if why is not None:
        raise ValueError(f"model: {type(model).__name__} (model type {config.model_type}) {why}")
    return trial


@torch.inference_mode()
def run_trial(model: PreTrainedModel, trial: Trial) -> None:
    """A few tokens, written down in `trial`; the model is left as it was."""
    training, known = model.training, model.config._attn_implementation
    hooks = [
        register_module_forward_pre_hook(lambda module, args: trial.modules.add(module)),
        register_module_forward_pre_hook(trial.seen.enter),
        register_module_forward_hook(trial.seen.leave),
    ]
    model.eval().set_attn_implementation(_TRIAL)
    try:
        model(
            input_ids=torch.zeros(1, 4, dtype=torch.long, device=model.device),
            position_ids=torch.arange(4, device=model.device)[None],
            cache=NoCache(),
            use_cache=True,
            logits_to_keep=1,
            draftproof=trial.calls,
        )
    finally:
        for hook in hooks:
            hook.remove()
        model.train(training).set_attn_implementation(known)


def _flags_against(model: PreTrainedModel, config: PretrainedConfig) -> Iterator[str]:
    if config.is_encoder_decoder:
        yield "is an encoder-decoder; draftproof drives decoders"
    if getattr(model, "_is_stateful", False):
        yield "is recurrent or hybrid: its state cannot be rolled back to a draft's accepted path"
    if getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"):
        yield "uses ALiBi, whose position bias draftproof's attention does not add"
    if not model._supports_attention_backend:
        yield "does not take attention functions from outside (_supports_attention_backend)"
    if not model.can_generate():
        yield "has no language model head"
    strange = set(getattr(config, "layer_types", None) or ()) - _PLAIN_LAYERS
    if strange:
        yield f"has layers of type {', '.join(sorted(strange))}; draftproof drives full and sliding attention"
    if any(hasattr(module, "create_position_ids_from_input_ids") for module in model.modules()):
        yield "numbers its positions by its padding tokens; draftproof numbers them from 0"
    if getattr(config, "max_position_embeddings", None) is None:
        yield "does not say how long its context is (max_position_embeddings)"


def _calls_against(calls: list[Call], config: PretrainedConfig) -> Iterator[str]:
    """Against models whose stock attention does something that the keywords to an attention function do not tell."""
    layers = sorted(call.layer for call in calls)
    if layers != list(range(config.num_hidden_layers)):
        yield f"calls attention for layers {layers}; each of its {config.num_hidden_layers} layers must, once"
    for call in calls:
        if call.wants:
            yield f"asks for {', '.join(call.wants)} in layer {call.layer}, which draftproof's attention does not do"
        if _bites(call.window, config) != _bites(_window_in_config(config, call.layer), config):
            yield f"tells layer {call.layer}'s attention of a window of {call.window}, which its config contradicts"


def _window_in_config(config: PretrainedConfig, layer: int) -> int | None:
    types = getattr(config, "layer_types", None)
    slides = types[layer] == "sliding_attention" if types else getattr(config, "use_sliding_window", True)
    return getattr(config, "sliding_window", None) if slides else None


def _bites(window: int | None, config: PretrainedConfig) -> bool:
    return window is not None and window < config.max_position_embeddings


def context_of(config: PretrainedConfig) -> int:
    """Longest sequence. A rotary embedding that stretches itself changes every row of a forward when one gets long, so
    a row would depend on its mates and its cached keys would be of the old sort: such a model stops before it does."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]
    limits = [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
    return min([config.max_position_embeddings, *limits])
