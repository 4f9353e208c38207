"""A round as plain data, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base import ROOT, Chance, Draft, Key, Kind, Purpose, Step, Test, Verdict
from ..laws import leading


def round_record(index: int, step: Step, chance: Chance) -> dict[str, Any]:
    """Everything observable about a round but the laws themselves. chance: the request's, which tells the coins' u."""
    draft, verdict = step.draft, step.verdict
    return {
        "round": index,
        "root": draft.root,
        "draft": {
            "tokens": draft.tokens,
            "parents": draft.parents,
            "kind": [kind.name.lower() for kind in draft.kind],
            "origin": draft.origin,
            "row_of": draft.row_of,
            "confidence": draft.confidence,
        },
        "path": verdict.path,
        "verdict_tokens": verdict.tokens,
        "last": verdict.last,
        "tests": [_test_record(test, chance) for test in verdict.tests],
        "rounding": verdict.rounding,
        "tokens": step.tokens,
        "accepted": step.accepted,
        "bonus": step.bonus,
        "seconds": dict(step.seconds),
        "rows": step.rows,
        "requests": step.requests,
        "prompt_rows": step.prompt_rows,
        "drafting": dict(step.drafting),
        "why": step.why,
    }


def _test_record(test: Test, chance: Chance) -> dict[str, Any]:
    tossed = test.prob is not None and 0 < test.prob < 1  # a sure coin takes no noise
    return {
        "node": test.node,
        "p": float(test.p),
        "q": float(test.q),
        "prob": None if test.prob is None else float(test.prob),
        "u": float(chance.uniform(test.key)) if tossed else None,
        "accepted": bool(test.accepted),
        "key": list(test.key),
    }


def step_of(record: Mapping[str, Any]) -> Step:
    """The round as it was, but for the laws of its draft: a trace holds none, so that each row is None."""
    try:
        draft, tests = record["draft"], record["tests"]
        return Step(
            Draft(
                record["root"],
                tuple(draft["tokens"]),
                tuple(draft["parents"]),
                tuple(Kind[kind.upper()] for kind in draft["kind"]),
                tuple(draft["origin"]),
                (None,) * (1 + max(draft["row_of"], default=-1)),
                tuple(draft["row_of"]),
                tuple(draft["confidence"]),
            ),
            Verdict(
                tuple(record["path"]),
                tuple(record["verdict_tokens"]),
                record["last"],
                tuple(_test_of(test) for test in tests),
                record["rounding"],
            ),
            tuple(record["tokens"]),
            record["seconds"],
            record["rows"],
            record["requests"],
            record["why"],
            record["prompt_rows"],
            record["drafting"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        where = f"round {record.get('round')} of request {record.get('request')!r}"
        what = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise ValueError(f"{where} is damaged: {what}") from None


def _test_of(record: Mapping[str, Any]) -> Test:
    root, depth, purpose, node = record["key"]
    key = Key(root, depth, Purpose(purpose), node)
    return Test(record["node"], key, record["p"], record["q"], record["prob"], record["accepted"])


def laws_of(draft: Draft, rows: Sequence[Any], verdict: Verdict, count: int) -> dict[str, Any]:
    """Of each question of a verdict the target's law after the node's parent, and the law it was drawn from, if any;
    and the target's law after the path: `count` tokens of each."""
    known: dict[tuple[str, int], dict[str, Any]] = {}

    def of(name: str, index: int, law: Any) -> dict[str, Any]:
        if (name, index) not in known:
            known[name, index] = likeliest(law, count)
        return known[name, index]

    tests = []
    for node in (test.node for test in verdict.tests):
        above, q = draft.parents[node] + 1, draft.law(node)
        told = None if q is None else of("q", draft.row_of[node], q)
        tests.append({"p": of("p", above, rows[above]), "q": told})
    end = (verdict.path[-1] if verdict.path else ROOT) + 1
    return {"tests": tests, "last": None if verdict.last is None else of("p", end, rows[end])}


def likeliest(row: Any, count: int) -> dict[str, Any]:
    """A law's `count` likeliest tokens, those without mass left out, and the mass of the rest.

    >>> likeliest(np.array([0.25, 0.0, 0.5, 0.25]), 2)
    {'top': [[2, 0.5], [0, 0.25]], 'rest': 0.25}
    """
    law = np.array(row, np.float64)
    ids = leading(law, count)
    top = [[token, p] for token, p in zip(ids.tolist(), law[ids].tolist(), strict=True) if p > 0]
    law[ids] = 0.0
    return {"top": top, "rest": float(law.sum())}
