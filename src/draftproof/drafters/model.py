"""A smaller causal language model as drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..base import Chance, Context, Draft, Feed, Key, Kind, LazyRow, Plan, Purpose, Row, Session, Target, token_key
from ..laws import fit


@dataclass(slots=True)
class _Guide:
    context: Context
    model: Session
    tokens: list[int] = field(default_factory=list)  # committed
    fed: list[int] = field(default_factory=list)  # what the model's cache holds, drafted tokens included
    agreed: int = 0  # how much of `fed` is known to be committed text


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
        return [self._propose(*each) for each in zip(sessions, plans, chances, strict=True)]

    def _propose(self, guide: _Guide, plan: Plan, chance: Chance) -> Draft:
        root = len(guide.tokens)
        depth = min(plan.depth, self._model.max_context - root + 1)  # the last token drafted is never fed
        if depth <= 0:
            return Draft(root)
        drafted: list[int] = []
        rows: list[Row | LazyRow] = []
        pending = self._repair(guide)
        if max(pending) >= self._model.vocab_size:  # an id of the target's padding: this model has no embedding for it
            return Draft(root)
        for i in range(depth):
            logits = self._logits_after(guide, pending)
            key = token_key(root + i) if self._kind is Kind.COUPLED else Key(root, i, Purpose.DRAFT, i)
            try:
                row = self._law(guide.context, logits, [*guide.tokens, *drafted])
                (token,) = chance.pick(row, key)  # a law may be lazy: what is wrong with it shows here at the latest
            except ValueError as error:
                raise ValueError(f"draft model {self._name}: {error}") from error
            rows.append(row)
            drafted.append(token)
            pending = (token,)
        return Draft.chain(root, drafted, self._kind, self._name, rows)

    def _repair(self, guide: _Guide) -> tuple[int, ...]:
        """Cut the cache to the committed text; return the committed tokens it lacks, at least the last one."""
        limit = min(len(guide.fed), len(guide.tokens) - 1)
        while guide.agreed < limit and guide.fed[guide.agreed] == guide.tokens[guide.agreed]:
            guide.agreed += 1
        if guide.agreed < len(guide.fed):
            self._model.truncate(guide.model, guide.agreed)
            del guide.fed[guide.agreed :]
        return tuple(guide.tokens[guide.agreed :])

    def _logits_after(self, guide: _Guide, pending: tuple[int, ...]) -> np.ndarray:
        [scores] = self._model.forward([Feed(guide.model, pending, want=(len(pending) - 1,))])
        self._model.commit([guide.model], [()])
        guide.fed += pending
        return scores.logits[0]

    def _law(self, context: Context, logits: np.ndarray, history: Sequence[int]) -> Row | LazyRow:
        row = context.law(logits[: context.vocab_size], history)
        return row if len(row) == context.vocab_size else fit(np.asarray(row), context.vocab_size)
