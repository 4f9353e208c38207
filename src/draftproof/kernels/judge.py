"""The rules on one request, from raw logits to the verdict: coupled, token and block as in rules/, row by row.

A row is read when its rule first asks for it. Every function returns (accepted, last token, rounding, bad): how many
nodes the path has, the token after it, how often rounding alone emptied a residual, and the row that holds no law
(-1: none; rows of q count on from those of p). What was asked of each node is left in `asked`: p, q, prob, outcome.
"""

from __future__ import annotations

import numpy as np

from ..chance import GROUP
from .cached import njit
from .numeric import LOWEST, key_to_logit, total
from .race import race, uniform
from .scan import EVERY, Law, Read, first_with, left_over_mass, piece, pieces, probability, weights
from .support import truncated

_NONE = np.int64(-1)
_LOG2E = 1.4426950408889634
_ACCEPT, _REPLACE, _TOKEN = 1, 2, 3  # base.Purpose, as numbers
P, Q, PROB, OUTCOME = 0, 1, 2, 3  # columns of `asked`; outcome 1 accepted, 0 refused, NaN not asked


@njit
def read(words, tops, settings, with_mass, split, buffer):
    """(the row with its law, whether it has one). settings: temperature, top_k, top_p, log min_p. Without `with_mass`
    the law's mass may be left at 1: a race needs none. split: all threads share this row."""
    temperature, top_k, top_p, log_min_p = settings
    cuts_number = 0 < top_k < len(words)
    cuts = cuts_number or top_p < 1.0 or log_min_p > -np.inf
    scale = min(_LOG2E / temperature, 1e300) if temperature > 0.0 else 0.0
    pace = scale if (top_p < 1.0 and not cuts_number) or (with_mass and not cuts) else 0.0
    if split:
        peak, mass, broken = pieces(words, tops, pace)
    else:
        peak, mass, broken = piece(words, 0, len(tops), tops, pace)
    height = np.float64(key_to_logit(peak))
    law = Law(height, scale, mass if pace > 0.0 else 1.0, LOWEST, EVERY)
    if broken or not np.isfinite(height):
        return Read(words, tops, law), False
    if scale == 0.0:
        return Read(words, tops, Law(height, 0.0, 1.0, peak, first_with(words, tops, peak))), True
    if cuts:
        law = truncated(words, tops, law, temperature, top_k, top_p, log_min_p, buffer)
    return Read(words, tops, law), True


@njit
def noise_of(seed, depth, node, purpose):
    """seed: (root, sample, low, high) -> what `race.uniform` and the races take."""
    place, use = np.uint64(depth << 16 | node), np.uint64(np.int64(seed[1]) << 2 | purpose)
    return seed[0], place, use, seed[2], seed[3]


