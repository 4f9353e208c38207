"""What a target's layers say while it runs: hidden states for a drafter that reads them.

A state is what ENTERS a layer (vLLM's and `speculators`' convention). Nothing is computed for it that would not be
computed anyway, and the model's own numbers stay as they are.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import nn
from transformers import PreTrainedModel

from ..base import Feed
from .layout import Layout
from .shallow import layer_list


class Ear:
    """Hears what enters `layers` of a model, in their order, and with `last` also what its head reads.

    It listens only within `listening`; then `rows` gives what was said in the forward under way.
    """

    def __init__(self, model: PreTrainedModel, layers: Sequence[int], *, last: bool = False) -> None:
        count = model.config.get_text_config().num_hidden_layers
        if not layers or not all(0 <= layer < count for layer in layers):
            raise ValueError(f"features: layers {list(layers)} are not allowed; they must be in 0 .. {count - 1}")
        self.layers, self.size, self._on = tuple(layers), model.config.get_text_config().hidden_size, False
        self._said: list[Any] = [None] * (len(layers) + last)
        modules = list(layer_list(model))
        for place, layer in enumerate(layers):
            modules[layer].register_forward_pre_hook(self._entering(place), with_kwargs=True)
        if last:
            model.get_decoder().register_forward_hook(self._leaving)

    def _entering(self, place: int) -> Any:
        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            if self._on:
                self._said[place] = (args[0] if args else kwargs["hidden_states"])[0]

        return hook

    def _leaving(self, module: nn.Module, args: tuple, result: Any) -> None:
        if self._on:
            self._said[-1] = result[0][0]

    @contextmanager
    def listening(self) -> Generator[None]:
        self._on = True
        try:
            yield
        finally:
            self._on, self._said = False, [None] * len(self._said)

    def rows(self, first: int, last: int) -> Float[torch.Tensor, "n f"]:
        """Of the packed rows first..last − 1 all states, side by side."""
        return torch.cat([said[first:last] for said in self._said], -1)


@dataclass(slots=True, eq=False)
class Heard:
    """What a session's rows said and nobody has taken yet. start: the position of the first of them."""

    ear: Ear
    start: int
    parts: list[torch.Tensor] = field(default_factory=list)  # of committed rows
    fed: torch.Tensor | None = None  # of the rows fed since the last commit, in feed order

    def hear(self, states: torch.Tensor, known: int) -> None:
        """States of a feed's rows from `known` on, in feed order."""
        self.fed = states if not known or self.fed is None else torch.cat([self.fed[:known], states])

    def commit(self, committed: int, path: Sequence[int], length: int) -> None:
        """Of what was fed, keep the committed rows and the nodes on the path. length: of the text, then."""
        if self.fed is None:  # fed before anybody followed
            self.start, self.parts = length, []
            return
        index = [*range(committed), *(committed + node for node in path)]
        # a copy: a view would keep the refused rows in memory, too
        self.parts.append(self.fed if len(index) == len(self.fed) else self.fed[index])
        self.fed = None

    def cut(self, length: int) -> None:
        """Forget what was said from position `length` on."""
        self.fed = None
        states = torch.cat(self.parts)[: max(length - self.start, 0)] if self.parts else None
        self.parts = [] if states is None or not len(states) else [states]
        self.start = min(self.start, length)

    def take(self) -> tuple[int, torch.Tensor | None]:
        """Where they begin, and all states that nobody has taken: [n, f], None if there are none."""
        start, parts = self.start, self.parts
        if not parts:
            return start, None
        states = torch.cat(parts) if len(parts) > 1 else parts[0]
        self.start, self.parts = start + len(states), []
        return start, states


class Tape:
    """What the rows of one forward say, for those of its feeds whose sessions are followed."""

    def __init__(self, heard: Sequence[Heard | None]) -> None:
        self._heard = heard
        self._parts: list[list[torch.Tensor]] = [[] for _ in heard]

    @contextmanager
    def listening(self, tile: Sequence[tuple[int, int, int]]) -> Generator[None]:
        """While the rows first..last − 1 of some feeds run, packed: (feed, first, last) each."""
        ears = {each.ear for feed, _, _ in tile if (each := self._heard[feed]) is not None}
        with ExitStack() as stack:
            for ear in ears:
                stack.enter_context(ear.listening())
            yield
            lo = 0
            for feed, first, last in tile:
                heard, rows = self._heard[feed], last - first
                if heard is not None:
                    self._parts[feed].append(heard.ear.rows(lo, lo + rows))
                lo += rows

    def hand_out(self, layouts: Sequence[Layout]) -> None:
        for heard, parts, layout in zip(self._heard, self._parts, layouts, strict=True):
            if heard is not None and parts:
                heard.hear(layout.in_feed_order(torch.cat(parts) if len(parts) > 1 else parts[0]), layout.known)


def read_features(
    target: Any, texts: Sequence[Sequence[int]], layers: Sequence[int]
) -> list[tuple[Float[torch.Tensor, "n f"], Float[torch.Tensor, "n h"]]]:
    """Of every text, read in one go: what enters `layers`, side by side, and what the head reads. On the target's
    device, in its dtype. target: an HFTarget."""
    sessions = [target.open(len(text)) for text in texts]
    try:
        heard = [target.follow(session, layers, last=True) for session in sessions]
        target.forward([Feed(session, tuple(text), want=()) for session, text in zip(sessions, texts, strict=True)])
        target.commit(sessions, [()] * len(sessions))
        size = heard[0].ear.size if heard else 0
        states = [each.take()[1] for each in heard]
    finally:
        for session in sessions:
            target.close(session)
    return [(each[:, :-size], each[:, -size:]) for each in states if each is not None]
