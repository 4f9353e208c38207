"""The kernels decide what the rules decide, on the same chance, from raw logits. The long run is
benchmarks/kernel_cases.py."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numba import get_num_threads, njit, set_num_threads

from benchmarks import draws, kernel_cases
from draftproof import kernels
from draftproof.base import Draft, Key, Kind, Purpose, Scores, token_key
from draftproof.chance import PhiloxChance
from draftproof.kernels import KERNELS, batch, cached, decide, draw, plain, scan, seed_words, settings_of
from draftproof.kernels.lazy import KernelChance, RawLaw, fused, raw_law_of
from draftproof.kernels.numeric import key_to_logit, light_rest, mass, power, skim, top
from draftproof.loop import LazyRows
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of

pytestmark = pytest.mark.usefixtures("unchecked")

SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=30),
    SamplingParams(top_p=0.8),
    SamplingParams(temperature=1.5, top_k=900, top_p=0.95, min_p=0.01),
]


@pytest.mark.parametrize("rule", KERNELS)
def test_decisions_are_those_of_the_rule(rule: str):
    rng, drafted, accepted = np.random.default_rng(1), 0, 0
    for i in range(400):
        case = kernel_cases.random_case(rng, rule)
        verdicts = decide(rule, kernel_cases.batch_of([case], half=kernel_cases.exact_in_half(case)))
        assert kernel_cases.differences(case, verdicts, 0) == [], i
        drafted, accepted = drafted + len(case.draft), accepted + int(verdicts.accepted[0])
    assert 0.2 * drafted < accepted < 0.8 * drafted, "both answers were met"


@pytest.mark.parametrize("rule", KERNELS)
def test_the_plain_form_decides_the_same(rule: str):
    rng = np.random.default_rng(2)
    for i in range(120):
        case = kernel_cases.random_case(rng, rule)
        verdicts = plain.decide(rule, kernel_cases.batch_of([case], half=kernel_cases.exact_in_half(case)))
        assert kernel_cases.differences(case, verdicts, 0) == [], i


@pytest.mark.parametrize("rule", KERNELS)
def test_a_ragged_batch_is_its_requests_one_by_one(rule: str):
    """With more than enough logits for one thread a request."""
    rng = np.random.default_rng(3)
    cases = [kernel_cases.random_case(rng, rule, size=3000) for _ in range(24)]
    together = decide(rule, kernel_cases.batch_of(cases))
    assert together.batch.logits.size >= kernels._MANY
    for b, case in enumerate(cases):
        assert kernel_cases.differences(case, together, b) == []
        alone = decide(rule, kernel_cases.batch_of([case]))
        assert together.found[b].tolist() == alone.found[0].tolist()


@pytest.mark.parametrize("rule", KERNELS)
def test_threads_that_share_a_row_change_no_decision(rule: str):
    rng = np.random.default_rng(4)
    for _ in range(20):
        case = kernel_cases.random_case(rng, rule, size=3000)
        whole, split = kernel_cases.batch_of([case]), kernel_cases.batch_of([case])
        known, found = decide(rule, whole), split.answer(rule)
        words = kernels.words_of(split.logits)
        q_words = words if split.q_logits is None else kernels.words_of(split.q_logits)
        given = (KERNELS.index(rule), words, split.layout, split.nodes, q_words, split.settings, split.seeds)
        batch.in_turn(*given, True, found.path, found.asked, found.found)
        assert found.found.tolist() == known.found.tolist()
        np.testing.assert_allclose(found.asked, known.asked, rtol=1e-6)


@pytest.mark.parametrize("form", [decide, plain.decide])
@pytest.mark.parametrize("rule", KERNELS)
def test_a_row_that_is_not_needed_is_never_read(rule: str, form):
    """What lies behind the first refusal may be anything at all."""
    rng, met = np.random.default_rng(5), 0
    while met < 20:
        case = kernel_cases.random_case(rng, rule, size=50)
        if case.params.temperature < 0.3:
            continue
        accepted = int(decide(rule, kernel_cases.batch_of([case])).accepted[0])
        beyond = len(case.draft) if rule == "block" else accepted + 1
        if rule == "coupled" and case.draft.parents != tuple(range(-1, len(case.draft) - 1)):
            continue
        if accepted == len(case.draft):
            continue
        met += 1
        logits, q_logits = case.logits.copy(), case.q_logits.copy()
        logits[beyond:] = np.nan
        q_logits[max(beyond, 0 if rule == "coupled" else accepted + 1) :] = np.nan
        spoilt = form(rule, kernel_cases.batch_of([replace(case, logits=logits, q_logits=q_logits)]))
        assert kernel_cases.differences(case, spoilt, 0) == []


@pytest.mark.parametrize("form", [decide, plain.decide])
@pytest.mark.parametrize("rule", KERNELS)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_a_row_that_holds_no_law_is_named(rule: str, form, bad: float, params: SamplingParams):
    rng = np.random.default_rng(6)
    case = replace(kernel_cases.random_case(rng, rule, size=700), params=params)
    while not len(case.draft):
        case = replace(kernel_cases.random_case(rng, rule, size=700), params=params)
    first = case.logits.copy()
    first[0, 137] = bad
    assert form(rule, kernel_cases.batch_of([replace(case, logits=first)])).found[0, 3] == 0
    nothing = case.logits.copy()
    nothing[0] = -np.inf
    assert form(rule, kernel_cases.batch_of([replace(case, logits=nothing)])).found[0, 3] == 0


def test_a_sampled_token_without_mass_is_named():
    rng = np.random.default_rng(7)
    for rule in ("token", "block"):
        case = kernel_cases.random_case(rng, rule, size=50)
        while not len(case.draft) or case.draft.row_of[0] < 0 or case.params.temperature == 0:
            case = kernel_cases.random_case(rng, rule, size=50)
        q_logits = case.q_logits.copy()
        q_logits[0, case.draft.tokens[0]] = -np.inf
        for form in (decide, plain.decide):
            bad = form(rule, kernel_cases.batch_of([replace(case, q_logits=q_logits)])).found[0, 3]
            assert bad == len(case.draft) + 1, "rows of q count on from those of p"


def test_a_rule_without_a_kernel_is_refused():
    case = kernel_cases.random_case(np.random.default_rng(8), "coupled")
    with pytest.raises(ValueError, match=r"rule: 'traversal' has no kernel; those that have are coupled, token, block"):
        decide("traversal", kernel_cases.batch_of([case]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"logits": np.zeros(50, np.float32)}, r"logits: shape \(50,\); it must be \(rows, V\)"),
        ({"layout": np.array([[0, 0, 3]])}, "layout: it leads out of 3 rows of logits or 2 nodes"),
        ({"layout": np.array([[1, 0, 2]])}, "layout: it leads out of"),
        ({"layout": np.array([[0, -1, 2]])}, "layout: it leads out of"),
        ({"nodes": np.array([[0, -1, 0], [50, 0, 0]])}, r"nodes: a token is not in 0 \.\. 49"),
        ({"nodes": np.array([[0, -1, 0], [1, 1, 0]])}, "parents must be -1 or an earlier node"),
        ({"nodes": np.array([[0, -2, 0], [1, 0, 0]])}, "parents must be -1 or an earlier node"),
        ({"nodes": np.array([[0, -1, 1], [1, 0, 0]])}, "q_logits: a node was sampled"),
        ({"q_logits": np.zeros((2, 49), np.float32)}, r"q_logits: shape \(2, 49\); it must be \(2, 50\)"),
        ({"seeds": np.zeros((2, 4), np.uint64)}, "settings, seeds: 1 and 2 requests, layout has 1"),
    ],
)
def test_a_batch_that_leads_out_of_its_arrays_is_refused(changed: dict, message: str):
    fit = {
        "logits": np.zeros((3, 50), np.float32),
        "layout": np.array([[0, 0, 2]]),
        "nodes": np.array([[0, -1, 0], [1, 0, 0]]),
        "settings": np.array([settings_of(SamplingParams())]),
        "seeds": np.array([seed_words(0, 0, 0)], np.uint64),
    }
    assert len(decide("token", kernels.Batch(**fit))) == 1
    with pytest.raises(ValueError, match=message):
        kernels.Batch(**{**fit, **changed})


def test_no_requests_give_no_verdicts():
    empty = kernels.Batch(
        np.zeros((0, 5), np.float32),
        np.zeros((0, 3), np.int64),
        np.zeros((0, 3), np.int64),
        np.zeros((0, 4)),
        np.zeros((0, 4), np.uint64),
    )
    for form in (decide, plain.decide):
        assert len(form("block", empty)) == 0


@pytest.mark.parametrize("word", [0x7FC00000, 0xFFC00000, 0xFFFFFFFF, 0x7F800001, 0xFFC00001])
@pytest.mark.parametrize("place", [3, 700])
def test_every_nan_is_seen(word: int, place: int):
    row = np.zeros(1000, np.float32)
    row.view(np.uint32)[place] = word
    for params in SETTINGS:
        with pytest.raises(ValueError, match=rf"position 2: .* nan \(token {place}\)"):
            KernelChance(0).pick(raw_law_of(params)(row, (1, 2)), token_key(2))


@pytest.mark.parametrize("temperature", [1e-42, 1e-30, 0.05, 0.35, 0.55, 0.7, 0.8, 1.1, 1.25, 1e30])
@pytest.mark.parametrize("masked", [slice(0, 300), slice(700, 701), slice(256, 900)])
def test_masked_tokens_take_no_part_at_any_temperature(temperature: float, masked: slice):
    rng = np.random.default_rng(12)
    row = rng.normal(size=1000).astype(np.float32)
    row[950] = 3
    row[masked] = -np.inf
    params = SamplingParams(temperature=temperature)
    law = law_of(params)(row, ())
    for position in range(20):
        raw = raw_law_of(params)(row, ())
        (drawn,) = KernelChance(1).pick(raw, token_key(position))
        assert (drawn,) == PhiloxChance(1).pick(law, token_key(position))
        assert raw[drawn] == pytest.approx(law[drawn], rel=1e-6)


def test_the_residual_of_likely_tokens_that_the_draft_could_not_say_is_whole():
    """Minus infinity in q, in groups that weigh little, at a temperature whose rounding bends the other way."""
    logits, q_logits = np.full((3, 512), -30, np.float32), np.full((2, 512), -30, np.float32)
    logits[:, :256], logits[:, 300], q_logits[:, :128] = -4.2, 0, -4.2
    q_logits[:, 300], q_logits[:, 128:256] = 0, -np.inf
    params, met = SamplingParams(temperature=0.7), 0
    law = law_of(params)
    rng = np.random.default_rng(13)
    for seed in range(200):
        rows = tuple(law(row, ()) for row in q_logits)
        tokens = [int(rng.choice(512, p=row)) for row in rows]
        draft = Draft.chain(5, tokens, Kind.SAMPLED, rows=rows)
        case = kernel_cases.Case("block", draft, logits, q_logits, params, seed)
        verdicts = decide("block", kernel_cases.batch_of([case]))
        assert kernel_cases.differences(case, verdicts, 0) == []
        met += int(verdicts.accepted[0]) < 2
    assert met > 5


def test_a_draft_of_other_settings_is_verified_with_its_own_law():
    params, other = SamplingParams(), SamplingParams(temperature=3.0)
    row = np.random.default_rng(14).normal(size=(3, 300)).astype(np.float32) * 3
    for seed in range(50):
        chance = KernelChance(seed)
        laws = [raw_law_of(other)(row[i], ()) for i in range(2)]
        tokens = [chance.pick(laws[i], Key(7, i, Purpose.DRAFT, i))[0] for i in range(2)]
        draft = Draft.chain(7, tokens, Kind.SAMPLED, rows=laws)
        found = fused("token", params)(draft, LazyRows(draft, Scores(row), raw_law_of(params), ()), chance)
        dense = Draft.chain(7, tokens, Kind.SAMPLED, rows=[np.asarray(law) for law in laws])
        known = RULES["token"](dense, [law_of(params)(each, ()) for each in row], PhiloxChance(seed))
        assert (found.path, found.tokens) == (known.path, known.tokens)


def test_logits_of_two_precisions_and_read_only_ones_are_taken():
    rng = np.random.default_rng(15)
    for _ in range(20):
        case = kernel_cases.random_case(rng, "token", size=50)
        if not kernel_cases.exact_in_half(case) or not len(case.draft):
            continue
        batch = kernel_cases.batch_of([case])
        assert batch.q_logits is not None
        half = replace(batch, logits=torch.from_numpy(batch.logits).bfloat16())
        frozen = batch.logits.copy()
        frozen.flags.writeable = False
        for changed in (half, replace(batch, logits=frozen)):
            assert kernel_cases.differences(case, decide("token", changed), 0) == []


def test_a_key_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="does not fit the counter"):
        KernelChance(0).pick(raw_law_of(SamplingParams())(np.zeros(9, np.float32), ()), Key(2**32, 0, Purpose.TOKEN))


def test_logits_may_come_as_views_of_torch_tensors():
    rng = np.random.default_rng(9)
    case = kernel_cases.random_case(rng, "coupled", size=50)
    wide = torch.zeros(len(case.logits), 80)
    wide[:, 7:57] = torch.from_numpy(case.logits)
    for logits in (wide[:, 7:57], wide.numpy()[:, 7:57], wide[:, 7:57].double()):
        verdicts = decide("coupled", replace(kernel_cases.batch_of([case]), logits=logits))
        assert kernel_cases.differences(case, verdicts, 0) == []


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("size", [3, 256, 5000])
def test_draws_are_those_of_chance(params: SamplingParams, size: int):
    """The first k of a race, for drafters: the same ids in the same order, with their probabilities."""
    rng = np.random.default_rng(size)
    for root in range(25):
        row = (3 * rng.normal(size=size)).astype(np.float32)
        law = law_of(params)(row, ())
        key_, k = Key(root, 2, Purpose.DRAFT, 1), min(int(np.count_nonzero(law)), 1 + root % 12)
        drawn = draw(row, settings_of(params), seed_words(root, 5, 77), 2, 1, Purpose.DRAFT, k, True)
        assert drawn is not None
        assert tuple(drawn[0]) == PhiloxChance(77, 5).pick(law, key_, k)
        np.testing.assert_allclose(drawn[1], law[drawn[0]], rtol=1e-6)


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_a_raw_law_is_a_row(params: SamplingParams):
    row = np.random.default_rng(10).normal(size=400).astype(np.float32)
    raw, law = raw_law_of(params)(row, (1, 2)), law_of(params)(row, (1, 2))
    assert isinstance(raw, RawLaw)
    assert len(raw) == 400
    np.testing.assert_array_equal(np.asarray(raw), law)
    np.testing.assert_array_equal(np.maximum(0.5 * law - raw, 0), np.maximum(0.5 * law - law, 0))
    chance = KernelChance(3)
    (drawn,) = chance.pick(raw, token_key(9))
    assert (drawn,) == PhiloxChance(3).pick(law, token_key(9)) == chance.pick(law, token_key(9))
    assert raw[drawn] == pytest.approx(law[drawn], rel=1e-6)
    assert chance.uniform(token_key(1)) == PhiloxChance(3).uniform(token_key(1))


def test_a_raw_law_says_what_is_wrong_with_it():
    row = np.full(10, np.nan, np.float32)
    with pytest.raises(ValueError, match=r"position 3: logits: the row's largest entry is nan \(token 0\)"):
        KernelChance(0).pick(raw_law_of(SamplingParams())(row, (1, 2, 3)), token_key(3))
    few = raw_law_of(SamplingParams(top_k=2))(np.zeros(10, np.float32), ())
    with pytest.raises(ValueError, match="cannot pick 3"):
        KernelChance(0).pick(few, token_key(3), 3)


@pytest.mark.parametrize("rule", KERNELS)
def test_what_kernels_draw_has_the_exact_law(rule: str):
    """Seeded; the long run is benchmarks/draws.py --kernels."""
    result = draws.run(rule, 6_000, kernels=True)
    assert result.degrees > 50
    assert result.statistic <= result.limit
    assert result.accepted > 0.5


def test_a_kernel_that_draws_with_the_wrong_law_is_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(draws, "settings_of", lambda params: (1.6, 0, 1.0, -np.inf))
    result = draws.run("token", 6_000, kernels=True)
    assert result.statistic > result.limit


def test_keys_have_the_order_of_numbers():
    special = [0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0, 3e38, -3e38, np.inf, -np.inf]
    numbers = np.array([*special, *np.random.default_rng(0).normal(size=500)], np.float32)
    words = numbers.view(np.int32)
    keys = [top(words, i, i + 1)[0] for i in range(len(words))]
    np.testing.assert_array_equal(np.less.outer(keys, keys), np.less.outer(numbers, numbers))
    assert keys[0] == keys[1], "0 and -0 are equal"
    for number, k in zip(numbers[2:], keys[2:], strict=True):
        assert key_to_logit(k) == number


def test_powers_are_exact_to_rounding():
    power_of = njit(lambda x: power(x))
    for x in [0.0, -1.0, -1021.0, *(-30 * np.random.default_rng(0).random(2000))]:
        assert power_of(x) == pytest.approx(2.0**x, rel=1e-15)
    assert power_of(-1023.0) == power_of(-np.inf) == 0.0
    assert power_of(0.0) == 1.0


def test_sums_are_as_exact_as_they_say():
    rng = np.random.default_rng(0)
    row, other = (2 * rng.normal(size=(2, 256))).astype(np.float32)
    peak, scale = 20.0, 1.4426950408889634 / 0.9
    weights, others = (2.0 ** ((x.astype(float) - peak) * scale) for x in (row, other))
    words, q_words = row.view(np.int32), other.view(np.int32)
    assert mass(words, 0, 256, peak, scale) == pytest.approx(weights.sum(), rel=1e-14)
    assert skim(words, 0, 256, peak, scale)[2] == pytest.approx(weights.sum(), rel=1e-6)
    rest = light_rest(0, 256, words, (peak, scale, 0.5), q_words, (peak, scale, 0.25))
    assert rest == pytest.approx(np.maximum(0.5 * weights - 0.25 * others, 0).sum(), rel=1e-6)


def test_the_mass_of_a_row_is_exact_to_a_hundred_millionth():
    """Unlikely tokens are added up in float32."""
    rng = np.random.default_rng(1)
    for sharpness in (0.5, 2.0, 4.0):
        row = (sharpness * rng.normal(size=50_000)).astype(np.float32)
        tops = np.empty(-(-len(row) // 256), np.int64)
        _, found, _ = scan.piece(row.view(np.int32), 0, len(tops), tops, 1.4426950408889634)
        known = np.exp(row.astype(float) - row.max()).sum()
        assert found == pytest.approx(known, rel=3e-8)


def test_what_is_compiled_is_forgotten_when_any_of_its_files_changes(tmp_path, monkeypatch: pytest.MonkeyPatch):
    for name in cached._SOURCES:
        (tmp_path / "kernels" / name).resolve().parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "kernels" / name).resolve().write_text(f"# {name}")
    monkeypatch.setattr(cached, "__file__", str(tmp_path / "kernels" / "cached.py"))
    stamps = {cached._stamp.__wrapped__()}
    for name in cached._SOURCES:
        (tmp_path / "kernels" / name).resolve().write_text("# changed")
        stamps.add(cached._stamp.__wrapped__())
    assert len(stamps) == len(cached._SOURCES) + 1


def test_every_file_of_compiled_functions_counts_for_the_cache():
    folder = Path(cached.__file__).parent
    compiled = {
        path.name for path in folder.glob("*.py") if "@njit" in path.read_text() or "@kernel" in path.read_text()
    }
    assert compiled | {"../chance.py"} == set(cached._SOURCES)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch: pytest.MonkeyPatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(cached, "_folder", lambda: blocked / "kernels")
    assert not cached.known()
    twice = cached.kernel()(lambda x: 2 * x)
    assert twice(3) == 6
    assert not list(tmp_path.rglob("*.nb?")), "nor written anywhere else, where a change would go unseen"
    assert type(twice._cache).__name__ == "NullCache"


def test_threads_are_as_many_as_asked_for():
    before = get_num_threads()
    try:
        kernels.use_threads(1)
        assert get_num_threads() == 1
        kernels.use_threads(10_000)
        assert get_num_threads() >= 1
    finally:
        set_num_threads(before)


def test_the_kernels_are_of_rules():
    assert set(KERNELS) <= set(RULES)


def test_starting_the_kernels_leaves_torch_its_threads():
    """Both threads' pools are OpenMP's: numba's start made torch use every core, whatever it had been told."""
    code = (
        "import torch; torch.set_num_threads(1)\n"
        "from draftproof.kernels import warm; warm()\n"
        "print(torch.get_num_threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split()[-1] == "1"
