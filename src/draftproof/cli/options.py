"""What several commands ask for in the same words, and what becomes of it."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .notes import note

if TYPE_CHECKING:
    from ..llm import LLM
    from ..sampling import SamplingParams

_Option = typer.Option

Model = Annotated[str, _Option(help="Folder, .gguf file, embedded model or hub name.")]
Draft = Annotated[
    str,
    _Option(
        help="auto (suffix lookup; auto:NAME: and a draft model), suffix, ngram, model:NAME, early_exit:LAYERS, "
        "eagle3:FOLDER, combined:suffix,model:NAME, or none."
    ),
]
NoSpeculation = Annotated[bool, _Option("--no-speculation", help="The same as --draft none.")]
Depth = Annotated[
    str | None,
    _Option(help="Most levels drafted in a round, or auto: as many as pay. Default: auto; 5 for rules but coupled."),
]
Tree = Annotated[
    str | None, _Option(metavar="WIDTHS", help="Draft trees: children a node, level by level, such as 4x2x1.")
]
ControllerName = Annotated[
    str | None,
    _Option(
        "--controller",
        help="fixed, threshold (less when little is accepted) or cost (as much as pays). Default: cost for auto, "
        "fixed for a number.",
    ),
]
SuffixCorpus = Annotated[
    str | None, _Option(metavar="FOLDER", help="Texts in which suffixes are looked up, besides the request's own.")
]
DraftQuantization = Annotated[
    str | None,
    _Option(help="int8 or int4: the draft model's weights in 8 or 4 bits. Quicker steps, a few hits fewer; on a CPU."),
]
DraftVocabulary = Annotated[
    int | None, _Option(help="The draft model proposes token ids below this alone: quicker steps, fewer hits.")
]
Verify = Annotated[
    str, _Option(help="coupled (same seed, same text), token, block, recursive, traversal, greedy_multi.")
]
Contrastive = Annotated[
    str | None,
    _Option(
        metavar="AMATEUR", help="Decode from the model against this smaller one, which drafts, too (--draft auto)."
    ),
]
Alpha = Annotated[
    float | None, _Option(help="With --contrastive: tokens must have this share of the likeliest. Default: 0.1.")
]
Beta = Annotated[float | None, _Option(help="With --contrastive: the weight of the contrast. Default: 0.5.")]
AllowLossy = Annotated[
    bool, _Option("--allow-lossy", help="Admit lossy_typical and lossy_lenient, which change what the model says.")
]
Temperature = Annotated[float | None, _Option(help="0 is greedy. Default: the model's, else 1.")]
TopK = Annotated[int | None, _Option(help="Keep the k likeliest tokens; 0 is off.")]
TopP = Annotated[float | None, _Option(help="Keep the likeliest tokens of this mass; 1 is off.")]
MinP = Annotated[float | None, _Option(help="Drop tokens below this share of the likeliest; 0 is off.")]
TypicalP = Annotated[float | None, _Option(help="Keep the tokens of typical surprise, up to this mass; 1 is off.")]
RepetitionPenalty = Annotated[
    float | None, _Option(help="Above 1, tokens of prompt and answer become less likely; 1 is off.")
]
FrequencyPenalty = Annotated[
    float | None, _Option(help="Taken from a token's logit for each time it is in the answer; 0 is off.")
]
PresencePenalty = Annotated[
    float | None, _Option(help="Taken from a token's logit once it is in the answer; 0 is off.")
]
MaxTokens = Annotated[int, _Option(help="Most tokens to emit.")]
Exact = Annotated[str, _Option(help="bits: same bits with speculation on or off. law: same law, no padding.")]
Dtype = Annotated[str, _Option(help="bfloat16, float32 or float16.")]
Device = Annotated[str, _Option(help="auto, cpu, cuda, ...")]
Threads = Annotated[int | None, _Option(help="CPU threads. Default: torch's.")]
System = Annotated[str | None, _Option(help="System message for the chat template.")]
KVMemoryBytes = Annotated[
    str | None, _Option(help="Bound on KV memory: bytes, or 512M, 1.5GiB, ... Default: half of what is free, to 4 GiB.")
]
Debug = Annotated[bool, _Option("--debug", help="Show tracebacks.")]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(?:([KMG])(?:iB)?)?", re.ASCII | re.IGNORECASE)


def kv_bytes(given: str | None) -> int | None:
    """--kv-cache-memory-bytes as a number.

    >>> kv_bytes("4096"), kv_bytes("512M"), kv_bytes("1.5 GiB"), kv_bytes(None)
    (4096, 536870912, 1610612736, None)
    """
    if given is None:
        return None
    found = _SIZE.fullmatch(given.strip())
    size = Fraction(found[1]) * _UNITS[(found[2] or "").upper()] if found else Fraction(0)
    if found is None or size < 1 or (found[2] is None and "." in found[1]):
        raise ValueError(
            f"--kv-cache-memory-bytes: {given!r} is not allowed; give a whole number >= 1, or a number with "
            "K, M, G, KiB, MiB or GiB (powers of 1024)"
        )
    return int(size)


def speculative_config(
    draft: str,
    off: bool,
    depth: str | None,
    verify: str,
    allow_lossy: bool,
    *,
    tree: str | None = None,
    controller: str | None = None,
    corpus: str | None = None,
    draft_vocabulary: int | None = None,
    quantization: str | None = None,
    amateur: str | None = None,
) -> dict[str, Any]:
    """--draft and its neighbours -> `speculative_config`. amateur: of --contrastive; under auto it drafts."""
    config: dict[str, Any] = {"verify": verify, "allow_lossy": allow_lossy} | drafter_named(draft)
    if amateur is not None and draft == "auto":
        config["model"] = amateur
    if off:
        return config | {"method": "none", "model": None, "early_exit_layers": None, "drafters": ()}
    config["num_speculative_tokens"] = _depth(depth)
    given: dict[str, Any] = {"tree": tree, "controller": controller, "suffix_corpus": corpus}
    given |= {"draft_vocabulary": draft_vocabulary, "quantization": quantization}
    return config | {name: value for name, value in given.items() if value is not None}


def contrastive_config(amateur: str | None, alpha: float | None, beta: float | None) -> dict[str, Any] | None:
    """--contrastive and its neighbours -> `contrastive`, checked."""
    given = {name: value for name, value in (("alpha", alpha), ("beta", beta)) if value is not None}
    if amateur is None:
        if given:
            raise ValueError(f"--{next(iter(given))}: it needs --contrastive, the amateur's name")
        return None
    from ..contrasting import ContrastiveConfig

    ContrastiveConfig(amateur, **given)
    return {"model": amateur} | given


def drafter_named(draft: str) -> dict[str, Any]:
    """--draft -> method and what it needs.

    >>> drafter_named("model:small")
    {'method': 'draft_model', 'model': 'small'}
    >>> drafter_named("combined:suffix,early_exit:8")
    {'early_exit_layers': 8, 'method': 'combined', 'drafters': ['suffix', 'early_exit']}
    """
    kind, _, rest = draft.partition(":")
    if kind == "combined" and rest:
        parts = [drafter_named(part) for part in rest.split(",")]
        found = {key: value for part in parts for key, value in part.items() if key != "method"}
        return found | {"method": "combined", "drafters": [part["method"] for part in parts]}
    if draft in ("auto", "ngram", "suffix", "none"):
        return {"method": draft}
    if kind == "auto" and rest:
        return {"method": "auto", "model": rest}
    if kind == "model" and rest:
        return {"method": "draft_model", "model": rest}
    if kind == "eagle3" and rest:
        return {"method": "eagle3", "model": rest}
    if kind == "early_exit" and rest.isdecimal():
        return {"method": "early_exit", "early_exit_layers": int(rest)}
    raise ValueError(
        f"--draft: {draft!r} is unknown; use auto, auto:NAME, suffix, ngram, model:NAME, early_exit:LAYERS, "
        "eagle3:FOLDER, combined:suffix,model:NAME or none"
    )


def _depth(given: str | None) -> int | str | None:
    """--num-speculative-tokens. None: what suits the rule."""
    if given is None or given == "auto":
        return given
    try:
        return int(given)
    except ValueError:
        raise ValueError(f"--num-speculative-tokens: {given!r} is not allowed; give a number, or auto") from None


def asked(given: dict[str, Any]) -> dict[str, Any]:
    """What of the sampling parameters was asked for; the model's own defaults hold for the rest.

    >>> asked({"temperature": 0.0, "top_k": None, "stop": []})
    {'temperature': 0.0}
    """
    return {name: value for name, value in given.items() if value is not None and value != []}


def biases(given: list[str] | None) -> dict[int, float] | None:
    """--logit-bias ID=BIAS, as often as it is given.

    >>> biases(["7=-100", "8=1.5"])
    {7: -100.0, 8: 1.5}
    """
    found = {}
    for each in given or ():
        token, _, bias = each.partition("=")
        try:
            found[int(token)] = float(bias)
        except ValueError:
            raise ValueError(f"--logit-bias: {each!r} is not allowed; give ID=BIAS, such as 42=-100") from None
    return found or None


def structured(json_schema: str | None, regex: str | None) -> dict[str, Any] | None:
    """--json-schema (its text, or a file that holds it) and --regex -> `structured_outputs`."""
    if json_schema is None:
        return None if regex is None else {"regex": regex}
    if regex is not None:
        raise ValueError("--regex: it cannot be used with --json-schema; give one of them")
    if not json_schema.lstrip().startswith("{"):
        try:
            json_schema = Path(json_schema).read_text(encoding="utf-8")
        except (OSError, ValueError):
            shown = json_schema if len(json_schema) <= 80 else f"{json_schema[:80]}…"
            raise ValueError(f"--json-schema: {shown!r} is neither a JSON object nor a file that holds one") from None
    try:
        return {"json": json.loads(json_schema)}
    except ValueError as error:
        raise ValueError(f"--json-schema: it is not JSON: {error}") from None


def check_settings(sampling: dict[str, Any], speculation: dict[str, Any]) -> None:
    """Refuse what needs no model to be refused, before seconds go into loading one."""
    from ..sampling import SamplingParams
    from ..speculation import SpeculativeConfig

    SpeculativeConfig.of(speculation)
    SamplingParams(**sampling)


def params(llm: LLM, given: dict[str, Any]) -> SamplingParams:
    """The model's defaults, overridden by what the caller gave."""
    from dataclasses import replace

    return replace(llm.default_params, **given)


def remarks(llm: LLM) -> None:
    """What somebody who reads the answers should know about this model, here and so configured."""
    from ..generation import not_applied

    if llm.exact == "bits" and not llm.loaded.target.plan.exact:
        note("on this machine a row's bits depend on the rows beside it: same law, but a seed's text may differ")
    if llm.claim == "lossy":
        note(f"{llm.speculation.verify} changes what the model says: this text does not have the model's law")
    for name, value in not_applied(llm.loaded.generation).items():
        note(f"the model's generation_config.json asks for {name} {value}, which is not applied")
