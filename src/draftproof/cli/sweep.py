"""draftproof bench sweep: how long and how wide to draft, measured and predicted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .measure import (
    AsJson,
    Count,
    Given,
    MostTokens,
    Output,
    Plot,
    Prompts,
    Repeat,
    Temperatures,
    check_places,
    configurations,
    measured,
)
from .options import Debug, DraftQuantization, DraftVocabulary, Exact, Model, Threads
from .told import tell_sweep

_Option = typer.Option
_DEEPEST = 64


def sweep(
    model: Model = "smollm2-135m",
    draft: Annotated[
        list[str] | None, _Option("--draft", help="As in generate, but auto. Repeatable. Default: suffix.")
    ] = None,
    depths: Annotated[
        str, _Option(help="Drafted tokens: numbers and ranges, such as 1-4,8. 0 is plain decoding, always there.")
    ] = "0-4,6,8,12,16",
    tree: Annotated[
        list[str] | None, _Option("--tree", metavar="WIDTHS", help="Also this tree, such as 4x2x1. Repeatable.")
    ] = None,
    layers: Annotated[
        list[int] | None,
        _Option("--layers", help="Early exits after so many layers, in place of --draft: draft size. Repeatable."),
    ] = None,
    draft_vocabulary: DraftVocabulary = None,
    draft_quantization: DraftQuantization = None,
    temperature: Temperatures = None,
    prompts: Prompts = None,
    count: Count = 12,
    max_tokens: MostTokens = 64,
    repeat: Repeat = 1,
    seed: Annotated[int, _Option(help="Of the first prompt; the others' follow.")] = 0,
    output: Output = None,
    plot: Plot = None,
    threads: Threads = None,
    exact: Exact = "bits",
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Measure the speed-up of every depth and tree of a drafter, beside what theory predicts from measured costs.

    Speed-ups are of decoding alone, without the reading of prompts. Predicted: from the acceptances of the deepest
    chain and the cost of forwards, measured in the same run. Of the deepest chain itself and of trees, it is from their
    own acceptances; these are marked, and do not count for how good predictions are.

    Example: **draftproof bench sweep --model ./qwen-1.5b --draft model:./qwen-0.5b --depths 0-8 --plot sweep.svg**

    Example: **draftproof bench sweep --layers 4 --layers 8 --layers 16 --depths 1,2,4 --temperature 0 --temperature 1**
    """
    from ..bench.session import Plan

    chosen = _drafts(draft, layers)
    chains = [str(depth) for depth in numbers(depths) if depth > 0]
    if not chains and not tree:
        raise ValueError("--depths: nothing but 0 is plain decoding alone; give a depth above 0, or a --tree")
    systems = {}
    if chains:
        systems |= configurations(
            Given(chosen, depths=chains, draft_vocabulary=draft_vocabulary, quantization=draft_quantization)
        )
    if tree:
        systems |= configurations(
            Given(chosen, trees=tree, draft_vocabulary=draft_vocabulary, quantization=draft_quantization)
        )
    plan = Plan(
        model,
        systems,
        temperatures=tuple(temperature or (0.0,)),
        questions=prompts,
        count=count,
        max_tokens=max_tokens,
        repeat=repeat,
        seed=seed,
        bounds=0,
        costs=True,
        threads=threads,
        exact=exact,
    )
    check_places(output, plot, None, {"--prompts": None if prompts is None else Path(prompts)})
    found, status = measured(plan, output)
    tell_sweep(found, plot, as_json)
    return status


def _drafts(draft: Sequence[str] | None, layers: Sequence[int] | None) -> list[str]:
    if draft and layers:
        raise ValueError(f"--layers: {layers} cannot be used with --draft {draft[0]}; give one of them")
    for each in draft or ():
        if each == "none" or each.partition(":")[0] == "auto":
            raise ValueError(
                f"--draft: {each!r} chooses no depth that could be swept; use suffix, ngram, model:NAME, ..."
            )
    return [f"early_exit:{each}" for each in layers] if layers else list(draft or ["suffix"])


def numbers(given: str) -> list[int]:
    """--depths.

    >>> numbers("0-2,5"), numbers("8")
    ([0, 1, 2, 5], [8])
    """
    found: set[int] = set()
    for part in given.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part, re.ASCII)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not low <= high <= _DEEPEST:
            raise ValueError(f"--depths: {given!r} is not allowed; give numbers and ranges up to {_DEEPEST}, as 0-4,8")
        found.update(range(low, high + 1))
    return sorted(found)
