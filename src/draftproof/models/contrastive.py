"""A target of two models: what the expert says against what the amateur says (contrast.py).

Contrastive decoding as a `Target`, so that every drafter, rule and proof holds for it as it is. Both models score EVERY
row, the bonus row among them: taken from the expert alone, as a loop that only reuses the amateur's drafting passes
would have it, the bonus has another law than plain contrastive decoding (tests/test_contrastive.py shows by how much).
The amateur may draft too (Yuan et al., ACL 2024, 2311.08981); what it drafts with has sessions of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..base import Feed, Scores, Session, Target
from ..contrast import combined_scores
from ..sampling import check_number

Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(a row of the expert [v], the amateur's of the same text [u]) -> the combined row [v]."""


@dataclass(slots=True)
class ContrastiveSession:
    """A session of each. Both hold the same text."""

    expert: Session
    amateur: Session


def require_contrast(alpha: float, beta: float) -> None:
    """Refuse what is no head set and no weight: before anything is loaded."""
    check_number("alpha", alpha, lambda x: 0 <= x <= 1, "in 0 .. 1")
    check_number("beta", beta, lambda x: x >= 0, ">= 0")


class ContrastiveTarget:
    """Expert and amateur as one model, whose logits are the combined scores.

    alpha: least share of the expert's largest probability that a token must have to be considered (0: none). beta: the
    weight of the contrast (0: the expert alone). combine: in their place, for proofs over other numbers.

    The expert's vocabulary counts. Where the amateur's is smaller, an id beyond it has the least probability, and as
    part of a text the amateur reads its own last id for it: some rule must hold, and this one needs nothing but the
    text, so drafting changes nothing.
    """

    def __init__(
        self,
        expert: Target,
        amateur: Target,
        *,
        alpha: float = 0.1,
        beta: float = 0.5,
        combine: Combine | None = None,
    ) -> None:
        require_contrast(alpha, beta)
        self.expert, self.amateur, self.alpha, self.beta = expert, amateur, alpha, beta
        self._combine = combine or partial(combined_scores, alpha=alpha, beta=beta)
        self.vocab_size = expert.vocab_size
        self.max_context = min(expert.max_context, amateur.max_context)

    # a target

    def open(self, capacity: int) -> ContrastiveSession:
        return ContrastiveSession(self.expert.open(capacity), self.amateur.open(capacity))

    def cached(self, session: ContrastiveSession) -> int:
        return self.expert.cached(session.expert)

    def forward(self, feeds: Sequence[Feed]) -> list[Scores]:
        """One model after the other: each has the machine to itself."""
        ours = self.expert.forward([replace(feed, session=feed.session.expert) for feed in feeds])
        theirs = self.amateur.forward(
            [replace(feed, session=feed.session.amateur, tokens=self._read(feed.tokens)) for feed in feeds]
        )
        return [self._scores(*each) for each in zip(ours, theirs, strict=True)]

    def _scores(self, expert: Scores, amateur: Scores) -> Scores:
        rows = [self._combine(*each) for each in zip(expert.logits, amateur.logits, strict=True)]
        return Scores(np.stack(rows)) if rows else expert

    def _read(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """A text as the amateur has it."""
        size = self.amateur.vocab_size
        return tuple(tokens) if size >= self.vocab_size else tuple(min(token, size - 1) for token in tokens)

    def commit(self, sessions: Sequence[ContrastiveSession], paths: Sequence[Sequence[int]]) -> None:
        self.expert.commit([session.expert for session in sessions], paths)
        self.amateur.commit([session.amateur for session in sessions], paths)

    def truncate(self, session: ContrastiveSession, length: int) -> None:
        self.expert.truncate(session.expert, length)
        self.amateur.truncate(session.amateur, length)

    # a keeper

    def kv_cost(self, tokens: int) -> int:
        return self.expert.kv_cost(tokens) + self.amateur.kv_cost(tokens)

    def close(self, session: ContrastiveSession) -> None:
        self.expert.close(session.expert)
        self.amateur.close(session.amateur)

    def keep(self, session: ContrastiveSession) -> ContrastiveSession:
        return ContrastiveSession(self.expert.keep(session.expert), self.amateur.keep(session.amateur))

    def adopt(self, session: ContrastiveSession, donor: ContrastiveSession, length: int) -> None:
        self.expert.adopt(session.expert, donor.expert, length)
        self.amateur.adopt(session.amateur, donor.amateur, length)

    def check(self, session: ContrastiveSession, tokens: Sequence[int]) -> str | None:
        """Each by its own replay, and that they have read equally far."""
        ours, theirs = self.expert.cached(session.expert), self.amateur.cached(session.amateur)
        if ours != theirs:
            return f"the expert has cached {ours} tokens, the amateur {theirs}"
        problem = self.expert.check(session.expert, tokens)
        if problem is not None:
            return f"expert: {problem}"
        problem = self.amateur.check(session.amateur, self._read(tokens))
        return None if problem is None else f"amateur: {problem}"

    # what only models of `load` have: this much of an HFTarget is asked for outside of it

    def provide(self, sessions: int, tokens: int) -> None:
        """As `HFTarget.provide`. Room for twice as many in the amateur: it may draft for each of them."""
        expert, amateur = self._models
        expert.provide(sessions, tokens)
        amateur.provide(2 * sessions, tokens)

    @property
    def kv_bytes_per_token(self) -> int:
        expert, amateur = self._models
        return expert.kv_bytes_per_token + amateur.kv_bytes_per_token

    @property
    def plan(self) -> Any:
        """The expert's plan of rows; exact only if the amateur's rows keep their bits, too."""
        expert, amateur = self._models
        return replace(expert.plan, exact=expert.plan.exact and amateur.plan.exact)

    @property
    def model(self) -> Any:
        """The expert's, whose dtype and device are told."""
        return self._models[0].model

    @property
    def _models(self) -> tuple[Any, Any]:
        return self.expert, self.amateur
