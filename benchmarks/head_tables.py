"""What pays in training a head: short runs over the same texts, one choice changed at a time.

    draftproof train data --prompts prompts.jsonl --text book.txt --out data
    python benchmarks/head_tables.py --data data --out runs --limit 1500 --threads 1

Each run is `draftproof train eagle` in a folder of its own under --out, so a run that is there is not made again, and
one that was stopped goes on. All take as many steps over the same examples and are measured on the same held-out
prompts, but for fewer texts, of which fewer are held out (measure those with head_quality.py). Printed are the last
measurement and the seconds a step, which machines and their load change.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

GROUPS: dict[str, dict[str, list[str]]] = {
    "the default": {"": []},
    "loss": {
        name: ["--loss", name]
        for name in ("kl", "tv", "lk", "coupled", "rkl", "hard", "kl:0.5+coupled:0.5", "kl:0.9+lk:0.1")
    },
    "optimizer": {"adamw, 1e-3": ["--muon-lr", "0", "--lr", "1e-3"]},
    "ids it knows": {name: ["--draft-vocab-size", name] for name in ("2048", "4096", "16384", "full")},
    "MLP": {name: ["--intermediate-size", name] for name in ("384", "768", "3072")},
    "steps it is unrolled": {name: ["--ttt-steps", name] for name in ("1", "2", "3")},
    "tokens of a step": {"2048": ["--batch-tokens", "2048"]},
    "texts, for as many steps": {"375 of 1500, four times": ["--limit", "375", "--epochs", "4"]},
    "start": {name: ["--init", name] for name in ("layer", "random")},
    "labels": {"prompts, too": ["--labels", "all"]},
}


def trained(out: Path, arguments: list[str]) -> tuple[dict[str, Any], float]:
    """The last measurement of a run, and the median of its seconds a step."""
    command = [sys.executable, "-m", "draftproof", "train", "eagle", "--out", str(out), *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1]}")
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = [line["held_out"] for line in lines if "held_out" in line][-1]
    times = [line["seconds"] for line in lines if "seconds" in line]
    steps = [later - earlier for earlier, later in itertools.pairwise(times) if later > earlier]
    return measured, statistics.median(steps)


def shown(measured: dict[str, Any], seconds: float) -> str:
    def each(name: str) -> str:
        return " ".join(f"{value:.3f}" for value in measured[name])

    lengths = f"{measured['sampled']:.3f} {measured['greedy']:.3f}"
    return f"{each('overlap'):<26}{each('agreement'):<26}{lengths}   {measured['known']:.3f}  {seconds:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", default="1500")
    parser.add_argument("--epochs", default="1")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--group", action="append", choices=list(GROUPS), help="Default: all.")
    given = parser.parse_args()
    fixed = [part for data in given.data for part in ("--data", data)]
    fixed += ["--limit", given.limit, "--epochs", given.epochs, "--threads", given.threads]
    print(f"{'':<32}{'overlap by step':<26}{'agreement by step':<26}T=1   greedy  known  s a step")
    for group in given.group or GROUPS:
        print(group)
        for name, options in GROUPS[group].items():
            place = "".join(each if each.isalnum() else "-" for each in f"{group} {name}".strip())
            print(f"  {name:<30}{shown(*trained(given.out / place, [*fixed, *options]))}", flush=True)


if __name__ == "__main__":
    main()
