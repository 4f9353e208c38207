"""Toys for the proofs: language models whose every law is known exactly, and drafters that draw in every known way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from hashlib import blake2b
from itertools import count

import numpy as np

from ..base import (
    ROOT,
    Chance,
    Context,
    Draft,
    Drafter,
    Key,
    Kind,
    Load,
    Purpose,
    Row,
    Session,
    Step,
    token_key,
)
from ..laws import leading, total, without
from ..models.table import TableSession, TableTarget
from ..plan import Plan
from ..trees import depths, path_to
from .exact import fractions_row

Table = Callable[[Sequence[int]], Row]
"""The law after every history."""


def up_to(most: int) -> Callable[[int], int]:
    """Weights of 1 to `most`."""
    return lambda noise: 1 + noise % most


def few(noise: int) -> int:
    """Weights of 1 to 4."""
    return 1 + noise % 4


def sharp(noise: int) -> int:
    """Weights of 1, 10⁶ and 10¹²: a threshold or an epsilon anywhere shows."""
    return 10 ** (6 * (noise % 3))


def nearly_equal(noise: int) -> int:
    """Weights that differ by a few millionths."""
    return 10**6 + noise % 9


def exact_table(
    vocab_size: int,
    salt: str,
    weight: Callable[[int], int] = few,
    *,
    support: Sequence[int] | None = None,
    holes: bool = False,
) -> Table:
    """A law of fractions after every history: it depends on all of it, so no cache can be wrong unseen.

    weight: of a token, from a byte of noise. support: tokens that may have mass. holes: zeros in random places, one-hot
    rows among them. The noise is hashed, so the laws are the same everywhere; the rows are read-only, so a rule that
    writes fails.
    """

    @cache
    def known(history: tuple[int, ...]) -> Row:
        weights = [0]
        attempt = 0
        while sum(weights) == 0:
            noise = blake2b(f"{salt} {history} {attempt}".encode(), digest_size=vocab_size).digest()
            kept = [token for token in range(vocab_size) if support is None or token in support]
            kept = [token for token in kept if not holes or noise[token] & 16]
            weights = [weight(noise[token]) if token in kept else 0 for token in range(vocab_size)]
            attempt += 1
        row = fractions_row(*weights)
        row.flags.writeable = False
        return row

    return lambda history: known(tuple(history))


class ShallowTable(TableTarget):
    """A table that reads what another's session has cached: what an early exit is to its target."""

    def open_over(self, session: TableSession) -> TableSession:
        return TableSession(session.tokens)


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft model over one vocabulary."""

    p: Table
    q: Table
    vocab_size: int

    def target(self) -> TableTarget:
        return TableTarget(self.p, self.vocab_size)


WITNESS = Pair(exact_table(4, "target 3", up_to(9)), exact_table(4, "draft 3", up_to(9)), 4)
"""Four tokens, on which every fault of mutants.py shows. Many faults are invisible on three."""


def argmax(row: Row) -> int:
    return int(np.argmax(row))


@dataclass(slots=True)
class Text:
    """A session that remembers what was committed."""

    tokens: list[int] = field(default_factory=list)


class Toy:
    """The drafter whose draft is `grow(committed tokens, depth, chance)`: it remembers nothing else."""

    def __init__(self, grow: Callable[[list[int], int, Chance], Draft]) -> None:
        self._grow = grow

    def open(self, context: Context) -> Text:
        return Text()

    def commit(self, sessions: Sequence[Text], tokens: Sequence[Sequence[int]]) -> None:
        for session, new in zip(sessions, tokens, strict=True):
            session.tokens += new

    def propose(self, sessions: Sequence[Text], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        each = zip(sessions, plans, chances, strict=True)
        return [self._grow(list(session.tokens), plan.depth, chance) for session, plan, chance in each]


def chooser(choose: Callable[[Sequence[int]], int], q: Table | None = None) -> Drafter:
    """Drafts what `choose(history)` says, token after token: chosen drafts, unless `q` claims they were sampled."""
    return Toy(partial(_choose, choose, q))


def _choose(choose, q: Table | None, text: list[int], depth: int, chance: Chance) -> Draft:
    root, rows = len(text), []
    for _ in range(depth):
        if q is not None:
            rows.append(q(text))
        text.append(choose(text))
    return Draft.chain(root, text[root:], Kind.SAMPLED if rows else Kind.CHOSEN, "chooser", rows)


Draw = Callable[[Row], int]
Child = tuple[int, Row | None]  # a token and the law it was drawn from; None if it was chosen
Siblings = Callable[[Row, int, Draw], list[Child]]
"""(law of a node, how many children, a draw) -> the children, in the order in which they came about."""


def independent(q: Row, k: int, draw: Draw) -> list[Child]:
    return [(draw(q), q) for _ in range(k)]


def distinct(q: Row, k: int, draw: Draw) -> list[Child]:
    """Without replacement; fewer than k where the support ends."""
    out: list[Child] = []
    for _ in range(k):
        x = draw(q)
        out.append((x, q))
        rest = without(q, x)
        if not total(rest) > 0:
            break
        q = rest / total(rest)
    return out


def chosen(q: Row, k: int, draw: Draw) -> list[Child]:
    return [(x, None) for x in _likeliest(q)[:k]]


def chosen_first(q: Row, k: int, draw: Draw) -> list[Child]:
    """The likeliest token, then draws from all of q, which may repeat it."""
    return [*chosen(q, 1, draw), *independent(q, k - 1, draw)]


def sampled_first(q: Row, k: int, draw: Draw) -> list[Child]:
    """One draw, then the likeliest others, chosen in view of it."""
    x = draw(q)
    others: list[Child] = [(y, None) for y in _likeliest(q) if y != x]
    return [(x, q), *others[: k - 1]]


def greedy(q: Row, k: int, draw: Draw) -> list[Child]:
    """The k − 1 likeliest, then a draw from what q has outside them (none, if that is nothing)."""
    top = _likeliest(q)[: k - 1]
    rest = q
    for x in top:
        rest = without(rest, x)
    out: list[Child] = [(x, None) for x in top]
    if total(rest) > 0:
        law = rest / total(rest)
        out.append((draw(law), law))
    return out


def _likeliest(q: Row) -> list[int]:
    return leading(q, int((q > 0).sum())).tolist()


Shape = Sequence[int]
"""A tree without tokens: its parents. Nodes may stand in any order that puts parents before their children."""


def to_depth(shape: Shape, depth: int) -> list[int]:
    """The nodes of a shape that are no deeper than `depth`, as a shape."""
    kept = [node for node, level in enumerate(depths(shape)) if level <= depth]
    return [ROOT if shape[node] == ROOT else kept.index(shape[node]) for node in kept]


def siblings_below(shape: Shape, node: int) -> list[int]:
    """In draw order. Not `trees.children`: the proof must not share with the rules what it holds them to."""
    return [child for child, parent in enumerate(shape) if parent == node]


def grower(q: Table, shape: Callable[[int], Shape], ways: Sequence[Siblings]) -> Drafter:
    """Grows a tree from a draft model: shape(committed tokens) is its form, ways[depth % len(ways)] makes siblings.

    Each draw has its own key, so a node's knows nothing of its cousins'.
    """
    return Toy(partial(_grow, q, shape, ways))


def _grow(
    q: Table, shape: Callable[[int], Shape], ways: Sequence[Siblings], text: list[int], depth: int, chance: Chance
) -> Draft:
    siblings = partial(_by_way, ways, chance, len(text), count())
    return _planted(q, to_depth(shape(len(text)), depth), text, siblings)


def _by_way(
    ways: Sequence[Siblings], chance: Chance, root: int, draws: Iterator[int], law: Row, k: int, level: int
) -> list[Child]:
    return ways[level % len(ways)](law, k, partial(_draw, chance, root, level, draws))


def _draw(chance: Chance, root: int, level: int, draws: Iterator[int], law: Row) -> int:
    (token,) = chance.pick(law, Key(root, level, Purpose.DRAFT, next(draws)))
    return token


def coupled_grower(q: Table, shape: Callable[[int], Shape]) -> Drafter:
    """Grows a tree with the target's own noise: the k tokens that this noise likes best under the draft model."""
    return Toy(partial(_grow_coupled, q, shape))


