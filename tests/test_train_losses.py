"""Losses of a draft law against a target's: by hand, by their gradients, and where something is 0."""

from __future__ import annotations

import math

import pytest
import torch

from draftproof.theory import coupled_match
from draftproof.train import losses
from draftproof.train.losses import LOSSES, loss_of, overlap, parts_of, position_decay
from draftproof.train.objective import Laws, project

pytestmark = pytest.mark.usefixtures("one_thread")


def logs(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64).log()


def value(name: str, q: torch.Tensor, p: torch.Tensor) -> float:
    return float(loss_of(name)(q, p)[0])


# q = (1/2, 1/4, 1/4); of p = (1/4, 1/2), a quarter is said by ids that the draft does not know
Q, P = logs(0.5, 0.25, 0.25), logs(0.25, 0.5, 0.0)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("ce", 0.25 * math.log(2) + 0.5 * math.log(4)),
        ("hard", math.log(4)),
        ("kl", 0.25 * math.log(1 / 3 / 0.5) + 0.5 * math.log(2 / 3 / 0.25)),
        ("tv", 0.5),
        ("lk", math.log(2)),
        ("tv:0.5+lk:2", 0.25 + 2 * math.log(2)),
    ],
)
def test_values_by_hand(name, wanted):
    assert value(name, Q, P) == pytest.approx(wanted, abs=1e-12)


def test_reverse_kl_by_hand():
    p = logs(0.25, 0.375, 0.125)  # 3/4 in all: p' = (1/3, 1/2, 1/6)
    wanted = 0.75 * (0.5 * math.log(0.5 * 3) + 0.25 * math.log(0.25 * 2) + 0.25 * math.log(0.25 * 6))
    assert value("rkl", Q, p) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("name", ["kl", "rkl", "tv", "lk"])
def test_a_perfect_draft_has_the_least_loss(name):
    p = logs(0.25, 0.375, 0.125)
    least = {"tv": 0.25, "lk": -math.log(0.75)}.get(name, 0.0)  # what the draft cannot say is lost
    assert value(name, p, p) == pytest.approx(least, abs=1e-12)
    assert value(name, Q, p) > least


def test_overlap_is_the_acceptance():
    assert float(overlap(Q, P)) == pytest.approx(0.5)


def test_the_coupled_match_is_that_of_the_theory():
    generator = torch.Generator().manual_seed(3)
    for spread in (0.1, 1.0, 5.0):
        logits, target = (torch.randn(4, 9, generator=generator, dtype=torch.float64) * spread for _ in range(2))
        p, known = target.softmax(-1), torch.tensor([0, 2, 3, 5, 8])
        q = torch.zeros_like(p)
        q[:, known] = logits[:, known].softmax(-1)
        found = losses.log_coupled_match(logits[:, known], p[:, known].log()).exp()
        wanted = [float(coupled_match(*pair)) for pair in zip(p.numpy(), q.numpy(), strict=True)]
        assert found.tolist() == pytest.approx(wanted, abs=1e-12)
    assert value("coupled", logs(0.5, 0.5), logs(0.5, 0.5)) == pytest.approx(0, abs=1e-12)


def random(seed: int, rows: int = 3, ids: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits, target = (torch.randn(rows, ids, generator=generator, dtype=torch.float64) for _ in range(2))
    return logits.requires_grad_(), target.log_softmax(-1) - 0.3


@pytest.mark.parametrize("name", [*LOSSES, "kl:0.5+lk:0.5"])
def test_gradients(name):
    logits, log_p = random(0)
    assert torch.autograd.gradcheck(lambda q: loss_of(name)(q, log_p), (logits,))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_is_nan_where_p_is_0_or_q_underflows(name, dtype):
    """Rows: p has a 0; all of p is elsewhere; q underflows where p is; both at once; q is small in all degrees."""
    inf = torch.inf
    rows = [[0.0, -inf, -inf], [-inf, -inf, -inf], [-200.0, -1.0, 0.0], [-inf, -1.0, -inf]]
    rows += [[-2.3, -0.7, -0.9]] * 7
    given = [[0.0, 0, 0], [0, 0, 0], [500, 0, -500], [2000, -2000, 0]]
    given += [[0, -gap, -1] for gap in (20, 40, 46, 60, 79, 81, 120)]
    log_p, logits = (torch.tensor(each, dtype=dtype) for each in (rows, given))
    logits.requires_grad_()
    found = LOSSES[name](logits, log_p)
    [slope] = torch.autograd.grad(found.sum(), logits)
    assert torch.isfinite(found).all()
    assert torch.isfinite(slope).all()


def test_the_log_of_the_acceptance_has_a_slope_however_small_the_overlap():
    logits = torch.tensor([[60.0, 0.0]], requires_grad=True)
    log_p = torch.tensor([[-60.0, 0.0]])
    slopes = [torch.autograd.grad(LOSSES[name](logits, log_p).sum(), logits)[0].abs().sum() for name in ("tv", "lk")]
    assert slopes[0] < 1e-20
    assert slopes[1] > 0.5


@pytest.mark.parametrize("given", ["", "kl+", "no", "kl:0", "kl:-1", "kl:x", "kl:0.5+kl:0.5", "kl:1e999", "KL", "."])
def test_what_is_no_loss(given):
    with pytest.raises(ValueError, match=r"^loss: "):
        parts_of(given)


@pytest.mark.parametrize("gamma", [0, -1, 1.5, float("nan")])
def test_what_is_no_decay(gamma):
    with pytest.raises(ValueError, match=r"^decay: "):
        position_decay(gamma, 3)


# through the output layer


@pytest.mark.parametrize("name", ["kl", "lk", "rkl:0.3+tv:1"])
def test_the_loss_through_the_output_layer_is_what_autograd_gives(name, monkeypatch):
    monkeypatch.setattr("draftproof.train.objective._SLICE", 12)  # two rows at a time
    generator = torch.Generator().manual_seed(1)
    normed, weight, target = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((7, 4), (6, 4), (9, 6))
    )
    normed.requires_grad_()
    weight.requires_grad_()
    at = torch.tensor([0, 8, 3, 3, 1, 2, 7])
    log_z = target.logsumexp(-1) + 0.2
    wanted = loss_of(name)(normed @ weight.T, (target - log_z[:, None])[at]).sum()
    found = project(normed, weight, Laws(target, log_z, at), loss_of(name), narrow=False)
    torch.testing.assert_close(found, wanted)
    for one, other in zip(
        torch.autograd.grad(3 * found, (normed, weight)), torch.autograd.grad(3 * wanted, (normed, weight)), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_a_frozen_output_layer_costs_nothing():
    normed, weight = torch.randn(3, 4, requires_grad=True), torch.randn(6, 4)
    laws = Laws(torch.zeros(3, 6), torch.full((3,), math.log(6)), torch.arange(3))
    project(normed, weight, laws, loss_of("kl"), narrow=True).backward()
    assert normed.grad is not None
    assert weight.grad is None
