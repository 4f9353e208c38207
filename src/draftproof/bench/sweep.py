"""How long and how wide to draft: every depth's speed-up, measured, and what theory makes of costs and acceptances.

The prediction is a planner's: from the acceptances that the deepest chain met, and what forwards cost here, it says
what every depth brings. Drafts that end early, as looked up ones do, count with the length that they had.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..base import Feed, Target
from ..speculation import full_tree, widths_of
from ..stats import Stats, together
from ..trees import depths
from .pace import Measured, first, measurements_of, speed_up, tokens_of
from .record import AGAIN, PLAIN, ForwardCosts, Run
from .runner import Answer, Answers

if TYPE_CHECKING:
    from ..llm import LLM
    from .ours import Ours

_ROUNDS = 15

# -- what forwards cost


def costs_of(llm: LLM, systems: Sequence[Ours], context: int) -> ForwardCosts:
    """Measured in turns, so that a machine that drifts drifts for all; after fewer tokens than `context` if one of the
    models, the drafts' included, has no room for so many and its rows."""
    wanted = _wanted(llm.loaded.target, systems)
    context = max(1, min(context, *(model.max_context - len(parents) - 2 for model, parents in wanted.values())))
    with ExitStack() as stack:
        tasks = {
            key: stack.enter_context(_forward(model, context, parents)) for key, (model, parents) in wanted.items()
        }
        seconds = _in_turns(tasks)
    found: dict[str, dict[Any, float]] = {"rows": {}, "trees": {}, "levels": {}}
    for (kind, name, _), spent in seconds.items():
        found[kind][name] = found[kind].get(name, 0.0) + spent  # a level of two models is one of each
    return ForwardCosts(context, **found)


def _wanted(target: Target, systems: Sequence[Ours]) -> dict[tuple[str, Any, str], tuple[Target, tuple[int, ...]]]:
    """A model and the nodes it reads, by what they are the cost of: its kind, whose it is, and the drafts' origin."""
    deepest = max((each.llm.speculation.depth for each in systems if not each.llm.speculation.tree), default=0)
    found: dict[tuple[str, Any, str], tuple[Target, tuple[int, ...]]] = {
        ("rows", rows, ""): (target, tuple(range(-1, rows - 2))) for rows in range(1, deepest + 2)
    }
    for each in systems:
        config = each.llm.speculation
        if config.tree:
            found["trees", each.name, ""] = target, full_tree(config.widths, config.depth)
        for origin, model in each.llm.drafting.models.items():
            found["levels", each.name, origin] = model, ()
    return found


@contextmanager
def _forward(model: Target, context: int, parents: tuple[int, ...]) -> Generator[Callable[[], float]]:
    """The seconds of one pending row and some nodes, after a text that is cached."""
    session = model.open(context + len(parents) + 2)

    def seconds() -> float:
        began = perf_counter()
        model.forward([Feed(session, (0,) * (1 + len(parents)), parents)])
        return perf_counter() - began

    try:
        model.forward([Feed(session, (0,) * context, want=())])
        model.commit([session], [()])
        yield seconds
    finally:
        model.close(session)


def _in_turns(tasks: Mapping[Any, Callable[[], float]]) -> dict[Any, float]:
    """The middle of each task's times. Each runs twice in its turn, and the second counts: a round follows its like."""
    random, times = Random(0), {name: [] for name in tasks}
    for _ in range(_ROUNDS):
        for name in random.sample(list(tasks), len(tasks)):
            tasks[name]()
            times[name].append(tasks[name]())
    return {name: median(each) for name, each in times.items()}


# -- points


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One way to draft, of a series that differs in depth alone. label: its name among all. speed_up: over plain
    decoding, low and high its interval. predicted: from acceptance and costs; None if it was not. own: from its own
    acceptances, so that it does not test the prediction. ended: prompts that do not count, since the answer was over in
    its first round, here or in plain decoding."""

    label: str
    depth: int
    temperature: float
    speed_up: float
    low: float | None
    high: float | None
    predicted: float | None
    tokens_per_pass: float
    series: str
    own: bool = False
    ended: int = 0


def points(run: Run) -> list[SweepPoint]:
    """Of every setting, depth and tree that was measured: speed-ups of decoding alone, without the prompts' reading."""
    return [each for _, each in _swept(run) if isinstance(each, SweepPoint)]


