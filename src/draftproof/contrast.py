"""Contrastive decoding, the mathematics of one row: what an expert says more of than an amateur does.

Li et al. 2022 (2210.15097) decode from the expert's likely tokens, the head set, weighted against the amateur; Yuan et
al., ACL 2024 (2311.08981) let the amateur draft for it. With p the two laws at temperature 1,

    H = {x : p_E(x) >= alpha · max p_E},    s(x) = (1 + beta) · log p_E(x) - beta · log p_A(x) in H, else -inf.

Here s are LOGITS: they stand where the expert's own would, before a request's penalties, grammar and temperature. The
amateur's law is that over the ids which both models have. Its probabilities do not count below a floor, a part of the
definition: without one, a token that the amateur rules out would be infinitely better than all others.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from .base import Row

LEAST_LOG_P = -50.0
"""The floor of log p_A, in nats: below what a language model gives to a token unless it masks it, and a number, so that
a masked one has a score. An id that the amateur does not have is at the floor, too."""


def combined_scores(
    expert: Float[np.ndarray, " v"], amateur: Float[np.ndarray, " u"], alpha: float, beta: float
) -> Float[np.ndarray, " v"]:
    """Logits of the two -> the combined logits, float32, summed up in float64.

    A row at a time, so that its bits do not depend on the rows beside it. With beta 0 they are the expert's
    log-probabilities, within the head set.

    >>> combined_scores(np.log([0.6, 0.3, 0.1]), np.log([0.9, 0.05, 0.05]), 0.25, 1.0).round(4)
    array([-0.9163,  0.5878,    -inf], dtype=float32)

    A row that holds no law is not repaired: of the expert, it is given back as it is; of the amateur, all becomes NaN.
    Either is an error as soon as somebody draws from it.
    """
    known = amateur[: len(expert)]
    if not np.isfinite(np.max(expert)):  # the maximum of NaN and anything is NaN
        return expert.astype(np.float32)
    if not np.isfinite(np.max(known)):
        return np.full(len(expert), np.nan, np.float32)
    ours = expert.astype(np.float64)
    ours -= np.max(ours)
    head = np.flatnonzero(ours >= (math.log(alpha) if alpha > 0 else -math.inf))
    theirs = np.full(len(head), LEAST_LOG_P)
    both = int(np.searchsorted(head, len(known)))
    theirs[:both] = np.maximum(known[head[:both]].astype(np.float64) - _log_total(known), LEAST_LOG_P)
    scores = np.full(len(expert), -np.inf, np.float32)
    with np.errstate(over="ignore"):  # a beta beyond all sense: infinite scores, which no law is made of
        scores[head] = (1 + beta) * (ours[head] - _log_total(ours)) - beta * theirs
    return scores


def _log_total(logits: np.ndarray) -> float:
    """log Σ exp: what a logit must lose to become the logarithm of a probability."""
    peak = float(np.max(logits))
    return peak + math.log(float(np.exp(logits.astype(np.float64) - peak).sum()))


def combined_law(expert: Row, amateur: Shaped[np.ndarray, " u"], alpha: Any, beta: Any, floor: Any) -> Row:
    """The same from law to law, over any numbers: p_E^(1 + beta) / max(p_A, floor)^beta in the head set, normalised.

    floor: of p_A, above 0. Over `Fraction` with a whole beta it is exact: the proofs run over it.

    >>> combined_law(np.array([0.6, 0.3, 0.1]), np.array([0.9, 0.05, 0.05]), 0.25, 1, 1e-9).round(4)
    array([0.1818, 0.8182, 0.    ])
    """
    known = amateur[: len(expert)]
    theirs = 0 * expert + floor
    theirs[: len(known)] = np.maximum(known / known.sum(), floor)
    weights = np.where(expert >= alpha * expert.max(), expert ** (1 + beta) / theirs**beta, 0 * expert)
    return weights / weights.sum()
