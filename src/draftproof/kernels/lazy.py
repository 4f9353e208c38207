"""The kernels behind the contracts of the loop: a law that is not computed, a chance that draws from it, and rules.

`RawLaw` stands where a row of probabilities would. Whoever indexes it or makes an array of it gets the probabilities;
`KernelChance` and the fused rules read its logits and never need them. So the loop, the drafters and any rule without
a kernel work on it as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ..base import Chance, Draft, Key, Law, Round, Row, Rule, Verdict
from ..chance import PhiloxChance
from ..rules import rule_named
from ..rules.needs import why_not
from ..rules.patient import patient
from ..sampling import Adjust, SamplingParams, adjusting, law_of, warped
from . import KERNELS, Batch, Part, decide, draw, seed_words, settings_of


@dataclass(slots=True)
class RawLaw:
    """The law of one row of adjusted logits [v] (float32) after `history`."""

    logits: np.ndarray
    history: Sequence[int]
    params: SamplingParams
    settings: tuple[float, float, float, float]
    _dense: np.ndarray | None = None
    _known: dict[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, token: int) -> float:
        return self._known[token] if token in self._known else float(self.dense()[token])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.dense(), dtype)

    def dense(self) -> np.ndarray:
        """The probabilities. A ValueError that names the position if the row holds no law."""
        if self._dense is None:
            self._dense = warped(self.logits, self.history, self.params)
        return self._dense

    def pick(self, seed: int, sample: int, key: Key, k: int) -> tuple[int, ...]:
        drawn = draw(
            self.logits, self.settings, seed_words(key.root, sample, seed), key.depth, key.node, key.purpose, k, True
        )
        if drawn is None:
            self.dense()  # says what is wrong
            raise ValueError(f"logits: the row after {len(self.history)} tokens holds no law")
        ids, p = drawn
        if len(ids) < k:
            raise ValueError(f"weights: {len(ids)} positive of {len(self)} at {key}, cannot pick {k}")
        self._known.update(zip(ids, p, strict=True))
        return tuple(ids)


def raw_law_of(params: SamplingParams, adjust: Adjust | None = None) -> Law:
    """`sampling.law_of`, not computed until somebody asks, if a kernel knows how."""
    if not _kernels_know(params):
        return law_of(params, adjust)
    adjusted, settings = adjusting(params, adjust), settings_of(params)

    def law(logits: np.ndarray, history: Sequence[int]) -> RawLaw:
        return RawLaw(adjusted(logits, history), history, params, settings)

    return law


def _kernels_know(params: SamplingParams) -> bool:
    """Typical decoding looks at the whole row again: the law itself has to be made."""
    return params.typical_p == 1


class KernelChance:
    """`PhiloxChance`, which draws from a `RawLaw` without making its probabilities."""

    def __init__(self, seed: int, sample: int = 0) -> None:
        self.inner = PhiloxChance(seed, sample)

    def uniform(self, key: Key) -> float:
        return self.inner.uniform(key)

    def coin(self, prob: Any, key: Key) -> bool:
        return self.inner.coin(prob, key)

    def arrival(self, key: Key, token: int) -> float:
        return self.inner.arrival(key, token)

    def pick(self, weights: Any, key: Key, k: int = 1) -> tuple[int, ...]:
        if isinstance(weights, RawLaw):
            self.inner.counter(key)  # refuses a key that does not fit
            return weights.pick(self.inner.seed, self.inner.sample, key, k)
        return self.inner.pick(weights, key, k)


@dataclass(frozen=True, slots=True)
class Fused:
    """A rule under `params`, by its kernel. rule: the same without, which says what is wrong with a row and where."""

    name: str
    rule: Rule
    params: SamplingParams

    def __call__(self, draft: Draft, rows: Sequence[Any], chance: Chance) -> Verdict:
        [verdict] = judge([Round(self, draft, rows, chance)])
        if isinstance(verdict, Exception):
            raise verdict
        return verdict


def fused(name: str, params: SamplingParams, *, allow_lossy: bool = False) -> Rule:
    """The rule of that name under `params`, by its kernel if it has one; it takes raw laws either way."""
    rule = partial(_on_rows, patient(rule_named(name, allow_lossy=allow_lossy)))
    return Fused(name, rule, params) if name in KERNELS and _kernels_know(params) else rule


def judge(rounds: Sequence[Round]) -> list[Verdict | Exception]:
    """Every round by its own rule; those of one kernel together."""
    found: list[Verdict | Exception | None] = [None] * len(rounds)
    for name in KERNELS:
        parts = {}
        for i, each in enumerate(rounds):
            try:
                part = _part(name, each)
            except Exception:  # of a request's own processors, perhaps at a row that its rule will never look at
                continue
            if part is not None:
                parts[i] = part
        for i, verdict in zip(parts, _verdicts(name, list(parts.values())), strict=True):
            found[i] = verdict
    return [_by_rule(each) if verdict is None else verdict for each, verdict in zip(rounds, found, strict=True)]


def _part(name: str, each: Round) -> Part | None:
    """What the kernel `name` needs of a round; None if that round is not for it."""
    rule, draft, chance = each.rule, each.draft, each.chance
    if not isinstance(rule, Fused) or rule.name != name or not isinstance(chance, KernelChance):
        return None
    if why_not(name, draft.parents, draft.kind) is not None:
        return None
    q_logits = None if name == "coupled" else _q_logits(draft, settings_of(rule.params))
    if q_logits is None and name != "coupled" and draft.rows:
        return None
    rows: Any = each.rows
    logits = np.stack([row.logits for row in rows]) if rule.params.adjusts else rows.logits
    return Part(draft, logits, rule.params, chance.inner.seed, chance.inner.sample, q_logits)


def _by_rule(each: Round) -> Verdict | Exception:
    rule = each.rule.rule if isinstance(each.rule, Fused) else each.rule
    try:
        return rule(each.draft, each.rows, each.chance)
    except Exception as error:
        return error


def _verdicts(name: str, parts: Sequence[Part]) -> list[Verdict | Exception | None]:
    """By the kernel; None where a row holds no law: the rule says what is wrong, and where."""
    if not parts:
        return []
    try:
        verdicts = decide(name, Batch.join(parts))
    except Exception as error:
        return [error] if len(parts) == 1 else [each for part in parts for each in _verdicts(name, [part])]
    found = zip(parts, verdicts.found[:, 3].tolist(), strict=True)
    return [verdicts.verdict(i, partial(_q, part.draft)) if bad < 0 else None for i, (part, bad) in enumerate(found)]


def _on_rows(rule: Rule, draft: Draft, rows: Sequence[Any], chance: Chance) -> Verdict:
    """`rule`, which asks for arrays."""
    return rule(replace(draft, rows=tuple(map(np.asarray, draft.rows))), _Arrays(rows), chance)


class _Arrays(Sequence[Row]):
    """Laws of either sort as arrays, made when a rule first looks."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index):
        return np.asarray(self._rows[index])


def _q(draft: Draft, node: int) -> Any:
    law = draft.law(node)
    return 1 if law is None else law[draft.tokens[node]]


def _q_logits(draft: Draft, settings: tuple) -> np.ndarray | None:
    """The logits that the nodes were sampled from, one row each; None where a law is not raw or of other settings than
    the request's, or none was sampled."""
    laws: list[Any] = [draft.law(node) for node in range(len(draft))]
    raw = [law.logits for law in laws if isinstance(law, RawLaw) and law.settings == settings]
    if not raw or len(raw) < sum(law is not None for law in laws):
        return None
    return np.stack([raw[0] if law is None else law.logits for law in laws])
