"""The verification rules, one file each, and the dicts that name them.

A rule joins RULES and NEEDS, and with that every proof and contract test. The tests then ask for a fault of it
(audit/mutants.py), a drafter for the long draws (benchmarks/draws.py) and a row in docs/rules.md.
"""

from ..base import Rule
from .block import block
from .coupled import coupled
from .greedy_multi import greedy_multi
from .lossy import LossyRule, lossy_lenient, lossy_typical
from .needs import NEEDS, why_not
from .recursive import recursive
from .token import token
from .traversal import traversal

RULES: dict[str, Rule] = {
    "coupled": coupled,
    "token": token,
    "block": block,
    "recursive": recursive,
    "traversal": traversal,
    "greedy_multi": greedy_multi,
}
"""Lossless, each proven by enumeration."""

LOSSY: dict[str, LossyRule] = {rule.name: rule for rule in (lossy_typical(), lossy_lenient())}
"""Refused unless the caller allows them by name."""


def rule_named(name: str, *, allow_lossy: bool = False, argument: str = "rule") -> Rule:
    """The rule of that name; `argument` is how the caller spelt it, for the message."""
    if not isinstance(name, str):
        raise ValueError(f"{argument}: {name!r} is not allowed; it must be the name of a rule")
    if name in LOSSY:
        return LOSSY[name].admitted(allow_lossy=allow_lossy, argument=argument)
    if name not in RULES:
        raise ValueError(f"{argument}: {name!r} is unknown; known are {', '.join([*RULES, *LOSSY])}")
    return RULES[name]


__all__ = [
    "LOSSY",
    "NEEDS",
    "RULES",
    "LossyRule",
    "block",
    "coupled",
    "greedy_multi",
    "lossy_lenient",
    "lossy_typical",
    "recursive",
    "rule_named",
    "token",
    "traversal",
    "why_not",
]
