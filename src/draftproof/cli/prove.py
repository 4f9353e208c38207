"""draftproof prove: every rule, by exact enumeration over fractions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..audit.mutants import Difference
    from ..audit.prove import Report


def prove(
    rule: Annotated[list[str] | None, typer.Option(help="Prove this rule alone. Repeatable.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, both laws of every fault in it.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show where each fault differs from the target.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> int:
    """Prove that the verification rules leave the target's law as it is. Exit status 1 if anything fails.

    Every random path of small decodes (chains to depth 4, trees to (2, 2), vocabularies of 1 to 4) is walked over exact
    fractions, through the loop that production runs; what is emitted must have the target's law, with tolerance zero.
    The proof itself is tested: it must reject every known fault and pass what is harmless.

    Example: **draftproof prove --rule block**
    """
    from ..audit.prove import as_dict
    from ..audit.prove import prove as proof
    from ..rules import LOSSY, RULES

    for name in rule or ():
        if name not in RULES:
            lossy = "changes the target's law, so there is nothing to prove" if name in LOSSY else "is unknown"
            raise ValueError(f"--rule: {name!r} {lossy}; known are {', '.join(RULES)}")
    reports = []
    if not as_json:
        print(f"{'rule':14} cases  largest deviation  mutants caught  harmless passed  seconds")
    for name in dict.fromkeys(rule or RULES):
        report = proof(name, _ticker())
        _clear()
        reports.append(report)
        if not as_json:
            _show(report, verbose)
    if as_json:
        print(json.dumps({"proven": all(report.proven for report in reports), "rules": [as_dict(r) for r in reports]}))
    else:
        _conclude(reports)
    return 0 if all(report.proven for report in reports) else 1


def _show(report: Report, verbose: bool) -> None:
    mutants = f"{len(report.caught)} of {len(report.caught) + len(report.missed)}"
    harmless = f"{len(report.harmless)} of {len(report.harmless) + len(report.accused)}"
    off = "exactly 0" if report.deviation == 0 else f"{float(report.deviation):.2e}"
    print(
        f"{report.rule:14} {report.cases:5}  {off:17}  {mutants:14}  {harmless:15}  {report.seconds:7.1f}", flush=True
    )
    for case, deviation in report.failed.items():
        print(f"  FAILED  {case}: the laws differ by {float(deviation):.2e} = {deviation}")
    for case, error in report.errors.items():
        print(f"  FAILED  {case}: {error}")
    for name in report.missed:
        print(f"  MISSED  {name!r}: this fault was not seen")
    for name, found in report.accused.items():
        print(f"  WRONG   {name!r} is harmless, but: {_line(found)}")
    if verbose:
        for name, found in report.caught.items():
            print(f"  caught  {name}: {_line(found)}")


def _line(found: Difference) -> str:
    expected, got = found.target.get(found.text, 0), found.emitted.get(found.text, 0)
    return (
        f"TV {float(found.deviation):.2e} in {found.case}; "
        f"text {' '.join(map(str, found.text))}: target {expected}, emitted {got}"
    )


def _conclude(reports: Sequence[Report]) -> None:
    cases, caught = sum(r.cases for r in reports), sum(len(r.caught) for r in reports)
    seconds = sum(r.seconds for r in reports)
    if all(report.proven for report in reports):
        print(f"proven: {cases} cases exactly; faults rejected: {caught}; {seconds:.1f} s")
    else:
        print(f"NOT PROVEN: {', '.join(r.rule for r in reports if not r.proven)}")


def _ticker():
    """Shows what is being worked on, on a terminal."""
    if not sys.stderr.isatty():
        return lambda message: None
    return lambda message: print(f"\r\033[K{message[:100]}", end="", file=sys.stderr, flush=True)


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
