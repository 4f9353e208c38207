"""`verify` and `verify_batch`: the rules as plain functions of arrays, without a model, a loop or torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, NamedTuple

import numpy as np

from .base import Chance, Draft, Kind, Rule, Verdict
from .chance import PhiloxChance
from .given import SUM_TOLERANCE, array, real
from .laws import one_hot, total
from .rules import RULES, LossyRule, rule_named, why_not
from .trees import is_chain

MOST_TOKENS = (1 << 16) - 1  # a key's depth and node have 16 bits, and the bonus is one deeper


def verify(
    draft_tokens: Any,
    p: Any,
    q: Any = None,
    *,
    rule: str | Rule | LossyRule = "token",
    parents: Any = None,
    rng: Any = None,
    position: int = 0,
    logits: bool = False,
    allow_lossy: bool = False,
) -> Verdict:
    """Verify K drafted tokens against the target's laws: which are kept, and which token follows.

    draft_tokens: K token ids. p: the target's laws, K + 1 rows of V: row 0 follows the last committed token, row i + 1
    follows draft token i. For a chain K rows do, and then there is no bonus token. q: K rows of V, row i the law that
    token i was drawn from; None if the tokens were chosen without chance (n-gram, argmax, top-k). A row with all its
    mass on its token says the same of that token alone.
    parents: the tree, node i's parent is parents[i] < i, -1 for the last committed token; siblings stand in draw order
    and q[i] is the law of node i GIVEN its earlier siblings. None: a chain.
    rule: "token" (default), "block", "recursive", "traversal", "greedy_multi", "coupled", or a rule of your own. A
    lossy rule ("lossy_typical", "lossy_lenient") needs allow_lossy=True.
    rng: a NumPy Generator, of which one number is drawn a call; or a seed, which gives the same answer at every call;
    None is fresh entropy. For the coupled rule, whose drafter shares the target's noise, a `PhiloxChance(seed)`: it is
    used as it is, and then `position`, the number of tokens before the draft, must grow from call to call, under any
    rule: the same position is the same noise (docs/rules.md has the example).
    logits: p and q are logits (−inf is allowed), made to laws by a log-softmax in float64. Temperature and truncation
    are the caller's: p and q are the laws that tokens are drawn from.

    Arrays are NumPy's, torch's or anything with `__array__`, in any precision; they are not changed. Rows of
    probabilities must add up to 1 within 4e-3 (bfloat16 softmax) and are normalised in float64. Raises ValueError
    naming argument, row and value.

    Two classical examples. Identical laws accept everything:

    >>> import numpy as np
    >>> row = [0.5, 0.3, 0.2]
    >>> verdict = verify([0, 2], p=[row, row, row], q=[row, row], rng=7)
    >>> verdict.accepted, verdict.last, len(verdict.tokens)
    (2, 'bonus', 3)

    And p = (.5, .3, .2) drafted from q = (.6, .3, .1) gives p back:

    >>> rng = np.random.default_rng(0)
    >>> p, q = [[0.5, 0.3, 0.2]], [[0.6, 0.3, 0.1]]
    >>> firsts = [verify([rng.choice(3, p=q[0])], p, q, rng=rng).tokens[0] for _ in range(4000)]
    >>> (np.bincount(firsts) / 4000).round(2).tolist()
    [0.5, 0.3, 0.2]
    """
    chance = rng if isinstance(rng, Chance) and not isinstance(rng, type) else _fresh(_generator(rng))
    if isinstance(position, bool) or not isinstance(position, int | np.integer) or not 0 <= position < 1 << 31:
        raise ValueError(f"position: {position!r} is not allowed; it must be a whole number in 0 .. 2**31 - 1")
    _require_bool("logits", logits)
    return _verify(draft_tokens, p, q, parents, _rule(rule, allow_lossy), chance, int(position), logits, "")


def verify_batch(
    draft_tokens: Any,
    p: Any,
    q: Any = None,
    *,
    lengths: Any = None,
    rule: str | Rule | LossyRule = "token",
    parents: Any = None,
    rng: Any = None,
    logits: bool = False,
    allow_lossy: bool = False,
) -> list[Verdict]:
    """`verify` for B requests at once: draft_tokens (B, K), p (B, K + 1, V) or (B, K, V), q (B, K, V) or None.

    Ragged batches: `lengths` says how many of each row's K tokens are drafted (all is padded to K; the bonus of row b
    is then p[b, lengths[b]]; what lies beyond is not looked at), or give lists of B arrays of different lengths.
    parents: one tree a request, padded or not. rng: a NumPy Generator, a seed, or None.

    The answers are those of B calls of `verify` in order with the same Generator; a seed makes a Generator first.

    >>> p = np.full((2, 3, 4), 0.25)
    >>> [verdict.accepted for verdict in verify_batch([[0, 1], [2, 0]], p, p[:, :2], lengths=[2, 1], rng=0)]
    [2, 1]
    """
    _require_bool("logits", logits)
    count = _count("draft_tokens", draft_tokens)
    for name, value in (("p", p), ("q", q), ("lengths", lengths), ("parents", parents)):
        if (value is not None or name == "p") and _count(name, value) != count:
            raise ValueError(f"{name}: {_count(name, value)} requests, but draft_tokens has {count}")
    generator, named = _generator(rng), _rule(rule, allow_lossy)
    out = []
    for b in range(count):
        tokens, p_b = array(f"draft_tokens[{b}]", draft_tokens[b]), array(f"p[{b}]", p[b])
        q_b = None if q is None else array(f"q[{b}]", q[b])
        tree = None if parents is None else array(f"parents[{b}]", parents[b])
        if lengths is not None:
            n, most = _length(b, lengths[b], tokens.size), tokens.size
            _require_rows(f"draft_tokens[{b}]", tokens, most)
            _require_rows(f"p[{b}]", p_b, most, most + 1)
            _require_rows(f"q[{b}]", q_b, most)
            _require_rows(f"parents[{b}]", tree, n, most)
            bonus = len(p_b) - most
            tokens, p_b = tokens[:n], p_b[: n + bonus]
            q_b, tree = (None if each is None else each[:n] for each in (q_b, tree))
        out.append(_verify(tokens, p_b, q_b, tree, named, _fresh(generator), 0, logits, f"[{b}]"))
    return out


def _count(name: str, value: Any) -> int:
    try:
        if isinstance(value, Mapping):
            raise TypeError
        return len(value)
    except TypeError:
        raise ValueError(f"{name}: {value!r} is not allowed; it must hold one entry for each request") from None


def _length(request: int, value: Any, most: int) -> int:
    try:
        n = -1 if isinstance(value, bool) else index(value)
    except TypeError:
        n = -1
    if not 0 <= n <= most:
        raise ValueError(f"lengths: request {request} has {value!r}; it must be a whole number in 0 .. {most}")
    return n


def _require_rows(name: str, value: np.ndarray | None, *allowed: int) -> None:
    """With lengths all is padded to K: else a number of rows would decide unseen whether there is a bonus."""
    if value is not None and (value.ndim == 0 or len(value) not in allowed):
        rows = " or ".join(map(str, allowed))
        raise ValueError(f"{name}: shape {value.shape}; with lengths it must be padded to {rows} rows")


def _verify(
    draft_tokens: Any,
    p: Any,
    q: Any,
    parents: Any,
    rule: _Named,
    chance: Chance,
    position: int,
    logits: bool,
    request: str,
) -> Verdict:
    """`request` is "" or "[b]": it follows the arguments' names in messages."""
    rows = _laws(f"p{request}", p, logits)
    v = rows.shape[1]
    tokens = _tokens(f"draft_tokens{request}", draft_tokens, v)
    n = len(tokens)
    tree = _parents(f"parents{request}", parents, n)
    bonus = len(rows) == n + 1
    if not bonus and (len(rows) != n or not is_chain(tree)):
        shapes = f"{n + 1} rows" if parents is not None else f"{n + 1} rows, or {n} for no bonus token"
        raise ValueError(f"p{request}: {len(rows)} rows for {n} draft tokens; it must have {shapes}")
    laws = None if q is None else _laws(f"q{request}", q, logits, v if n == 0 else None)
    draft = _draft(tokens, tree, laws, v, f"q{request}", logits, position)
    _require(rule, draft, request)
    # without a row for the bonus one stands in that costs no noise; what is drawn from it is taken away again
    verdict = rule.rule(draft, [*rows] if bonus else [*rows, one_hot(0, v)], chance)
    if not isinstance(verdict, Verdict):
        raise ValueError(f"rule: it returned {verdict!r}; it must return a Verdict")
    if bonus or verdict.last not in ("bonus", "target"):
        return verdict
    return Verdict(verdict.path, verdict.tokens[:-1], None, verdict.tests, verdict.rounding)


