"""draftproof inspect: what a folder with a drafter holds, and for which model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .notes import note

if TYPE_CHECKING:
    from ..models.eagle_files import HeadFiles

_Option = typer.Option


def inspect(
    head: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="A folder with config.json and model.safetensors, or a head's shipped name."
        ),
    ],
    target: Annotated[
        str | None,
        _Option(metavar="MODEL", help="Compare with this model. Default: the one it was trained for, if it is here."),
    ] = None,
    as_json: Annotated[bool, _Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, _Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Show what a trained drafter is: for which model, how large, how it was trained, and how much was accepted.

    All of it is read and checked. Whether a model is the one that it was trained for, is told by the model's
    fingerprint, for which its weights are read whole.

    Example: **draftproof inspect heads/smollm2**

    Example: **draftproof inspect heads/smollm2 --target smollm2-135m --json**
    """
    from ..models.eagle_files import config_of, read_head
    from ..models.shelf import SHELF, shelved

    folder = Path(head).expanduser()
    if not folder.exists() and head in shelved():
        folder = SHELF / head
    config = config_of(folder)
    if _is_model(config):
        found = {"folder": str(folder), "kind": "model", "model_type": config["model_type"]}
        print(json.dumps(found) if as_json else f"model     {config['model_type']}; a model, not a drafter")
        return
    files = read_head(folder)
    report = report_of(files, compared(files, target))
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
        return
    for line in _lines(report):
        print(line)


def _is_model(config: Mapping[str, Any]) -> bool:
    """Not a head of any layout."""
    eagle = "draft_vocab_size" in config or "eagle" in str(config.get("architectures")).lower()
    return "model_type" in config and "speculators_model_type" not in config and not eagle


def report_of(files: HeadFiles, match: Mapping[str, Any]) -> dict[str, Any]:
    config, about = files.config, files.about
    return {
        "folder": str(files.folder),
        "kind": "drafter",
        "algorithm": "eagle3",
        "format": "speculators",
        "trained_by": "draftproof" if about.ours else None,
        "target": {
            "name": about.target,
            "architectures": list(about.architectures),
            "hidden_size": config.hidden_size,
            "vocab_size": config.layer.vocab_size,
            "fingerprint": dict(about.fingerprint),
        },
        "match": dict(match),
        "feature_layers": list(config.feature_layers) or None,
        "draft_vocab_size": config.draft_vocab_size,
        "tokens": about.tokens,
        "own_embeddings": about.embeddings is not None,
        "parameters": files.parameters,
        "dtype": str(files.dtype).removeprefix("torch."),
        "bytes": files.size,
        "training": dict(about.training),
        "measured": dict(about.measured),
    }


# the model it is for


def compared(files: HeadFiles, target: str | None) -> dict[str, Any]:
    """model: what it is compared with, or None. fits: whether it can run there. same: whether it was trained for just
    that; None: nobody knows. why: it does not fit, or nobody knows. differ: the parts of the fingerprint that do."""
    from transformers import AutoConfig

    from ..models.eagle_files import differing, fitted
    from ..models.load import default_cache_dir, quiet_transformers, resolve

    name = files.about.target if target is None else target
    path = _here(name) if target is None else resolve(target, default_cache_dir(), note)
    if path is None:
        return {"model": None}
    with quiet_transformers():
        config = AutoConfig.from_pretrained(path)
    try:
        fitted(files, config)
    except ValueError as error:
        return {"model": name, "fits": False, "why": str(error), "same": False}
    if not files.about.fingerprint:
        return {"model": name, "fits": True, "why": "the head does not say", "same": None}
    try:
        differ = differing(files.about, _fingerprint(path))
    except (ValueError, OSError) as error:  # weights in another kind of file, or no tokenizer
        return {"model": name, "fits": True, "why": str(error), "same": None}
    return {"model": name, "fits": True, "same": not differ, "differ": sorted(differ)}


def _here(name: str | None) -> Path | None:
    """Where a model is on this machine, without asking for it anywhere else."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    from ..models.load import default_cache_dir

    if not name:
        return None
    for folder in (Path(name), default_cache_dir() / name):
        if (folder / "config.json").is_file():
            return folder
    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None


def _fingerprint(path: Path) -> dict[str, str]:
    from transformers import AutoTokenizer

    from ..fingerprint import fingerprint_of
    from ..models.load import quiet_transformers

    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(path)
    return fingerprint_of(path, tokenizer)


# words


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    target, fingerprint = report["target"], report["target"]["fingerprint"]
    yield f"drafter   EAGLE-3 head, in speculators' layout, trained by {report['trained_by'] or 'others'}"
    kinds = f" ({', '.join(target['architectures'])})" if target["architectures"] else ""
    yield (
        f"target    {target['name'] or 'not named'}{kinds}, hidden size {target['hidden_size']}, "
        f"{target['vocab_size']} tokens"
    )
    if fingerprint:
        yield f"          {', '.join(f'{part} {value[:12]}' for part, value in fingerprint.items())}"
    yield f"match     {_matching(report['match'])}"
    yield f"reads     what enters {_layers(report['feature_layers'])}"
    yield f"guesses   {report['draft_vocab_size']} of {target['vocab_size']} tokens, {report['tokens']} at once"
    own = ", and embeddings of its own" if report["own_embeddings"] else ""
    yield f"size      {report['parameters']:,} parameters, {report['dtype']}, {report['bytes'] / 1e6:.1f} MB{own}"
    for name in ("training", "measured"):
        yield f"{name:<10}{', '.join(_flat(report[name])) or 'not said'}"


def _layers(layers: list[int] | None) -> str:
    return f"layers {', '.join(map(str, layers))}" if layers else "the usual three layers"


def _matching(match: Mapping[str, Any]) -> str:
    if match["model"] is None:
        return "its target is not here; --target MODEL compares"
    if not match["fits"]:
        return f"{match['model']} does not fit: {match['why']}"
    if match["same"] is None:
        return f"{match['model']} fits; whether it was trained for that is not known: {match['why']}"
    if match["same"]:
        return f"{match['model']} is what it was trained for"
    return f"{match['model']} fits, and is another: {', '.join(match['differ'])}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Entries as words, those within others by their path."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name} {_brief(value)}"


def _brief(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_brief, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
