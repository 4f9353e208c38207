"""Tiny EAGLE heads, and targets deep enough for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof.models.bits import LAW_PLAN
from draftproof.models.eagle import EagleConfig, EagleHead
from draftproof.models.eagle_files import About
from draftproof.models.hf import HFTarget
from draftproof.models.load import Loaded
from tests.folders import byte_tokenizer

VOCAB, HIDDEN, KNOWN, LAYERS = 257, 64, 40, 8
ABOUT = About(
    "tiny",
    ("LlamaForCausalLM",),
    tokens=4,
    fingerprint={"weights": "w" * 64, "config": "c" * 64, "tokenizer": "t" * 64},
    training={"steps": 7, "data": {"tokens": 1000, "sources": ["a", "b"]}},
    measured={"greedy": {"accepted": 2.5}},
)


def layer_of(**changed: Any) -> LlamaConfig:
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"},
    }
    return LlamaConfig(**(sizes | changed))


def make_head(seed: int = 0, known: int = KNOWN, *, dtype: torch.dtype = torch.bfloat16, **changed: Any) -> EagleHead:
    """Random, its norms too. `changed`: of its layer."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(VOCAB, generator=generator)[:known].sort().values
    head = EagleHead(EagleConfig(layer_of(**changed), known, (2, 3, 4)), ids)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
            weight.data = weight.data.to(dtype)
    return head


def make_target(path: Path, seed: int = 0, **changed: Any) -> Path:
    torch.manual_seed(seed)
    LlamaForCausalLM(layer_of(num_hidden_layers=LAYERS, **changed)).to(torch.bfloat16).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


def loaded(path: Path) -> Loaded:
    model = LlamaForCausalLM.from_pretrained(path).eval()
    return Loaded(path.name, path, HFTarget(model, LAW_PLAN), None, {})
