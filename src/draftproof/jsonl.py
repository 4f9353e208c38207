"""A line of a JSON Lines file, which holds an object."""

from __future__ import annotations

import json
from typing import Any


def object_of(line: str) -> dict[str, Any]:
    """ValueError, for after the file and the line, if it is none.

    >>> object_of('{"prompt": "Hi"}')
    {'prompt': 'Hi'}
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}; one object a line is expected") from None
    if not isinstance(found, dict):
        raise ValueError(f'it holds {line.strip()[:40]}; it must hold an object such as {{"prompt": "..."}}')
    return found
