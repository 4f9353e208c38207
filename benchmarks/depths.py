"""How long to draft, and with how large a draft: speed by depth, measured and predicted.

    python benchmarks/depths.py --config '{"method": "suffix"}'
    python benchmarks/depths.py --model TARGET --config '{"method": "draft_model", "model": "DRAFT"}'
    python benchmarks/depths.py --layers 4 8 12 20 --depths 1 2 4

Each prompt runs plainly and at every depth before the next one. Predicted: theory.speed_up from the acceptance that was
measured at each position (given that it was reached), the cost of rows, and the time of a drafted level.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from prompts import DEFAULT, first_turns

from draftproof.calibrate import calibrated
from draftproof.llm import LLM
from draftproof.sampling import SamplingParams
from draftproof.stats import Stats, together
from draftproof.theory import speed_up


def answered(llm: LLM, ids: list[int], temperature: float, max_tokens: int) -> Stats:
    params = SamplingParams(temperature=temperature, seed=0, max_tokens=max_tokens)
    reply = llm.reply(ids, params)
    for _ in llm.stream(reply):
        pass
    return reply.stats


def decoding(parts: list[Stats]) -> tuple[Stats, float]:
    """All of them, and their seconds without prompts."""
    return together(parts), sum(part.seconds["total"] - part.seconds["prefill"] for part in parts)


def conditional(stats: Stats) -> list[float]:
    """Acceptance of each position among the rounds that reached it."""
    reached, found = stats.drafts, []
    for accepted, drafted in zip(stats.accepted_per_position, stats.drafted_per_position, strict=True):
        reached = min(reached, drafted)
        found.append(accepted / reached if reached else 0.0)
        reached = accepted
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--config", type=json.loads, default={"method": "suffix"}, help="speculative_config, as JSON")
    parser.add_argument("--layers", type=int, nargs="*", help="early exits after so many layers, in place of --config")
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8, 12, 16])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--prompts", type=Path, default=DEFAULT)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()
    plain = LLM(args.model, enable_prefix_caching=False)
    configs: list[dict[str, Any]] = [args.config]
    if args.layers:
        configs = [{"method": "early_exit", "early_exit_layers": layers} for layers in args.layers]
    prompts = [plain.encode(text) for text in first_turns(args.prompts, args.count)]
    for config in configs:
        if config["method"] == "suffix":
            config |= {"suffix_cache": False}
        llms = {k: plain.speculating(config | {"num_speculative_tokens": k}) for k in args.depths}
        first = next(iter(llms.values()))._drafting
        models = {"model": first.draft.target} if first.draft is not None else {}
        if config["method"] == "early_exit":
            models = {"early_exit": plain.loaded.target.early(config["early_exit_layers"])}
        costs = calibrated(plain.loaded, models)
        rounds = costs.rounds(100, 0, max(args.depths))
        level = (costs.level(next(iter(models))) or 0.0) if models else 0.0
        print(f"{config}: a level costs {level / rounds[0]:.3f} of a pass; rows cost " + _curve(rounds))
        for temperature in args.temperature:
            parts: dict[int, list[Stats]] = {k: [] for k in (0, *args.depths)}
            for ids in prompts:
                for k, llm in ((0, plain), *llms.items()):
                    parts[k].append(answered(llm, ids, temperature, args.max_tokens))
            _table(parts, temperature, rounds, level)


def _curve(rounds: tuple[float, ...]) -> str:
    return ", ".join(f"{n + 1}: {seconds / rounds[0]:.2f}" for n, seconds in enumerate(rounds) if n in (0, 3, 7, 15))


def _table(parts: dict[int, list[Stats]], temperature: float, rounds: tuple[float, ...], level: float) -> None:
    base, plain_seconds = decoding(parts[0])
    per_token = plain_seconds / base.emitted
    print(f"T = {temperature:g}")
    print("   K  tokens/pass  acceptance  accepted at each position, if reached     speed-up  predicted")
    for k, some in parts.items():
        if not k:
            continue
        stats, seconds = decoding(some)
        found = conditional(stats)
        drafting = stats.drafts / stats.rounds  # a round without a draft costs a pass and yields a token
        gain = speed_up(found, level / rounds[0], lambda rows: rounds[rows - 1] / rounds[0])
        tokens = 1 + sum(_survival(found))
        cost = tokens / gain
        predicted = (drafting * tokens + 1 - drafting) / (drafting * cost + 1 - drafting)
        shown = " ".join(f"{share:.2f}" for share in found[:8])
        figures = f"  {k:>2}  {stats.tokens_per_pass:>11.2f}  {stats.acceptance_rate or 0.0:>10.2f}  {shown:<40}"
        print(f"{figures}  {per_token * stats.emitted / seconds:>8.2f}  {predicted:>9.2f}", flush=True)


def _survival(shares: list[float]) -> list[float]:
    found, now = [], 1.0
    for share in shares:
        now *= share
        found.append(now)
    return found


if __name__ == "__main__":
    main()
