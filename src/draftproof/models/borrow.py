"""Other people's models: made into targets for a while, and given back as they were."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from .bits import LAW_PLAN, RowPlan, measure_rows
from .hf import HFTarget
from .support import Call, try_out


@contextmanager
def borrowed(models: Sequence[PreTrainedModel], exact: str) -> Generator[list[HFTarget]]:
    """A target for each, one for equal ones. Until the end, and for one caller at a time, their attention and training
    modes are changed; their weights and modules never are. exact: as in `load`."""
    with ExitStack() as back:
        for model in sorted(set(models), key=id):  # in one order, or two callers might wait for each other
            back.enter_context(_lock_of(model))
            back.enter_context(_as_found(model))
        made: dict[PreTrainedModel, HFTarget] = {}
        for model in dict.fromkeys(models):
            known = _known(model, exact)
            made[model] = HFTarget(model, known.plan, known.calls)
        yield [made[model] for model in models]


_LOCKS: WeakKeyDictionary[PreTrainedModel, Any] = WeakKeyDictionary()
_ONE_AT_A_TIME = Lock()  # who asks for a lock


def _lock_of(model: PreTrainedModel) -> Any:
    with _ONE_AT_A_TIME:
        return _LOCKS.setdefault(model, RLock())


@contextmanager
def _as_found(model: PreTrainedModel) -> Generator[None]:
    """Undo what a target changes, for each module and each config, also after an error."""
    training = [module for module in model.modules() if module.training]
    attention = [(config, config._attn_implementation_internal) for config in _configs(model)]
    try:
        yield
    finally:
        for module in training:
            module.training = True
        for config, known in attention:
            config._attn_implementation_internal = known


def _configs(model: PreTrainedModel) -> Iterator[Any]:
    """Every config in the model, those inside of others too."""
    seen: set[int] = set()
    waiting: list[Any] = [module.config for module in model.modules() if isinstance(module, PreTrainedModel)]
    while waiting:
        config = waiting.pop()
        if config is not None and id(config) not in seen:
            seen.add(id(config))
            waiting += [getattr(config, name, None) for name in config.sub_configs]
            yield config


@dataclass(frozen=True, slots=True)
class _Known:
    """What was found out about a model when it was as `stamp` says."""

    stamp: tuple
    plan: RowPlan
    calls: tuple[Call, ...]


_KNOWN: WeakKeyDictionary[PreTrainedModel, dict[str, _Known]] = WeakKeyDictionary()


def _known(model: PreTrainedModel, exact: str) -> _Known:
    """From an earlier call, if the model has not changed since. No target is kept: it would keep its model."""
    stamp, found = _stamp(model), _KNOWN.setdefault(model, {})
    if exact not in found or found[exact].stamp != stamp:
        calls = tuple(try_out(model).calls)  # refuses what cannot be driven
        found[exact] = _Known(stamp, measure_rows(model) if exact == "bits" else LAW_PLAN, calls)
    return found[exact]


def _stamp(model: PreTrainedModel) -> tuple:
    """What bits may depend on: the threads, the modules, and what and where their weights are."""
    weights = [(each.data_ptr(), each.dtype, each.device, each.shape) for each in model.parameters()]
    return torch.get_num_threads(), tuple(map(type, model.modules())), tuple(weights)
