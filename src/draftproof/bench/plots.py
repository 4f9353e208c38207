"""Pictures: of a run, by category, by depth and by phase; of a sweep over depths, measured and predicted."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .bootstrap import Interval
from .drawing import GREY, colours, require_able, saved
from .figures import PHASES, DepthBound, Figures, SettingFigures, SystemFigures, figures
from .record import AGAIN, PLAIN, Run

if TYPE_CHECKING:
    from .sweep import SweepPoint

__all__ = ["draw", "draw_sweep", "require_able"]

_WIDTH = 14.0
_PHASE_COLOURS = ("#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#BBBBBB")
_HATCH = "////"  # whoever is not ours
_SPEED = "tokens a second, relative to plain"
_PHASE_NAMES = {"prefill": "prefill, up to the\nfirst forward's end"}
_FEW = 20  # rounds; a share of fewer is not drawn

_Panel = tuple[float, Callable[[Any], None]]
"""Inches high, and what draws it."""


def draw(run: Run | Figures, path: Path) -> None:
    """All settings, one below the other, each with the panels it has data for. The format is the path's ending."""
    found = run if isinstance(run, Figures) else figures(run)
    colour = colours([name for name in found.systems if name not in (PLAIN, AGAIN)])
    panels = [_panels(setting, colour) for setting in found.settings]

    def fill(figure: Any) -> None:
        parts = figure.subfigures(len(panels), 1, height_ratios=[_height(each) for each in panels], squeeze=False)
        for part, setting, rows in zip(parts[:, 0], found.settings, panels, strict=True):
            part.suptitle(_title(setting), fontsize="x-large", fontweight="bold", x=0.01, ha="left")
            places = part.subfigures(len(rows), 1, height_ratios=[inches for inches, _ in rows], squeeze=False)
            for place, (_, panel) in zip(places[:, 0], rows, strict=True):
                panel(place)

    saved(path, (_WIDTH, sum(map(_height, panels))), fill)


def _title(setting: SettingFigures) -> str:
    kind = "greedy" if setting.temperature == 0 else f"temperature {setting.temperature:g}"
    together = f", {setting.batch} at once" if setting.batch > 1 else ""
    return f"{kind}{together}, {setting.dtype}, {setting.questions} prompt{'' if setting.questions == 1 else 's'}"


def _height(rows: Sequence[_Panel]) -> float:
    return 0.5 + sum(inches for inches, _ in rows)


def _panels(setting: SettingFigures, colour: Mapping[str, str]) -> list[_Panel]:
    found: list[_Panel] = []
    others = [each for each in setting.systems if each.name not in (PLAIN, AGAIN)]
    compared = [each for each in others if each.against_plain is not None]
    if compared:
        found.append((4.4, lambda place: _speed_ups(place, setting, compared, colour)))
    drafting = [each for each in others if _by_depth(each) or _seen(each)]
    if drafting:
        found.append((4.0, lambda place: _acceptance(place, drafting, colour)))
    found.append((1.5 + 0.36 * len(setting.systems), lambda place: _times(place, setting.systems)))
    return found


# speed-up by category


def _speed_ups(
    place: Any, setting: SettingFigures, systems: Sequence[SystemFigures], colour: Mapping[str, str]
) -> None:
    axes = place.subplots()
    names = setting.categories if len(setting.categories) > 1 else []
    wide = min(0.84 / len(systems), 0.25)
    for i, system in enumerate(systems):
        bars = _bars(system, names)
        axes.bar(
            [at + (i - (len(systems) - 1) / 2) * wide for at in bars],
            [each.value for each in bars.values()],
            width=wide * 0.92,
            yerr=_whiskers(list(bars.values())),
            error_kw={"elinewidth": 0.9, "ecolor": "#333333"},
            color=colour[system.name],
            hatch=None if system.kind == "ours" else _HATCH,
            edgecolor="white",
            linewidth=0,
            label=_folded(system.name, 30),
        )
    axes.axhline(1, color="black", linewidth=1)
    if setting.noise is not None and setting.noise.low is not None:
        band = "noise: plain against itself"
        axes.axhspan(setting.noise.low, setting.noise.high, color=GREY, alpha=0.5, zorder=1.5, linewidth=0, label=band)
    if names:
        axes.axvline(0.5, color=GREY, linewidth=0.8)
    _name_groups(axes, ["all", *names])
    axes.set(title="Speed-up over plain decoding", ylabel=_SPEED, xlim=(-0.5, len(names) + 0.5))
    axes.grid(axis="y", alpha=0.3)
    sure = any(each.low is not None for system in systems for each in _bars(system, names).values())
    title = "whiskers: 95 % interval" if sure else None
    place.legend(loc="outside right upper", fontsize="small", title=title, title_fontsize="small")