def _grow_coupled(q: Table, shape: Callable[[int], Shape], text: list[int], depth: int, chance: Chance) -> Draft:
    draft = _planted(q, to_depth(shape(len(text)), depth), text, partial(_by_noise, chance, len(text)))
    return replace(draft, kind=(Kind.COUPLED,) * len(draft))


def _by_noise(chance: Chance, root: int, law: Row, k: int, level: int) -> list[Child]:
    return [(token, None) for token in chance.pick(law, token_key(root + level), min(k, int((law > 0).sum())))]


def _planted(q: Table, form: Shape, text: Sequence[int], siblings: Callable[[Row, int, int], list[Child]]) -> Draft:
    """A tree of that form, but for what its siblings(law, how many, level) leave out."""
    made: dict[int, Child] = {}
    for node in (ROOT, *range(len(form))):
        below = siblings_below(form, node)
        if below and (node == ROOT or node in made):
            path = path_to(form, node)
            law = q([*text, *(made[each][0] for each in path)])
            made |= dict(zip(below, siblings(law, len(below), len(path)), strict=False))
    return tree(len(text), form, made)


def tree(root: int, form: Shape, made: Mapping[int, Child]) -> Draft:
    """The draft of the nodes that were made; a row drawn from twice is held once."""
    nodes = [node for node in range(len(form)) if node in made]
    rows = {id(law): law for token, law in (made[node] for node in nodes) if law is not None}
    index = {key: i for i, key in enumerate(rows)}
    return Draft(
        root,
        tokens=tuple(made[node][0] for node in nodes),
        parents=tuple(ROOT if form[node] == ROOT else nodes.index(form[node]) for node in nodes),
        kind=tuple(Kind.CHOSEN if made[node][1] is None else Kind.SAMPLED for node in nodes),
        origin=("tree",) * len(nodes),
        rows=tuple(rows.values()),
        row_of=tuple(-1 if made[node][1] is None else index[id(made[node][1])] for node in nodes),
    )


