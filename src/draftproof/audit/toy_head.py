"""A trained head's place in the proofs: one whose every law is known exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..base import Feed, Scores
from ..models.table import TableSession
from .toys import Table


@dataclass(slots=True)
class HeadSession:
    """read: the target's cached tokens, live. entries: of the text, the token that each was made of."""

    read: list[int]
    entries: list[int] = field(default_factory=list)
    feed: Feed | None = None


class HeadTable:
    """A head whose every law is known: q of the text that an entry or a node ends. An entry's text is what the target
    has cached, and one token."""

    def __init__(self, q: Table, vocab_size: int) -> None:
        self._q, self.vocab_size = q, vocab_size

    def open_over(self, session: TableSession) -> HeadSession:
        return HeadSession(session.tokens)

    @property
    def behind(self) -> int:
        return 2

    def hear(self, sessions: Sequence[HeadSession]) -> list[int]:
        return [len(session.read) for session in sessions]

    def cached(self, session: HeadSession) -> int:
        return len(session.entries)

    def forward(self, feeds: Sequence[Feed]) -> list[Scores]:
        return [self._scores(feed) for feed in feeds]

    def _scores(self, feed: Feed) -> Scores:
        session, texts = feed.session, list[list[int]]()
        for row, token in enumerate(feed.tokens[: feed.committed]):
            at = len(session.entries) + row
            if at >= len(session.read):
                raise ValueError(f"feed: entry {at} is asked for, and the target has read {len(session.read)} tokens")
            texts.append([*session.read[: at + 1], token])
        for parent, token in zip(feed.parents, feed.tokens[feed.committed :], strict=True):
            texts.append([*texts[feed.committed + parent], token])
        session.feed = feed
        return Scores(np.array([self._q(texts[row]) for row in feed.wanted]))

    def commit(self, sessions: Sequence[HeadSession], paths: Sequence[Sequence[int]]) -> None:
        for session in sessions:
            if session.feed is not None:
                session.entries += session.feed.tokens[: session.feed.committed]
            session.feed = None

    def truncate(self, session: HeadSession, length: int) -> None:
        del session.entries[length:]
        session.feed = None

    def kv_cost(self, tokens: int) -> int:
        return tokens

    def close(self, session: HeadSession) -> None:
        session.entries.clear()

    def keep(self, session: HeadSession) -> HeadSession:
        return HeadSession(list(session.read), list(session.entries))

    def adopt(self, session: HeadSession, donor: HeadSession, length: int) -> None:
        session.entries = donor.entries[: length - 1]

    def check(self, session: HeadSession, tokens: Sequence[int]) -> str | None:
        """That its entries are the text's, from the second token on."""
        length = len(session.entries)
        return None if session.entries == list(tokens[1 : 1 + length]) else "its entries are not those of the text"