def _bars(system: SystemFigures, categories: Sequence[str]) -> dict[int, Interval]:
    """By place: the mix, then the categories that the system has."""
    found = system.against_plain
    if found is None:
        return {}
    return {0: found.mix} | {at: found.categories[n] for at, n in enumerate(categories, 1) if n in found.categories}


def _whiskers(found: Sequence[Interval]) -> list[list[float]]:
    """Below and above, for error bars; none where there is no interval. Rounding may put a bar's end beyond it."""
    return [
        [0.0 if each.low is None else max(0.0, each.value - each.low) for each in found],
        [0.0 if each.high is None else max(0.0, each.high - each.value) for each in found],
    ]


def _name_groups(axes: Any, names: Sequence[str]) -> None:
    folded = [_folded(name, 13) for name in names]
    slanted = len(names) > 4 and any(len(line) > 13 for name in folded for line in name.split("\n"))
    axes.set_xticks(range(len(names)), folded, fontsize="small" if len(names) < 10 else "x-small")
    for label in axes.get_xticklabels() if slanted else ():
        label.set(rotation=25, ha="right", rotation_mode="anchor")
    axes.tick_params(axis="x", length=0)


def _folded(name: str, width: int) -> str:
    return "\n".join(textwrap.wrap(name, width, break_long_words=False)) or name


# acceptance by depth


def _by_depth(system: SystemFigures) -> dict[int, float]:
    """Its own acceptance of those that came so far: of the rounds that a bound is known of, or of all if none is."""
    if system.bounds and not system.fixed_lengths:
        return _seen(system)
    positions = system.drafting.positions if system.drafting is not None else ()
    return {each.depth: each.conditional for each in positions if each.reached >= _FEW and each.conditional is not None}


def _seen(system: SystemFigures) -> dict[int, float]:
    return {each.depth: each.accepted for each in _often(system) if each.accepted is not None}


def _bounds(system: SystemFigures) -> dict[int, float]:
    return {each.depth: each.bound for each in _often(system) if each.bound is not None}


def _often(system: SystemFigures) -> list[DepthBound]:
    return [each for each in system.bounds if each.reached >= _FEW]


def _acceptance(place: Any, systems: Sequence[SystemFigures], colour: Mapping[str, str]) -> None:
    axes = place.subplots()
    for system in systems:
        shade, mark = colour[system.name], "o" if system.kind == "ours" else "s"
        _line(axes, _by_depth(system), f"-{mark}", shade, system.name)
        if system.fixed_lengths:
            _line(axes, _seen(system), f"--{mark}", shade, f"{system.name} (fixed lengths)")
        _line(axes, _bounds(system), ":", shade)
    if any(map(_bounds, systems)):
        axes.plot([], [], ":", color="black", linewidth=1.6, label="most that any lossless\nrule could accept")
    deepest = max(depth for system in systems for depth in _by_depth(system) | _seen(system))
    axes.set_xticks(range(1, deepest + 1))
    axes.set(
        title=f"Acceptance by depth, where {_FEW} rounds or more came so far",
        xlabel="position in the draft",
        ylabel="accepted, of the rounds that came so far",
        ylim=(0, 1.03),
        xlim=(0.8, deepest + 0.2),
    )
    axes.grid(alpha=0.3)
    place.legend(loc="outside right upper", fontsize="small")


def _line(axes: Any, found: Mapping[int, float], style: str, shade: str, name: str = "") -> None:
    if found:
        label = _folded(name, 30) if name else None
        axes.plot(list(found), list(found.values()), style, color=shade, label=label, markersize=4)


# where the time goes


