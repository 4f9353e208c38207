"""draftproof train eagle: an EAGLE-3 head for a target, from data that the target made."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .notes import note
from .options import Debug, Device, Dtype, Model, Threads
from .progress import Progress
from .shown import Caught

if TYPE_CHECKING:
    from ..models.eagle import EagleHead
    from ..models.eagle_config import About
    from ..train.fit import Best
    from ..train.settings import Settings

_Option = typer.Option
_SECONDS_BETWEEN_LINES = 60.0  # where there is no terminal
HEAD = "head"  # in --out
_SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}


def eagle(
    data: Annotated[
        list[Path],
        _Option(help="A folder that **train data** made, or a file of conversations (messages). Repeatable."),
    ],
    out: Annotated[Path, _Option(help="Folder for the head, its checkpoint and its log; gone on with if it is there.")],
    target: Model = "smollm2-135m",
    draft_vocab_size: Annotated[
        str | None,
        _Option(help="Ids that the head knows, the most frequent, or full. Default: 8192, or those of --init."),
    ] = None,
    intermediate_size: Annotated[int | None, _Option(help="Of its MLP. Default: the target's.")] = None,
    init: Annotated[
        str,
        _Option(
            help="target (start from its output layer), layer (its last layer too), random, or a head to go on from."
        ),
    ] = "target",
    freeze_head: Annotated[bool, _Option("--freeze-head", help="Leave the output layer as it is.")] = False,
    ttt_steps: Annotated[int, _Option(help="Tokens that it learns to draft on its own.")] = 4,
    labels: Annotated[
        str, _Option(help="answers (what the target said), or all: its prompts are learned, too; measured are answers.")
    ] = "answers",
    loss: Annotated[
        str, _Option(help="ce, hard, kl, rkl, tv, lk, coupled, or a sum such as kl:0.5+lk:0.5.")
    ] = "kl:0.5+lk:0.5",
    decay: Annotated[float, _Option(help="What each further step weighs, against the one before.")] = 0.8,
    lr: Annotated[float, _Option(help="Highest learning rate of AdamW: output rows and norms.")] = 2e-3,
    muon_lr: Annotated[float, _Option(help="Highest of Muon: the layer's matrices. 0: AdamW for all.")] = 8e-3,
    warmup: Annotated[float, _Option(help="Share of the steps in which it rises.")] = 0.03,
    weight_decay: Annotated[float, _Option(help="Both optimizers'.")] = 0.0,
    clip: Annotated[float, _Option(help="Largest norm of a gradient.")] = 1.0,
    epochs: Annotated[int, _Option(help="Passes over the data.")] = 10,
    batch_tokens: Annotated[int, _Option(help="Tokens of a step, in each process.")] = 4096,
    max_length: Annotated[int, _Option(help="Tokens of a text; longer ones are cut.")] = 2048,
    held_out: Annotated[float, _Option(help="Share of the prompts that is measured on, and not trained on.")] = 0.04,
    seed: Annotated[int, _Option(help="Of the order of texts, and of random weights.")] = 0,
    eval_every: Annotated[int, _Option(help="Steps between measurements.")] = 200,
    save_every: Annotated[int, _Option(help="Steps between checkpoints.")] = 100,
    patience: Annotated[int | None, _Option(help="Stop after so many measurements without a better one.")] = None,
    limit: Annotated[int | None, _Option(help="Use so many examples of each --data, the first ones.")] = None,
    max_minutes: Annotated[float | None, _Option(help="Stop after so long; the same command goes on.")] = None,
    single: Annotated[bool, _Option("--float32", help="Products in float32; in bfloat16 they are quicker.")] = False,
    dtype: Dtype = "bfloat16",
    device: Device = "auto",
    threads: Threads = None,
    debug: Debug = False,
) -> int:
    """Train an EAGLE-3 head with training-time test: it learns to draft from its own guesses.

    The target reads all texts once; what it says is kept beside the data. OUT/head is the best head so far, and
    OUT/log.jsonl has a line a step. Stopped anywhere, the same command goes on. Several GPUs: **accelerate launch -m
    draftproof train eagle ...**

    Example: **draftproof train eagle --data ./data --out ./eagle-head**
    """
    from ..train.settings import Settings

    init = _start(init)
    settings = _named(
        Settings,
        draft_vocab_size=_ids(draft_vocab_size, init),
        intermediate_size=intermediate_size,
        init=init,
        freeze_head=freeze_head,
        ttt_steps=ttt_steps,
        labels=labels,
        loss=loss,
        decay=decay,
        lr=lr,
        muon_lr=muon_lr,
        warmup=warmup,
        weight_decay=weight_decay,
        clip=clip,
        epochs=epochs,
        batch_tokens=batch_tokens,
        max_length=max_length,
        held_out=held_out,
        seed=seed,
        eval_every=eval_every,
        save_every=save_every,
        patience=patience,
        limit=limit,
        max_minutes=max_minutes,
        narrow=not single,
    )
    _check_out(out, settings)
    with ExitStack() as stack:
        caught = {number: stack.enter_context(Caught(number)) for number in _SIGNALS}
        how = _train(target, data, out, settings, dtype, device, threads, caught)
    for number, status in _SIGNALS.items():
        if how == "signal" and caught[number].came:
            return status
    return 0


def _train(
    name: str,
    data: list[Path],
    out: Path,
    settings: Settings,
    dtype: str,
    device: str,
    threads: int | None,
    caught: dict[signal.Signals, Caught],
) -> str:
    """How it ended."""
    import torch

    from ..fingerprint import fingerprint_of
    from ..models.eagle_config import About
    from ..models.load import load
    from ..train.fit import Material, Watch, agreed, fit
    from ..train.prepare import identity_of, learned, objective_of, sides_of, sizes_of, try_a_step, vocabulary_of
    from ..train.sources import Stores, opened, texts_from, together
    from ..train.start import special_ids, trained_before
    from ..train.target_head import target_head_of

    if threads is not None:
        torch.set_num_threads(threads)
    accelerator = _accelerator(device)
    tell = note if accelerator.is_main_process else _silent
    sources = opened(data)  # before the model: it is quick
    loaded = load(name, dtype=dtype, device=str(accelerator.device), exact="law", notify=tell)
    fingerprint = fingerprint_of(loaded.path, loaded.tokenizer)
    found = [texts_from(source, loaded.tokenizer, fingerprint, settings.limit, tell) for source in sources]
    target_head = target_head_of(loaded.target)
    kind = str(loaded.target.model.dtype).removeprefix("torch.")

    def stopped() -> bool:
        return any(each.came for each in caught.values())

    wide = loaded.target.vocab_size
    sides = sides_of(together(sources, found), wide, settings, tell)
    begun = trained_before(loaded, fingerprint, settings, tell)
    ids = vocabulary_of(sides, wide, settings, special_ids(loaded.generation, loaded.tokenizer, wide), tell, begun)
    identity = identity_of(fingerprint, kind, sides, ids, begun)
    objective = objective_of(loaded, target_head, ids, settings, tell, begun)
    config = objective.head.config
    widths = config.hidden_size * len(config.feature_layers), config.hidden_size
    layers = config.feature_layers

    def stores() -> Stores:
        return Stores(sources, fingerprint, kind, layers, widths)

    if accelerator.is_main_process:
        with Progress("tokens read by the target") as bar:
            shown = _Shown(bar, tell, "tokens read by the target")
            stores().fill(sides.all, loaded.target, target_head, tell=tell, show=shown.show, stopped=stopped)
    accelerator.wait_for_everyone()
    if agreed(accelerator, stopped()):
        tell("stopped; what the target has read is kept")
        return "signal"
    training = learned(sides.training, settings.labels)
    start = settings.init if begun is None else f"head {identity['first head'][:12]}"  # no path of this machine
    made = asdict(settings) | {"init": start, "data": [source.name for source in sources]} | sizes_of(training)
    about = About(name, _architectures(loaded), settings.ttt_steps, fingerprint, made)
    del loaded, target_head  # of the target, no more is needed than its embeddings and some rows of its head
    material = Material(training, sides.held_out, stores().of, identity)
    try_a_step(objective, material, settings, accelerator, partial(_peak, accelerator.device), tell)
    out.mkdir(parents=True, exist_ok=True)
    keeper = _Keeper(out / HEAD, objective.head, about)
    with Progress("steps") as bar:
        watch = Watch(tell, _Shown(bar, tell, "steps").show, stopped, keeper.keep)
        outcome = fit(objective, material, settings, out, watch, accelerator)
    if outcome.best is not None:
        when = f"at step {outcome.best_step}" if outcome.best_step else "at the start: nothing better came"
        tell(f"after {outcome.step} of {outcome.steps} steps ({_HOW[outcome.how]}): best {when}: {outcome.best}")
    tell(f"the head is in {out / HEAD}: use it with --draft eagle3:{out / HEAD}")
    return outcome.how


_HOW = {
    "end": "all there are",
    "patience": "no better one came any more",
    "minutes": "--max-minutes; the same command goes on",
    "signal": "stopped; the same command goes on",
}


class _Keeper:
    """Writes the best head down. head: what it is beside its weights."""

    def __init__(self, folder: Path, head: EagleHead, about: About) -> None:
        self._folder, self._config, self._ids, self._about = folder, head.config, head.token_ids.cpu(), about

    def keep(self, best: Best) -> None:
        from ..models.eagle import EagleHead
        from ..models.eagle_files import save_head

        head = EagleHead(self._config, self._ids)
        head.load_state_dict(dict(best.state), assign=True)
        save_head(self._folder, head, replace(self._about, measured={"step": best.step} | asdict(best.quality)))


class _Shown:
    """On a bar, or now and then on a line."""

    def __init__(self, bar: Progress, tell: Callable[[str], None], what: str) -> None:
        self._bar, self._tell, self._what, self._told = bar, tell, what, time.monotonic()

    def show(self, done: int, total: int, loss: float | None = None) -> None:
        self._bar.show(done, total)
        if not sys.stderr.isatty() and time.monotonic() - self._told > _SECONDS_BETWEEN_LINES:
            self._told = time.monotonic()
            self._tell(f"{done} of {total} {self._what}" + ("" if loss is None else f", loss {loss:.4f}"))


def _named(make: Callable[..., Settings], **given: Any) -> Settings:
    """An error names the option, not the field."""
    try:
        return make(**given)
    except ValueError as error:
        name, _, why = str(error).partition(":")
        raise ValueError(f"--{name.replace('_', '-')}:{why}") from None


def _start(init: str) -> str:
    """--init, a head's name or folder as its folder. ValueError: it is none."""
    from ..models.eagle_files import config_of
    from ..models.shelf import SHELF, shelved
    from ..speculation import is_head
    from ..train.settings import INITS

    if init in INITS or is_head(init):
        return init
    if init in shelved():
        return str(SHELF / init)
    known = f"{', '.join(INITS)}, {', '.join(shelved())} or a head's folder"
    try:
        config_of(Path(init).expanduser())
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"--init: {init!r} is not allowed; give {known} ({error})") from None
    raise ValueError(f"--init: {init!r} is not allowed; give {known} (it is a model's)")


