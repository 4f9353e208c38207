"""What rounds and levels of drafting cost on this machine: measured once, kept, and read again.

A start for `control.Costs`, which goes on measuring while requests run.
"""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from .aside import whole
from .base import Feed, Target
from .control import Costs
from .models.eagle_runner import EagleRunner
from .models.hf import EarlyTarget
from .models.load import Loaded, default_cache_dir

_ROWS = (1, 4, 8, 12, 16, 24)
_CONTEXT = 128
_REPEATS = 5
_FORMAT = 5
_NAMES = ("rounds", "levels", "branch", "reading")
_BUSHY = (-1, 0, 1, 2, 3, -1, 0, 1)  # eight nodes, four leaves


Known = tuple[dict[int, float], dict[str, float], float, dict[str, float]]
"""Seconds of rounds by rows, of levels by origin, of a branch, and of a token that a draft model reads, by origin."""


def calibrated(
    target: Loaded,
    models: Mapping[str, Any],
    *,
    cache_dir: Path | None = None,
    notify: Callable[[str], None] = lambda message: None,
) -> Costs:
    """Costs of rounds of `target`, and of levels of the draft models by origin."""
    file = (cache_dir or default_cache_dir()) / "costs" / f"{_key(target, models)}.json"
    known = _read(file)
    if known is None:
        notify("Measuring what rounds cost here, once")
        rounds = {rows: _seconds(target.target, rows) for rows in _ROWS if 2 * rows <= target.target.max_context}
        levels = {origin: _seconds(model, 1) for origin, model in models.items()}
        branch = 0.0
        if max(rounds) > len(_BUSHY):
            branch = max(_seconds(target.target, 9, _BUSHY) - _seconds(target.target, 9), 0.0) / 3
        reading = {o: _reading(model) for o, model in models.items() if not isinstance(model, EarlyTarget)}
        known = rounds, levels, branch, reading
        _write(file, known)
    plan = target.target.plan
    return Costs(plan.multiple, *known, wide=plan.wide)


def _seconds(model: Target, rows: int, parents: tuple[int, ...] | None = None) -> float:
    """The quickest of some forwards of so many rows after a short text; parents: of a tree, None for a chain."""
    length = min(_CONTEXT, model.max_context - rows - 1)
    session = model.open(length + rows + 1)
    try:
        model.forward([Feed(session, (0,) * length, want=())])
        model.commit([session], [()])
        spent = []
        for _ in range(_REPEATS):
            began = perf_counter()
            model.forward([Feed(session, (0,) * rows, tuple(range(-1, rows - 2)) if parents is None else parents)])
            spent.append(perf_counter() - began)
        return min(spent)
    finally:
        model.close(session)


def _reading(model: Target) -> float:
    """Of a token, where many are read and none is asked about."""
    length = min(_CONTEXT, model.max_context - 1)
    session = model.open(length)
    try:
        spent = []
        for _ in range(_REPEATS):
            began = perf_counter()
            model.forward([Feed(session, (0,) * length, want=())])
            spent.append(perf_counter() - began)
        return min(spent) / length
    finally:
        model.close(session)


def _key(target: Loaded, models: Mapping[str, Any]) -> str:
    """Of all that costs depend on: models, their dtypes and plans, processor, threads, versions."""
    said = [_FORMAT, platform.processor(), platform.machine(), os.cpu_count(), torch.get_num_threads()]
    said += [torch.__version__, *_traits(target.target)]
    for origin, model in models.items():
        said += [origin, *_traits(model)]
    return blake2b(repr(said).encode(), digest_size=12).hexdigest()


def _traits(target: Any) -> list[str]:
    """Not its name, nor its weights' values: those cost nothing."""
    if isinstance(target, EagleRunner):
        return target.traits
    config = {name: value for name, value in target.model.config.to_dict().items() if not name.startswith("_")}
    products = [module for module in target.model.modules() if hasattr(module, "out_features")]
    layers = Counter((type(module).__name__, module.out_features) for module in products)
    own = [repr(sorted(config.items())), repr(sorted(layers.items())), str(target.model.dtype), str(target.plan)]
    amateur = getattr(target, "amateur", None)  # of a contrastive target, which runs both
    return own if amateur is None else own + _traits(amateur)


def _read(file: Path) -> Known | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        rounds = {int(rows): float(seconds) for rows, seconds in found["rounds"].items()}
        levels = {str(origin): float(seconds) for origin, seconds in found["levels"].items()}
        branch = float(found["branch"])
        reading = {str(origin): float(seconds) for origin, seconds in found["reading"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None  # absent, or not ours: measured again
    seconds = [*rounds.values(), *levels.values(), *reading.values()]
    sound = rounds and min(rounds) >= 1 and all(0 < each < inf for each in seconds) and 0 <= branch < inf
    return (rounds, levels, branch, reading) if sound else None


def _write(file: Path, known: Known) -> None:
    """That it cannot be kept is no reason to fail."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole(file) as aside:
            aside.write_text(json.dumps(dict(zip(_NAMES, known, strict=True))), encoding="utf-8")
