"""One model, ready to answer: assembles requests from plain configuration, for the engine or for the oracle loop."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Literal, overload

import torch
from jinja2 import TemplateError

from .base import Controller, Drafter
from .commit import Output
from .control import Fixed
from .drafters import ModelDrafter, NGramDrafter, NoDrafter
from .engine import Engine, EngineConfig
from .generation import default_params, end_ids, not_applied
from .kernels import use_threads, warm
from .kernels.lazy import KernelChance, fused, judge, raw_law_of
from .loop import decode
from .memory import KVMemory
from .models.load import Loaded, load, require_known
from .models.sizes import kv_bytes_per_token, kv_memory_here, readable
from .replies import Completion, Delta, Reply
from .rules import LOSSY
from .sampling import SamplingParams, check_integer
from .seats import Request
from .speculation import SpeculativeConfig
from .stats import Stats
from .text import IncrementalText

Prompt = str | Sequence[int]
"""A text, or its tokens."""


class LLM:
    """A target model, its tokenizer, and a way to speculate.

    dtype: bfloat16, float32, float16. device: auto, cpu, cuda, ... threads: torch's, None leaves them. exact: "bits"
    pads forwards so that the same seed gives the same text with speculation on or off, where this machine can
    (`claim` says); "law" pads nothing. The rest is vLLM's: most requests at once, most rows of a forward, the bound on
    KV memory (None: half of what is free, at most 4 GiB), whether texts that begin alike are computed once; and check,
    which compares all caches with a replay after every round.
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
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 256,
        kv_cache_memory_bytes: int | None = None,
        enable_prefix_caching: bool = True,
        check: bool = False,
        cache_dir: Path | None = None,
        notify: Callable[[str], None] = lambda message: None,
    ) -> None:
        if threads is not None:
            check_integer("threads", threads, lambda n: 1 <= n <= 1024, "in 1 .. 1024")
            torch.set_num_threads(threads)
            use_threads(threads)
        require_known(dtype, exact)
        config = EngineConfig(max_num_seqs, max_num_batched_tokens, enable_prefix_caching, check)
        if kv_cache_memory_bytes is not None:
            check_integer("kv_cache_memory_bytes", kv_cache_memory_bytes, lambda n: n >= 1, ">= 1")
        speculation = SpeculativeConfig.of({"method": "none"} if speculative_config is None else speculative_config)
        self._load = partial(load, dtype=dtype, device=device, exact=exact, cache_dir=cache_dir, notify=notify)
        self._config, self.exact = config, exact
        self._kv_limit = kv_memory_here(device) if kv_cache_memory_bytes is None else kv_cache_memory_bytes
        names = [model] if speculation.model is None else [model, speculation.model]
        size = sum(kv_bytes_per_token(name, dtype, cache_dir, notify) for name in names)
        notify(
            f"KV memory: at most {readable(self._kv_limit)}, room for {self._kv_limit // size:,} tokens of "
            f"{readable(size)}"
        )
        began = time.perf_counter()
        warm(notify)
        self.loaded = self._load(model)
        self._provide(self.loaded)
        self.engine = Engine(self.loaded.target, KVMemory(self._kv_limit), config, judge=judge)
        self.busy = Lock()  # the engine is for one caller at a time
        self._numbers = count()
        self._speculate(speculation)
        self.load_seconds = time.perf_counter() - began

    def _provide(self, loaded: Loaded) -> None:
        target = loaded.target
        target.provide(self._config.max_num_seqs, self._kv_limit // target.kv_bytes_per_token)

    def _speculate(self, speculation: SpeculativeConfig) -> None:
        self.speculation = speculation
        self._draft_model: Loaded | None = None
        if speculation.model is not None:
            # a draft's bits cannot change the text, but a model must agree with itself when it drafts for itself
            self._draft_model = self._load(speculation.model)
            _require_same_vocabulary(self.loaded, self._draft_model)
            self._provide(self._draft_model)
        self._drafter = self._make_drafter()

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
        if not raw and tokenizer.chat_template:
            messages = [] if system is None else [{"role": "system", "content": system}]
            return self.encode_chat([*messages, {"role": "user", "content": prompt}])
        if system is not None:
            reason = "raw prompts have no system message" if raw else "the model has no chat template"
            raise ValueError(f"system: {system!r} cannot be used; {reason}")
        ids = tokenizer(prompt).input_ids
        if not ids:
            raise ValueError(f"prompt: {prompt!r} makes no tokens; give some text")
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A conversation -> tokens, ready for the model's answer. messages: {"role": ..., "content": ...} each."""
        tokenizer = self.loaded.tokenizer
        if not tokenizer.chat_template:
            raise ValueError("messages: the model has no chat template; give it plain prompts")
        for message in messages:
            _require_unicode("messages", message["content"])
        try:
            text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        except TemplateError as error:  # some templates refuse a system message
            raise ValueError(f"messages: the model's chat template refuses them: {error}") from error
        return tokenizer(text, add_special_tokens=False).input_ids

    def reply(self, prompt: Prompt, params: SamplingParams | None = None, name: str | None = None) -> Reply:
        """A request, ready for `start`, the engine or the oracle, and who follows it. Nothing runs yet."""
        ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        target = self.loaded.target
        size = target.vocab_size
        if not ids:
            raise ValueError("prompt: it has no tokens; it must have at least one")
        for token in ids:
            check_integer("prompt", token, lambda token: 0 <= token < size, f"in 0 .. {size - 1}, a token id")
        room = target.max_context - len(ids)
        if room < 1:
            raise ValueError(f"prompt: {len(ids)} tokens leave no room in the model's context of {target.max_context}")
        params = params or self.default_params
        seed = secrets.randbits(32) if params.seed is None else params.seed
        limit = min(params.max_tokens, room)
        request = Request(
            f"#{next(self._numbers)}" if name is None else name,
            ids,
            self._output(ids, params, limit),
            self._drafter,
            self._controller(),
            fused(self.speculation.verify, params, allow_lossy=self.speculation.allow_lossy),
            raw_law_of(params),
            KernelChance(seed),
        )
        stats = Stats()
        stats.seconds["load"] = self.load_seconds
        return Reply(request, seed, self.effective_config(params, len(ids), limit), stats)

    def _controller(self) -> Controller:
        speculation = self.speculation
        if speculation.method == "none":
            return Fixed(0)
        return Fixed(speculation.num_speculative_tokens, speculation.disable_by_batch_size)

    def _output(self, prompt: Sequence[int], params: SamplingParams, limit: int) -> Output:
        tokenizer = self.loaded.tokenizer
        text = IncrementalText(
            lambda ids: tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
            before=prompt[-6:],
        )
        return Output(params, limit, end_ids(self.loaded.generation, tokenizer.eos_token_id), text)

    def start(self, prompt: Prompt, params: SamplingParams | None = None) -> Generation:
        """One request alone, through the oracle, not yet run; iterate over it to stream."""
        return Generation(self, self.reply(prompt, params))

    @overload
    def generate(
        self, prompts: str, params: SamplingParams | None = None, *, system: str | None = None, raw: bool = False
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompts: Sequence[str],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        system: str | None = None,
        raw: bool = False,
    ) -> list[Completion]: ...

    def generate(self, prompts, params=None, *, system=None, raw=False):
        """Answer one prompt, or several at once. params: for all, or one each. system, raw: see `encode`.

        What is wrong with a prompt raises before anything runs. One prompt that fails later raises; of several, each
        that fails has finish_reason "error", and the others are as they are alone.
        """
        single = isinstance(prompts, str)
        texts = [prompts] if single else list(prompts)
        each = [params] * len(texts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(texts):
            raise ValueError(f"params: {len(each)} for {len(texts)} prompts; give one for all, or one each")
        replies = []
        for i, (text, one) in enumerate(zip(texts, each, strict=True)):
            try:
                replies.append(self.reply(self.encode(text, system=system, raw=raw), one))
            except ValueError as error:
                raise error if single else ValueError(f"prompts[{i}]: {error}") from None
        if single:
            for _ in self.stream(replies[0]):
                pass
            return replies[0].completion()
        found = dict(self.answer(replies))
        return [found[reply] for reply in replies]

    def stream(self, reply: Reply) -> Generator[Delta]:
        """Run one request and give its text as rounds commit it; what ends it is raised."""
        request = reply.request
        with self.running() as engine:
            engine.add(request)
            while request.output.finish_reason is None:
                for event in engine.step():
                    if event.step is None:
                        raise event.error or RuntimeError("engine: a request ended without a reason")
                    yield reply.add(event.step)

    def answer(self, replies: Sequence[Reply]) -> Iterator[tuple[Reply, Completion]]:
        """Run requests together; each comes when it has ended. Those under way are cancelled if the caller stops."""
        with self.running() as engine:
            by_request = {id(reply.request): reply for reply in replies}
            for reply in replies:
                try:
                    engine.add(reply.request)
                except ValueError as error:
                    yield reply, reply.completion(error)
            while engine.busy:
                for event in engine.step():
                    reply = by_request[id(event.request)]
                    if event.step is not None:
                        reply.add(event.step)
                    if event.ended:
                        yield reply, reply.completion(event.error)

    @contextmanager
    def running(self) -> Generator[Engine]:
        """The engine, for one caller at a time, who leaves no request in it."""
        if not self.busy.acquire(blocking=False):
            raise RuntimeError("engine: it runs other requests; give them to one AsyncEngine, or wait for them to end")
        try:
            yield self.engine
        finally:
            self.engine.abandon()
            self.busy.release()

    def _make_drafter(self) -> Drafter:
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
            "engine": asdict(self._config) | {"kv_cache_memory_bytes": self._kv_limit},
            "rows": asdict(target.plan),
            "speculation": asdict(self.speculation),
            "sampling": sampling,
            "not_applied": not_applied(self.loaded.generation),
            "prompt_tokens": prompt_tokens,
            "limit": limit,
        }


class Generation:
    """One request alone, through the oracle. Iterate for deltas; `result()` runs what is left and returns the whole."""

    def __init__(self, llm: LLM, reply: Reply) -> None:
        self.reply, request = reply, reply.request
        self._steps = decode(
            request.prompt,
            request.output,
            target=llm.loaded.target,
            drafter=request.drafter,
            controller=request.controller,
            rule=request.rule,
            law=request.law,
            chance=request.chance,
        )

    def __iter__(self) -> Iterator[Delta]:
        for step in self._steps:
            yield self.reply.add(step)

    def result(self) -> Completion:
        for _ in self:
            pass
        return self.reply.completion()


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
