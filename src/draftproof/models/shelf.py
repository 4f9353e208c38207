"""Names of heads -> folders. A name is, in this order: a folder, a head that comes with the package, something on the
Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from ..fingerprint import quick_fingerprint
from .eagle_files import CONFIG, differing, read_about
from .hf import HFTarget
from .load import Loaded, Notify, from_hub

SHELF = Path(__file__).parent.parent / "data" / "heads"
"""Heads that come with the package, a folder each."""


def resolve_head(name: str, notify: Notify = lambda message: None) -> Path:
    """The folder that holds the head `name`."""
    try:
        given = Path(name).expanduser()
    except RuntimeError as error:  # ~nobody
        raise ValueError(f"head: {name!r}: {error}") from error
    if given.is_dir():
        return given
    if name in shelved():
        return SHELF / name
    if given.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ValueError(f"head: there is no folder {name!r}")
    return from_hub(name, notify, what="head", known=shelved())


def shelved() -> list[str]:
    """Names of the heads that come with the package."""
    return sorted(folder.parent.name for folder in SHELF.glob(f"*/{CONFIG}"))


def shipped_for(target: Loaded) -> str | None:
    """The name of a head that comes with the package and was trained for a target of this config and tokenizer."""
    names = shelved() if isinstance(target.target, HFTarget) else []
    known = quick_fingerprint(target.path, target.tokenizer) if names else {}
    for name in names:
        about = read_about(SHELF / name)
        if about.fingerprint and not differing(about, known):
            return name
    return None
