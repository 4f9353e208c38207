"""draftproof show: a trace, read again: who wrote which part of a text, what it cost, and every round as a tree."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..wording import counted
from .notes import note
from .shown import acceptance, coloured

if TYPE_CHECKING:
    from ..base import Step
    from ..stats import Stats
    from ..trace import Trace, Traced

_Option = typer.Option
_COLOURS = (32, 36, 33, 35, 34, 92, 96, 93, 95, 94)  # of SGR, one an origin; the target's own text has none
_NAMES_SHOWN = 10


def show(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="What --trace wrote; PATH.part while it is not complete.")
    ],
    request: Annotated[str | None, _Option(metavar="NAME", help="This one alone. Default: all.")] = None,
    round_: Annotated[
        int | None, _Option("--round", metavar="N", help="Draw the tree of one round, counted from 0.")
    ] = None,
    as_json: Annotated[bool, _Option("--json", help="Print one JSON object: summaries, or the round.")] = False,
    debug: Annotated[bool, _Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Show a trace: each text, on a terminal in a colour for each drafter whose tokens were accepted, and its figures.

    With --round: what was drafted, with the law's probabilities p and q, the coin's probability and its u, what became
    of it, and what was emitted.

    Example: **draftproof generate "Say hello." --trace rounds.jsonl** and then **draftproof show rounds.jsonl**

    Example: **draftproof show rounds.jsonl --request '#0' --round 3**
    """
    from ..trace import read

    found = read(trace)
    if found.cut:
        note(f"{trace} is cut in its last line; what comes before it is shown")
    chosen = _chosen(found, request)
    if round_ is not None:
        _show_round(found, chosen, round_, as_json)
    elif as_json:
        told = [summary_of(each) for each in chosen]
        print(json.dumps({"header": found.header, "cut": found.cut, "requests": told}, ensure_ascii=False))
    else:
        _show_requests(chosen)


def _chosen(found: Trace, name: str | None) -> list[Traced]:
    if name is None:
        return list(found.requests)
    chosen = [each for each in found.requests if each.name == name]
    if not chosen:
        raise ValueError(f"--request: there is no {name!r}; {_known(found.requests)}")
    return chosen


def _known(requests: Sequence[Traced]) -> str:
    names = [repr(each.name) for each in requests[:_NAMES_SHOWN]]
    more = f" and {len(requests) - len(names)} more" if len(requests) > len(names) else ""
    return f"known are {', '.join(names)}{more}" if names else "the trace holds no request"


# figures


def summary_of(request: Traced) -> dict[str, Any]:
    """A request's figures, all of them counted from its rounds."""
    from ..trace import summed

    stats, end = summed(request), request.end or {}
    return {
        "request": request.name,
        "label": request.begin["label"],
        "seed": request.begin["seed"],
        "finish_reason": end.get("finish_reason"),
        "stop_reason": end.get("stop_reason"),
        "error": end.get("error"),
        "text": request.text,
        "stats": stats.as_dict(),
        "adds_up": None if request.end is None else stats.as_dict() == end["stats"],
        "tokens_per_pass": stats.tokens_per_pass,
        "by_origin": {
            origin: {"drafted": drafted, "accepted": accepted, "rate": accepted / drafted}
            for origin, drafted, accepted in _by_origin(stats)
        },
        "by_depth": [asdict(each) for each in stats.positions],
    }


def _by_origin(stats: Stats) -> list[tuple[str, int, int]]:
    return [(origin, drafted, stats.accepted_by.get(origin, 0)) for origin, drafted in stats.drafted_by.items()]


# texts


def _show_requests(requests: Sequence[Traced]) -> None:
    from ..trace import steps_of, summed

    if not requests:
        note("the trace holds no request")
    colours: dict[str, int] = {}
    for i, request in enumerate(requests):
        steps, stats = steps_of(request), summed(request)
        for origin in stats.drafted_by:
            colours.setdefault(origin, _COLOURS[len(colours) % len(_COLOURS)])
        print("" if i == 0 else "\n", _headline(request), sep="")
        print(painted(request, steps, colours) if coloured() else request.text)
        for line in _figures(request, stats):
            print(line)
    if colours and coloured():
        legend = [_paint(_named(origin), colour) for origin, colour in colours.items()]
        print(f"\ncolours: {', '.join(legend)}; the target's own tokens plain")


def _headline(request: Traced) -> str:
    label = ", ".join(f"{name} {value}" for name, value in request.begin["label"].items())
    line = f"request {request.name}{f' ({label})' if label else ''}, seed {request.begin['seed']}: {_ending(request)}"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in line)  # names come from files


def _ending(request: Traced) -> str:
    if request.end is None:
        return "it had not ended"
    if request.end["error"] is not None:
        return f"error: {request.end['error']}"
    reason = request.end["stop_reason"]
    return f"{request.end['finish_reason']}{'' if reason is None else f' at {reason!r}'}"


def painted(request: Traced, steps: Sequence[Step], colours: Mapping[str, int]) -> str:
    """The text, each accepted token in the colour of who drafted it."""
    from ..trace import origins_of

    parts = []
    for record, step in zip(request.rounds, steps, strict=True):
        for piece, origin in zip(record["pieces"], origins_of(step), strict=True):
            parts.append(piece if origin is None else _paint(piece, colours[origin]))
    return "".join(parts)


