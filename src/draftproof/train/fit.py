"""The loop: steps, measurements, checkpoints, and every way in which it may end.

Nothing is drawn while it runs: the batches of a step depend on the seed and its number alone, so a run that is gone on
with sees what it would have seen. Several processes (accelerate launch) each take one batch of a step.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .batches import Batch, States, Text, batch_of, epoch_of, filled
from .checkpoint import Checkpoint, opened_log, read_checkpoint, save_checkpoint
from .evaluate import Quality, evaluate
from .objective import Objective
from .optimizers import optimizers_of
from .settings import Settings, require_same

_LEAST_RATE = 0.1  # of the learning rate: where the cosine ends


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """What is trained on, and what is measured on. identity: what the target and the data are, by name."""

    training: Sequence[Text]
    held_out: Sequence[Text]
    states_of: Callable[[Text], States]
    identity: dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """state: of the head at that step, in bfloat16, on the CPU."""

    quality: Quality
    step: int
    state: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """Who is told. tell: a line. show: steps done, of so many, and the loss. stopped: whether a signal came. keep: is
    given the best head so far, to write it down; again when a run is gone on with, as it may have been lost."""

    tell: Callable[[str], None]
    show: Callable[[int, int, float], None]
    stopped: Callable[[], bool]
    keep: Callable[[Best], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """how: end, patience, minutes or signal. best, best_step: the best measurement, None if there is none of this
    version, and when it was made."""

    how: str
    step: int
    steps: int
    best: Quality | None
    best_step: int = 0


def schedule(material: Material, settings: Settings, processes: int) -> list[list[list[int]]]:
    """The texts of each step: for each process a batch."""
    lengths = [len(text.tokens) for text in material.training]
    steps = []
    for epoch in range(settings.epochs):
        batches = epoch_of(lengths, settings.batch_tokens, settings.seed, epoch)
        whole = len(batches) // processes * processes if len(batches) >= processes else len(batches)
        steps += [batches[at : at + processes] for at in range(0, whole, processes)]
    if len(steps[0]) < processes:
        raise ValueError(
            f"data: {len(steps[0])} batches are too few for {processes} processes; give fewer batch_tokens or processes"
        )
    return steps


def rate(step: int, steps: int, lr: float, warmup: float) -> float:
    """The learning rate of a step, counted from 0: rises in a straight line, then falls along a cosine to a tenth.

    >>> [round(rate(step, 10, 1.0, 0.2), 3) for step in (0, 1, 2, 9)]
    [0.5, 1.0, 1.0, 0.134]
    """
    rising = max(round(warmup * steps), 1)
    if step < rising:
        return lr * (step + 1) / rising
    along = (step - rising) / max(steps - rising, 1)
    return lr * (_LEAST_RATE + (1 - _LEAST_RATE) * (1 + math.cos(math.pi * along)) / 2)


def fit(
    objective: Objective, material: Material, settings: Settings, out: Path, watch: Watch, accelerator: Any
) -> Outcome:
    """Train until the epochs are over, or something ends it before; goes on with what `out` holds.

    ValueError: `out` holds a run of another kind, or a loss or gradient is no number (the last checkpoint stays).
    """
    steps = schedule(material, settings, accelerator.num_processes)
    identity = material.identity | {"number of processes": str(accelerator.num_processes)}
    material = replace(material, identity=identity)
    first = read_checkpoint(out)
    if first is not None:
        require_same(settings, first.settings)
        _require_same_identity(material.identity, first.identity)
    optimizers = optimizers_of(objective.head, settings)
    if first is not None:
        objective.head.load_state_dict(dict(first.head))
        for optimizer, state in zip(optimizers, first.optimizers, strict=True):
            optimizer.load_state_dict(dict(state))
        torch.set_rng_state(first.random)
        watch.tell(f"going on after step {first.step} of {len(steps)}")
    run = _Run(objective, material, settings, out, watch, accelerator, steps, optimizers)
    return run.go(first)


class _Run:
    def __init__(
        self,
        objective: Objective,
        material: Material,
        settings: Settings,
        out: Path,
        watch: Watch,
        accelerator: Any,
        steps: list[list[list[int]]],
        optimizers: list[torch.optim.Optimizer],
    ) -> None:
        self.objective, self.material, self.settings, self.out, self.watch = objective, material, settings, out, watch
        self.accelerator, self.steps = accelerator, steps
        self.model, *self.optimizers = accelerator.prepare(objective, *optimizers)
        self.groups = [group for each in self.optimizers for group in each.param_groups]
        self.best: Best | None = None
        self.since = 0
        lengths = [len(text.tokens) for text in material.held_out]
        self.measured_on = filled(lengths, range(len(lengths)), settings.batch_tokens)

    def go(self, first: Checkpoint | None) -> Outcome:
        step, total, began = 0, len(self.steps), time.perf_counter()
        if first is not None:
            step, self.since = first.step, first.since
            self.remember(first)
            if first.ended:
                return self.outcome("end" if step == total else "patience", step)
        main = self.accelerator.is_main_process
        with opened_log(self.out, step if first is not None else -1) if main else nullcontext() as log:
            if first is None:
                self.measure(step, log)
                self.save(step)
            self.model.train()
            while step < total:
                if self.agreed(self.watch.stopped()):
                    self.save(step)
                    return self.outcome("signal", step)
                loss, losses, norm, texts = self.take(step)
                step += 1
                self.write(
                    log,
                    {
                        "step": step,
                        "loss": loss,
                        "losses": losses,
                        "gradient": norm,
                        "lr": self.groups[-1]["lr"],
                        "texts": texts,
                        "seconds": round(time.perf_counter() - began, 3),
                    },
                )
                self.watch.show(step, total, loss)
                measured = step % self.settings.eval_every == 0 or step == total
                if measured:
                    self.measure(step, log)
                patient = self.settings.patience is None or self.since < self.settings.patience
                patient = not (measured and self.agreed(not patient))  # on GPUs their measurements may differ a little
                late = self.settings.max_minutes is not None and (
                    time.perf_counter() - began > 60 * self.settings.max_minutes
                )
                late = self.agreed(late)
                ended = step == total or not patient
                if step % self.settings.save_every == 0 or ended or late:
                    self.save(step, ended=ended)
                if ended or late:
                    return self.outcome("end" if step == total else "minutes" if patient else "patience", step)
        return self.outcome("end", step)

    def outcome(self, how: str, step: int) -> Outcome:
        found = (None, 0) if self.best is None else (self.best.quality, self.best.step)
        return Outcome(how, step, len(self.steps), *found)

    def remember(self, first: Checkpoint) -> None:
        """The best head so far, which is written down again: OUT may have lost it, or have a later one."""
        if first.best is None or first.best_head is None:
            return
        self.best = Best(_quality(first.best), first.best_step, first.best_head)
        self.keep(self.best)

    def keep(self, best: Best) -> None:
        if self.accelerator.is_main_process:
            self.watch.keep(best)

    def batch(self, texts: Sequence[Text]) -> Batch:
        return batch_of(texts, self.material.states_of, self.settings.ttt_steps).to(self.accelerator.device)

    def take(self, step: int) -> tuple[float, list[float | None], float, list[str]]:
        """One step of the optimizer. ValueError if something is no number: then nothing has changed."""
        texts = [self.material.training[at] for at in self.steps[step][self.accelerator.process_index]]
        batch = self.batch(texts)
        for group in self.groups:
            group["lr"] = rate(step, len(self.steps), group["initial_lr"], self.settings.warmup)
        self.model.zero_grad()
        losses = self.model(batch)
        self.accelerator.backward(losses.total)
        norm = float(self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.clip))
        total = losses.total.item()
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise ValueError(
                f"step {step + 1}: the loss is {total} and its gradient's norm {norm}, with the examples "
                f"{', '.join(batch.ids)}; the last checkpoint stays: give a lower lr or muon_lr, or leave the examples "
                "out"
            )
        for optimizer in self.optimizers:
            optimizer.step()
        return total, [None if each != each else each for each in losses.steps.tolist()], norm, list(batch.ids)

    def measure(self, step: int, log: Any) -> None:
        held_out = self.material.held_out
        found = evaluate(self.objective, (self.batch([held_out[at] for at in some]) for some in self.measured_on))
        if not all(map(math.isfinite, found.loss)):
            raise ValueError(
                f"step {step}: measured on what is held out, the loss is {found.loss}; the last checkpoint stays: "
                "give a lower lr or muon_lr"
            )
        self.write(log, {"step": step, "held_out": asdict(found)})
        self.watch.tell(f"step {step} of {len(self.steps)}: held out {found}")
        self.since += 1
        if self.best is None or found.worth > self.best.quality.worth:
            self.best, self.since = Best(found, step, _rounded(self.objective.head.state_dict())), 0
            self.keep(self.best)

    def save(self, step: int, *, ended: bool = False) -> None:
        if self.accelerator.is_main_process:
            best = self.best
            state = Checkpoint(
                asdict(self.settings),
                self.material.identity,
                step,
                None if best is None else asdict(best.quality),
                self.since,
                self.objective.head.state_dict(),
                [optimizer.state_dict() for optimizer in self.optimizers],
                torch.get_rng_state(),
                ended,
                0 if best is None else best.step,
                None if best is None else best.state,
            )
            save_checkpoint(self.out, state)
        self.accelerator.wait_for_everyone()

    def write(self, log: Any, line: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            log.write(json.dumps(line, allow_nan=False) + "\n")

    def agreed(self, here: bool) -> bool:
        return agreed(self.accelerator, here)


def agreed(accelerator: Any, here: bool) -> bool:
    """Whether it is so in any process: they stop together, or those that are left would wait for ever."""
    if accelerator.num_processes == 1:
        return here
    return bool(accelerator.reduce(torch.tensor(float(here), device=accelerator.device)) > 0)


def _quality(found: Mapping[str, Any]) -> Quality:
    means = (tuple(found[name]) for name in ("loss", "overlap", "agreement"))
    return Quality(*means, found["sampled"], found["greedy"], found["rows"], found["known"])


def _rounded(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A copy, as it is written."""
    kinds = {name: torch.bfloat16 if each.is_floating_point() else each.dtype for name, each in state.items()}
    return {name: each.detach().to("cpu", kinds[name], copy=True) for name, each in state.items()}


def _require_same_identity(now: Mapping[str, str], then: Mapping[str, str]) -> None:
    differ = [name for name in now if now[name] != then.get(name)]
    if differ:
        raise ValueError(
            f"out: the run there is of another {' and '.join(differ)}; give the same, or another "
            "folder (of data that is still being made there is more every time)"
        )
