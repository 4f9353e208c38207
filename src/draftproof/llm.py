"""One model, ready to answer: assembles a request from plain configuration and runs it through the oracle loop."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from jinja2 import TemplateError

from .base import Drafter, Step
from .commit import Output
from .control import Fixed
from .drafters import ModelDrafter, NGramDrafter, NoDrafter
from .kernels import use_threads, warm
from .kernels.lazy import KernelChance, fused, raw_law_of
from .loop import decode
from .models.load import Loaded, load
from .rules import LOSSY
from .sampling import SamplingParams, check_integer
from .speculation import SpeculativeConfig
from .stats import Stats
from .text import IncrementalText

Owner = Literal["draft", "target"]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one round added to the streamed text: pieces in order, each the drafter's (accepted) or the target's own."""

    pieces: tuple[tuple[str, Owner], ...]
    step: Step

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request; `config` is what was in effect, whoever chose it."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | int | None
    seed: int
    config: dict[str, Any]
    stats: Stats

    def as_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "seed": self.seed,
            "config": self.config,
            "stats": self.stats.as_dict(),
        }


class LLM:
    """A target model, its tokenizer, and a way to speculate.

    dtype: bfloat16, float32, float16. device: auto, cpu, cuda, ... threads: torch's, None leaves them. exact: "bits"
    pads forwards so that the same seed gives the same text with speculation on or off, where this machine can
    (`claim` says); "law" pads nothing.
    """

    def __init__(
        self,
        model: str,
        *,
        speculative_config: Mapping[str, Any] | None = None,
        dtype: str = "bfloat16",
        device: str = "auto",
        threads: int | None = None,
        exact: str = "bits",
        cache_dir: Path | None = None,
        notify: Callable[[str], None] = lambda message: None,
    ) -> None:
        if threads is not None:
            check_integer("threads", threads, lambda n: 1 <= n <= 1024, "in 1 .. 1024")
            torch.set_num_threads(threads)
            use_threads(threads)
        speculation = SpeculativeConfig.of({"method": "none"} if speculative_config is None else speculative_config)
        self._load = partial(load, dtype=dtype, device=device, cache_dir=cache_dir, notify=notify)
        self.exact = exact
        began = time.perf_counter()
        warm(notify)
        self.loaded = self._load(model, exact=exact)
        self._speculate(speculation)
        self.load_seconds = time.perf_counter() - began

    def _speculate(self, speculation: SpeculativeConfig) -> None:
        self.speculation = speculation
        self._draft_model: Loaded | None = None
        if speculation.model is not None:
            # a draft's bits cannot change the text, but a model must agree with itself when it drafts for itself
            self._draft_model = self._load(speculation.model, exact=self.exact)
            _require_same_vocabulary(self.loaded, self._draft_model)

    def speculating(self, config: Mapping[str, Any]) -> LLM:
        """The same loaded target under another `speculative_config`."""
        other = copy(self)
        other._speculate(SpeculativeConfig.of(config))
        return other

    @property
    def claim(self) -> Literal["bit-exact", "same law", "lossy"]:
        """What holds between speculation on and off: bits need a machine that keeps them and the coupled rule."""
        if self.speculation.verify in LOSSY:
            return "lossy"
        return "bit-exact" if self.loaded.target.plan.exact and self.speculation.verify == "coupled" else "same law"

    @property
    def default_params(self) -> SamplingParams:
        """The model's own generation_config.json; temperature 1 where it says nothing."""
        return default_params(self.loaded.generation)

    def encode(self, prompt: str, *, system: str | None = None, raw: bool = False) -> list[int]:
        """Prompt -> tokens, through the chat template unless `raw` or the model has none."""
        if not isinstance(prompt, str):
            raise ValueError(f"prompt: {prompt!r} is not allowed; it must be a string")
        if not prompt:
            raise ValueError("prompt: it is empty; give some text")
        _require_unicode("prompt", prompt)
        _require_unicode("system", system or "")
        tokenizer = self.loaded.tokenizer
        if raw or not tokenizer.chat_template:
            if system is not None:
                reason = "raw prompts have no system message" if raw else "the model has no chat template"
                raise ValueError(f"system: {system!r} cannot be used; {reason}")
            ids = tokenizer(prompt).input_ids
        else:
            messages = [{"role": "system", "content": system}] if system is not None else []
            messages.append({"role": "user", "content": prompt})
            try:
                text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            except TemplateError as error:  # some templates refuse a system message
                raise ValueError(f"system: the model's chat template refuses these messages: {error}") from error
            ids = tokenizer(text, add_special_tokens=False).input_ids
        if not ids:
            raise ValueError(f"prompt: {prompt!r} makes no tokens; give some text")
        return ids

    def start(self, prompt: Sequence[int], params: SamplingParams | None = None) -> Generation:
        """A request, not yet run; iterate over it to stream."""
        size = self.loaded.target.vocab_size
        if not len(prompt):
            raise ValueError("prompt: it has no tokens; it must have at least one")
        for token in prompt:
            check_integer("prompt", token, lambda token: 0 <= token < size, f"in 0 .. {size - 1}, a token id")
        room = self.loaded.target.max_context - len(prompt)
        if room < 1:
            raise ValueError(
                f"prompt: {len(prompt)} tokens leave no room in the model's context of {self.loaded.target.max_context}"
            )
        params = params or self.default_params
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(32))
        return Generation(self, list(prompt), params, min(params.max_tokens, room))

    def generate(self, prompt: str, params: SamplingParams | None = None, **encoding: Any) -> Completion:
        """Answer one prompt. `encoding`: see `encode`."""
        return self.start(self.encode(prompt, **encoding), params).result()

    def drafter(self) -> Drafter:
        spec = self.speculation
        if spec.method == "ngram":
            return NGramDrafter(spec.prompt_lookup_max, spec.prompt_lookup_min)
        if self._draft_model is not None:
            return ModelDrafter(self._draft_model.target, spec.kind, self._draft_model.name)
        return NoDrafter()

    def effective_config(self, params: SamplingParams, prompt_tokens: int, limit: int) -> dict[str, Any]:
        target = self.loaded.target
        sampling = asdict(params)
        sampling.pop("seed")
        return {
            "model": self.loaded.name,
            "dtype": str(target.model.dtype).removeprefix("torch."),
            "device": str(target.model.device),
            "threads": torch.get_num_threads(),
            "exact": self.exact,
            "claim": self.claim,
            "rows": asdict(target.plan),
            "speculation": asdict(self.speculation),
            "sampling": sampling,
            "not_applied": not_applied(self.loaded.generation),
            "prompt_tokens": prompt_tokens,
            "limit": limit,
        }


