"""Where `measure_rows` promises it, a row has the same bits alone and in company; and it notices where that fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from draftproof.base import Feed
from draftproof.models import bits
from draftproof.models.bits import LAW_PLAN, RowPlan, measure_rows
from draftproof.models.hf import HFTarget
from draftproof.models.products import quicken
from tests.tiny import ARCHITECTURES, build, tokens_of

# beside the tiny architectures: heads of shapes whose attention kernels have been seen to change with the row count
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ARCHITECTURES},
    "unshared heads of 96": ("llama", {"head_dim": 96, "num_key_value_heads": 4}),
    "pairs of heads of 256": ("gemma3", {"head_dim": 256}),
    "softcapped pairs of heads of 256": ("gemma2", {"head_dim": 256}),
    "eight heads to one": ("llama", {"head_dim": 16, "num_attention_heads": 16}),
    "wide": ("llama", {"head_dim": 16, "intermediate_size": 8960}),
}
THREADS = {"wide": 3}  # a vector loop split in three has ragged ends


@pytest.fixture
def threads() -> Iterator[None]:
    known = torch.get_num_threads()
    yield
    torch.set_num_threads(known)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", SHAPES)
def test_rows_keep_their_bits_in_company(name, dtype, threads):
    torch.set_num_threads(THREADS.get(name, 1))
    base, changed = SHAPES[name]
    model = build(ARCHITECTURES[base], getattr(torch, dtype), **changed)
    quicken(model)
    plan = measure_rows(model)
    if not plan.exact:
        pytest.skip(f"on this machine {dtype} rows of this model change with the shape of their forward")
    target = HFTarget(model, plan)
    texts = [tokens_of(50, 24), tokens_of(51, 17), tokens_of(52, 522)]  # the last crosses a step of the KV buffer
    tails = [24, 17, 22]
    alone = [_alone(target, text, tail) for text, tail in zip(texts, tails, strict=True)]
    for one, other in zip(alone, _together(target, texts, tails), strict=True):
        np.testing.assert_array_equal(one, other)
    target.provide(len(texts), 1024)  # neighbours, who share calls of attention if the plan says so
    for one, other in zip(alone, _together(target, texts, tails), strict=True):
        np.testing.assert_array_equal(one, other)


def _alone(target: HFTarget, text: Sequence[int], tail: int) -> np.ndarray:
    """Logits of the last `tail` tokens, fed one at a time."""
    session = target.open(len(text))
    _feed(target, [Feed(session, tuple(text[:-tail]), want=())])
    return np.concatenate([_feed(target, [Feed(session, (token,))])[0] for token in text[-tail:]])


def _together(target: HFTarget, texts: Sequence[Sequence[int]], tails: Sequence[int]) -> list[np.ndarray]:
    """The same, from forwards that mix all texts in odd chunks and any order."""
    rng = np.random.default_rng(0)
    sessions = [target.open(len(text)) for text in texts]
    starts = [len(text) - tail for text, tail in zip(texts, tails, strict=True)]
    for session, text, start in zip(sessions, texts, starts, strict=True):
        for at in range(0, start, 101):
            _feed(target, [Feed(session, tuple(text[at : min(at + 101, start)]), want=())])
    rows: list[list[np.ndarray]] = [[] for _ in texts]
    while unfinished := [i for i in range(len(texts)) if target.cached(sessions[i]) < len(texts[i])]:
        owners = rng.permutation(unfinished)
        chunks = [texts[i][target.cached(sessions[i]) :][: rng.integers(1, 12)] for i in owners]
        pairs = zip(owners, chunks, strict=True)
        feeds = [Feed(sessions[i], tuple(chunk), want=tuple(range(len(chunk)))) for i, chunk in pairs]
        for i, logits in zip(owners, _feed(target, feeds), strict=True):
            rows[i].append(logits)
    return [np.concatenate(found) for found in rows]


def _feed(target: HFTarget, feeds: list[Feed]) -> list[np.ndarray]:
    scores = target.forward(feeds)
    target.commit([feed.session for feed in feeds], [()] * len(feeds))
    return [score.logits for score in scores]


# --- the measurement notices --------------------------------------------------------------------------------------


class _OtherKernel(nn.Linear):
    """Another order of additions above `limit` rows."""

    limit = 4

    def forward(self, x):
        return super().forward(x) * (1 if x.shape[-2] <= self.limit else 1 + 2**-20)


class _OtherHalves(nn.Linear):
    """The same sums, above `limit` rows of two halves: rounded to bfloat16, most results do not show it."""

    limit = 4

    def forward(self, x):
        terms = (x.float()[..., None, :] * self.weight.float()).unflatten(-1, (2, -1))
        halves = x.shape[-2] > self.limit
        return (terms.sum(-1).sum(-1) if halves else terms.flatten(-2).cumsum(-1)[..., -1]).to(x.dtype)


class _RaggedEnd(nn.SiLU):
    """A vector loop, but for rows beyond `limit` and for what is not contiguous."""

    limit = 4

    def forward(self, x):
        vector = x.is_contiguous() and (x.ndim == 1 or x.shape[-2] <= self.limit)
        return super().forward(x) * (1 if vector else 1 + 2**-20)


CHANGING = {
    "product": (_OtherKernel, lambda: _OtherKernel(16, 16)),
    "order of additions": (_OtherHalves, lambda: _OtherHalves(64, 16, bias=False).bfloat16()),
    "activation": (_RaggedEnd, lambda: nn.Sequential(nn.Linear(16, 16), _RaggedEnd())),
}


@pytest.mark.parametrize("name", CHANGING)
def test_what_changes_with_the_row_count_ends_the_plan(name, monkeypatch):
    kind, make = CHANGING[name]
    torch.manual_seed(0)
    model = make()
    assert measure_rows(model) == LAW_PLAN
    monkeypatch.setattr(kind, "limit", 12)
    plan = measure_rows(model)
    assert plan == LAW_PLAN or plan.most <= 12


def test_attention_that_changes_is_padded_further_or_given_up(monkeypatch):
    model, attend = build(ARCHITECTURES["llama"]), bits.attend
    groups = 2

    def few_rows_differ(q, *others):
        return attend(q, *others) * (1 + 2**-20 * (q.shape[2] < 16 * groups))

    def every_count_differs(q, *others):
        return attend(q, *others) * (1 + 2**-20 * q.shape[2])

    monkeypatch.setattr(bits, "attend", few_rows_differ)
    plan = measure_rows(model)
    assert not plan.exact or plan.query_multiple >= 16
    monkeypatch.setattr(bits, "attend", every_count_differs)
    plan = measure_rows(model)
    assert not plan.exact or plan.query_multiple == plan.query_most, "a single count agrees with itself"


def test_attention_that_changes_beside_other_requests_is_not_shared(monkeypatch):
    model, attend = build(ARCHITECTURES["llama"]), bits.attend
    monkeypatch.setattr(bits, "attend", lambda q, *other: attend(q, *other) * (1 + 2**-20 * (len(q) > 5)))
    plan = measure_rows(model)
    assert not plan.exact or not plan.together


def test_attention_that_changes_in_a_longer_buffer_gets_the_longer_step(monkeypatch):
    """Sums that go over a ragged end of 64 keys differ, over one of 256 they do not."""
    shape, like, attend = (4, 2, 16, 16, None), torch.zeros(1), bits.attend
    monkeypatch.setattr(bits, "attend", lambda q, k, *other: attend(q, k, *other) * (1 + 2**-20 * (k.shape[2] % 256)))
    assert bits._kv_step(shape, 4, like) in (256, 512)
    monkeypatch.setattr(bits, "attend", lambda q, k, *other: attend(q, k, *other) * (1 + 2**-20 * (k.shape[2] % 512)))
    assert bits._kv_step(shape, 4, like) == 512


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "mistral", "gpt2"])
def test_a_whole_prompt_has_the_bits_of_its_pieces(name, dtype):
    model = build(ARCHITECTURES[name], getattr(torch, dtype))
    quicken(model)
    plan = measure_rows(model)
    if not plan.exact:
        pytest.skip(f"on this machine {dtype} rows of this model change with the shape of their forward")
    target, text = HFTarget(model, plan), tokens_of(53, 700)
    want = tuple(range(0, len(text), 7))
    [whole] = _feed(target, [Feed(target.open(10), text, want=want)])
    session, rows = target.open(len(text)), []
    for at in range(0, len(text), 35):
        rows += _feed(target, [Feed(session, text[at : at + 35], want=(0, 7, 14, 21, 28))])
    np.testing.assert_array_equal(whole, np.concatenate(rows))


def test_experts_promise_nothing():
    """They see as many rows as tokens happen to be sent to them."""
    config = {"num_local_experts": 4, "num_experts_per_tok": 2, "hidden_size": 32, "intermediate_size": 32}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("mixtral", **config))
    assert measure_rows(model) == LAW_PLAN


def test_weights_that_are_zero_or_repeat_can_be_measured():
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16))
    nn.init.zeros_(model[0].weight)
    nn.init.ones_(model[1].weight)
    measure_rows(model)


def test_padding():
    plan = RowPlan(multiple=4, most=12, exact=True, query_multiple=16)
    assert [plan.padded(n) for n in (1, 4, 5, 12)] == [4, 4, 8, 12]
    assert [plan.padded_queries(n) for n in (1, 12, 16, 17)] == [16, 16, 16, 32]
    wide = RowPlan(multiple=4, most=512, exact=True, query_multiple=4)
    assert [wide.padded(n) for n in (5, 64, 65, 300, 512)] == [8, 64, 128, 320, 512]
    assert [wide.padded_queries(n) for n in (5, 32, 33, 100, 128)] == [8, 32, 64, 128, 128]
    assert [LAW_PLAN.padded(n) for n in (1, 7)] == [LAW_PLAN.padded_queries(n) for n in (1, 7)] == [1, 7]


@pytest.mark.parametrize("heads", [(12, 2, 72), (6, 2, 72), (14, 2, 80), (14, 2, 48)])
def test_heads_of_odd_sizes_attend_in_whole_blocks(heads):
    """Their rows change with smaller counts, too seldom for a few samples to show it on every machine."""
    many, few, size = heads
    assert bits._query_rows((many, few, size, size, None), torch.zeros(1, dtype=torch.bfloat16))[0] in (0, 32)
