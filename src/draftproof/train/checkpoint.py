"""The state of a training in one file, and its log: a run that was killed anywhere goes on as if it had not been.

The file is written aside and renamed. The log has a line for every step; when a run is gone on with, the lines after
the checkpoint's step are cut off, as these steps come again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from ..aside import whole

VERSION = 2
CHECKPOINT, LOG = "checkpoint.pt", "log.jsonl"


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """step: steps done. best: of all measurements; best_step: when; best_head: the head then, in bfloat16. since:
    measurements since. identity: what it was trained for and on, by name. head, optimizers: their states. What comes in
    which order depends on the seed and the step alone; random: torch's generator all the same. ended: nothing is to
    come."""

    settings: Mapping[str, Any]
    identity: Mapping[str, str]
    step: int
    best: Mapping[str, Any] | None
    since: int
    head: Mapping[str, torch.Tensor]
    optimizers: Sequence[Mapping[str, Any]]
    random: torch.Tensor
    ended: bool
    best_step: int
    best_head: Mapping[str, torch.Tensor] | None


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """All or nothing: an older one stays until this is whole."""
    found = {name: getattr(checkpoint, name) for name in Checkpoint.__slots__}
    with whole(folder / CHECKPOINT) as place:
        torch.save({"version": VERSION} | found, place)


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """None if there is none. ValueError: it is no checkpoint of ours."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        version = found.pop("version")
        if version != VERSION:
            raise ValueError(f"it is of version {version}, and {VERSION} is read")
        return Checkpoint(**found)
    except Exception as error:  # whatever a broken file makes torch raise
        reason = str(error).strip().splitlines()
        why = reason[0] if reason else type(error).__name__
        raise ValueError(f"out: {path} cannot be gone on with: {why}; remove it to start anew") from None


def opened_log(folder: Path, step: int) -> TextIO:
    """The log, with the lines of steps after `step` cut off, to write on. Step 0 has a line too: pass −1 to start."""
    path = folder / LOG
    kept = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []:
        try:
            if json.loads(line)["step"] > step:
                continue
        except (ValueError, KeyError, TypeError):
            continue
        kept.append(line + "\n")
    with whole(path) as place:
        place.write_text("".join(kept), encoding="utf-8", newline="\n")
    return path.open("a", buffering=1, encoding="utf-8", newline="\n")
