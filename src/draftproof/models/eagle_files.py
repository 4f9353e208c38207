"""An EAGLE-3 head as a folder, model.safetensors and config.json, in the layout of the `speculators` library.

What is read is checked whole, as a head that lacks a tensor would run all the same, and guess nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from .eagle import EagleConfig, EagleHead, feature_layers_of
from .eagle_config import About, as_json, from_json
from .eagle_tensors import EMBEDDINGS, MAPS, ids_of, listed, maps_of, read_tensors, require_finite

if TYPE_CHECKING:
    from .load import Loaded

CONFIG, WEIGHTS = "config.json", "model.safetensors"

CHECKS = ("strict", "vocabulary", "shapes")
"""Of a fingerprint, what must be equal; the rest is told. strict: all. vocabulary: the tokenizer's. shapes: nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class HeadFiles:
    """A folder, read and found whole. config.feature_layers is () where it leaves them to the target.

    tensors: the head's state, d2t and t2d among them. size: bytes on disk.
    """

    folder: Path
    config: EagleConfig
    about: About
    tensors: Mapping[str, torch.Tensor]
    size: int

    @property
    def parameters(self) -> int:
        """The head's own."""
        return sum(tensor.numel() for name, tensor in self.tensors.items() if name not in MAPS)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors["fc.weight"].dtype


# writing


def save_head(folder: Path, head: EagleHead, about: About) -> int:
    """Write a head in bfloat16; what was there is replaced if it was a head. Returns its size in bytes.

    The folder is written aside and renamed, so it is whole, or what it was.
    """
    state = head.state_dict() | ({} if about.embeddings is None else {EMBEDDINGS: about.embeddings})
    tensors = {name: _rounded(tensor) for name, tensor in state.items()}
    if head.config.draft_vocab_size == head.config.layer.vocab_size:  # then `speculators` has no maps
        tensors = {name: tensor for name, tensor in tensors.items() if name not in MAPS}
    require_finite(tensors, "head")
    config = as_json(head.config, about)
    try:
        written = json.dumps(config, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"about: it holds what JSON cannot say: {error}") from None
    with _whole_folder(folder) as aside:
        save_file(tensors, aside / WEIGHTS, metadata={"format": "pt"})
        (aside / CONFIG).write_text(written, encoding="utf-8")
        (aside / WEIGHTS).chmod((aside / CONFIG).stat().st_mode & 0o777)  # safetensors lets nobody else read it
        return _size(aside)


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu().contiguous()
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


@contextmanager
def _whole_folder(folder: Path) -> Generator[Path]:
    """All or nothing: a folder to fill, which becomes FOLDER at the end. If anything fails FOLDER is what it was."""
    folder = folder.resolve()
    require_replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    new, old = aside / "new", aside / "old"
    try:
        new.mkdir()
        yield new
        for file in new.iterdir():
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())
        try:
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
        except BaseException:
            if old.exists() and not folder.exists():
                old.rename(folder)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def require_replaceable(folder: Path) -> None:
    """ValueError: something is there that is neither nothing nor a head alone."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"folder: {str(folder)!r} is a file; a head is written as a folder")
    there = {each.name for each in folder.iterdir()}
    if not there:
        return
    others = sorted(there - {CONFIG, WEIGHTS})
    if others:
        raise ValueError(f"folder: {str(folder)!r} holds {listed(others)}; give a new one, or one of a head alone")
    if "speculators_model_type" not in config_of(folder):
        raise ValueError(f"folder: {str(folder)!r} holds a model; give a new one, or one of a head")


# reading


def read_head(folder: Path) -> HeadFiles:
    """All that can be known, and checked, without the target. ValueError: what is wrong, and in which file."""
    config, about = _parsed(folder)
    weights = folder / WEIGHTS
    tensors = read_tensors(weights, config)
    about = replace(about, embeddings=tensors.pop(EMBEDDINGS, None))
    tensors |= maps_of(tensors, config, weights)
    return HeadFiles(folder, config, about, tensors, _size(folder))


def read_about(folder: Path) -> About:
    """What a head's config.json says beside its shape. ValueError as of `read_head`."""
    return _parsed(folder)[1]


