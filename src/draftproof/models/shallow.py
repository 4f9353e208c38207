"""The first layers of a model, with its own norm and head, as a model: a view that shares every weight.

Which modules are the layers is seen from where they stand and from the number that their attention goes by, not guessed
from names; and a few tokens are run to see that the layers asked for, and no others, attend.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from .support import Trial, run_trial


def first_layers(model: PreTrainedModel, count: int) -> PreTrainedModel:
    """A ValueError that names the model if it cannot be cut after `count` of its layers."""
    most = model.config.get_text_config().num_hidden_layers - 1
    if not 1 <= count <= most:
        raise ValueError(f"early exit: layers is {count}; it must be in 1 .. {most}")
    found = list(_layer_lists(model, most + 1))
    if len(found) != 1:
        raise _refusal(model, f"{len(found)} lists of {most + 1} layers that attend were found in it")
    view = replaced(model, found[0], nn.ModuleList(list(model.get_submodule(found[0]).children())[:count]))
    trial = Trial()
    try:
        run_trial(view, trial)
    except (AttributeError, TypeError, ValueError, KeyError, IndexError, NotImplementedError, RuntimeError) as error:
        raise _refusal(model, str(error)) from error
    ran = [call.layer for call in trial.calls]
    if ran != list(range(count)):
        raise _refusal(model, f"layers {ran} attend when the first {count} are run")
    return view


def layer_list(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of a model; a ValueError that names it if there is not one list of them."""
    config = model.config.get_text_config()
    found = list(_layer_lists(model, config.num_hidden_layers))
    if len(found) != 1:
        raise ValueError(
            f"model: {type(model).__name__} (model type {config.model_type}) has {len(found)} lists of "
            f"{config.num_hidden_layers} layers that attend; features are read from one"
        )
    return model.get_submodule(found[0])  # ty: ignore[invalid-explicit-return]


def _refusal(model: PreTrainedModel, why: str) -> ValueError:
    kind = model.config.get_text_config().model_type
    return ValueError(f"early exit: {type(model).__name__} (model type {kind}) cannot be cut: {why}")


def _layer_lists(model: nn.Module, count: int) -> Iterator[str]:
    """Lists whose entries hold one attention each, numbered from 0."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and [_numbers(entry) for entry in module] == [{i} for i in range(count)]:
            yield name


def _numbers(layer: nn.Module) -> set[Any]:
    return {getattr(each, "layer_idx", None) for each in layer.modules()} - {None}


def replaced(model: PreTrainedModel, place: str, part: nn.Module) -> PreTrainedModel:
    """A view of `model` in which `part` stands at `place`, a dotted name. Modules on the way are copied as shells."""
    return _with(model, place.split("."), part)


def _with(module: Any, path: list[str], part: nn.Module) -> Any:
    shell = copy.copy(module)
    shell._modules = dict(module._modules)
    name, *rest = path
    shell._modules[name] = part if not rest else _with(module._modules[name], rest, part)
    return shell
