"""What holds on this machine, measured through the real adapter: "bit-exact" or "same law"."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
import transformers

from .base import ROOT, Feed
from .models.hf import HFTarget
from .trees import path_to

Progress = Callable[[str], None]

_TAIL = 24  # rows compared at the end of each text
_TREE = (ROOT, ROOT, 0, 0, 1, 2, 3, 5)  # two children, grandchildren, a branch of depth 4


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison: how many rows of logits were compared, how many differ in any bit."""

    name: str
    rows: int
    differ: int


def examine(
    target: HFTarget,
    *,
    lengths: Sequence[int] = (_TAIL + 6, 90, 300, 552),
    seed: int = 0,
    progress: Progress = lambda message: None,
) -> list[Finding]:
    """Compare rows computed in company with the same rows computed one at a time, alone.

    Company is everything that may change between runs: the chunks a prompt came in, the place of a row in its forward,
    other requests, draft trees around it, and where it stands against a step of the KV buffer (512 slots). `lengths`
    are those of the random texts.
    """
    if target.max_context < 2 * (_TAIL + len(_TREE)):
        raise ValueError(f"model: its context of {target.max_context} tokens is too short to examine")
    rng = np.random.default_rng(seed)
    longest = target.max_context - len(_TREE)
    texts = [rng.integers(0, target.vocab_size, min(n, longest)).tolist() for n in lengths]
    progress("one token at a time")
    alone = [_alone(target, text) for text in texts]
    findings = []
    for most in (7, 60, 600):
        progress(name := f"chunks of up to {most} rows, with mates")
        together = _together(target, texts, most, rng)
        findings.append(_compare(name, alone, together))
    progress("draft trees")
    findings.append(_trees(target, texts, rng))
    return findings


def claim(target: HFTarget, findings: Sequence[Finding]) -> Literal["bit-exact", "same law"]:
    """What may be said of this model on this machine after the comparisons."""
    broken = any(finding.differ for finding in findings)
    return "bit-exact" if target.plan.exact and not broken else "same law"


def _alone(target: HFTarget, text: Sequence[int]) -> np.ndarray:
    """Logits of the last rows of `text`, each from a forward of its own."""
    session = target.open(len(text))
    _extend(target, session, text[:-_TAIL])
    return np.concatenate([_extend(target, session, [token], want=(0,)) for token in text[-_TAIL:]])


def _extend(target: HFTarget, session: Any, tokens: Sequence[int], want: tuple[int, ...] = ()) -> np.ndarray:
    [scores] = target.forward([Feed(session, tuple(tokens), want=want)])
    target.commit([session], [()])
    return scores.logits


def _together(target: HFTarget, texts: list[list[int]], most: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The same logits, from forwards that mix all texts in chunks of random sizes."""
    sessions = [target.open(len(text)) for text in texts]
    rows: list[list[np.ndarray]] = [[] for _ in texts]
    while any(target.cached(session) < len(text) for session, text in zip(sessions, texts, strict=True)):
        feeds, owners = [], []
        for i in rng.permutation(len(texts)):
            at = target.cached(sessions[i])
            chunk = tuple(texts[i][at : at + int(rng.integers(1, most + 1))])
            if chunk and rng.random() < 0.8:
                compared = tuple(j for j in range(len(chunk)) if at + j >= len(texts[i]) - _TAIL)
                feeds.append(Feed(sessions[i], chunk, want=compared))
                owners.append(i)
        for i, scores in zip(owners, target.forward(feeds), strict=True):
            rows[i].append(scores.logits)
        target.commit([feed.session for feed in feeds], [()] * len(feeds))
    return [np.concatenate(found) for found in rows]


def _trees(target: HFTarget, texts: list[list[int]], rng: np.random.Generator) -> Finding:
    """Every node of a draft tree against its path, decoded one token at a time."""
    tree, paths = [], []
    for text in texts:
        nodes = tuple(rng.integers(0, target.vocab_size, len(_TREE)).tolist())
        session = target.open(len(text) + len(nodes))
        _extend(target, session, text[:-1])
        [scores] = target.forward([Feed(session, (text[-1], *nodes), _TREE)])
        tree.append(scores.logits)
        paths.append(np.stack(list(_paths(target, session, text, nodes))))
    return _compare("draft trees, against their paths", paths, tree)


def _paths(target: HFTarget, session: Any, text: Sequence[int], nodes: Sequence[int]) -> Iterator[np.ndarray]:
    for node in range(-1, len(nodes)):
        target.truncate(session, len(text) - 1)
        for token in (text[-1], *(nodes[i] for i in path_to(_TREE, node))):
            [last] = _extend(target, session, [token], want=(0,))
        yield last


def _compare(name: str, a: list[np.ndarray], b: list[np.ndarray]) -> Finding:
    differ = sum(int((x != y).any(axis=1).sum()) for x, y in zip(a, b, strict=True))
    return Finding(name, sum(len(x) for x in a), differ)


def forward_milliseconds(target: HFTarget, counts: Sequence[int] = (1, 4, 8, 16), repeats: int = 5) -> dict[int, float]:
    """Median time of one forward by its number of rows, at a short context."""
    out = {}
    for rows in counts:
        session = target.open(rows)
        feed = Feed(session, (0,) * rows, want=(rows - 1,))
        times = []
        for _ in range(repeats + 1):
            began = perf_counter()
            target.forward([feed])
            times.append(perf_counter() - began)
        out[rows] = 1e3 * float(np.median(times[1:]))
    return out


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
