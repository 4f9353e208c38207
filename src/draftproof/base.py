"""The contracts: what flows between target, drafter, controller, rule and commit.

A round: the controller plans, the drafter proposes a `Draft` (a tree of tokens, each with the law it came from), the
target scores it in one forward, a rule turns draft and laws into a `Verdict`, and commit decides what is kept.
How much to draft is in plan.py. Everything is a tree; a chain is the tree whose parents are -1, 0, 1, ...
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Shaped

from .plan import Plan

ROOT = -1
"""The parent of a draft's first nodes: the last committed token."""

Row = Shaped[np.ndarray, " v"]
"""One probability law over the vocabulary: float64 in production, `Fraction` objects in a proof."""


@runtime_checkable
class LazyRow(Protocol):
    """A law that is computed when somebody looks: p(x) by index, a `Row` by np.asarray and in arithmetic with one."""

    def __len__(self) -> int: ...

    def __getitem__(self, token: int, /) -> Any: ...

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...


Session = Any
"""What a target or a drafter keeps for one request. Only the one that opened it looks inside."""


class Purpose(IntEnum):
    """What a draw is for. Draws of different purpose never share noise, but for TOKEN, whose point is to share."""

    DRAFT = 0
    ACCEPT = 1
    REPLACE = 2
    TOKEN = 3


class Key(NamedTuple):
    """Names one draw of one request. The same key is the same noise.

    root: committed tokens when the round began. It names the round, so that a position visited again after a
        rejection gets fresh noise (by position alone, block verification is biased).
    depth: distance from the last committed token, counted from 0.
    node: the node's index in the draft.
    """

    root: int
    depth: int
    purpose: Purpose
    node: int = 0


def token_key(position: int) -> Key:
    """The coupled noise of one absolute position, shared by drafter, target and every node at that depth."""
    return Key(position, 0, Purpose.TOKEN)


@runtime_checkable
class Chance(Protocol):
    """The only source of randomness. A request owns one; nothing else about the request is in its keys."""

    def uniform(self, key: Key) -> Any:
        """The uniform on (0, 1) behind `coin(·, key)`: pure, so a trace can recompute it."""
        ...

    def coin(self, prob: Any, key: Key) -> bool:
        """True with probability `prob`: strict, so prob 0 never and prob 1 always succeeds, and neither takes noise."""
        ...

    def pick(self, weights: Any, key: Key, k: int = 1) -> tuple[int, ...]:
        """`k` distinct indices, drawn in order without replacement, with probability proportional to `weights`."""
        ...


class Kind(IntEnum):
    """How a drafted token came about, which decides the law it must be verified against."""

    CHOSEN = 0  # picked by looking, not by chance (n-gram, argmax): its law is the point mass
    SAMPLED = 1  # drawn with the drafter's own noise from a law that the draft carries
    COUPLED = 2  # drawn with the target's own noise: valid under the coupled rule alone


@dataclass(frozen=True, slots=True)
class Draft:
    """What a drafter proposes. Node i is `tokens[i]`, child of node `parents[i]` (ROOT: of the last committed token).

    root: committed tokens when the round began. Parents precede their children; siblings stand in draw order.
    `rows[row_of[i]]` is the very array that node i was drawn from, GIVEN its earlier siblings: independent siblings
    share a row, siblings drawn without replacement have each their own, with the earlier ones removed and the rest
    normalised (row_of -1: CHOSEN, no law but the point mass). Nobody recomputes it.
    """

    root: int
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    kind: tuple[Kind, ...] = ()
    origin: tuple[str, ...] = ()
    rows: tuple[Any, ...] = ()  # each a Row or a LazyRow
    row_of: tuple[int, ...] = ()
    confidence: tuple[float, ...] = ()  # how likely each token is, given its parent; () if not known

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if len(self.confidence) not in (0, n):
            raise ValueError(f"draft: {n} tokens need as many confidences, or none, got {len(self.confidence)}")
        lengths = {len(self.parents), len(self.kind), len(self.origin), len(self.row_of)}
        if lengths != {n}:
            raise ValueError(f"draft: {n} tokens need as many parents, kinds, origins and row_of, got {lengths}")
        for i, parent in enumerate(self.parents):
            if not ROOT <= parent < i:
                raise ValueError(f"draft: node {i} has parent {parent}; parents precede their children")
        for i, (kind, row) in enumerate(zip(self.kind, self.row_of, strict=True)):
            if kind is Kind.SAMPLED and not 0 <= row < len(self.rows):
                raise ValueError(f"draft: sampled node {i} has no law (row_of {row}, {len(self.rows)} rows)")

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(
        cls, root: int, tokens: Sequence[int], kind: Kind = Kind.CHOSEN, origin: str = "", rows: Sequence[Any] = ()
    ) -> Draft:
        """A chain of one kind; `rows`, if given, holds one law a token."""
        n = len(tokens)
        row_of = tuple(range(n)) if rows else (-1,) * n
        return cls(root, tuple(tokens), tuple(range(-1, n - 1)), (kind,) * n, (origin,) * n, tuple(rows), row_of)

    def keeping(self, nodes: Sequence[int]) -> Draft:
        """The draft of these nodes alone: in rising order, each with its parent."""
        if len(nodes) == len(self):
            return self
        at = {ROOT: ROOT} | {node: i for i, node in enumerate(nodes)}
        rows = {row: i for i, row in enumerate(sorted({self.row_of[node] for node in nodes} - {-1}))}
        return Draft(
            self.root,
            tokens=tuple(self.tokens[node] for node in nodes),
            parents=tuple(at[self.parents[node]] for node in nodes),
            kind=tuple(self.kind[node] for node in nodes),
            origin=tuple(self.origin[node] for node in nodes),
            rows=tuple(self.rows[row] for row in rows),
            row_of=tuple(rows.get(self.row_of[node], -1) for node in nodes),
            confidence=tuple(self.confidence[node] for node in nodes) if self.confidence else (),
        )

    def law(self, node: int) -> Any:
        """The law node `node` was drawn from (a `Row` or `LazyRow`), None for a token that was chosen."""
        return None if self.kind[node] is Kind.CHOSEN or self.row_of[node] < 0 else self.rows[self.row_of[node]]


