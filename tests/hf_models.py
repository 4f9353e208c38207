"""Tiny models and prompts for the Hugging Face face, and the stock loop that its ids are compared with."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import Tokenizer, decoders, models
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from tests.tiny import ARCHITECTURES, VOCAB, Stock, _softmax_as_given, build, randomise, tokens_of

PAD = 0
NEAR = 1e-4
LENGTHS = (3, 12, 1, 7, 9)


@cache
def model_of(name: str = "llama", dtype: torch.dtype = torch.float64, seed: int = 0) -> PreTrainedModel:
    """seed 0 is the target, others are strangers to it."""
    model = randomise(build(ARCHITECTURES[name]), seed).to(dtype)
    model.generation_config.pad_token_id = PAD
    return model


@cache
def noisy(dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """Often right about what the target says."""
    model = copy.deepcopy(model_of(dtype=dtype))
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=generator).to(dtype)
    return model


SELF, NOISY, WRONG = model_of, noisy, lambda: model_of(seed=5)
DRAFTERS: dict[str, Callable[[], dict[str, Any]]] = {
    "default": dict,
    "none": lambda: {"num_assistant_tokens": 0},
    "lookup": lambda: {"prompt_lookup_num_tokens": 3},
    "self": lambda: {"assistant_model": SELF()},
    "noisy": lambda: {"assistant_model": NOISY(), "num_assistant_tokens": 8},
    "wrong": lambda: {"assistant_model": WRONG(), "num_assistant_tokens": 2},
}


def batch(lengths: Sequence[int] = LENGTHS, seed: int = 20) -> dict[str, torch.Tensor]:
    """Prompts, padded on the left."""
    longest = max(lengths)
    ids, mask = torch.full((len(lengths), longest), PAD), torch.zeros(len(lengths), longest, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, longest - length :] = torch.tensor(tokens_of(seed + row, length))
        mask[row, longest - length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def one(length: int = 12, seed: int = 21) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor([tokens_of(seed, length)])}


def plainly(model: PreTrainedModel, **options: Any) -> Any:
    """What Hugging Face's loop gives, in the model's own precision (float64 padding is NaN in it otherwise)."""
    stock = copy.deepcopy(model)
    stock.set_attn_implementation("eager")
    with mock.patch.object(F, "softmax", _softmax_as_given):
        return stock.generate(**options)


def require_same(
    model: PreTrainedModel, inputs: dict[str, torch.Tensor], got: torch.Tensor, want: torch.Tensor
) -> None:
    """Equal; or, row by row, apart first where the stock model's two best logits nearly tie."""
    if torch.equal(got, want):
        return
    apart = 0
    for row, (mine, theirs) in enumerate(zip(got.tolist(), want.tolist(), strict=True)):
        at = next((i for i, (x, y) in enumerate(zip(mine, theirs, strict=False)) if x != y), None)
        if at is None:
            continue
        apart += 1
        mask = inputs.get("attention_mask")
        first = 0 if mask is None else int((mask[row] == 0).sum())
        second, best = np.sort(Stock(model).logits(mine[first:at])[-1])[-2:]
        assert best - second < NEAR, (
            f"row {row} differs at {at}: {mine[at]}, not {theirs[at]}; the gap is {best - second}"
        )
        warnings.warn(f"row {row} differs at {at} at a tie: the gap is {best - second:.1e}", stacklevel=2)
    assert apart, f"{tuple(got.shape)} and {tuple(want.shape)} agree as far as both go"


class Recorder:
    """A streamer that writes down what it is given."""

    def __init__(self) -> None:
        self.puts: list[torch.Tensor] = []
        self.ends = 0

    def put(self, value: torch.Tensor) -> None:
        assert not self.ends
        self.puts.append(value.clone())

    def end(self) -> None:
        self.ends += 1

    @property
    def blocks(self) -> list[list[int]]:
        return [each.tolist() for each in self.puts[1:]]

    @property
    def said(self) -> list[int]:
        return [token for block in self.blocks for token in block]


def words(named: dict[int, str]) -> PreTrainedTokenizerFast:
    """A word for every id; `named` ones as they are asked for."""
    vocabulary = {named.get(i, f"<{i}>").replace(" ", "Ġ"): i for i in range(VOCAB)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=next(iter(vocabulary))))
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


class Scaled:
    """Halves its scores in place."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.mul_(0.5)
