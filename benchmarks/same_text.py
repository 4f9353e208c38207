"""Is the text of a seed the same with speculation on and off?  python benchmarks/same_text.py --count 40

Every prompt is answered without drafts and by every drafter under every controller, at each temperature and dtype; the
token ids must be equal. Exit status 1 if any differ where the product claims "bit-exact".
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from prompts import DEFAULT, first_turns

from draftproof.llm import LLM
from draftproof.replies import Completion
from draftproof.sampling import SamplingParams

CONTROLLERS: dict[str, dict[str, Any]] = {
    "fixed": {"num_speculative_tokens": 5},
    "threshold": {"num_speculative_tokens": 8, "controller": "threshold"},
    "cost": {"num_speculative_tokens": "auto"},
}
SETTINGS: list[dict[str, float]] = [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9}, {"temperature": 1.0}]


def drafters(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {
        "ngram": {"method": "ngram"},
        "suffix": {"method": "suffix"},
        "suffix, tree": {"method": "suffix", "tree": "3x2"},
    }
    if args.layers:
        early = {"early_exit_layers": args.layers}
        found["early exit"] = {"method": "early_exit", **early}
        found["early exit, tree"] = {"method": "early_exit", "tree": "2x2", **early}
        found["suffix and early exit"] = {"method": "combined", "drafters": ["suffix", "early_exit"], **early}
    if args.draft_model:
        found["draft model"] = {"method": "draft_model", "model": args.draft_model}
        found["draft model, tree"] = {"method": "draft_model", "model": args.draft_model, "tree": "2x2"}
        found["auto"] = {"method": "auto", "model": args.draft_model}
    for method in ("tli", "slem") if args.other_vocabulary else ():
        found[method] = {"method": "draft_model", "model": args.other_vocabulary, "vocabulary": method}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft-model", help="also draft with this model")
    parser.add_argument("--other-vocabulary", metavar="MODEL", help="and with this one, of another tokenizer")
    parser.add_argument("--layers", type=int, default=10, help="of the early exit; 0: leave it out")
    parser.add_argument("--prompts", type=Path, default=DEFAULT)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--controllers", nargs="+", default=list(CONTROLLERS), choices=CONTROLLERS)
    parser.add_argument("--settings", type=int, nargs="+", default=[0, 1, 2], help=f"which of {SETTINGS}")
    args = parser.parse_args()
    prompts = first_turns(args.prompts, args.count)
    print(
        "dtype     sampling          draft                   controller  claim      identical  tokens  passes  a pass"
    )
    broken = 0
    for dtype in args.dtypes:
        plain = LLM(args.model, dtype=dtype)
        fast = {
            (name, control): plain.speculating(_with(config, control))
            for name, config in drafters(args).items()
            for control in args.controllers
        }
        for setting in (SETTINGS[i] for i in args.settings):
            params = [SamplingParams(seed=i, max_tokens=args.max_tokens, **setting) for i in range(len(prompts))]
            asked = list(zip([plain.encode(prompt) for prompt in prompts], params, strict=True))
            expected = [plain.start(*each).result() for each in asked]
            for (name, control), llm in fast.items():
                found = [llm.start(*each).result() for each in asked]
                broken += compare(found, expected, f"{dtype:<9} {_shown(setting):<17} {name:<23} {control:<11}")
    return 1 if broken else 0


def _with(config: dict[str, Any], control: str) -> dict[str, Any]:
    """A tree stands for itself under a fixed controller."""
    chosen = dict(CONTROLLERS[control])
    if control == "fixed" and "tree" in config:
        del chosen["num_speculative_tokens"]
    return config | chosen


def _shown(setting: dict[str, float]) -> str:
    return ", ".join(f"{'T' if name == 'temperature' else name} {value:g}" for name, value in setting.items())


def compare(found: list[Completion], expected: list[Completion], what: str) -> int:
    """Print one row; return how many texts break a claim of bit-exactness."""
    identical = sum(a.token_ids == b.token_ids and a.text == b.text for a, b in zip(found, expected, strict=True))
    tokens, passes = sum(each.stats.emitted for each in found), sum(each.stats.rounds for each in found)
    claim = expected[0].config["claim"]
    print(
        f"{what} {claim:<9}  {identical:>3} of {len(found):<3}  {tokens:>6}  {passes:>6}  {tokens / passes:>6.2f}",
        flush=True,
    )
    return len(found) - identical if claim == "bit-exact" else 0


if __name__ == "__main__":
    sys.exit(main())
