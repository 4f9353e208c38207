"""Where figures come from: what ran, on what, with which weights, and how it was called."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from .. import __version__
from ..doctor import machine

_PACKAGE = Path(__file__).parents[1]
_PATIENCE = 10.0  # seconds that git may take


def provenance(argv: Sequence[str], models: Mapping[str, Path]) -> dict[str, Any]:
    """What a reader needs to judge figures, or to get them again.

    argv: the command line, which is kept without the user's home folder. models: by name, where each lies: the path
    of what was loaded, which for a name of the hub is its snapshot and for a .gguf file what it was converted to.
    revision and modified are those of the package's own folder, None where git does not keep it. memory is in bytes.
    """
    revision, modified = _revision(_PACKAGE)
    home = _home()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command_line(argv, home),
        "draftproof": __version__,
        "revision": revision,
        "modified": modified,
        "numpy": version("numpy"),
        "numba": version("numba"),
        **machine(),
        "platform": platform.platform(),
        "cores": psutil.cpu_count(logical=False),
        "memory": psutil.virtual_memory().total,
        "models": [_model(_without_home(name, home), path) for name, path in models.items()],
    }


def weights_hash(path: Path) -> str:
    """SHA-256 of a model's weights, of all their bytes.

    Of a .gguf file it is that of the file. Of a folder it covers config.json and *.safetensors (pytorch_model*.bin if
    there are none), names and contents; no folders within, neither tokenizer nor generation_config.json. It is the
    hash of the lines that `sha256sum` prints of these files, in order of their names.
    """
    if path.is_file():
        return _sha256(_files(path)[0])
    lines = [f"{_sha256(file)}  {file.name}\n" for file in _files(path)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _model(name: str, path: Path) -> dict[str, Any]:
    return {
        "name": name,
        "sha256": weights_hash(path),
        "bytes": sum(file.stat().st_size for file in _files(path)),
    }


def _files(path: Path) -> list[Path]:
    """What the hash of a model covers."""
    if path.is_file() and path.suffix.lower() == ".gguf":
        return [path]
    weights = list(path.glob("*.safetensors")) or list(path.glob("pytorch_model*.bin"))
    if not weights:
        raise ValueError(f"model: {str(path)!r} holds no weights; give a folder with *.safetensors, or a .gguf file")
    return sorted([*path.glob("config.json"), *weights], key=lambda file: file.name)


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


# the source


def _revision(folder: Path) -> tuple[str | None, bool | None]:
    """The commit that a package's folder is at, and whether the folder holds changes or files that are not in it."""
    # a package installed below somebody's repository, as in its .venv, is no part of that
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=normal", "--", ".")
    return _git(folder, "rev-parse", "--verify", "HEAD"), None if changes is None else bool(changes)


def _git(folder: Path, *command: str) -> str | None:
    """What git says; None if it is not there, fails, or hangs."""
    # GIT_DIR and its like, as hooks set them, would lead it elsewhere
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip()


# the command line


def _command_line(argv: Sequence[str], home: str) -> str:
    """As a shell would take it: the program by its base name (its own one under python -m), ~ for the home folder.

    >>> _command_line(["/lib/draftproof/__main__.py", "doctor"], "")
    'draftproof doctor'
    >>> _command_line(["/opt/bin/draftproof", "bench", "/home/ann/my model", "--out=/home/ann/a.json"], "/home/ann")
    "draftproof bench ~/'my model' '--out=~/a.json'"
    """
    if not argv:
        return ""
    program = Path(argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    return " ".join([shlex.quote(name), *(_quoted(argument, home) for argument in argv[1:])])


def _quoted(argument: str, home: str) -> str:
    shown = _without_home(argument, home)
    if argument.startswith("~") or not (shown == "~" or shown.startswith("~/")):
        return shlex.quote(shown)
    rest = shown[2:]
    return shown[:2] + (shlex.quote(rest) if rest else "")  # a shell expands ~ only where it is not quoted


def homeless(value: Any) -> Any:
    """Any JSON value with ~ for the home folder in its texts, so that a file does not tell whose machine made it."""
    if isinstance(value, str):
        return _without_home(value, _home())
    if isinstance(value, Mapping):
        return {name: homeless(each) for name, each in value.items()}
    return [homeless(each) for each in value] if isinstance(value, list | tuple) else value


def _without_home(text: str, home: str) -> str:
    """~ for the home folder, wherever it stands in the text. Bytes that are no UTF-8 are spelled out."""
    if home:
        text = re.sub(rf"(?<![\w.~]){re.escape(home)}(?![\w.-])", "~", text)
    return text.encode("utf-8", "backslashreplace").decode()


def _home() -> str:
    """The user's home folder; empty if there is none, or none that is worth a name."""
    try:
        home = Path.home()
    except RuntimeError:
        return ""
    return "" if home == Path(home.anchor) else str(home)
