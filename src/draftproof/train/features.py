"""What a target says at every token of the texts, computed once and kept in files that are mapped into memory.

A folder holds one text after the other: features.bin and last.bin in bfloat16, laws.bin with a float32 and an int32 a
token, and index.jsonl, one line a text, written when the text's numbers are on the disk. So whatever stops the writer,
what the index says is there, and the rest is cut off. Texts are known by their tokens: more of them are only added.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

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
        """What the index says, up to where the files hold it: a disk that lost its power may know less."""
        entries = _entries(self.folder / "index.jsonl")
        paths = [self.folder / name for name in _FILES]
        there = min(
            path.stat().st_size // size if path.exists() else 0 for path, size in zip(paths, self._sizes, strict=True)
        )
        ends = np.cumsum([0, *(tokens for _, tokens, _ in entries)]).tolist()
        while entries and ends[len(entries)] > there:
            entries.pop()
        maps = self._mapped(ends[len(entries)])
        while entries and _lost(maps, ends[len(entries) - 1], ends[len(entries)]):
            entries.pop()
        self._places = {text: (start, tokens) for (text, tokens, _), start in zip(entries, ends, strict=False)}
        self._index_end = sum(size for *_, size in entries)
        self.tokens = ends[len(entries)]
        self._maps: list[np.ndarray] = []

    def _mapped(self, tokens: int) -> list[np.ndarray]:
        """The files; none of it is read yet."""
        if not tokens:
            return []
        kinds = (np.int16, self.widths[0]), (np.int16, self.widths[1]), (np.int32, 2)
        return [
            np.memmap(self.folder / name, kind, "c", shape=(tokens, wide))
            for name, (kind, wide) in zip(_FILES, kinds, strict=True)
        ]

    def __contains__(self, text: Text) -> bool:
        return _key(text) in self._places

    @property
    def bytes_per_token(self) -> int:
        return sum(self._sizes)

    def of(self, text: Text) -> States:
        """ValueError for a text that is not there."""
        if (place := self._places.get(_key(text))) is None:
            raise ValueError(f"features: {self.folder} has none of example {text.id}")
        self._maps = self._maps or self._mapped(self.tokens)
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
        added = []
        with ExitStack() as stack:
            *files, index = [stack.enter_context(file) for file in self._opened()]
            for text, states in found:
                laws = torch.stack([states.log_z.float().view(torch.int32), states.top.to(torch.int32)], -1)
                for file, kind in zip(files, (states.features, states.last, laws), strict=True):
                    kind = kind.to(torch.bfloat16).view(torch.int16) if kind.is_floating_point() else kind
                    file.write(kind.contiguous().cpu().numpy().tobytes())
                added.append((_key(text), len(text.tokens)))
            for file in files:
                file.flush()
                os.fsync(file.fileno())
            lines = "".join(json.dumps({"text": text, "tokens": tokens}) + "\n" for text, tokens in added).encode()
            index.write(lines)
            index.flush()
        self._index_end += len(lines)
        for text, tokens in added:
            self._places[text] = self.tokens, tokens
            self.tokens += tokens

    def _opened(self) -> list[IO[bytes]]:
        """The files, to add to; what lies behind their ends is cut off."""
        ends = [*(size * self.tokens for size in self._sizes), self._index_end]
        return [_cut(self.folder / name, end) for name, end in zip((*_FILES, "index.jsonl"), ends, strict=True)]


def _cut(path: Path, end: int) -> IO[bytes]:
    path.touch()
    file = path.open("r+b")
    file.truncate(end)
    file.seek(end)
    return file


def _entries(index: Path) -> list[tuple[str, int, int]]:
    """(text, tokens, bytes of the line) of each line, up to the first that is none: it was being written."""
    found = []
    for line in index.read_bytes().split(b"\n")[:-1] if index.exists() else []:
        try:
            entry = object_of(line.decode())
            found.append((str(entry["text"]), int(entry["tokens"]), len(line) + 1))
        except (ValueError, KeyError):
            break
    return found


def _lost(maps: Sequence[np.ndarray], start: int, end: int) -> bool:
    """Whether some token of a text has nothing but zeros, which no target says of it."""
    return any(not each[start:end].any(1).all() for each in maps)


def folder_of(data: Path, fingerprint: dict[str, str], dtype: str, layers: Sequence[int]) -> Path:
    """Where the states of one target are kept: beside the data, and apart from those of any other target, dtype (as
    torch names it) or layers. bfloat16 is not named, as folders were made before dtypes were told apart."""
    what = json.dumps(
        [fingerprint["weights"], fingerprint["config"], list(layers), *([] if dtype == "bfloat16" else [dtype])]
    )
    name = f"features-{hashlib.sha256(what.encode()).hexdigest()[:12]}"
    return data.with_name(f"{data.name}.{name}") if data.is_file() else data / name


def require_room(given: Sequence[tuple[FeatureStore, Sequence[Text]]]) -> None:
    """ValueError: the disks have no room for what these stores lack of these texts."""
    needs: dict[int, tuple[int, int, Path]] = {}  # by disk: tokens, bytes, and where
    for store, texts in given:
        tokens = sum(len(text.tokens) for text in _missing(store, texts))
        disk = store.folder.stat().st_dev
        so_far = needs.get(disk, (0, 0, store.folder))
        needs[disk] = so_far[0] + tokens, so_far[1] + tokens * store.bytes_per_token, so_far[2]
    for tokens, need, folder in needs.values():
        if need > (free := shutil.disk_usage(folder).free):
            raise ValueError(
                f"features: {tokens} tokens take {need / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free; "
                "give fewer examples (--limit)"
            )


def _missing(store: FeatureStore, texts: Sequence[Text]) -> list[Text]:
    """What the store lacks, each text once."""
    return list({_key(text): text for text in texts if text not in store}.values())


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
    if not _missing(store, texts):  # others may train on the same at the same time
        return True
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
    missing = _missing(store, texts)
    total = sum(len(text.tokens) for text in missing)
    if not missing:
        return True
    need = total * store.bytes_per_token
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