@njit
def coupled(rows, parents, tokens, settings, seed, split, path, asked):
    """Walk along the target's own samples. path: the nodes accepted."""
    n, groups = len(tokens), -(-rows.shape[1] // GROUP)
    tops, buffer = np.empty(groups, np.int64), np.empty(GROUP)
    node, depth = -1, 0
    while True:
        child = node + 1
        while child < n and parents[child] != node:
            child += 1
        p, ok = read(rows[node + 1], tops, settings, child < n, split, buffer)
        if not ok:
            return depth, _NONE, 0, node + 1
        position = (seed[0] + np.uint64(depth), seed[1], seed[2], seed[3])
        y = draw(p, noise_of(position, 0, 0, _TOKEN))
        match = -1
        while child < n and match < 0:
            if parents[child] == node:
                asked[child, P] = probability(p, tokens[child])
                asked[child, OUTCOME] = 1.0 if tokens[child] == y else 0.0
                match = child if tokens[child] == y else -1
            child += 1
        if match < 0:
            return depth, y, 0, -1
        path[depth] = match
        node, depth = match, depth + 1


@njit
def draw(p, noise):
    """One token under p's law."""
    winner = np.empty(1, np.int64)
    race(p, 1.0, p, False, _NONE, noise, winner)
    return winner[0]


@njit
def token(rows, sampled, tokens, q_rows, settings, seed, split, asked):
    """Accept each token with probability min(1, p/q), stop at the first refusal."""
    n, groups = len(tokens), -(-rows.shape[1] // GROUP)
    tops, q_tops, buffers = np.empty(groups, np.int64), np.empty(groups, np.int64), np.empty((2, GROUP))
    for i in range(n):
        p, q, bad = _ask(i, rows, tops, sampled, tokens, q_rows, q_tops, settings, split, buffers, asked)
        if bad >= 0:
            return i, _NONE, 0, bad
        prob = 1.0 if asked[i, P] >= asked[i, Q] else asked[i, P] / asked[i, Q]
        accepted = _coin(prob, noise_of(seed, i, i, _ACCEPT))
        asked[i, PROB], asked[i, OUTCOME] = prob, accepted
        if not accepted:
            last, rounding = _replacement(p, 1.0, q, tokens[i], sampled[i], noise_of(seed, i, 0, _REPLACE))
            return i, last, rounding, -1
    return _bonus(rows[n], tops, settings, seed, n, split, buffers[0])


@njit
def block(rows, sampled, tokens, q_rows, settings, seed, split, asked):
    """Keep the longest prefix whose coin succeeds, asked from the end; share[i] is w_i (rules/block.py)."""
    n, groups = len(tokens), -(-rows.shape[1] // GROUP)
    tops, q_tops = np.empty((n + 1, groups), np.int64), np.empty((n, groups), np.int64)
    buffers, share, longest = np.empty((2, GROUP)), np.ones(n + 1), 0
    nothing = Read(rows[0], tops[0], Law(0.0, 0.0, 1.0, LOWEST, EVERY))
    p_read, q_read = [nothing for _ in range(n)], [nothing for _ in range(n)]
    for i in range(n):
        p, q, bad = _ask(i, rows, tops[i], sampled, tokens, q_rows, q_tops[i], settings, split, buffers, asked)
        if bad >= 0:
            return 0, _NONE, 0, bad
        p_read[i], q_read[i] = p, q
        owed = share[i] * asked[i, P]
        share[i + 1] = 1.0 if owed >= asked[i, Q] else owed / asked[i, Q]
        if share[i + 1] == 0.0:
            break
        longest = i + 1
    for i in range(longest, 0, -1):
        prob = share[n]
        if i < n:
            rest = _left_over_mass(p_read[i], share[i], q_read[i], tokens[i], sampled[i], buffers)
            owed = rest + (1.0 - share[i])
            prob = rest / owed if owed > 0.0 else 1.0
        accepted = _coin(prob, noise_of(seed, i - 1, i - 1, _ACCEPT))
        asked[i - 1, PROB], asked[i - 1, OUTCOME] = prob, accepted
        if accepted:
            break
        longest = i - 1
    if longest == n:
        return _bonus(rows[n], tops[n], settings, seed, n, split, buffers[0])
    p, q, noise = p_read[longest], q_read[longest], noise_of(seed, longest, 0, _REPLACE)
    last, rounding = _replacement(p, share[longest], q, tokens[longest], sampled[longest], noise)
    return longest, last, rounding, -1


@njit
def _ask(i, rows, tops, sampled, tokens, q_rows, q_tops, settings, split, buffers, asked):
    """Read what judges node i and note p(x) and q(x): (p row, q row or p's again, bad row)."""
    p, ok = read(rows[i], tops, settings, True, split, buffers[0])
    if not ok:
        return p, p, i
    asked[i, P], asked[i, Q] = probability(p, tokens[i]), 1.0
    if not sampled[i]:
        return p, p, -1
    q, ok = read(q_rows[i], q_tops, settings, True, split, buffers[0])
    asked[i, Q] = probability(q, tokens[i]) if ok else 0.0
    return p, q, len(rows) + i if asked[i, Q] == 0.0 else -1


@njit
def _coin(prob, noise):
    """chance.heads; a certain answer takes no noise."""
    if prob <= 0.0:
        return False
    return prob >= 1.0 or uniform(noise) < prob


@njit
def _bonus(words, tops, settings, seed, n, split, buffer):
    """The verdict that accepts all n."""
    p, ok = read(words, tops, settings, False, split, buffer)
    if not ok:
        return n, _NONE, 0, n
    return n, draw(p, noise_of(seed, n, 0, _REPLACE)), 0, -1


@njit
def _replacement(p, share, q, token, sampled, noise):
    """A token from (share·p − q)₊, and 0; from p itself, and 1, where rounding left nothing of it."""
    winner = np.empty(1, np.int64)
    race(p, share, q, sampled != 0, _NONE if sampled else token, noise, winner)
    if winner[0] >= 0:
        return winner[0], 0
    return draw(p, noise), 1


@njit
def _left_over_mass(p, share, q, token, sampled, buffers):
    """Σ (share·p − q)₊; of a chosen token q is the point mass."""
    if sampled:
        return left_over_mass(p, share, q, buffers)
    mass = 0.0
    for g in range(len(p.tops)):
        if p.tops[g] >= p.law.floor:
            n = weights(p.words, g, p.law, buffers[0])
            if token // GROUP == g:
                buffers[0, token % GROUP] = 0.0
            mass += total(buffers[0], n)
    return mass * (share / p.law.mass)
