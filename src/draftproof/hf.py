"""The Hugging Face face: `model.generate` with speculation, by the same arguments and with the same results.

Hugging Face's own `generate` does all but the decoding: it reads the configuration, refuses typos, makes processors and
criteria, repeats the rows. Only its loop is exchanged. A model is borrowed for the call and given back as it was; what
cannot be done is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import (
    GenerateDecoderOnlyOutput,
    LogitsProcessorList,
    StoppingCriteriaList,
    StopStringCriteria,
)

from .base import Drafter, Kind
from .commit import Note, Output
from .control import Fixed
from .drafters import ModelDrafter, NGramDrafter, NoDrafter
from .engine import Engine, EngineConfig
from .kernels.lazy import KernelChance, fused, judge, raw_law_of
from .memory import KVMemory
from .models.borrow import borrowed
from .models.hf import HFTarget
from .models.looped import ProcessorError, require_stateless
from .models.prepared import Text, asking, for_row, law_parts, require_default_positions, split_criteria, texts_of
from .models.sizes import kv_memory_here
from .models.support import try_out
from .sampling import AdjustError, check_integer
from .seats import Request

DEPTH = 5
"""Tokens drafted a round where nobody says how many."""

_LOOKUP = 4  # the longest n-gram looked up, likewise
_AT_ONCE = 1024  # requests
_THEIRS = GenerationConfig._get_default_generation_params()  # what Hugging Face makes of a config that says nothing

_NOT_DONE: dict[str, tuple] = {  # options, each with the values by which it asks for nothing
    "num_beams": (1, None),
    "num_beam_groups": (1, None),
    "diversity_penalty": (0, None),
    "constraints": (None,),
    "force_words_ids": (None,),
    "penalty_alpha": (0, None),
    "dola_layers": (None,),
    "guidance_scale": (1, None),
    "token_healing": (False, None),
    "use_cache": (True, None),
    "cache_implementation": (None, "dynamic", "hybrid"),  # Hugging Face takes the last for the default
    "output_attentions": (False, None),
    "output_hidden_states": (False, None),
    "use_mtp": (False, None),
    "assistant_early_exit": (None,),
    "assistant_ensemble_weight": (None,),
    "speculation_type": (None,),
    "num_assistant_tokens_schedule": ("constant", None),
    "assistant_confidence_threshold": (0, None, _THEIRS["assistant_confidence_threshold"]),
    # arguments of `generate` that no loop of somebody else's gets to see
    "assistant_tokenizer": (None,),
    "synced_gpus": (False, None),
    "custom_generate": (None,),
}
_ASSISTANTS = ("num_assistant_tokens_schedule", "assistant_confidence_threshold")
"""What Hugging Face reads from the assistant's own config."""
_UNDERSTOOD = {"attention_mask", "position_ids", "cache", "use_cache", "logits_to_keep"}


def generate(
    model: Any,
    inputs: torch.Tensor | None = None,
    generation_config: GenerationConfig | None = None,
    logits_processor: Sequence[Any] | None = None,
    stopping_criteria: Sequence[Any] | None = None,
    *,
    assistant_model: PreTrainedModel | None = None,
    prompt_lookup_num_tokens: int | None = None,
    num_assistant_tokens: int | None = None,
    streamer: Any = None,
    tokenizer: Any = None,
    exact: str = "bits",
    kv_cache_memory_bytes: int | None = None,
    **others: Any,
) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """What `model.generate` returns, by speculation. others: whatever else it takes.

    assistant_model, prompt_lookup_num_tokens, num_assistant_tokens, streamer, exact, kv_cache_memory_bytes: see
    `speculative`. tokenizer: for stop_strings.
    """
    if not callable(getattr(model, "generate", None)):
        raise ValueError(f"model: {model!r} is not allowed; it must be a transformers model")
    configs = [each for each in (generation_config, getattr(model, "generation_config", None)) if each is not None]
    _require_neutral(({} if generation_config is None else vars(generation_config)) | others)  # before anything is made
    loop = speculative(
        assistant_model=assistant_model,
        prompt_lookup_num_tokens=prompt_lookup_num_tokens,
        num_assistant_tokens=num_assistant_tokens,
        streamer=streamer,
        exact=exact,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
    )
    criteria = StoppingCriteriaList(stopping_criteria or ())
    stops = others.get("stop_strings", next((each.stop_strings for each in configs if each.stop_strings), None))
    if stops and tokenizer is not None:  # `generate` loses the tokenizer on the way to a loop of somebody else's
        if not any(isinstance(each, StopStringCriteria) for each in criteria):
            criteria.append(StopStringCriteria(tokenizer, stops))
        others["stop_strings"] = None
    if logits_processor is not None:
        others["logits_processor"] = LogitsProcessorList(logits_processor)
    return model.generate(
        inputs, generation_config=generation_config, stopping_criteria=criteria, custom_generate=loop, **others
    )