class Edited:
    """Another drafter; `edit` changes its drafts before anybody sees them, `chance` its chance before it draws."""

    def __init__(
        self,
        drafter: Drafter,
        edit: Callable[[Draft], Draft] = lambda draft: draft,
        chance: Callable[[Chance], Chance] = lambda chance: chance,
    ) -> None:
        self._drafter, self._edit, self._chance = drafter, edit, chance

    def open(self, context: Context) -> Session:
        return self._drafter.open(context)

    def commit(self, sessions: Sequence[Session], tokens: Sequence[Sequence[int]]) -> None:
        self._drafter.commit(sessions, tokens)

    def propose(self, sessions: Sequence[Session], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]:
        drafts = self._drafter.propose(sessions, plans, [self._chance(chance) for chance in chances])
        return [self._edit(draft) for draft in drafts]


@dataclass(frozen=True)
class Eager:
    """Drafts `depth` tokens however few may still be emitted, so that the length cuts inside a block."""

    depth: int

    def init(self) -> None:
        return None

    def plan(self, state: None, load: Load) -> Plan:
        return Plan(self.depth)

    def update(self, state: None, step: Step) -> None:
        return None


@dataclass(frozen=True)
class Moody:
    """Drafts nothing, one or two tokens, by what the round before committed."""

    depth: int = 2

    def init(self) -> int:
        return self.depth

    def plan(self, state: int, load: Load) -> Plan:
        return Plan(min(state, load.remaining - 1))

    def update(self, state: int, step: Step) -> int:
        return (len(step.tokens) + state) % (self.depth + 1)


@dataclass(frozen=True)
class Spread:
    """Trees of these widths, whatever the number of their nodes."""

    depth: int
    widths: tuple[int, ...]

    def init(self) -> None:
        return None

    def plan(self, state: None, load: Load) -> Plan:
        return Plan(min(self.depth, load.remaining - 1), self.widths, 2 * Plan(self.depth, self.widths).nodes)

    def update(self, state: None, step: Step) -> None:
        return None