def _paint(text: str, colour: int) -> str:
    return f"\033[{colour}m{text}\033[0m" if text else ""


def _figures(request: Traced, stats: Stats) -> Iterable[str]:
    yield (
        f"  {stats.emitted} tokens, {stats.rounds} rounds, {stats.tokens_per_pass or 0:.2f} tokens/pass, "
        f"{stats.tokens_per_second or 0:.1f} tokens/s ({acceptance(stats.accepted, stats.drafted)})"
    )
    for origin, drafted, accepted in _by_origin(stats):
        yield f"  {_named(origin)}: {acceptance(accepted, drafted)}"
    if stats.positions:
        yield "  depth  tokens drafted  rounds that reached it  accepted  of these  of all that drafted"
    for each in stats.positions:
        marginal, conditional = _percent(each.marginal), _percent(each.conditional)
        yield (
            f"  {each.depth:>5}  {each.drafted:>14}  {each.reached:>22}  {each.accepted:>8}  {conditional:>8}  "
            f"{marginal:>19}"
        )
    yield f"  seconds: {', '.join(f'{phase} {spent:.3f}' for phase, spent in stats.seconds.items())}"
    if request.end is not None and stats.as_dict() != request.end["stats"]:
        yield "  its rounds do not add up to the statistics that it ended with"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _named(origin: str) -> str:
    return origin or "drafted"


# one round


def _show_round(found: Trace, requests: Sequence[Traced], number: int, as_json: bool) -> None:
    if len(requests) != 1:
        raise ValueError(f"--round: {number} needs --request, whose it is; {_known(requests)}")
    [request] = requests
    if not 0 <= number < len(request.rounds):
        raise ValueError(
            f"--round: there is no {number}; request {request.name!r} has {len(request.rounds)}, from 0 on"
        )
    record = request.rounds[number]
    if as_json:
        print(json.dumps(record, ensure_ascii=False))
        return
    for line in drawn(record, found.texts):
        print(line)


def drawn(record: Mapping[str, Any], texts: Mapping[int, str]) -> Iterable[str]:
    """A round, a line a drafted token, each below its parent and further in."""
    from ..trace import step_of
    from ..trees import children

    step = step_of(record)
    draft, tests = step.draft, {test["node"]: (i, test) for i, test in enumerate(record["tests"])}
    laws, kept = record.get("laws"), set(step.verdict.path[: step.accepted])
    yield (
        f"round {record['round']} of {record['request']}, after {draft.root} tokens: {counted(len(draft), 'token')} "
        f"drafted, {counted(step.rows, 'row')} for {counted(step.requests, 'request')}"
        f"{f'; {step.why}' if step.why else ''}"
    )
    waiting = [(node, 1) for node in reversed(children(draft.parents, -1))]
    while waiting:  # no recursion: a chain may be long
        node, depth = waiting.pop()
        waiting += [(child, depth + 1) for child in reversed(children(draft.parents, node))]
        token, kind, origin = draft.tokens[node], draft.kind[node].name.lower(), _named(draft.origin[node])
        sure = f", confidence {draft.confidence[node]:.3g}" if draft.confidence else ""
        asked, test = tests.get(node, (None, None))
        yield f"{'  ' * depth}{_spelled(token, texts)} {kind} by {origin}{sure}: {_outcome(test, node in kept)}"
        if laws is not None and asked is not None:
            yield from _laws(laws["tests"][asked], texts, "  " * depth + "    ")
    yield f"emitted: {' '.join(_spelled(token, texts) for token in step.tokens)}{_last(step)}"
    if laws is not None and laws["last"] is not None:
        yield from _laws({"p": laws["last"]}, texts, "    ")
    yield f"seconds: {', '.join(f'{phase} {spent:.4f}' for phase, spent in step.seconds.items())}"


def _outcome(test: Mapping[str, Any] | None, kept: bool) -> str:
    if test is None:
        return "accepted, not asked" if kept else "not asked"
    coin = "" if test["prob"] is None else f" coin {test['prob']:.4g}"
    drawn = "" if test["u"] is None else f" u {test['u']:.4g}"
    said = "accepted" if test["accepted"] else "refused"
    return f"p {test['p']:.4g} q {test['q']:.4g}{coin}{drawn} {said}{'' if kept or not test['accepted'] else ', cut'}"


def _last(step: Step) -> str:
    if len(step.tokens) < len(step.verdict.tokens):
        return f"; cut, the verdict had {len(step.verdict.tokens)}"
    return "" if step.verdict.last is None else f" (the last one: {step.verdict.last})"


def _laws(laws: Mapping[str, Any], texts: Mapping[int, str], indent: str) -> Iterable[str]:
    for name, law in laws.items():
        if law is not None:
            top = ", ".join(f"{_spelled(token, texts)} {p:.4g}" for token, p in law["top"])
            yield f"{indent}{name}: {top}, rest {law['rest']:.4g}"


def _spelled(token: int, texts: Mapping[int, str]) -> str:
    return f"{json.dumps(texts.get(token, ''), ensure_ascii=False)}[{token}]"
