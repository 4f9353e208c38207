"""What every rule must do on any draft it takes, in floating point and on the production noise. The list is RULES."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof import verify, verify_batch
from draftproof.base import Draft, Kind, Purpose, Row, token_key
from draftproof.chance import PhiloxChance
from draftproof.rules import NEEDS, RULES, rule_named, why_not
from draftproof.trees import children, require_path

MASSES = st.sampled_from([0.0, 0.0, 5e-324, 1e-300, 1e-9, 0.25, 0.25, 0.5, 1.0, 3.0])


@st.composite
def rows(draw, count: int, size: int) -> list[Row]:
    out = []
    for _ in range(count):
        weights = np.array(draw(st.lists(MASSES, min_size=size, max_size=size).filter(lambda w: sum(w) > 1e-200)))
        out.append(weights / weights.sum())
    return out


@st.composite
def parts(draw, rule: str):
    """Of a draft that the rule takes, drawn as it says, and of the target's rows, with zeros, ties and equal laws."""
    size, n = draw(st.integers(1, 5)), draw(st.integers(0, 5))
    needs = NEEDS[rule]
    if needs.shape == "chain":
        parents = list(range(-1, n - 1))
    elif needs.shape == "level":
        parents = [-1] * n
    else:
        parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    laws = draw(rows(n, size))
    kinds: list[Kind] = []
    for _ in range(n):
        full = needs.sampled is not None and kinds.count(Kind.SAMPLED) >= needs.sampled
        kinds.append(Kind.CHOSEN if full or draw(st.booleans()) else Kind.SAMPLED)
    tokens = []
    for i in range(n):
        if kinds[i] is Kind.SAMPLED:
            tokens.append(draw(st.sampled_from(np.flatnonzero(laws[i] > 0).tolist())))
        else:
            tokens.append(draw(st.integers(0, size - 1)))
    target = draw(rows(n + 1, size))
    if n and draw(st.booleans()):
        target[parents[-1] + 1] = laws[-1].copy()
    for row in (*laws, *target):
        row.flags.writeable = False
    return tuple(tokens), tuple(parents), tuple(kinds), tuple(laws), target


def drawn_round(data: st.DataObject, rule: str) -> tuple[Draft, list[Row]]:
    tokens, parents, kinds, laws, target = data.draw(parts(rule))
    assert why_not(rule, parents, kinds) is None
    n = len(tokens)
    return Draft(7, tokens, parents, kinds, ("",) * n, laws, tuple(range(n))), target


class Noted(Sequence):
    """Rows that remember which of them were read."""

    def __init__(self, known: Sequence[Row]) -> None:
        self._known, self.read = known, set()

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, index: int) -> Row:
        self.read.add(index)
        return self._known[index]


@pytest.mark.parametrize("rule", RULES)
@given(data=st.data(), seed=st.integers(0, 2**64 - 1))
def test_a_verdict_is_a_path_and_one_token_that_the_target_could_say(rule: str, data: st.DataObject, seed: int):
    draft, target = drawn_round(data, rule)
    verdict = RULES[rule](draft, target, PhiloxChance(seed))
    require_path(draft.parents, verdict.path)
    assert verdict.accepted == len(verdict.path)
    assert verdict.tokens[:-1] == tuple(draft.tokens[node] for node in verdict.path)
    nodes = [-1, *verdict.path]
    for node, token in zip(nodes, verdict.tokens, strict=True):
        assert target[node + 1][token] > 0, "a token without probability was emitted"
    below = children(draft.parents, nodes[-1])
    assert verdict.last == ("replacement" if below else "bonus" if verdict.path else "target")
    assert RULES[rule](draft, target, PhiloxChance(seed)) == verdict, "the same noise, the same verdict"


@pytest.mark.parametrize("rule", RULES)
@given(data=st.data(), seed=st.integers(0, 2**64 - 1))
def test_what_is_asked_is_written_down(rule: str, data: st.DataObject, seed: int):
    """A coin can be thrown again from its record, no key is asked twice, and an accepted node was asked about."""
    draft, target = drawn_round(data, rule)
    chance = PhiloxChance(seed)
    verdict = RULES[rule](draft, target, chance)
    coins = [test for test in verdict.tests if test.prob is not None]
    assert len({test.key for test in coins}) == len(coins)
    for test in verdict.tests:
        x = draft.tokens[test.node]
        assert test.p == target[draft.parents[test.node] + 1][x]
        assert test.q == (1 if draft.law(test.node) is None else draft.law(test.node)[x])
    for test in coins:
        assert 0 <= test.prob <= 1
        assert test.accepted == chance.coin(test.prob, test.key)
    if verdict.path:
        assert any(test.node == verdict.path[-1] and test.accepted for test in verdict.tests)


