"""Our own configurations under measurement, in this process: all share one loaded target."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from ..llm import LLM
from ..replies import Reply
from ..sampling import SamplingParams
from ..trace import TraceWriter
from .peak import Peak
from .runner import Answer, Answers, Ask, RunnerError, Setting


class Ours:
    """One speculative configuration of an LLM in one setting; what it learns there, it does not take to another.

    trace: is told every round. alone: whether the process holds nothing but what the setting needs; else its memory
    says nothing.
    """

    kind = "ours"

    def __init__(self, name: str, llm: LLM, dtype: str, trace: TraceWriter | None = None, alone: bool = True) -> None:
        self.name, self.llm, self._dtype, self._trace, self._alone = name, llm, dtype, trace, alone

    def cannot(self, setting: Setting) -> str | None:
        return None if setting.dtype == self._dtype else f"it was loaded in {self._dtype}"

    def describe(self) -> dict[str, Any]:
        target = self.llm.loaded.target
        return {
            "kind": self.kind,
            "claim": self.llm.claim,
            "speculation": self.llm.drafting.as_config(),
            "rows": str(target.plan),
        }

    def answer(self, ask: Ask) -> Answers:
        try:
            return self._answer(ask)
        except ValueError as error:  # such as a prompt for which there is no memory
            raise RunnerError(f"{self.name}: {error}") from error

    def _answer(self, ask: Ask) -> Answers:
        peak = Peak()
        began = perf_counter()
        replies: dict[str, Reply] = {}
        arrivals: dict[str, list[tuple[float, int]]] = {}
        reading: dict[str, float] = {}
        with self.llm.running() as engine:
            for i in range(len(ask.prompts)):
                reply = self._reply(ask, i)
                replies[reply.request.name], arrivals[reply.request.name] = reply, []
                engine.add(reply.request)
            while engine.busy:
                events = engine.step()
                now = perf_counter() - began
                for event in events:
                    name = event.request.name
                    if event.step is None:
                        raise RunnerError(f"{self.name}: {event.error}")
                    replies[name].add(event.step)
                    reading.setdefault(name, event.step.seconds["forward"])
                    arrivals[name].append((now, len(event.step.tokens)))
        seconds = perf_counter() - began
        answers = tuple(
            Answer(
                tuple(reply.request.output.token_ids),
                tuple(arrivals[name]),
                prompt_apart(reply.stats.as_dict(), reading[name]),
            )
            for name, reply in replies.items()
        )
        return Answers(seconds, answers, peak.bytes() if self._alone else None)

    def _reply(self, ask: Ask, i: int) -> Reply:
        llm = self.llm
        if self._trace is not None:
            llm = llm.traced(self._trace, label={"system": self.name, **ask.about[i]})
        params = SamplingParams(temperature=ask.temperature, seed=ask.seeds[i], max_tokens=ask.max_tokens)
        return llm.reply({"prompt_token_ids": list(ask.prompts[i])}, params)


def prompt_apart(stats: Mapping[str, Any], reading: float) -> dict[str, Any]:
    """The statistics, with `reading`, the first round's forward, under prefill: it read the prompt, or its end.

    >>> prompt_apart({"seconds": {"prefill": 0.5, "forward": 3.0}}, 1.0)
    {'seconds': {'prefill': 1.5, 'forward': 2.0}}
    """
    seconds = stats["seconds"]
    moved = {"prefill": seconds["prefill"] + reading, "forward": seconds["forward"] - reading}
    return {**stats, "seconds": {**seconds, **moved}}