class Test(NamedTuple):
    """One question a rule asked: was `node` accepted? prob is the coin's; None where the answer was a comparison."""

    node: int
    key: Key
    p: Any
    q: Any
    prob: Any
    accepted: bool


Last = Literal["bonus", "replacement", "target"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule decided. `path` are the accepted nodes from the root; `tokens` is theirs plus the final token.

    last: where the final token came from: "bonus" (nothing was drafted beyond the path), "replacement" (what was
    drafted beyond it was refused), "target" (nothing was drafted at all), None (no final token).
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    last: Last | None
    tests: tuple[Test, ...] = ()
    rounding: int = 0  # residuals that were empty by rounding alone, where the law before the rejection was kept

    @property
    def accepted(self) -> int:
        """Draft tokens that were accepted."""
        return len(self.path)


Rule = Callable[[Draft, Sequence[Any], Chance], Verdict]
"""Pure. rows[0] is the law after the last committed token, rows[i + 1] the one after node i; read only if needed."""

Watch = Callable[[Draft, Sequence[Any], Verdict], None]
"""Sees what a rule was asked and what it said, before the cut: for traces with laws, and for bounds."""

Law = Callable[[np.ndarray, Sequence[int]], Any]
"""(logits row, committed and drafted tokens before it) -> the sampling law of that row, a `Row` or a `LazyRow`."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Logits of the rows that a feed wanted, in feed order: float32 [r, v]."""

    logits: Shaped[np.ndarray, "r v"]


@dataclass(frozen=True, slots=True)
class Feed:
    """Rows for one session: committed tokens whose KV is missing (a prompt, the pending token), then draft nodes.

    tokens: all rows. The first `len(tokens) - len(parents)` are committed; the rest are the nodes, whose `parents`
    count among the nodes (ROOT: the last committed token). want: rows whose logits are asked for; None means the
    last committed row and every node. known: how many of the rows, from the first on, the session's feed before this
    one had already and nothing was committed since: they are not computed again and cannot be wanted. So a tree grows
    level by level, each at the cost of its own rows.
    """

    session: Session
    tokens: tuple[int, ...]
    parents: tuple[int, ...] = ()
    want: tuple[int, ...] | None = None
    known: int = 0

    @property
    def committed(self) -> int:
        return len(self.tokens) - len(self.parents)

    @property
    def wanted(self) -> tuple[int, ...]:
        return tuple(range(self.committed - 1, len(self.tokens))) if self.want is None else self.want


class Round(NamedTuple):
    """What a rule is asked in one round of one request."""

    rule: Rule
    draft: Draft
    rows: Sequence[Any]
    chance: Chance


Judge = Callable[[Sequence[Round]], "list[Verdict | Exception]"]
"""Answers the rounds of many requests at once, each as its own rule would; what fails for one fails for one alone."""


@runtime_checkable
class Keeper(Protocol):
    """Whoever keeps a cache for a request: targets, and drafters that run a model. What the engine asks of both."""

    def kv_cost(self, tokens: int) -> int:
        """Bytes that a session of so many cached tokens takes at most."""
        ...

    def close(self, session: Session) -> None:
        """Free what the session holds, now. Its mates notice nothing."""
        ...

    def keep(self, session: Session) -> Session:
        """A copy to take beginnings from, no larger than it must be. Only `adopt` and `close` take it."""
        ...

    def adopt(self, session: Session, donor: Session, length: int) -> None:
        """Let a session that was just opened start with what `donor` has computed about its first `length` tokens."""
        ...

    def check(self, session: Session, tokens: Sequence[int]) -> str | None:
        """What is wrong with a session whose committed text is `tokens`, found by a replay; None if nothing is."""
        ...


@runtime_checkable
class Target(Keeper, Protocol):
    """A causal language model with a cache a session. A drafter may be given one too.

    Between rounds `cached(session)` = committed − 1: the last committed token is pending, the next forward writes it.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int:
        """Longest sequence the model takes, in tokens."""
        ...

    def open(self, capacity: int) -> Session:
        """A session with room for `capacity` tokens."""
        ...

    def cached(self, session: Session) -> int: ...

    def forward(self, feeds: Sequence[Feed]) -> list[Scores]: ...

    def commit(self, sessions: Sequence[Session], paths: Sequence[Sequence[int]]) -> None:
        """Keep the last feed's committed rows and the nodes on each path; forget its other nodes."""
        ...

    def truncate(self, session: Session, length: int) -> None:
        """Forget everything cached beyond the first `length` tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """What a drafter may know of the request it drafts for."""

    law: Law
    vocab_size: int
    capacity: int  # tokens that the request may grow to
    target_session: Session = None  # for a drafter that reads what the target has cached
    temperature: float = 1.0  # of the law; for what drafts are worth alone


@runtime_checkable
class Drafter(Protocol):
    """Guesses tokens. Its state is a function of what was committed, never of what it proposed.

    One that runs a model is a `Keeper` too. What others keep is taken to be small, and compared by `==` with a replay.
    """

    def open(self, context: Context) -> Session: ...

    def commit(self, sessions: Sequence[Session], tokens: Sequence[Sequence[int]]) -> None:
        """Tokens that became part of the text; the prompt is the first commit."""
        ...

    def propose(self, sessions: Sequence[Session], plans: Sequence[Plan], chances: Sequence[Chance]) -> list[Draft]: ...


@runtime_checkable
class Reading(Protocol):
    """A drafter with models that read the text themselves, which they do when they first draft after it."""

    def unread(self, session: Session) -> Mapping[str, int]:
        """Committed tokens that each of them has yet to read, by origin."""
        ...


@runtime_checkable
class Hearing(Protocol):
    """A drafter that hears the target read, and cannot be told later what was said."""

    @property
    def hears(self) -> Hashable:
        """Who hears. What a request begins with, the same must have heard. None: nobody needs to."""
        ...


def ear_of(drafter: Drafter) -> Hashable:
    """The same of any drafter."""
    return drafter.hears if isinstance(drafter, Hearing) else None


def unread(drafter: Drafter, session: Session) -> Mapping[str, int]:
    """The same of any drafter: nothing, where nobody reads."""
    return drafter.unread(session) if isinstance(drafter, Reading) else {}


@dataclass(frozen=True, slots=True)
class Step:
    """What happened in one round, after the cut. Statistics, traces and controllers derive from nothing else."""

    draft: Draft
    verdict: Verdict
    tokens: tuple[int, ...]  # what was committed: verdict.tokens up to the cut
    seconds: Mapping[str, float] = field(default_factory=dict)
    rows: int = 0  # that the target scored in this round, for all requests that shared it
    requests: int = 1  # that shared it
    why: str = ""  # the controller's reason for the plan
    prompt_rows: int = 0  # of `rows`, those of prompts that were being read
    drafting: Mapping[str, int] = field(default_factory=dict)  # requests that a drafter drafted for, by origin

    @property
    def accepted(self) -> int:
        """Draft tokens that were committed."""
        return min(len(self.verdict.path), len(self.tokens))

    @property
    def bonus(self) -> int:
        """1 if the round's bonus token was committed, else 0."""
        return int(self.verdict.last == "bonus" and len(self.tokens) == len(self.verdict.tokens))


@dataclass(frozen=True, slots=True)
class Load:
    """What a controller may look at before a round: all of it lies in the past."""

    context: int  # committed tokens
    remaining: int  # tokens that may still be emitted
    requests: int = 1  # that share the round
    pending: int = 1  # committed tokens that the round reads: more than the last one where a prompt ends in it
    unread: Mapping[str, int] = field(default_factory=dict)  # committed tokens that draft models lack, by origin


@runtime_checkable
class Controller(Protocol):
    """Decides how much to draft, from the past alone. All it knows of a request is the state it is given."""

    def init(self) -> Any: ...

    def plan(self, state: Any, load: Load) -> Plan: ...

    def update(self, state: Any, step: Step) -> Any: ...
