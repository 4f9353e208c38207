"""What the lines of a trace hold: the sort of every field, so that a damaged one is named when it is read."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, get_args

from ..base import Kind, Last, Purpose
from ..stats import PHASES

_MOST_ROWS = 1 << 16  # far more laws than a draft has


@dataclass(frozen=True, slots=True)
class Sort:
    """What a field must be, in a word for people; holds: whether a value is; within: the fields of an object."""

    name: str
    holds: Callable[[Any], bool]
    within: Mapping[str, Sort] | None = None


def require(record: Mapping[str, Any], fields: Mapping[str, Sort], where: str = "") -> None:
    """A ValueError that names the first field that is missing or not of its sort."""
    for name, sort in fields.items():
        if name not in record:
            raise ValueError(f"it is damaged: it has no {where}{name}")
        value = record[name]
        if not sort.holds(value):
            raise ValueError(f"it is damaged: {where}{name} is {reprlib.repr(value)}; it must be {sort.name}")
        if sort.within is not None and isinstance(value, dict):
            require(value, sort.within, f"{where}{name}.")
        elif sort.within is not None and isinstance(value, list):
            for at, each in enumerate(value):
                require(each, sort.within, f"{where}{name}[{at}].")


# sorts


def _from(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= least


def _is_number(value: Any) -> bool:
    try:
        return type(value) in (int, float) and isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def _or_null(sort: Sort) -> Sort:
    return Sort(f"{sort.name}, or null", lambda value: value is None or sort.holds(value), sort.within)


def _list_of(sort: Sort, plural: str) -> Sort:
    """plural: what they are called together."""
    return Sort(f"a list of {plural}", lambda value: isinstance(value, list) and all(map(sort.holds, value)))


def _one_of(*known: object) -> Sort:
    return Sort(f"one of {', '.join(map(str, known))}", lambda value: isinstance(value, str) and value in known)


def _object_of(fields: Mapping[str, Sort]) -> Sort:
    return Sort("an object", _OBJECT.holds, fields)


def _objects_of(fields: Mapping[str, Sort]) -> Sort:
    return Sort("a list of objects", lambda value: isinstance(value, list) and all(map(_OBJECT.holds, value)), fields)


_OBJECT = Sort("an object", lambda value: isinstance(value, dict))
_TEXT = Sort("a string", lambda value: isinstance(value, str))
_FLAG = Sort("true or false", lambda value: isinstance(value, bool))
_WHOLE = Sort("a whole number from 0 on", _from(0))
_NUMBER = Sort("a number", _is_number)
_WHOLES = _list_of(_WHOLE, "whole numbers from 0 on")
_NODES = _list_of(Sort("", _from(-1)), "whole numbers from -1 on")
_TEXTS = _list_of(_TEXT, "strings")
_SECONDS = Sort(
    f"numbers by phase ({', '.join(PHASES)})",
    lambda value: isinstance(value, dict) and value.keys() <= set(PHASES) and all(map(_is_number, value.values())),
)
_COUNTS = Sort(
    "whole numbers by drafter", lambda value: isinstance(value, dict) and all(map(_WHOLE.holds, value.values()))
)
_SPELLED = Sort(
    "strings by token id",
    lambda value: (
        isinstance(value, dict)
        and all(token.isascii() and token.isdecimal() and isinstance(text, str) for token, text in value.items())
    ),
)
_KEY = Sort(
    "[root, depth, purpose, node]",
    lambda value: _WHOLES.holds(value) and len(value) == 4 and value[2] in list(Purpose),
)
_LIKELIEST = Sort(
    "a list of [token id, probability]",
    lambda value: (
        isinstance(value, list)
        and all(isinstance(each, list) and len(each) == 2 for each in value)
        and all(_WHOLE.holds(token) and _is_number(p) for token, p in value)
    ),
)
_ROWS = Sort(
    f"a list of whole numbers from -1 to {_MOST_ROWS}",
    lambda value: _NODES.holds(value) and max(value, default=-1) <= _MOST_ROWS,
)

# lines

_TEST = {
    "node": _WHOLE,
    "p": _NUMBER,
    "q": _NUMBER,
    "prob": _or_null(_NUMBER),
    "u": _or_null(_NUMBER),
    "accepted": _FLAG,
    "key": _KEY,
}
_DRAFT = {
    "tokens": _WHOLES,
    "parents": _NODES,
    "kind": _list_of(_one_of(*(kind.name.lower() for kind in Kind)), ", ".join(kind.name.lower() for kind in Kind)),
    "origin": _TEXTS,
    "row_of": _ROWS,
    "confidence": _list_of(_NUMBER, "numbers"),
}
_LAW = _object_of({"top": _LIKELIEST, "rest": _NUMBER})
LAWS = {"laws": _object_of({"tests": _objects_of({"p": _LAW, "q": _or_null(_LAW)}), "last": _or_null(_LAW)})}
"""Of a round, with `--trace-laws`."""

HEADER = {
    "draftproof_trace": _WHOLE,
    "draftproof": _TEXT,
    "model": _or_null(_TEXT),
    "dtype": _or_null(_TEXT),
    "laws": _WHOLE,
}
FIELDS: Mapping[str, Mapping[str, Sort]] = {
    "begin": {
        "seed": _WHOLE,
        "sample": _WHOLE,
        "label": _OBJECT,
        "prompt_token_ids": _WHOLES,
        "load_seconds": _NUMBER,
        "config": _OBJECT,
    },
    "round": {
        "round": _WHOLE,
        "root": _WHOLE,
        "draft": _object_of(_DRAFT),
        "path": _WHOLES,
        "verdict_tokens": _WHOLES,
        "last": _or_null(_one_of(*get_args(Last))),
        "tests": _objects_of(_TEST),
        "rounding": _WHOLE,
        "tokens": _WHOLES,
        "accepted": _WHOLE,
        "bonus": _WHOLE,
        "seconds": _SECONDS,
        "rows": _WHOLE,
        "requests": _WHOLE,
        "prompt_rows": _WHOLE,
        "drafting": _COUNTS,
        "why": _TEXT,
        "pieces": _TEXTS,
        "texts": _SPELLED,
    },
    "end": {
        "finish_reason": _or_null(_TEXT),
        "stop_reason": Sort("a string, a token id, or null", lambda value: value is None or type(value) in (str, int)),
        "error": _or_null(_TEXT),
        "stats": _OBJECT,
    },
}
"""By event."""
