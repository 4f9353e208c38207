"""A target whose logits are a function of the tokens so far: known exactly, so that laws can be compared exactly.

It keeps the contract of a real target (a pending token, a cache that is extended, cut and compacted), and replays what
it holds in its cache, so a wrong commit shows as a wrong law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..base import Feed, Row, Scores
from ..trees import path_to, require_path
from .feeds import require_known, rows_wanted


@dataclass(slots=True)
class TableSession:
    tokens: list[int] = field(default_factory=list)  # the cached, committed ones
    feed: Feed | None = None


class TableTarget:
    """`row(history)` gives the logits (or, with an identity `Law`, the law itself) after `history`."""

    def __init__(self, row: Callable[[Sequence[int]], Row], vocab_size: int, max_context: int = 1 << 20) -> None:
        self._row, self.vocab_size, self.max_context = row, vocab_size, max_context

    def open(self, capacity: int) -> TableSession:
        return TableSession()

    def cached(self, session: TableSession) -> int:
        return len(session.tokens)

    def forward(self, feeds: Sequence[Feed]) -> list[Scores]:
        return [self._forward(feed) for feed in feeds]

    def _forward(self, feed: Feed) -> Scores:
        session: TableSession = feed.session
        require_known(feed, session.feed)
        rows = []
        for i in rows_wanted(feed):
            node = i - feed.committed
            if node < 0:
                history = [*session.tokens, *feed.tokens[: i + 1]]
            else:
                path = [feed.tokens[feed.committed + j] for j in path_to(feed.parents, node)]
                history = [*session.tokens, *feed.tokens[: feed.committed], *path]
            if len(history) > self.max_context:
                raise ValueError(f"context: {len(history)} tokens, the model takes {self.max_context}")
            rows.append(self._row(history))
        session.feed = feed
        return Scores(np.stack(rows) if rows else np.zeros((0, self.vocab_size)))

    def commit(self, sessions: Sequence[TableSession], paths: Sequence[Sequence[int]]) -> None:
        for session, path in zip(sessions, paths, strict=True):
            feed = session.feed
            if feed is None:
                raise ValueError("commit: nothing was fed to this session since its last commit")
            require_path(feed.parents, path)
            session.tokens += feed.tokens[: feed.committed]
            session.tokens += [feed.tokens[feed.committed + node] for node in path]
            session.feed = None

    def truncate(self, session: TableSession, length: int) -> None:
        if length < len(session.tokens):
            del session.tokens[length:]
            session.feed = None  # it followed what is forgotten

    def kv_cost(self, tokens: int) -> int:
        """One byte a token, in blocks of 64."""
        return -(-tokens // 64) * 64

    def close(self, session: TableSession) -> None:
        session.tokens.clear()
        session.feed = None

    def keep(self, session: TableSession) -> TableSession:
        return TableSession(list(session.tokens))

    def adopt(self, session: TableSession, donor: TableSession, length: int) -> None:
        session.tokens[:] = donor.tokens[:length]

    def check(self, session: TableSession, tokens: Sequence[int]) -> str | None:
        known = list(tokens[: len(session.tokens)])
        return None if session.tokens == known else f"cached {session.tokens}, committed {known}"


def hashed_logits(vocab_size: int, *, order: int = 2, scale: float = 2.0, salt: int = 0):
    """Logits hashed from the last `order` tokens: a table language model with a law a tester can recompute."""

    def row(history: Sequence[int]) -> np.ndarray:
        tail = tuple(history[-order:])
        rng = np.random.default_rng([salt, vocab_size, len(tail), *tail])
        return (scale * rng.standard_normal(vocab_size)).astype(np.float32)

    return row
