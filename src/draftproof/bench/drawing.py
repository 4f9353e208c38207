"""What pictures have in common: their colours, and how they come to be files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any

from ..aside import whole

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#882255", "#999933", "#332288", "#F0E442")
"""Told apart by the colour-blind too: Okabe and Ito's, and further ones of Tol's."""

GREY = "#888888"

_STYLE: Mapping[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # matplotlib brings it: the same picture on every machine
    "font.size": 10.0,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "axes.titleweight": "bold",
    "hatch.linewidth": 0.8,
    "svg.hashsalt": "draftproof",
}


def colours(names: Sequence[str]) -> dict[str, str]:
    """One each, in order; they come again when they run out."""
    return dict(zip(names, cycle(PALETTE), strict=False))


def require_able(path: Path) -> None:
    """ValueError unless a picture can be drawn at that path: its name is one, and matplotlib is there."""
    if path.suffix.lower() not in (".svg", ".png"):
        raise ValueError(f"--plot: {str(path)!r} is not a picture; its name must end in .svg or .png")
    try:
        import_module("matplotlib.figure")
    except ImportError:
        raise ValueError("--plot: it needs matplotlib (pip install 'draftproof[bench]')") from None


def saved(path: Path, inches: tuple[float, float], fill: Callable[[Any], None]) -> None:
    """A picture that `fill` draws into a figure, as the path's ending says: the same bytes for the same data."""
    require_able(path)
    matplotlib: Any = import_module("matplotlib")
    form = path.suffix.lower()[1:]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not the reader's own taste, which would make another picture of it
        matplotlib.rcParams.update(_STYLE)
        figure = import_module("matplotlib.figure").Figure(figsize=inches, layout="constrained")
        fill(figure)
        with whole(path) as place:
            figure.savefig(place, format=form, dpi=120, metadata={"Date": None} if form == "svg" else {})
