"""Is the text of a seed the same with speculation on and off?  python benchmarks/same_text.py --count 40

Every prompt is answered with each drafter and with none, at each temperature and dtype; the token ids must be equal.
Exit status 1 if any differ where the product claims "bit-exact".
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from prompts import DEFAULT, first_turns

from draftproof.llm import LLM
from draftproof.sampling import SamplingParams


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft-model", help="also draft with this model")
    parser.add_argument("--prompts", type=Path, default=DEFAULT)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--depth", type=int, default=5)
    args = parser.parse_args()
    prompts = first_turns(args.prompts, args.count)
    drafters = [{"method": "ngram"}]
    if args.draft_model:
        drafters.append({"method": "draft_model", "model": args.draft_model})
    print(
        "dtype     T  draft        claim      identical  tokens  passes  tokens/pass  rounds>=3  rejections", flush=True
    )
    broken = 0
    for dtype in args.dtypes:
        plain = LLM(args.model, dtype=dtype)
        for config in drafters:
            fast = plain.speculating(config | {"num_speculative_tokens": args.depth})
            for temperature in (0.0, 1.0):
                broken += compare(plain, fast, prompts, temperature, args.max_tokens, config["method"])
    return 1 if broken else 0


def compare(plain: LLM, fast: LLM, prompts: list[str], temperature: float, max_tokens: int, name: str) -> int:
    """Print one row; return how many texts break a claim of bit-exactness."""
    identical = tokens = passes = long = rejected = 0
    for seed, prompt in enumerate(prompts):
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
        ids = plain.encode(prompt)
        expected = plain.start(ids, params).result()
        request = fast.start(ids, params)
        for delta in request:
            long += len(delta.step.tokens) >= 3
            rejected += delta.step.verdict.last == "replacement"
        got = request.result()
        identical += got.token_ids == expected.token_ids and got.text == expected.text
        tokens += got.stats.emitted
        passes += got.stats.rounds
    dtype = expected.config["dtype"]
    print(
        f"{dtype:<9} {temperature:.0f}  {name:<11}  {plain.claim:<9}  {identical:>3} of {len(prompts):<3}"
        f"  {tokens:>6}  {passes:>6}  {tokens / passes:>11.2f}  {long:>9}  {rejected:>10}",
        flush=True,
    )
    return len(prompts) - identical if plain.claim == "bit-exact" else 0


if __name__ == "__main__":
    sys.exit(main())
