"""A million seeded draws a rule at V = 50, against the exact law: chi-square with pooled cells.

Each draw drafts, verifies with `draftproof.verify` and, where fewer than two tokens came out, adds tokens of the
target; the joint law of the first two must be p₀ ⊗ p₁. Cells that expect fewer than 20 draws are pooled. The statistic
is compared with a bound that a chi-square variable exceeds with probability at most 1e-9 (Laurent and Massart 2000,
lemma 1): error budget 1e-9 a rule, 6e-9 in all, as far as a lossless rule's statistic has its asymptotic law.

    OMP_NUM_THREADS=1 python benchmarks/draws.py --count 1000000 [--kernels]
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from draftproof import verify
from draftproof.base import Purpose, token_key
from draftproof.chance import PhiloxChance
from draftproof.kernels import KERNELS, Batch, decide, draw, seed_words, settings_of
from draftproof.sampling import SamplingParams

V = 50
ALPHA = 1e-9
SMALLEST = 20  # expected draws below which a cell is pooled with others

_rng = np.random.default_rng(50)
P, Q = _rng.dirichlet(np.full(V, 0.5), size=4), _rng.dirichlet(np.full(V, 0.5), size=3)
Q = 0.5 * (P[:3] + Q)  # 1 − TV is .74, .65 and .70

Drafts = tuple[list[int], list[int] | None, np.ndarray | None]  # tokens, parents, the laws they were drawn from


def chain(rng: np.random.Generator) -> Drafts:
    return [_draw(rng, row) for row in Q], None, Q


def distinct_tree(rng: np.random.Generator) -> Drafts:
    """Two siblings without replacement, two below each."""
    return _tree(rng, replacement=False)


def independent_tree(rng: np.random.Generator) -> Drafts:
    return _tree(rng, replacement=True)


def greedy_level(rng: np.random.Generator) -> Drafts:
    """The three likeliest tokens and one drawn from the rest."""
    top = np.argsort(-Q[0])[:3]
    rest = Q[0].copy()
    rest[top] = 0
    rest /= rest.sum()
    x = _draw(rng, rest)
    return [*top.tolist(), x], [-1] * 4, np.stack([*np.eye(V)[top], rest])


def _tree(rng: np.random.Generator, replacement: bool) -> Drafts:
    tokens, parents, laws = [], [], []
    for parent, depth in ((-1, 0), (0, 1), (1, 1)):
        law = Q[depth]
        for _ in range(2):
            x = _draw(rng, law)
            tokens.append(x)
            parents.append(parent)
            laws.append(law)
            if not replacement:
                law = np.where(np.arange(V) == x, 0, law)
                law = law / law.sum()
    return tokens, parents, np.stack(laws)


def _draw(rng: np.random.Generator, row: np.ndarray) -> int:
    return min(int(np.searchsorted(np.cumsum(row), rng.random() * row.sum(), side="right")), V - 1)


DRAFTS: dict[str, Callable[[np.random.Generator], Drafts]] = {
    "token": chain,
    "block": chain,
    "recursive": distinct_tree,
    "traversal": independent_tree,
    "greedy_multi": greedy_level,
}
RULES = [*DRAFTS, "coupled"]


@dataclass(frozen=True)
class Result:
    statistic: float
    degrees: int
    limit: float
    accepted: float


def first_two(rule: str, rng: np.random.Generator) -> tuple[int, int, int]:
    """The first two tokens of one draw, and how many drafted ones were accepted."""
    chance = rng
    if rule == "coupled":  # the drafter shares the target's noise
        chance = PhiloxChance(int(rng.integers(2**63)))
        tokens, parents, laws = [chance.pick(row, token_key(i))[0] for i, row in enumerate(Q)], None, None
    else:
        tokens, parents, laws = DRAFTS[rule](rng)
    depth = [0]
    for parent in range(-1, len(tokens) - 1) if parents is None else parents:
        depth.append(depth[parent + 1] + 1)
    verdict = verify(tokens, P[depth], laws, rule=rule, parents=parents, rng=chance)
    text = list(verdict.tokens[:2])
    while len(text) < 2:
        text.append(_draw(rng, P[len(text)]))
    return text[0], text[1], verdict.accepted


def by_kernel(rule: str, rng: np.random.Generator, count: int) -> tuple[np.ndarray, int]:
    """`count` draws of a chain rule through its kernel, from logits: how often each pair came, and tokens accepted."""
    with np.errstate(divide="ignore"):
        logits, q_logits = np.log(P).astype(np.float32), np.log(Q).astype(np.float32)
    counts, accepted, params = np.zeros((V, V)), 0, SamplingParams()
    n, most = len(Q), 1000
    ends = np.cumsum(Q, axis=1)
    for first in range(0, count, most):
        b = min(most, count - first)
        seeds = rng.integers(2**63, size=b)
        words = np.array([seed_words(0, 0, int(seed)) for seed in seeds], np.uint64)
        if rule == "coupled":  # the drafter shares the target's noise
            drawn = [[_kernel_draw(q_logits[i], params, words[j], i) for i in range(n)] for j in range(b)]
            tokens = np.array(drawn)
        else:
            u = rng.random((n, b, 1)) * ends[:, None, -1:]
            tokens = (u >= ends[:, None]).sum(2).clip(max=V - 1).T
        nodes = np.stack([tokens.reshape(-1), np.tile(np.arange(-1, n - 1), b), np.full(b * n, rule != "coupled")], 1)
        layout = np.stack([np.arange(b) * (n + 1), np.arange(b) * n, np.full(b, n)], axis=1)
        settings = np.tile(settings_of(params), (b, 1))
        rows, q_rows = np.tile(logits, (b, 1)), np.tile(q_logits, (b, 1))
        found = decide(rule, Batch(rows, layout, nodes.astype(np.int64), settings, words, q_rows)).found
        accepted += int(found[:, 0].sum())
        for j in range(b):
            text = [*tokens[j, : found[j, 0]].tolist(), int(found[j, 1])][:2]
            while len(text) < 2:
                text.append(_draw(rng, P[len(text)]))
            counts[text[0], text[1]] += 1
    return counts, accepted


def _kernel_draw(row: np.ndarray, params: SamplingParams, words: np.ndarray, position: int) -> int:
    seed = (position, *words[1:].tolist())
    found = draw(row, settings_of(params), seed, 0, 0, Purpose.TOKEN)
    assert found is not None
    return found[0][0]


def chi_square(counts: np.ndarray) -> Result:
    """Pearson's statistic against p₀ ⊗ p₁, small cells pooled."""
    expected = np.outer(P[0], P[1]).ravel() * counts.sum()
    order = np.argsort(expected)
    small = order[expected[order] < SMALLEST]
    cells = [(counts.ravel()[i], expected[i]) for i in order[len(small) :]]
    if expected[small].sum() > 0:
        cells.append((counts.ravel()[small].sum(), expected[small].sum()))
    statistic = sum((n - e) ** 2 / e for n, e in cells)
    degrees, t = len(cells) - 1, -math.log(ALPHA)
    return Result(float(statistic), degrees, degrees + 2 * math.sqrt(degrees * t) + 2 * t, 0.0)


def run(rule: str, count: int, seed: int = 0, kernels: bool = False) -> Result:
    rng = np.random.default_rng([seed, RULES.index(rule), kernels])
    if kernels:
        counts, accepted = by_kernel(rule, rng, count)
    else:
        counts, accepted = np.zeros((V, V)), 0
        for _ in range(count):
            a, b, kept = first_two(rule, rng)
            counts[a, b] += 1
            accepted += kept
    result = chi_square(counts)
    return Result(result.statistic, result.degrees, result.limit, accepted / count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--rule", choices=RULES, action="append")
    parser.add_argument("--kernels", action="store_true", help="the kernels, from logits, instead of draftproof.verify")
    args = parser.parse_args()
    failed = False
    for rule in args.rule or (KERNELS if args.kernels else RULES):
        began = time.perf_counter()
        result = run(rule, args.count, kernels=args.kernels)
        failed |= result.statistic > result.limit
        print(
            f"{rule:13} {args.count} draws, {result.degrees} degrees of freedom: chi-square {result.statistic:.1f}, "
            f"limit {result.limit:.1f}, {result.accepted:.3f} accepted a draw, {time.perf_counter() - began:.0f} s",
            flush=True,
        )
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
