"""The rules on one request, from raw logits to the verdict: coupled, token and block as in rules/, row by row.

A row is read when its rule first asks for it. Every function returns (accepted, last token, rounding, bad): how many
nodes the path has, the token after it, how often rounding alone emptied a residual, and the row that holds no law
(-1: none; rows of q count on from those of p). What was asked of each node is left in `asked`: p, q, prob, outcome.
"""

from __future__ import annotations

import numpy as np

from ..chance import GROUP
from .cached import njit
from .numeric import LOWEST, key_to_logit
from .race import race, race_left_over, uniform
from .scan import EVERY, Law, Read, first_with, left_over, piece, pieces, probability, weights
from .support import truncated

_NONE = np.int64(-1)
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
            return depth, _NONE, 0, node + 1
        position = (seed[0] + np.uint64(depth), seed[1], seed[2], seed[3])
        race(words, tops, law, _NONE, noise_of(position, 0, 0, _TOKEN), winner, buffer)
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
        p, q, bad = _ask(i, rows, tops, sampled, tokens, q_rows, q_tops, settings, split, buffers, asked)
        if bad >= 0:
            return i, _NONE, 0, bad
        prob = 1.0 if asked[i, P] >= asked[i, Q] else asked[i, P] / asked[i, Q]
        accepted = _coin(prob, noise_of(seed, i, i, _ACCEPT))
        asked[i, PROB], asked[i, OUTCOME] = prob, accepted
        if not accepted:
            last, rounding = _replacement(p, 1.0, q, tokens[i], sampled[i], noise_of(seed, i, 0, _REPLACE), buffers)
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
    last, rounding = _replacement(p, share[longest], q, tokens[longest], sampled[longest], noise, buffers)
    return longest, last, rounding, -1


@njit
def _ask(i, rows, tops, sampled, tokens, q_rows, q_tops, settings, split, buffers, asked):
    """Read what judges node i and note p(x) and q(x): (p row, q row or p's again, bad row)."""
    law, ok = row_law(rows[i], tops, settings, True, split, buffers[0])
    p = q = Read(rows[i], tops, law)
    bad = -1 if ok else i
    asked[i, P], asked[i, Q] = probability(rows[i], tokens[i], law), 1.0
    if ok and sampled[i]:
        law, ok = row_law(q_rows[i], q_tops, settings, True, split, buffers[0])
        q = Read(q_rows[i], q_tops, law)
        asked[i, Q] = probability(q_rows[i], tokens[i], law) if ok else 0.0
        bad = len(rows) + i if asked[i, Q] == 0.0 else -1
    return p, q, bad


@njit
def _coin(prob, noise):
    """chance.heads; a certain answer takes no noise."""
    if prob <= 0.0:
        return False
    return prob >= 1.0 or uniform(noise) < prob


@njit
def _bonus(words, tops, settings, seed, n, split, buffer):
    """The verdict that accepts all n."""
    law, ok = row_law(words, tops, settings, False, split, buffer)
    if not ok:
        return n, _NONE, 0, n
    winner = np.empty(1, np.int64)
    race(words, tops, law, _NONE, noise_of(seed, n, 0, _REPLACE), winner, buffer)
    return n, winner[0], 0, -1


@njit
def _replacement(p, share, q, token, sampled, noise, buffers):
    """A token from (share·p − q)₊, and 0; from p itself, and 1, where rounding left nothing of it."""
    winner = np.empty(1, np.int64)
    if sampled:
        winner[0] = race_left_over(p, share, q, noise, buffers)
    else:
        race(p.words, p.tops, p.law, token, noise, winner, buffers[0])
    if winner[0] >= 0:
        return winner[0], 0
    race(p.words, p.tops, p.law, _NONE, noise, winner, buffers[0])
    return winner[0], 1


@njit
def _left_over_mass(p, share, q, token, sampled, buffers):
    """Σ (share·p − q)₊; of a chosen token q is the point mass."""
    total = 0.0
    for g in range(len(p.tops)):
        if p.tops[g] >= p.law.floor:
            if sampled:
                n = left_over(p, share, q, g, buffers)
                total += buffers[0, :n].sum()
            else:
                n = weights(p.words, g, p.law, buffers[0])
                if token // GROUP == g:
                    buffers[0, token % GROUP] = 0.0
                total += buffers[0, :n].sum() * (share / p.law.mass)
    return total