def speculative(
    *,
    assistant_model: PreTrainedModel | None = None,
    prompt_lookup_num_tokens: int | None = None,
    num_assistant_tokens: int | None = None,
    streamer: Any = None,
    exact: str = "bits",
    kv_cache_memory_bytes: int | None = None,
) -> Callable[..., torch.Tensor | GenerateDecoderOnlyOutput]:
    """A decoding loop, for `model.generate(..., custom_generate=speculative(...))`.

    assistant_model: a model that drafts; it has the same tokens and may be the model itself. prompt_lookup_num_tokens:
    draft so many of those that followed the same words before. Without either, the latter. num_assistant_tokens: most
    tokens drafted a round (None: 5), 0 for none. streamer: follows one text; given to `generate` itself it is not
    handed on. exact: "bits" measures a model when it is first seen, so that the same seed gives the same text with
    speculation on or off; "law" measures nothing. kv_cache_memory_bytes: bound on keys and values (None: half of what
    is free, at most 4 GiB).
    """
    asked = _Asked(
        assistant_model, prompt_lookup_num_tokens, num_assistant_tokens, streamer, exact, kv_cache_memory_bytes
    )

    def loop(
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        prompt_lookup_num_tokens: int | None = None,  # `generate` hands on what a loop has parameters for
        num_assistant_tokens: int | None = None,
        **given: Any,
    ) -> torch.Tensor | GenerateDecoderOnlyOutput:
        called = {"prompt_lookup_num_tokens": prompt_lookup_num_tokens, "depth": num_assistant_tokens}
        here = replace(asked, **{name: value for name, value in called.items() if value is not None})
        return _decode(here, model, input_ids, logits_processor, stopping_criteria, generation_config, given)

    return loop


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of `speculative`. depth: num_assistant_tokens."""

    assistant_model: PreTrainedModel | None
    prompt_lookup_num_tokens: int | None
    depth: int | None
    streamer: Any
    exact: str
    kv_cache_memory_bytes: int | None

    def __post_init__(self) -> None:
        lookup, assistant = self.prompt_lookup_num_tokens, self.assistant_model
        if not isinstance(assistant, PreTrainedModel | None):
            raise ValueError(f"assistant_model: {assistant!r} is not allowed; it must be a transformers model")
        if assistant is not None and assistant.generation_config is not None:
            own = vars(assistant.generation_config)
            _require_neutral({name: own.get(name) for name in _ASSISTANTS})
        for name, value, least in (
            ("prompt_lookup_num_tokens", lookup, 1),
            ("num_assistant_tokens", self.depth, 0),
            ("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1),
        ):
            if value is not None:
                check_integer(name, value, lambda n, least=least: n >= least, f">= {least}")
        for name, value in (("assistant_model", self.assistant_model), ("num_assistant_tokens", self.depth)):
            if lookup is not None and value is not None:
                raise ValueError(f"{name}: it is not used with prompt_lookup_num_tokens ({lookup}); give one of them")
        if self.exact not in ("bits", "law"):
            raise ValueError(f"exact: {self.exact!r} is unknown; known are bits, law")


def _decode(
    asked: _Asked,
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    given: Mapping[str, Any],
) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """The one loop behind both doors."""
    _require_supported(model, config, processors, given)
    texts = texts_of(input_ids, given.get("attention_mask"))
    require_default_positions(texts, given.get("position_ids"))
    if asked.streamer is not None and len(texts) > 1:
        raise ValueError(f"streamer: it cannot follow {len(texts)} texts at once; it must be given one")
    limit, end_ids, others = split_criteria(criteria, input_ids.shape[1])
    pad: Any = config._pad_token_tensor
    if pad is None and others and len(texts) > 1:
        raise ValueError("pad_token_id: None is not allowed; it must fill up texts that end before others")
    device, told = input_ids.device, bool(config.return_dict_in_generate)
    wants = _Wants(told and bool(config.output_logits), told and bool(config.output_scores))
    models = [model] if asked.assistant_model is None else [model, asked.assistant_model]
    with borrowed(models, asked.exact) as targets:
        target = targets[0]
        _require_room(texts, limit, target.max_context)
        drafter, controller = _drafting(asked, config, targets)
        seed = int(torch.randint(2**63 - 1, ())) if config.do_sample else 0
        requests = []
        for text in texts:
            own = LogitsProcessorList(for_row(each, text.row, len(texts)) for each in processors)
            params, adjust = law_parts(
                own, text, sampled=bool(config.do_sample), limit=limit, vocab_size=target.vocab_size, device=device
            )
            output = Output(params, limit, end_ids, ends_when=asking(others, text, device))
            output.note = _noting(own, text, output, wants, device)
            law, chance = raw_law_of(params, adjust), KernelChance(seed, text.row)
            rule = fused("coupled", params)
            requests.append(Request(str(text.row), text.prompt, output, drafter, controller, rule, law, chance))
        for each in dict.fromkeys(targets):
            each.provide(min(len(texts), _AT_ONCE), max(request.capacity for request in requests))
        memory = KVMemory(asked.kv_cache_memory_bytes or kv_memory_here(str(model.device)))
        together = EngineConfig(min(len(texts), _AT_ONCE), enable_prefix_caching=len(texts) > 1)
        _run(Engine(target, memory, together, judge=judge), requests, input_ids, asked.streamer)
    outputs = [request.output for request in requests]
    sequences: Any = torch.cat([input_ids, _filled_up([output.token_ids for output in outputs], pad).to(device)], 1)
    if not told:
        return sequences
    return GenerateDecoderOnlyOutput(
        sequences=sequences,
        scores=_by_step([[note.scores for note in output.noted] for output in outputs]) if wants.scores else None,
        logits=_by_step([[note.logits for note in output.noted] for output in outputs]) if wants.logits else None,
    )


def _run(engine: Engine, requests: Sequence[Request], input_ids: torch.Tensor, streamer: Any) -> None:
    """Each to its end; the first error is raised."""
    for request in requests:
        engine.add(request)
    if streamer is not None:
        streamer.put(input_ids.cpu())
    try:
        while engine.busy:
            for event in engine.step():
                if event.step is None:
                    raise _own(event.error) or RuntimeError("engine: a request ended without a reason")
                if streamer is not None:
                    streamer.put(torch.tensor(event.step.tokens))
    finally:
        engine.clear()
    if streamer is not None:
        streamer.end()


def _own(error: BaseException | None) -> BaseException | None:
    """What a user's processor raised, as `generate` lets it through."""
    while isinstance(error, AdjustError | ProcessorError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _drafting(asked: _Asked, config: GenerationConfig, targets: Sequence[HFTarget]) -> tuple[Drafter, Fixed]:
    """Who drafts, and how much: what an argument says, else the call's config, else the assistant's own, else 5."""
    depth, lookup, assistant = asked.depth, asked.prompt_lookup_num_tokens, asked.assistant_model
    if lookup is None and depth is None and assistant is None:
        lookup = config.prompt_lookup_num_tokens
    if depth is None and config.num_assistant_tokens != _THEIRS["num_assistant_tokens"]:
        depth = config.num_assistant_tokens
    if depth is None and assistant is not None:
        depth = getattr(assistant.generation_config, "num_assistant_tokens", None)
    depth = lookup if lookup is not None else DEPTH if depth is None else depth
    check_integer("num_assistant_tokens", depth, lambda n: n >= 0, ">= 0")
    if depth == 0:
        return NoDrafter(), Fixed(0)
    if assistant is None:
        longest = config.max_matching_ngram_size or _LOOKUP
        check_integer("max_matching_ngram_size", longest, lambda n: n >= 1, ">= 1")
        return NGramDrafter(longest), Fixed(depth)
    target, helper = targets
    if helper.vocab_size != target.vocab_size:
        raise ValueError(
            f"assistant_model: it has {helper.vocab_size} tokens, and the model {target.vocab_size}; it must have the "
            "same ones (assistant_tokenizer is not supported yet)"
        )
    return ModelDrafter(helper, Kind.COUPLED, type(assistant).__name__), Fixed(depth)


# --- what is told besides the tokens -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wants:
    logits: bool
    scores: bool


@dataclass(frozen=True, slots=True)
class _Told:
    """Of one token: the row that it was drawn from, [1, v], and what the processors make of it."""

    logits: torch.Tensor
    scores: torch.Tensor | None


def _noting(
    processors: LogitsProcessorList, text: Text, output: Output, wants: _Wants, device: torch.device
) -> Note | None:
    if not (wants.logits or wants.scores):
        return None

    def note(token: int, logits: np.ndarray, law: Callable[[], Any]) -> _Told:
        row = torch.tensor(logits, device=device)[None]  # a copy: rows that were scored together share an array
        return _Told(row, processors(text.ids(output.token_ids, device), row.clone()) if wants.scores else None)

    return note


def _by_step(rows: Sequence[Sequence[Any]]) -> Any:
    """[rows, v] a step, with zeros where a row has ended."""
    ended = torch.zeros_like(rows[0][0])
    steps = range(max(map(len, rows)))
    return tuple(torch.cat([row[i] if i < len(row) else ended for row in rows]) for i in steps)


def _filled_up(said: Sequence[list[int]], pad: torch.Tensor | None) -> torch.Tensor:
    longest = max(map(len, said))
    fill = [] if pad is None else [int(pad)]
    return torch.tensor([[*ids, *fill * (longest - len(ids))] for ids in said], dtype=torch.long)


# --- what is refused -----------------------------------------------------------------------------------------------


def _require_neutral(options: Mapping[str, Any]) -> None:
    for name, neutral in _NOT_DONE.items():
        value = options.get(name)
        if value is not None and not (isinstance(value, int | float | str) and value in neutral):
            shown = repr(value) if isinstance(value, int | float | str) else type(value).__name__
            raise ValueError(f"{name}: {shown} is not supported by draftproof; it must be {neutral[0]!r}")


def _require_supported(
    model: PreTrainedModel, config: GenerationConfig, processors: Sequence[Any], given: Mapping[str, Any]
) -> None:
    if model.config.is_encoder_decoder:
        try_out(model)  # says so
    _require_neutral(vars(config))
    for name, value in given.items():
        if value is not None and name not in _UNDERSTOOD:
            raise ValueError(f"{name}: it is not supported by draftproof; prompts are input_ids and attention_mask")
    for each in processors:
        require_stateless(each)
    cache = given.get("cache")
    if cache is not None and cache.get_seq_length():
        raise ValueError(
            f"cache: it holds {cache.get_seq_length()} tokens; draftproof keeps its own, so it must be empty, and "
            "input_ids the whole text"
        )


def _require_room(texts: Sequence[Text], limit: int, context: int) -> None:
    longest = max(len(text.prompt) for text in texts)
    if longest + limit > context:
        raise ValueError(
            f"max_new_tokens: {limit} after a prompt of {longest} tokens do not fit the model's context of {context}; "
            f"it must be at most {max(0, context - longest)}"
        )
