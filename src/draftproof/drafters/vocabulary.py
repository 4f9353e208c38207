"""Draft models of another tokenizer than the target's.

Timor et al., "Accelerating LLM inference with lossless speculative decoding algorithms for heterogeneous vocabularies"
(ICML 2025, 2502.05202). Both drafters read the committed text in the draft model's own tokens. `TranslatedDrafter`
(TLI, their algorithm 4) draws from the draft's law over the tokens that both have. `RetokenisedDrafter` (SLEM, their
algorithm 2) lets the draft write on and offers its text in the target's tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ..base import Chance, Context, Draft, Feed, Key, Kind, Purpose, Row, Session, Target, token_key
from ..plan import Plan
from ..processors import common
from ..vocabularies import Retold, Tokens, restrict_logits, sure, with_ends
from .grow import without_request

Restrict = Callable[[Row, np.ndarray, int], Row]
"""(the draft's row, draft id -> target id or -1, the target's size) -> the row over the target's ids."""

_SLACK = 64  # draft tokens that a short text may take beyond its share
_LOOK = 8  # committed tokens that are told again with the draft, to see what becomes of the seam
_NO_ENDS: Mapping[int, int] = MappingProxyType({})


@dataclass(slots=True)
class Guide:
    """What is kept for a request."""

    context: Context
    model: Session
    text: Retold
    fed: list[int] = field(default_factory=list)  # what the model's cache holds, drafted tokens included
    told: int = 0  # committed tokens that it has read, in its own

    @property
    def root(self) -> int:
        return len(self.text.tokens)


class _Reader:
    """A draft model that reads texts of the target's tokens in its own: a cache for each, which follows commits.

    stretch: most draft tokens for one of the target's, beyond a few; a text that takes more is not drafted for. bos:
    what the draft model expects before every text, if it does.
    """

    def __init__(self, model: Target, target: Tokens, draft: Tokens, bos: int | None, stretch: int, name: str) -> None:
        if stretch < 1:
            raise ValueError(f"stretch: {stretch} is not allowed; it must be >= 1")
        self._model, self._target, self._draft, self._bos = model, target, draft, bos
        self._stretch, self._name = stretch, name

    def _room(self, tokens: int) -> int:
        """Most draft tokens for a text of so many."""
        return min(self._model.max_context, self._stretch * tokens + _SLACK)

    def open(self, context: Context) -> Guide:
        text = Retold(self._target, self._draft, self._bos)
        return Guide(context, self._model.open(self._room(context.capacity)), text)

    def commit(self, sessions: Sequence[Guide], tokens: Sequence[Sequence[int]]) -> None:
        for guide, new in zip(sessions, tokens, strict=True):
            guide.text.tokens += new

    def unread(self, session: Guide) -> dict[str, int]:
        return {self._name: session.root - session.told}

    def _missing(self, guide: Guide, ids: Sequence[int]) -> tuple[int, ...]:
        """Cut the cache to what it shares with `ids`; return what it lacks of them, at least the last one.

        Nothing, if the model cannot read them.
        """
        if not 0 < len(ids) <= self._room(guide.root):
            return ()
        self._cut(guide, min(common(guide.fed, ids), len(ids) - 1))
        lacking = tuple(ids[len(guide.fed) :])
        return lacking if max(lacking) < self._model.vocab_size else ()

    def _read(self, pending: Sequence[tuple[Guide, tuple[int, ...]]]) -> list[np.ndarray]:
        """The row after the last of each guide's pending tokens, all in one forward."""
        feeds = [Feed(guide.model, ids, want=(len(ids) - 1,)) for guide, ids in pending]
        scores = self._model.forward(feeds)
        self._model.commit([feed.session for feed in feeds], [()] * len(feeds))
        for guide, ids in pending:
            guide.fed += ids
            guide.told = guide.root
        rows = [found.logits[0] for found in scores]
        for row in rows:
            if not row.max() < math.inf:
                raise ValueError(f"draft model {self._name}: logits: a row's largest entry is {row.max()}")
        return rows

    def _cut(self, guide: Guide, length: int) -> None:
        if length < len(guide.fed):
            self._model.truncate(guide.model, length)
            del guide.fed[length:]

    def kv_cost(self, tokens: int) -> int:
        return self._model.kv_cost(self._room(tokens))

    def close(self, session: Guide) -> None:
        self._model.close(session.model)
        session.fed.clear()
        session.told = 0

    def keep(self, session: Guide) -> Guide:
        """No more than a text that lacks its last token may take: that much is accounted for."""
        ids, _ = session.text.tell()
        self._cut(session, min(common(session.fed, ids), self._room(session.root - 1)))
        text = Retold(self._target, self._draft, self._bos)
        kept = self._model.keep(session.model)
        return Guide(without_request(session.context), kept, text, list(session.fed), session.told)

    def adopt(self, session: Guide, donor: Guide, length: int) -> None:
        """As much as both texts have in common in the draft's tokens; how much that is of the target's matters not."""
        ids, _ = session.text.tell()
        shared = min(common(donor.fed, ids), self._room(session.root))
        self._model.adopt(session.model, donor.model, shared)
        session.fed, session.told = donor.fed[:shared], min(donor.told, length)

    def check(self, session: Guide, tokens: Sequence[int]) -> str | None:
        told = session.text.tokens
        if told != list(tokens):
            return f"was told {len(told)} tokens, not the {len(tokens)} that were committed"
        if session.text.tell() != Retold(self._target, self._draft, self._bos, list(tokens)).tell():
            return "the text in the draft's tokens is not that of a replay"
        if self._model.cached(session.model) != len(session.fed):
            return f"{self._model.cached(session.model)} tokens are cached and {len(session.fed)} were fed"
        return self._model.check(session.model, session.fed)


