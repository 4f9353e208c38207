"""Tables of plain text, for terminals, pipes and files alike."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

_LABELS = range(28, 15, -1)  # widths at which a row's name goes on in the next line: the widest that saves a block
_GAP = "  "


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int = 110) -> str:
    r"""The first column names the rows and stands left, figures stand right. Heads break at newlines. What is wider
    than `width` goes on below, with the names again.

    >>> print(table(["system", "tokens\na pass"], [["plain", "1.00"], ["suffix", "2.35"]]))
            tokens
    system  a pass
    plain     1.00
    suffix    2.35
    """
    heads = [each.split("\n") for each in head]
    figures = [max(map(len, lines + [row[at] for row in rows])) for at, lines in enumerate(heads)][1:]
    fits = [label for label in _LABELS if label + sum(len(_GAP) + each for each in figures) <= width]
    names = [_wrapped(row[0], fits[0] if fits else _LABELS[0]) for row in rows]
    widths = [max(map(len, heads[0] + [line for name in names for line in name])), *figures]
    return "\n\n".join(_block(heads, names, rows, widths, columns) for columns in _blocks(widths, width))


def _block(
    heads: Sequence[Sequence[str]],
    names: Sequence[Sequence[str]],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    columns: Sequence[int],
) -> str:
    shown = [0, *columns]
    height = max(len(heads[at]) for at in shown)
    above = [([""] * height + list(lines))[-height:] for lines in heads]
    found = [[above[at][i] for at in shown] for i in range(height)]
    for name, row in zip(names, rows, strict=True):
        found += [[part, *([""] * len(columns))] for part in name[:-1]]
        found.append([name[-1], *(row[at] for at in columns)])
    return "\n".join(_line(cells, [widths[at] for at in shown]) for cells in found)


def _wrapped(name: str, label: int) -> list[str]:
    """The name's lines, those after the first further in. A row that stands in belongs to the one above it."""
    return textwrap.wrap(name, label, subsequent_indent="    ") if len(name) > label else [name]


def _blocks(widths: Sequence[int], width: int) -> list[list[int]]:
    """The columns but the first, in runs that fit beside it; one column at least."""
    blocks: list[list[int]] = [[]]
    taken = widths[0]
    for at, each in enumerate(widths[1:], 1):
        if blocks[-1] and taken + len(_GAP) + each > width:
            blocks.append([])
            taken = widths[0]
        blocks[-1].append(at)
        taken += len(_GAP) + each
    return blocks


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *rest = cells
    first, *others = widths
    return _GAP.join([name.ljust(first), *(cell.rjust(each) for cell, each in zip(rest, others, strict=True))]).rstrip()
