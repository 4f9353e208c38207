"""Milliseconds of a forward for many requests: each with buffers of its own, in the arena, and Hugging Face's batch.

python benchmarks/neighbours.py

The three take turns on the same lengths; medians. Hugging Face's batch has no padding here, its best case.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from draftproof.base import Feed
from draftproof.models.hf import HFTarget
from draftproof.models.load import DTYPES, load


def tokens(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    return tuple(rng.integers(100, 40_000, count).tolist())


def ours(target: HFTarget, requests: int, rows: int, context: int) -> Callable[[], object]:
    rng = np.random.default_rng(0)
    sessions = [target.open(context + rows) for _ in range(requests)]
    for session in sessions:
        target.forward([Feed(session, tokens(rng, context), want=())])
        target.commit([session], [()])
    feeds = [Feed(session, tokens(rng, rows), tuple(range(-1, rows - 2))) for session in sessions]
    return lambda: target.forward(feeds)


def theirs(model, requests: int, context: int) -> Callable[[], object]:
    rng = np.random.default_rng(0)
    ids = torch.tensor([tokens(rng, context) for _ in range(requests)])
    with torch.inference_mode():
        cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values

    @torch.inference_mode()
    def run() -> None:
        model(ids[:, :1], cache=cache, use_cache=True)
        cache.crop(context)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--context", type=int, nargs="+", default=[128, 1000])
    parser.add_argument("--repeat", type=int, default=9)
    args = parser.parse_args()
    loaded = load(args.model, dtype=args.dtype)
    own, shared = loaded.target, HFTarget(loaded.target.model, loaded.target.plan)
    shared.provide(32, max(args.context) + 64)
    model = AutoModelForCausalLM.from_pretrained(loaded.path, dtype=DTYPES[args.dtype]).eval()
    print("context requests rows | own buffers  arena  | Hugging Face, one row each")
    for context in args.context:
        for requests, rows in [(1, 1), (8, 1), (8, 3), (16, 1), (32, 1)]:
            runs = {"own": ours(own, requests, rows, context), "arena": ours(shared, requests, rows, context)}
            if rows == 1:
                runs["theirs"] = theirs(model, requests, context)
            spent: dict[str, list[float]] = {name: [] for name in runs}
            for turn in range(args.repeat + 1):
                for name, run in runs.items():
                    began = time.perf_counter()
                    run()
                    if turn:
                        spent[name].append(1e3 * (time.perf_counter() - began))
            ms = {name: median(found) for name, found in spent.items()}
            rest = f"{ms['theirs']:8.1f}" if "theirs" in ms else ""
            print(f"{context:7} {requests:8} {rows:4} | {ms['own']:11.1f} {ms['arena']:6.1f}  | {rest}", flush=True)


if __name__ == "__main__":
    main()
