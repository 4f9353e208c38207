"""What the kernels take and give, as arrays: a batch of requests in, a verdict for each out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Integer, UInt64

from ..base import ROOT, Draft, Key, Last, Purpose, Test, Verdict, token_key
from ..sampling import SamplingParams
from ..trees import children

P, Q, PROB, OUTCOME = 0, 1, 2, 3  # columns of `asked`; outcome 1: accepted, 0: refused, NaN: not asked


def settings_of(params: SamplingParams) -> tuple[float, float, float, float]:
    """temperature, top_k (0: off), top_p, log min_p: what a kernel knows of a request's sampling."""
    return params.temperature, max(params.top_k, 0), params.top_p, math.log(params.min_p) if params.min_p else -math.inf


def seed_words(root: int, sample: int, seed: int) -> tuple[int, int, int, int]:
    """What a kernel knows of a request's chance: committed tokens, sample index, low and high word of the seed."""
    return root, sample, seed & 0xFFFFFFFF, seed >> 32


class Part(NamedTuple):
    """What a batch holds of one request. logits: [nodes + 1, V]. q_logits: as in `Batch`, the request's own."""

    draft: Draft
    logits: np.ndarray
    params: SamplingParams
    seed: int
    sample: int
    q_logits: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Batch:
    """B requests with N drafted tokens in all, and the rows of logits that judge them.

    logits: [R, V], float32 or bfloat16, NumPy's or torch's on any device. layout: for each request its first row of
    logits (it has one more than drafted tokens), its first node, and how many tokens it has drafted. nodes: token,
    parent (within the request, -1: the last committed token), and whether it was sampled. settings, seeds: one
    `settings_of` and one `seed_words` a request. q_logits: [N, V], row i the logits that node i was sampled from, under
    the same settings; None if none was, or the rule is coupled.
    """

    logits: Any
    layout: Integer[np.ndarray, "b 3"]
    nodes: Integer[np.ndarray, "n 3"]
    settings: Float[np.ndarray, "b 4"]
    seeds: UInt64[np.ndarray, "b 4"]
    q_logits: Any = None

    def __post_init__(self) -> None:
        """A kernel believes what it is given: what would lead it out of an array is refused here."""
        if len(self.logits.shape) != 2 or self.logits.shape[1] < 1:
            raise ValueError(f"logits: shape {tuple(self.logits.shape)}; it must be (rows, V)")
        rows, v = self.logits.shape
        b, n = len(self.layout), len(self.nodes)
        if len(self.settings) != b or len(self.seeds) != b:
            raise ValueError(f"settings, seeds: {len(self.settings)} and {len(self.seeds)} requests, layout has {b}")
        if (self.seeds[:, 0] + np.uint64(n) >= 1 << 32).any():
            raise ValueError("seeds: a root does not fit the counter; with its draft it must be below 2**32")
        first, node, length = self.layout.T
        if b and not (self.layout.min() >= 0 and (first + length).max() < rows and (node + length).max() <= n):
            raise ValueError(f"layout: it leads out of {rows} rows of logits or {n} nodes")
        tokens, parents, sampled = self.nodes.T
        if n and not (tokens.min() >= 0 and tokens.max() < v):
            raise ValueError(f"nodes: a token is not in 0 .. {v - 1}")
        if n and not (parents.min() >= ROOT and (parents < _index_in_request(self.layout, n)).all()):
            raise ValueError("nodes: parents must be -1 or an earlier node of the request")
        if self.q_logits is None and sampled.any():
            raise ValueError("q_logits: a node was sampled; it must hold the logits it was drawn from")
        if self.q_logits is not None and tuple(self.q_logits.shape) != (n, v):
            raise ValueError(
                f"q_logits: shape {tuple(self.q_logits.shape)}; it must be ({n}, {v}), a row for each node"
            )

    @classmethod
    def join(cls, parts: Sequence[Part]) -> Batch:
        """Requests that come one by one."""
        logits, firsts = _joined([part.logits for part in parts])
        lengths = [len(part.draft) for part in parts]
        ends = np.cumsum(lengths)
        nodes = np.zeros((int(ends[-1]), 3), np.int64)
        nodes[:, 0] = [token for part in parts for token in part.draft.tokens]
        nodes[:, 1] = [parent for part in parts for parent in part.draft.parents]
        q_logits = None
        if any(part.q_logits is not None for part in parts):
            nodes[:, 2] = [part.draft.law(node) is not None for part in parts for node in range(len(part.draft))]
            # rows of nodes that were chosen are not read
            rows = [part.logits[:-1] if part.q_logits is None else part.q_logits for part in parts]
            q_logits = rows[0] if len(rows) == 1 else np.concatenate(rows)
        return cls(
            logits,
            np.stack([firsts, ends - lengths, lengths], 1),
            nodes,
            np.array([settings_of(part.params) for part in parts]),
            np.array([seed_words(part.draft.root, part.sample, part.seed) for part in parts], np.uint64),
            q_logits,
        )

    def answer(self, rule: str) -> Verdicts:
        """To be filled in."""
        n = len(self.nodes)
        found = np.zeros((len(self.layout), 4), np.int64)
        return Verdicts(rule, self, found, np.zeros(n, np.int64), np.full((n, 4), np.nan))


