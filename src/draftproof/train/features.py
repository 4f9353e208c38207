"""What a target says at every token of the texts, computed once and kept in files that are mapped into memory.

A folder holds one text after the other: features.bin and last.bin in bfloat16, laws.bin with a float32 and an int32 a
token, and index.jsonl, one line a text, written after the text's numbers are. So whatever stops the writer, what the
index says is there, and the rest is cut off. Texts are known by their tokens: more of them are only added.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..jsonl import object_of
from ..models.features import read_features
from .batches import States, Text
from .target_head import TargetHead

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None

_FILES = "features.bin", "last.bin", "laws.bin"
_AT_ONCE = 2048  # tokens that the target reads in one go


class FeatureStore:
    """The states of texts, by their tokens. widths: of features and of what the head reads."""

    def __init__(self, folder: Path, widths: tuple[int, int]) -> None:
        self.folder, self.widths = folder, widths
        self._sizes = 2 * widths[0], 2 * widths[1], 8  # bytes a token
        folder.mkdir(parents=True, exist_ok=True)
        self._read()

    @contextmanager
    def writing(self) -> Generator[None]:
        """Alone, and with what others wrote before. ValueError: another process is writing."""
        with (self.folder / "lock").open("w") as file:
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(f"features: {self.folder} is being written by another process; wait for it") from None
            self._read()
            yield

    def _read(self) -> None:
        self._places: dict[str, tuple[int, int]] = {}
        self.tokens = 0
        index = self.folder / "index.jsonl"
        lines = index.read_text(encoding="utf-8").split("\n") if index.exists() else []
        for line in lines[:-1]:  # the last has no end: it was being written
            entry = object_of(line)
            self._places[entry["text"]] = self.tokens, entry["tokens"]
            self.tokens += entry["tokens"]
        self._maps: list[np.ndarray] = []

    def __contains__(self, text: Text) -> bool:
        return _key(text) in self._places

    @property
    def bytes_per_token(self) -> int:
        return sum(self._sizes)

    def of(self, text: Text) -> States:
        """ValueError for a text that is not there."""
        if (place := self._places.get(_key(text))) is None:
            raise ValueError(f"features: {self.folder} has none of example {text.id}")
        if not self._maps:
            kinds = (np.int16, self.widths[0]), (np.int16, self.widths[1]), (np.int32, 2)
            self._maps = [
                np.memmap(self.folder / name, kind, "c", shape=(self.tokens, wide))
                for name, (kind, wide) in zip(_FILES, kinds, strict=True)
            ]
        start, count = place
        features, last, laws = (torch.from_numpy(each[start : start + count]) for each in self._maps)
        return States(
            features.view(torch.bfloat16),
            last.view(torch.bfloat16),
            laws[:, 0].contiguous().view(torch.float32),
            laws[:, 1].long(),
        )

    def add(self, found: Iterable[tuple[Text, States]]) -> None:
        """Texts that are not there yet. Where the folder is full, OSError, and all that was there stays."""
        with self._opened() as files:
            for text, states in found:
                laws = torch.stack([states.log_z.float().view(torch.int32), states.top.to(torch.int32)], -1)
                for file, kind in zip(files, (states.features, states.last, laws), strict=False):
                    kind = kind.to(torch.bfloat16).view(torch.int16) if kind.is_floating_point() else kind
                    file.write(kind.contiguous().cpu().numpy().tobytes())
                for file in files[:-1]:
                    file.flush()
                files[-1].write((json.dumps({"text": _key(text), "tokens": len(text.tokens)}) + "\n").encode())
                files[-1].flush()
                self._places[_key(text)] = self.tokens, len(text.tokens)
                self.tokens += len(text.tokens)

    def _opened(self) -> Any:
        return _Appended(self.folder, [size * self.tokens for size in self._sizes], self._index_bytes())

    def _index_bytes(self) -> int:
        index = self.folder / "index.jsonl"
        return index.read_bytes().rfind(b"\n") + 1 if index.exists() else 0


class _Appended:
    """The files of a store, open to add to; what lies behind their ends is cut off."""

    def __init__(self, folder: Path, ends: Sequence[int], index: int) -> None:
        self._places = [*zip([folder / name for name in _FILES], ends, strict=True), (folder / "index.jsonl", index)]

    def __enter__(self) -> list[Any]:
        self._files = []
        for path, end in self._places:
            path.touch()
            file = path.open("r+b")
            self._files.append(file)
            file.truncate(end)
            file.seek(end)
        return self._files

    def __exit__(self, *error: object) -> None:
        for file in self._files:
            file.close()


def folder_of(data: Path, fingerprint: dict[str, str], layers: Sequence[int]) -> Path:
    """Where the states of one target are kept: beside the data, and apart from those of any other target or layers."""
    what = json.dumps([fingerprint["weights"], fingerprint["config"], list(layers)])
    name = f"features-{hashlib.sha256(what.encode()).hexdigest()[:12]}"
    return data.with_name(f"{data.name}.{name}") if data.is_file() else data / name


def fill(
    store: FeatureStore,
    texts: Sequence[Text],
    target: Any,
    head: TargetHead,
    layers: Sequence[int],
    *,
    tell: Callable[[str], None],
    show: Callable[[int, int], None],
    stopped: Callable[[], bool],
) -> bool:
    """One pass of the target over the texts that the store lacks. Whether it came to its end. target: an HFTarget.

    tell: what it will need, once it is known. show: tokens done, and tokens in all.
    """
    with store.writing():
        return _fill(store, texts, target, head, layers, tell, show, stopped)


def _fill(
    store: FeatureStore,
    texts: Sequence[Text],
    target: Any,
    head: TargetHead,
    layers: Sequence[int],
    tell: Callable[[str], None],
    show: Callable[[int, int], None],
    stopped: Callable[[], bool],
) -> bool:
    missing = list({_key(text): text for text in texts if text not in store}.values())
    total = sum(len(text.tokens) for text in missing)
    if not missing:
        return True
    need = total * store.bytes_per_token
    if need > (free := shutil.disk_usage(store.folder).free):
        raise ValueError(
            f"features: {total} tokens take {need / 1e9:.1f} GB in {store.folder}, where {free / 1e9:.1f} GB are free; "
            "give fewer examples (--limit)"
        )
    done, began = 0, time.perf_counter()
    for at, some in enumerate(_groups(missing)):
        if stopped():
            return False
        read = read_features(target, [text.tokens for text in some], layers)
        found = []
        for text, (features, last) in zip(some, read, strict=True):
            found.append((text, States(features, last, *head.law(last))))
        store.add(found)
        done += sum(len(text.tokens) for text in some)
        if not at:
            rate = done / (time.perf_counter() - began)
            tell(
                f"the target reads {total} tokens once: {need / 1e9:.2f} GB in {store.folder.name}, "
                f"about {total / rate / 60:.0f} minutes"
            )
        show(done, total)
    return True


def _groups(texts: Sequence[Text]) -> Iterable[list[Text]]:
    group: list[Text] = []
    for text in texts:
        if group and sum(len(each.tokens) for each in group) + len(text.tokens) > _AT_ONCE:
            yield group
            group = []
        group.append(text)
    if group:
        yield group


def _key(text: Text) -> str:
    return hashlib.sha256(np.asarray(text.tokens, np.int64).tobytes()).hexdigest()[:32]
