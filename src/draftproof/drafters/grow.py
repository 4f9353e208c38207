"""Growing draft trees from a model's laws: one forward a level, for all requests together.

COUPLED nodes are the tokens that the target's own noise likes best under the draft law; SAMPLED ones are drawn without
replacement, each with the law that it was drawn from. Nodes that share a path share one row of the model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..base import ROOT, Chance, Context, Draft, Feed, Key, Kind, Purpose, Row, Scores, Session, token_key
from ..laws import fit, leading, total, without
from ..plan import Plan
from ..sampling import AdjustError
from ..trees import path_to
from .outlook import worthwhile
from .worth import trusted

_PACE = 4.0  # of all tokens that were not picked, from T = 1 on, for each unit of their mass (docs/decisions/0014)


@dataclass(slots=True)
class Growing:
    """A draft under way. pending: committed tokens that `session` has yet to read, at least the last one."""

    context: Context
    session: Session
    history: Sequence[int]  # committed
    pending: tuple[int, ...]
    plan: Plan
    chance: Chance
    kind: Kind
    origin: str
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    row_of: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    reach: list[float] = field(default_factory=list)  # estimated probability that a node's whole path is accepted
    fed: list[int] = field(default_factory=list)  # the nodes that the model has read, in that order
    front: list[int] = field(default_factory=lambda: [ROOT])  # those whose children come next
    levels: int = 0
    known: int = 0  # rows of the feed that the model has read
    feed: Feed | None = None  # the last one

    def next_feed(self) -> Feed:
        """The rows of the front, after all that was fed before."""
        self.fed += [node for node in self.front if node != ROOT]
        at = {ROOT: ROOT} | {node: i for i, node in enumerate(self.fed)}
        tokens = (*self.pending, *(self.tokens[node] for node in self.fed))
        parents = tuple(at[self.parents[node]] for node in self.fed)
        first = len(tokens) - len(self.front)
        self.feed = Feed(self.session, tokens, parents, tuple(range(first, len(tokens))), self.known)
        return self.feed

    def draft(self) -> Draft:
        """What has grown; of nodes drawn with the target's noise only as many as pay."""
        n = len(self.tokens)
        whole = Draft(
            len(self.history),
            tuple(self.tokens),
            tuple(self.parents),
            (self.kind,) * n,
            (self.origin,) * n,
            tuple(self.rows),
            tuple(self.row_of),
            tuple(self.confidence),
        )
        terms = self.plan.terms
        if terms is None or self.kind is not Kind.COUPLED:
            return whole
        return whole.keeping(worthwhile(self.parents, self.reach, terms)[1])


@runtime_checkable
class Timed(Protocol):
    """A `Chance` that draws by a race, and knows when each token arrives."""

    def arrival(self, key: Key, token: int) -> float: ...


@runtime_checkable
class Reader(Protocol):
    """Whoever reads feeds: a target, or a head beside one."""

    def forward(self, feeds: Sequence[Feed]) -> list[Scores]: ...


def grow(model: Reader, drafts: Sequence[Growing]) -> None:
    """Grow all to their ends."""
    active = [each for each in drafts if each.plan.depth > 0]
    while active:
        feeds = [each.next_feed() for each in active]
        scores = model.forward(feeds)
        for each, feed in zip(active, feeds, strict=True):  # all of them, before a draw that may fail
            each.known = len(feed.tokens)
        for each, found in zip(active, scores, strict=True):
            _add_level(each, found.logits)
        active = [each for each in active if each.front]


def _add_level(each: Growing, logits: np.ndarray) -> None:
    """The children of the front, and the new front: those of them that shall have children in turn."""
    level: list[int] = []
    for parent, row in zip(each.front, logits, strict=True):
        level += _children(each, parent, row)
    each.levels += 1
    ends = each.levels >= each.plan.depth or len(each.tokens) >= each.plan.nodes
    each.front = [] if ends else _worth_growing(each, level)


def _children(each: Growing, parent: int, logits: np.ndarray) -> list[int]:
    path = [each.tokens[node] for node in path_to(each.parents, parent)]
    try:
        row = law_of_row(each.context, logits, [*each.history, *path])
        return _draw(each, parent, row, len(path), logits[: each.context.vocab_size])
    except AdjustError:  # a path that the request's own options do not allow: no reason to end it
        return []
    except ValueError as error:
        raise ValueError(f"draft model {each.origin}: {error}") from error


def _draw(each: Growing, parent: int, row: Any, level: int, logits: np.ndarray) -> list[int]:
    """Add up to as many children as planned. A law may be lazy: what is wrong with it shows here at the latest."""
    most = min(each.plan.width(level), each.plan.nodes - len(each.tokens))
    if most < 1:
        return []
    if each.kind is Kind.COUPLED:
        picked = _liked_best(each.chance, row, token_key(len(each.history) + level), most)
        if len(picked) < most:  # a greedy law has one token: the next likeliest are as good a guess as any
            likely = [x for x in leading(logits, most).tolist() if logits[x] > -np.inf and x not in picked]
            picked += likely[: most - len(picked)]
        children = [(x, row) for x in picked]
    else:
        children = _distinct(each, row, level, most)
    likely = _likely(each, row, token_key(len(each.history) + level), [x for x, _ in children], logits)
    return [
        _add(each, parent, x, law, i, guess) for i, ((x, law), guess) in enumerate(zip(children, likely, strict=True))
    ]