def _ids(given: str | None, init: str) -> int | None:
    """--draft-vocab-size.

    >>> _ids("4096", "target"), _ids("full", "target"), _ids(None, "target")
    (4096, None, 8192)
    """
    if given is None:
        from ..models.eagle_files import config_of
        from ..speculation import is_head

        return config_of(Path(init).expanduser())["draft_vocab_size"] if is_head(init) else 8192
    if given == "full":
        return None
    if not given.isascii() or not given.isdigit():
        raise ValueError(f"--draft-vocab-size: {given!r} is not allowed; it must be a number of ids, or full")
    return int(given)


def _check_out(out: Path, settings: Settings) -> None:
    """Refuse a folder that is somebody else's, or of a run with other settings, before anything takes time."""
    from ..models.eagle_files import require_replaceable
    from ..train.checkpoint import CHECKPOINT, LOG, read_checkpoint
    from ..train.settings import require_same

    if out.exists() and not out.is_dir():
        raise ValueError(f"--out: {str(out)!r} is a file; it must be a folder")
    ours = {HEAD, CHECKPOINT, LOG}
    others = sorted(each.name for each in out.iterdir() if each.name not in ours) if out.exists() else []
    others = [each for each in others if not each.startswith(".")]  # what was written aside when it was killed
    if others:
        raise ValueError(f"--out: {str(out)!r} holds {others[0]!r}, which no training wrote; give an empty folder")
    try:
        require_replaceable(out / HEAD)
    except ValueError as error:
        raise ValueError(f"--out: {out / HEAD} must be a head's, or not there: {error}") from None
    if not settings.begins_anew and Path(settings.init).expanduser().resolve() == (out / HEAD).resolve():
        raise ValueError(f"--init: {settings.init!r} is where --out writes its head; give --out another folder")
    if (there := read_checkpoint(out)) is not None:
        require_same(settings, there.settings)


