"""v(n): what a forward of n rows costs, against Hugging Face's model in eager mode, in one run and one process.

Each context is filled once, and timed: the prefill. Then n rows are scored behind it and forgotten, again and again,
ours and theirs in turn, a few runs at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from ..base import Feed
from ..models.hf import HFTarget
from ..models.load import quiet_transformers

ROWS = (1, 2, 4, 8, 16, 32, 64)
_BLOCK = 6
CONTEXTS = (128, 512, 2048, 4096, 8000)


@dataclass(frozen=True, slots=True)
class Curve:
    """At one context: seconds to read it in, and milliseconds to score n rows behind it (medians)."""

    context: int
    prefill: dict[str, float] = field(default_factory=dict)
    milliseconds: dict[str, dict[int, float]] = field(default_factory=dict)


def hugging_face(path: Path, dtype: torch.dtype) -> Any:
    with quiet_transformers():
        return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()


def curves(
    target: HFTarget,
    model: Any,
    *,
    rows: Sequence[int] = ROWS,
    contexts: Sequence[int] = CONTEXTS,
    blocks: int = 3,
    progress: Callable[[str], None] = lambda message: None,
) -> Iterator[Curve]:
    """One curve a context; contexts that do not fit the model with its rows are left out."""
    rng = np.random.default_rng(0)
    for context in contexts:
        if context + max(rows) > target.max_context:
            continue
        text = rng.integers(0, target.vocab_size, context + max(rows)).tolist()
        progress(f"context {context}: prefill")
        curve = Curve(context)
        ours, theirs = _Ours(target, text[:context], max(rows)), _Theirs(model, text[:context])
        for name, system in (("draftproof", ours), ("hugging face", theirs)):
            began = time.perf_counter()
            system.fill()
            curve.prefill[name] = time.perf_counter() - began
            curve.milliseconds[name] = {}
        for n in rows:
            progress(f"context {context}: {n} rows")
            times: dict[str, list[float]] = {"draftproof": [], "hugging face": []}
            for _ in range(blocks):
                for name, system in (("draftproof", ours), ("hugging face", theirs)):
                    times[name] += _block(system, text[context : context + n])
            for name, each in times.items():
                curve.milliseconds[name][n] = 1e3 * median(each)
        yield curve


def _block(system: _Ours | _Theirs, tokens: list[int]) -> list[float]:
    """Seconds of a few runs on end, without the first: it finds the caches full of the other's weights, as no
    generation does."""
    times = []
    for _ in range(_BLOCK):
        began = time.perf_counter()
        system.score(tokens)
        times.append(time.perf_counter() - began)
        system.forget()
    return times[1:]


class _Ours:
    def __init__(self, target: HFTarget, text: list[int], room: int) -> None:
        self._target, self._text = target, text
        self._session = target.open(len(text) + room)

    def fill(self) -> None:
        self._target.forward([Feed(self._session, tuple(self._text), want=())])
        self._target.commit([self._session], [()])

    def score(self, tokens: list[int]) -> None:
        self._target.forward([Feed(self._session, tuple(tokens), want=tuple(range(len(tokens))))])

    def forget(self) -> None:
        """Nothing to do: what is not committed is overwritten."""


class _Theirs:
    def __init__(self, model: Any, text: list[int]) -> None:
        self._model, self._text = model, text
        self._cache, self._behind = DynamicCache(config=model.config), 0

    @torch.inference_mode()
    def fill(self) -> None:
        self._model(torch.tensor([self._text]), cache=self._cache, logits_to_keep=1)

    @torch.inference_mode()
    def score(self, tokens: list[int]) -> None:
        self._model(torch.tensor([tokens]), cache=self._cache)
        self._behind = len(tokens)

    def forget(self) -> None:
        self._cache.crop(-self._behind)


def draw(found: Sequence[Curve], path: Path) -> None:
    """The curves as a picture; the format is the file's ending."""
    try:
        Figure: Any = import_module("matplotlib.figure").Figure  # noqa: N806  (a class; the extra may not be there)
    except ImportError:
        raise ValueError("--draw: it needs matplotlib (pip install 'draftproof[bench]')") from None
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for i, curve in enumerate(found):
        for name, style in (("draftproof", "-o"), ("hugging face", "--x")):
            points = curve.milliseconds[name]
            axes.plot(points.keys(), points.values(), style, color=f"C{i}", label=f"{name}, context {curve.context}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(found[0].milliseconds["draftproof"]), map(str, found[0].milliseconds["draftproof"]))
    axes.set(xlabel="rows in one forward", ylabel="milliseconds", ylim=(0, None))
    axes.legend(fontsize="small")
    figure.savefig(path)