def _likely(each: Growing, row: Any, key: Key, tokens: Sequence[int], logits: np.ndarray) -> list[float]:
    """How likely each of the children is the target's choice, if the target's logits are the draft's with errors.

    With noise G = −log E the choice is argmax(logits + T·G). Errors of Gumbel's law make it fall on a token with the
    probability that softmax(draft logits + T·G) gives it; for a greedy law T is 0 (docs/decisions/0014).
    """
    if float(row[tokens[0]]) == 1:
        return _softmax(logits, tokens)
    if each.kind is Kind.COUPLED and isinstance(each.chance, Timed):
        temperature = each.context.temperature
        shares = [float(row[x]) for x in tokens] if temperature == 1 else _softmax(logits, tokens)
        return _by_pace(shares, [each.chance.arrival(key, x) for x in tokens], temperature)
    # draws of the draft's own: laws that are alike match more often than a token's own chance says; and a later
    # sibling can only be what the earlier ones are not, whose mass says more than its own
    shares = [float(row[x]) for x in tokens]
    before = itertools.accumulate(shares[:-1], initial=0.0)
    return [max(1 - mass, 0.0) / 2 if rank else min(shares[0], 1.0) ** 0.5 for rank, mass in enumerate(before)]


def _by_pace(shares: Sequence[float], arrivals: Sequence[float], temperature: float) -> list[float]:
    """The part of each of some tokens in Σ q·E^−T over all tokens, of the others of which the mass alone is known.

    shares: their probabilities q at temperature 1. arrivals: their E.

    >>> [round(part, 3) for part in _by_pace([0.5, 0.25], [0.5, 2.0], 1.0)]
    [0.471, 0.059]
    """
    paces = [_log(share) - temperature * _log(time) for share, time in zip(shares, arrivals, strict=True)]
    others = _log(1 - sum(shares)) + min(temperature, 1) * _log(_PACE)
    most = max(others, *paces)
    parts = [np.exp(pace - most) for pace in (*paces, others)]
    return [float(part / sum(parts)) for part in parts[:-1]]


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _liked_best(chance: Chance, row: Any, key: Key, most: int) -> list[int]:
    """The tokens that the noise of `key` likes best, as many of `most` as the law allows."""
    if most > 1 and isinstance(row, np.ndarray):
        most = min(most, int(np.count_nonzero(row)))
    try:
        return list(chance.pick(row, key, most))
    except ValueError:  # a lazy law has fewer, or is broken and says so now
        return list(chance.pick(row, key, min(most, int(np.count_nonzero(np.asarray(row))))))


def _softmax(logits: np.ndarray, tokens: Sequence[int]) -> list[float]:
    """The probabilities of tokens before a law changed them: 0 of one that a head does not know."""
    row = logits.astype(np.float32)
    weights = np.exp(row - row.max())
    whole = weights.sum()
    return [float(weights[x] / whole) for x in tokens]


def _distinct(each: Growing, law: Any, level: int, most: int) -> list[tuple[int, Any]]:
    """Draws without replacement, each with noise of its own, and the law of each given the earlier ones."""
    picked: list[tuple[int, Any]] = []
    for i in range(most):
        key = Key(len(each.history), level, Purpose.DRAFT, len(each.tokens) + i)
        (x,) = each.chance.pick(law, key)
        picked.append((x, law))
        if i + 1 < most:
            rest = without(np.asarray(law), x)
            if not total(rest) > 0:
                break
            law = rest / total(rest)
    return picked


def _add(each: Growing, parent: int, token: int, law: Any, rank: int, guess: float) -> int:
    if not each.rows or each.rows[-1] is not law:
        each.rows.append(law)
    terms = each.plan.terms
    trust = None if terms is None else terms.trust.get(each.origin)
    above = 1.0 if parent == ROOT else each.reach[parent]
    each.tokens.append(token)
    each.parents.append(parent)
    each.row_of.append(len(each.rows) - 1)
    each.confidence.append(guess)
    each.reach.append(above * trusted(trust, each.levels, rank, guess))
    return len(each.tokens) - 1


def _worth_growing(each: Growing, level: Sequence[int]) -> list[int]:
    """Those of the newest nodes whose children are expected to pay for one more level; all, where nobody knows."""
    terms = each.plan.terms
    if terms is None:
        return list(level)
    cost = terms.levels.get(each.origin, 0.0)
    trust, width = terms.trust.get(each.origin), each.plan.width(each.levels)
    parents = [*each.parents, *(node for node in level for _ in range(width))]
    hoped = [each.reach[node] * trusted(trust, each.levels, rank, None) for node in level for rank in range(width)]
    now, _ = worthwhile(each.parents, each.reach, terms, each.levels * cost)
    then, nodes = worthwhile(parents, [*each.reach, *hoped], terms, (each.levels + 1) * cost)
    return sorted({parents[node] for node in nodes if node >= len(each.reach)}) if then > now else []


def without_request(context: Context) -> Context:
    """The context of a text that is kept and not gone on with: a request's own law may hold on to much."""
    return replace(context, law=_no_law, target_session=None)


def _no_law(logits: np.ndarray, history: Sequence[int]) -> Row:
    raise ValueError("law: a kept text is not gone on with")


def law_of_row(context: Context, logits: np.ndarray, history: Sequence[int]) -> Any:
    """The request's own law of a draft model's row; the two may pad their vocabularies differently."""
    row = context.law(logits[: context.vocab_size], history)
    return row if len(row) == context.vocab_size else fit(np.asarray(row), context.vocab_size)
