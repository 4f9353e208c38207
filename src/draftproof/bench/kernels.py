"""The verify step from raw logits, against what others do and against reading the rows once.

Every system gets the same raw logits of target and drafter and the same drafted tokens, and gives the accepted length
and the next token of each request. The logits follow a law like a language model's: Zipf's with noise, so that some
tokens are likely and thousands are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from statistics import median
from typing import Any

import numpy as np
import torch

from ..base import Purpose, token_key
from ..chance import PhiloxChance
from ..kernels import KERNELS, Batch, decide, draw, seed_words, settings_of, words_of
from ..kernels.batch import stream
from ..kernels.lazy import KernelChance, raw_law_of
from ..sampling import SamplingParams, law_of

BATCHES = (1, 2, 4, 8, 16, 32)
DEPTHS = (4, 8)
VOCABULARIES = (32_000, 49_152, 151_936, 262_144)
TOP_P = (1.0, 0.9)

_ZIPF, _NOISE, _DRIFT = 1.6, 0.3, 0.6  # the drafter is the target, as much noise away
_ROOT = 17  # committed tokens
_ON_END = 3
_PATIENCE = 1.0  # seconds that one system may take in one cell, once it was measured


@dataclass(frozen=True, slots=True)
class Cell:
    """Milliseconds (medians) of one shape. bound: to read the rows that had to be read, for each of our rules."""

    batch: int
    depth: int
    vocabulary: int
    top_p: float
    bandwidth: float  # GB/s, all threads, on these very arrays
    milliseconds: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)
    accepted: dict[str, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.batch * self.depth * self.vocabulary


@dataclass(frozen=True, slots=True)
class Problem:
    """logits [b, k + 1, v], q_logits [b, k, v] float32; tokens, shared [b, k] drawn from q."""

    logits: np.ndarray
    q_logits: np.ndarray
    tokens: np.ndarray
    shared: np.ndarray  # the same drawn with the target's noise, for the coupled rule
    params: SamplingParams

    @property
    def shape(self) -> tuple[int, int, int]:
        b, k, v = self.q_logits.shape
        return b, k, v


def problem(b: int, k: int, v: int, top_p: float, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    zipf = (-_ZIPF * np.log(np.arange(1, v + 1))).astype(np.float32)
    logits = np.empty((b, k + 1, v), np.float32)
    for row in logits.reshape(-1, v):
        rng.standard_normal(out=row, dtype=np.float32)
        row *= _NOISE
        row += zipf[rng.permutation(v)]
    q_logits = np.empty((b, k, v), np.float32)
    for row, p_row in zip(q_logits.reshape(-1, v), logits[:, :k].reshape(-1, v), strict=True):
        rng.standard_normal(out=row, dtype=np.float32)
        row *= _DRIFT
        row += p_row
    params = SamplingParams(top_p=top_p)
    tokens = np.array([_sample(_textbook_law(row, top_p), rng) for row in q_logits.reshape(-1, v)])
    return Problem(logits, q_logits, tokens.reshape(b, k), _shared(q_logits, params), params)


def _shared(q_logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Drafts as the coupled rule has them: drawn from q with the target's own noise."""
    b, k = q_logits.shape[:2]
    tokens = np.empty((b, k), np.int64)
    for request, i in product(range(b), range(k)):
        drawn = draw(q_logits[request, i], settings_of(params), (_ROOT + i, 0, request, 0), 0, 0, Purpose.TOKEN)
        assert drawn is not None
        tokens[request, i] = drawn[0][0]
    return tokens


def ours(problem: Problem, rule: str) -> Callable[[], Any]:
    b, k, v = problem.shape
    tokens = problem.shared if rule == "coupled" else problem.tokens
    nodes = np.stack(
        [tokens.reshape(-1), np.tile(np.arange(-1, k - 1), b), np.full(b * k, rule != "coupled")], axis=1
    ).astype(np.int64)
    index = np.arange(b)
    batch = Batch(
        problem.logits.reshape(-1, v),
        np.stack([index * (k + 1), index * k, np.full(b, k)], axis=1),
        nodes,
        np.tile(settings_of(problem.params), (b, 1)),
        np.array([seed_words(_ROOT, 0, request) for request in range(b)], np.uint64),
        problem.q_logits.reshape(-1, v) if rule != "coupled" else None,
    )
    return lambda: decide(rule, batch)


def textbook(problem: Problem) -> Callable[[], Any]:
    """The loop of the papers in NumPy: all laws, then ratio test, residual, inverse of the cumulative sum."""
    rng = np.random.default_rng(0)

    def one(logits: np.ndarray, q_logits: np.ndarray, tokens: np.ndarray) -> tuple[int, int]:
        p, q = ([_textbook_law(row, problem.params.top_p) for row in rows] for rows in (logits, q_logits))
        for i, x in enumerate(tokens):
            if rng.random() >= p[i][x] / q[i][x]:
                return i, _sample(np.maximum(p[i] - q[i], 0), rng)
        return len(tokens), _sample(p[-1], rng)

    return lambda: [one(*each) for each in zip(problem.logits, problem.q_logits, problem.tokens, strict=True)]


def _textbook_law(row: np.ndarray, top_p: float) -> np.ndarray:
    p = np.exp(row - row.max())
    p /= p.sum()
    if top_p < 1:
        order = np.argsort(-p)
        mass = np.cumsum(p[order])
        p[order[np.searchsorted(mass, top_p) + 1 :]] = 0
        p /= p.sum()
    return p


