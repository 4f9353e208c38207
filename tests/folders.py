"""A tiny random model with a byte-level tokenizer, saved as a folder: what a user would name with --model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from draftproof.inputs import Prompt
from draftproof.llm import LLM
from draftproof.replies import Completion
from draftproof.sampling import SamplingParams

EOS = "<eos>"
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[a]"


def byte_tokenizer(*, reverse: bool = False) -> PreTrainedTokenizerFast:
    """One token a byte, so that every character outside ASCII is split; `reverse` permutes the ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=reverse)
    backend = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)} | {EOS: 256}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=EOS)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_folder(
    path: Path, *, seed: int = 0, reverse: bool = False, context: int = 512, generation: dict | None = None
) -> Path:
    """A 2-layer Llama of 257 tokens at `path`, with the given generation_config.json entries."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=256,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    byte_tokenizer(reverse=reverse).save_pretrained(path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 256} | (generation or {})))
    return path


def said(llm: LLM, prompt: Prompt, params: SamplingParams | None = None) -> Completion:
    """The one answer to one prompt."""
    [output] = llm.generate(prompt, params)
    [answer] = output.outputs
    return answer


def answers(llm: LLM, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams]) -> list[Completion]:
    """One to each of several."""
    return [answer for output in llm.generate(prompts, params) for answer in output.outputs]
