"""draftproof generate: answer one prompt, streaming, or a file of them, with speculation."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .jobs import perform, prepare
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
    biases,
    check_settings,
    contrastive_config,
    kv_bytes,
    params,
    remarks,
    speculative_config,
    structured,
)
from .places import check_laws, check_trace
from .shown import coloured, rendered, summary

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ..llm import LLM
    from ..replies import Delta

_Option = typer.Option


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads it from standard input.")] = None,
    prompts: Annotated[
        str | None,
        _Option(
            metavar="FILE",
            help="Answer every prompt of a file: one a line, or JSON Lines if it is named .jsonl or .ndjson; - is "
            "standard input. Fields: prompt or messages, id, system, sampling parameters (not n, prompt_logprobs).",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        _Option(help="With --prompts: write here, not to standard output. The same command goes on where one stopped."),
    ] = None,
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
    logit_bias: Annotated[
        list[str] | None, _Option(metavar="ID=BIAS", help="Add to a token's logit, -100 .. 100. Repeatable.")
    ] = None,
    bad_word: Annotated[list[str] | None, _Option(help="A text that is not said. Repeatable.")] = None,
    json_schema: Annotated[
        str | None, _Option(help="The answer is JSON of this schema (its text, or a file). Needs draftproof[grammar].")
    ] = None,
    regex: Annotated[
        str | None,
        _Option(help="The answer matches this; \\d is any Unicode digit, [0-9] is not. Needs draftproof[grammar]."),
    ] = None,
    seed: Annotated[
        int | None,
        _Option(help="Same seed, same text, for each prompt as alone. Default: drawn for each, and reported."),
    ] = None,
    stop: Annotated[list[str] | None, _Option(help="End the text before this string. Repeatable.")] = None,
    stop_token_id: Annotated[list[int] | None, _Option(help="End the text at this token. Repeatable.")] = None,
    ignore_eos: Annotated[bool, _Option("--ignore-eos", help="The model's own end does not end the text.")] = False,
    min_tokens: Annotated[int, _Option(help="Tokens that no end may come before.")] = 0,
    max_tokens: MaxTokens = 256,
    logprobs: Annotated[
        int | None, _Option(help="With --json or --prompts: tell log-probabilities, of so many tokens beside each.")
    ] = None,
    processed_logprobs: Annotated[
        bool, _Option("--processed-logprobs", help="Those of the law that tokens are drawn from, not the model's own.")
    ] = False,
    exact: Exact = "bits",
    dtype: Dtype = "bfloat16",
    device: Device = "auto",
    threads: Threads = None,
    disable_by_batch_size: Annotated[
        int | None, _Option(help="Draft nothing while more prompts than this are answered at once.")
    ] = None,
    max_num_seqs: Annotated[int, _Option(help="Most prompts answered at once.")] = 16,
    max_num_batched_tokens: Annotated[int, _Option(help="Most rows of a forward.")] = 256,
    kv_cache_memory_bytes: KVMemoryBytes = None,
    no_prefix_caching: Annotated[
        bool, _Option("--no-prefix-caching", help="Compute anew what prompts that begin alike share.")
    ] = False,
    check: Annotated[
        bool, _Option("--check", help="Compare all caches with a replay after every round. Slow.")
    ] = False,
    system: System = None,
    raw: Annotated[bool, _Option("--raw", help="Continue the prompt as it is, without the chat template.")] = False,
    as_json: Annotated[bool, _Option("--json", help="Print one JSON object instead of the text.")] = False,
    trace: Annotated[
        Path | None, _Option(help="Write every round to this file, as JSON Lines; draftproof show reads it.")
    ] = None,
    trace_laws: Annotated[
        int | None, _Option(metavar="M", help="With --trace: the M likeliest tokens of every law, too. Slower.")
    ] = None,
    debug: Debug = False,
) -> int:
    """Answer a prompt, with speculation that leaves the model's output law exactly as it is.

    Text streams as it is committed; on a terminal, tokens that the drafter guessed right are green. With --prompts,
    many are answered together, each as alone, one JSON object a line.

    Example: **draftproof generate "Write a Python class for a stack." --max-tokens 128**

    Example: **draftproof generate --prompts questions.txt --output answers.jsonl**

    Example: **draftproof generate "Describe a cat." --json-schema '{"type": "object"}' --temperature 0.7 --seed 1**

    Example: **draftproof generate "Name a colour." --stop "." --bad-word red --logit-bias 42=-100 --logprobs 2 --json**

    A line of a JSON Lines file: **{"id": 1, "messages": [{"role": "user", "content": "Hi"}], "top_p": 0.9}**
    """
    _one_or_many(prompt, prompts, output, as_json)
    check_laws(trace_laws, trace)
    check_trace(trace, {"--prompts": None if prompts in (None, "-") else Path(prompts), "--output": output})
    if logprobs is not None and prompts is None and not as_json:
        raise ValueError(f"--logprobs: {logprobs} needs --json; a text has no room for them")
    if processed_logprobs and logprobs is None:
        raise ValueError("--processed-logprobs: it needs --logprobs, how many to tell")
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
    speculation["disable_by_batch_size"] = disable_by_batch_size
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
            "logit_bias": biases(logit_bias),
            "bad_words": bad_word,
            "structured_outputs": structured(json_schema, regex),
            "seed": seed,
            "stop": stop,
            "stop_token_ids": stop_token_id,
            "ignore_eos": ignore_eos,
            "min_tokens": min_tokens,
            "max_tokens": max_tokens,
            "logprobs": logprobs,
            "logprobs_mode": "processed_logprobs" if processed_logprobs else None,
        }
    )
    memory = kv_bytes(kv_cache_memory_bytes)
    text = sys.stdin.read() if prompt == "-" else prompt
    check_early(text, sampling, speculation)
    job = None if prompts is None else prepare(prompts, output, sampling, system, raw)

    from ..llm import LLM

    llm = LLM(
        model,
        speculative_config=speculation,
        contrastive=contrast,
        dtype=dtype,
        device=device,
        threads=threads,
        exact=exact,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_memory_bytes=memory,
        enable_prefix_caching=not no_prefix_caching,
        check=check,
        notify=note,
    )
    if job is not None:
        remarks(llm)
        with _traced(llm, trace, trace_laws) as told:
            status = perform(job, told)
            if status > 1:  # a signal stopped it, so that the trace is not whole
                raise typer.Exit(status)
        return status
    with _traced(llm, trace, trace_laws) as told:
        reply = told.reply(llm.encode(text or "", system=system, raw=raw), params(llm, sampling))
        remarks(llm)
        try:
            _show(told.stream(reply), show=not as_json)
        except KeyboardInterrupt:
            print(f"{summary(reply.stats, reply.seed)}, stopped", file=sys.stderr)
            raise
    if as_json:
        print(json.dumps(reply.completion().as_dict(), ensure_ascii=False))
    else:
        print(summary(reply.stats, reply.seed), file=sys.stderr)
    return 0


def _one_or_many(prompt: str | None, prompts: str | None, output: Path | None, as_json: bool) -> None:
    """Refuse what does not go together."""
    if prompt is None and prompts is None:
        raise ValueError("prompt: it is missing; give a prompt, - to read it from standard input, or --prompts FILE")
    if prompt is not None and prompts is not None:
        raise ValueError(f"prompt: {prompt!r} and --prompts {prompts!r} are both given; give one of them")
    if prompts is None and output is not None:
        raise ValueError(f"--output: {str(output)!r} needs --prompts; the answer to one prompt is on standard output")
    if prompts is not None and as_json:
        raise ValueError("--json: it is for one prompt; with --prompts every answer is a line of JSON anyway")


def check_early(text: str | None, sampling: dict[str, Any], speculation: dict[str, Any]) -> None:
    """Refuse what needs no model to be refused, before seconds go into loading one. text: None for a file of them."""
    if text is not None and not text.strip():
        raise ValueError("prompt: it is empty; give some text")
    check_settings(sampling, speculation)


@contextmanager
def _traced(llm: LLM, trace: Path | None, laws: int | None) -> Generator[LLM]:
    """The same, telling its rounds to a file if one is named."""
    if trace is None:
        yield llm
        return
    from ..aside import part_of
    from ..trace import writing

    try:
        with writing(trace, laws or 0) as writer:
            yield llm.traced(writer)
    except (KeyboardInterrupt, typer.Exit):
        part = part_of(trace)
        if part.is_file():
            note(f"the trace as far as it came is in {part}")
        raise


def _show(deltas: Iterator[Delta], show: bool) -> None:
    colour = show and coloured()
    try:
        for delta in deltas:
            if show:
                print(rendered(delta, colour), end="", flush=True)
    finally:
        if show:
            print(flush=True)
