"""What drafting brings, prompt by prompt: plain decoding, `auto`, other drafters, and Hugging Face, in one process.

    python benchmarks/drafters.py --model smollm2-135m
    python benchmarks/drafters.py --model TARGET --draft DRAFT --hf plain assisted

Every system answers a prompt before the next prompt, so that a machine that drifts drifts for all, and so often that
the middle of its times counts (--repeat). No system keeps anything from one answer to the next: no prefix cache, no
memory of earlier answers. A system's speed-up is the sum of the seconds of plain decoding over the sum of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from prompts import DEFAULT, first_turns
from transformers import AutoModelForCausalLM

from draftproof.llm import LLM
from draftproof.models.load import DTYPES
from draftproof.sampling import SamplingParams
from draftproof.stats import Stats, together

Answer = tuple[list[int], Stats | None]
System = Callable[[list[int], float], Answer]
"""(prompt tokens, temperature) -> the answer's tokens, and the statistics of who has some."""


def ours(llm: LLM, max_tokens: int) -> System:
    def run(ids: list[int], temperature: float) -> Answer:
        params = SamplingParams(temperature=temperature, seed=0, max_tokens=max_tokens)
        [output] = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        return output.outputs[0].token_ids, output.stats

    return run


def hugging_face(model: Any, end: int, max_tokens: int, **options: Any) -> System:
    def run(ids: list[int], temperature: float) -> Answer:
        torch.manual_seed(0)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        prompt, mask = torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long)
        more = {"max_new_tokens": max_tokens, "pad_token_id": end, **sampling, **options}
        return model.generate(prompt, attention_mask=mask, **more)[0, len(ids) :].tolist(), None

    return run


def hf_systems(plain: LLM, args: argparse.Namespace) -> dict[str, System]:
    def load(path: Path) -> Any:
        return AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[args.dtype]).eval()

    if not args.hf:
        return {}
    model, end = load(plain.loaded.path), plain.loaded.tokenizer.eos_token_id
    found = {"Hugging Face, plain": hugging_face(model, end, args.max_tokens)}
    if "lookup" in args.hf:
        found["Hugging Face, lookup"] = hugging_face(model, end, args.max_tokens, prompt_lookup_num_tokens=10)
    if "assisted" in args.hf:
        for name, (tokens, schedule, confidence) in {
            "constant 3": (3, "constant", 0.0),
            "dynamic": (5, "heuristic", 0.0),
            "up to 8, sure of .4": (8, "constant", 0.4),
        }.items():
            assistant = load(Path(args.draft).expanduser())
            assistant.generation_config.num_assistant_tokens = tokens
            assistant.generation_config.num_assistant_tokens_schedule = schedule
            assistant.generation_config.assistant_confidence_threshold = confidence
            found[f"HF assisted, {name}"] = hugging_face(model, end, args.max_tokens, assistant_model=assistant)
    return found


def our_systems(plain: LLM, args: argparse.Namespace) -> dict[str, System]:
    auto: dict[str, Any] = {"method": "auto", "suffix_cache": False}
    if args.draft:
        auto |= {"model": args.draft, "draft_vocabulary": args.draft_vocabulary, "quantization": args.quantization}
    systems = {"plain": ours(plain, args.max_tokens)}
    if "auto" not in args.without:
        systems["auto"] = ours(plain.speculating(auto), args.max_tokens)
    for given in args.also:
        name, _, config = given.partition("=")
        systems[name] = ours(plain.speculating(json.loads(config)), args.max_tokens)
    return systems


def measured(systems: dict[str, System], prompts: list[list[int]], temperature: float, repeat: int) -> dict[str, Any]:
    found: dict[str, Any] = {name: {"seconds": [], "tokens": [], "stats": [], "ids": []} for name in systems}
    for i, ids in enumerate(prompts):
        times: dict[str, list[float]] = {name: [] for name in systems}
        answers: dict[str, Answer] = {}
        for _ in range(repeat):
            for name, run in systems.items():
                began = time.perf_counter()
                answers[name] = run(ids, temperature)
                times[name].append(time.perf_counter() - began)
        for name, (tokens, stats) in answers.items():
            found[name]["seconds"].append(median(times[name]))
            found[name]["tokens"].append(len(tokens))
            found[name]["ids"].append(tokens)
            found[name]["stats"].append(stats)
        print(f"\r{i + 1}/{len(prompts)}", end="", flush=True)
    print("\r", end="")
    return found


def report(found: dict[str, Any], temperature: float, base: str) -> list[dict[str, Any]]:
    """The table, and its rows as records. Seconds are compared a token: with noise of its own a system may end
    elsewhere."""
    rate = {name: [s / t for s, t in zip(each["seconds"], each["tokens"], strict=True)] for name, each in found.items()}
    print(f"T = {temperature:g}, against {base}")
    print(f"  {'system':<32} tokens  passes  a pass  seconds  speed-up  worst prompt  other texts than plain")
    records = []
    for name, each in found.items():
        ratios = [b / r for b, r in zip(rate[base], rate[name], strict=True)]
        speedup = (sum(found[base]["seconds"]) / sum(found[base]["tokens"])) / (
            sum(each["seconds"]) / sum(each["tokens"])
        )
        stats = None if each["stats"][0] is None else together(each["stats"])
        others = sum(a != b for a, b in zip(each["ids"], found["plain"]["ids"], strict=True))
        passes, per_pass = ("", "") if stats is None else (stats.rounds, f"{stats.tokens_per_pass:.2f}")
        print(
            f"  {name:<32} {sum(each['tokens']):>6}  {passes:>6}  {per_pass:>6}  {sum(each['seconds']):>7.1f}"
            f"  {speedup:>8.3f}  {min(ratios):>12.3f}  {'' if stats is None else others:>6}",
            flush=True,
        )
        if stats is not None and stats.drafts:
            origins = {origin: f"{stats.accepted_by.get(origin, 0)}/{n}" for origin, n in stats.drafted_by.items()}
            print(f"    accepted of drafted: {origins}; rounds that drafted nothing: {stats.plain}; last: {stats.why}")
        record = {"T": temperature, "system": name, "base": base, "speed_up": speedup, "worst": min(ratios)}
        counted = None if stats is None else stats.as_dict()
        records.append(
            record | {"ratios": ratios, "seconds": each["seconds"], "tokens": each["tokens"], "stats": counted}
        )
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft", help="a draft model, for auto and Hugging Face's assisted generation")
    parser.add_argument("--draft-vocabulary", type=int)
    parser.add_argument("--quantization", choices=["int8", "int4"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", type=Path, default=DEFAULT)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--hf", nargs="*", default=[], choices=["plain", "lookup", "assisted"])
    parser.add_argument("--also", nargs="*", default=[], metavar="NAME=JSON", help="more of our own systems")
    parser.add_argument("--without", nargs="*", default=[], choices=["auto"])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    plain = LLM(args.model, dtype=args.dtype, enable_prefix_caching=False)
    systems = our_systems(plain, args) | hf_systems(plain, args)
    prompts = [plain.encode(text) for text in first_turns(args.prompts, args.count)]
    for run in systems.values():  # warm up
        run(prompts[0][:16], 0.0)
    records = []
    for temperature in args.temperature:
        found = measured(systems, prompts, temperature, args.repeat)
        for base in ["plain", *(["Hugging Face, plain"] if args.hf else [])]:
            records += report(found, temperature, base)
        if args.json:
            args.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
