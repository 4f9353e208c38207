"""Tokens -> text, one token at a time, for any tokenizer: nothing half-made is ever shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BROKEN = "\ufffd"  # what decoders put where bytes do not make a character
_LONGEST_CHARACTER = 4  # bytes, so at most as many byte tokens


class IncrementalText:
    """A `commit.Detokenizer` over `decode(ids) -> text`.

    before: the last few tokens of the prompt. Tokenizers that mark word beginnings drop a leading space, so new tokens
    are decoded behind old ones and the difference is the text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(before)
        self._behind = 0  # tokens before this no longer matter
        self._read = len(self._ids)  # tokens before this are in the text already

    def add(self, token: int) -> str:
        self._ids.append(token)
        waiting = len(self._ids) - self._read
        new = self._new()
        if new.endswith(_BROKEN) and waiting < _LONGEST_CHARACTER:
            return ""
        self._behind, self._read = self._read, len(self._ids)
        return new

    def flush(self) -> str:
        if self._read == len(self._ids):
            return ""
        new = self._new()
        self._read = len(self._ids)
        return new.rstrip(_BROKEN)

    def _new(self) -> str:
        known = self._decode(self._ids[self._behind : self._read])
        return self._decode(self._ids[self._behind :])[len(known) :]
