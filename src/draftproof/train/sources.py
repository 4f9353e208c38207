"""Where texts come from: folders that `train data` made, and files of conversations; several are learned as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .batches import States, Text
from .corpus import Data, read_data
from .features import FeatureStore, folder_of
from .labels import conversations_of
from .prepare import require_made_by, talks_of, texts_of

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Source:
    """data: what the folder holds; None for a file of conversations, which is read when its tokenizer is known."""

    path: Path
    data: Data | None


def opened(paths: Sequence[Path]) -> list[Source]:
    """ValueError: one is there twice, or is no data."""
    if not paths:
        raise ValueError("data: none is given; give a folder that draftproof train data made, or a file")
    real = [path.resolve() for path in paths]
    for at, path in enumerate(paths):
        if real[at] in real[:at]:
            raise ValueError(f"data: {str(path)!r} is given twice")
    return [Source(path, None if path.is_file() else read_data(path, incomplete=True)) for path in paths]


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
    """All texts; of several sources each is called by its source's name, too."""
    if len(found) == 1:
        return list(found[0])
    return [
        replace(text, id=f"{sources[at].path.name}/{text.id}", source=at)
        for at, texts in enumerate(found)
        for text in texts
    ]


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
        self.each = [FeatureStore(folder_of(source.path, fingerprint, dtype, layers), widths) for source in sources]

    def of(self, text: Text) -> States:
        """ValueError for a text that its store has not."""
        return self.each[text.source].of(text)
