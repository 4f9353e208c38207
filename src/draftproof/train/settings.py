"""What a training is told, and what of it may change when it is gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..speculation import is_head
from .losses import parts_of, position_decay

INITS = ("target", "layer", "random")
"""Where weights come from: the target's output layer; its last layer too; nowhere. Or from the folder of a head."""
LABELS = ("answers", "all")
"""What is learned of a text: its labels; or every token that something stands before, prompts too."""
_FREE = ("max_minutes", "save_every")  # of these no loss depends


@dataclass(frozen=True, slots=True)
class Settings:
    """draft_vocab_size: ids that the head knows, None for all. intermediate_size: of its MLP, None for the target's.
    ttt_steps: tokens that it learns to draft alone. labels: what of a text is learned. loss: as `losses.loss_of` reads
    it; decay: what each further step weighs. lr: the highest rate of AdamW; muon_lr: of Muon, for the layer's matrices
    (0: AdamW for these too). held_out: the share of prompts that are kept to measure on. max_length:
    tokens of a text at most. eval_every, save_every: in steps. patience: measurements without a better one until it
    stops, None for never. warmup: the share of all steps in which the learning rate rises.
    """

    draft_vocab_size: int | None = 8192
    intermediate_size: int | None = None
    init: str = "target"
    freeze_head: bool = False
    ttt_steps: int = 4
    labels: str = "answers"
    loss: str = "kl:0.5+lk:0.5"
    decay: float = 0.8
    lr: float = 2e-3
    muon_lr: float = 8e-3
    warmup: float = 0.03
    weight_decay: float = 0.0
    clip: float = 1.0
    epochs: int = 10
    batch_tokens: int = 4096
    max_length: int = 2048
    held_out: float = 0.04
    seed: int = 0
    eval_every: int = 200
    save_every: int = 100
    patience: int | None = None
    limit: int | None = None
    max_minutes: float | None = None
    narrow: bool = True

    def __post_init__(self) -> None:
        whole = ("ttt_steps", "epochs", "batch_tokens", "max_length", "eval_every", "save_every")
        for name in (*whole, "draft_vocab_size", "intermediate_size", "patience", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value} is not allowed; it must be at least 1")
        if self.ttt_steps > _MOST_STEPS:
            raise ValueError(f"ttt_steps: {self.ttt_steps} is not allowed; it must be in 1 .. {_MOST_STEPS}")
        if not self.begins_anew and not is_head(self.init):
            raise ValueError(f"init: {self.init!r} is neither {', '.join(INITS)} nor the folder of a head")
        if self.labels not in LABELS:
            raise ValueError(f"labels: {self.labels!r} is not allowed; it must be one of {', '.join(LABELS)}")
        if not 0 <= self.muon_lr < float("inf"):
            raise ValueError(f"muon_lr: {self.muon_lr} is not allowed; it must be 0 (AdamW for all) or above")
        for name in ("lr", "clip"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: {getattr(self, name)} is not allowed; it must be above 0")
        for name, most in (("warmup", 1), ("weight_decay", 1), ("held_out", 0.5)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name}: {getattr(self, name)} is not allowed; it must be in [0, {most}]")
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise ValueError(f"max_minutes: {self.max_minutes} is not allowed; it must be above 0")
        if self.seed < 0:
            raise ValueError(f"seed: {self.seed} is not allowed; it must be 0 or more")
        parts_of(self.loss)
        position_decay(self.decay, self.ttt_steps)

    @property
    def begins_anew(self) -> bool:
        """Not with a head that was trained before."""
        return self.init in INITS


_MOST_STEPS = 16


def require_same(now: Settings, then: Mapping[str, Any]) -> None:
    """ValueError that names what differs from the settings of the run that is to be gone on with. One that there was
    not yet when that began was what is now its default."""
    ours, then = asdict(now), asdict(Settings()) | dict(then)
    names = [field.name for field in fields(Settings) if field.name not in _FREE]
    if not now.begins_anew and then["init"] not in INITS:  # which head it was, the run's identity knows
        names.remove("init")
    differ = [f"{name} was {then[name]!r} and is {ours[name]!r}" for name in names if then[name] != ours[name]]
    if differ:
        raise ValueError(f"out: the run there has other settings ({'; '.join(differ)}); give these, or another folder")
