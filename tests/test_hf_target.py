"""`HFTarget` against the stock model: every row it gives is the row of the plain forward over that row's own text.

In float64 the two agree to the last bit of the float32 logits that a target gives; float32 adds its own rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, T5Config, T5ForConditionalGeneration

from draftproof.base import ROOT, Feed, Session
from draftproof.models.bits import LAW_PLAN, RowPlan, measure_rows
from draftproof.models.hf import HFTarget
from draftproof.trees import path_to
from tests.tiny import ARCHITECTURES, WINDOW, Architecture, Stock, build, randomise, tokens_of

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}  # logits reach 16; seen: 5e-7 (the rounding to float32) and 3e-5
PLANS = {"unpadded": LAW_PLAN, "padded": RowPlan(multiple=4, most=8, kv_step=16, exact=True, query_multiple=8)}

# branches of depth 1 to 5, siblings that stand apart, a path (1, 7, 8) and one (0, 2, 4, 5, 11) with gaps
TREE = (ROOT, ROOT, 0, 0, 2, 4, 1, 1, 7, ROOT, 9, 5)

# one branch longer than the window, its slots ahead of its positions
DEEP = (ROOT, ROOT, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 0)


@dataclass(frozen=True)
class Case:
    architecture: Architecture
    dtype: torch.dtype
    target: HFTarget
    stock: Stock

    def check(self, got: np.ndarray, text: Sequence[int], first: int) -> None:
        """`got` are the rows after tokens first.. of `text`."""
        want = self.stock.logits(text)[first : first + len(got)]
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE[self.dtype])

    def extend(self, session: Session, text: Sequence[int], chunks: Sequence[int]) -> None:
        """Feed what follows in `text` in `chunks`, and check every row."""
        for size in chunks:
            at = self.target.cached(session)
            [scores] = self.target.forward([Feed(session, tuple(text[at : at + size]), want=tuple(range(size)))])
            self.check(scores.logits, text, at)
            self.target.commit([session], [()])
            assert self.target.cached(session) == at + size

    def prefill(self, session: Session, text: Sequence[int]) -> None:
        [scores] = self.target.forward([Feed(session, tuple(text), want=())])
        assert scores.logits.shape == (0, self.target.vocab_size)
        self.target.commit([session], [()])

    def check_tree(self, got: np.ndarray, text: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> None:
        """Row 0 follows `text`, row i + 1 the path to node i."""
        assert len(got) == 1 + len(nodes)
        for node in range(ROOT, len(nodes)):
            path = [nodes[i] for i in path_to(parents, node)]
            self.check(got[node + 1 : node + 2], [*text, *path], len(text) + len(path) - 1)


def _case(architecture: Architecture, dtype: torch.dtype, plan: RowPlan, **changed: Any) -> Case:
    model = build(architecture, dtype, **changed)
    stock = Stock(model)
    return Case(architecture, dtype, HFTarget(model, plan), stock)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request) -> Architecture:
    return ARCHITECTURES[request.param]


@pytest.fixture(scope="module", params=["float64 unpadded", "float64 padded", "float32 padded"])
def case(request, architecture) -> Case:
    dtype, plan = request.param.split()
    return _case(architecture, getattr(torch, dtype), PLANS[plan])


# --- the tests can fail -------------------------------------------------------------------------------------------


def test_the_models_depend_on_what_could_go_wrong(architecture):
    """A token far back, a position off by one, a forgotten window or softcap: each moves the logits by far more than
    the tolerance, or these tests would prove nothing."""
    stock, text = Stock(build(architecture, torch.float64)), tokens_of(1, 40)
    last = stock.logits(text)[-1]

    def moved(other: np.ndarray) -> float:
        return float(np.abs(other[-1] - last).max())

    reach = len(text) - 2 * WINDOW  # more than a window back, within three windowed layers' reach
    assert moved(stock.logits([*text[:reach], (text[reach] + 1) % 61 + 3, *text[reach + 1 :]])) > 0.05
    gap = torch.tensor([[*range(30), *range(31, 41)]])
    assert moved(stock.run(text, position_ids=gap)) > 0.5
    for change in architecture.bites:
        assert moved(Stock(build(architecture, torch.float64, **change)).logits(text)) > 0.5, change


# --- chains -------------------------------------------------------------------------------------------------------


def test_a_text_in_pieces_of_any_size(case):
    text = tokens_of(1, 50)
    session = case.target.open(len(text))
    case.extend(session, text, [7, 5, 13, 1, 1, 1, 2, 3, 1, 11, 1, 4])


def test_default_rows_are_the_last_committed_and_every_node(case):
    text, session = tokens_of(2, 12), case.target.open(20)
    case.prefill(session, ())  # the prompt of a single token: nothing to fill
    case.prefill(session, text[:9])
    [scores] = case.target.forward([Feed(session, text[9:12])])
    case.check(scores.logits, text, 11)


def test_rollback_then_other_tokens(case):
    text = tokens_of(3, 30)
    session = case.target.open(40)
    case.extend(session, text, [20, 5])
    case.target.truncate(session, 40)  # longer than what there is: nothing to forget
    assert case.target.cached(session) == 25
    for length in (24, 17, 3, 0):
        case.target.truncate(session, length)
        other = (*text[:length], *tokens_of(length + 100, 9))
        case.extend(session, other, [2, 1, 6])


# --- trees --------------------------------------------------------------------------------------------------------


def test_every_node_of_a_tree_and_what_follows_its_accepted_path(case):
    text = list(tokens_of(4, 21))
    session = case.target.open(21)  # too small on purpose
    case.prefill(session, text[:-1])
    for seed, path, more in ((10, (1, 7, 8), 3), (11, (0, 2, 4, 5, 11), 1), (12, (9,), 1), (13, (), 1)):
        nodes, pending = tokens_of(seed, len(TREE)), tuple(text[case.target.cached(session) :])
        [scores] = case.target.forward([Feed(session, (*pending, *nodes), TREE)])
        case.check_tree(scores.logits, text, TREE, nodes)
        case.target.commit([session], [path])
        text += [nodes[i] for i in path]
        assert case.target.cached(session) == len(text)
        text += tokens_of(seed + 50, 6)
        case.extend(session, text, [1, 2, 3])
        text += tokens_of(seed + 60, more)


def test_a_tree_is_scored_again_after_a_rollback(case):
    """A drafted branch leaves nothing behind: the same slots, another tree."""
    text = tokens_of(5, 14)
    session = case.target.open(40)
    case.prefill(session, text[:-1])
    for seed, parents in ((20, TREE), (21, (ROOT, 0, 1, 2)), (22, (ROOT, ROOT, ROOT, 2, 1)), (23, DEEP)):
        nodes = tokens_of(seed, len(parents))
        [scores] = case.target.forward([Feed(session, (text[-1], *nodes), parents)])
        case.check_tree(scores.logits, text, parents, nodes)
        case.target.truncate(session, len(text) - 1)


# --- company ------------------------------------------------------------------------------------------------------


def test_requests_in_one_forward_do_not_meet(case):
    """A prompt's chunk, a tree and a single pending token, in every order."""
    prompt, drafting, plain = tokens_of(6, 40), list(tokens_of(7, 9)), list(tokens_of(8, 26))
    nodes = tokens_of(9, len(TREE))
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        sessions = [case.target.open(60) for _ in range(3)]
        case.prefill(sessions[0], prompt[:5])
        case.prefill(sessions[1], drafting[:-1])
        case.prefill(sessions[2], plain[:-1])
        feeds = [
            Feed(sessions[0], prompt[5:18], want=(0, 4, 12)),
            Feed(sessions[1], (drafting[-1], *nodes), TREE),
            Feed(sessions[2], (plain[-1],)),
        ]
        scores = dict(zip(order, case.target.forward([feeds[i] for i in order]), strict=True))
        for row, at in enumerate((5, 9, 17)):
            case.check(scores[0].logits[row : row + 1], prompt[:18], at)
        case.check_tree(scores[1].logits, drafting, TREE, nodes)
        case.check(scores[2].logits, plain, len(plain) - 1)
        paths = [(), (1, 7, 8), ()]
        case.target.commit([sessions[i] for i in order], [paths[i] for i in order])
        case.extend(sessions[0], prompt, [3, 1])
        case.extend(sessions[1], [*drafting, nodes[1], nodes[7], nodes[8], *tokens_of(90, 3)], [1, 2])
        case.extend(sessions[2], [*plain, *tokens_of(91, 3)], [2, 1])


