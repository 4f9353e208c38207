"""What each rule needs of a draft, declared once: the rules check it when they run, a configuration before it loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..base import ROOT, Draft, Kind
from ..trees import is_chain

Shape = Literal["chain", "level", "tree"]

_SHAPES = {
    "chain": "a chain",
    "level": "one level: nodes that all follow the last committed token",
    "tree": "any tree",
}


@dataclass(frozen=True, slots=True)
class Needs:
    """shape: the widest draft the rule takes. coupled: whether it takes tokens drawn with the target's own noise.
    sampled: most sampled nodes a draft may have, None for any number."""

    shape: Shape
    coupled: bool = False
    sampled: int | None = None

    @property
    def takes(self) -> str:
        return _SHAPES[self.shape]


NEEDS: dict[str, Needs] = {
    "coupled": Needs("tree", coupled=True),
    "token": Needs("chain"),
    "block": Needs("chain"),
    "recursive": Needs("tree"),
    "traversal": Needs("tree"),
    "greedy_multi": Needs("level", sampled=1),
    "lossy_typical": Needs("tree"),
    "lossy_lenient": Needs("chain"),
}


def why_not(rule: str, parents: Sequence[int], kinds: Sequence[Kind]) -> str | None:
    """Why `rule` cannot verify a draft of this form; None if it can.

    >>> why_not("block", [-1, -1], [Kind.CHOSEN, Kind.CHOSEN])
    'the block rule takes a chain, parents are (-1, -1)'
    """
    needs = NEEDS[rule]
    fits = {"chain": is_chain(parents), "level": all(parent == ROOT for parent in parents), "tree": True}
    if not fits[needs.shape]:
        return f"the {rule} rule takes {needs.takes}, parents are {tuple(parents)}"
    if Kind.COUPLED in kinds and not needs.coupled:
        return f"tokens drawn with the target's own noise need the coupled rule, not {rule}"
    sampled = sum(kind is Kind.SAMPLED for kind in kinds)
    if needs.sampled is not None and sampled > needs.sampled:
        return f"the {rule} rule takes at most {needs.sampled} sampled token, {sampled} of {len(kinds)} are"
    return None


def require(draft: Draft, rule: str) -> None:
    """Refuse what `rule` would verify wrongly."""
    reason = why_not(rule, draft.parents, draft.kind)
    if reason is not None:
        raise ValueError(f"draft: {reason}")
