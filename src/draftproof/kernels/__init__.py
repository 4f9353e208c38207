"""The verify step at the pace of memory: the rules' decisions, from raw logits, for many requests at once.

`decide` takes a batch and gives the verdicts that the rules in rules/ would, on the same chance: by Numba on a CPU, by
plain torch on any other device. Which form runs is settled here and nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from threading import Lock
from typing import Any

import numpy as np

from .verdicts import Batch, Part, Verdicts, seed_words, settings_of

KERNELS = ("coupled", "token", "block")

_ONE_AT_A_TIME = Lock()  # numba's plainest thread pool ends a process that enters it twice
_SPLIT = 100_000  # tokens of a row that are worth waking the other threads for
_MANY = 1 << 16  # logits of a batch, likewise


def decide(rule: str, batch: Batch) -> Verdicts:
    """The verdicts of `rule` (one of KERNELS) on every request.

    A request with a row that holds no law (NaN, +inf, no finite logit; a sampled token without mass) has that row in
    its `found`, and nothing else of it means anything.
    """
    if rule not in KERNELS:
        raise ValueError(f"rule: {rule!r} has no kernel; those that have are {', '.join(KERNELS)}")
    words: Any = words_of(batch.logits)
    if words is None:
        from .plain import decide as plain

        return plain(rule, batch)
    import numba

    from . import batch as compiled

    q_words: Any = words if batch.q_logits is None else words_of(batch.q_logits)
    if q_words is None or q_words.dtype != words.dtype:  # one of them in bfloat16, or elsewhere
        words, q_words = words_of(_as_float32(batch.logits)), words_of(_as_float32(batch.q_logits))
    assert words is not None
    out = batch.answer(rule)
    many = len(batch.layout) > 1 and words.size >= _MANY and numba.get_num_threads() > 1
    given = KERNELS.index(rule), words, batch.layout, batch.nodes, q_words, batch.settings, batch.seeds
    if many:
        with _ONE_AT_A_TIME:
            compiled.side_by_side(*given, out.path, out.asked, out.found)
        return out
    split = _splits(words)
    with _ONE_AT_A_TIME if split else nullcontext():
        compiled.in_turn(*given, split, out.path, out.asked, out.found)
    return out


def draw(
    logits: Any, settings: Any, seed: Any, depth: int, node: int, purpose: int, k: int = 1, with_p: bool = False
) -> tuple[list[int], list[float]] | None:
    """The first k tokens of one float32 row under its law, and their probabilities if asked; None if it holds no law.
    The noise is that of `Key(seed[0], depth, purpose, node)`. Fewer than k come back if fewer have mass."""
    from . import batch as compiled

    words = words_of(logits)
    ids, found = np.empty(k, np.int64), np.empty(k if with_p else 0)
    how, who, split = np.array(settings), np.array(seed, np.uint64), _splits(words)
    with _ONE_AT_A_TIME if split else nullcontext():
        ok = compiled.draw(words, how, who, depth, node, purpose, split, ids, found)
    return (ids[ids >= 0].tolist(), found.tolist()) if ok else None


def words_of(logits: Any) -> np.ndarray | None:
    """float32 or bfloat16 on the CPU -> its bits as integers, without a copy if it lies in order; None elsewhere."""
    if isinstance(logits, np.ndarray):
        words = np.ascontiguousarray(logits, np.float32).view(np.int32)
        return words if words.flags.writeable else words.copy()  # else compiled once more, for arrays like it
    if logits.device.type != "cpu":
        return None
    torch: Any = sys.modules["torch"]
    if logits.dtype == torch.bfloat16:
        return logits.detach().contiguous().view(torch.int16).numpy()
    return logits.detach().to(torch.float32).contiguous().view(torch.int32).numpy()


def _as_float32(logits: Any) -> np.ndarray:
    return logits if isinstance(logits, np.ndarray) else logits.detach().float().cpu().numpy()


def _splits(words: Any) -> bool:
    import numba

    return words.shape[-1] >= _SPLIT and numba.get_num_threads() > 1


def use_threads(count: int) -> None:
    """As many threads as this, or as the machine gives."""
    import numba

    config: Any = numba.config
    numba.set_num_threads(min(count, config.NUMBA_NUM_THREADS))


def warm(notify: Callable[[str], None] = lambda message: None) -> None:
    """Load the compiled kernels from disk, or compile them, which takes a minute once: no request waits for it then."""
    from . import batch as compiled
    from . import cached

    if not cached.known():
        notify("Compiling the verification kernels once")
    torch = sys.modules.get("torch")
    threads = None if torch is None else torch.get_num_threads()
    compiled.warm()
    if torch is not None:  # numba's threads are OpenMP's, as torch's are: where they start, torch's number is lost
        torch.set_num_threads(threads)


__all__ = [
    "KERNELS",
    "Batch",
    "Part",
    "Verdicts",
    "decide",
    "draw",
    "seed_words",
    "settings_of",
    "use_threads",
    "warm",
    "words_of",
]
