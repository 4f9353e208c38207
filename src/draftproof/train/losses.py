"""What a draft law q loses against the target's law p: pure functions of rows, and mixtures of them.

Every loss takes the draft's logits over its own d ids, and the target's log-probabilities of those ids, normalised over
the target's FULL vocabulary: a row of p sums to its coverage m <= 1. It gives one number a row. Everything is computed
in the logits' dtype, float32 or float64; nothing is NaN where p is 0 (log-probabilities down to -inf) or q underflows.

With m·KL(p'‖q), p' = p/m, rows whose next token the draft cannot say weigh less, as they should: it can win nothing
there. Only `reverse_kl` has no such weight of its own, so it is given one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(logits [n, d], log-probabilities of the target [n, d]) -> loss [n]"""

_LEAST = -80.0  # a log-probability that stands for 0: exp gives a normal float32, and no difference is infinite


def cross_entropy(logits: Float[torch.Tensor, "n d"], log_p: Float[torch.Tensor, "n d"]) -> Float[torch.Tensor, " n"]:
    """−Σ p log q, over the draft's ids."""
    return -(log_p.exp() * logits.log_softmax(-1)).sum(-1)


def hard_cross_entropy(
    logits: Float[torch.Tensor, "n d"], log_p: Float[torch.Tensor, "n d"]
) -> Float[torch.Tensor, " n"]:
    """−log q of the draft's id that the target thinks likeliest."""
    return -logits.log_softmax(-1).gather(-1, log_p.argmax(-1, keepdim=True))[:, 0]


def forward_kl(logits: Float[torch.Tensor, "n d"], log_p: Float[torch.Tensor, "n d"]) -> Float[torch.Tensor, " n"]:
    """Σ p log(p'/q) = m·KL(p'‖q), p' = p/m: 0 at its least, with the gradient of `cross_entropy`."""
    log_p = log_p.clamp_min(_LEAST)
    log_m = log_p.logsumexp(-1, keepdim=True)
    return (log_p.exp() * (log_p - log_m - logits.log_softmax(-1))).sum(-1)


def reverse_kl(logits: Float[torch.Tensor, "n d"], log_p: Float[torch.Tensor, "n d"]) -> Float[torch.Tensor, " n"]:
    """m·KL(q‖p'), p' = p/m. Where p is 0, as if it were e^−80."""
    log_p = log_p.clamp_min(_LEAST)
    log_m, log_q = log_p.logsumexp(-1, keepdim=True), logits.log_softmax(-1)
    return log_m[:, 0].exp() * (log_q.exp() * (log_q - log_p + log_m)).sum(-1)


def total_variation(logits: Float[torch.Tensor, "n d"], log_p: Float[torch.Tensor, "n d"]) -> Float[torch.Tensor, " n"]:
    """1 − Σ min(p, q): the probability that a draft from q is rejected (Leviathan et al. 2023, 2211.17192)."""
    return 1 - overlap(logits, log_p)


def acceptance(logits: Float[torch.Tensor, "n d"], log_p: Float[torch.Tensor, "n d"]) -> Float[torch.Tensor, " n"]:
    """−log Σ min(p, q): the log of the acceptance itself (LK loss, 2602.23881). In logs, so that it has a slope however
    little the laws overlap."""
    return -torch.minimum(logits.log_softmax(-1), log_p.clamp_min(_LEAST)).logsumexp(-1)


def coupling(logits: Float[torch.Tensor, "n d"], log_p: Float[torch.Tensor, "n d"]) -> Float[torch.Tensor, " n"]:
    """−log of the probability that p and q, with the same Gumbel noise, give the same token: the acceptance of the
    coupled rule (`theory.coupled_match`). It sorts every row, and so costs more than the others."""
    return -log_coupled_match(logits, log_p)


def log_coupled_match(
    logits: Float[torch.Tensor, "n d"], log_p: Float[torch.Tensor, "n d"]
) -> Float[torch.Tensor, " n"]:
    """log Σ_x 1/Σ_y max(p_y/p_x, q_y/q_x) over the draft's ids x, and all ids y of the target.

    By rising q/p, what is summed over y is p_y/p_x up to x itself and q_y/q_x behind it.
    """
    log_q, log_p = logits.log_softmax(-1).clamp_min(_LEAST), log_p.clamp_min(_LEAST)
    order = (log_q - log_p).detach().argsort(-1)
    log_p, log_q = log_p.gather(-1, order), log_q.gather(-1, order)
    p, q = log_p.exp(), log_q.exp()
    outside = (1 - p.sum(-1, keepdim=True)).clamp_min(0)  # ids that the draft does not know stand before all others
    behind = (q.flip(-1).cumsum(-1).flip(-1) - q).clamp_min(0)
    sums = outside + p.cumsum(-1) + behind * (log_p - log_q).exp()  # times p_x: no quotient of tiny numbers
    return (log_p - sums.log()).logsumexp(-1)


def overlap(logits: Float[torch.Tensor, "n d"], log_p: Float[torch.Tensor, "n d"]) -> Float[torch.Tensor, " n"]:
    """Σ min(p, q): how likely a draft from q is accepted."""
    return torch.minimum(logits.softmax(-1), log_p.exp()).sum(-1)


LOSSES: dict[str, Loss] = {
    "ce": cross_entropy,
    "hard": hard_cross_entropy,
    "kl": forward_kl,
    "rkl": reverse_kl,
    "tv": total_variation,
    "lk": acceptance,
    "coupled": coupling,
}

_PART = re.compile(r"([a-z]+)(?::([0-9]*\.?[0-9]+))?")


def parts_of(given: str) -> list[tuple[str, float]]:
    """Losses by name, each with its weight (1 without one), joined by +. ValueError: a name or a weight is none.

    >>> parts_of("kl:0.5+lk:0.5"), parts_of("lk")
    ([('kl', 0.5), ('lk', 0.5)], [('lk', 1.0)])
    """
    found: list[tuple[str, float]] = []
    for part in given.replace(" ", "").split("+"):
        match = _PART.fullmatch(part)
        if match is None or match[1] not in LOSSES or not float(match[2] or 1) > 0:
            raise ValueError(
                f"loss: {given!r} is not allowed; give one of {', '.join(LOSSES)}, or a sum such as kl:0.5+lk:0.5"
            )
        if match[1] in dict(found):
            raise ValueError(f"loss: {given!r} is not allowed; {match[1]} is in it twice")
        found.append((match[1], float(match[2] or 1)))
    return found


def loss_of(given: str) -> Loss:
    """The loss that a string such as "kl:0.5+lk:0.5" names."""
    parts = [(LOSSES[name], weight) for name, weight in parts_of(given)]
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]

    def mixture(logits: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
        first, *others = (weight * loss(logits, log_p) for loss, weight in parts)
        return sum(others, first)

    return mixture


def position_decay(gamma: float, steps: int) -> Sequence[float]:
    """What each step of an unroll weighs: gamma^k, made to sum to 1.

    >>> position_decay(0.5, 2)
    (0.6666666666666666, 0.3333333333333333)
    """
    if not 0 < gamma <= 1:
        raise ValueError(f"decay: {gamma} is not allowed; it must be in (0, 1]")
    weights = [gamma**k for k in range(steps)]
    return tuple(weight / sum(weights) for weight in weights)
