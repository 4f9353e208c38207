"""A smaller causal language model as drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..base import Chance, Context, Draft, Feed, Key, Kind, LazyRow, Plan, Purpose, Row, Session, Target, token_key
from ..laws import fit
from ..sampling import AdjustError


@dataclass(slots=True)
class _Guide:
    context: Context
    model: Session
    tokens: list[int] = field(default_factory=list)  # committed
    fed: list[int] = field(default_factory=list)  # what the model's cache holds, drafted tokens included
    agreed: int = 0  # how much of `fed` is known to be committed text


def _no_law(logits: np.ndarray, history: Sequence[int]) -> Row:
    raise ValueError("law: a kept text is not gone on with")


@dataclass(slots=True)
class _Growing:
    """One session's draft under way."""

    guide: _Guide
    chance: Chance
    depth: int
    pending: tuple[int, ...]  # what the model is fed next
    drafted: list[int] = field(default_factory=list)
    rows: list[Row | LazyRow] = field(default_factory=list)


class ModelDrafter:
    """Draws a chain from `model`, under the request's own sampling law.

    kind: Kind.COUPLED draws with the target's noise (for the coupled rule), Kind.SAMPLED with noise of its own (for
    token and block). The draft carries the very arrays that the tokens were drawn from. The cache follows commits:
    before drafting it is cut to what it shares with the committed text and fed what it lacks.
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

    def propose(self, sessions: Sequence[_Guide], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        """All sessions together: one forward a depth."""
        growing = [self._begin(*each) for each in zip(sessions, plans, chances, strict=True)]
        while active := [each for each in growing if len(each.drafted) < each.depth]:
            feeds = [Feed(each.guide.model, each.pending, want=(len(each.pending) - 1,)) for each in active]
            scores = self._model.forward(feeds)
            self._model.commit([feed.session for feed in feeds], [()] * len(feeds))
            for each in active:  # all of them, before a draw that may fail
                each.guide.fed += each.pending
            for each, found in zip(active, scores, strict=True):
                self._draw(each, found.logits[0])
        return [
            Draft.chain(len(each.guide.tokens), each.drafted, self._kind, self._name, each.rows) for each in growing
        ]

    def _begin(self, guide: _Guide, plan: Plan, chance: Chance) -> _Growing:
        depth = min(plan.depth, self._model.max_context - len(guide.tokens) + 1)  # the last drafted token is never fed
        pending = self._repair(guide) if depth > 0 else (0,)
        if max(pending) >= self._model.vocab_size:  # an id of the target's padding: this model has no embedding for it
            depth = 0
        return _Growing(guide, chance, depth, pending)

    def _draw(self, each: _Growing, logits: np.ndarray) -> None:
        root, i = len(each.guide.tokens), len(each.drafted)
        key = token_key(root + i) if self._kind is Kind.COUPLED else Key(root, i, Purpose.DRAFT, i)
        try:
            row = self._law(each.guide.context, logits, [*each.guide.tokens, *each.drafted])
            (token,) = each.chance.pick(row, key)  # a law may be lazy: what is wrong with it shows here at the latest
        except AdjustError:  # a path that the request's own options do not allow: no reason to end it
            each.depth = i
            return
        except ValueError as error:
            raise ValueError(f"draft model {self._name}: {error}") from error
        each.rows.append(row)
        each.drafted.append(token)
        each.pending = (token,)

    def _repair(self, guide: _Guide) -> tuple[int, ...]:
        """Cut the cache to the committed text; return the committed tokens it lacks, at least the last one."""
        limit = min(len(guide.fed), len(guide.tokens) - 1)
        while guide.agreed < limit and guide.fed[guide.agreed] == guide.tokens[guide.agreed]:
            guide.agreed += 1
        if guide.agreed < len(guide.fed):
            self._model.truncate(guide.model, guide.agreed)
            del guide.fed[guide.agreed :]
        return tuple(guide.tokens[guide.agreed :])

    def _law(self, context: Context, logits: np.ndarray, history: Sequence[int]) -> Row | LazyRow:
        row = context.law(logits[: context.vocab_size], history)
        return row if len(row) == context.vocab_size else fit(np.asarray(row), context.vocab_size)

    def kv_cost(self, tokens: int) -> int:
        return self._model.kv_cost(tokens)

    def close(self, session: _Guide) -> None:
        self._model.close(session.model)
        session.fed.clear()
        session.agreed = 0

    def keep(self, session: _Guide) -> _Guide:
        self._repair(session)
        context = replace(session.context, law=_no_law)  # the request's own may hold on to much
        return _Guide(context, self._model.keep(session.model), fed=list(session.fed))

    def adopt(self, session: _Guide, donor: _Guide, length: int) -> None:
        kept = donor.fed[:length]
        self._model.adopt(session.model, donor.model, len(kept))
        session.fed = kept

    def check(self, session: _Guide, tokens: Sequence[int]) -> str | None:
        if session.tokens != list(tokens):
            return f"was told {len(session.tokens)} tokens, not the {len(tokens)} that were committed"
        return self._model.check(session.model, session.fed)
