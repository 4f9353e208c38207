"""Cases of the list that are about many requests: T12, T25, T33, T40; and numbers that are none in one of them."""

# ruff: noqa: N802  (the T is part of a case's name)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from draftproof.base import Kind, Step
from draftproof.chance import PhiloxChance
from draftproof.commit import Output
from draftproof.control import Fixed
from draftproof.drafters import ModelDrafter, NGramDrafter
from draftproof.engine import Engine, EngineConfig
from draftproof.llm import LLM
from draftproof.memory import KVMemory
from draftproof.models.bits import LAW_PLAN, RowPlan
from draftproof.models.hf import HFTarget
from draftproof.models.table import TableTarget, hashed_logits
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of
from draftproof.seats import Request
from tests.folders import answers, make_folder, said
from tests.tiny import ARCHITECTURES, Stock, build, tokens_of
from tests.toys import chi_square, chi_square_limit, kind_for

pytestmark = pytest.mark.usefixtures("one_thread")

PADDED = RowPlan(multiple=4, most=64, kv_step=64, exact=True, query_multiple=4)
TINY = ARCHITECTURES["llama"], {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 32, "head_dim": 8}


def steps_by_name(engine: Engine) -> dict[str, list[Step]]:
    steps: dict[str, list[Step]] = {}
    while engine.busy:
        for event in engine.step():
            assert event.error is None, event.error
            steps.setdefault(event.request.name, []).append(replace(event.step, seconds={}))
    return steps


