"""Random cases, each decided by a rule and by its kernels: the same path, tokens and answers, or it is printed.

The rule works on float64 laws with NumPy; the kernels on raw logits, by Numba and by plain torch. Cases have ties,
masked tokens, flat and sharp rows, every kind of truncation, temperatures from 0 to 50, chains and (coupled) trees.

    OMP_NUM_THREADS=1 python benchmarks/kernel_cases.py --count 100000
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from draftproof.base import Draft, Kind, Verdict
from draftproof.chance import PhiloxChance
from draftproof.kernels import KERNELS, Batch, Verdicts, decide, seed_words, settings_of
from draftproof.kernels.plain import decide as plain
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of

SIZES = (1, 2, 3, 5, 50, 256, 257, 700, 3000)
TEMPERATURES = (0.0, 1e-42, 1e-6, 0.05, 0.3, 0.55, 0.7, 0.8, 1.0, 1.0, 1.0, 1.1, 1.25, 2.0, 50.0)


@dataclass(frozen=True)
class Case:
    """One request: what the rule sees (draft, rows) and what the kernels see (logits)."""

    rule: str
    draft: Draft
    logits: np.ndarray  # [n + 1, v] float32
    q_logits: np.ndarray  # [n, v] float32
    params: SamplingParams
    seed: int

    def by_rule(self) -> Verdict:
        law = law_of(self.params)
        return RULES[self.rule](self.draft, [law(row, ()) for row in self.logits], PhiloxChance(self.seed))


def random_case(rng: np.random.Generator, rule: str, size: int | None = None) -> Case:
    v = int(rng.choice(SIZES)) if size is None else size
    n = int(rng.integers(0, 6))
    logits, q_logits = _rows(rng, n, v)
    params = SamplingParams(
        temperature=float(rng.choice(TEMPERATURES)),
        top_k=int(rng.choice([0, 0, 0, 1, 2, 40, 600, 5000])),
        top_p=float(rng.choice([1, 1, 1, 0.1, 0.5, 0.9, 0.999])),
        min_p=float(rng.choice([0, 0, 0, 0.02, 0.5, 1.0])),
    )
    law = law_of(params)
    parents = tuple(range(-1, n - 1))
    if rule == "coupled":
        parents = tuple(int(rng.integers(-1, i)) if rng.random() < 0.5 else i - 1 for i in range(n))
    tokens, kinds = [], []
    for i in range(n):
        sampled = rule != "coupled" and rng.random() < 0.6
        kinds.append(Kind.SAMPLED if sampled else Kind.CHOSEN)
        likely = sampled or rng.random() < 0.8
        row = law(q_logits[i] if sampled else logits[parents[i] + 1], ())
        tokens.append(int(rng.choice(v, p=row)) if likely else int(rng.integers(v)))
    rows = tuple(law(row, ()) for row in q_logits)
    row_of = tuple(i if kind is Kind.SAMPLED else -1 for i, kind in enumerate(kinds))
    draft = Draft(int(rng.integers(1 << 20)), tuple(tokens), parents, tuple(kinds), ("",) * n, rows, row_of)
    return Case(rule, draft, logits, q_logits, params, int(rng.integers(2**63)))


def _rows(rng: np.random.Generator, n: int, v: int) -> tuple[np.ndarray, np.ndarray]:
    logits = rng.normal(size=(n + 1, v)) * rng.choice([0.0, 0.5, 2.0, 6.0]) + rng.choice([-300.0, 0.0, 5.0])
    q_logits = logits[:n] + rng.normal(size=(n, v)) * rng.choice([0.0, 0.05, 1.0, 4.0])
    both = [logits, q_logits]
    if rng.random() < 0.4:  # ties
        both = [np.round(x * 2) / 2 for x in both]
    if v > 2 and rng.random() < 0.3:  # a grammar leaves few tokens
        masked = rng.random(v) < rng.choice([0.3, 0.95])
        masked[rng.integers(v)] = False
        both = [np.where(masked, -np.inf, x) for x in both]
    if v > 256 and rng.random() < 0.2:  # whole groups without a token, in one of the two or both
        hidden = (np.arange(v) // 128) % rng.integers(2, 6) == 0
        hidden[rng.integers(128, v)] = False
        for i in {int(rng.integers(2)), int(rng.integers(2))}:
            both[i] = np.where(hidden, -np.inf, both[i])
            both[i][:, 200] = np.maximum(both[i][:, 200], -5)
    if rng.random() < 0.05:  # as far as float32 goes
        both = [np.where(np.isfinite(x), x * 1e37, x).clip(-3e38, 3e38) for x in both]
    if rng.random() < 0.3:  # what bfloat16 can say
        both = [_rounded(x) for x in both]
    return both[0].astype(np.float32), both[1].astype(np.float32)


def _rounded(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(x).to(torch.bfloat16).double().numpy()


def batch_of(cases: Sequence[Case], half: bool = False) -> Batch:
    """The cases, of one vocabulary, as one ragged batch. half: as bfloat16, which must hold them exactly."""
    lengths = np.array([len(case.draft) for case in cases])
    firsts = np.concatenate([[0], np.cumsum(lengths)])[:-1]
    layout = np.stack([firsts + np.arange(len(cases)), firsts, lengths], axis=1)
    nodes = np.zeros((int(lengths.sum()), 3), np.int64)
    for case, at, n in zip(cases, firsts, lengths, strict=True):
        nodes[at : at + n, 0], nodes[at : at + n, 1] = case.draft.tokens, case.draft.parents
        nodes[at : at + n, 2] = [kind is Kind.SAMPLED for kind in case.draft.kind]
    logits: Any = np.concatenate([case.logits for case in cases])
    q_logits: Any = np.concatenate([case.q_logits for case in cases])
    if half:
        logits, q_logits = (torch.from_numpy(x).to(torch.bfloat16) for x in (logits, q_logits))
    return Batch(
        logits,
        layout,
        nodes,
        np.array([settings_of(case.params) for case in cases]),
        np.array([seed_words(case.draft.root, 0, case.seed) for case in cases], np.uint64),
        q_logits if len(q_logits) else None,
    )


def exact_in_half(case: Case) -> bool:
    return all(np.array_equal(_rounded(x), x) for x in (case.logits, case.q_logits))


def differences(case: Case, verdicts: Verdicts, b: int) -> list[str]:
    """What the kernel's verdict says otherwise than the rule's. Probabilities may differ by rounding: p and q by 1e-6
    of themselves, a coin's by 1e-6 (a small difference of two float32 sums, for block)."""
    known, found = case.by_rule(), verdicts.verdict(b)
    out = [
        f"{name}: {getattr(known, name)} {getattr(found, name)}"
        for name in ("path", "tokens", "last", "rounding")
        if getattr(known, name) != getattr(found, name)
    ]
    if [(t.node, t.key, t.accepted) for t in known.tests] != [(t.node, t.key, t.accepted) for t in found.tests]:
        return [*out, f"tests: {known.tests} {found.tests}"]
    for a, b_ in zip(known.tests, found.tests, strict=True):
        laws, prob = [(a.p, b_.p), (a.q, b_.q)], (a.prob or 0.0, b_.prob or 0.0)
        if not np.allclose(*np.array(laws, float).T, rtol=1e-6, atol=1e-12) or abs(prob[0] - prob[1]) > 1e-6:
            out.append(f"node {a.node}: {a} {b_}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", type=int, default=20, help="one case in so many also runs through plain torch")
    args = parser.parse_args()
    rng, began, wrong, drafted, accepted = np.random.default_rng(args.seed), time.perf_counter(), 0, 0, 0
    for i in range(args.count):
        case = random_case(rng, KERNELS[i % len(KERNELS)])
        half = exact_in_half(case) and rng.random() < 0.5
        batch = batch_of([case], half)
        for form in (decide, plain) if i % args.plain == 0 else (decide,):
            verdicts = form(case.rule, batch)
            found = differences(case, verdicts, 0)
            wrong += bool(found)
            if found:
                print(f"case {i}, {case.rule}, {form.__module__}: {case.params} {found}", flush=True)
        drafted += len(case.draft)
        accepted += int(verdicts.accepted[0])
    print(
        f"{args.count} cases, {drafted} drafted tokens, {accepted} accepted: {wrong} decided otherwise; "
        f"{time.perf_counter() - began:.0f} s"
    )
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
