"""A shared store of texts that drafters copy from: earlier outputs, or a folder of documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .occurrences import ROOT, Occurrences

PARTS = 4
"""Automata that share the room: the oldest is dropped as a whole, since nothing can be taken out of one."""


class SuffixCorpus:
    """What followed what in the texts that were added, `max_tokens` of them at most.

    When it is full the oldest quarter is forgotten, so the latest three quarters are always known. Nothing matches
    across the boundary of two texts, nor across that of two quarters.
    140 bytes a token of English text, at most 310 found (see `Occurrences`): 14 MB as it stands by default.
    """

    def __init__(self, max_tokens: int = 100_000, *, longest: int = 32) -> None:
        if max_tokens < PARTS:
            raise ValueError(f"max_tokens: {max_tokens} is not allowed; it must be >= {PARTS}")
        if longest < 1:
            raise ValueError(f"longest: {longest} is not allowed; it must be >= 1")
        self.max_tokens, self.longest = max_tokens, longest
        self.forgotten = 0
        self.parts: tuple[Occurrences, ...] = ()

    def __len__(self) -> int:
        """Tokens that it knows."""
        return sum(part.read for part in self.parts)

    def add(self, tokens: Sequence[int]) -> None:
        """A text that is complete. Takes 2 to 5 microseconds a token."""
        share, done = self.max_tokens // PARTS, 0
        while done < len(tokens):
            if not self.parts or self.parts[-1].read >= share:
                self._begin_part()
            piece = tokens[done : done + share - self.parts[-1].read]
            self.parts[-1].extend(ROOT, piece)
            done += len(piece)

    def _begin_part(self) -> None:
        if len(self.parts) == PARTS:
            self.forgotten += self.parts[0].read
        self.parts = (*self.parts, Occurrences(self.longest))[-PARTS:]


def corpus_of(folder: Path, tokenise: Callable[[str], list[int]], max_tokens: int = 1_000_000) -> SuffixCorpus:
    """All files under `folder`, in the order of their names: hidden ones excepted, each must be UTF-8 text.

    A .jsonl file holds a text wherever a line of it has a string. Rather than leave anything out it raises ValueError:
    for a file that cannot be read, and for more than `max_tokens` tokens.
    """
    if not folder.is_dir():
        raise ValueError(f"corpus: {str(folder)!r} is not allowed; it must be a folder of text files")
    corpus = SuffixCorpus(max_tokens)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            for text in _texts(path):
                corpus.add(tokenise(text))
    if not corpus.parts:
        raise ValueError(f"corpus: {str(folder)!r} is not allowed; no file in it holds text")
    if corpus.forgotten:
        needed = len(corpus) + corpus.forgotten
        raise ValueError(f"max_tokens: {max_tokens} is not allowed; {str(folder)!r} holds {needed} tokens")
    return corpus


def _texts(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"corpus: {str(path)!r} is not allowed; it must be a readable UTF-8 text file") from error
    if path.suffix != ".jsonl":
        yield text
        return
    for number, line in enumerate(text.splitlines(), 1):
        try:
            yield from _strings(json.loads(line) if line.strip() else None)
        except json.JSONDecodeError as error:
            raise ValueError(f"corpus: line {number} of {str(path)!r} is not allowed; it must be JSON") from error


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)
