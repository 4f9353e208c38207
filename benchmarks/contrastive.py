"""Contrastive decoding, with the amateur drafting and without.  python benchmarks/contrastive.py --expert X --amateur Y

Every prompt is answered twice at each temperature from the same seed: the token ids must be equal. Exit status 1 if any
differ where both models keep their bits. The tokens/s of the two are of the same prompts in turn.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prompts import DEFAULT, first_turns

from draftproof.assemble import Known, output_for
from draftproof.base import Drafter, Kind
from draftproof.control import Fixed
from draftproof.drafters import ModelDrafter, NoDrafter
from draftproof.engine import Engine, EngineConfig
from draftproof.generation import end_ids
from draftproof.inputs import chat_tokens
from draftproof.kernels import warm
from draftproof.kernels.lazy import KernelChance, fused, judge, raw_law_of
from draftproof.memory import KVMemory
from draftproof.models.contrastive import ContrastiveTarget, require_contrast
from draftproof.models.load import Loaded, load, require_same_vocabulary
from draftproof.models.sizes import kv_memory_here
from draftproof.sampling import SamplingParams
from draftproof.seats import Request
from draftproof.stats import Stats, together

SYSTEMS = ("plain", "amateur drafts")


@dataclass(frozen=True)
class Runner:
    """What one `LLM` would be, but for its drafter: the engine over both models."""

    expert: Loaded
    amateur: Loaded
    target: ContrastiveTarget
    engine: Engine
    known: Known

    @classmethod
    def of(cls, args: argparse.Namespace) -> Runner:
        expert, amateur = load(args.expert, dtype=args.dtype), load(args.amateur, dtype=args.dtype)
        require_same_vocabulary(expert, amateur)
        target = ContrastiveTarget(expert.target, amateur.target, alpha=args.alpha, beta=args.beta)
        memory = kv_memory_here("auto")
        target.provide(1, memory // target.kv_bytes_per_token)
        # nothing is reused: the second answer to a prompt would begin with what the first has computed
        config = EngineConfig(enable_prefix_caching=False)
        engine = Engine(target, KVMemory(memory), config, judge=judge)
        ends = end_ids(expert.generation, expert.tokenizer.eos_token_id)
        return cls(expert, amateur, target, engine, Known(expert.tokenizer, target.vocab_size, ends))

    def encode(self, text: str) -> list[int]:
        return chat_tokens([{"role": "user", "content": text}], self.expert.tokenizer)

    def answer(self, ids: list[int], params: SamplingParams, drafter: Drafter, depth: int) -> tuple[list[int], Stats]:
        """Under the coupled rule."""
        limit = min(params.max_tokens or 1, self.target.max_context - len(ids))
        output, stats = output_for(params, ids, limit, self.known), Stats()
        parts = drafter, Fixed(depth), fused("coupled", params), raw_law_of(params), KernelChance(params.seed or 0)
        self.engine.add(Request("prompt", ids, output, *parts))
        while self.engine.busy:
            for event in self.engine.step():
                if event.step is None:
                    raise event.error or RuntimeError("engine: the request ended without a reason")
                stats.add(event.step)
        return output.token_ids, stats


def compare(runner: Runner, prompts: list[list[int]], temperature: float, args: argparse.Namespace) -> dict[str, Any]:
    """Print a row; return it."""
    drafters = NoDrafter(), ModelDrafter(runner.amateur.target, Kind.COUPLED, runner.amateur.name)
    spent: tuple[list[Stats], list[Stats]] = [], []
    differ = 0
    for seed, ids in enumerate(prompts):
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=args.max_tokens)
        said = []
        for drafter, depth, found in zip(drafters, (0, args.depth), spent, strict=True):
            answer, stats = runner.answer(ids, params, drafter, depth)
            said.append(answer)
            found.append(stats)
        differ += said[0] != said[1]
    plain, drafted = map(together, spent)
    rates = {name: speed(found) for name, found in zip(SYSTEMS, spent, strict=True)}
    length = drafted.acceptance_length
    print(
        f"{temperature:<4}  {differ:>3} of {len(prompts):<3}  {plain.emitted:>6}  {rates['plain']:>9.2f}"
        f"  {rates['amateur drafts']:>18.2f}  {length or 1:>17.2f}  {drafted.accepted:>4} of {drafted.drafted}",
        flush=True,
    )
    return {
        "T": temperature,
        "prompts": len(prompts),
        "differ": differ,
        "tokens": plain.emitted,
        "tokens_per_second": rates,
        "acceptance_length": length,
        "drafted": drafted.drafted,
        "accepted": drafted.accepted,
    }


def speed(answers: list[Stats]) -> float:
    """Tokens a second over all answers, prompts included."""
    return sum(stats.emitted for stats in answers) / sum(stats.seconds["total"] for stats in answers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--expert", required=True)
    parser.add_argument("--amateur", required=True)
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--beta", type=float, default=0.5)
    parser.add_argument("--prompts", type=Path, default=DEFAULT)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    require_contrast(args.alpha, args.beta)
    warm()
    runner = Runner.of(args)
    prompts = [runner.encode(text) for text in first_turns(args.prompts, args.count)]
    runner.answer(prompts[0][:16], SamplingParams(temperature=0, max_tokens=4), NoDrafter(), 0)  # warm up
    exact = runner.target.plan.exact
    print(f"alpha {args.alpha}, beta {args.beta}, {args.dtype}, {'bit-exact' if exact else 'same law'}")
    print("T     differ      tokens  plain t/s  amateur drafts t/s  acceptance length  accepted", flush=True)
    rows = [compare(runner, prompts, temperature, args) for temperature in (0.0, 0.8)]
    if args.json:
        asked = {name: getattr(args, name) for name in ("expert", "amateur", "alpha", "beta", "depth", "dtype")}
        args.json.write_text(json.dumps(asked | {"exact": exact, "rows": rows}, indent=1) + "\n")
    return 1 if exact and any(row["differ"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
