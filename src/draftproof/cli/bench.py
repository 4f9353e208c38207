"""draftproof bench: measurements, each against its peers in the same run."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from .measure import report, run
from .notes import note
from .sweep import sweep

if TYPE_CHECKING:
    from ..bench.forward import Curve
    from ..bench.kernels import Cell

_Option = typer.Option


class _RunByDefault(TyperGroup):
    """`bench --draft ngram` is `bench run --draft ngram`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(
    cls=_RunByDefault, no_args_is_help=True, help="Measure, each time against peers in the same run. Default: run."
)
bench.command()(run)
bench.command()(report)
bench.command()(sweep)


@bench.command()
def kernels(
    batch: Annotated[list[int] | None, _Option(help="Requests. Repeatable. Default: 1 to 32.")] = None,
    vocab: Annotated[list[int] | None, _Option(help="Vocabulary size. Repeatable. Default: 32000 to 262144.")] = None,
    depth: Annotated[list[int] | None, _Option(help="Drafted tokens. Repeatable. Default: 4 and 8.")] = None,
    top_p: Annotated[list[float] | None, _Option(help="Repeatable. Default: 1 (off) and 0.9.")] = None,
    threads: Annotated[int | None, _Option(help="CPU threads. Default: all.")] = None,
    as_json: Annotated[bool, _Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, _Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Time the verify step from raw logits: ours, NumPy's textbook loop, Hugging Face's function, plain torch.

    The bound is the time to read the rows that had to be read, at the bandwidth measured beside it.

    Example: **draftproof bench kernels --batch 8 --vocab 151936**
    """
    for name, values in (("--batch", batch), ("--vocab", vocab), ("--depth", depth), ("--threads", threads)):
        for value in values if isinstance(values, list) else [values]:
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value} is not allowed; it must be at least 1")
    for value in top_p or ():
        if not 0.01 <= value <= 1:
            raise ValueError(f"--top-p: {value} is not allowed; it must be in [0.01, 1]")

    from ..bench.kernels import BATCHES, DEPTHS, TOP_P, VOCABULARIES, grid, one_draw, record
    from ..doctor import machine

    _use(threads)
    vocabularies = vocab or VOCABULARIES
    draws = {v: one_draw(v) for v in vocabularies}
    if not as_json:
        for v, each in draws.items():
            print(f"one draw of {v}: numpy {each['numpy']:.3f} ms, kernel {each['kernel']:.3f} ms")
        print(_HEAD)
    cells = []
    for cell in grid(batch or BATCHES, vocabularies, depth or DEPTHS, top_p or TOP_P):
        cells.append(record(cell))
        if not as_json:
            print(_line(cell), flush=True)
    if as_json:
        print(json.dumps({"machine": machine(), "one_draw_ms": draws, "cells": cells}))


_HEAD = (
    "  B  K       V  top-p   B·K·V   GB/s | ms, and times the bound: coupled     token         block        "
    "| times our token: textbook  hugging face  torch"
)


def _line(cell: Cell) -> str:
    ms, bound = cell.milliseconds, cell.bound
    ours = "  ".join(f"{ms[rule]:7.3f} {ms[rule] / bound[rule]:4.1f}x" for rule in bound)
    peers = "  ".join(f"{ms[name] / ms['token']:8.1f}" for name in ("textbook", "hugging face", "torch"))
    return (
        f"{cell.batch:3} {cell.depth:2} {cell.vocabulary:7} {cell.top_p:6} {cell.size:7.1e} {cell.bandwidth:6.1f} | "
        f"{ours} | {peers}"
    )


@bench.command()
def forward(
    model: Annotated[str, _Option(help="Folder, .gguf file, embedded model or hub name.")] = "smollm2-135m",
    dtype: Annotated[str, _Option(help="bfloat16, float32 or float16.")] = "bfloat16",
    rows: Annotated[list[int] | None, _Option(help="Rows in a forward. Repeatable. Default: 1 to 64.")] = None,
    context: Annotated[list[int] | None, _Option(help="Tokens before them. Repeatable. Default: 128 to 8000.")] = None,
    threads: Annotated[int | None, _Option(help="CPU threads. Default: torch's.")] = None,
    drawing: Annotated[Path | None, _Option("--draw", help="Also draw the curves: a .svg or .png file.")] = None,
    as_json: Annotated[bool, _Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, _Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Time a forward by its rows and its context, against Hugging Face's model in eager mode.

    Example: **draftproof bench forward --context 128 --context 2048 --draw forward.svg**
    """
    for name, values in (("--rows", rows), ("--context", context)):
        for value in values or ():
            if value < 1:
                raise ValueError(f"{name}: {value} is not allowed; it must be at least 1")

    from ..bench.forward import CONTEXTS, ROWS, curves, hugging_face
    from ..bench.forward import draw as drawn
    from ..doctor import machine
    from ..llm import LLM
    from ..models.load import DTYPES

    llm = LLM(model, dtype=dtype, device="cpu", threads=threads, notify=note)
    peer = hugging_face(llm.loaded.path, DTYPES[dtype])
    found = []
    progress = note if sys.stderr.isatty() else lambda message: None
    for curve in curves(llm.loaded.target, peer, rows=rows or ROWS, contexts=context or CONTEXTS, progress=progress):
        found.append(curve)
        if not as_json:
            _show(curve)
    if not found:
        raise ValueError(f"--context: none fits the model, which takes {llm.loaded.target.max_context} tokens")
    if drawing is not None:
        drawn(found, drawing)
    if as_json:
        report: dict[str, Any] = {"machine": machine(), "model": llm.loaded.name, "dtype": dtype}
        print(json.dumps(report | {"curves": [asdict(curve) for curve in found]}))


def _show(curve: Curve) -> None:
    ours, theirs = curve.milliseconds["draftproof"], curve.milliseconds["hugging face"]
    rates = {name: curve.context / seconds for name, seconds in curve.prefill.items()}
    print(
        f"context {curve.context}: prefill " + ", ".join(f"{name} {rate:.0f} tokens/s" for name, rate in rates.items())
    )
    print("  rows          " + "".join(f"{n:>8}" for n in ours))
    print("  draftproof ms " + "".join(f"{ms:8.1f}" for ms in ours.values()))
    print("  hugging face  " + "".join(f"{ms:8.1f}" for ms in theirs.values()))
    one = next(iter(theirs.values()))
    print(
        f"  over theirs of {next(iter(theirs))} row " + "".join(f"{ms / one:8.2f}" for ms in ours.values()), flush=True
    )


def _use(threads: int | None) -> None:
    import torch

    from ..kernels import use_threads, warm

    if threads is not None:
        torch.set_num_threads(threads)
        use_threads(threads)
    warm(note)
