"""Where texts come from: folders that `train data` made, and files of conversations; several are learned as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .batches import States, Text
from .corpus import Data, read_data
from .features import FeatureStore, fill, folder_of, require_room
from .labels import conversations_of
from .prepare import require_made_by, talks_of, texts_of
from .target_head import TargetHead

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Source:
    """data: what the folder holds; None for a file of conversations, which is read when its tokenizer is known. name:
    its own among the others."""

    path: Path
    name: str
    data: Data | None


def opened(paths: Sequence[Path]) -> list[Source]:
    """ValueError: one is there twice, or is no data."""
    real = [path.resolve() for path in paths]
    for at, path in enumerate(paths):
        if real[at] in real[:at]:
            raise ValueError(f"data: {str(path)!r} is given twice")
    names = [path.name for path in real]
    alike = len(set(names)) < len(names)
    return [
        Source(path, str(path) if alike else name, None if path.is_file() else read_data(path, incomplete=True))
        for path, name in zip(paths, names, strict=True)
    ]


def texts_from(
    source: Source, tokenizer: Any, fingerprint: Mapping[str, str], limit: int | None, tell: Tell
) -> list[Text]:
    """The first `limit` texts of a source. ValueError: another tokenizer made them."""
    if source.data is None:
        texts = talks_of(conversations_of(source.path, tokenizer))
    else:
        require_made_by(fingerprint, source.data.manifest, tell)
        texts = texts_of(source.data.examples)
    more = source.data is not None and not source.data.manifest["complete"]
    tell(f"{source.path}: {len(texts)} examples{'; more are being made' if more else ''}")
    return texts[:limit]


def together(sources: Sequence[Source], found: Sequence[Sequence[Text]]) -> list[Text]:
    """All texts; of several sources each is called by its source's name, too. What answers a prompt that is a
    conversation's beginning belongs to its group, as that conversation answers it, too."""
    groups: dict[tuple[int, ...], str] = {}
    turns = [(list(_asked(text)), text.group) for texts in found for text in texts]
    for beginnings, group in sorted(turns, key=lambda each: -len(each[0])):  # conversations before what is part of one
        for beginning in beginnings:
            groups.setdefault(beginning, group)
    return [
        replace(
            text,
            id=text.id if len(found) == 1 else f"{sources[at].name}/{text.id}",
            group=next((groups[beginning] for beginning in _asked(text)), text.group),
            source=at,
        )
        for at, texts in enumerate(found)
        for text in texts
    ]


def _asked(text: Text) -> Iterator[tuple[int, ...]]:
    """What stands before each answer in it, the longest last."""
    for at in range(1, len(text.tokens)):
        if text.labels[at] and not text.labels[at - 1]:
            yield text.tokens[:at]


class Stores:
    """What the target says of all texts, each source's kept beside it."""

    def __init__(
        self,
        sources: Sequence[Source],
        fingerprint: dict[str, str],
        dtype: str,
        layers: Sequence[int],
        widths: tuple[int, int],
    ) -> None:
        self._layers = layers
        self._each = [FeatureStore(folder_of(source.path, fingerprint, dtype, layers), widths) for source in sources]

    def fill(
        self,
        texts: Sequence[Text],
        target: Any,
        head: TargetHead,
        *,
        tell: Tell,
        show: Callable[[int, int], None],
        stopped: Callable[[], bool],
    ) -> bool:
        """One pass of the target over what is missing. Whether it came to its end. ValueError: there is no room."""
        each = [(store, [text for text in texts if text.source == at]) for at, store in enumerate(self._each)]
        require_room(each)
        return all(
            fill(store, own, target, head, self._layers, tell=tell, show=show, stopped=stopped) for store, own in each
        )

    def of(self, text: Text) -> States:
        """ValueError for a text that its store has not."""
        return self._each[text.source].of(text)
