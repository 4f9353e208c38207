"""The prompts that the benchmarks share: a Spec-Bench file (hemingkx/Spec-Bench, Apache-2.0)."""

from __future__ import annotations

import json
from pathlib import Path

DEFAULT = Path(__file__).parents[2] / "shared" / "data" / "spec_bench_dev.jsonl"


def first_turns(path: Path, count: int) -> list[str]:
    """`count` first turns of a Spec-Bench file, spread evenly over it, so that every category is there."""
    if not path.exists():
        raise SystemExit(f"--prompts: there is no {path}; give Spec-Bench's question.jsonl")
    turns = [json.loads(line)["turns"][0] for line in path.read_text(encoding="utf-8").splitlines()]
    return [turns[i * len(turns) // count] for i in range(count)]
