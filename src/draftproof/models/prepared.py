"""What Hugging Face's `generate` prepares for a decoding loop, in our terms: rows, processors, criteria."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from transformers.generation import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EosTokenCriteria,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinPLogitsWarper,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from ..processors import chain_of
from ..sampling import Adjust, SamplingParams
from .looped import looped


@dataclass(frozen=True, slots=True)
class Text:
    """A row of a batch: its padding, which processors and criteria see as in Hugging Face, and its prompt, which is all
    that the model sees."""

    row: int
    padding: list[int]
    prompt: list[int]

    def ids(self, said: Sequence[int], device: torch.device) -> Any:
        """[1, tokens], with what was said after the prompt."""
        return torch.tensor([[*self.padding, *self.prompt, *said]], dtype=torch.long, device=device)


def texts_of(input_ids: torch.Tensor, mask: torch.Tensor | None) -> list[Text]:
    """Padding stands on the left, or a ValueError says where it does not. No mask: there is none."""
    if mask is None:
        return [Text(row, [], ids) for row, ids in enumerate(input_ids.tolist())]
    if mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask: shape {list(mask.shape)} is not allowed; it must be that of input_ids, "
            f"{list(input_ids.shape)}"
        )
    texts = []
    for row, (ids, seen) in enumerate(zip(input_ids.tolist(), (mask != 0).tolist(), strict=True)):
        first = seen.index(True) if True in seen else len(seen)
        if first == len(seen) or not all(seen[first:]):
            wrong = "has no tokens" if first == len(seen) else "has a gap" if seen[-1] else "ends in padding"
            raise ValueError(f"attention_mask: row {row} {wrong}; it must be zeros, then ones (padding_side='left')")
        texts.append(Text(row, ids[:first], ids[first:]))
    return texts


def require_default_positions(texts: Sequence[Text], positions: torch.Tensor | None) -> None:
    """Positions, [rows or 1, tokens], that count from 0 where the padding ends."""
    for text in texts if positions is not None else ():
        assert positions is not None
        length = len(text.padding) + len(text.prompt)
        own = positions[text.row % len(positions)].tolist() if positions.shape[1:] == (length,) else []
        if own[len(text.padding) :] != list(range(len(text.prompt))):
            raise ValueError(
                f"position_ids: those of row {text.row}, or the attention_mask that they were made from, are not "
                "supported; they must be 0, 1, 2, ... after the padding"
            )


def split_criteria(criteria: Sequence[Any], length: int) -> tuple[int, frozenset[int], StoppingCriteriaList]:
    """Most tokens of an answer to prompts of `length`, padding included; the ids that end it; and what is to be asked
    after every token."""
    limits = [each.max_length - length for each in criteria if type(each) is MaxLengthCriteria]
    ends = [each.eos_token_id.tolist() for each in criteria if type(each) is EosTokenCriteria]
    others = [each for each in criteria if type(each) not in (MaxLengthCriteria, EosTokenCriteria)]
    return max(1, min(limits)), frozenset(token for ids in ends for token in ids), StoppingCriteriaList(others)


def asking(criteria: StoppingCriteriaList, text: Text, device: torch.device) -> Callable[[Sequence[int]], bool] | None:
    """The criteria for this text alone, as `Output.ends_when`. They are not told scores."""
    if not criteria:
        return None
    return lambda said: bool(torch.as_tensor(criteria(text.ids(said, device), None)).any())


def for_row(processor: Any, row: int, rows: int) -> Any:
    """The processor as it is to one row of `rows`: those that hold something of the whole batch keep this row's."""
    found = copy(processor)
    if isinstance(processor, RepetitionPenaltyLogitsProcessor):
        if isinstance(processor.prompt_ignore_length, torch.Tensor):
            found.prompt_ignore_length = int(processor.prompt_ignore_length[row])
    elif isinstance(processor, PrefixConstrainedLogitsProcessor):
        allowed, batch = processor._prefix_allowed_tokens_fn, row // processor._num_beams
        found._prefix_allowed_tokens_fn, found._num_beams = lambda _, ids: allowed(batch, ids), 1
    elif isinstance(processor, EncoderRepetitionPenaltyLogitsProcessor):
        at = row * len(processor.encoder_input_ids) // rows
        found.encoder_input_ids = processor.encoder_input_ids[at : at + 1]
    elif isinstance(processor, EncoderNoRepeatNGramLogitsProcessor):
        at = row * processor.batch_size // rows
        found.batch_size, found.generated_ngrams = 1, processor.generated_ngrams[at : at + 1]
    else:
        return processor
    return found


_WARPERS = {  # in the order of laws.warp: the option that each is, and the attribute that holds its value
    TemperatureLogitsWarper: ("temperature", "temperature"),
    TopKLogitsWarper: ("top_k", "top_k"),
    TopPLogitsWarper: ("top_p", "top_p"),
    MinPLogitsWarper: ("min_p", "min_p"),
    TypicalLogitsWarper: ("typical_p", "mass"),
}


def law_parts(
    processors: Sequence[Any], text: Text, *, sampled: bool, limit: int, vocab_size: int, device: torch.device
) -> tuple[SamplingParams, Adjust | None]:
    """A row's processors: a repetition penalty that comes first and warpers that come last in our order as options, all
    between them looped as one."""
    rest = list(processors)
    options: dict[str, Any] = {} if sampled else {"temperature": 0.0}
    last = len(_WARPERS)
    while sampled and rest and (place := _place_of(rest[-1])) < last:
        if place < 0:
            break
        name, attribute = list(_WARPERS.values())[place]
        options[name], last = getattr(rest.pop(), attribute), place
    if rest and _counts_text_alone(rest[0], text):
        options["repetition_penalty"] = rest.pop(0).penalty
    params = SamplingParams(max_tokens=limit, logits_processors=rest, **options)
    whole = LogitsProcessorList(rest)

    def as_one(ids: Any, scores: torch.Tensor) -> torch.Tensor:
        return whole(ids.to(device), scores.to(device))

    changes = [looped(as_one, before=text.padding)] if rest else []
    return params, chain_of(params, prompt_length=len(text.prompt), vocab_size=vocab_size, looped=changes)


def _place_of(processor: Any) -> int:
    """Its place among the warpers, -1 unless it does just what `laws.warp` does."""
    plain = getattr(processor, "filter_value", -inf) == -inf and getattr(processor, "min_tokens_to_keep", 1) == 1
    if type(processor) not in _WARPERS or not plain or getattr(processor, "top_p", 1) == 0:
        return -1
    return list(_WARPERS).index(type(processor))


def _counts_text_alone(processor: Any, text: Text) -> bool:
    """A repetition penalty for all of the text and none of the padding, as ours is."""
    if type(processor) is not RepetitionPenaltyLogitsProcessor:
        return False
    return int(processor.prompt_ignore_length or 0) == len(text.padding)
