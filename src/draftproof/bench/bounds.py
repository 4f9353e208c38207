"""Acceptance against the most that any lossless rule could accept, level by level.

At a node with children any rule emits Y from p, and accepts at most if Y is among the drafted tokens D. How often both
can come together depends on p and on the law of D alone (transport.py).

What is counted at a level is given that the level was reached. For rules that decide one level after the other (token,
coupled, recursive, greedy multi-draft) the drafts below a node are then as fresh as ever, and the bound holds at every
level. Block and traversal verification keep a node in view of what was drafted below it: for them it holds at level 1
alone, and beyond it they may accept more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from ..base import ROOT, Draft, Kind, Row, Verdict
from ..laws import acceptance, fit, overlap, total
from ..llm import LLM
from ..sampling import SamplingParams
from ..speculation import widths_of
from ..transport import distinct_bound, distinct_estimate, independent_bound, others
from ..trees import children
from .record import Depth

_HELD = 5  # levels, where a controller would choose them


@dataclass(slots=True)
class Levels:
    """Counts what its `watch`, a `base.Watch`, is shown. rng: for the one bound that is estimated."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    bound: list[Any] = field(default_factory=list)

    def watch(self, draft: Draft, rows: Sequence[Any], verdict: Verdict) -> None:
        for level, node in enumerate((ROOT, *verdict.path)):
            siblings = children(draft.parents, node)
            goes_on = level < len(verdict.path)
            if not siblings or (verdict.last is None and not goes_on):  # without a last token there is no row for it
                return
            if level == len(self.reached):
                for counts in (self.reached, self.accepted, self.bound):
                    counts.append(0)
            self.reached[level] += 1
            self.accepted[level] += goes_on
            self.bound[level] += most_accepted(draft, siblings, np.asarray(rows[node + 1]), self.rng)

    def depths(self) -> tuple[Depth, ...]:
        """What was counted, from level 1 on. No more can be accepted than is reached, whatever an estimate says."""
        each = zip(self.reached, self.accepted, self.bound, strict=True)
        return tuple(Depth(reached, accepted, min(float(bound), float(reached))) for reached, accepted, bound in each)


def most_accepted(draft: Draft, siblings: Sequence[int], p: Row, rng: np.random.Generator) -> Any:
    """The most that any lossless rule accepts of these siblings: p(S) of the chosen ones S, and what the drawn ones
    can add off S. In expectation over the draws; a single answer may be above 1.

    One draw x adds Σ min(p, q) off S: no coupling has Y = x = t more often than min(p(t), q(t)), and there is one that
    has each as often. Several draws D: S ∪ D misses Y at least with P(D in H) − p(H) for any H that holds S, and some
    coupling misses no more (Strassen's theorem); with p set to 0 on S that is the bound of transport.py, for one
    drafter exact, for the draws of several the sum of theirs, which is only an upper bound. From three distinct draws
    on it is estimated.

    S must be chosen in ignorance of the draws, and no draw be left out for what it is, but for this: one with the
    target's own noise is not in the draft twice if it repeats a chosen token (see `_seen_beside_chosen`).
    """
    chosen, drawn = _parted(draft, siblings)
    rest = p.copy()
    rest[chosen] = 0 * rest[chosen]
    most = total(p) - total(rest)
    for nodes in drawn.values():
        shared = draft.kind[nodes[0]] is Kind.COUPLED
        if shared and len(drawn) > 1:  # a second drafter with the same noise: their joint law is not known
            most += total(rest)
        elif shared and chosen:
            most += _seen_beside_chosen(draft, nodes, rest)
        else:
            most += _of_draws(draft, nodes, rest, rng)
    return most


def _parted(draft: Draft, siblings: Sequence[int]) -> tuple[list[int], dict[str, list[int]]]:
    """The tokens that were chosen, and the nodes that were drawn, by drafter. A greedy law has one token: those that
    fill up its siblings have no mass in it, and were chosen by looking."""
    chosen, drawn = dict[int, None](), dict[str, list[int]]()
    for node in siblings:
        law = draft.law(node)
        if draft.kind[node] is Kind.CHOSEN or (law is not None and not law[draft.tokens[node]] > 0):
            chosen[draft.tokens[node]] = None
        else:
            drawn.setdefault(draft.origin[node], []).append(node)
    return list(chosen), drawn


def _law(draft: Draft, node: int, size: int) -> Row | None:
    """The law of a drawn node; None for one drawn with the target's noise by who does not tell from what."""
    law = draft.law(node)
    return None if law is None else fit(np.asarray(law), size)


def _of_draws(draft: Draft, nodes: Sequence[int], rest: Row, rng: np.random.Generator) -> Any:
    """The most that one drafter's draws add. The tokens that one noise likes best under q are as k draws from q without
    replacement, so coupled siblings are distinct draws, although they share the row."""
    q, k = _law(draft, nodes[0], len(rest)), len(nodes)
    if q is None:
        return total(rest)
    if k == 1:
        return overlap(rest, q)
    if draft.kind[nodes[0]] is Kind.SAMPLED and draft.row_of[nodes[0]] == draft.row_of[nodes[1]]:
        return independent_bound(rest, q, k)
    return distinct_bound(rest, q, k) if k == 2 else distinct_estimate(rest, q, k, rng)


def _seen_beside_chosen(draft: Draft, nodes: Sequence[int], rest: Row) -> Any:
    """What coupled draws add to chosen tokens, where a draw that is one of those is not seen.

    Y = x and x is drawn has at most the probability min(p(x), π(x)), with π that x is among the draws. So each x that
    is seen, which happens with π(x), adds min(1, p(x)/π(x)): for one draw the bound in expectation, for several more
    than it, with π as of two draws.
    """
    q, tokens = _law(draft, nodes[0], len(rest)), [draft.tokens[node] for node in nodes]
    if q is None:
        return total(rest)
    if len(tokens) == (q > 0).sum():  # nothing else could be drawn
        return total(rest[tokens])
    if len(tokens) == 1:
        return acceptance(rest[tokens[0]], q[tokens[0]])
    return sum(acceptance(rest[x], _among_two(q, x)) for x in tokens)


def _among_two(q: Row, x: int) -> Any:
    """The probability that x is one of two draws from q without replacement: q_x·(1 + Σ q_y/(1 − q_y) over y ≠ x)."""
    left = others(q)
    before = (q > 0) & (left > 0)
    before[x] = False
    return q[x] * (1 + total(q[before] / left[before]))


def observed(llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> tuple[Depth, ...]:
    """Answer the prompts one at a time, each under its parameters, and count.

    A controller by costs leaves out tokens that it has seen to be unlikely, so that those it keeps have a law that
    nobody knows. Instead of such a one the same drafters draft a fixed number of levels.
    """
    llm = _held(llm)
    levels = Levels()
    for prompt, one in zip(prompts, params, strict=True):
        for _ in llm.stream(llm.reply(list(prompt), one, watch=levels.watch)):
            pass
    return levels.depths()


def _held(llm: LLM) -> LLM:
    """The same, a fixed number of levels deep if a controller by costs would choose: as many as it may use if that was
    asked for, and of one width unless a tree was."""
    config = llm.speculation
    if config.control != "cost" or not config.parts:
        return llm
    told = config.num_speculative_tokens
    depth = told if isinstance(told, int) else max(_HELD, len(widths_of(config.tree)))
    return llm.speculating(asdict(replace(config, controller="fixed", num_speculative_tokens=depth)))
