"""draftproof generate: answer one prompt, streaming, with speculation."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from .notes import note

if TYPE_CHECKING:
    from ..llm import LLM, Delta, Generation
    from ..sampling import SamplingParams
    from ..stats import Stats

_DRAFT, _RESET = "\033[32m", "\033[0m"

_Option = typer.Option


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    model: Annotated[str, _Option(help="Folder, .gguf file, embedded model or hub name.")] = "smollm2-135m",
    draft: Annotated[str, _Option(help="ngram, model:NAME, or none.")] = "ngram",
    no_speculation: Annotated[bool, _Option("--no-speculation", help="The same as --draft none.")] = False,
    num_speculative_tokens: Annotated[int, _Option(help="Most tokens drafted in a round.")] = 5,
    verify: Annotated[
        str, _Option(help="coupled (same seed, same text), token, block, recursive, traversal, greedy_multi.")
    ] = "coupled",
    allow_lossy: Annotated[
        bool,
        _Option("--allow-lossy", help="Admit lossy_typical and lossy_lenient, which change what the model says."),
    ] = False,
    temperature: Annotated[float | None, _Option(help="0 is greedy. Default: the model's, else 1.")] = None,
    top_k: Annotated[int | None, _Option(help="Keep the k likeliest tokens; 0 is off.")] = None,
    top_p: Annotated[float | None, _Option(help="Keep the likeliest tokens of this mass; 1 is off.")] = None,
    min_p: Annotated[float | None, _Option(help="Drop tokens below this share of the likeliest; 0 is off.")] = None,
    seed: Annotated[int | None, _Option(help="Same seed, same text. Default: drawn and reported.")] = None,
    stop: Annotated[list[str] | None, _Option(help="End the text before this string. Repeatable.")] = None,
    max_tokens: Annotated[int, _Option(help="Most tokens to emit.")] = 256,
    exact: Annotated[
        str, _Option(help="bits: same bits with speculation on or off. law: same law, no padding.")
    ] = "bits",
    dtype: Annotated[str, _Option(help="bfloat16, float32 or float16.")] = "bfloat16",
    device: Annotated[str, _Option(help="auto, cpu, cuda, ...")] = "auto",
    threads: Annotated[int | None, _Option(help="CPU threads. Default: torch's.")] = None,
    system: Annotated[str | None, _Option(help="System message for the chat template.")] = None,
    raw: Annotated[bool, _Option("--raw", help="Continue the prompt as it is, without the chat template.")] = False,
    as_json: Annotated[bool, _Option("--json", help="Print one JSON object instead of the text.")] = False,
    trace: Annotated[Path | None, _Option(help="Write every round to this file, as JSON Lines.")] = None,
    debug: Annotated[bool, _Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Answer a prompt, with speculation that leaves the model's output law exactly as it is.

    Text streams as it is committed; on a terminal, tokens that the drafter guessed right are green.

    Example: **draftproof generate "Write a Python class for a stack." --max-tokens 128**
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    speculation = speculative_config(draft, no_speculation, num_speculative_tokens, verify, allow_lossy)
    given: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    sampling = {name: value for name, value in given.items() if value is not None}
    sampling |= {"stop": tuple(stop or ()), "max_tokens": max_tokens}
    check_early(text, sampling, speculation, trace)

    from ..llm import LLM

    llm = LLM(
        model,
        speculative_config=speculation,
        dtype=dtype,
        device=device,
        threads=threads,
        exact=exact,
        notify=note,
    )
    request = llm.start(llm.encode(text, system=system, raw=raw), params(llm, sampling))
    if exact == "bits" and not llm.loaded.target.plan.exact:
        note("on this machine a row's bits depend on the rows beside it: same law, but a seed's text may differ")
    if llm.claim == "lossy":
        note(f"{verify} changes what the model says: this text does not have the model's law")
    for name, value in request.reply.config["not_applied"].items():
        note(f"the model's generation_config.json asks for {name} {value}, which is not applied")
    with aside(trace) as file:
        _stream(request, file, show=not as_json)
    if as_json:
        print(json.dumps(request.result().as_dict(), ensure_ascii=False))
    else:
        print(summary(request.reply.stats, request.reply.seed), file=sys.stderr)


def speculative_config(draft: str, off: bool, depth: int, verify: str, allow_lossy: bool) -> dict[str, Any]:
    """--draft and its neighbours -> `speculative_config`."""
    config: dict[str, Any] = {"num_speculative_tokens": depth, "verify": verify, "allow_lossy": allow_lossy}
    kind, _, name = draft.partition(":")
    if draft not in ("ngram", "none") and not (kind == "model" and name):
        raise ValueError(f"--draft: {draft!r} is unknown; use ngram, model:NAME or none")
    if off or draft == "none":
        return config | {"method": "none"}
    return config | ({"method": "ngram"} if draft == "ngram" else {"method": "draft_model", "model": name})


def check_early(text: str, sampling: dict[str, Any], speculation: dict[str, Any], trace: Path | None) -> None:
    """Refuse what needs no model to be refused, before seconds go into loading one."""
    from ..sampling import SamplingParams
    from ..speculation import SpeculativeConfig

    if not text.strip():
        raise ValueError("prompt: it is empty; give some text")
    SpeculativeConfig.of(speculation)
    SamplingParams(**sampling)
    if trace is not None and trace.is_dir():
        raise ValueError(f"--trace: {str(trace)!r} is a folder; it must be a file")
    if trace is not None and not trace.parent.is_dir():
        raise ValueError(f"--trace: there is no folder {str(trace.parent)!r} to write {trace.name} in")


def params(llm: LLM, given: dict[str, Any]) -> SamplingParams:
    """The model's defaults, overridden by what the caller gave."""
    from dataclasses import replace

    return replace(llm.default_params, **given)


def _stream(request: Generation, trace: IO[str] | None, show: bool) -> None:
    from ..trace import step_record

    colour = show and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    try:
        for index, delta in enumerate(request):
            if trace is not None:
                trace.write(json.dumps(step_record(index, delta.step)) + "\n")
            if show:
                print(rendered(delta, colour), end="", flush=True)
    finally:
        if show:
            print(flush=True)


def rendered(delta: Delta, colour: bool) -> str:
    """The delta as it is printed: accepted draft tokens green, the target's own tokens plain."""
    if not colour:
        return delta.text
    return "".join(f"{_DRAFT}{text}{_RESET}" if owner == "draft" else text for text, owner in delta.pieces)


def summary(stats: Stats, seed: int) -> str:
    """The last line: what was said, at what cost."""
    rate = stats.acceptance_rate
    drafted = "no drafts" if rate is None else f"{stats.accepted} of {stats.drafted} drafted accepted ({rate:.0%})"
    return (
        f"{stats.emitted} tokens, {stats.rounds} target passes, {stats.tokens_per_pass or 0:.2f} tokens/pass, "
        f"{stats.tokens_per_second or 0:.1f} tokens/s ({drafted}, seed {seed})"
    )


def aside(path: Path | None) -> Any:
    """A file to write: its name appears when it is complete, or as far as it got when interrupted."""
    return nullcontext() if path is None else _Aside(path)


class _Aside:
    """Writes PATH.part, renamed to PATH on leaving. A pipe or a device is written as it is."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        plain = self._path.is_file() or not self._path.exists()
        self._part = self._path.with_name(self._path.name + ".part") if plain else self._path

    def __enter__(self) -> IO[str]:
        self._file = self._part.open("w", encoding="utf-8")
        return self._file

    def __exit__(self, *error: object) -> None:
        self._file.close()
        if self._part != self._path:
            self._part.replace(self._path)
