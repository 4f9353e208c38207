"""One request alone, through the oracle loop."""

from __future__ import annotations

from collections.abc import Iterator

from .base import Target
from .loop import decode
from .replies import Completion, Delta, Reply


class Generation:
    """Made by `LLM.start`. Iterate for deltas; `result()` runs what is left and returns the whole."""

    def __init__(self, target: Target, reply: Reply) -> None:
        self.reply, request = reply, reply.request
        self._steps = decode(
            request.prompt,
            request.output,
            target=target,
            drafter=request.drafter,
            controller=request.controller,
            rule=request.rule,
            law=request.law,
            chance=request.chance,
        )

    def __iter__(self) -> Iterator[Delta]:
        try:
            for step in self._steps:
                yield self.reply.add(step)
        except Exception as error:
            self.reply.fail(error)
            raise

    def result(self) -> Completion:
        for _ in self:
            pass
        return self.reply.completion()