def _architectures(loaded: Any) -> tuple[str, ...]:
    return tuple(loaded.target.model.config.architectures or (type(loaded.target.model).__name__,))


def _accelerator(name: str) -> Any:
    """Accelerate's, on the device of that name. ValueError: there is none, or it would be placed on another."""
    from datetime import timedelta

    import torch
    from accelerate import Accelerator, InitProcessGroupKwargs

    from ..models.load import device_named

    device = device_named(name)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # where "cuda" is, for Accelerate too
    accelerator = Accelerator(
        cpu=device.type == "cpu",
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(days=1))],  # while one process lets the target read
    )
    found = accelerator.device
    if found.type != device.type or (None not in (device.index, found.index) and device.index != found.index):
        raise ValueError(
            f"device: {name!r} is not allowed; Accelerate trains on {found} here (several processes each have a GPU of "
            "their own: give cuda)"
        )
    return accelerator


def _peak(device: Any) -> str:
    """Memory in use at most so far, the GPU's if it is one."""
    import torch

    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 1e9:.1f} GB of the GPU's memory"
    return f"{_resident() / 1e9:.1f} GB of memory"


def _resident() -> int:
    """In bytes, at most so far."""
    import psutil

    try:
        import resource
    except ImportError:  # Windows has none
        return psutil.Process().memory_info().rss
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _silent(message: str) -> None:
    """What the other processes of several have to say."""
