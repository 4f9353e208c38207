"""What came of a run, at the terminal, as JSON or in a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .notes import note

if TYPE_CHECKING:
    from ..bench.record import Run


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
    from ..bench.sweep import agreement, mean_costs, points

    if not run.measurements:
        note("nothing was measured")
        return
    found = points(run)
    far = agreement(found)
    if as_json:
        print(
            json.dumps(
                {
                    "points": [asdict(each) for each in found],
                    "costs": [asdict(each) for each in run.costs],
                    "agreement": far,
                }
            )
        )
    else:
        if run.costs:
            print(_costs(mean_costs(run.costs)))
        print(_table(found))
        if far is not None:
            print(f"predictions are off by {far:.1%} in the middle")
    if plot is not None:
        draw_sweep(found, plot)


def _costs(costs: Any) -> str:
    one = costs.rows[1]
    rows = ", ".join(f"{n}: {seconds / one:.2f}" for n, seconds in costs.rows.items() if n in (1, 2, 4, 8, 12, 16))
    levels = {name.partition(" K=")[0]: f"{seconds / one:.3f}" for name, seconds in costs.levels.items()}
    more = f"; a drafted level: {', '.join(f'{name} {share}' for name, share in levels.items())}" if levels else ""
    return f"a pass of one row takes {1e3 * one:.1f} ms after {costs.context} tokens; in passes, by rows: {rows}{more}"


def _table(found: Sequence[Any]) -> str:
    wide = max(len(each.series) for each in found)
    lines = [f"{'':4} {'drafter':<{wide}}  {'draft':<10} tokens/pass  speed-up                predicted"]
    for each in sorted(found, key=lambda each: (each.temperature, each.series)):
        interval = "" if each.low is None else f"[{each.low:.2f}, {each.high:.2f}]"
        predicted = "" if each.predicted is None else f"{each.predicted:9.2f}"
        lines.append(
            f"T={each.temperature:<3g}{each.series:<{wide}}  {each.label:<10} {each.tokens_per_pass:11.2f}  "
            f"{each.speed_up:8.2f} {interval:<14} {predicted}"
        )
    return "\n".join(lines)