def _require(rule: _Named, draft: Draft, request: str) -> None:
    """Refuse a rule that does not take such a draft, naming those that do."""
    reason = None if rule.name is None else why_not(rule.name, draft.parents, draft.kind)
    if reason is not None:
        able = [name for name in RULES if why_not(name, draft.parents, draft.kind) is None]
        raise ValueError(f"rule: {reason}{request and f' (request {request})'}; rules that do: {', '.join(able)}")


def _draft(
    tokens: Sequence[int], parents: tuple[int, ...], q: Any, v: int, name: str, logits: bool, position: int
) -> Draft:
    n = len(tokens)
    if q is None:
        return Draft(position, tuple(tokens), parents, (Kind.CHOSEN,) * n, ("",) * n, (), (-1,) * n)
    if q.shape != (n, v):
        raise ValueError(f"{name}: shape {q.shape}; it must be ({n}, {v}), a row for each draft token")
    for i, x in enumerate(tokens):
        if not q[i, x] > 0:
            small = " (or a logit too far below the largest)" if logits else ""
            raise ValueError(f"{name}: row {i} gives draft token {x} probability 0{small}; it cannot have been drawn")
    certain = [bool(q[i, x] == 1) for i, x in enumerate(tokens)]
    kind = tuple(Kind.CHOSEN if sure else Kind.SAMPLED for sure in certain)
    row_of = tuple(-1 if sure else i for i, sure in enumerate(certain))
    return Draft(position, tuple(tokens), parents, kind, ("",) * n, tuple(q), row_of)


