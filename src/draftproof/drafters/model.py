"""A smaller causal language model as drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..base import Chance, Context, Draft, Feed, Kind, Session, Target
from ..plan import Plan
from ..trees import follow
from .grow import Growing, grow, without_request


@dataclass(slots=True)
class _Guide:
    context: Context
    model: Session
    tokens: list[int] = field(default_factory=list)  # committed
    cached: int = 0  # how many of them the model's cache holds
    feed: Feed | None = None  # what the model read after them and was not told the end of


class ModelDrafter:
    """Draws chains and trees from `model`, under the request's own sampling law.

    kind: Kind.COUPLED draws with the target's noise (for the coupled rule), Kind.SAMPLED with noise of its own (for
    the others). The draft carries the very arrays that the tokens were drawn from. The cache follows commits: of the
    nodes that the model has read those on the committed path are kept, before it reads what it lacks.
    """

    def __init__(self, model: Target, kind: Kind, name: str = "model") -> None:
        if kind is Kind.CHOSEN:
            raise ValueError("kind: a model drafter draws its tokens; it must be COUPLED or SAMPLED")
        self._model, self._kind, self._name = model, kind, name

    def open(self, context: Context) -> _Guide:
        return _Guide(context, self._model.open(min(context.capacity, self._model.max_context)))

    def commit(self, sessions: Sequence[_Guide], tokens: Sequence[Sequence[int]]) -> None:
        for session, new in zip(sessions, tokens, strict=True):
            session.tokens += new

    def unread(self, session: _Guide) -> dict[str, int]:
        after = session.cached
        if session.feed is not None:
            after += session.feed.committed
            after += len(_read_of(session.feed, session.tokens[after:-1]))
        return {self._name: len(session.tokens) - after}

    def propose(self, sessions: Sequence[_Guide], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        """All sessions together: one forward a level."""
        growing = [self._begin(*each) for each in zip(sessions, plans, chances, strict=True)]
        grow(self._model, growing)
        for guide, each in zip(sessions, growing, strict=True):  # after an error nothing that was read is kept
            guide.feed = each.feed or guide.feed
        return [each.draft() for each in growing]

    def _begin(self, guide: _Guide, plan: Plan, chance: Chance) -> Growing:
        # the last level is never fed
        depth = min(plan.depth, self._model.max_context - len(guide.tokens) + 1)
        pending = (0,)
        if depth > 0:
            self._settle(guide)
            pending = tuple(guide.tokens[guide.cached :])
        if max(pending) >= self._model.vocab_size:  # an id of the target's padding: this model has no embedding for it
            depth = 0
        plan = replace(plan, depth=max(depth, 0))
        return Growing(guide.context, guide.model, guide.tokens, pending, plan, chance, self._kind, self._name)

    def _settle(self, guide: _Guide) -> None:
        """Keep of the rows that the model read those that became text, but never all of the text: its last token is
        what the next draft begins with."""
        feed, guide.feed = guide.feed, None
        if feed is None:
            return
        after = guide.cached + feed.committed
        path = _read_of(feed, guide.tokens[after:-1])
        self._model.commit([guide.model], [path])
        guide.cached = after + len(path)
        if guide.cached >= len(guide.tokens):  # nothing was committed since
            guide.cached = len(guide.tokens) - 1
            self._model.truncate(guide.model, guide.cached)

    def kv_cost(self, tokens: int) -> int:
        return self._model.kv_cost(tokens)

    def close(self, session: _Guide) -> None:
        self._model.close(session.model)
        session.cached, session.feed = 0, None

    def keep(self, session: _Guide) -> _Guide:
        self._settle(session)
        return _Guide(without_request(session.context), self._model.keep(session.model), cached=session.cached)

    def adopt(self, session: _Guide, donor: _Guide, length: int) -> None:
        session.cached = min(donor.cached, length)
        self._model.adopt(session.model, donor.model, session.cached)

    def check(self, session: _Guide, tokens: Sequence[int]) -> str | None:
        if session.tokens != list(tokens):
            return f"was told {len(session.tokens)} tokens, not the {len(tokens)} that were committed"
        self._settle(session)
        return self._model.check(session.model, session.tokens)


def _read_of(feed: Feed, tokens: Sequence[int]) -> list[int]:
    """The nodes of a feed that say what came after it."""
    return follow(feed.tokens[feed.committed :], feed.parents, tokens)