@dataclass(slots=True)
class _Drawing:
    """One chain of TLI under way."""

    guide: Guide
    chance: Chance
    depth: int
    pending: tuple[int, ...]  # what the model is fed next
    drafted: list[int] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)


class TranslatedDrafter(_Reader):
    """TLI: draws a chain from the draft model's law over the shared tokens, under the request's own law.

    kind: as for `ModelDrafter`. to_target: see `Pairing`. The row is restricted before the law is made of it, and the
    draft carries that law, so every rule that takes the kind is lossless. A drafted token's own draft id is fed next.
    Where no shared token may be said the draft ends. ends: draft ids that end an answer -> the target's.
    """

    def __init__(
        self,
        model: Target,
        kind: Kind,
        to_target: np.ndarray,
        target: Tokens,
        draft: Tokens,
        *,
        bos: int | None = None,
        ends: Mapping[int, int] = _NO_ENDS,
        stretch: int = 4,
        restrict: Restrict = restrict_logits,
        name: str = "model",
    ) -> None:
        if kind is Kind.CHOSEN:
            raise ValueError("kind: it draws its tokens; it must be COUPLED or SAMPLED")
        super().__init__(model, target, draft, bos, stretch, name)
        self._kind, self._restrict = kind, restrict
        self._to_target = with_ends(to_target, ends)[: model.vocab_size]
        self._from_target = {int(ours): i for i, ours in enumerate(self._to_target) if ours >= 0}

    def propose(self, sessions: Sequence[Guide], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        """All sessions together: one forward a depth."""
        drawing = [self._begin(*each) for each in zip(sessions, plans, chances, strict=True)]
        while active := [each for each in drawing if len(each.drafted) < each.depth]:
            rows = self._read([(each.guide, each.pending) for each in active])
            for each, row in zip(active, rows, strict=True):
                self._draw(each, row)
        return [self._drawn(each) for each in drawing]

    def _begin(self, guide: Guide, plan: Plan, chance: Chance) -> _Drawing:
        depth = min(plan.depth, plan.nodes)
        if depth < 1:
            return _Drawing(guide, chance, 0, ())
        ids, end = guide.text.tell()
        held = [self._from_target.get(token) for token in guide.text.tokens[end:]]  # bytes of a character, perhaps
        ids += [token for token in held if token is not None]
        pending = () if None in held else self._missing(guide, ids)
        room = self._room(guide.root) - len(ids) + 1  # the last drafted token is never fed
        return _Drawing(guide, chance, min(depth, room) if pending else 0, pending)

    def _draw(self, each: _Drawing, logits: np.ndarray) -> None:
        context, root, i = each.guide.context, each.guide.root, len(each.drafted)
        key = token_key(root + i) if self._kind is Kind.COUPLED else Key(root, i, Purpose.DRAFT, i)
        try:
            shared = self._restrict(logits, self._to_target, context.vocab_size)
            row = context.law(shared, [*each.guide.text.tokens, *each.drafted])
            (token,) = each.chance.pick(row, key)  # a law may be lazy: that it has no mass shows here at the latest
        except ValueError:  # the request allows no shared token here: the target will go on alone
            each.depth = i
            return
        each.rows.append(row)
        each.drafted.append(token)
        each.confidence.append(float(row[token]))
        known = self._from_target.get(token)
        if known is None:  # a request's own options may ask for a token that is not shared: the draft ends with it
            each.depth = i + 1
        else:
            each.pending = (known,)

    def _drawn(self, each: _Drawing) -> Draft:
        chain = Draft.chain(each.guide.root, each.drafted, self._kind, self._name, each.rows)
        return replace(chain, confidence=tuple(each.confidence))


@dataclass(slots=True)
class _Writing:
    """One text of SLEM under way. steps: tokens that the draft model may still write."""

    guide: Guide
    depth: int
    steps: int
    pending: tuple[int, ...]
    windows: list[tuple[tuple[int, ...], str]]  # last committed tokens, and the text of the whole ones, longest first
    written: list[int] = field(default_factory=list)  # in the draft's ids
    end: int | None = None  # the target's token that ends an answer, if the draft ended it


class RetokenisedDrafter(_Reader):
    """SLEM: the draft model writes on, greedily, and its text is offered in the target's tokens, as chosen ones.

    It writes as many tokens as the text so far takes for the planned ones. The last committed tokens are told again
    together with the draft. If they come out as they are, what follows them is the draft; if not (a merge across the
    seam, or a text that no tokenizer would write so), fewer are, and at last the draft alone. unnamed: the draft's
    padding, which it may not choose. control: its ids that are no text: a draft ends before one, with the target's end
    of an answer if `ends` has it.
    """

    def __init__(
        self,
        model: Target,
        target: Tokens,
        draft: Tokens,
        *,
        unnamed: Collection[int] = frozenset(),
        control: Collection[int] = frozenset(),
        bos: int | None = None,
        ends: Mapping[int, int] = _NO_ENDS,
        stretch: int = 4,
        name: str = "model",
    ) -> None:
        super().__init__(model, target, draft, bos, stretch, name)
        self._control, self._ends = frozenset(control), ends
        named = [i for i in range(model.vocab_size) if i not in frozenset(unnamed)] if unnamed else []
        self._named = np.array(named, np.int64)  # none where all are

    def propose(self, sessions: Sequence[Guide], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        """All sessions together: one forward a token of the draft's."""
        writing = [self._begin(*each) for each in zip(sessions, plans, strict=True)]
        while active := [each for each in writing if each.steps > 0]:
            rows = self._read([(each.guide, each.pending) for each in active])
            for each, row in zip(active, rows, strict=True):
                self._write(each, self._likeliest(row))
        return [self._offer(each) for each in writing]

    def _begin(self, guide: Guide, plan: Plan) -> _Writing:
        depth = min(plan.depth, plan.nodes)
        if depth < 1:
            return _Writing(guide, 0, 0, (), [])
        ids, end = guide.text.tell()
        pending = self._missing(guide, ids)
        room = self._room(guide.root) - len(ids) + 1
        hoped = -(-depth * len(ids) // max(guide.root, 1))
        steps = min(hoped, self._stretch * depth, room) if pending else 0
        tokens = guide.text.tokens
        starts = range(max(end - _LOOK, 0), end + 1)
        windows = [(tuple(tokens[at:]), self._target.decode(tokens[at:end])) for at in starts]
        return _Writing(guide, depth, steps, pending, windows)

    def _likeliest(self, row: np.ndarray) -> int:
        return int(self._named[np.argmax(row[self._named])] if len(self._named) else np.argmax(row))

    def _write(self, each: _Writing, token: int) -> None:
        if token in self._ends or token in self._control:
            each.steps, each.end = 0, self._ends.get(token)
            return
        each.steps -= 1
        each.written.append(token)
        each.pending = (token,)

    def _retokenised(self, each: _Writing, text: str) -> list[int]:
        """`text` in the target's tokens, as the text before it goes on."""
        for committed, before in each.windows if text else ():
            ids = self._target.encode(before + text)
            if tuple(ids[: len(committed)]) == committed:
                return ids[len(committed) :]
        return []

    def _offer(self, each: _Writing) -> Draft:
        found = self._retokenised(each, sure(self._draft.decode(each.written)))
        found += [] if each.end is None else [each.end]
        size = each.guide.context.vocab_size
        known = next((i for i, token in enumerate(found) if not 0 <= token < size), len(found))
        return Draft.chain(each.guide.root, found[: min(known, each.depth)], Kind.CHOSEN, self._name)
