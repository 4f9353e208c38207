"""Our own configurations under measurement, in this process: all share one loaded target."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from ..llm import LLM
from ..sampling import SamplingParams
from .peak import Peak
from .runner import Answer, Answers, Ask, RunnerError, Setting


class Ours:
    """One speculative configuration of an LLM that keeps nothing from one answer to the next."""

    kind = "ours"

    def __init__(self, name: str, llm: LLM, dtype: str) -> None:
        self.name, self.llm, self._dtype = name, llm, dtype

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
        peak = Peak()
        began = perf_counter()
        arrivals: dict[str, list[tuple[float, int]]] = {}
        replies = {}
        with self.llm.running() as engine:
            for ids, seed in zip(ask.prompts, ask.seeds, strict=True):
                params = SamplingParams(temperature=ask.temperature, seed=seed, max_tokens=ask.max_tokens)
                reply = self.llm.reply({"prompt_token_ids": list(ids)}, params)
                replies[reply.request.name], arrivals[reply.request.name] = reply, []
                engine.add(reply.request)
            while engine.busy:
                events = engine.step()
                now = perf_counter() - began
                for event in events:
                    if event.step is None:
                        raise RunnerError(f"{self.name}: {event.error}")
                    replies[event.request.name].add(event.step)
                    arrivals[event.request.name].append((now, len(event.step.tokens)))
        seconds = perf_counter() - began
        answers = tuple(
            Answer(tuple(reply.request.output.token_ids), tuple(arrivals[name]), reply.stats.as_dict())
            for name, reply in replies.items()
        )
        return Answers(seconds, answers, peak.bytes())