# --- room ---------------------------------------------------------------------------------------------------------


def test_past_a_step_of_the_buffer_and_past_its_capacity(architecture):
    """A draft on both sides of slot 512, in a buffer opened too small; a window has left all of the first step behind
    at the end."""
    case = _case(architecture, torch.float64, RowPlan(multiple=4, most=64, exact=True))
    text, tree = list(tokens_of(30, 508)), TREE[:6]
    nodes = tokens_of(31, len(tree))
    session = case.target.open(10)
    case.extend(session, text[:-1], [497, 6, 4])
    [scores] = case.target.forward([Feed(session, (text[-1], *nodes), tree)])
    case.check_tree(scores.logits, text, tree, nodes)
    case.target.commit([session], [(0, 2, 4, 5)])
    text += [nodes[i] for i in (0, 2, 4, 5)]
    case.extend(session, [*text, *tokens_of(32, 30)], [1, 20, 1, 1, 7])


def test_a_prompt_in_one_piece_then_a_tree_then_its_mate(architecture):
    """Several spans of one request in a tile, of which the last is ragged; then two requests that share a tile."""
    case = _case(architecture, torch.float64, RowPlan(multiple=4, most=512, kv_step=64, exact=True, query_most=32))
    text, tree = list(tokens_of(34, 171)), TREE[:6]
    session = case.target.open(180)
    case.extend(session, text[:-1], [170])
    nodes, other = tokens_of(35, len(tree)), tokens_of(36, 100)
    mate = case.target.open(100)
    feeds = [Feed(mate, other, want=(3, 40, 99)), Feed(session, (text[-1], *nodes), tree)]
    scores = case.target.forward(feeds)
    for row, at in enumerate((3, 40, 99)):
        case.check(scores[0].logits[row : row + 1], other, at)
    case.check_tree(scores[1].logits, text, tree, nodes)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_up_to_the_last_position(architecture, plan):
    case = _case(architecture, torch.float64, plan, max_position_embeddings=48)
    assert case.target.max_context == 48
    text = tokens_of(32, 49)
    session = case.target.open(48)
    case.extend(session, text[:44], [41, 3])
    [scores] = case.target.forward([Feed(session, text[44:48], (ROOT, 0, 0))])
    case.check_tree(scores.logits, text[:45], (ROOT, 0, 0), text[45:48])
    case.target.truncate(session, 44)
    case.extend(session, text[:48], [1, 2, 1])
    with pytest.raises(ValueError, match="context: 49 tokens, the model takes 48"):
        case.target.forward([Feed(session, text[48:])])