def left_out(run: Run) -> list[str]:
    """What is missing among the points or has stopped half-way, and why: a line each."""
    dropped = [f"{each.system} at {run.settings[each.setting].name} is out: {each.why}" for each in run.dropped]
    return dropped + [f"{what} is left out: {each}" for what, each in _swept(run) if isinstance(each, str)]


def _swept(run: Run) -> Iterator[tuple[str, SweepPoint | str]]:
    """What was measured, by a name for people: a point, or why there is none."""
    for at, setting in enumerate(run.settings):
        described = _described(run, at)
        for name in described:
            if name not in (PLAIN, AGAIN) and measurements_of(run.measurements, at, name):
                yield f"{name} at {setting.name}", _point(run, at, name, described)


def _described(run: Run, at: int) -> dict[str, Mapping[str, Any]]:
    """What our systems draft, by name, as it is under the setting's dtype."""
    dtype = run.settings[at].dtype
    return {
        each["name"]: each["speculation"]
        for each in run.systems
        if "speculation" in each and each.get("dtype", dtype) == dtype
    }


def _point(run: Run, at: int, name: str, described: Mapping[str, Mapping[str, Any]]) -> SweepPoint | str:
    whole, base = (measurements_of(run.measurements, at, each) for each in (name, PLAIN))
    own, plain = decoding(whole), decoding(base)
    found, counts, config = speed_up(own, plain, run.questions), _counts(whole), described[name]
    if found is None:
        return "none of its prompts was answered in more than one round both here and by plain decoding"
    if counts.tokens_per_pass is None:
        return "its rounds were not counted"
    predicted, from_own = _predicted(run, at, name, described)
    return SweepPoint(
        label=config["tree"] or f"K={config['depth']}",
        depth=config["depth"],
        temperature=run.settings[at].temperature,
        speed_up=found.mix.value,
        low=found.mix.low,
        high=found.mix.high,
        predicted=predicted,
        tokens_per_pass=counts.tokens_per_pass,
        series=series_of(name),
        own=from_own,
        ended=_asked_both(whole, base) - _asked_both(own, plain),
    )


def _asked_both(of: Measured, base: Measured) -> int:
    """How many questions both have answered in the same repeat."""
    return sum(len(group) for group, repeats in of.items() if repeats.keys() & base.get(group, {}).keys())


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


def decoding(of: Measured) -> Measured:
    """The same from when all of a group had begun, the last first arrival: the seconds and tokens after it. An answer
    that was over by then has none, and what it did not need to decode is no speed: its repeat is left out."""
    found = {group: {repeat: _later(answers) for repeat, answers in repeats.items()} for group, repeats in of.items()}
    kept = {
        group: {repeat: later for repeat, later in repeats.items() if tokens_of(later)}
        for group, repeats in found.items()
    }
    return {group: repeats for group, repeats in kept.items() if repeats}


def _later(answers: Answers) -> Answers:
    began = max(answer.arrivals[0][0] for answer in answers.answers)
    ended = max(answer.arrivals[-1][0] for answer in answers.answers)
    return Answers(ended - began, tuple(_after(answer, began) for answer in answers.answers))


def _after(answer: Answer, began: float) -> Answer:
    arrivals = tuple((at - began, count) for at, count in answer.arrivals if at > began)
    tokens = sum(count for _, count in arrivals)
    return Answer(answer.token_ids[len(answer.token_ids) - tokens :], arrivals)


def _counts(of: Measured) -> Stats:
    """Of the first repeats."""
    answers = [answer for repeats in of.values() for answer in first(repeats).answers]
    return together([Stats.of(answer.stats) for answer in answers if answer.stats is not None])


# -- the prediction


