"""A model that drafts for itself must be accepted always.  python benchmarks/self_drafting.py --tokens 200

The strictest test of positions, caches and noise: one row of one forward out of place and a round rejects.
"""

from __future__ import annotations

import argparse
import sys

from draftproof.base import Kind
from draftproof.chance import PhiloxChance
from draftproof.commit import Output
from draftproof.control import Fixed
from draftproof.drafters import ModelDrafter
from draftproof.llm import LLM
from draftproof.loop import decode
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--depths", nargs="+", type=int, default=list(range(1, 9)))
    args = parser.parse_args()
    llm = LLM(args.model, dtype=args.dtype)
    prompt = llm.encode("Tell me a long story about the sea.")
    bad = 0
    for rule, kind in (("coupled", Kind.COUPLED), ("token", Kind.SAMPLED)):
        for depth in args.depths:
            params = SamplingParams(seed=depth, max_tokens=args.tokens)
            output = Output(params, args.tokens)  # no end ids: all tokens are generated
            steps = list(
                decode(
                    prompt,
                    output,
                    target=llm.loaded.target,
                    drafter=ModelDrafter(llm.loaded.target, kind),
                    controller=Fixed(depth),
                    rule=RULES[rule],
                    law=law_of(params),
                    chance=PhiloxChance(depth),
                )
            )
            drafted = sum(len(step.draft) for step in steps)
            accepted = sum(step.accepted for step in steps)
            bad += drafted != accepted
            print(
                f"{rule:<8} K = {depth}: {len(steps):>3} rounds, {accepted} of {drafted} drafted accepted", flush=True
            )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
