"""Rules that CHANGE what the target says, for measuring by how much. None of them is a `Rule`, by its type and name.

A `LossyRule` cannot be called: whoever wants its rule has to say so with `admitted(allow_lossy=True)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ..base import ROOT, Chance, Draft, Key, Purpose, Row, Rule, Test, Verdict
from ..laws import acceptance
from ..trees import children, path_to
from .common import drawn_with, end_of_chain, ended
from .needs import require


@dataclass(frozen=True, slots=True)
class LossyRule:
    """A verification rule under which the emitted law is not the target's."""

    name: str
    _rule: Rule

    def admitted(self, *, allow_lossy: bool, argument: str = "rule") -> Rule:
        """The rule itself, for callers who accept that it changes the output; `argument` is how they named it."""
        if not allow_lossy:
            raise ValueError(
                f"{argument}: {self.name!r} changes what the model says; allow_lossy=True (--allow-lossy) admits it"
            )
        return self._rule


def lossy_typical(epsilon: float = 0.09, delta: float = 0.3) -> LossyRule:
    """Typical acceptance: keep the longest path of tokens with p(x) > min(epsilon, delta·exp(−H(p))); no coins.

    Cai et al., "Medusa" (ICML 2024, 2401.10774, §2.3.1); the defaults are those of its published code. A draft is kept
    for being plausible, so what the drafter likes is emitted more often than the target would.
    """
    _check("epsilon", epsilon, 0 < epsilon <= 1, "in (0, 1]")
    _check("delta", delta, 0 < delta <= 1, "in (0, 1]")

    def rule(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
        require(draft, "lossy_typical")
        tests: list[Test] = []
        longest: list[int] = []
        kept = {ROOT}
        for node, parent in enumerate(draft.parents):
            if parent not in kept:
                continue
            p, x = rows[parent + 1], draft.tokens[node]
            path = path_to(draft.parents, node)
            accepted = bool(p[x] > min(epsilon, delta * np.exp(-_entropy(p))))
            key = Key(draft.root, len(path) - 1, Purpose.ACCEPT, node)
            tests.append(Test(node, key, p[x], drawn_with(draft, node), None, accepted))
            if accepted:
                kept.add(node)
                longest = max(longest, path, key=len)
        end = longest[-1] if longest else ROOT
        refused = bool(children(draft.parents, end))
        return ended(draft, longest, rows[end + 1], chance, tests, refused=refused)

    return LossyRule("lossy_typical", rule)


def lossy_lenient(lenience: float | Fraction = 0.5) -> LossyRule:
    """Token verification with q multiplied by `lenience` before it is compared with p; the residual is unchanged.

    Leviathan et al. (2211.17192, appendix A.5). lenience 1 is token verification; at l a token may come out up to 1/l
    times as often as the target would say it.
    """
    _check("lenience", lenience, 0 < lenience <= 1, "in (0, 1]")

    def rule(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
        require(draft, "lossy_lenient")
        tests: list[Test] = []
        for i, x in enumerate(draft.tokens):
            p_x, q_x = rows[i][x], drawn_with(draft, i)
            key = Key(draft.root, i, Purpose.ACCEPT, i)
            prob = acceptance(p_x, lenience * q_x)
            accepted = chance.coin(prob, key)
            tests.append(Test(i, key, p_x, q_x, prob, accepted))
            if not accepted:
                return end_of_chain(draft, i, rows, chance, tests)
        return end_of_chain(draft, len(draft), rows, chance, tests)

    return LossyRule("lossy_lenient", rule)


def _entropy(p: Row) -> float:
    positive = p[p > 0].astype(np.float64)
    return float(-(positive * np.log(positive)).sum())


def _check(name: str, value: Any, ok: bool, right: str) -> None:
    if not ok:
        raise ValueError(f"{name}: {value!r} is not allowed; it must be {right}")
