"""draftproof chat: a conversation at the terminal, what was said before computed once."""

from __future__ import annotations

import signal
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from .notes import note
from .options import (
    AllowLossy,
    Alpha,
    Beta,
    Contrastive,
    ControllerName,
    Debug,
    Depth,
    Device,
    Draft,
    DraftQuantization,
    DraftVocabulary,
    Dtype,
    Exact,
    FrequencyPenalty,
    KVMemoryBytes,
    MaxTokens,
    MinP,
    Model,
    NoSpeculation,
    PresencePenalty,
    RepetitionPenalty,
    SuffixCorpus,
    System,
    Temperature,
    Threads,
    TopK,
    TopP,
    Tree,
    TypicalP,
    Verify,
    asked,
    check_settings,
    contrastive_config,
    kv_bytes,
    params,
    remarks,
    speculative_config,
)
from .shown import Caught, coloured, rendered, summary

if TYPE_CHECKING:
    from ..llm import LLM
    from ..replies import Reply
    from ..sampling import SamplingParams

_COMMANDS = {
    "/exit": "ends, as the end of the input does",
    "/reset": "forgets the conversation",
    "/help": "lists the commands",
}


def chat(
    model: Model = "smollm2-135m",
    draft: Draft = "auto",
    no_speculation: NoSpeculation = False,
    num_speculative_tokens: Depth = None,
    tree: Tree = None,
    controller: ControllerName = None,
    suffix_corpus: SuffixCorpus = None,
    draft_vocabulary: DraftVocabulary = None,
    draft_quantization: DraftQuantization = None,
    verify: Verify = "coupled",
    contrastive: Contrastive = None,
    alpha: Alpha = None,
    beta: Beta = None,
    allow_lossy: AllowLossy = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    repetition_penalty: RepetitionPenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    presence_penalty: PresencePenalty = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Turn n uses SEED + n, the first being turn 0, so that turns differ but repeat."),
    ] = None,
    max_tokens: MaxTokens = 512,
    exact: Exact = "bits",
    dtype: Dtype = "bfloat16",
    device: Device = "auto",
    threads: Threads = None,
    kv_cache_memory_bytes: KVMemoryBytes = None,
    system: System = None,
    debug: Debug = False,
) -> int:
    """Talk with a model: a line is a message, and the answer streams. What was said before is not computed again.

    Ctrl-C stops an answer; /reset forgets the conversation; /exit or the end of the input ends it; /help lists these.

    Example: **draftproof chat --temperature 0.7 --seed 1**
    """
    speculation = speculative_config(
        draft,
        no_speculation,
        num_speculative_tokens,
        verify,
        allow_lossy,
        tree=tree,
        controller=controller,
        corpus=suffix_corpus,
        draft_vocabulary=draft_vocabulary,
        quantization=draft_quantization,
        amateur=contrastive,
    )
    contrast = contrastive_config(contrastive, alpha, beta)
    sampling = asked(
        {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "typical_p": typical_p,
            "repetition_penalty": repetition_penalty,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "seed": seed,
            "max_tokens": max_tokens,
        }
    )
    check_settings(sampling, speculation)
    memory = kv_bytes(kv_cache_memory_bytes)

    from ..llm import LLM

    llm = LLM(
        model,
        speculative_config=speculation,
        contrastive=contrast,
        dtype=dtype,
        device=device,
        threads=threads,
        exact=exact,
        kv_cache_memory_bytes=memory,
        notify=note,
    )
    if not llm.loaded.tokenizer.chat_template:
        raise ValueError(f"--model: {model!r} has no chat template to talk with; use draftproof generate")
    remarks(llm)
    return converse(Conversation(llm, params(llm, sampling), system))


def converse(conversation: Conversation) -> int:
    """Read lines and answer them until there are no more."""
    while True:
        try:
            line = _line()
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return 130
        if line is None or line.strip() == "/exit":
            return 0
        if line.strip().startswith("/"):
            _command(line.strip(), conversation)
        elif line.strip():
            conversation.ask(line.strip())


def _line() -> str | None:
    """The next line; None at the end. Only a person is asked for it."""
    asked = sys.stdin.isatty()
    if asked and sys.stdout.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401  # gives `input` editing keys and a history
        try:
            return input("> ")
        except EOFError:
            print()
            return None
    if asked:
        print("> ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline() or None


def _command(word: str, conversation: Conversation) -> None:
    if word == "/reset":
        conversation.reset()
        note("the conversation is forgotten")
    elif word == "/help":
        for name, what in _COMMANDS.items():
            note(f"{name} {what}")
    else:
        note(f"{word}: there is no such command; known are {', '.join(_COMMANDS)}")


class Conversation:
    """What was said so far, and a model to say more. seed: see `chat`."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm, self._params = llm, params
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self.reset()
        self._tokens([*self.messages, {"role": "user", "content": "?"}])  # some templates refuse a system message

    def reset(self) -> None:
        self.messages = list(self._opening)
        self._turn = 0

    def ask(self, text: str) -> None:
        """A turn. A message that cannot be answered is named and taken back."""
        self.messages.append({"role": "user", "content": text})
        try:
            reply = self._reply()
            before = self._llm.engine.counts.reused
            answer = self._stream(reply)
        except (ValueError, RuntimeError) as error:
            self.messages.pop()
            note(f"{error}; the message is taken back, /reset starts anew")
            return
        self.messages.append({"role": "assistant", "content": answer})
        self._turn += 1
        reused = self._llm.engine.counts.reused - before
        of = len(reply.request.prompt)
        print(f"{summary(reply.stats, reply.seed)}, {reused} of {of} prompt tokens reused", file=sys.stderr)
        output, most = reply.request.output, self._params.max_tokens
        if output.finish_reason == "length" and most is not None and output.limit < most:
            note("the answer was cut: the model's context is full; /reset starts anew")

    def _tokens(self, messages: list[dict[str, str]]) -> list[int]:
        from ..inputs import chat_tokens

        return chat_tokens(messages, self._llm.loaded.tokenizer)

    def _reply(self) -> Reply:
        from dataclasses import replace

        ids, most = self._tokens(self.messages), self._llm.loaded.target.max_context
        if len(ids) >= most:
            raise ValueError(
                f"messages: the conversation, {len(ids)} tokens, does not fit the model's context of {most}"
            )
        seed = self._params.seed
        return self._llm.reply(
            ids, replace(self._params, seed=None if seed is None else (seed + self._turn) % 2**64), f"turn {self._turn}"
        )

    def _stream(self, reply: Reply) -> str:
        """Run it and show it; what it said, all of it or up to Ctrl-C."""
        colour, output = coloured(), reply.request.output
        with Caught(signal.SIGINT) as interrupt, closing(self._llm.stream(reply)) as deltas:
            try:
                for delta in deltas:
                    print(rendered(delta, colour), end="", flush=True)
                    if interrupt.came:
                        break  # between rounds, so that what it computed is kept
            finally:
                print(flush=True)
        if interrupt.came and output.finish_reason is None:
            note("stopped")
        return output.shown