def _times(place: Any, systems: Sequence[SystemFigures]) -> None:
    axes = place.subplots()
    names = [_folded(system.name, 34) for system in systems]
    left = [0.0] * len(systems)
    told = [at for at, system in enumerate(systems) if system.phases is not None]
    for phase, shade in zip(PHASES, _PHASE_COLOURS, strict=True):
        widths = [(systems[at].phases or {})[phase] for at in told]
        if told:
            label = _PHASE_NAMES.get(phase, phase)
            axes.barh(told, widths, left=[left[at] for at in told], height=0.72, color=shade, label=label)
        for at, wide in zip(told, widths, strict=True):
            left[at] += wide
    whole = [at for at in range(len(systems)) if at not in told]
    if whole:
        widths = [systems[at].token_ms for at in whole]
        axes.barh(whole, widths, height=0.72, color="#EEEEEE", edgecolor=GREY, hatch=_HATCH, label="not told apart")
    most = max(system.token_ms for system in systems)
    for at, system in enumerate(systems):
        axes.text(
            max(system.token_ms, left[at]) + 0.008 * most, at, f"{system.token_ms:.1f}", va="center", size="small"
        )
    axes.set_yticks(range(len(systems)), names, fontsize="small")
    axes.set(title="Where a token's time goes", xlabel="milliseconds a token", xlim=(0, most * 1.07))
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    place.legend(loc="outside right upper", fontsize="small")


# a sweep over depths


def draw_sweep(points: Sequence[SweepPoint], path: Path) -> None:
    """One column a temperature: speed-up by depth above, tokens a pass below. The format is the path's ending."""
    if not points:
        raise ValueError("points: it is empty; a sweep needs one at least")
    temperatures = sorted({point.temperature for point in points})
    series = list(dict.fromkeys(point.series for point in points))
    colour = colours(series)

    def fill(figure: Any) -> None:
        places = figure.subplots(2, len(temperatures), sharex="col", sharey="row", squeeze=False, height_ratios=(3, 2))
        for column, temperature in enumerate(temperatures):
            above, below = places[0][column], places[1][column]
            for name in series:
                own = [point for point in points if (point.temperature, point.series) == (temperature, name)]
                if own:
                    _curve(above, below, sorted(own, key=lambda point: point.depth), colour[name])
            _finish(above, below, temperature, sorted({each.depth for each in points}), first=column == 0)

    saved(path, (max(7.0, 5.5 * len(temperatures)), 7.5 + 0.22 * len(series)), fill)


def _curve(above: Any, below: Any, points: Sequence[SweepPoint], shade: str) -> None:
    depths = [point.depth for point in points]
    best = max(points, key=lambda point: point.speed_up)
    found = [Interval(point.speed_up, point.low, point.high) for point in points]
    told = [point for point in points if point.predicted is not None]
    alone = len(set(depths)) < len(depths)  # trees of one depth differ in width: no line leads from one to the other
    line, guess = ("D", "_") if alone else ("-o", "--")
    name = f"{points[0].series}: best {best.label}, {best.speed_up:.2f}"
    above.errorbar(depths, [each.value for each in found], yerr=_whiskers(found), fmt=line, color=shade, capsize=3)
    above.plot(best.depth, best.speed_up, "o", markersize=12, fillstyle="none", color=shade)
    above.plot([each.depth for each in told], [each.predicted for each in told], guess, color=shade, markersize=14)
    below.plot(depths, [point.tokens_per_pass for point in points], line, color=shade, label=name)
    for point in points if alone else ():
        for axes, height in ((above, point.speed_up), (below, point.tokens_per_pass)):
            axes.annotate(point.label, (point.depth, height), (8, 0), textcoords="offset points", size="x-small")


def _finish(above: Any, below: Any, temperature: float, depths: Sequence[int], *, first: bool) -> None:
    above.axhline(1, color="black", linewidth=1.2, zorder=0.9)
    above.set(title="greedy" if temperature == 0 else f"temperature {temperature:g}")
    below.set(xlabel="depth of the draft, in tokens")
    below.set_xticks(depths)
    for axes in (above, below):
        axes.grid(alpha=0.3)
    if first:
        above.set(ylabel=_SPEED)
        below.set(ylabel="tokens a target pass")
    below.plot([], [], "-o", color="black", label="measured, with its 95 % interval; the ring is the best")
    below.plot([], [], "--", color="black", label="predicted; of single points, the bar")
    below.legend(loc="upper left", bbox_to_anchor=(0, -0.25), fontsize="small", frameon=False)