class Generation:
    """One request under way. Iterate for deltas; `result()` runs what is left and returns the whole."""

    def __init__(self, llm: LLM, prompt: list[int], params: SamplingParams, limit: int) -> None:
        assert params.seed is not None
        tokenizer = llm.loaded.tokenizer
        self.seed = params.seed
        self.config = llm.effective_config(params, len(prompt), limit)
        self.stats = Stats()
        self.stats.seconds["load"] = llm.load_seconds
        self.output = Output(
            params,
            limit,
            end_ids(llm.loaded.generation, tokenizer.eos_token_id),
            IncrementalText(
                lambda ids: tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
                before=prompt[-6:],
            ),
        )
        self._owners: list[Owner] = []  # whose each token is
        self._shown = 0  # characters given out
        self._token = 0  # whose text holds the next of them
        self._steps = decode(
            prompt,
            self.output,
            target=llm.loaded.target,
            drafter=llm.drafter(),
            controller=Fixed(llm.speculation.num_speculative_tokens),
            rule=fused(llm.speculation.verify, params, allow_lossy=llm.speculation.allow_lossy),
            law=raw_law_of(params),
            chance=KernelChance(params.seed),
        )

    def __iter__(self) -> Iterator[Delta]:
        for step in self._steps:
            self.stats.add(step)
            self._owners += ["draft"] * step.accepted + ["target"] * (len(step.tokens) - step.accepted)
            yield Delta(tuple(self._new_pieces()), step)

    def _new_pieces(self) -> Iterator[tuple[str, Owner]]:
        """The newly released text, cut where it changes hands between drafter and target."""
        output = self.output
        while self._shown < output.released:
            owner = self._owners[self._token]
            end = output.released
            for at in range(self._token, len(self._owners)):
                self._token = at
                if self._owners[at] != owner:
                    end = output.ends[at - 1]
                    break
                if output.ends[at] >= output.released:
                    break
            if end > self._shown:
                yield output.text[self._shown : end], owner
                self._shown = end

    def result(self) -> Completion:
        for _ in self:
            pass
        output = self.output
        if output.finish_reason is None:
            raise RuntimeError("result: the request was interrupted or failed before it ended; start it again")
        return Completion(
            output.text,
            tuple(output.token_ids),
            output.finish_reason,
            output.stop_reason,
            self.seed,
            self.config,
            self.stats,
        )


def default_params(generation: Mapping[str, Any]) -> SamplingParams:
    """What a generation_config.json asks for; temperature 1 where it says nothing, greedy if it says not to sample."""
    if generation.get("do_sample") is False:
        return SamplingParams(temperature=0.0)
    names = ("temperature", "top_k", "top_p", "min_p")
    return SamplingParams(**{name: generation[name] for name in names if generation.get(name) is not None})


_APPLIED = {"temperature", "top_k", "top_p", "min_p", "do_sample", "eos_token_id"}
_ABOUT_NO_TOKEN = {  # entries of a generation_config.json that change no token
    *("bos_token_id", "pad_token_id", "decoder_start_token_id", "transformers_version", "_from_model_config"),
    *("use_cache", "cache_implementation", "cache_config", "return_dict_in_generate", "output_attentions"),
    *("output_hidden_states", "output_scores", "output_logits", "trust_remote_code", "max_length"),
}
_NEUTRAL = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "typical_p": 1.0,
    "num_beams": 1,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "guidance_scale": 1.0,
}


def not_applied(generation: Mapping[str, Any]) -> dict[str, Any]:
    """What a generation_config.json asks for beyond that, and does not get yet: reported, never silently dropped."""
    ignored = _APPLIED | _ABOUT_NO_TOKEN
    return {
        name: value
        for name, value in generation.items()
        if name not in ignored and value not in (None, False, 0, [], {}) and value != _NEUTRAL.get(name)
    }


def end_ids(generation: Mapping[str, Any], fallback: int | None) -> frozenset[int]:
    """The ids that end a text: generation_config.json's, else the tokenizer's."""
    given = generation.get("eos_token_id", fallback)
    if given is None:
        return frozenset()
    return frozenset(given if isinstance(given, list) else [given])


def _require_same_vocabulary(target: Loaded, draft: Loaded) -> None:
    ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    if ours != theirs:
        differ = sum(ours.get(token) != theirs.get(token) for token in ours.keys() | theirs.keys())
        raise ValueError(
            f"draft: {draft.name!r} has another vocabulary than {target.name!r} ({differ} entries differ); "
            "a draft model needs its target's tokenizer"
        )


def _require_unicode(name: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: it is not valid Unicode text at character {error.start}") from None
