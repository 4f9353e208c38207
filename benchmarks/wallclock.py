"""Seconds for the same prompts: ours and Hugging Face `generate`, in one process.  python benchmarks/wallclock.py

Each prompt runs through every system in turn before the next prompt, so that a machine that drifts drifts for all.
Greedy and T = 1; the same prompt tokens and the same number of new tokens (end of sequence is ignored by none).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
from prompts import DEFAULT, first_turns
from transformers import AutoModelForCausalLM

from draftproof import generate
from draftproof.llm import LLM
from draftproof.models.load import DTYPES
from draftproof.sampling import SamplingParams

Run = Callable[[list[int]], int]  # prompt tokens -> number of new tokens


def ours(llm: LLM, temperature: float, max_tokens: int, spent: dict[str, float]) -> Run:
    """`spent` gathers the seconds of the rounds' phases."""
    params = SamplingParams(temperature=temperature, seed=0, max_tokens=max_tokens)

    def run(ids: list[int]) -> int:
        stats = llm.start(ids, params).result().stats
        for phase in ("propose", "forward", "verify", "commit"):
            spent[phase] = spent.get(phase, 0.0) + stats.seconds[phase]
        return stats.emitted

    return run


def by_generate(llm: LLM, generate: Callable, temperature: float, max_tokens: int, **options) -> Run:
    """generate: `model.generate`, or draftproof's of the same arguments."""

    def run(ids: list[int]) -> int:
        torch.manual_seed(0)
        sampling = (
            {"do_sample": False} if temperature == 0 else {"do_sample": True, "temperature": temperature, "top_k": 0}
        )
        prompt = torch.tensor([ids])
        out = generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_tokens,
            pad_token_id=llm.loaded.tokenizer.eos_token_id,
            **sampling,
            **options,
        )
        return out.shape[1] - len(ids)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", type=Path, default=DEFAULT)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    plain = LLM(args.model, dtype=args.dtype)
    ngram = plain.speculating({"method": "ngram"})
    model = AutoModelForCausalLM.from_pretrained(plain.loaded.path, dtype=DTYPES[args.dtype]).eval()
    prompts = [plain.encode(text) for text in first_turns(args.prompts, args.count)]
    records = []
    for temperature in (0.0, 1.0):
        spent: dict[str, float] = {}
        systems = {
            "Hugging Face, plain": by_generate(plain, model.generate, temperature, args.max_tokens),
            "Hugging Face, prompt lookup 10": by_generate(
                plain, model.generate, temperature, args.max_tokens, prompt_lookup_num_tokens=10
            ),
            "draftproof.generate, n-gram 5": by_generate(plain, partial(generate, model), temperature, args.max_tokens),
            "draftproof, plain": ours(plain, temperature, args.max_tokens, {}),
            "draftproof, n-gram 5": ours(ngram, temperature, args.max_tokens, spent),
        }
        for run in systems.values():  # warm up
            run(prompts[0][:16])
        rates: dict[str, list[float]] = {name: [] for name in systems}
        totals: dict[str, list[float]] = {name: [0, 0.0] for name in systems}
        for ids in prompts:
            for name, run in systems.items():
                began = time.perf_counter()
                tokens = run(ids)
                seconds = time.perf_counter() - began
                rates[name].append(tokens / seconds)
                totals[name][0] += tokens
                totals[name][1] += seconds
        base = rates["Hugging Face, plain"]
        print(f"T = {temperature:.0f}, {args.dtype}, {len(prompts)} prompts")
        for name in systems:
            ratio = median(a / b for a, b in zip(rates[name], base, strict=True))
            tokens, seconds = totals[name]
            print(
                f"  {name:<32} {tokens:>5} tokens {seconds:>7.1f} s {tokens / seconds:>6.1f} tokens/s  {ratio:.2f} x",
                flush=True,
            )
            records.append({"T": temperature, "system": name, "tokens": tokens, "seconds": seconds, "ratio": ratio})
        outside = {phase: seconds / sum(spent.values()) for phase, seconds in spent.items() if phase != "forward"}
        shares = ", ".join(f"{phase} {share:.2%}" for phase, share in outside.items())
        print(f"  n-gram rounds outside the forwards: {sum(outside.values()):.2%} ({shares})")
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
