"""Tokens a second by the number of requests at once: ours and Hugging Face's `generate`, in one process.

python benchmarks/batches.py --draw docs/measurements/batches.svg

Every system answers the same prompts, greedily, with the same limit. Hugging Face takes them in batches, padded on
the left and put in order of length, its best case; ours takes all at once and runs so many together. At each width
the systems take turns, `--repeat` times; the median is shown.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from prompts import DEFAULT, first_turns
from transformers import AutoModelForCausalLM

from draftproof.llm import LLM
from draftproof.models.load import DTYPES
from draftproof.sampling import SamplingParams

PEER = "Hugging Face, batched"


def theirs(model, pad: int, prompts: list[list[int]], width: int, max_tokens: int) -> Callable[[], int]:
    ordered = sorted(prompts, key=len)

    def run() -> int:
        made = 0
        for at in range(0, len(ordered), width):
            some = ordered[at : at + width]
            longest = max(map(len, some))
            ids = torch.tensor([[pad] * (longest - len(one)) + one for one in some])
            mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in some])
            out = model.generate(ids, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False, pad_token_id=pad)
            rows = out[:, longest:].tolist()
            made += sum(row.index(pad) + 1 if pad in row else len(row) for row in rows)
        return made

    return run


def ours(llm: LLM, prompts: list[list[int]], max_tokens: int, outside: list[float]) -> Callable[[], int]:
    """outside: gathers the share of the rounds' time that was not in forwards."""
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=max_tokens)

    def run() -> int:
        llm.engine.clear()
        before = dict(llm.engine.counts.seconds)
        made = sum(len(done.token_ids) for _, done in llm.answer([llm.reply(ids, params) for ids in prompts]))
        spent = {phase: now - before.get(phase, 0.0) for phase, now in llm.engine.counts.seconds.items()}
        outside.append(1 - spent["forward"] / sum(spent.values()))
        return made

    return run


def measure(args: argparse.Namespace) -> list[dict]:
    model, records = None, []
    for width in args.width:
        plain = LLM(args.model, dtype=args.dtype, max_num_seqs=width)
        ngram = plain.speculating({"method": "ngram", "num_speculative_tokens": args.depth})
        if model is None:
            model = AutoModelForCausalLM.from_pretrained(plain.loaded.path, dtype=DTYPES[args.dtype]).eval()
        prompts = [plain.encode(text) for text in first_turns(args.prompts, args.count)]
        pad, outside = plain.loaded.tokenizer.eos_token_id, {"draftproof, plain": [], "draftproof, n-gram": []}
        systems = {
            PEER: theirs(model, pad, prompts, width, args.max_tokens),
            "draftproof, plain": ours(plain, prompts, args.max_tokens, outside["draftproof, plain"]),
            "draftproof, n-gram": ours(ngram, prompts, args.max_tokens, outside["draftproof, n-gram"]),
        }
        theirs(model, pad, prompts[:2], width, 4)()  # warm up
        list(plain.answer([plain.reply(prompts[0], SamplingParams(temperature=0.0, max_tokens=4))]))
        rates: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(args.repeat):
            for name, run in systems.items():
                began = time.perf_counter()
                tokens = run()
                rates[name].append(tokens / (time.perf_counter() - began))
        base = median(rates[PEER])
        print(f"{width} at once")
        for name, found in rates.items():
            rate, share = median(found), median(outside[name]) if name in outside else None
            rest = "" if share is None else f", {share:.1%} outside the forwards"
            print(f"  {name:<24} {rate:7.1f} tokens/s  {rate / base:.2f} x{rest}", flush=True)
            records.append({"width": width, "system": name, "rates": found, "outside": share})
    return records


def draw(records: list[dict], path: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4), layout="constrained")
    for name in dict.fromkeys(record["system"] for record in records):
        mine = [record for record in records if record["system"] == name]
        axes.plot([r["width"] for r in mine], [median(r["rates"]) for r in mine], marker="o", label=name)
    widths = sorted({record["width"] for record in records})
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.set_xlabel("requests at once")
    axes.set_ylabel("tokens a second")
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", type=Path, default=DEFAULT)
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--width", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--depth", type=int, default=5, help="most tokens drafted a round")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--draw", type=Path, help="also draw the curves: a .svg or .png file")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    records = measure(args)
    if args.draw:
        draw(records, args.draw, f"{args.model}, {args.dtype}, {args.count} prompts, {args.max_tokens} tokens each")
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
