"""`verify` and `verify_batch`: what they take, what they refuse, and that they do what the rules do."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from draftproof import verify, verify_batch
from draftproof.audit.exact import EnumeratedChance, law_of_result
from draftproof.base import Draft, Key, Kind, Purpose, Verdict, token_key
from draftproof.chance import PhiloxChance
from draftproof.rules import RULES

P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.3, 0.1])
NAN, INF = float("nan"), float("inf")


def test_it_is_importable_without_torch():
    code = "import draftproof, sys; draftproof.verify([0], [[1.0]]); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize("rule", RULES)
def test_it_is_the_rule_on_the_same_chance(rule: str):
    rng = np.random.default_rng(3)
    k = 1 if rule == "greedy_multi" else 3
    p, q = rng.dirichlet(np.ones(6), k + 1), rng.dirichlet(np.ones(6), k)
    for seed in range(30):
        tokens = [int(rng.choice(6, p=row)) for row in q]
        draft = Draft.chain(0, tokens, Kind.SAMPLED, rows=[row / row.sum() for row in q])
        expected = RULES[rule](draft, [row / row.sum() for row in p], PhiloxChance(seed))
        assert verify(tokens, p, q, rule=rule, rng=PhiloxChance(seed)) == expected


@pytest.mark.usefixtures("unchecked")
def test_without_a_bonus_row_the_law_of_what_is_emitted_is_the_same_but_for_the_bonus():
    """Exactly: the drafted token and the coin are enumerated, the rows are the ones given."""
    p, q = np.array([Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)]), np.array([Fraction(1, 4)] * 2 + [Fraction(1, 2)])

    def first(rows: int):
        def run(chance: EnumeratedChance):
            (x,) = chance.pick(q, Key(0, 0, Purpose.DRAFT))
            verdict = verify([x], np.array([p] * rows, dtype=float), np.array([q], dtype=float), rng=chance)
            assert verdict.last == ("replacement" if not verdict.accepted else "bonus" if rows == 2 else None)
            return verdict.tokens[0], len(verdict.tokens)

        return law_of_result(run)

    law, with_bonus = first(1), first(2)
    assert {x: sum(w for (y, _), w in law.items() if y == x) for x in range(3)} == dict(enumerate(p))
    assert {n for _, n in law} == {1}
    assert {n for _, n in with_bonus} == {1, 2}


def test_an_empty_draft_draws_from_the_target_or_says_nothing():
    assert verify([], [[0.0, 1.0]]).tokens == (1,)
    assert verify([], [[0.0, 1.0]], q=[]).last == "target"
    nothing = verify([], np.zeros((0, 4)))
    assert (nothing.tokens, nothing.last, nothing.path) == ((), None, ())


def test_a_seed_repeats_itself_and_a_generator_moves_on():
    rng = np.random.default_rng(5)
    uniform = np.full((1, 1000), 1 / 1000)
    assert verify([], uniform, rng=5) == verify([], uniform, rng=5)
    first, second = verify([], uniform, rng=rng), verify([], uniform, rng=rng)
    assert first == verify([], uniform, rng=5)
    assert first != second
    assert verify([], uniform) != verify([], uniform), "no rng: fresh entropy"


@pytest.mark.usefixtures("unchecked")
def test_a_chance_used_for_a_whole_text_needs_its_positions():
    """Two tokens of one `PhiloxChance`: independent at different positions, the same noise at one."""
    pairs = {(0, 1): set(), (0, 0): set()}
    for seed in range(60):
        chance = PhiloxChance(seed)
        for places, seen in pairs.items():
            seen.add(tuple(verify([], [P], rule="coupled", rng=chance, position=at).tokens[0] for at in places))
    assert len(pairs[0, 1]) == 9
    assert pairs[0, 0] == {(0, 0), (1, 1), (2, 2)}
    for wrong in (-1, 0.5, True, 2**31):
        with pytest.raises(ValueError, match=f"position: {wrong} is not allowed; it must be a whole number in 0"):
            verify([], [P], position=wrong)


def test_a_coupled_draft_shares_the_chance_it_is_given():
    accepted = 0
    for seed in range(50):
        chance = PhiloxChance(seed)
        (x,) = chance.pick(P, token_key(0))
        accepted += verify([x], [P, P], rule="coupled", rng=chance).accepted
    assert accepted == 50


def test_trees_and_mixtures():
    """A point mass in q is a chosen token: greedy multi-draft takes it beside its one sampled token."""
    q = np.array([[1.0, 0, 0], [0, 0.75, 0.25]])
    kinds = {rule: set() for rule in ("recursive", "traversal", "greedy_multi", "coupled")}
    for rule, seen in kinds.items():
        for seed in range(40):
            verdict = verify([0, 1], [P, P, P], q, parents=[-1, -1], rule=rule, rng=seed)
            seen.add(verdict.path)
        assert seen >= {(0,), (1,)}
    with pytest.raises(ValueError, match=r"rule: the token rule takes a chain.*rules that do: coupled, recursive"):
        verify([0, 1], [P, P, P], q, parents=[-1, -1])


def test_logits_are_laws_in_log_space():
    logits = np.array([[1000.0, 1000.0 + np.log(3), -np.inf], [0.0, -800.0, -1e30]])
    verdict = verify([1], logits, np.array([[-5e4, 0.0, -np.inf]]), logits=True, rng=1)
    assert verdict.tests[0].p == pytest.approx(0.75, rel=1e-14)
    equal = verify([0], [[0.5, 0.5], [1.0, 0.0]], [[0.25, 0.75]], rng=3)
    assert (
        verify([0], np.log([[0.5, 0.5], [1.0, 1e-300]]), np.log([[0.25, 0.75]]), logits=True, rng=3).path == equal.path
    )


def test_other_arrays_and_precisions_are_taken_and_left_alone():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    p, q = (rng.standard_normal((n, 300)).astype(np.float32) for n in (3, 2))
    tensors = torch.tensor(p).softmax(-1), torch.tensor(q).softmax(-1)
    before = [tensor.clone() for tensor in tensors]
    verdict = verify(torch.tensor([5, 7]), *tensors, rng=4)
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
    assert verdict == verify([5, 7], tensors[0].numpy(), tensors[1].numpy(), rng=4)
    half = [tensor.half() for tensor in tensors]
    assert verify([5, 7], *half, rng=4).tests[0].p == pytest.approx(float(half[0][0, 5]), rel=1e-3)
    brief = torch.tensor(p[:, :50]).softmax(-1).bfloat16().requires_grad_()  # rows add up to 1 within 2⁻⁸ or so
    assert verify([5, 7], brief, brief[:2], rng=4).last == "bonus"


def test_equal_rows_are_accepted_for_certain_in_any_precision():
    rng = np.random.default_rng(1)
    for dtype in (np.float16, np.float32, np.float64):
        p = rng.dirichlet(np.ones(50), 4).astype(dtype)
        for seed in range(20):
            tokens = [int(rng.choice(50, p=row.astype(float) / row.sum(dtype=float))) for row in p[:3]]
            verdict = verify(tokens, p, p[:3], rng=seed)
            assert verdict.last == "bonus"
            assert {test.prob for test in verdict.tests} == {1.0}


WRONG = {
    "p one-dimensional": (([0], P), {}, r"p: shape \(3,\); it must be \(rows, V\)"),
    "p too short": (([0, 1, 2], [P]), {}, "p: 1 rows for 3 draft tokens; it must have 4 rows, or 3 for no bonus"),
    "p too long": (([0], [P, P, P]), {}, "p: 3 rows for 1 draft tokens; it must have 2 rows, or 1"),
    "a tree without its last row": (([0, 1], [P, P]), {"parents": [-1, -1]}, "p: 2 rows for 2 .* it must have 3 rows$"),
    "p negative": (([0], [[0.7, 0.5, -0.2], P]), {}, "p: row 0 has -0.2 at token 2; it must be >= 0"),
    "p not a law": (([0], [P, P * 1.01]), {}, r"p: row 1 adds up to 1.01; it must be 1 within 0.004 \(logits=True"),
    "p NaN": (([0], [P, [0.5, NAN, 0.5]]), {}, "p: row 1 has nan at token 1; it must be finite"),
    "p infinite": (([0], [[INF, 0, 0], P]), {}, "p: row 0 has inf at token 0; it must be finite"),
    "q of another width": (([0], [P, P], [[0.5, 0.5]]), {}, r"q: shape \(1, 2\); it must be \(1, 3\)"),
    "q of another length": (([0], [P, P], [Q, Q]), {}, r"q: shape \(2, 3\); it must be \(1, 3\)"),
    "q not a law": (([0], [P, P], [Q * 0.5]), {}, "q: row 0 adds up to 0.5"),
    "q cannot give it": (([0], [P, P], [[0, 0.5, 0.5]]), {}, "q: row 0 gives draft token 0 probability 0; it cannot"),
    "token too large": (([3], [P, P]), {}, "draft_tokens: token 3 at 0 is out of range; .* 3 tokens"),
    "token negative": (([0, -1], [P, P, P]), {}, "draft_tokens: token -1 at 1 is out of range"),
    "tokens are floats": (([0.5], [P, P]), {}, "draft_tokens: float64 is not allowed; token ids are whole numbers"),
    "tokens are bools": (([True], [P, P]), {}, "draft_tokens: bool is not allowed"),
    "tokens in two dimensions": (([[0]], [P, P]), {}, r"draft_tokens: shape \(1, 1\); .* one-dimensional"),
    "no numbers": (([0], [["a", "b", "c"]] * 2), {}, "p: <U1 is not allowed; it must be an array of real numbers"),
    "ragged rows": (([0], [P, P[:2]]), {}, "p: it cannot be read as a NumPy array"),
    "no vocabulary": (([], np.zeros((1, 0))), {}, r"p: shape \(1, 0\)"),
    "logits NaN": (([0], [P, [0, NAN, 0]]), {"logits": True}, "p: row 1 has nan at token 1; logits must be finite"),
    "logits +inf": (([0], [P, [0, INF, 0]]), {"logits": True}, "p: row 1 has inf at token 1; logits must be finite"),
    "logits all -inf": (([0], [P, [-INF] * 3]), {"logits": True}, "p: row 1 has no finite logit"),
    "a logit that underflows": (
        ([0], [P, P], [[-800, 0, 0]]),
        {"logits": True},
        "0 .or a logit too far below",
    ),
    "unknown rule": (([0], [P, P]), {"rule": "tokne"}, "rule: 'tokne' is unknown; known are coupled, token, block"),
    "no rule": (([0], [P, P]), {"rule": 3}, "rule: 3 is not allowed"),
    "parents too few": (([0, 1], [P] * 3), {"parents": [-1]}, r"parents: \[-1\] is not allowed; it must be 2 whole"),
    "parent after child": (
        ([0, 1], [P] * 3),
        {"parents": [1, -1]},
        "parents: node 0 has parent 1; it must",
    ),
    "rng": (([0], [P, P]), {"rng": "seven"}, "rng: 'seven' is not allowed; it must be a NumPy Generator or a seed"),
    "no seed": (([0], [P, P]), {"rng": True}, "rng: True is not allowed; .* no seeds"),
    "a class for a chance": (([0], [P, P]), {"rng": PhiloxChance}, "rng: .* is not allowed"),
    "a class for a rule": (([0], [P, P]), {"rule": int}, "rule: .* is not allowed; it must be a name or a rule"),
    "a rule that returns nothing": (
        ([0], [P, P]),
        {"rule": lambda d, r, c: None},
        "rule: it returned None; .* Verdict",
    ),
    "logits no bool": (([0], [P, P]), {"logits": "no"}, "logits: 'no' is not allowed; it must be True or False"),
    "allow_lossy no bool": (([0], [P, P]), {"allow_lossy": "no"}, "allow_lossy: 'no' is not allowed"),
    "complex": (([0], [P + 1j, P]), {}, "p: complex128 is not allowed; it must be an array of real numbers"),
    "masked": (([0], np.ma.masked_equal([P, P], 0.3)), {}, "p: it cannot be read as a NumPy array: it is masked"),
    "masked rows": (([0], [np.ma.masked_equal(P, 0.3), P]), {}, r"p: .* it is masked"),
    "strings in disguise": (([0], np.array([["0.5", "0.3", "0.2"]], object)), {}, "p: object is not allowed"),
    "beyond any float": (([0], [[10**400, 0, 0], P]), {}, "p: object is not allowed; .* real numbers"),
    "too many tokens": (
        (np.zeros(66_000, int), np.ones((66_001, 1))),
        {},
        "draft_tokens: 66000 tokens; it must be at most",
    ),
    "no array of laws": (([0], 0.5), {}, r"p: shape \(\); it must be \(rows, V\)"),
    "negative seed": (([0], [P, P]), {"rng": -1}, "rng: -1 is not allowed"),
}


@pytest.mark.usefixtures("unchecked")  # as in production, where types are the caller's affair
@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_named_with_its_row_and_value(name: str):
    args, options, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        verify(*args, **options)


@pytest.mark.usefixtures("unchecked")
def test_a_batch_names_the_request():
    p = np.stack([[P, P], [P, P]])
    with pytest.raises(ValueError, match=r"draft_tokens\[1\]: token 9"):
        verify_batch([[0], [9]], p)
    with pytest.raises(ValueError, match=r"p\[1\]: row 1 adds up to 2"):
        verify_batch([[0], [0]], p * np.array([1, 1, 1, 2]).reshape(2, 2, 1))
    with pytest.raises(ValueError, match="p: 2 requests, but draft_tokens has 3"):
        verify_batch([[0]] * 3, p)
    for wrong in (2, -1, 0.5):
        with pytest.raises(ValueError, match=r"lengths: request 1 has .*it must be a whole number in 0 \.\. 1"):
            verify_batch([[0], [0]], p, lengths=[1, wrong])


def test_what_lies_beyond_a_length_is_not_looked_at():
    p = np.stack([[P, P, [NAN] * 3], [P, P, P]])
    q = np.stack([[Q, [NAN] * 3], [Q, Q]])
    one, two = verify_batch([[0, -7], [0, 1]], p, q, lengths=[1, 2], rng=2)
    assert max(test.node for test in one.tests) == 0
    assert len(one.tokens) == one.accepted + 1
    assert len(two.tokens) == two.accepted + 1


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (([[0]], None), {}, "p: None is not allowed; it must hold one entry for each request"),
        ((None, [[P, P]]), {}, "draft_tokens: None is not allowed"),
        ((np.array(5), [[P, P]]), {}, "draft_tokens: .* is not allowed"),
        (({1: [0]}, [[P, P]]), {}, "draft_tokens: .* is not allowed"),
        (([0], [[P, P]]), {"lengths": [1]}, r"draft_tokens\[0\]: shape \(\)"),
        (([[0, 1]], [[P, P, P]]), {"lengths": [1], "parents": [-1]}, r"parents\[0\]: shape \(\)"),
        (([[0, 1]], [[P, P, P]]), {"lengths": [1], "parents": [[-1, 5, 9, 9]]}, r"parents\[0\]: shape \(4,\)"),
    ],
)
def test_a_batch_that_is_none_is_named(args, options, message):
    with pytest.raises(ValueError, match=message):
        verify_batch(*args, **options)


def test_a_list_of_tensors_is_an_array():
    torch = pytest.importorskip("torch")
    row = torch.tensor([0.5, 0.25, 0.25], dtype=torch.bfloat16, requires_grad=True)
    assert verify([0], [row, row], [row], rng=1).last == "bonus"


@pytest.mark.filterwarnings("error")
def test_underflow_is_no_error_whatever_numpy_is_told():
    with np.errstate(all="raise"):
        assert verify([0], [[0.0, -800.0]], logits=True).accepted == 1


def test_with_lengths_everything_is_padded_alike():
    """Else a row count would decide silently whether there is a bonus."""
    with pytest.raises(ValueError, match=r"p\[0\]: shape \(2, 3\); with lengths it must be padded to 3 or 4 rows"):
        verify_batch([[0, 0, 0]] * 2, [[P, P], [P, P, P, P]], lengths=[1, 3])
    with pytest.raises(ValueError, match=r"q\[0\]: shape \(1, 3\); with lengths it must be padded to 2 rows"):
        verify_batch([[0, 0]], [[P, P, P]], [[Q]], lengths=[1])


@pytest.mark.usefixtures("unchecked")
def test_a_rule_without_a_final_token_keeps_all_that_it_accepted():
    def plain(draft, rows, chance):
        return Verdict((0, 1), (0, 1), None)

    assert verify([0, 1], [P, P], rule=plain).tokens == (0, 1)


@pytest.mark.filterwarnings("error")
def test_huge_numbers_make_no_noise():
    assert verify([0], [[1e308, -1e308], [0, 0]], logits=True).accepted == 1
    with pytest.raises(ValueError, match="p: row 0 adds up to inf"):
        verify([0], [[1e308, 1e308], [0.5, 0.5]])


def test_lengths_cut_trees_too_and_may_be_any_integers():
    torch = pytest.importorskip("torch")
    p = np.tile(P, (2, 4, 1))
    trees = [[-1, -1, 0], [-1, 0, 0]]
    lengths = torch.tensor([2, 3])
    cut = verify_batch([[0, 1, 2]] * 2, p, lengths=lengths, parents=trees, rule="recursive", rng=3)
    assert cut[0] == verify([0, 1], p[0, :3], parents=[-1, -1], rule="recursive", rng=3)
    with pytest.raises(ValueError, match="lengths: 1 is not allowed; it must hold one entry for each request"):
        verify_batch([[0]], [[P, P]], lengths=1)
    with pytest.raises(ValueError, match="draft_tokens: 5 is not allowed; it must hold one entry"):
        verify_batch(5, [[P, P]])
    with pytest.raises(ValueError, match=r"rng: .* is not allowed"):
        verify_batch([[0]], [[P, P]], rng=PhiloxChance(0))


def test_a_batch_of_lists_may_be_ragged():
    verdicts = verify_batch([[0], [0, 1], []], [[P, P], [P, P, P], [P]], [[Q], [Q, Q], np.zeros((0, 3))], rng=0)
    assert [len(verdict.tokens) - verdict.accepted for verdict in verdicts] == [1, 1, 1]
    assert verify_batch([], []) == []


def test_a_batch_without_bonus_rows_has_no_bonus():
    p = np.stack([[P, P], [P, P]])
    for verdict in verify_batch([[0, 1], [0, 1]], p, p, lengths=[1, 2], rng=0):
        assert verdict.last is None
        assert len(verdict.tokens) == verdict.accepted
