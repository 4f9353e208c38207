"""Tokens -> text, one token at a time, for any tokenizer: nothing half-made is ever shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BROKEN = "\ufffd"  # what decoders put where bytes do not make a character
_UNFINISHED = 3  # bytes of a character whose last one is missing, so at most as many broken marks


class IncrementalText:
    """A `commit.Detokenizer` over `decode(ids) -> text`.

    before: the last few tokens of the prompt. Tokenizers that mark word beginnings drop a leading space, so new tokens
    are decoded behind old ones and the difference is the text. Broken marks at the end may yet become a character and
    are held back; those further up are final.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(before)
        self._behind = 0  # tokens before this no longer matter
        self._clean = len(self._ids)  # tokens before this ended on a whole character
        self._given = decode(self._ids)  # text of the tokens from `behind` on that was given out

    def add(self, token: int) -> str:
        self._ids.append(token)
        text = self._decode(self._ids[self._behind :])
        sure = self._sure(text)
        if sure != text and not sure.startswith(self._given):
            return ""  # some decoders break the characters before an unfinished one, too, until it is finished
        if not sure.startswith(self._given):  # the first tokens finish a character that the old ones began
            self._given = self._sure(self._given)
        new = sure[len(self._given) :]
        self._given = sure
        if sure == text:
            self._behind, self._clean = self._clean, len(self._ids)
            self._given = self._decode(self._ids[self._behind :])
        return new

    def flush(self) -> str:
        sure = self._sure(self._decode(self._ids[self._behind :]))
        new = sure[len(self._given) :] if sure.startswith(self._given) else ""
        self._given += new
        return new

    @staticmethod
    def _sure(text: str) -> str:
        broken = len(text) - len(text.rstrip(_BROKEN))
        return text[: len(text) - min(broken, _UNFINISHED)]
