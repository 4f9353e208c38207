"""From a request's parameters to what the loop and the engine run: its chain of processors and its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .commit import Output
from .logprobs import note_of
from .models.looped import looped
from .processors import Change, chain_of
from .sampling import Adjust, SamplingParams
from .text import IncrementalText

_BEFORE = 6  # tokens of the prompt behind which the answer's first ones are decoded


def chain_for(
    params: SamplingParams,
    prompt: Sequence[int],
    *,
    vocab_size: int,
    tokenizer: Any,
    end_ids: frozenset[int],
    mask: Change | None = None,
) -> Adjust | None:
    """mask: of params.structured_outputs."""
    return chain_of(
        params,
        prompt_length=len(prompt),
        vocab_size=vocab_size,
        end_ids=end_ids,
        bad_words=[ids for word in params.bad_words for ids in spellings(word, tokenizer)],
        mask=mask,
        looped=[looped(processor) for processor in params.logits_processors],
    )


def output_for(
    params: SamplingParams, prompt: Sequence[int], limit: int, *, tokenizer: Any, end_ids: frozenset[int]
) -> Output:
    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def decode_one(token: int) -> str:
        return tokenizer.decode([token], clean_up_tokenization_spaces=False)

    told = [
        None if count is None else note_of(count, params.logprobs_mode, decode_one)
        for count in (params.logprobs, params.prompt_logprobs)
    ]
    return Output(
        params,
        limit,
        frozenset() if params.ignore_eos else end_ids,
        IncrementalText(decode, before=prompt[-_BEFORE:]),
        note=told[0],
        prompt_note=told[1],
    )


def spellings(word: str, tokenizer: Any) -> list[tuple[int, ...]]:
    """A word as tokens: as it is, and as it begins a word within a text. Other ways to spell it are not found."""
    found = []
    for text in (word, f" {word.lstrip()}"):
        ids = tuple(tokenizer(text, add_special_tokens=False).input_ids)
        if ids and ids not in found:
            found.append(ids)
    if not found:
        raise ValueError(f"bad_words: {word!r} makes no tokens; give some text")
    return found