def load_head(
    folder: Path,
    target: Loaded,
    *,
    fingerprint: Mapping[str, str] | None = None,
    check: str = "vocabulary",
    notify: Callable[[str], None] = lambda message: None,
) -> tuple[EagleHead, About]:
    """A head for `target`, on the CPU, in the dtype that it was saved in; about.embeddings if it reads its own.

    A wrong head makes no text wrong, only slow. So what cannot be run is an error: another hidden size, another
    vocabulary, layers that the target lacks. That it was trained for other weights (fingerprint: the target's, by part)
    is told, unless `check` is strict.
    """
    if check not in CHECKS:
        raise ValueError(f"check: {check!r} is not allowed; it must be one of {', '.join(CHECKS)}")
    files, model = read_head(folder), target.target.model
    config = fitted(files, model.config)
    require_same_target(files, fingerprint or {}, check, notify)
    head = EagleHead(config, ids_of(files.tensors["d2t"]))
    head.load_state_dict(dict(files.tensors), strict=True, assign=True)
    own, shared = files.about.embeddings, model.get_input_embeddings().weight.detach().cpu()
    if own is not None and torch.equal(own.to(shared.dtype), shared):  # `speculators` saves a copy with each head
        return head, replace(files.about, embeddings=None)
    return head, files.about


def fitted(files: HeadFiles, target: Any) -> EagleConfig:
    """The head's configuration for a target of this configuration, or why it does not fit."""
    text, config = target.get_text_config(), files.config
    for key, ours, theirs in (
        ("hidden_size", config.hidden_size, text.hidden_size),
        ("vocab_size", config.layer.vocab_size, text.vocab_size),
    ):
        if ours != theirs:
            raise ValueError(f"head: {files.folder} is for a target of {key} {ours}; this one has {theirs}")
    layers = config.feature_layers or feature_layers_of(text.num_hidden_layers)
    if list(layers) != sorted(set(layers)):  # vLLM cannot tell two of them apart
        raise ValueError(
            f"head: {files.folder} names no layers to read; the usual ones of a target of {text.num_hidden_layers} are "
            f"{', '.join(map(str, layers))}, and three are needed"
        )
    if layers[-1] >= text.num_hidden_layers:
        raise ValueError(
            f"head: {files.folder} reads layer {layers[-1]}; this target's are 0 .. {text.num_hidden_layers - 1}"
        )
    return replace(config, feature_layers=layers)


def differing(about: About, fingerprint: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The parts that both know and that differ: (the head's, the target's)."""
    known = about.fingerprint
    return {key: (known[key], fingerprint[key]) for key in known if fingerprint.get(key, known[key]) != known[key]}


def require_same_target(
    files: HeadFiles, fingerprint: Mapping[str, str], check: str, notify: Callable[[str], None]
) -> None:
    differ = differing(files.about, fingerprint)
    if not differ:
        return
    told = ", ".join(f"{part} {ours[:12]}, not {theirs[:12]}" for part, (ours, theirs) in differ.items())
    line = f"head: {files.folder} was trained for another target ({files.about.target}: {told})"
    if check == "strict" or (check == "vocabulary" and "tokenizer" in differ):
        raise ValueError(f"{line}; give that one, or use it all the same with check 'shapes'")
    notify(f"{line}; texts stay right, and fewer guesses may")


def _parsed(folder: Path) -> tuple[EagleConfig, About]:
    found = config_of(folder)
    try:
        return from_json(found)
    except ValueError as error:
        raise ValueError(f"head: {folder / CONFIG}: {error}") from None


def config_of(folder: Path) -> dict[str, Any]:
    """A folder's config.json, whatever it is of."""
    if not folder.is_dir():
        raise ValueError(f"head: there is no folder {str(folder)!r}")
    file = folder / CONFIG
    if not file.is_file():
        inside = next((each.parent for each in sorted(folder.glob(f"*/{CONFIG}"))), None)
        hint = "" if inside is None else f"; did you mean {str(inside)!r}?"
        raise ValueError(f"head: folder {str(folder)!r} holds no {CONFIG}{hint}")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"head: {file} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"head: {file} holds {type(found).__name__}; it must hold an object")
    return found


def _size(folder: Path) -> int:
    return sum((folder / name).stat().st_size for name in (CONFIG, WEIGHTS))
