"""How long and how wide to draft: every depth's speed-up, measured, and what theory makes of costs and acceptances.

The prediction is a planner's: from the acceptances that the deepest chain met, and what forwards cost here, it says
what every depth brings. Drafts that end early, as looked up ones do, count with the length that they had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from ..base import Feed, Target
from ..llm import LLM
from ..speculation import full_tree, widths_of
from ..stats import Stats, together
from ..theory import expected_tokens
from ..trees import depths
from .bootstrap import Interval, ratio
from .ours import Ours
from .pace import measured
from .plots import SweepPoint
from .record import AGAIN, PLAIN, Costs, Run
from .runner import Answers

_ROUNDS = 15

# -- what forwards cost


def costs_of(llm: LLM, systems: Sequence[Ours], context: int) -> Costs:
    """Measured in turns, so that a machine that drifts drifts for all."""
    target = llm.loaded.target
    context = max(1, min(context, target.max_context - 1 - max((_nodes(each) for each in systems), default=0)))
    deepest = max((each.llm.speculation.depth for each in systems if not each.llm.speculation.tree), default=0)
    tasks: dict[tuple[str, Any], _Forward] = {
        ("rows", rows): _Forward(target, context, tuple(range(-1, rows - 2))) for rows in range(1, deepest + 2)
    }
    for each in systems:
        if each.llm.speculation.tree:
            tasks["trees", each.name] = _Forward(target, context, _parents(each))
        for model in each.llm.drafting.models.values():
            tasks["levels", each.name] = _Forward(model, context, ())
    seconds = _in_turns(tasks)
    found: dict[str, dict[Any, float]] = {"rows": {}, "trees": {}, "levels": {}}
    for (kind, name), spent in seconds.items():
        found[kind][name] = spent
    return Costs(context, **found)


def _nodes(system: Ours) -> int:
    return len(_parents(system)) if system.llm.speculation.tree else system.llm.speculation.depth


def _parents(system: Ours) -> tuple[int, ...]:
    return full_tree(system.llm.speculation.widths, system.llm.speculation.depth)


class _Forward:
    """One pending row and some nodes, after a text that is cached."""

    def __init__(self, model: Target, context: int, parents: tuple[int, ...]) -> None:
        self._model, self._parents = model, parents
        self._session = model.open(context + len(parents) + 2)
        model.forward([Feed(self._session, (0,) * context, want=())])
        model.commit([self._session], [()])

    def __call__(self) -> float:
        began = perf_counter()
        self._model.forward([Feed(self._session, (0,) * (1 + len(self._parents)), self._parents)])
        return perf_counter() - began

    def close(self) -> None:
        self._model.close(self._session)


def _in_turns(tasks: Mapping[Any, _Forward]) -> dict[Any, float]:
    """The middle of each task's times. Each runs twice in its turn, and the second counts: a round follows its like."""
    random, times = Random(0), {name: [] for name in tasks}
    try:
        for _ in range(_ROUNDS):
            for name in random.sample(list(tasks), len(tasks)):
                tasks[name]()
                times[name].append(tasks[name]())
    finally:
        for task in tasks.values():
            task.close()
    return {name: median(each) for name, each in times.items()}


# -- points


def points(run: Run) -> list[SweepPoint]:
    """Of every setting, depth and tree that was measured: speed-ups of decoding alone, without the prompts' reading."""
    found = []
    described = {each["name"]: each["speculation"] for each in run.systems if "speculation" in each}
    for at, setting in enumerate(run.settings):
        base = _decoding(run, at, PLAIN)
        for name, config in described.items():
            own = _decoding(run, at, name)
            if name in (PLAIN, AGAIN) or not own:
                continue
            counts = _counts(run, at, name)
            speed = _speed_up(base, own)
            found.append(
                SweepPoint(
                    config["tree"] or f"K={config['depth']}",
                    config["depth"],
                    setting.temperature,
                    speed.value,
                    speed.low,
                    speed.high,
                    _predicted(run, at, name, described),
                    counts.tokens_per_pass or 1.0,
                    series_of(name),
                )
            )
    return found


def series_of(name: str) -> str:
    """What a line in the picture is called: a chain's system without its depth, trees of all shapes together.

    >>> series_of("suffix K=4"), series_of("model:small K=2 4x2")
    ('suffix', 'model:small, trees')
    """
    words = [word for word in name.split(" ") if not word.startswith("K=")]
    chain = [word for word in words if not _is_tree(word)]
    return " ".join(chain) + (", trees" if len(chain) < len(words) else "")


def _is_tree(word: str) -> bool:
    return word[:1].isdigit() and all(part.isdigit() for part in word.split("x"))


Decoded = dict[tuple[int, ...], tuple[float, int]]
"""Seconds and tokens after the first arrival, by group."""


