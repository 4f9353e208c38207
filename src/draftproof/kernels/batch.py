"""The functions that Python calls: a batch of requests, each with its own length and settings.

words: rows of logits, those of request b from row_start[b], one more than it has drafted. node_start[b]: where its
nodes begin in tokens, parents, sampled, path, asked and q_words. settings: temperature, top_k, top_p, log min_p.
seeds: root, sample, low and high word of the seed. verdicts: accepted, last token, rounding, bad row.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from ..chance import GROUP
from .cached import kernel, njit
from .judge import block, coupled, noise_of, read, token
from .numeric import added
from .race import race
from .scan import probability

RULES = ("coupled", "token", "block")  # by number


@njit
def _decide(b, rule, words, layout, nodes, q_words, settings, seeds, split, path, asked, verdicts):
    row, at, n = layout[b]
    rows, drafted = words[row : row + n + 1], nodes[at : at + n]
    tokens, parents, sampled = drafted[:, 0], drafted[:, 1], drafted[:, 2]
    how = (settings[b, 0], np.int64(settings[b, 1]), settings[b, 2], settings[b, 3])
    seed = (seeds[b, 0], seeds[b, 1], seeds[b, 2], seeds[b, 3])
    answers, q_rows = asked[at : at + n], q_words[at:]
    if rule == 0:
        verdict = coupled(rows, parents, tokens, how, seed, split, path[at : at + n], answers)
    elif rule == 1:
        verdict = token(rows, sampled, tokens, q_rows, how, seed, split, answers)
    else:
        verdict = block(rows, sampled, tokens, q_rows, how, seed, split, answers)
    verdicts[b, 0], verdicts[b, 1], verdicts[b, 2], verdicts[b, 3] = verdict


@kernel()
def in_turn(rule, words, layout, nodes, q_words, settings, seeds, split, path, asked, verdicts):
    """One request after the other; split: all threads on each row."""
    for b in range(len(layout)):
        _decide(b, rule, words, layout, nodes, q_words, settings, seeds, split, path, asked, verdicts)


@kernel(parallel=True)
def side_by_side(rule, words, layout, nodes, q_words, settings, seeds, path, asked, verdicts):
    """One thread a request."""
    for b in prange(len(layout)):
        _decide(b, rule, words, layout, nodes, q_words, settings, seeds, False, path, asked, verdicts)


@kernel()
def draw(words, settings, seed, depth, node, purpose, split, ids, found):
    """The first len(ids) tokens of one row under its law, for drafters and plain decoding. found: their p, or empty
    if nobody asks. Returns whether the row holds a law."""
    tops, buffer = np.empty(-(-len(words) // GROUP), np.int64), np.empty(GROUP)
    how = (settings[0], np.int64(settings[1]), settings[2], settings[3])
    p, ok = read(words, tops, how, len(found) > 0, split, buffer)
    if ok:
        who = (seed[0], seed[1], seed[2], seed[3])
        race(p, 1.0, p, False, np.int64(-1), noise_of(who, depth, node, purpose), ids)
        for i in range(min(len(ids), len(found))):
            found[i] = probability(p, ids[i]) if ids[i] >= 0 else 0.0
    return ok


@kernel(parallel=True)
def stream(words):
    """Read every word once and do next to nothing with it: what memory allows, for benchmarks to compare with."""
    out = np.empty(len(words), np.int64)
    for i in prange(len(words)):
        out[i] = added(words[i])
    return out


def warm() -> None:
    """Call everything once, for float32 and bfloat16: it is compiled, or loaded from disk."""
    settings, seeds = np.array([[1.0, 0.0, 1.0, -np.inf]]), np.zeros((1, 4), np.uint64)
    for kind in (np.int32, np.int16):
        words, layout = np.zeros((1, 2), kind), np.zeros((1, 3), np.int64)
        nodes, path, asked = np.zeros((0, 3), np.int64), np.zeros(0, np.int64), np.zeros((0, 4))
        verdicts = np.zeros((1, 4), np.int64)
        in_turn(0, words, layout, nodes, words, settings, seeds, False, path, asked, verdicts)
        side_by_side(0, words, layout, nodes, words, settings, seeds, path, asked, verdicts)
    draw(words.astype(np.int32)[0], settings[0], seeds[0], 0, 0, 0, False, np.zeros(1, np.int64), np.zeros(0))