class _Named(NamedTuple):
    rule: Rule
    name: str | None  # None: a rule of the caller's, whose needs are not known


def _require_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool | np.bool):
        raise ValueError(f"{name}: {value!r} is not allowed; it must be True or False")


def _rule(rule: str | Rule | LossyRule, allow_lossy: bool) -> _Named:
    _require_bool("allow_lossy", allow_lossy)
    if isinstance(rule, LossyRule):
        return _Named(rule.admitted(allow_lossy=allow_lossy), rule.name)
    if isinstance(rule, str):
        return _Named(rule_named(rule, allow_lossy=allow_lossy), rule)
    if not callable(rule) or isinstance(rule, type):
        raise ValueError(f"rule: {rule!r} is not allowed; it must be a name or a rule")
    return _Named(rule, None)


def _generator(rng: Any) -> np.random.Generator:
    try:
        if isinstance(rng, bool):
            raise TypeError("True and False are no seeds")
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise ValueError(f"rng: {rng!r} is not allowed; it must be a NumPy Generator or a seed ({error})") from None


def _fresh(generator: np.random.Generator) -> Chance:
    return PhiloxChance(int(generator.integers(2**64, dtype=np.uint64)))


def _tokens(name: str, value: Any, v: int) -> list[int]:
    ids = array(name, value)
    if ids.ndim != 1:
        raise ValueError(f"{name}: shape {ids.shape}; it must be one-dimensional, K token ids")
    if ids.size and ids.dtype.kind not in "iu":
        raise ValueError(f"{name}: {ids.dtype} is not allowed; token ids are whole numbers")
    if len(ids) > MOST_TOKENS:
        raise ValueError(f"{name}: {len(ids)} tokens; it must be at most {MOST_TOKENS}")
    for i, x in enumerate(ids.tolist()):
        if not 0 <= x < v:
            raise ValueError(f"{name}: token {x} at {i} is out of range; the rows of p have {v} tokens")
    return [int(x) for x in ids.tolist()]


def _parents(name: str, value: Any, n: int) -> tuple[int, ...]:
    if value is None:
        return tuple(range(-1, n - 1))
    above = array(name, value)
    if above.shape != (n,) or (n and above.dtype.kind not in "iu"):
        raise ValueError(f"{name}: {value!r} is not allowed; it must be {n} whole numbers, one a draft token")
    for i, parent in enumerate(above.tolist()):
        if not -1 <= parent < i:
            raise ValueError(f"{name}: node {i} has parent {parent}; it must be in -1 .. {i - 1}")
    return tuple(above.tolist())


def _laws(name: str, value: Any, logits: bool, empty: int | None = None) -> np.ndarray:
    """Rows of V numbers -> laws in float64, checked; the input is copied. empty: V of an array without rows."""
    rows = real(name, value)
    if empty is not None and rows.size == 0:
        rows = rows.reshape(0, empty)
    if rows.ndim != 2 or rows.shape[1] < 1:
        raise ValueError(f"{name}: shape {rows.shape}; it must be (rows, V), a row for each position")
    return _softmax(name, rows) if logits else _probabilities(name, rows)


def _probabilities(name: str, rows: np.ndarray) -> np.ndarray:
    _refuse(name, rows, ~np.isfinite(rows), "it must be finite")
    _refuse(name, rows, rows < 0, "it must be >= 0")
    for i, row in enumerate(rows):
        with np.errstate(over="ignore"):
            mass = total(row)
        if abs(mass - 1) > SUM_TOLERANCE:
            raise ValueError(
                f"{name}: row {i} adds up to {mass:.6g}; it must be 1 within {SUM_TOLERANCE} (logits=True takes logits)"
            )
        row /= mass
    return rows


def _softmax(name: str, rows: np.ndarray) -> np.ndarray:
    _refuse(name, rows, np.isnan(rows) | (rows == np.inf), "logits must be finite or -inf")
    for i, row in enumerate(rows):
        peak = row.max()
        if peak == -np.inf:
            raise ValueError(f"{name}: row {i} has no finite logit; at least one token must have mass")
        with np.errstate(over="ignore", under="ignore"):  # what lies far enough below the peak has no mass
            row -= peak
            row -= np.log(np.exp(row).sum())
            np.exp(row, out=row)
    return rows


def _refuse(name: str, rows: np.ndarray, wrong: np.ndarray, right: str) -> None:
    if wrong.any():
        i, x = (int(index) for index in np.argwhere(wrong)[0])
        raise ValueError(f"{name}: row {i} has {rows[i, x]} at token {x}; {right}")
