"""One round as plain data, for a JSON Lines trace."""

from __future__ import annotations

from typing import Any

from .base import Step


def step_record(index: int, step: Step) -> dict[str, Any]:
    """Everything observable about a round but the laws themselves: draft, verdict, what was kept, seconds."""
    draft, verdict = step.draft, step.verdict
    return {
        "round": index,
        "root": draft.root,
        "draft": {
            "tokens": draft.tokens,
            "parents": draft.parents,
            "kind": [kind.name.lower() for kind in draft.kind],
            "origin": draft.origin,
        },
        "path": verdict.path,
        "verdict_tokens": verdict.tokens,
        "last": verdict.last,
        "tests": [
            {
                "node": test.node,
                "p": float(test.p),
                "q": float(test.q),
                "prob": None if test.prob is None else float(test.prob),
                "accepted": test.accepted,
            }
            for test in verdict.tests
        ],
        "rounding": verdict.rounding,
        "tokens": step.tokens,
        "accepted": step.accepted,
        "bonus": step.bonus,
        "seconds": dict(step.seconds),
    }