def _predicted(run: Run, at: int, name: str, described: Mapping[str, Mapping[str, Any]]) -> tuple[float | None, bool]:
    """Tokens a round over its cost in plain rounds, and whether its own acceptances told it. None without costs, which
    are those of one request in the dtype of the first setting."""
    setting, config = run.settings[at], described[name]
    if not run.costs or setting.batch > 1 or setting.dtype != run.settings[0].dtype:
        return None, False
    source = name if config["tree"] else _deepest(run, at, name, described)
    counts, costs = _counts(measurements_of(run.measurements, at, source)), mean_costs(run.costs)
    if not counts.rounds:
        return None, False
    if config["tree"]:
        return _of_tree(counts, costs, name, config), True
    return of_chain(counts, config["depth"], costs.rows, costs.levels.get(name, 0.0)), source == name


def _deepest(run: Run, at: int, name: str, described: Mapping[str, Mapping[str, Any]]) -> str:
    """Of the chains of a series that were measured."""
    alike = [
        other
        for other, each in described.items()
        if series_of(other) == series_of(name) and not each["tree"] and measurements_of(run.measurements, at, other)
    ]
    return max(alike, key=lambda other: described[other]["depth"])


def mean_costs(costs: Sequence[ForwardCosts]) -> ForwardCosts:
    """Of what was measured before and after."""

    def mean(parts: Sequence[Mapping[Any, float]]) -> dict[Any, float]:
        return {key: sum(part[key] for part in parts) / len(parts) for key in parts[0]}

    return ForwardCosts(
        costs[0].context,
        mean([each.rows for each in costs]),
        mean([each.trees for each in costs]),
        mean([each.levels for each in costs]),
    )


def of_chain(deepest: Stats, depth: int, rows: Mapping[int, float], level: float) -> float:
    """The speed-up that chains of at most `depth` tokens are expected to bring, from the counts of deeper ones.

    A round drafts as long as it did there, or `depth`; a position is accepted as often as it was there; a round costs
    its rows, and a level for each token drafted. Of chains alone: in a tree, tokens drafted at a depth are not rounds
    that came so far.

    Of two rounds one drafts two tokens, of which both are accepted, rows are free and a level costs a tenth:

    >>> counts = Stats(rounds=2, drafts=1, drafted=2, accepted=2)
    >>> counts.drafted_per_position, counts.accepted_per_position = [1, 1], [1, 1]
    >>> of_chain(counts, 2, {1: 1.0, 2: 1.0, 3: 1.0}, 0.1)  # 4 tokens in 2.2 rounds
    1.8181818181818181
    """
    drafted = [count / deepest.rounds for count in deepest.drafted_per_position[:depth]]
    accepted = [count / deepest.rounds for count in deepest.accepted_per_position[:depth]]
    reaching = [1.0, *drafted, *[0.0] * (depth + 1 - len(drafted))]  # rounds that draft so many tokens at least
    exactly = [here - beyond for here, beyond in pairwise(reaching)]
    cost = sum(share * (rows[1 + n] + n * level) for n, share in enumerate(exactly))
    tokens = 1 + sum(accepted)  # the shares are survivals already, over drafts of all lengths: theory's 1 + Σ survival
    return tokens / (cost / rows[1])


def _of_tree(counts: Stats, costs: ForwardCosts, name: str, config: Mapping[str, Any]) -> float:
    """From the tree's own counts: how often its levels were accepted is no other's to tell. Smaller trees than the
    whole cost in proportion."""
    one, parents = costs.rows[1], full_tree(widths_of(config["tree"]), config["depth"])
    filled = counts.drafted / counts.rounds / len(parents)
    levels = max(depths(parents)) * costs.levels.get(name, 0.0) * counts.drafts / counts.rounds
    cost = one + filled * (costs.trees[name] - one) + levels
    return counts.emitted / counts.rounds / (cost / one)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far predictions are from what was measured, as a share of it: in the middle, and the farthest."""

    median: float
    largest: float


def agreement(found: Sequence[SweepPoint]) -> Agreement | None:
    """Of what was predicted from the acceptances of another: one's own give back what they were measured with. None if
    there is nothing of the kind."""
    errors = [abs(each.predicted / each.speed_up - 1) for each in found if each.predicted is not None and not each.own]
    return Agreement(median(errors), max(errors)) if errors else None
