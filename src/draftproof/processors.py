"""The chain: what becomes of a row of logits before it is warped into a law. One order, for every row of a request.

    logit_bias → repetition_penalty → frequency_penalty → presence_penalty → bad_words → min_tokens
    → structured_outputs → logits_processors → (laws.warp: temperature → top-k → top-p → min-p → typical-p)

Each piece is a function of the row and of the tokens before it, committed ones and those drafted on the way to the row:
what a piece remembers between calls saves time and changes no result. The chain works on a copy; nobody's row changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .sampling import Adjust, SamplingParams, check_integer

Change = Callable[[np.ndarray, Sequence[int]], np.ndarray]
"""(a row of its own, the tokens before it) -> the row it becomes, the same array or another."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One step of a chain. name: the option that asked for it."""

    name: str
    change: Change


class Chain:
    """Pieces in order, as an `Adjust`."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = tuple(pieces)

    def __call__(self, logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
        row = np.array(logits)
        for piece in self._pieces:
            row = piece.change(row, history)
        if np.isneginf(row.max()) and not np.isneginf(logits.max()):
            raise ValueError(f"no token is left: {self._who_emptied(logits, history)}")
        return row

    def _who_emptied(self, logits: np.ndarray, history: Sequence[int]) -> str:
        row, bans = np.array(logits), []
        for piece in self._pieces:
            before = np.isneginf(row).sum()
            row = piece.change(row, history)
            if np.isneginf(row).sum() > before:
                bans.append(piece.name)
        return f"{' and '.join(bans)} rule out all of them"


def chain_of(
    params: SamplingParams,
    *,
    prompt_length: int,
    vocab_size: int,
    end_ids: frozenset[int] = frozenset(),
    bad_words: Sequence[Sequence[int]] = (),
    mask: Change | None = None,
    looped: Sequence[Change] = (),
) -> Adjust | None:
    """The chain of one request; None if nothing changes its logits.

    end_ids: the model's own. bad_words: `params.bad_words` as tokens, each in all its spellings. mask: of
    `params.structured_outputs`. looped: `params.logits_processors`, made functions of a row.
    """
    pieces, right = [], f"in 0 .. {vocab_size - 1}, a token id"
    for token in params.stop_token_ids:
        check_integer("stop_token_ids", token, lambda token: token < vocab_size, right)
    if params.logit_bias:
        for token in params.logit_bias:
            check_integer("logit_bias", token, lambda token: token < vocab_size, right)
        pieces.append(Piece("logit_bias", biased(params.logit_bias)))
    if params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty:
        pieces.append(Piece("penalties", penalised(Tally(prompt_length), params)))
    if bad_words:
        pieces.append(Piece("bad_words", banned(bad_words)))
    if params.min_tokens:
        pieces.append(Piece("min_tokens", held_open(ending_ids(params, end_ids), prompt_length + params.min_tokens)))
    if mask is not None:
        pieces.append(Piece("structured_outputs", mask))
    pieces += [Piece("logits_processors", change) for change in looped]
    return Chain(pieces) if pieces else None


def ending_ids(params: SamplingParams, end_ids: frozenset[int]) -> frozenset[int]:
    """The ids that end an answer."""
    return (frozenset() if params.ignore_eos else end_ids) | frozenset(params.stop_token_ids)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning of two lists; slices are compared, which is quicker than items.

    >>> common([1, 2, 3, 4], [1, 2, 5])
    2
    """
    same, differ = 0, min(len(a), len(b)) + 1
    middle = max(differ - 8, 1)  # two texts of one request differ near their ends
    while differ - same > 1:
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            differ = middle
        middle = (same + differ) // 2
    return same


class Tally:
    """How often each token occurs in a text, and in the part of it after the prompt.

    It remembers the text it followed last: the next one differs in a few tokens at its end.
    """

    def __init__(self, prompt_length: int) -> None:
        self._prompt = prompt_length
        self._text: list[int] = []
        self._whole: dict[int, int] = {}
        self._said: dict[int, int] = {}

    def whole(self) -> np.ndarray:
        """The ids in the text."""
        return np.fromiter(self._whole, np.int64, len(self._whole))

    def said(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids after the prompt, and their counts."""
        n = len(self._said)
        return np.fromiter(self._said, np.int64, n), np.fromiter(self._said.values(), np.int64, n)

    def follow(self, text: Sequence[int]) -> None:
        """Count another text."""
        known, text = self._text, list(text)
        for _ in range(len(known) - common(known, text)):
            self._forget()
        for token in text[len(known) :]:
            for counts in self._counts_at(len(known)):
                counts[token] = counts.get(token, 0) + 1
            known.append(token)

    def _forget(self) -> None:
        token = self._text.pop()
        for counts in self._counts_at(len(self._text)):
            counts[token] -= 1
            if not counts[token]:
                del counts[token]

    def _counts_at(self, position: int) -> tuple[dict[int, int], ...]:
        return (self._whole,) if position < self._prompt else (self._whole, self._said)


# the pieces. A draft model's row may be shorter than the target's: ids beyond it are nobody's


def biased(bias: dict[int, float]) -> Change:
    ids, values = np.array(list(bias), np.int64), np.array(list(bias.values()))

    def change(row: np.ndarray, history: Sequence[int]) -> np.ndarray:
        inside = ids < len(row)
        row[ids[inside]] += values[inside].astype(row.dtype)
        return row

    return change


def penalised(tally: Tally, params: SamplingParams) -> Change:
    """repetition_penalty (Keskar et al. 2019, 1909.05858), frequency_penalty, presence_penalty, in this order."""
    by, often, once = params.repetition_penalty, params.frequency_penalty, params.presence_penalty

    def change(row: np.ndarray, history: Sequence[int]) -> np.ndarray:
        tally.follow(history)
        if by != 1:
            ids = _inside(tally.whole(), row)
            logits = row[ids]
            with np.errstate(over="ignore"):  # what becomes infinite is refused as a law
                row[ids] = np.where(logits > 0, logits / by, logits * by)
        ids, counts = tally.said()
        counts, ids = counts[ids < len(row)], _inside(ids, row)
        if often:
            row[ids] -= (often * counts).astype(row.dtype)
        if once:
            row[ids] -= once
        return row

    return change


def _inside(ids: np.ndarray, row: np.ndarray) -> np.ndarray:
    return ids[ids < len(row)]


def banned(sequences: Sequence[Sequence[int]]) -> Change:
    """The last token of a sequence is banned where the text ends in the rest of it."""

    def change(row: np.ndarray, history: Sequence[int]) -> np.ndarray:
        for *before, last in sequences:
            if last < len(row) and (not before or list(history[-len(before) :]) == before):
                row[last] = -np.inf
        return row

    return change


def held_open(ids: frozenset[int], length: int) -> Change:
    """None of `ids` before the text has `length` tokens."""
    found = np.array(sorted(ids), np.int64)

    def change(row: np.ndarray, history: Sequence[int]) -> np.ndarray:
        if len(history) < length:
            row[found[found < len(row)]] = -np.inf
        return row

    return change
