"""One model, ready to answer: assembles requests from plain configuration, for the engine or for the oracle loop."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
import torch
from tqdm.auto import tqdm

from .assemble import Known, chain_for, drafter_under, output_for, watched
from .base import Watch
from .contrasting import ContrastiveConfig
from .drafting import Heads, drafting_for, lightened
from .engine import Engine, EngineConfig
from .generation import default_params, end_ids, not_applied
from .grammar import Grammars
from .in_effect import in_effect
from .inputs import Message, Prompt, chat_tokens, is_conversation, require_text, text_of, text_tokens, tokens_of
from .kernels import use_threads, warm
from .kernels.lazy import KernelChance, fused, judge, raw_law_of
from .memory import KVMemory
from .models.load import Loaded, load, require_known
from .models.sizes import kv_bytes_per_token, kv_memory_here, readable
from .replies import Completion, Delta, Reply, RequestOutput
from .rules import LOSSY
from .sampling import SamplingParams, check_integer, require_params
from .seats import Request
from .solo import Generation
from .speculation import SpeculativeConfig
from .stats import Stats
from .trace import Tracer, TraceWriter


class LLM:
    """A target model, its tokenizer, and a way to speculate.

    dtype: bfloat16, float32, float16. device: auto, cpu, cuda, ... threads: torch's, None leaves them. exact: "bits"
    pads forwards so that the same seed gives the same text with speculation on or off, where this machine can
    (`claim` says); "law" pads nothing. contrastive: {"model": AMATEUR, "alpha": 0.1, "beta": 0.5} decodes from the
    model against a smaller one, which drafts too under speculative_config's method "auto". The rest is vLLM's: most
    requests at once, most rows of a forward, the bound on KV memory (None: half of what is free, at most 4 GiB),
    whether texts that begin alike are computed once; and check, which compares all caches with a replay after every
    round.
    """

    def __init__(
        self,
        model: str,
        *,
        speculative_config: Mapping[str, Any] | None = None,
        contrastive: Mapping[str, Any] | None = None,
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
        contrast = None if contrastive is None else ContrastiveConfig.of(contrastive)
        read = SpeculativeConfig.of if contrast is None else contrast.drafting
        speculation = read({"method": "none"} if speculative_config is None else speculative_config)
        self._load = partial(load, dtype=dtype, device=device, exact=exact, cache_dir=cache_dir, notify=notify)
        self._config, self.exact, self._cache_dir, self._notify = config, exact, cache_dir, notify
        self._kv_limit = kv_memory_here(device) if kv_cache_memory_bytes is None else kv_cache_memory_bytes
        draft = None if "eagle3" in speculation.parts else speculation.model
        names = [model, draft, None if contrast is None else contrast.model]
        size = sum(kv_bytes_per_token(name, dtype, cache_dir, notify) for name in names if name is not None)
        notify(
            f"KV memory: at most {readable(self._kv_limit)}, room for {self._kv_limit // size:,} tokens of "
            f"{readable(size)}"
        )
        began = time.perf_counter()
        warm(notify)
        self.loaded, self._contrast = self._load(model), contrast
        self._amateur = None
        self._drafts: dict[tuple[Any, ...], Loaded] = {}  # one for all configurations that share it
        self._heads: Heads = {}
        if contrast is not None:
            self._amateur = self._load(contrast.model)
            self.loaded = contrast.of_models(self.loaded, self._amateur)
        self._provide(self.loaded)
        self.end_ids = end_ids(self.loaded.generation, self.loaded.tokenizer.eos_token_id)
        self._known = Known(self.loaded.tokenizer, self.loaded.target.vocab_size, self.end_ids)
        self._grammars = Grammars(self.loaded.tokenizer, self.loaded.target.vocab_size, self.end_ids)
        self.engine = Engine(self.loaded.target, KVMemory(self._kv_limit), config, judge=judge)
        self.busy = Lock()  # the engine is for one caller at a time
        self._numbers = count()
        self._tracer: Callable[..., Tracer] | None = None  # makes who tells a trace of a request
        self._speculate(speculation)
        self.load_seconds = time.perf_counter() - began

    def _provide(self, loaded: Loaded) -> None:
        target = loaded.target
        target.provide(self._config.max_num_seqs, self._kv_limit // target.kv_bytes_per_token)

    def _speculate(self, speculation: SpeculativeConfig) -> None:
        self.speculation = speculation
        self.drafting = drafting_for(
            speculation,
            self.loaded,
            self._load_draft,
            heads=self._heads,
            cache_dir=self._cache_dir,
            notify=self._notify,
        )

    def _load_draft(self, name: str) -> Loaded:
        # a draft's bits cannot change the text, but a model must agree with itself when it drafts for itself
        if self._amateur is not None and name == self._amateur.name and self.speculation.quantization is None:
            return lightened(self.speculation, self._amateur)  # else one of its own, as its weights will change
        key = name, self.speculation.quantization, self.speculation.draft_vocabulary
        if key not in self._drafts:
            loaded = self._load(name)
            self._provide(loaded)
            self._drafts[key] = lightened(self.speculation, loaded)
        return self._drafts[key]

    def speculating(self, config: Mapping[str, Any]) -> LLM:
        """The same loaded target under another `speculative_config`."""
        other, read = copy(self), SpeculativeConfig.of if self._contrast is None else self._contrast.drafting
        other._speculate(read(config))
        return other

    def traced(self, writer: TraceWriter, label: Mapping[str, Any] | None = None) -> LLM:
        """The same, telling every round to `trace.writing(...)`. label: what its requests are called there besides."""
        other = copy(self)
        other._tracer = writer.labelled(self.loaded.tokenizer, label)
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

    def get_default_sampling_params(self) -> SamplingParams:
        return self.default_params

    def get_tokenizer(self) -> Any:
        return self.loaded.tokenizer

    def encode(self, prompt: str, *, system: str | None = None, raw: bool = False) -> list[int]:
        """A question -> tokens, through the chat template unless `raw` or the model has none."""
        tokenizer = self.loaded.tokenizer
        if raw or not tokenizer.chat_template:
            if system is not None:
                reason = "raw prompts have no system message" if raw else "the model has no chat template"
                raise ValueError(f"system: {system!r} cannot be used; {reason}")
            return text_tokens(prompt, tokenizer)
        require_text("prompt", prompt)
        messages = [] if system is None else [{"role": "system", "content": system}]
        return chat_tokens([*messages, {"role": "user", "content": prompt}], tokenizer)

    def reply(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        name: str | None = None,
        *,
        index: int | None = None,
        watch: Watch | None = None,
    ) -> Reply:
        """A request, ready for `start`, the engine or the oracle, and who follows it. Nothing runs yet.

        prompt: see `inputs.Prompt`. index: which of `params.n` answers, each with noise of its own. watch: is shown
        every round's draft, laws and verdict; then the round's rule runs apart from its mates'.
        """
        require_params(params)
        target, tokenizer = self.loaded.target, self.loaded.tokenizer
        ids = tokens_of(prompt, tokenizer, target.vocab_size)
        room = target.max_context - len(ids)
        if room < 1:
            raise ValueError(f"prompt: {len(ids)} tokens leave no room in the model's context of {target.max_context}")
        params = params or self.default_params
        if index is None and params.n != 1:
            raise ValueError(f"n: {params.n} is not allowed here; this gives one answer, LLM.generate gives several")
        seed = secrets.randbits(32) if params.seed is None else params.seed
        limit, known = room if params.max_tokens is None else min(params.max_tokens, room), self._known
        form = params.structured_outputs
        grammar = None if form is None else self._grammars.of(form, len(ids))
        chain = chain_for(params, ids, known, None if grammar is None else grammar.mask)
        rule = fused(self.speculation.verify, params, allow_lossy=self.speculation.allow_lossy)
        request = Request(
            f"#{next(self._numbers)}" if name is None else name,
            ids,
            output_for(params, ids, limit, known),
            drafter_under(grammar, self.drafting.drafter),
            self.drafting.controller(params.temperature),
            rule,
            raw_law_of(params, chain),
            KernelChance(seed, index or 0),
        )
        stats = Stats()
        stats.seconds["load"] = self.load_seconds
        config = self.effective_config(params, len(ids), limit)
        tracer = None if self._tracer is None else self._tracer(request, seed, index or 0, config, self.load_seconds)
        for each in (watch, None if tracer is None else tracer.watch):
            request.rule = request.rule if each is None else watched(request.rule, each)
        return Reply(request, seed, config, stats, index or 0, learn=self.drafting.learn, follower=tracer)

    def start(self, prompt: Prompt, params: SamplingParams | None = None) -> Generation:
        """One request alone, through the oracle, not yet run; iterate over it to stream."""
        return Generation(self.loaded.target, self.reply(prompt, params))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue prompts, as vLLM does: a text (no chat template: that is `chat`), {"prompt": text}, tokens,
        {"prompt_token_ids": tokens}, or a list of these. An output for each, in order.

        sampling_params: for all, or one each; None is the model's own. use_tqdm: a progress bar, if standard error is
        a terminal. What is wrong with a prompt raises before anything runs. One prompt that fails later raises; of a
        list, an answer that fails has finish_reason "error", and the others are as they are alone.
        """
        if isinstance(prompts, np.ndarray):
            prompts = prompts.tolist()
        if isinstance(prompts, bytes) or not isinstance(prompts, Sequence | Mapping):
            raise ValueError(f"prompts: {prompts!r} is not allowed; it must be a text, tokens, or a list of these")
        single = isinstance(prompts, str | Mapping) or (len(prompts) > 0 and isinstance(prompts[0], int | np.integer))
        each: Any = [prompts] if single else list(prompts)
        for prompt in each:
            if is_conversation(prompt):
                raise ValueError(f"prompts: {prompt!r} is a conversation; use chat for it")
        return self._outputs("prompts", each, sampling_params, single, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """The next message of a conversation, or of each of a list of them, through the chat template; see
        `generate`. continue_final_message (with add_generation_prompt False): the rest of the last message.
        chat_template_kwargs: what the template itself may ask for, such as enable_thinking."""
        if isinstance(messages, str) or not isinstance(messages, Sequence):
            raise ValueError(f"messages: {messages!r} is not allowed; it must be a list of dicts with role and content")
        single = is_conversation(messages)
        conversations: Any = [messages] if single else list(messages)
        prompts = []
        for i, conversation in enumerate(conversations):
            try:
                if not single and not is_conversation(conversation):
                    raise ValueError(
                        f"{conversation!r} is not allowed; it must be a list of dicts with role and content"
                    )
                prompts.append(
                    chat_tokens(
                        conversation,
                        self.loaded.tokenizer,
                        add_generation_prompt=add_generation_prompt,
                        continue_final_message=continue_final_message,
                        template_options=chat_template_kwargs or {},
                    )
                )
            except ValueError as error:
                raise error if single else ValueError(f"messages[{i}]: {error}") from None
        return self._outputs("messages", prompts, sampling_params, single, use_tqdm)

    def _outputs(
        self,
        argument: str,
        prompts: Sequence[Prompt],
        given: SamplingParams | Sequence[SamplingParams] | None,
        single: bool,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        """All answers to all prompts. single: an error is raised, as it is the caller's only one."""
        params = list(given) if isinstance(given, Sequence) else [given] * len(prompts)
        for one in params:
            require_params(one)
        if len(params) != len(prompts):
            raise ValueError(
                f"sampling_params: {len(params)} for {len(prompts)} {argument}; give one for all, or one each"
            )
        groups: list[list[Reply]] = []
        for i, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
            try:
                groups.append(self._replies(prompt, one or self.default_params))
            except ValueError as error:
                raise error if single else ValueError(f"{argument}[{i}]: {error}") from None
        replies = [reply for group in groups for reply in group]
        found = {}
        with tqdm(total=len(replies), desc="answers", disable=None if use_tqdm else True) as bar:
            for reply, completion, error in self._answers(replies):
                if single and error is not None:
                    raise error
                found[reply] = completion
                bar.update()
        return [
            RequestOutput(
                group[0].request.name.partition(".")[0],
                text_of(prompt) if argument == "prompts" else self.loaded.tokenizer.decode(group[0].request.prompt),
                list(group[0].request.prompt),
                group[0].prompt_logprobs,
                [found[reply] for reply in group],
            )
            for prompt, group in zip(prompts, groups, strict=True)
        ]

    def _replies(self, prompt: Prompt, params: SamplingParams) -> list[Reply]:
        """One for each of `n`, under one seed."""
        if params.n > 1 and params.seed is None:
            params = replace(params, seed=secrets.randbits(32))
        name = f"#{next(self._numbers)}"
        names = [name] if params.n == 1 else [f"{name}.{i}" for i in range(params.n)]
        later = replace(params, prompt_logprobs=None)  # told once
        return [self.reply(prompt, later if i else params, each, index=i) for i, each in enumerate(names)]

    def stream(self, reply: Reply) -> Generator[Delta]:
        """Run one request and give its text as rounds commit it; what ends it is raised."""
        request = reply.request
        with self.running() as engine:
            engine.add(request)
            while request.output.finish_reason is None:
                for event in engine.step():
                    if event.step is None:
                        error = event.error or RuntimeError("engine: a request ended without a reason")
                        reply.fail(error)
                        raise error
                    yield reply.add(event.step)

    def answer(self, replies: Sequence[Reply]) -> Iterator[tuple[Reply, Completion]]:
        """Run requests together; each comes when it has ended. Those under way are cancelled if the caller stops."""
        for reply, completion, _ in self._answers(replies):
            yield reply, completion

    def _answers(self, replies: Sequence[Reply]) -> Iterator[tuple[Reply, Completion, Exception | None]]:
        with self.running() as engine:
            by_request = {id(reply.request): reply for reply in replies}
            for reply in replies:
                try:
                    engine.add(reply.request)
                except ValueError as error:
                    yield reply, reply.completion(error), error
            while engine.busy:
                for event in engine.step():
                    reply = by_request[id(event.request)]
                    if event.step is not None:
                        reply.add(event.step)
                    if event.ended:
                        yield reply, reply.completion(event.error), event.error

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

    def effective_config(self, params: SamplingParams, prompt_tokens: int, limit: int) -> dict[str, Any]:
        ours = {
            "exact": self.exact,
            "claim": self.claim,
            "engine": asdict(self._config) | {"kv_cache_memory_bytes": self._kv_limit},
            "speculation": self.drafting.as_config(),
            "contrastive": None if self._contrast is None else asdict(self._contrast),
            "not_applied": not_applied(self.loaded.generation),
        }
        return in_effect(self.loaded, ours, params, prompt_tokens, limit)
