"""How often does a target accept a draft model?  python benchmarks/pair.py TARGET DRAFT

Prints, for each rule, the probability that a position that was reached is accepted: accepted / (accepted + rejected),
which does not depend on how many tokens are drafted, beside the acceptance length and the speed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from prompts import DEFAULT, first_turns

from draftproof.llm import LLM
from draftproof.sampling import SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--prompts", type=Path, default=DEFAULT)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--rules", nargs="+", default=["coupled", "token", "block"])
    args = parser.parse_args()
    plain = LLM(args.target)
    prompts = [plain.encode(text) for text in first_turns(args.prompts, args.count)]
    print("rule     reached  accepted  per position  acceptance length  tokens/s")
    for rule in args.rules:
        config = {"method": "draft_model", "model": args.draft, "num_speculative_tokens": args.depth, "verify": rule}
        llm = plain.speculating(config)
        accepted = rejected = drafts = tokens = 0
        seconds = 0.0
        for seed, ids in enumerate(prompts):
            params = SamplingParams(temperature=args.temperature, seed=seed, max_tokens=args.max_tokens)
            request = llm.start(ids, params)
            for delta in request:
                accepted += delta.step.accepted
                rejected += delta.step.verdict.last == "replacement"
                drafts += len(delta.step.draft) > 0
            stats = request.result().stats
            tokens += stats.emitted
            seconds += stats.seconds["total"]
        reached = accepted + rejected
        print(
            f"{rule:<8} {reached:>7}  {accepted:>8}  {accepted / reached:>12.3f}"
            f"  {1 + accepted / drafts:>17.2f}  {tokens / seconds:>8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
