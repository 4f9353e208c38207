"""The kernels' decisions in plain torch, for devices that have none: what rules/ does, row by row, in tensors.

Laws are whole rows of float64 here. The race is chance.py's, its groups expanded only where they can win.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int

from ..base import ROOT, Key, Purpose, token_key
from ..chance import GROUP, PhiloxChance
from ..laws import acceptance
from ..trees import children
from .verdicts import OUTCOME, PROB, Batch, P, Q, Verdicts

_LOW = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Request:
    """rows, q_rows: logits. tokens, parents, sampled: a value a node."""

    rows: torch.Tensor
    tokens: list[int]
    parents: list[int]
    sampled: list[int]
    q_rows: torch.Tensor | None
    settings: tuple[float, ...]
    chance: PhiloxChance
    root: int

    def law(self, rows: torch.Tensor, i: int) -> torch.Tensor:
        return law(rows[i], *self.settings)

    def race(self, weights: torch.Tensor, key: Key) -> int:
        return race(weights, self.chance, key)


class _NoLawError(Exception):
    """A row that holds no law."""

    def __init__(self, row: int) -> None:
        self.row = row


def decide(rule: str, batch: Batch) -> Verdicts:
    """`kernels.decide` on any device."""
    out = batch.answer(rule)
    logits, q_logits = (None if x is None else torch.as_tensor(x) for x in (batch.logits, batch.q_logits))
    assert logits is not None
    for b in range(len(batch.layout)):
        row, at, n = batch.layout[b].tolist()
        tokens, parents, sampled = batch.nodes[at : at + n].T.tolist()
        root, sample, low, high = (int(word) for word in batch.seeds[b])
        request = _Request(
            logits[row : row + n + 1],
            tokens,
            parents,
            sampled,
            None if q_logits is None else q_logits[at : at + n],
            tuple(batch.settings[b].tolist()),
            PhiloxChance(high << 32 | low, sample),
            root,
        )
        asked, path = out.asked[at : at + n], out.path[at : at + n]
        try:
            if rule == "coupled":
                nodes, last, rounding = _coupled(request, asked)
                path[: len(nodes)] = nodes
                accepted = len(nodes)
            else:
                accepted, last, rounding = (_token if rule == "token" else _block)(request, asked)
            out.found[b] = accepted, last, rounding, -1
        except _NoLawError as bad:
            out.found[b] = 0, -1, 0, bad.row
    return out


def law(logits: torch.Tensor, temperature: float, top_k: float, top_p: float, log_min_p: float) -> torch.Tensor:
    """laws.warp, normalised. NaN throughout where the row holds no law."""
    row = logits.double()
    peak = row.max()
    if not torch.isfinite(peak):
        return torch.full_like(row, math.nan)
    if temperature == 0:
        return torch.nn.functional.one_hot((row == peak).int().argmax(), len(row)).double()
    below = (row - peak) / temperature
    weights = below.exp()
    k = int(top_k) if 0 < top_k < len(row) else len(row)
    if k < len(row) or top_p < 1:
        order = torch.sort(row, descending=True, stable=True).indices
        weights[order[k:]] = 0.0
        if top_p < 1:
            reached = weights[order].cumsum(0) >= top_p * weights.sum()
            keep = int(reached.int().argmax()) + 1 if bool(reached.any()) else len(row)
            weights[order[keep:]] = 0.0
    weights[below < log_min_p] = 0.0
    return weights / weights.sum()


def race(weights: Float[torch.Tensor, " v"], chance: PhiloxChance, key: Key) -> int:
    """chance.PhiloxChance.pick of one token; -1 if none has weight."""
    groups = -(-len(weights) // GROUP)
    padded = torch.nn.functional.pad(weights, (0, groups * GROUP - len(weights))).view(groups, GROUP)
    index = torch.arange(groups, device=weights.device)
    tops = padded.amax(1)
    begin = tops.argmax()
    if not tops[begin] > 0:
        return -1
    first, member = _first_arrivals(index, chance, key)
    best = (_arrivals(index[begin, None], first, member, chance, key) / padded[begin, None]).min()
    able = index[(first <= best * tops) | (index == begin)]  # whatever rounding says of the leader itself
    times = _arrivals(able, first, member, chance, key) / padded[able]
    at = int(times.argmin())  # the lowest id on ties: groups stand in order
    return int(able[at // GROUP]) * GROUP + at % GROUP


def _first_arrivals(groups: Int[torch.Tensor, " g"], chance: PhiloxChance, key: Key):
    a, b, c, _ = _philox(groups | 1 << 31, chance, key)
    return -_unit(a, b).log() / GROUP, c >> 24


def _arrivals(groups, first, member, chance: PhiloxChance, key: Key) -> torch.Tensor:
    pairs = torch.arange(GROUP // 2, device=groups.device)
    a, b, c, d = _philox(groups[:, None] * (GROUP // 2) + pairs, chance, key)
    later = -torch.stack([_unit(a, b), _unit(c, d)], -1).view(len(groups), GROUP).log()
    is_first = torch.arange(GROUP, device=groups.device) == member[groups, None]
    return first[groups, None] + later.masked_fill(is_first, 0.0)


def _unit(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return ((high << 20 | low >> 12).double() + 0.5) * 2.0**-52


def _philox(lanes: torch.Tensor, chance: PhiloxChance, key: Key) -> tuple[torch.Tensor, ...]:
    """chance.philox4x32 in int64, whose products wrap round without losing a bit."""
    b, c, d = (torch.full_like(lanes, word) for word in chance.counter(key))
    a, k0, k1 = lanes, chance.seed & _LOW, chance.seed >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b = (second >> 32 & _LOW) ^ b ^ k0, second & _LOW
        c, d = (first >> 32 & _LOW) ^ d ^ k1, first & _LOW
        k0, k1 = k0 + 0x9E3779B9 & _LOW, k1 + 0xBB67AE85 & _LOW
    return a, b, c, d


def _checked(p: torch.Tensor, row: int) -> torch.Tensor:
    if torch.isnan(p[0]):
        raise _NoLawError(row)
    return p


def _coupled(request: _Request, asked) -> tuple[list[int], int, int]:
    node, path = ROOT, []
    while True:
        p = _checked(request.law(request.rows, node + 1), node + 1)
        y = request.race(p, token_key(request.root + len(path)))
        match = None
        for child in children(request.parents, node):
            hit = request.tokens[child] == y
            asked[child, [P, OUTCOME]] = float(p[request.tokens[child]]), hit
            if hit:
                match = child
                break
        if match is None:
            return path, y, 0
        path.append(match)
        node = match


def _ask(request: _Request, i: int, asked) -> tuple[torch.Tensor, torch.Tensor]:
    """p and what q takes from it: the point mass for a chosen token."""
    p = _checked(request.law(request.rows, i), i)
    x = request.tokens[i]
    if request.sampled[i]:
        assert request.q_rows is not None
        q = _checked(request.law(request.q_rows, i), len(request.rows) + i)
        if q[x] == 0:
            raise _NoLawError(len(request.rows) + i)
        asked[i, [P, Q]] = float(p[x]), float(q[x])
    else:
        q = torch.full_like(p, 0.0)
        q[x] = math.inf
        asked[i, [P, Q]] = float(p[x]), 1.0
    return p, q


def _end(request: _Request, accepted: int, law: torch.Tensor, fallback: torch.Tensor) -> tuple[int, int, int]:
    key = Key(request.root, accepted, Purpose.REPLACE)
    y = request.race(law, key)
    return (accepted, y, 0) if y >= 0 else (accepted, request.race(fallback, key), 1)


def _bonus(request: _Request) -> tuple[int, int, int]:
    n = len(request.tokens)
    p = _checked(request.law(request.rows, n), n)
    return _end(request, n, p, p)


def _token(request: _Request, asked) -> tuple[int, int, int]:
    for i in range(len(request.tokens)):
        p, q = _ask(request, i, asked)
        prob = acceptance(float(asked[i, P]), float(asked[i, Q]))
        accepted = request.chance.coin(prob, Key(request.root, i, Purpose.ACCEPT, i))
        asked[i, [PROB, OUTCOME]] = prob, accepted
        if not accepted:
            return _end(request, i, (p - q).clamp(min=0.0), p)
    return _bonus(request)


def _block(request: _Request, asked) -> tuple[int, int, int]:
    n = len(request.tokens)
    share, laws = [1.0], []
    for i in range(n):
        laws.append(_ask(request, i, asked))
        share.append(float(acceptance(share[i] * float(asked[i, P]), float(asked[i, Q]))))
        if share[-1] == 0:
            share.pop()
            break
    longest = len(share) - 1
    while longest > 0:
        prob = share[n] if longest == n else _prefix_probability(*laws[longest], share[longest])
        accepted = request.chance.coin(prob, Key(request.root, longest - 1, Purpose.ACCEPT, longest - 1))
        asked[longest - 1, [PROB, OUTCOME]] = prob, accepted
        if accepted:
            break
        longest -= 1
    if longest == n:
        return _bonus(request)
    p, q = laws[longest]
    return _end(request, longest, (share[longest] * p - q).clamp(min=0.0), p)


def _prefix_probability(p: torch.Tensor, q: torch.Tensor, share: float) -> float:
    rest = float((share * p - q).clamp(min=0.0).sum())
    owed = rest + (1 - share)
    return rest / owed if owed > 0 else 1.0
