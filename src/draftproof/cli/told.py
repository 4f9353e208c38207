"""What came of a run, at the terminal, as JSON or in a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from .notes import note

if TYPE_CHECKING:
    from ..bench.record import ForwardCosts, Run
    from ..bench.sweep import Agreement, SweepPoint


def tell(found: Run, plot: Path | None, as_json: bool) -> None:
    """The figures, to standard output or into a picture, too."""
    from ..bench.figures import figures
    from ..bench.plots import draw
    from ..bench.report import lines

    if not found.measurements:
        note("nothing was measured")
        return
    print(json.dumps(figures(found).as_dict(), ensure_ascii=False) if as_json else lines(found))
    if plot is not None:
        draw(found, plot)


def tell_sweep(run: Run, plot: Path | None, as_json: bool) -> None:
    """The table, or one JSON object."""
    from ..bench.plots import draw_sweep
    from ..bench.sweep import agreement, left_out, mean_costs, points

    if not run.measurements:
        note("nothing was measured")
        return
    found = points(run)
    out, far = left_out(run), agreement(found)
    if as_json:
        told = {
            "points": [asdict(each) for each in found],
            "left_out": out,
            "costs": [asdict(each) for each in run.costs],
            "agreement": asdict(far) if far is not None else None,
        }
        print(json.dumps(told, ensure_ascii=False))
    else:
        costs = [_costs(mean_costs(run.costs))] if run.costs else []
        for line in [*costs, *(_table(found) if found else []), *out, *_remarks(found, far)]:
            print(line)
    if not found:
        note("nothing to compare with plain decoding")
    elif plot is not None:
        draw_sweep(found, plot)


def _costs(costs: ForwardCosts) -> str:
    from ..bench.sweep import series_of

    one = costs.rows[1]
    rows = ", ".join(f"{n}: {seconds / one:.2f}" for n, seconds in costs.rows.items() if n in (1, 2, 4, 8, 12, 16))
    levels: dict[str, list[float]] = {}
    for name, seconds in costs.levels.items():
        levels.setdefault(series_of(name), []).append(seconds)
    told = "; ".join(f"{series} {median(seconds) / one:.3f}" for series, seconds in levels.items())
    more = f"; a drafted level: {told}" if levels else ""
    return f"a pass of one row takes {1e3 * one:.1f} ms after {costs.context} tokens; in passes, by rows: {rows}{more}"


def _table(found: Sequence[SweepPoint]) -> list[str]:
    wide = max(len("drafter"), *(len(each.series) for each in found))
    lines = [f"{'':5} {'drafter':<{wide}}  {'draft':<10} tokens/pass  speed-up                 predicted"]
    for each in sorted(found, key=lambda each: (each.temperature, each.series)):
        interval = "" if each.low is None else f"[{each.low:.2f}, {each.high:.2f}]"
        predicted = "" if each.predicted is None else f"{each.predicted:9.2f}{' *' if each.own else ''}"
        lines.append(
            f"T={each.temperature:<3g} {each.series:<{wide}}  {each.label:<10} {each.tokens_per_pass:11.2f}  "
            f"{each.speed_up:8.2f} {interval:<15} {predicted}".rstrip()
        )
    return lines


def _remarks(found: Sequence[SweepPoint], far: Agreement | None) -> list[str]:
    """How many prompts do not count for which points, and how good the predictions are."""
    without: dict[str, list[str]] = {}
    for each in found:
        if each.ended:
            one = each.ended == 1
            words = "1 prompt ended in its" if one else f"{each.ended} prompts ended in their"
            said = f"{words} first round and {'does' if one else 'do'} not count"
            without.setdefault(f"T={each.temperature:g}: {said}", []).append(f"{each.series} {each.label}")
    lines = [f"{said}: {', '.join(names)}" for said, names in without.items()]
    if any(each.own for each in found):
        lines.append("* from its own acceptances, which tests no prediction")
    if far is not None:
        lines.append(f"predictions are off by {far.median:.1%} in the middle, by {far.largest:.1%} at most")
    return lines
