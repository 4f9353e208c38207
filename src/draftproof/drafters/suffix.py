"""Copying what came next the last times: a tree of what followed the text's longest known ends.

In the spirit of SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975): over the request's own text and over a shared
store of earlier ones. How far a continuation is believed is worked out as in text compression (PPM, Cleary and Witten
1984): counts after a long context, backed by those after shorter ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import itemgetter

from ..base import ROOT, Chance, Context, Draft, Kind
from ..plan import Plan, Terms
from .corpus import SuffixCorpus
from .occurrences import Occurrences, Place
from .outlook import worthwhile
from .worth import trusted

ORIGIN = "suffix"

CONTEXTS = 4
"""Contexts that are asked, the longest first: shorter ones hardly change what those say."""

SPARE = 3
"""Tokens that are weighed beyond the siblings asked for: the most frequent after one context need not be in the end."""

LOOKED = 32
"""Followers of one context that are looked at: where there are more, none is likely."""

FAINT = 0.02
"""Under terms, paths less likely than this are not looked for: fifty of them would bring one token."""

UNSEEN, SUREST = 1e-3, 0.999
"""The chance of a token before any context has spoken for it, and the most that all contexts together are believed."""

GLANCE = 8
"""Tokens of the text's end that are looked up in the corpus first: if not all of them are found, no more can be."""

CORPUS = 3.0
"""A context of the corpus needs so many times the sightings of one in the request's own text: then what it promises
comes true, with Wikipedia articles for texts and others for a corpus."""

Guess = tuple[float, int]
"""(how likely it comes next, token)"""

Spot = tuple[Occurrences, Place]
"""What was read, and the longest end of a path that occurred in it."""


def escape(length: int, kinds: int) -> float:
    """Sightings that a context must have, to be believed as much as what the shorter ones say.

    Witten and Bell (1991) take one for each kind of token that followed; a context of 6 tokens takes about that, one of
    17 tokens a tenth. The curve was fitted to 47,000 predictions in Wikipedia text, prompts with documents, code, and
    a small model's answers, each of these four counting the same.

    >>> [round(escape(length, 1), 2) for length in (1, 4, 8, 16, 32)]
    [2.55, 1.59, 0.57, 0.12, 0.02]
    """
    return kinds * 2.6 / (1 + (length / 4.8) ** 2.5)


def guesses(spots: Sequence[Spot], shortest: int, width: int) -> list[Guess]:
    """The `width` likeliest next tokens, by falling likelihood."""
    likely: dict[int, float] = {}
    weighed = []
    for length, own, seen, state in _contexts(spots, shortest):
        kinds, often = seen.followers(state, LOOKED)
        total = seen.count[state] if kinds > LOOKED else sum(often.values())
        weighed.append((escape(length, kinds) * (1.0 if own else CORPUS), total, often, seen, state))
        room = width + SPARE - len(likely)
        if room > 0:
            first = often if kinds <= room else sorted(often, key=often.__getitem__, reverse=True)[:room]
            likely.update((token, UNSEEN) for token in first)
    for doubt, total, often, seen, state in reversed(weighed):
        if len(often) == LOOKED:  # not all of them were looked at
            often = {token: seen.often(state, token) for token in likely}
        whole = total + doubt
        for token, backed in likely.items():
            likely[token] = (often.get(token, 0) + doubt * backed) / whole
    ranked = sorted(likely.items(), key=itemgetter(1), reverse=True)
    return [(min(chance, SUREST), token) for token, chance in ranked[:width]]


def _contexts(spots: Sequence[Spot], shortest: int) -> list[tuple[int, bool, Occurrences, int]]:
    """(length, in the own text?, text, state), the longest first, own text before corpus."""
    found = [
        (length, at == 0, seen, state)
        for at, (seen, place) in enumerate(spots)
        for state, length in seen.contexts(place, shortest, CONTEXTS)
    ]
    if len(spots) > 1:
        found.sort(key=lambda each: each[:2], reverse=True)
    return found[:CONTEXTS]


@dataclass(slots=True)
class _Text:
    """A request's own text: what followed what in it, the state of its end, and its last tokens."""

    seen: Occurrences
    state: int = 0
    tail: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Family:
    """The children that a node may get. reach: how likely the node's own path is kept."""

    parent: int
    reach: float
    level: int
    spots: list[Spot]
    guesses: list[Guess]