def _sample(weights: np.ndarray, rng: np.random.Generator) -> int:
    ends = np.cumsum(weights, dtype=np.float64)
    return int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))


def hugging_face(problem: Problem) -> Callable[[], Any]:
    """transformers' `_speculative_sampling`, which takes one request, after its own top-p warper."""
    from transformers import TopPLogitsWarper
    from transformers.generation import utils

    sampling: Any = utils._speculative_sampling
    tokens, logits, q_logits = (torch.from_numpy(x) for x in (problem.tokens, problem.logits, problem.q_logits))
    k, top_p = tokens.shape[1], problem.params.top_p
    warp: Any = TopPLogitsWarper(top_p) if top_p < 1 else lambda ids, rows: rows

    def run() -> None:
        for i in range(len(tokens)):
            # its drafter has warped q before, its target's rows are warped here; q again so that all start alike
            p, q = warp(None, logits[i]), warp(None, q_logits[i])
            sampling(tokens[i : i + 1], q[None], k, p[None])

    return run


def plain_torch(problem: Problem) -> Callable[[], Any]:
    """All requests at once in float32, as serving engines without a kernel do it."""
    tokens, logits, q_logits = (torch.from_numpy(x) for x in (problem.tokens, problem.logits, problem.q_logits))
    b, k = tokens.shape
    top_p, index = problem.params.top_p, torch.arange(b)

    def run() -> None:
        p, q = _torch_law(logits, top_p), _torch_law(q_logits, top_p)
        ratio = (p[:, :k].gather(2, tokens[..., None]) / q.gather(2, tokens[..., None]))[..., 0]
        accepted = (torch.rand(b, k) < ratio).int().cumprod(1).sum(1)
        rest = p[index, accepted]
        refused = accepted < k
        rest[refused] -= q[index[refused], accepted[refused]]
        torch.multinomial(rest.clamp_(min=0), 1)

    return run


def _torch_law(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    p = logits.softmax(-1)
    if top_p < 1:
        falling, order = p.sort(-1, descending=True)
        falling[falling.cumsum(-1) - falling >= top_p] = 0
        p = torch.zeros_like(p).scatter_(-1, order, falling)
        p /= p.sum(-1, keepdim=True)
    return p


def rows_needed(rule: str, accepted: np.ndarray, k: int) -> int:
    """Rows of p and q that a rule must read: up to the first refusal (block: all that may be kept), and what judges."""
    after = accepted + 1
    if rule == "coupled":
        return int(after.sum())
    judged = np.full_like(accepted, k) if rule == "block" else np.minimum(after, k)
    return int((2 * judged + (accepted == k)).sum())


def measure(b: int, k: int, v: int, top_p: float) -> Cell:
    """One cell: all systems in turn, several rounds, medians."""
    given = problem(b, k, v, top_p)
    rows = [words_of(each.reshape(-1, v)) for each in (given.logits, given.q_logits)]
    systems: dict[str, Callable[[], Any]] = {rule: ours(given, rule) for rule in KERNELS}
    systems |= {
        "read": lambda: [stream(each) for each in rows],
        "textbook": textbook(given),
        "hugging face": hugging_face(given),
        "torch": plain_torch(given),
    }
    times = _interleaved(systems)
    seconds = {name: median(each) for name, each in times.items()}
    bandwidth = (given.logits.nbytes + given.q_logits.nbytes) / seconds.pop("read")
    cell = Cell(b, k, v, top_p, bandwidth / 1e9, {name: 1e3 * each for name, each in seconds.items()})
    for rule in KERNELS:
        accepted = systems[rule]().accepted
        cell.bound[rule] = 1e3 * rows_needed(rule, accepted, k) * 4 * v / bandwidth
        cell.accepted[rule] = float(accepted.mean())
    return cell


def _interleaved(systems: dict[str, Callable[[], Any]], rounds: int = 6) -> dict[str, list[float]]:
    """Seconds of each run: rounds of all systems in turn, `_ON_END` runs each. The first of those is not counted: the
    threads of the system before still wait for more work, spinning. Slow ones sit out when their time is used up."""
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, run in systems.items():
            if times[name] and sum(times[name]) > _PATIENCE:
                continue
            each = [_seconds(run) for _ in range(_ON_END)]
            times[name] += each[1:]
    return times


def _seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def grid(
    batches: Sequence[int] = BATCHES,
    vocabularies: Sequence[int] = VOCABULARIES,
    depths: Sequence[int] = DEPTHS,
    top_ps: Sequence[float] = TOP_P,
) -> Iterator[Cell]:
    for b, v, k, top_p in product(batches, vocabularies, depths, top_ps):
        yield measure(b, k, v, top_p)


def record(cell: Cell) -> dict[str, Any]:
    return asdict(cell) | {"size": cell.size}


def one_draw(v: int, count: int = 50) -> dict[str, float]:
    """Milliseconds of one draw from one row of logits: NumPy's law and race, and the kernel."""
    row, params = problem(1, 1, v, 1.0).logits[0, 0], SamplingParams()
    slow, fast = PhiloxChance(0), KernelChance(0)
    systems = {
        "numpy": lambda: slow.pick(law_of(params)(row, ()), token_key(3)),
        "kernel": lambda: fast.pick(raw_law_of(params)(row, ()), token_key(3)),
    }
    return {name: 1e3 * median(times) for name, times in _interleaved(systems, count).items()}