def _joined(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, list[int]]:
    """Rows of several arrays as one, and where each begins in it: not copied if they are parts of one array already, as
    a forward leaves them."""
    whole = arrays[0].base
    if isinstance(whole, np.ndarray) and whole.ndim == 2 and whole.flags.c_contiguous:
        alike = whole.strides, whole.dtype, whole.shape[1:]
        if all(a.base is whole and (a.strides, a.dtype, a.shape[1:]) == alike for a in arrays):
            start = whole.__array_interface__["data"][0]
            return whole, [(a.__array_interface__["data"][0] - start) // whole.strides[0] for a in arrays]
    firsts = np.cumsum([0, *(len(a) for a in arrays)])[:-1].tolist()
    return (arrays[0] if len(arrays) == 1 else np.concatenate(arrays)), firsts


def _index_in_request(layout: np.ndarray, n: int) -> np.ndarray:
    """Each node's number within its request; nodes of none may have any parent."""
    index = np.full(n, n)
    for _, first, length in layout.tolist():
        index[first : first + length] = np.arange(length)
    return index


@dataclass(frozen=True, slots=True)
class Verdicts:
    """found: for each request how many nodes were accepted, the token after them, how often rounding emptied a
    residual, and which row holds no law (-1: none; rows of q count on from those of p). path: the accepted nodes of
    each request, where a rule takes trees. asked: p, q, prob and outcome of each node."""

    rule: str
    batch: Batch
    found: Integer[np.ndarray, "b 4"]
    path: Integer[np.ndarray, " n"]
    asked: Float[np.ndarray, "n 4"]

    def __len__(self) -> int:
        return len(self.found)

    @property
    def accepted(self) -> Integer[np.ndarray, " b"]:
        return self.found[:, 0]

    def verdict(self, b: int, q: Callable[[int], Any] = lambda node: 1) -> Verdict:
        """Request b's as the rules give it. q(node): what to note as q(x) where the rule did not look (coupled)."""
        _, at, n = self.batch.layout[b].tolist()
        accepted, last_token, rounding, _ = self.found[b].tolist()
        tokens, parents, _ = self.batch.nodes[at : at + n].T.tolist()
        trees = self.rule == "coupled"
        path = self.path[at : at + accepted].tolist() if trees else list(range(accepted))
        tests = self._walk(b, path, parents, q) if trees else self._chain(b)
        refused = children(parents, path[-1] if path else ROOT)
        last: Last = "replacement" if refused else "bonus" if path else "target"
        return Verdict(tuple(path), (*(tokens[node] for node in path), last_token), last, tuple(tests), rounding)

    def _walk(self, b: int, path: list[int], parents: list[int], q: Callable[[int], Any]) -> Iterator[Test]:
        """The coupled rule's questions: at each node of the path its children in order, up to the one that agreed."""
        _, at, n = self.batch.layout[b].tolist()
        root, asked = int(self.batch.seeds[b, 0]), self.asked[at : at + n].tolist()
        for depth, node in enumerate([ROOT, *path]):
            for child in children(parents, node):
                p, _, _, outcome = asked[child]
                if outcome == outcome:
                    yield Test(child, token_key(root + depth), p, q(child), None, outcome == 1)

    def _chain(self, b: int) -> Iterator[Test]:
        _, at, n = self.batch.layout[b].tolist()
        root, asked = int(self.batch.seeds[b, 0]), self.asked[at : at + n].tolist()
        for i in range(n) if self.rule == "token" else reversed(range(n)):
            p, q, prob, outcome = asked[i]
            if outcome == outcome:  # not NaN
                yield Test(i, Key(root, i, Purpose.ACCEPT, i), p, q, prob, outcome == 1)
