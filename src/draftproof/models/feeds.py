"""What a feed may say of the feed before it: so a tree grows level by level, each at the cost of its own rows."""

from __future__ import annotations

from ..base import Feed


def rows_wanted(feed: Feed) -> list[int]:
    """Rows whose logits are asked for. By default none that are known: those were given when they were new."""
    return [row for row in feed.wanted if row >= feed.known] if feed.want is None else list(feed.wanted)


def require_known(feed: Feed, before: Feed | None) -> None:
    """Refuse a feed whose known rows are not those that its session read last. before: what the session was fed since
    its last commit."""
    known = feed.known
    if known == 0:
        return
    if not 0 < known < len(feed.tokens):
        raise ValueError(f"feed: known is {known}; it must be at least 0 and less than {len(feed.tokens)}, its rows")
    if before is None:
        raise ValueError(f"feed: known is {known}, but its session was fed nothing since its last commit")
    if not _begins_with(feed, before, known):
        raise ValueError(f"feed: known is {known}, but its first rows are not those that its session was fed before")
    unknown = [row for row in feed.want or () if row < known]
    if unknown:
        raise ValueError(f"feed: row {unknown[0]} is wanted, but known is {known}: it is not computed again")


def _begins_with(feed: Feed, before: Feed, known: int) -> bool:
    nodes = max(known - feed.committed, 0)
    return (
        feed.tokens[:known] == before.tokens[:known]
        and len(before.tokens) >= known
        and min(feed.committed, known) == min(before.committed, known)  # else they stand elsewhere
        and feed.parents[:nodes] == before.parents[:nodes]
    )