class Asked(PhiloxChance):
    """Remembers every key that coin or pick was asked."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.keys: list = []

    def coin(self, prob: float, key) -> bool:
        self.keys.append(key)
        return super().coin(prob, key)

    def pick(self, weights: Row, key, k: int = 1) -> tuple[int, ...]:
        self.keys.append(key)
        return super().pick(weights, key, k)


@pytest.mark.parametrize("rule", RULES)
@given(data=st.data(), seed=st.integers(0, 2**64 - 1))
def test_no_noise_is_asked_twice(rule: str, data: st.DataObject, seed: int):
    """Neither by two coins, nor by two picks, nor by a coin and a pick, nor by the drafter; all are this round's."""
    draft, target = drawn_round(data, rule)
    chance = Asked(seed)
    verdict = RULES[rule](draft, target, chance)
    assert len(set(chance.keys)) == len(chance.keys)
    coupled_positions = [token_key(draft.root + i) for i in range(len(verdict.tokens))]
    for key in chance.keys:
        if NEEDS[rule].coupled:
            assert key in coupled_positions
        else:
            assert key.root == draft.root
            assert key.purpose in (Purpose.ACCEPT, Purpose.REPLACE)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.usefixtures("unchecked")  # a shape check would read a row itself
def test_rows_of_subtrees_that_cannot_be_reached_are_not_read(rule: str):
    """The first node of two has no probability: what follows it is never looked at."""
    deep = NEEDS[rule].shape != "level"
    parents = (-1, 0) if deep else (-1,)
    n = len(parents)
    target = Noted([np.array([0.0, 0.5, 0.5]), *[np.full(3, 1 / 3)] * n])
    draft = Draft(7, (0, 1)[:n], parents, (Kind.CHOSEN,) * n, ("",) * n, (), (-1,) * n)
    verdict = RULES[rule](draft, target, PhiloxChance(0))
    assert verdict.path == ()
    assert target.read == {0}


@pytest.mark.parametrize("rule", [rule for rule in RULES if not NEEDS[rule].coupled])
def test_what_is_not_taken_is_refused_by_name(rule: str):
    target = [np.full(3, 1 / 3)] * 4
    with pytest.raises(ValueError, match="need the coupled rule"):
        RULES[rule](Draft.chain(7, (1,), Kind.COUPLED, rows=target[:1]), target, PhiloxChance(0))
    if NEEDS[rule].shape != "tree":
        wide = Draft(7, (0, 1, 2), (-1, -1, 0), (Kind.CHOSEN,) * 3, ("",) * 3, (), (-1,) * 3)
        with pytest.raises(
            ValueError, match=f"the {rule} rule takes {'a chain' if NEEDS[rule].shape == 'chain' else 'one level'}"
        ):
            RULES[rule](wide, target, PhiloxChance(0))
    zero = Draft(7, (0,), (-1,), (Kind.SAMPLED,), ("",), (np.array([0.0, 0.5, 0.5]),), (0,))
    with pytest.raises(ValueError, match="token 0 at position 7 has probability"):
        RULES[rule](zero, target, PhiloxChance(0))


def test_greedy_multi_takes_one_sampled_token():
    laws = (np.full(3, 1 / 3),) * 2
    two = Draft(7, (0, 1), (-1, -1), (Kind.SAMPLED,) * 2, ("",) * 2, laws, (0, 1))
    with pytest.raises(ValueError, match="at most 1 sampled token, 2 of 2 are"):
        RULES["greedy_multi"](two, [laws[0]] * 3, PhiloxChance(0))


@pytest.mark.parametrize("rule", RULES)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_rows_of_a_batch_are_independent_and_inputs_stay_as_they_are(rule: str, data: st.DataObject, seed: int):
    """Ragged, any mates, any order of lengths: each answer is that of `verify` on the row alone."""
    k, size, batch = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 4)), data.draw(st.integers(1, 3))
    tree = [-1] * k if NEEDS[rule].shape == "level" else list(range(-1, k - 1))
    lengths = [data.draw(st.integers(0, k)) for _ in range(batch)]
    p = np.stack([data.draw(rows(k + 1, size)) for _ in range(batch)])
    q = np.stack([data.draw(rows(k, size)) for _ in range(batch)])
    tokens = np.array([[int(np.argmax(law)) for law in laws] for laws in q])
    if NEEDS[rule].sampled == 1:  # all but the first are chosen
        q[:, 1:] = np.eye(size)[tokens[:, 1:]]
    before = [array.copy() for array in (tokens, p, q)]
    trees = [tree[:n] for n in lengths]
    together = verify_batch(tokens, p, q, lengths=lengths, parents=trees, rule=rule, rng=seed)
    rng = np.random.default_rng(seed)
    alone = [
        verify(tokens[b, :n], p[b, : n + 1], q[b, :n], parents=trees[b], rule=rule, rng=rng)
        for b, n in enumerate(lengths)
    ]
    assert together == alone
    for array, was in zip((tokens, p, q), before, strict=True):
        assert np.array_equal(array, was)


def test_every_rule_has_declared_needs():
    assert set(NEEDS) >= set(RULES)
    for name in NEEDS:
        assert callable(rule_named(name, allow_lossy=True))