def _decoding(run: Run, setting: int, system: str) -> Decoded:
    found = {}
    for group, repeats in measured(run.measurements, setting, system).items():
        spans = [_span(answers) for answers in repeats.values()]
        tokens = spans[0][1]
        if tokens:
            found[group] = median(seconds for seconds, _ in spans), tokens
    return found


def _span(answers: Answers) -> tuple[float, int]:
    """From when all had begun: the last first arrival."""
    began = max(answer.arrivals[0][0] for answer in answers.answers)
    ended = max(answer.arrivals[-1][0] for answer in answers.answers)
    return ended - began, sum(count for answer in answers.answers for at, count in answer.arrivals if at > began)


def _speed_up(base: Decoded, own: Decoded) -> Interval:
    both = [group for group in own if group in base]
    (seconds, tokens), (base_seconds, base_tokens) = (
        zip(*(spans[group] for group in both), strict=True) for spans in (own, base)
    )
    return ratio(base_seconds, base_tokens, seconds, tokens)


def _counts(run: Run, setting: int, system: str) -> Stats:
    return together(
        [
            Stats.of(answer.stats)
            for repeats in measured(run.measurements, setting, system).values()
            for answer in repeats[min(repeats)].answers
            if answer.stats is not None
        ]
    )


# -- the prediction


def _predicted(run: Run, setting: int, name: str, described: Mapping[str, Any]) -> float | None:
    """Tokens a round over its cost in plain rounds; None without measured costs."""
    if not run.costs:
        return None
    config, costs = described[name], mean_costs(run.costs)
    if config["tree"]:
        return _of_tree(_counts(run, setting, name), costs, name, config)
    alike = [
        other
        for other, each in described.items()
        if series_of(other) == series_of(name) and not each["tree"] and _decoding(run, setting, other)
    ]
    deepest = max(alike, key=lambda other: described[other]["depth"])
    return of_chain(_counts(run, setting, deepest), config["depth"], costs.rows, costs.levels.get(name, 0.0))


def mean_costs(costs: Sequence[Costs]) -> Costs:
    """Of what was measured before and after."""

    def mean(parts: Sequence[Mapping[Any, float]]) -> dict[Any, float]:
        return {key: sum(part[key] for part in parts) / len(parts) for key in parts[0]}

    return Costs(
        costs[0].context,
        mean([each.rows for each in costs]),
        mean([each.trees for each in costs]),
        mean([each.levels for each in costs]),
    )


def of_chain(deepest: Stats, depth: int, rows: Mapping[int, float], level: float) -> float:
    """The speed-up that chains of at most `depth` tokens are expected to bring, from the counts of deeper ones.

    A round drafts as long as it did there, or `depth`; a position is accepted as often as it was there; a round costs
    its rows, and a level for each token drafted.

    Of two rounds one drafts two tokens, of which both are accepted, rows are free and a level costs a tenth:

    >>> counts = Stats(rounds=2, drafts=1, drafted=2, accepted=2)
    >>> counts.drafted_per_position, counts.accepted_per_position = [1, 1], [1, 1]
    >>> of_chain(counts, 2, {1: 1.0, 2: 1.0, 3: 1.0}, 0.1)  # 4 tokens in 2.2 rounds
    1.8181818181818181
    """
    drafted = [count / deepest.rounds for count in deepest.drafted_per_position[:depth]]
    accepted = [count / deepest.rounds for count in deepest.accepted_per_position[:depth]]
    shares = [now / before if before else 0.0 for before, now in zip([1.0, *accepted], accepted, strict=False)]
    reaching = [1.0, *drafted, *[0.0] * (depth + 1 - len(drafted))]  # rounds that draft so many tokens at least
    exactly = [here - beyond for here, beyond in pairwise(reaching)]
    cost = sum(share * (rows[1 + n] + n * level) for n, share in enumerate(exactly))
    return expected_tokens(shares) / (cost / rows[1])


def _of_tree(counts: Stats, costs: Costs, name: str, config: Mapping[str, Any]) -> float:
    """From the tree's own counts: how often its levels were accepted is no other's to tell. Smaller trees than the
    whole cost in proportion."""
    one, parents = costs.rows[1], full_tree(widths_of(config["tree"]), config["depth"])
    filled = counts.drafted / counts.rounds / len(parents)
    levels = max(depths(parents)) * costs.levels.get(name, 0.0) * counts.drafts / counts.rounds
    cost = one + filled * (costs.trees[name] - one) + levels
    return (counts.tokens_per_pass or 1.0) / (cost / one)


def agreement(found: Sequence[SweepPoint]) -> float | None:
    """The middle of how far predictions are from what was measured, as a share of it; None without predictions."""
    errors = [abs(each.predicted / each.speed_up - 1) for each in found if each.predicted is not None]
    return median(errors) if errors else None
