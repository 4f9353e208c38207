"""Two vocabularies: which tokens they share, and one text told in the tokens of both.

Timor et al., "Accelerating LLM inference with lossless speculative decoding algorithms for heterogeneous vocabularies"
(ICML 2025, 2502.05202): a draft model of another tokenizer can draft in the shared tokens (token-level intersection,
TLI) or in text (string-level exact match, SLEM). Nothing here can change what is said, only how good the drafts are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, Shaped

from .base import Row
from .laws import total

Method = Literal["same", "tli", "slem"]
BROKEN = "\ufffd"
"""What decoders put where bytes do not make a character."""

_UNFINISHED = 3  # bytes of a character whose last one is missing, so at most as many tokens
_STEP = 32  # tokens of a text that are settled at once, seen with as many that follow them
_MARKS = {"Ġ": "byte-level", "▁": "SentencePiece"}  # what stands for a space in a token's name


@dataclass(frozen=True, slots=True, eq=False)
class Pairing:
    """How a draft model's vocabulary relates to the target's.

    method: "same" (ids agree: a draft model like any other), "tli" or "slem". why: the reason, for people. to_target:
    the target's id of each of the draft's, -1 for those it has none for; no two have the same. shared: how many have.
    """

    method: Method
    why: str
    to_target: Int[np.ndarray, " d"]
    shared: int


def relation(
    target_vocab: Mapping[str, int],
    draft_vocab: Mapping[str, int],
    target_size: int,
    draft_size: int,
    *,
    control: Collection[int] = frozenset(),
    method: str | None = None,
) -> Pairing:
    """Compare vocabularies: names of tokens -> ids, and the models' sizes, which may be padded beyond them.

    control: the draft's control tokens; unless the vocabularies are the same they are shared with nobody. method: what
    to use instead of what is found. Ids that agree wherever both have a meaning, and a few tokens that one lacks (added
    ones): "same". Else "tli" if at least half of either vocabulary is shared: a target's token that is not is never
    drafted, and a draft that may not use its own tokens writes as it never does (a Qwen2.5 0.5B for SmolLM2 135M shares
    80 % of the target's and 26 % of its own: in four answers of 24 tokens SLEM had 44 accepted of 154, TLI 34 of 220).
    Else "slem".

    The same tokens under other ids are refused: two such models are almost always one by mistake
    (transformers #45307, vllm #7252).
    """
    if method not in (None, "same", "tli", "slem"):
        raise ValueError(f"method: {method!r} is unknown; known are same, tli, slem")
    ours = {name: i for name, i in target_vocab.items() if 0 <= i < target_size}
    theirs = {name: i for name, i in draft_vocab.items() if 0 <= i < draft_size}
    if not ours or not theirs:
        raise ValueError("vocabulary: it is empty; the target's and the draft's must have tokens")
    _refuse_permuted(ours, theirs)
    agrees = _agrees(ours, theirs)
    if method == "same" and not agrees:
        raise ValueError("method: 'same' is not allowed; the draft's ids mean other tokens than the target's")
    found, marks = (theirs, "") if agrees else _respelt(ours, theirs)
    left_out = frozenset() if agrees else control
    to_target = _mapped({name: i for name, i in found.items() if i not in left_out}, ours, draft_size)
    shared = int(np.count_nonzero(to_target >= 0))
    best = "same" if agrees else "tli" if 2 * shared >= max(len(ours), len(theirs)) else "slem"
    chosen: Any = method or best
    if chosen == "tli" and not shared:
        raise ValueError("method: 'tli' is not allowed; the two vocabularies share no token")
    asked = "" if chosen == best else f" (as asked, instead of {best})"
    counts = f"{shared:,} tokens are shared, of the target's {len(ours):,} and the draft's {len(theirs):,}"
    return Pairing(chosen, f"{chosen}: {counts}{marks}{asked}", to_target, shared)


def unnamed(vocab: Mapping[str, int], size: int) -> frozenset[int]:
    """Ids of a model that no token of its vocabulary has: padding, which means nothing and is never drafted."""
    return frozenset(range(size)) - frozenset(vocab.values())


def with_ends(to_target: Int[np.ndarray, " d"], ends: Mapping[int, int]) -> Int[np.ndarray, " d"]:
    """`to_target` with these pairs (what ends an answer, in the draft's ids and the target's), of one draft id each."""
    out = to_target.copy()
    for theirs, ours in ends.items():
        if 0 <= theirs < len(out):
            out[out == ours] = -1
            out[theirs] = ours
    return out


def _refuse_permuted(ours: Mapping[str, int], theirs: Mapping[str, int]) -> None:
    if ours.keys() != theirs.keys() or ours == theirs:
        return
    moved = [name for name in ours if ours[name] != theirs[name]]
    shown = ", ".join(f"{name!r} is {ours[name]} and {theirs[name]}" for name in moved[:3])
    raise ValueError(
        f"draft: its vocabulary is the target's, permuted: {len(moved):,} of {len(ours):,} tokens have other ids "
        f"({shown}); this is almost always a mistake: give a draft model with the target's own tokenizer"
    )


def _agrees(ours: Mapping[str, int], theirs: Mapping[str, int]) -> bool:
    """Whether no id means two things, and one lacks only a few of the other's tokens."""
    named = {i: name for name, i in ours.items()}
    if any(named.get(i, name) != name or ours.get(name, i) != i for name, i in theirs.items()):
        return False
    few = max(64, max(len(ours), len(theirs)) // 50)
    return len(ours.keys() ^ theirs.keys()) <= few


def _respelt(ours: Mapping[str, int], theirs: Mapping[str, int]) -> tuple[Mapping[str, int], str]:
    """The draft's tokens by the names that the target's vocabulary would give them, and what people should know of it.

    Byte-level vocabularies write Ġ for a space and letters for bytes, SentencePiece ▁ and plain text: between the two
    only printable ASCII is sure to mean the same (é is a byte here and a letter there); the rest counts as not shared.
    """
    here, there = _mark_of(ours), _mark_of(theirs)
    if here == there or not here or not there:
        return theirs, ""
    sure = {name.replace(there, here): i for name, i in theirs.items() if _is_printable(name.replace(there, ""))}
    return sure, f" (between {_MARKS[there]} and {_MARKS[here]} tokens only ASCII can be)"


def _mark_of(vocab: Mapping[str, int]) -> str:
    found = [mark for mark in _MARKS if mark in vocab]
    return found[0] if len(found) == 1 else ""


def _is_printable(text: str) -> bool:
    return all("!" <= character <= "~" for character in text)


def _mapped(theirs: Mapping[str, int], ours: Mapping[str, int], size: int) -> np.ndarray:
    out = np.full(size, -1, np.int64)
    taken: set[int] = set()
    for name, i in sorted(theirs.items(), key=lambda each: each[1]):
        id_here = ours.get(name, -1)
        if id_here >= 0 and id_here not in taken and out[i] < 0:
            out[i] = id_here
            taken.add(id_here)
    return out


def restrict_logits(row: Row, to_target: Int[np.ndarray, " d"], size: int) -> Shaped[np.ndarray, " u"]:
    """A draft's logits over the target's ids: −inf for those it shares none with. A ValueError if nothing is left.

    To renormalise what is left is the softmax's business, so TLI's law is the request's own law of this row.
    """
    ids = _shared(row, to_target, size)
    out = np.full(size, -np.inf, np.float32)
    out[to_target[ids]] = row[ids]
    if not out.max(initial=-np.inf) > -np.inf:
        raise ValueError("logits: no shared token has any mass")
    return out


def restrict_law(row: Row, to_target: Int[np.ndarray, " d"], size: int) -> Shaped[np.ndarray, " u"]:
    """The same of a law, over any numbers: nothing outside, the rest normalised."""
    ids = _shared(row, to_target, size)
    out = np.full(size, 0 * row[0], row.dtype)
    out[to_target[ids]] = row[ids]
    if not total(out) > 0:
        raise ValueError("law: no shared token has any mass")
    return out / total(out)


def _shared(row: Row, to_target: np.ndarray, size: int) -> np.ndarray:
    there = to_target[: len(row)]
    return np.flatnonzero((there >= 0) & (there < size))


# -- one text in two vocabularies


@runtime_checkable
class Tokens(Protocol):
    """A tokenizer as in the middle of a text: `decode` keeps a leading space, `encode` adds no token and no space."""

    def decode(self, ids: Sequence[int]) -> str: ...

    def encode(self, text: str) -> list[int]: ...


class Speller:
    """A transformers tokenizer as `Tokens`. without: ids that are no text to others (what begins a sequence, padding).

    Tokenizers that put a space before every text, and drop it again, are made to read behind a line's end.
    """

    def __init__(self, tokenizer: Any, without: Iterable[int] = ()) -> None:
        self._tokenizer, self._without = tokenizer, frozenset(without)
        mark = self._encode("\n")
        plain = self._encode("\na") == mark + self._encode("a") and self._decode(self._encode(" a")) == " a"
        self._mark = [] if plain else mark

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def decode(self, ids: Sequence[int]) -> str:
        kept = [i for i in ids if i not in self._without]
        return (
            self._decode(self._mark + kept).removeprefix(self._decode(self._mark)) if self._mark else self._decode(kept)
        )

    def encode(self, text: str) -> list[int]:
        n = len(self._mark)
        behind = self._encode("\n" + text) if n else []
        return behind[n:] if n and behind[:n] == self._mark else self._encode(text)


def sure(text: str) -> str:
    """Without what may yet become a character."""
    broken = len(text) - len(text.rstrip(BROKEN))
    return text[: len(text) - min(broken, _UNFINISHED)]


@dataclass(slots=True)
class Retold:
    """A text in another vocabulary's tokens, told as it grows: a function of its tokens, in whatever pieces they came.

    Tokenisation is not local, so the end is told anew each time; what lies far enough back is settled, where a cut
    changes neither the text nor, if such a place is near, its tokens. bos: what begins every text there, once.
    """

    source: Tokens
    sink: Tokens
    bos: int | None = None
    tokens: list[int] = field(default_factory=list)
    cut: int = 0  # tokens before it are settled
    settled: list[int] = field(default_factory=list)  # what they are there

    def tell(self) -> tuple[list[int], int]:
        """The other's tokens, and of how many of ours: not of last ones that leave a character unfinished."""
        if not self.settled and self.bos is not None:
            self.settled.append(self.bos)
        while len(self.tokens) - self.cut >= 2 * _STEP:
            block = self.tokens[self.cut : self.cut + 2 * _STEP]
            count = self._place(block)
            self.settled += self._encode(self.source.decode(block[:count]))
            self.cut += count
        end = self.whole()
        return [*self.settled, *self._encode(self.source.decode(self.tokens[self.cut : end]))], end

    def whole(self) -> int:
        """Tokens that end on a whole character; all of them if that is not near."""
        end = len(self.tokens)
        for held in range(min(_UNFINISHED, end - self.cut) + 1):
            if not self.source.decode(self.tokens[self.cut : end - held]).endswith(BROKEN):
                return end - held
        return end

    def _place(self, block: Sequence[int]) -> int:
        """Where to cut a block: near its middle."""
        text = self.source.decode(block)
        ids, fair = self._encode(text), None
        for count in sorted(range(_STEP // 2, _STEP + _STEP // 2), key=lambda at: abs(at - _STEP)):
            before, after = self.source.decode(block[:count]), self.source.decode(block[count:])
            if before + after == text:
                if self._encode(before) + self._encode(after) == ids:
                    return count
                fair = fair or count
        return fair or _STEP

    def _encode(self, text: str) -> list[int]:
        return [i for i in self.sink.encode(text) if i != self.bos]
