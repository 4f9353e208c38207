"""Draft trees as parallel arrays. Node i's parent is parents[i] < i, ROOT for the last committed token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from .base import ROOT


def is_chain(parents: Sequence[int]) -> bool:
    """True if the tree is -1, 0, 1, ...: at most one child a node, in order."""
    return all(parent == i - 1 for i, parent in enumerate(parents))


def children(parents: Sequence[int], node: int) -> list[int]:
    """The children of `node` (ROOT: of the last committed token) in draw order.

    >>> children([-1, -1, 0, 0], 0)
    [2, 3]
    """
    return [i for i, parent in enumerate(parents) if parent == node]


def depths(parents: Sequence[int]) -> list[int]:
    """Distance of each node from the last committed token: 1 for its children.

    >>> depths([-1, -1, 0, 2])
    [1, 1, 2, 3]
    """
    out: list[int] = []
    for parent in parents:
        out.append(1 if parent == ROOT else out[parent] + 1)
    return out


def ancestors(parents: Sequence[int]) -> Bool[np.ndarray, "n n"]:
    """mask[i, j]: node j is node i or one of its ancestors.

    >>> ancestors([-1, 0, 0]).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 0, 1]])
    """
    n = len(parents)
    mask = np.eye(n, dtype=bool)
    for i, parent in enumerate(parents):
        if parent != ROOT:
            mask[i] |= mask[parent]
    return mask


def require_path(parents: Sequence[int], path: Sequence[int]) -> None:
    """Refuse nodes that are not the root's child, its child, and so on."""
    above = ROOT
    for node in path:
        if not (0 <= node < len(parents) and parents[node] == above):
            raise ValueError(f"path: {tuple(path)} is not a path of the draft with parents {tuple(parents)}")
        above = node


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """Nodes from the root's child down to `node`; empty for ROOT."""
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


def follow(tokens: Sequence[int], parents: Sequence[int], text: Sequence[int]) -> list[int]:
    """The nodes from the root down along `text`, as far as the tree goes with it.

    >>> follow([7, 8, 9], [-1, -1, 1], [8, 9, 9])
    [1, 2]
    """
    path: list[int] = []
    node = ROOT
    for token in text:
        node = next((child for child in children(parents, node) if tokens[child] == token), ROOT)
        if node == ROOT:
            break
        path.append(node)
    return path


def leaves_of(parents: Sequence[int]) -> int:
    """How many nodes have no children.

    >>> leaves_of([-1, 0, 0]), leaves_of([])
    (2, 0)
    """
    return len(parents) - len(set(parents) - {ROOT})
