"""The rules on one request, from raw logits to the verdict: coupled, token and block as in rules/, row by row.

A row is read when its rule first asks for it. Every function returns (accepted, last token, rounding, bad): how many
nodes the path has, the token after it, how often rounding alone emptied a residual, and the row that holds no law
(-1: none; rows of q count on from those of p). What was asked of each node is left in `asked`: p, q, prob, outcome.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..chance import GROUP
from .numeric import LOWEST, key_to_logit
from .race import left_over, race, race_left_over, uniform
from .scan import EVERY, Law, first_with, piece, pieces, probability, weights
from .support import truncated

_LOG2E = 1.4426950408889634
_ACCEPT, _REPLACE, _TOKEN = 1, 2, 3  # base.Purpose, as numbers
P, Q, PROB, OUTCOME = 0, 1, 2, 3  # columns of `asked`; outcome 1 accepted, 0 refused, NaN not asked


@njit
def row_law(words, tops, settings, with_mass, split, buffer):
    """(law, whether there is one) of a row. settings: temperature, top_k, top_p, log min_p. Without `with_mass` the
    law's mass may be left at 1: a race needs none. split: all threads share this row."""
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
        return law, False
    if scale == 0.0:
        return Law(height, 0.0, 1.0, peak, first_with(words, tops, peak)), True
    if cuts:
        law = truncated(words, tops, law, temperature, top_k, top_p, log_min_p, buffer)
    return law, True


@njit
def noise_of(seed, depth, node, purpose):
    """seed: (root, sample, low, high) -> what `race.uniform` and the races take."""
    place, use = np.uint64(depth << 16 | node), np.uint64(np.int64(seed[1]) << 2 | purpose)
    return seed[0], place, use, seed[2], seed[3]


