"""From logits to a law, against a plain reference and Hugging Face's own processors; identities of verification."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from draftproof.audit.exact import fractions_row
from draftproof.laws import acceptance, fit, one_hot, overlap, residual, total, warp, without
from draftproof.sampling import SamplingParams, law_of

LOGITS = hnp.arrays(
    st.sampled_from([np.float32, np.float64]),
    st.integers(1, 200),
    elements=st.one_of(
        st.sampled_from([-np.inf, -2.0, 0.0, 0.5, 1.0]),  # ties and tokens without mass
        st.floats(-30, 30, width=16),
    ),
).filter(lambda row: np.isfinite(row).any())
TEMPERATURE = st.sampled_from([0.0, 1e-8, 0.3, 0.7, 1.0, 2.5])
TOP_K = st.sampled_from([0, 1, 2, 5, 50, 1000])
TOP_P = st.sampled_from([1.0, 0.95, 0.6, 0.123, 1e-6])
MIN_P = st.sampled_from([0.0, 0.05, 0.3, 1.0])


def plainly(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """temperature, top-k, top-p, min-p, one token after the other."""
    order = sorted((t for t in range(len(logits)) if logits[t] > -math.inf), key=lambda t: (-logits[t], t))
    out = np.zeros(len(logits))
    if temperature == 0:
        out[order[0]] = 1
        return out
    weight = {t: math.exp((float(logits[t]) - float(logits[order[0]])) / temperature) for t in order}
    if top_k:
        order = order[:top_k]
    if top_p < 1:
        goal, reached, kept = top_p * math.fsum(weight[t] for t in order), 0.0, []
        for t in order:
            assume(abs(reached - goal) > 1e-9 * goal)  # a prefix that ends on the goal but for rounding is either's
            if reached >= goal:
                break
            kept.append(t)
            reached = math.fsum(weight[t] for t in kept)
        order = kept
    for t in order:
        # no entry of this strategy lies within rounding of a min-p threshold but the maximum itself
        if weight[t] >= min_p * weight[order[0]]:
            out[t] = weight[t]
    return out / math.fsum(out)


@given(LOGITS, TEMPERATURE, TOP_K, TOP_P, MIN_P)
def test_warp_equals_the_plain_reference(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
):
    before = logits.copy()
    law = warp(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert np.array_equal(logits, before), "the input is read only"
    assert law.dtype == np.float64
    known = plainly(logits, temperature, top_k, top_p, min_p)
    np.testing.assert_allclose(law, known, rtol=1e-12, atol=1e-300)
    assert np.array_equal(law > 0, known > 0)


@pytest.mark.parametrize("seed", range(20))
def test_warp_equals_the_processors_of_hugging_face(seed: int):
    """The same four, in the order in which `generate` applies them, on rows without ties."""
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    rng = np.random.default_rng(seed)
    logits = 3 * rng.standard_normal(rng.integers(5, 400))
    params = {"temperature": rng.uniform(0.3, 2), "top_k": int(rng.integers(2, 60)), "top_p": rng.uniform(0.2, 0.99)}
    params["min_p"] = rng.uniform(0.01, 0.3)
    scores = torch.tensor(logits)[None]
    for process in (
        processors.TemperatureLogitsWarper(float(params["temperature"])),
        processors.TopKLogitsWarper(params["top_k"]),
        processors.TopPLogitsWarper(float(params["top_p"])),
        processors.MinPLogitsWarper(float(params["min_p"])),
    ):
        scores = process(None, scores)
    np.testing.assert_allclose(warp(logits, **params), scores.softmax(-1)[0].numpy(), rtol=1e-9, atol=1e-15)


def test_the_order_of_the_steps_shows():
    half = np.log([0.5, 0.3, 0.2])
    # top-k first: of the two left the first has .625 of the mass, so it alone reaches .6
    assert warp(half, top_k=2, top_p=0.6).tolist() == [1, 0, 0]
    # temperature first: at T = ½ the first token has .25/.38 of the mass
    assert warp(half, temperature=0.5, top_p=0.6).tolist() == [1, 0, 0]
    assert np.count_nonzero(warp(half, top_p=0.6)) == 2
    # min-p last: had it removed the third first, the first would have .625 of the mass, and reach .6 alone
    assert np.count_nonzero(warp(half, top_p=0.6, min_p=0.5)) == 2


def test_top_p_keeps_the_token_that_reaches_it_and_no_more():
    logits = np.log([0.5, 0.25, 0.25])
    assert np.count_nonzero(warp(logits, top_p=0.5)) == 1
    assert np.count_nonzero(warp(logits, top_p=np.nextafter(0.5, 1))) == 2
    assert np.count_nonzero(warp(logits, top_p=np.nextafter(1, 0))) == 3
    assert np.count_nonzero(warp(logits, top_p=1e-300)) == 1


def test_a_nucleus_wider_than_the_first_guess_is_found():
    flat = np.zeros(5000)
    assert np.array_equal(np.flatnonzero(warp(flat, top_p=0.5)), np.arange(2500))


def test_ties_go_to_the_lowest_ids():
    logits = np.array([0.0, 2.0, 1.0, 2.0, 1.0, 1.0])
    assert np.flatnonzero(warp(logits, temperature=0)).tolist() == [1]
    assert np.flatnonzero(warp(logits, top_k=1)).tolist() == [1]
    assert np.flatnonzero(warp(logits, top_k=3)).tolist() == [1, 2, 3]
    assert np.flatnonzero(warp(logits, top_k=4)).tolist() == [1, 2, 3, 4]


@given(LOGITS, st.integers(1, 250))
def test_exactly_top_k_tokens_are_kept(logits: np.ndarray, top_k: int):
    kept = np.flatnonzero(warp(logits, top_k=top_k))
    assert len(kept) == min(top_k, np.count_nonzero(np.isfinite(logits)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("temperature", [1e-3, 1e-8, 1e-30, 1e-300, 5e-324])
def test_tiny_temperatures_are_the_argmax_without_nan(dtype: type, temperature: float):
    logits = np.array([-1e4, 3.0, 1e4, -np.inf, 9999.0], dtype)
    assert warp(logits, temperature=temperature).tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_not_finite_are_refused_and_named(bad: float, temperature: float):
    logits = np.array([0.0, 1.0, bad, -np.inf])
    with pytest.raises(ValueError, match=rf"{bad} \(token 2\)"):
        warp(logits, temperature=temperature)
    law = law_of(SamplingParams(temperature=temperature))
    with pytest.raises(ValueError, match="position 7"):
        law(logits, [0] * 7)


def test_a_row_without_mass_is_refused():
    with pytest.raises(ValueError, match="must be finite"):
        warp(np.full(3, -np.inf))


@given(LOGITS, TEMPERATURE, TOP_K, TOP_P, MIN_P)
def test_the_law_of_the_params_is_the_warp_of_their_numbers(logits, temperature, top_k, top_p, min_p):
    numbers = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    assert np.array_equal(law_of(SamplingParams(**numbers))(logits, []), warp(logits, **numbers))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -2),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("max_tokens", 0),
        ("stop", ("a", "")),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_parameters_that_mean_nothing_are_refused_by_name(field: str, value: object):
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{field: value})


# -- identities, over exact numbers

PAIR = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6).filter(
    lambda pair: all(sum(row) > 0 for row in zip(*pair, strict=True))
)


@given(PAIR)
def test_accepted_and_replaced_mass_add_up_to_the_target(pair: list[tuple[int, int]]):
    p, q = (fractions_row(*row) for row in zip(*pair, strict=True))
    accepted = [q[x] * acceptance(p[x], q[x]) if q[x] > 0 else Fraction(0) for x in range(len(p))]
    assert (np.array(accepted) + residual(p, q) == p).all()
    assert sum(accepted) == overlap(p, q)
    distance = sum(abs(p - q)) / 2
    assert total(residual(p, q)) == distance == 1 - overlap(p, q) == total(residual(q, p))


@given(PAIR, st.integers(0, 8))
def test_a_weighted_residual_is_what_is_still_owed(pair: list[tuple[int, int]], eighths: int):
    p, q = (fractions_row(*row) for row in zip(*pair, strict=True))
    weight = Fraction(eighths, 8)
    rest = residual(p, q, weight)
    assert all(rest[x] == max(weight * p[x] - q[x], 0) for x in range(len(p)))
    assert total(rest) == weight - overlap(weight * p, q)


@given(PAIR)
def test_a_chosen_tokens_residual_is_that_of_the_point_mass(pair: list[tuple[int, int]]):
    p = fractions_row(*(weight for weight, _ in pair))
    for x in range(len(p)):
        point = np.array([Fraction(token == x) for token in range(len(p))], dtype=object)
        rest = without(p, x)
        assert (rest == residual(p, point)).all()
        assert total(rest) == 1 - p[x]
    assert sum(p) == 1, "p itself is left alone"


def test_one_hot_is_the_law_that_always_gives_its_index():
    assert one_hot(2, 4).tolist() == [0, 0, 1, 0]


def test_fit_cuts_or_pads_with_tokens_that_have_no_mass():
    row = np.array([0.25, 0.75])
    assert fit(row, 2) is row
    assert fit(row, 4).tolist() == [0.25, 0.75, 0, 0]
    assert fit(row, 1).tolist() == [0.25]