def test_a_rotary_embedding_that_stretches_ends_the_context():
    """Beyond its first length, longrope turns every row of a forward by other angles, those of its mates included."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [3.0] * 8}
    stretched = {"original_max_position_embeddings": 32, "max_position_embeddings": 96}
    case = _case(ARCHITECTURES["phi3"], torch.float64, PLANS["padded"], rope_parameters=rope, **stretched)
    assert case.target.max_context == 32
    text = tokens_of(33, 32)
    case.extend(case.target.open(32), text, [9, 20, 1, 2])


# --- what is refused ----------------------------------------------------------------------------------------------

_MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
_WINDOWED = {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}
_LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "bloom": ("bloom", {"n_layer": 2, "n_head": 4}, "ALiBi"),
    "mpt": ("mpt", {"n_layers": 2, "n_heads": 4, "d_model": 32}, "ALiBi"),
    "falcon-alibi": ("falcon", {"alibi": True}, "ALiBi"),
    "mamba": ("mamba", {"state_size": 4}, "recurrent"),
    "jamba": ("jamba", {**_MOE, "mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False}, "recurrent"),
    "falcon-h1": (
        "falcon_h1",
        {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1},
        "recurrent",
    ),
    "qwen3-next": (
        "qwen3_next",
        {**_MOE, **_LINEAR, "head_dim": 8, "shared_expert_intermediate_size": 16},
        "recurrent",
    ),
    "recurrent-gemma": ("recurrent_gemma", {"lru_width": 32, "num_hidden_layers": 3, "head_dim": 8}, "recurrent"),
    "llama4": ("llama4_text", {**_MOE, "head_dim": 8, "intermediate_size_mlp": 32}, "chunked_attention"),
    "minimax": ("minimax", {**_MOE, "head_dim": 8}, "linear_attention"),
    "gpt-oss": ("gpt_oss", {**_MOE, "head_dim": 8}, "s_aux"),
    "gpt-neo": ("gpt_neo", {"attention_types": [[["global", "local"], 1]], "num_layers": 2}, "attention functions"),
    "bert": ("bert", {"is_decoder": False}, "later tokens"),
    "roberta": ("roberta", {"is_decoder": True}, "padding"),
    "doge": ("doge", {}, "a mask of its own"),
    "diffllama": ("diffllama", {}, "once"),
    "qwen2-moe-sliding": ("qwen2_moe", {**_MOE, **_WINDOWED, "shared_expert_intermediate_size": 16}, "window"),
    "phimoe-sliding": ("phimoe", {**_MOE, "sliding_window": 8}, "window"),
    "gemma3-bidirectional": ("gemma3_text", {"use_bidirectional_attention": True, "head_dim": 8}, "later tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused_by_name(name):
    model_type, config, why = REFUSED[name]
    base = AutoConfig.for_model(model_type)
    small = {key: value for key, value in _SMALL.items() if hasattr(base, key)}
    _check_refused(AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**small, **config})), why)


def test_an_encoder_decoder_is_refused_by_name():
    _check_refused(
        T5ForConditionalGeneration(T5Config(vocab_size=64, d_model=32, d_kv=8, num_layers=1)), "encoder-decoder"
    )


def _check_refused(model: Any, why: str) -> None:
    known = model.config._attn_implementation
    for drive in (lambda: HFTarget(model, LAW_PLAN), lambda: measure_rows(model)):
        with pytest.raises(ValueError, match=why) as raised:
            drive()
        assert str(raised.value).startswith(f"model: {type(model).__name__} (model type ")
    assert model.config._attn_implementation == known


# --- what is left behind ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dropout"),
    [
        ("gpt2", {"attn_pdrop": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5}),
        ("opt", {"dropout": 0.5, "attention_dropout": 0.5, "layerdrop": 0.9}),
        ("llama", {"attention_dropout": 0.5}),
    ],
)
def test_a_model_in_training_is_run_without_dropout(name, dropout):
    model = build(ARCHITECTURES[name], torch.float64, **dropout).train()
    stock = Stock(model)
    case = Case(ARCHITECTURES[name], torch.float64, HFTarget(model, PLANS["padded"]), stock)
    case.extend(case.target.open(30), tokens_of(40, 20), [9, 1, 10])


def test_measuring_leaves_the_model_as_it_was():
    model = randomise(build(ARCHITECTURES["gemma2"])).train()
    before = Stock(model).logits(tokens_of(41, 20))
    measure_rows(model)
    assert model.training
    assert model.config._attn_implementation == "eager"
    np.testing.assert_array_equal(Stock(model).logits(tokens_of(41, 20)), before)


@pytest.mark.parametrize("path", [(1,), (0, 2), (0, 1, 0), (-1,)])
def test_a_commit_that_is_no_path_is_refused(case, path):
    session = case.target.open(8)
    case.target.forward([Feed(session, (1, 2, 3, 4), parents=(ROOT, 0, ROOT))])
    with pytest.raises(ValueError, match="is not a path of the draft"):
        case.target.commit([session], [path])