@dataclass(slots=True)
class _Growing:
    """A draft under way: nodes by falling probability of their paths, `reach`."""

    plan: Plan
    shortest: int
    floor: float  # no path less likely than this
    limit: int  # nodes
    terms: Terms | None
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    reach: list[float] = field(default_factory=list)
    heap: list[tuple[float, int, float, int, _Family]] = field(default_factory=list)
    offered: int = 0

    def grow(self, spots: list[Spot]) -> None:
        self._sprout(ROOT, 1.0, 0, spots)
        while self.heap and len(self.tokens) < self.limit and self._may_pay():
            reach, _, likely, rank, family = heappop(self.heap)
            confidence, token = family.guesses[rank]
            self.tokens.append(token)
            self.parents.append(family.parent)
            self.confidence.append(confidence)
            self.reach.append(-reach)
            self._offer(family, rank + 1, likely)
            if family.level + 1 < self.plan.depth and len(self.tokens) < self.limit:
                spots = [(seen, seen.walk(place, token)) for seen, place in family.spots]
                self._sprout(len(self.tokens) - 1, -reach, family.level + 1, spots)

    def _may_pay(self) -> bool:
        """Whether more nodes, all as likely as the next one, which none exceeds, would bring more tokens a second."""
        if self.terms is None:
            return True
        kept, reach, (now, *wider) = (
            self.terms.base + sum(self.reach),
            -self.heap[0][0],
            self.terms.rounds[len(self.tokens) :],
        )
        return any((kept + more * reach) * now > kept * seconds for more, seconds in enumerate(wider, 1))

    def _sprout(self, parent: int, reach: float, level: int, spots: list[Spot]) -> None:
        found = guesses(spots, self.shortest, self.plan.width(level))
        self._offer(_Family(parent, reach, level, spots, found), 0, 1.0)

    def _offer(self, family: _Family, rank: int, most: float) -> None:
        """Let a child wait for its turn. No later sibling is trusted more than an earlier one, so that ranks hold."""
        if rank == len(family.guesses):
            return
        trust = None if self.terms is None else self.terms.trust.get(ORIGIN)
        likely = min(most, trusted(trust, family.level, rank, family.guesses[rank][0]))
        if family.reach * likely >= self.floor:
            heappush(self.heap, (-family.reach * likely, self.offered, likely, rank, family))
            self.offered += 1


class SuffixDrafter:
    """Longest known ends first, on a par with how often they went on so; from the text itself and from `corpora`.

    longest, shortest: tokens of a match. Without terms a plan gets the nodes whose path is likelier than `floor`, so a
    draft is long where the text repeats itself and empty where nothing is known; under terms, as many as pay. A draft
    that runs into the end of the text goes on with what it has just copied, so a loop is followed round.

    A session keeps 140 bytes a token of English text, at most 310 found (see `Occurrences`).
    """

    def __init__(
        self, corpora: Sequence[SuffixCorpus] = (), *, longest: int = 32, shortest: int = 1, floor: float = 0.1
    ) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(
                f"shortest, longest: {shortest}, {longest} are not allowed; 1 <= shortest <= longest is right"
            )
        if not 0 < floor < 1:
            raise ValueError(f"floor: {floor} is not allowed; it must be a number between 0 and 1")
        self._corpora, self._longest, self._shortest, self._floor = corpora, longest, shortest, floor

    def open(self, context: Context) -> _Text:
        return _Text(Occurrences(self._longest))

    def commit(self, sessions: Sequence[_Text], tokens: Sequence[Sequence[int]]) -> None:
        for session, new in zip(sessions, tokens, strict=True):
            session.state = session.seen.extend(session.state, new)
            session.tail = [*session.tail, *new[-self._longest :]][-self._longest :]

    def propose(self, sessions: Sequence[_Text], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        return [self._propose(session, plan) for session, plan in zip(sessions, plans, strict=True)]

    def _propose(self, session: _Text, plan: Plan) -> Draft:
        root, terms = session.seen.read, plan.terms
        if plan.depth <= 0:
            return Draft(root)
        floor = self._floor if terms is None else FAINT
        limit = plan.nodes if terms is None else min(plan.nodes, len(terms.rounds) - 1)
        growing = _Growing(plan, self._shortest, floor, limit, terms)
        growing.grow(list(self._spots(session)))
        n = len(growing.tokens)
        draft = Draft(
            root,
            tuple(growing.tokens),
            tuple(growing.parents),
            (Kind.CHOSEN,) * n,
            (ORIGIN,) * n,
            row_of=(-1,) * n,
            confidence=tuple(growing.confidence),
        )
        if terms is None:
            return draft
        return draft.keeping(worthwhile(growing.parents, growing.reach, terms)[1])

    def _spots(self, session: _Text) -> Iterator[Spot]:
        yield session.seen, (session.state, session.seen.length[session.state])
        for seen in (part for corpus in self._corpora for part in reversed(corpus.parts)):  # the latest first
            place = seen.find(session.tail[-GLANCE:])
            if place[1] == GLANCE:  # else no longer end is known either
                place = seen.find(session.tail)
            if place[1] >= self._shortest:
                yield seen, place