def greedy(stock: Stock, prompt: Sequence[int], count: int) -> list[int]:
    """The plainest loop over the stock model, without a cache."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(stock.run(text)[-1].argmax()))
    return text[len(prompt) :]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_T12_greedy_is_the_argmax_of_the_stock_model_for_200_prompts(dtype, capsys):
    architecture, size = TINY
    model = build(architecture, dtype, **size)
    stock, target = Stock(model), HFTarget(model, PADDED)
    target.provide(8, 128)
    engine = Engine(target, KVMemory(1 << 24), EngineConfig(max_num_seqs=8))
    ngram, draft = (
        NGramDrafter(3, 1),
        ModelDrafter(HFTarget(build(architecture, dtype, **size), LAW_PLAN), Kind.COUPLED),
    )
    params, law = SamplingParams(temperature=0, max_tokens=12), law_of(SamplingParams(temperature=0))
    prompts = [tokens_of(i, 1 + i % 23) for i in range(200)]
    outputs = [Output(params, 12) for _ in prompts]
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        drafter = draft if i % 3 == 0 else ngram
        engine.add(Request(str(i), prompt, output, drafter, Fixed(1 + i % 8), RULES["coupled"], law, PhiloxChance(0)))
    steps = steps_by_name(engine)
    ties = []
    for prompt, output in zip(prompts, outputs, strict=True):
        known = greedy(stock, prompt, 12)
        if output.token_ids != known:
            at = next(i for i, (a, b) in enumerate(zip(output.token_ids, known, strict=True)) if a != b)
            top = np.sort(stock.run([*prompt, *known[:at]])[-1])[-2:]
            ties.append(float(top[1] - top[0]))
    with capsys.disabled():
        for gap in ties:
            print(f"\nT12, {dtype}: a tie within rounding, top-2 gap {gap:.1e}")
    assert all(gap < 1e-4 for gap in ties)
    assert dtype is torch.float32 or not ties
    everything = [step for found in steps.values() for step in found]
    assert max(len(step.tokens) for step in everything) >= 3
    assert any(step.verdict.last == "replacement" for step in everything)


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder, other = (make_folder(tmp_path_factory.mktemp(str(seed)), seed=seed) for seed in (0, 1))
    plain = LLM(str(folder), dtype="float32", max_num_seqs=8, check=True)
    return {
        "none": plain,
        "ngram": plain.speculating({"method": "ngram", "num_speculative_tokens": 5}),
        "model": plain.speculating({"method": "draft_model", "model": str(folder), "num_speculative_tokens": 3}),
        "other model": plain.speculating({"method": "draft_model", "model": str(other), "verify": "block"}),
    }


def rounds(done) -> tuple:
    stats = done.stats
    return done.token_ids, stats.rounds, stats.accepted_per_position, stats.drafted_per_position


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["none", "ngram", "model", "other model"])
def test_T25_the_same_request_twice_with_prefix_reuse(llm, name):
    runner, prompt = llm[name], "the same beginning, and then some more of it"
    if name != "other model" and runner.claim != "bit-exact":
        pytest.skip("on this machine a row's bits depend on the rows beside it")
    runner.engine.clear()
    for params in (SamplingParams(temperature=0.0, max_tokens=30), SamplingParams(seed=4, max_tokens=30)):
        known = rounds(runner.start(prompt, params).result())
        runner.engine.clear()
        before = runner.engine.counts.reused
        assert rounds(said(runner, prompt, params)) == known
        assert runner.engine.counts.reused == before
        assert rounds(said(runner, prompt, params)) == known
        assert runner.engine.counts.reused >= before + len(runner.encode(prompt, raw=True)) - 1
        assert rounds(said(runner, prompt, params)) == known


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["none", "ngram", "model"])
def test_T33_seeded_rows_among_others_are_their_solo_runs(llm, name):
    runner = llm[name]
    if runner.claim != "bit-exact":
        pytest.skip("on this machine a row's bits depend on the rows beside it")
    temperatures = [0.1, 1.0]
    params = [
        SamplingParams(temperature=temperatures[i // 2 % 2], seed=i // 4 if i % 2 == 0 else None, max_tokens=30)
        for i in range(8)
    ]
    prompts = ["seed", "of", "a", "row", "seed", "of", "a", "row"]
    done = answers(runner, prompts, params)
    for prompt, each, found in zip(prompts, params, done, strict=True):
        solo = runner.start(prompt, replace(each, seed=found.seed)).result()
        assert rounds(found) == rounds(solo)
        assert each.seed in (None, found.seed)
    one, two = answers(runner, ["x"] * 2, [SamplingParams(seed=seed, max_tokens=30) for seed in (1, 2)])
    assert one.token_ids != two.token_ids
    one, two = answers(runner, ["x"] * 2, [SamplingParams(temperature=0, seed=seed, max_tokens=30) for seed in (1, 2)])
    assert one.token_ids == two.token_ids


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rule", ["coupled", "token", "block"])  # on chains the others are token and block
def test_T40_rows_of_other_lengths_depths_and_settings_keep_their_own_law(rule: str):
    """Six prompts a batch: greedy rows are their solo runs; two tokens of each sampled row follow its own law. Seeded;
    a right law fails with probability below 1e-9 for each of the four."""
    table, near = hashed_logits(5, order=2), hashed_logits(5, order=2, salt=1)
    settings = [
        SamplingParams(temperature=0, max_tokens=2),
        SamplingParams(max_tokens=2),
        SamplingParams(temperature=0.5, top_k=2, max_tokens=2),
        SamplingParams(temperature=0, max_tokens=2),
        SamplingParams(temperature=1.5, top_k=3, max_tokens=2),
        SamplingParams(temperature=0.8, top_p=0.8, max_tokens=2),
    ]
    prompts = [tuple(tokens_of(i, 1 + 3 * i)[j] % 5 for j in range(1 + 3 * i)) for i in range(6)]
    drafter = ModelDrafter(TableTarget(near, 5), kind_for(rule))
    counts: list[dict] = [{} for _ in settings]
    engine = Engine(TableTarget(table, 5), KVMemory(1 << 20), EngineConfig(max_num_batched_tokens=16))
    bonus = rejected = 0
    for seed in range(300):
        outputs = [Output(params, 2) for params in settings]
        for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            law, chance = law_of(settings[i]), PhiloxChance(seed, i)
            engine.add(Request(str(i), prompt, output, drafter, Fixed(1 + i % 3), RULES[rule], law, chance))
        for step in (step for found in steps_by_name(engine).values() for step in found):
            rejected += step.verdict.last == "replacement"
            bonus += step.bonus
        for found, output in zip(counts, outputs, strict=True):
            found[tuple(output.token_ids)] = found.get(tuple(output.token_ids), 0) + 1
    for params, prompt, found in zip(settings, prompts, counts, strict=True):
        law = law_of(params)
        known = {
            (a, b): p * q
            for a, p in enumerate(law(table(prompt), prompt).tolist())
            for b, q in enumerate(law(table((*prompt, a)), (*prompt, a)).tolist())
            if p * q > 0
        }
        assert set(found) <= set(known)
        if params.greedy:
            assert len(found) == 1
        else:
            often = [pair for pair, mass in known.items() if 300 * mass >= 5]
            seen, masses = [found.get(pair, 0) for pair in often], [known[pair] for pair in often]
            if sum(masses) < 1 - 1e-9:  # rare pairs together
                seen, masses = [*seen, 300 - sum(seen)], [*masses, 1 - sum(masses)]
            assert chi_square(seen, masses) < chi_square_limit(len(seen) - 1)
    assert min(bonus, rejected) > 60


@pytest.mark.usefixtures("unchecked")  # a check of shapes would read the row first
def test_numbers_that_are_none_in_the_rows_of_one_request_end_it_alone(tmp_path):
    """The embedding of one token is NaN: its request ends with an error that names it, its mates do not notice."""
    speculation = {"method": "ngram", "num_speculative_tokens": 5}
    llm = LLM(str(make_folder(tmp_path)), dtype="float32", speculative_config=speculation, check=True)
    bad = llm.encode("~", raw=True)[0]
    with torch.no_grad():
        llm.loaded.target.model.get_input_embeddings().weight[bad] = float("nan")
    prompts = ["one of them", "another", "a ~ poisoned one", "the last"]
    params = [SamplingParams(seed=i, max_tokens=15) for i in range(4)]
    done = answers(llm, prompts, params)
    assert [found.finish_reason for found in done] == ["length", "length", "error", "length"]
    assert done[2].error.startswith("request #2: position ")
    assert "largest entry is nan" in done[2].error
    for i in (0, 1, 3):
        assert rounds(done[i]) == rounds(llm.start(prompts[i], params[i]).result())
    with pytest.raises(ValueError, match=r"^position .* largest entry is nan"):
        llm.generate("a ~ poisoned one", params[0])
    assert llm.engine.running == 0