@njit
def coupled(rows, parents, tokens, settings, seed, split, path, asked):
    """Walk along the target's own samples. path: the nodes accepted."""
    n, groups = len(tokens), -(-rows.shape[1] // GROUP)
    tops, buffer, winner = np.empty(groups, np.int64), np.empty(GROUP), np.empty(1, np.int64)
    node, depth = -1, 0
    while True:
        words = rows[node + 1]
        child = node + 1
        while child < n and parents[child] != node:
            child += 1
        law, ok = row_law(words, tops, settings, child < n, split, buffer)
        if not ok:
            return depth, np.int64(-1), 0, node + 1
        position = (seed[0] + np.uint64(depth), seed[1], seed[2], seed[3])
        race(words, tops, law, np.int64(-1), noise_of(position, 0, 0, _TOKEN), winner, buffer)
        match = -1
        while child < n and match < 0:
            if parents[child] == node:
                hit = tokens[child] == winner[0]
                asked[child, P] = probability(words, tokens[child], law)
                asked[child, OUTCOME] = 1.0 if hit else 0.0
                match = child if hit else -1
            child += 1
        if match < 0:
            return depth, winner[0], 0, -1
        path[depth] = match
        node, depth = match, depth + 1


@njit
def token(rows, sampled, tokens, q_rows, settings, seed, split, asked):
    """Accept each token with probability min(1, p/q), stop at the first refusal."""
    n, groups = len(tokens), -(-rows.shape[1] // GROUP)
    tops, q_tops, buffers = np.empty(groups, np.int64), np.empty(groups, np.int64), np.empty((2, GROUP))
    for i in range(n):
        law, ok = row_law(rows[i], tops, settings, True, split, buffers[0])
        if not ok:
            return i, np.int64(-1), 0, i
        q_law, q = law, 1.0
        if sampled[i]:
            q_law, ok = row_law(q_rows[i], q_tops, settings, True, split, buffers[0])
            q = probability(q_rows[i], tokens[i], q_law) if ok else 0.0
            if q == 0.0:
                return i, np.int64(-1), 0, n + 1 + i
        p = probability(rows[i], tokens[i], law)
        prob = 1.0 if p >= q else p / q
        accepted = _coin(prob, noise_of(seed, i, i, _ACCEPT))
        asked[i, P], asked[i, Q], asked[i, PROB], asked[i, OUTCOME] = p, q, prob, accepted
        if not accepted:
            last, rounding = _replacement(rows[i], tops, law, 1.0, tokens[i], sampled[i], q_rows[i], q_law, seed, i, buffers)
            return i, last, rounding, -1
    last, bad = _bonus(rows[n], tops, settings, seed, n, split, buffers[0])
    return n, last, 0, bad


@njit
def _coin(prob, noise):
    """chance.heads; a certain answer takes no noise."""
    if prob <= 0.0:
        return False
    return prob >= 1.0 or uniform(noise) < prob


@njit
def _bonus(words, tops, settings, seed, n, split, buffer):
    law, ok = row_law(words, tops, settings, False, split, buffer)
    if not ok:
        return np.int64(-1), n
    winner = np.empty(1, np.int64)
    race(words, tops, law, np.int64(-1), noise_of(seed, n, 0, _REPLACE), winner, buffer)
    return winner[0], -1


@njit
def _replacement(words, tops, law, share, token, sampled, q_words, q_law, seed, depth, buffers):
    """A token from (share·p − q)₊, and 0; from p itself, and 1, where rounding left nothing of it."""
    noise, winner = noise_of(seed, depth, 0, _REPLACE), np.empty(1, np.int64)
    if sampled:
        winner[0] = race_left_over(words, tops, law, share, q_words, q_law, noise, buffers)
    else:
        race(words, tops, law, np.int64(token), noise, winner, buffers[0])
    if winner[0] >= 0:
        return winner[0], 0
    race(words, tops, law, np.int64(-1), noise, winner, buffers[0])
    return winner[0], 1


@njit
def block(rows, sampled, tokens, q_rows, settings, seed, split, asked):
    """Keep the longest prefix whose coin succeeds, from the end; see rules/block.py."""
    n, groups = len(tokens), -(-rows.shape[1] // GROUP)
    tops, q_tops = np.empty((n + 1, groups), np.int64), np.empty((n, groups), np.int64)
    buffers, share, last_owed = np.empty((2, GROUP)), np.ones(n + 1), 0
    laws = [Law(0.0, 0.0, 1.0, LOWEST, EVERY) for _ in range(n)]
    q_laws = [Law(0.0, 0.0, 1.0, LOWEST, EVERY) for _ in range(n)]
    for i in range(n):
        laws[i], ok = row_law(rows[i], tops[i], settings, True, split, buffers[0])
        if not ok:
            return 0, np.int64(-1), 0, i
        asked[i, P], asked[i, Q] = probability(rows[i], tokens[i], laws[i]), 1.0
        if sampled[i]:
            q_laws[i], ok = row_law(q_rows[i], q_tops[i], settings, True, split, buffers[0])
            asked[i, Q] = probability(q_rows[i], tokens[i], q_laws[i]) if ok else 0.0
            if asked[i, Q] == 0.0:
                return 0, np.int64(-1), 0, n + 1 + i
        owed = share[i] * asked[i, P]
        share[i + 1] = 1.0 if owed >= asked[i, Q] else owed / asked[i, Q]
        if share[i + 1] == 0.0:
            break
        last_owed = i + 1
    for i in range(last_owed, -1, -1):
        if i > 0:
            prob = share[n]
            if i < n:
                rest = _left_over_mass(rows[i], tops[i], laws[i], share[i], tokens[i], sampled[i], q_rows[i], q_laws[i], buffers)
                owed = rest + (1.0 - share[i])
                prob = rest / owed if owed > 0.0 else 1.0
            accepted = _coin(prob, noise_of(seed, i - 1, i - 1, _ACCEPT))
            asked[i - 1, PROB], asked[i - 1, OUTCOME] = prob, accepted
            if not accepted:
                continue
        if i == n:
            last, bad = _bonus(rows[n], tops[n], settings, seed, n, split, buffers[0])
            return n, last, 0, bad
        last, rounding = _replacement(rows[i], tops[i], laws[i], share[i], tokens[i], sampled[i], q_rows[i], q_laws[i], seed, i, buffers)
        return i, last, rounding, -1
    return 0, np.int64(-1), 0, -1  # never: i = 0 always returns


@njit
def _left_over_mass(words, tops, law, share, token, sampled, q_words, q_law, buffers):
    """Σ (share·p − q)₊."""
    scale_p, total = share / law.mass, 0.0
    for g in range(len(tops)):
        if tops[g] >= law.floor:
            if sampled:
                n = left_over(words, g, law, scale_p, q_words, q_law, 1.0 / q_law.mass, buffers)
                total += buffers[0, :n].sum()
            else:
                n = weights(words, g, law, buffers[0])
                if token // GROUP == g:
                    buffers[0, token % GROUP] = 0.0
                total += scale_p * buffers[0, :n].sum()
    return total
