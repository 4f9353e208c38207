"""The source of randomness: Philox as published, noise that depends on its key alone, and draws with the right law."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import draftproof.chance as module
from draftproof.base import Key, Purpose, token_key
from draftproof.chance import PhiloxChance, philox4x32
from draftproof.laws import one_hot
from tests.toys import chi_square, chi_square_limit

KEY = Key(12, 3, Purpose.REPLACE, 2)
OUT_OF_REACH = Key(2**32, 0, Purpose.ACCEPT)  # no counter holds it: taking noise for it is an error
WORDS = st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4)


def philox(counter: list[int], key: tuple[int, int]) -> list[int]:
    """Philox4x32-10 from the paper, in plain integers, for one counter."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b % 2**32, (a >> 32) ^ c[3] ^ k[1], a % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def uniforms(seed: int, sample: int, key: Key, lane: int) -> tuple[float, float, int]:
    """The two uniforms of a block as the module's docstring lays it out, and the top byte of its word 2."""
    counter = [lane, key.root, key.depth << 16 | key.node, sample << 2 | key.purpose]
    words = philox(counter, (seed % 2**32, seed >> 32))
    low, high = (((words[i + 1] << 32 | words[i]) // 2**12 + 0.5) / 2**52 for i in (0, 2))
    return low, high, words[2] >> 24


def arrival(seed: int, sample: int, key: Key, token: int) -> float:
    """When one token arrives, from the docstring again."""
    u, _, member = uniforms(seed, sample, key, 2**31 | token >> 8)
    first = -math.log(u) / 256
    if token % 256 == member:
        return first
    return first - math.log(uniforms(seed, sample, key, token >> 1)[token % 2])


@pytest.mark.parametrize(
    ("counter", "key", "known"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_published_answers(counter: str, key: str, known: str):
    """The known-answer vectors that ship with Random123."""
    words = np.array([[int(word, 16)] for word in counter.split()], np.uint32)
    low, high = (int(word, 16) for word in key.split())
    assert [f"{word:08x}" for word in philox4x32(words, (low, high))[:, 0]] == known.split()


@given(st.lists(WORDS, min_size=1, max_size=4), st.tuples(*[st.integers(0, 2**32 - 1)] * 2))
def test_philox_equals_plain_integers_on_many_counters_at_once(counters: list[list[int]], key: tuple[int, int]):
    out = philox4x32(np.array(counters, np.uint32).T, key)
    assert out.T.tolist() == [philox(counter, key) for counter in counters]


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**30 - 1),
    st.builds(
        Key,
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**16 - 1),
        st.sampled_from(Purpose),
        st.integers(0, 2**16 - 1),
    ),
    st.integers(0, 300_000),
)
def test_the_counter_is_laid_out_as_documented(seed: int, sample: int, key: Key, token: int):
    chance = PhiloxChance(seed, sample)
    assert chance.uniform(key) == uniforms(seed, sample, key, 0)[0]
    known = arrival(seed, sample, key, token)
    assert chance.arrivals(key, np.array([token // 256]))[0, token % 256] == pytest.approx(known, rel=1e-12)


def test_draws_that_differ_in_one_field_have_different_noise():
    small = (0, 1, 2, 255)
    keys = [Key(root, depth, purpose, node) for root, depth, purpose, node in product(small, small, Purpose, small)]
    samples = (0, 1, 2)
    seen = {PhiloxChance(7, sample).uniform(key) for sample in samples for key in keys}
    tokens = PhiloxChance(7).arrivals(KEY, np.arange(4)).ravel()
    assert len(seen) == len(samples) * len(keys)
    assert len(set(tokens.tolist())) == 1024
    assert PhiloxChance(7).uniform(KEY) != PhiloxChance(7 + 2**32).uniform(KEY)


def test_coupled_noise_is_named_by_the_position_alone():
    assert token_key(5) == token_key(5)
    assert len({token_key(position) for position in range(100)}) == 100


@pytest.mark.parametrize(("word", "uniform"), [(0, 2.0**-53), (2**32 - 1, 1 - 2.0**-53)])
def test_the_extreme_uniforms_lie_inside(monkeypatch: pytest.MonkeyPatch, word: int, uniform: float):
    monkeypatch.setattr(module, "philox4x32", lambda counter, key: np.full(counter.shape, word, np.uint32))
    monkeypatch.setattr(module, "_philox_once", lambda counter, key: (word,) * 4)
    chance = PhiloxChance(0)
    assert chance.uniform(KEY) == uniform
    assert 0 < uniform < 1
    times = chance.arrivals(KEY, np.arange(2))
    assert np.isfinite(times).all()
    assert (times > 0).all()
    assert not chance.coin(uniform, KEY), "strict: u < prob"
    assert chance.coin(np.nextafter(uniform, 2), KEY)


def test_certain_draws_take_no_noise():
    chance = PhiloxChance(0)
    assert chance.coin(1.0, OUT_OF_REACH)
    assert chance.coin(np.nextafter(1, 2), OUT_OF_REACH)
    assert not chance.coin(0.0, OUT_OF_REACH)
    assert chance.pick(one_hot(3, 5), OUT_OF_REACH) == (3,)
    with pytest.raises(ValueError, match="does not fit the counter"):
        chance.coin(0.5, OUT_OF_REACH)


@pytest.mark.parametrize("prob", [float("nan"), -1e-300, float("-inf")])
def test_a_coin_refuses_what_is_no_probability(prob: float):
    with pytest.raises(ValueError, match="not a probability"):
        PhiloxChance(0).coin(prob, KEY)


@pytest.mark.parametrize(("seed", "sample"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**30)])
def test_seeds_that_do_not_fit_are_refused(seed: int, sample: int):
    with pytest.raises(ValueError, match=r"seed|sample"):
        PhiloxChance(seed, sample)


@pytest.mark.parametrize("field", ["root", "depth", "node"])
def test_keys_that_do_not_fit_are_refused(field: str):
    limit = {"root": 2**32, "depth": 2**16, "node": 2**16}[field]
    PhiloxChance(0).uniform(KEY._replace(**{field: limit - 1}))
    for value in (-1, limit):
        with pytest.raises(ValueError, match="does not fit the counter"):
            PhiloxChance(0).uniform(KEY._replace(**{field: value}))


WEIGHTS = hnp.arrays(np.float64, st.integers(1, 40), elements=st.sampled_from([0.0, 0.0, 1e-300, 0.1, 0.5, 1.0, 7.0]))


@given(WEIGHTS.filter(lambda w: w.any()), st.integers(0, 1000))
def test_a_pick_is_the_order_of_arrival(weights: np.ndarray, root: int):
    key = Key(root, 0, Purpose.DRAFT)
    time = {token: math.log(arrival(3, 0, key, token)) - math.log(w) for token, w in enumerate(weights) if w > 0}
    everything = PhiloxChance(3).pick(weights, key, len(time))
    assert everything == tuple(sorted(time, key=time.get))


@pytest.mark.parametrize("size", [257, 1000, 20_000])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 4.0, 40.0])
def test_skipping_groups_changes_no_pick(size: int, sharpness: float):
    """Against all arrival times at once."""
    rng = np.random.default_rng(size)
    for root in range(30):
        weights = np.exp(sharpness * rng.normal(size=size)) * (rng.random(size) < 0.9)
        key, chance = Key(root, 0, Purpose.DRAFT), PhiloxChance(4)
        with np.errstate(divide="ignore"):
            times = chance.arrivals(key, np.arange(-(-size // 256))).ravel()[:size] / weights
        assert chance.pick(weights, key, 20) == tuple(np.argsort(times, kind="stable")[:20].tolist())


@pytest.mark.parametrize("depth", [0, 3])
def test_one_arrival_is_the_one_of_all(depth: int):
    key, chance = Key(9, depth, Purpose.DRAFT), PhiloxChance(2**40 + 5, 7)
    whole = chance.arrivals(key, np.arange(4)).ravel()
    assert [chance.arrival(key, token) for token in range(1024)] == pytest.approx(whole.tolist(), rel=1e-12)


def test_arrivals_of_a_group_are_independent_exponentials():
    """By thirds of their law, for the first member and two others: 27 equal cells, and each member is first alike."""
    times = np.array([PhiloxChance(1).arrivals(Key(i, 0, Purpose.DRAFT), np.arange(1))[0] for i in range(DRAWS)])
    thirds = np.floor(-3 * np.expm1(-times[:, [0, 1, 137]])).astype(int)
    counts = np.bincount(thirds @ [9, 3, 1], minlength=27)
    assert chi_square(counts.tolist(), [1 / 27] * 27) < chi_square_limit(26)
    firsts = np.bincount(times.argmin(1), minlength=256)
    assert chi_square(firsts.tolist(), [1 / 256] * 256) < chi_square_limit(255)


@given(WEIGHTS.filter(lambda w: w.any()), st.integers(0, 1000))
def test_a_longer_pick_begins_with_the_shorter_one(weights: np.ndarray, root: int):
    chance, key = PhiloxChance(3), Key(root, 0, Purpose.DRAFT)
    most = int(np.count_nonzero(weights))
    longest = chance.pick(weights, key, most)
    assert set(longest) == set(np.flatnonzero(weights)), "never a token without weight, never one twice"
    for k in range(1, most):
        assert chance.pick(weights, key, k) == longest[:k]


@given(WEIGHTS.filter(lambda w: w.any()), st.integers(1, 600), st.integers(0, 1000))
def test_the_noise_of_a_token_does_not_depend_on_the_vocabulary(weights: np.ndarray, padding: int, root: int):
    key, most = Key(root, 0, Purpose.DRAFT), int(np.count_nonzero(weights))
    padded = np.concatenate([weights, np.zeros(padding)])
    assert PhiloxChance(3).pick(padded, key, most) == PhiloxChance(3).pick(weights, key, most)


def test_a_pick_of_more_than_there_is_is_refused():
    with pytest.raises(ValueError, match="cannot pick 3"):
        PhiloxChance(0).pick(np.array([0.5, 0.5, 0.0]), KEY, 3)
    with pytest.raises(ValueError, match="cannot pick 1"):
        PhiloxChance(0).pick(np.zeros(4), KEY)


# Seeded, with a declared budget: each chi-square exceeds its limit with probability below 1e-9 if the law is right.
DRAWS = 8000
LAW = np.array([0.5, 0.0, 0.3, 0.15, 0.05])
AXES = {
    "root": lambda i: (PhiloxChance(1), Key(i, 0, Purpose.DRAFT)),
    "depth": lambda i: (PhiloxChance(1), Key(9, i, Purpose.DRAFT)),
    "node": lambda i: (PhiloxChance(1), Key(9, 0, Purpose.DRAFT, i)),
    "sample": lambda i: (PhiloxChance(1, i), Key(9, 0, Purpose.DRAFT)),
    "seed": lambda i: (PhiloxChance(i), Key(9, 0, Purpose.DRAFT)),
    "position": lambda i: (PhiloxChance(1), token_key(i)),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("axis", AXES)
def test_picks_have_the_law_of_their_weights_along_every_axis(axis: str):
    counts, firsts = np.zeros(5, int), np.zeros((5, 5), int)
    for i in range(DRAWS):
        chance, key = AXES[axis](i)
        two = chance.pick(LAW, key, 2)
        counts[two[0]] += 1
        firsts[two] += 1
    used = LAW > 0
    assert counts[~used].sum() == 0
    assert chi_square(counts[used], LAW[used]) < chi_square_limit(3)
    pairs = [(i, j) for i in range(5) for j in range(5) if i != j and used[i] and used[j]]
    joint = [LAW[i] * LAW[j] / (1 - LAW[i]) for i, j in pairs]
    assert chi_square([firsts[pair] for pair in pairs], joint) < chi_square_limit(len(pairs) - 1)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("prob", [0.03, 0.5, 0.9])
def test_coins_have_their_probability(prob: float):
    heads = sum(PhiloxChance(1).coin(prob, Key(i, 0, Purpose.ACCEPT)) for i in range(DRAWS))
    assert chi_square([heads, DRAWS - heads], [prob, 1 - prob]) < chi_square_limit(1)


@pytest.mark.usefixtures("unchecked")
def test_draws_of_one_round_are_independent_of_each_other():
    """Joint cells of the accept coin, the replacement and the coupled noise of the same place."""
    counts = np.zeros((2, 2, 2), int)
    fair = np.array([0.5, 0.5])
    for i in range(DRAWS):
        chance = PhiloxChance(5)
        coin = chance.coin(0.5, Key(i, 0, Purpose.ACCEPT))
        (replacement,) = chance.pick(fair, Key(i, 0, Purpose.REPLACE))
        (coupled,) = chance.pick(fair, token_key(i))
        counts[int(coin), replacement, coupled] += 1
    assert chi_square(counts.ravel().tolist(), [1 / 8] * 8) < chi_square_limit(7)


@pytest.mark.parametrize("bad", [float("nan"), -0.1])
def test_a_weight_that_is_none_is_refused(bad):
    with pytest.raises(ValueError, match="is no weight"):
        PhiloxChance(0).pick(np.array([bad, 0.5, 0.5]), Key(1, 0, Purpose.TOKEN))
