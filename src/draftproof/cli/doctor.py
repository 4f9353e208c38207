"""draftproof doctor: what holds on this machine, measured."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from .notes import note

_Option = typer.Option


def doctor(
    model: Annotated[str, _Option(help="Folder, .gguf file, embedded model or hub name.")] = "smollm2-135m",
    dtype: Annotated[str, _Option(help="bfloat16, float32 or float16.")] = "bfloat16",
    device: Annotated[str, _Option(help="auto, cpu, cuda, ...")] = "auto",
    threads: Annotated[int | None, _Option(help="CPU threads. Default: torch's.")] = None,
    warm: Annotated[bool, _Option("--warm", help="Only compile the kernels, so that no first request waits.")] = False,
    as_json: Annotated[bool, _Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, _Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Measure which claim holds for a model on this machine: "bit-exact" or "same law".

    Rows computed in company (other chunks, other places, other requests, draft trees) are compared, bit by bit, with
    the same rows computed alone.

    Example: **draftproof doctor --dtype float32**; after installing, **draftproof doctor --warm**
    """
    if warm:
        _warm(as_json)
        return
    from ..doctor import claim, examine, forward_milliseconds, machine
    from ..llm import LLM

    llm = LLM(model, dtype=dtype, device=device, threads=threads, notify=note)
    target = llm.loaded.target
    findings = examine(target, progress=note if sys.stderr.isatty() else lambda message: None)
    verdict = claim(target, findings)
    report = {
        "machine": machine(),
        "model": llm.loaded.name,
        "dtype": dtype,
        "load_seconds": llm.load_seconds,
        "rows": asdict(target.plan),
        "findings": [asdict(finding) for finding in findings],
        "claim": verdict,
        "forward_ms": forward_milliseconds(target),
    }
    if as_json:
        print(json.dumps(report))
        return
    print(f"machine   {', '.join(f'{name} {value}' for name, value in report['machine'].items())}")
    print(f"model     {llm.loaded.name}, {dtype}, loaded in {llm.load_seconds:.1f} s")
    print(
        f"rows      a multiple of {target.plan.multiple}, at most {target.plan.most}; KV steps of {target.plan.kv_step}"
    )
    for finding in findings:
        print(f"bits      {finding.name}: {finding.differ} of {finding.rows} rows differ")
    print(f"forward   {', '.join(f'{rows} rows {ms:.1f} ms' for rows, ms in report['forward_ms'].items())}")
    meaning = {
        "bit-exact": "the same seed gives the same text with speculation on or off",
        "same law": "the text has the target's law; the same seed may give another text with speculation on",
    }
    print(f"claim     {verdict}: {meaning[verdict]}")


def _warm(as_json: bool) -> None:
    from time import perf_counter

    from ..kernels import warm

    began = perf_counter()
    warm(note)
    seconds = perf_counter() - began
    print(json.dumps({"kernels_seconds": seconds}) if as_json else f"kernels   ready after {seconds:.1f} s")
