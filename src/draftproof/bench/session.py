"""A run from beginning to end: models, systems, questions, the measuring, and the file that can be gone on with."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from ..llm import LLM
from ..models.load import require_known
from ..sampling import SamplingParams, check_integer
from ..speculation import SpeculativeConfig
from ..trace import TraceWriter
from .bounds import observed
from .divergence import explained, first_divergence
from .figures import figures
from .files import Part, bound_line, cost_line, group_line
from .measure import Asked, measure
from .ours import Ours
from .peers import hugging_face_runners, methods_named
from .provenance import homeless, provenance
from .questions import fingerprint, read_questions
from .record import AGAIN, PLAIN, Bound, Divergence, Run
from .runner import Measurement, Question, Runner, Setting, groups, seeds_of
from .sweep import costs_of

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Peers:
    """Which of Hugging Face's ways to answer take part (see `peers.hugging_face_runners`), in which Python, with which
    assistant (None: the first draft model of ours), and how many seconds an answer may take."""

    kinds: tuple[str, ...] = ()
    python: str | None = None
    assistant: str | None = None
    timeout: float = 600.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured. systems: our speculative configurations by name, beside plain decoding, which is there
    anyway, twice. questions: a file, None for our own. bounds: of how many questions acceptance is also set against
    the bound on it. costs: measure what forwards cost, too, before and after, for predictions."""

    model: str
    systems: Mapping[str, Mapping[str, Any]]
    temperatures: tuple[float, ...] = (0.0,)
    batches: tuple[int, ...] = (1,)
    dtypes: tuple[str, ...] = ("bfloat16",)
    questions: str | None = None
    count: int | None = None
    max_tokens: int = 128
    repeat: int = 1
    seed: int = 0
    bounds: int = 8
    costs: bool = False
    raw: bool = False
    threads: int | None = None
    exact: str = "bits"
    peers: Peers = field(default_factory=Peers)

    def __post_init__(self) -> None:
        for name, values in (("batch", self.batches), ("max_tokens", [self.max_tokens]), ("repeat", [self.repeat])):
            for value in values:
                check_integer(name, value, lambda n: n >= 1, ">= 1")
        check_integer("bounds", self.bounds, lambda n: n >= 0, ">= 0")
        if not self.peers.timeout > 0:
            raise ValueError(f"peer timeout: {self.peers.timeout} is not allowed; it must be above 0 seconds")
        for dtype in self.dtypes:
            require_known(dtype, self.exact)
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature, seed=self.seed)
        for name, config in self.systems.items():
            if name in (PLAIN, AGAIN) or name.startswith("hf "):
                raise ValueError(f"system: the name {name!r} is taken; give another one")
            if config.get("suffix_cache"):
                raise ValueError(f"suffix_cache: True is not allowed for {name!r}; it would remember its own answers")
            SpeculativeConfig.of(config)

    @property
    def settings(self) -> list[Setting]:
        """Each once."""
        return list(dict.fromkeys(Setting(*each) for each in product(self.temperatures, self.batches, self.dtypes)))


@dataclass(slots=True)
class Session:
    """Everything loaded. plain: by dtype, to look things up with. ours, runners: of each setting."""

    plan: Plan
    run: Run
    asked: Asked
    plain: dict[str, LLM]
    ours: list[list[Ours]]
    runners: list[list[Runner]]
    stack: ExitStack

    def close(self) -> None:
        """End the peers."""
        self.stack.close()


def prepare(plan: Plan, argv: Sequence[str], notify: Notify, trace: TraceWriter | None = None) -> Session:
    """Read the questions, load the models and find the peers; a ValueError, a line, for what cannot be."""
    questions = read_questions(plan.questions, plan.count)
    SamplingParams(seed=seeds_of(plan.seed, range(len(questions)))[-1])
    methods_named(plan.peers.kinds, assistant=True)
    stack = ExitStack()
    try:
        return _prepared(plan, questions, argv, notify, trace, stack)
    except BaseException:
        stack.close()
        raise


def _prepared(
    plan: Plan,
    questions: list[Question],
    argv: Sequence[str],
    notify: Notify,
    trace: TraceWriter | None,
    stack: ExitStack,
) -> Session:
    plain = {dtype: _loaded(plan, dtype, notify) for dtype in dict.fromkeys(plan.dtypes)}
    ours = [_ours(plan, plain[setting.dtype], setting.dtype, trace) for setting in plan.settings]
    by_dtype = {setting.dtype: mine for setting, mine in zip(plan.settings, ours, strict=True)}
    peers = {dtype: _peers(plan, llm, by_dtype[dtype], dtype, stack) for dtype, llm in plain.items()}
    runners = [[*mine, *peers[setting.dtype]] for setting, mine in zip(plan.settings, ours, strict=True)]
    _require_distinct([each.name for each in runners[0]])
    llm = plain[plan.dtypes[0]]
    prompts = {question: llm.encode(question.prompt, raw=plan.raw) for question in questions}
    room = llm.loaded.target.max_context - plan.max_tokens
    fitting = [question for question in questions if len(prompts[question]) <= room]
    for question in questions:
        if question not in fitting:
            tokens = len(prompts[question])
            notify(f"prompt {question.id} is left out: {tokens} tokens and {plan.max_tokens} more are too many")
    if not fitting:
        raise ValueError(
            "--prompts: with --max-tokens more, none of them fits the model's context; give less of either"
        )
    models = {llm.loaded.name: llm.loaded.path}
    for drafting in (each.llm.drafting for each in ours[0]):
        models |= {} if drafting.draft is None else {drafting.draft.name: drafting.draft.path}
        models |= {} if drafting.head is None else {f"head {drafting.config.model}": drafting.head}
    if plan.peers.kinds and plan.peers.assistant is not None:
        models[f"assistant {Path(plan.peers.assistant).name}"] = Path(plan.peers.assistant).expanduser()
    origin = provenance(argv, models)
    run = Run(
        origin,
        _identity(plan, questions, origin["models"]),
        [
            homeless({"name": each.name, "dtype": setting.dtype, **each.describe()})
            for setting, some in zip(plan.settings, runners, strict=True)
            if setting == next(first for first in plan.settings if first.dtype == setting.dtype)
            for each in some
        ],
        plan.settings,
        [{"id": q.id, "category": q.category, "prompt_tokens": len(prompts[q])} for q in fitting],
    )
    tokens, ids = [prompts[q] for q in fitting], [q.id for q in fitting]
    asked = Asked(
        tokens, ids, tuple(llm.end_ids), llm.loaded.target.vocab_size, plan.max_tokens, plan.repeat, plan.seed
    )
    return Session(plan, run, asked, plain, ours, runners, stack)


def _require_distinct(names: Sequence[str]) -> None:
    for name, number in Counter(names).items():
        if number > 1:
            raise ValueError(f"system: {name!r} is the name of {number}; give yours another one")


def _loaded(plan: Plan, dtype: str, notify: Notify) -> LLM:
    """Without anything that is kept from one answer to the next."""
    return LLM(
        plan.model,
        dtype=dtype,
        device="cpu",
        threads=plan.threads,
        exact=plan.exact,
        max_num_seqs=max(plan.batches),
        enable_prefix_caching=False,
        notify=notify,
    )


def _ours(plan: Plan, llm: LLM, dtype: str, trace: TraceWriter | None) -> list[Ours]:
    """Made anew for each setting, so that what a controller has learnt in one is not known in the next."""
    llms = {PLAIN: llm, AGAIN: llm}
    for name, config in plan.systems.items():
        llms[name] = llm.speculating(_forgetful(config))
    alone = len(set(plan.dtypes)) == 1
    return [Ours(name, each, dtype, trace, alone) for name, each in llms.items()]


def _forgetful(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without a memory of earlier answers: a prompt is answered several times."""
    looks = "suffix" in SpeculativeConfig.of(config).parts
    return {**config, "suffix_cache": False} if looks else dict(config)


def _peers(plan: Plan, llm: LLM, ours: Sequence[Ours], dtype: str, stack: ExitStack) -> list[Runner]:
    if not plan.peers.kinds:
        return []
    import torch

    drafts = [draft.path for each in ours if (draft := each.llm.drafting.draft) is not None]
    assistant = Path(plan.peers.assistant).expanduser() if plan.peers.assistant else next(iter(drafts), None)
    found = hugging_face_runners(
        plan.peers.kinds,
        python=plan.peers.python or sys.executable,
        model=llm.loaded.path,
        assistant=assistant,
        dtype=dtype,
        threads=torch.get_num_threads(),
        timeout=plan.peers.timeout,
    )
    for each in found:
        stack.callback(each.close)
    return list(found)


def _identity(plan: Plan, questions: Sequence[Question], models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All that must be the same for a run to be gone on with, beside systems, settings and questions. models: as
    `provenance` has them, the target first."""
    import torch

    return {
        "model": models[0]["name"],
        "weights": {each["name"]: each["sha256"] for each in models},
        "prompts": "our own" if plan.questions is None else Path(plan.questions).name,
        "fingerprint": fingerprint(questions),
        "max_tokens": plan.max_tokens,
        "repeat": plan.repeat,
        "seed": plan.seed,
        "bounds": plan.bounds,
        "raw": plan.raw,
        "exact": plan.exact,
        "threads": torch.get_num_threads(),
        "peers": list(plan.peers.kinds),
    }


def perform(session: Session, output: Path | None, tick: Callable[[int, int], None]) -> Run:
    """Measure what is not there yet. tick: is told groups done and groups in all. Whatever stops it, what was measured
    is in session.run and in OUT.part."""
    with Part(output) as part:
        run = session.run = part.begin(session.run)
        total = sum(len(groups(run.questions, setting.batch)) for setting in run.settings)
        tick(_done(run), total)
        _measure_costs(session, run, part)
        for group in measure(run, session.asked, session.runners, _explain(session)):
            run.measurements += group.measurements
            run.dropped += group.dropped
            run.divergences += group.divergences
            part.write(group_line(group.measurements, group.dropped, group.divergences))
            tick(_done(run), total)
        _measure_costs(session, run, part)
        for bound in _bounds(session, run):
            run.bounds.append(bound)
            part.write(bound_line([bound]))
        part.complete(run, figures(run).as_dict())
    return run


def broken_promises(run: Run) -> list[str]:
    """What must not be: systems that promise plain decoding's very text, and answers of theirs that are not."""
    exact = _exact(run)
    counts = Counter(
        (each.system, each.setting)
        for each in run.divergences
        if (each.system, run.settings[each.setting].dtype) in exact
    )
    return [
        f"{system} promises plain decoding's text, and {number} of its answers at {run.settings[at].name} differ"
        for (system, at), number in counts.items()
    ]


def _exact(run: Run) -> set[tuple[str, str]]:
    return {(each["name"], each["dtype"]) for each in run.systems if each.get("claim") == "bit-exact"}


def _measure_costs(session: Session, run: Run, part: Part) -> None:
    """At the context of the middle of an answer."""
    if session.plan.costs:
        dtype = session.plan.dtypes[0]
        context = int(median(question["prompt_tokens"] for question in run.questions)) + session.plan.max_tokens // 2
        run.costs.append(costs_of(session.plain[dtype], session.ours[0], context))
        part.write(cost_line(run.costs[-1]))


def _done(run: Run) -> int:
    return len({(each.setting, each.questions) for each in run.measurements})


def _explain(session: Session) -> Callable[[Setting, Measurement, Measurement], list[Divergence]]:
    """Compares what can be compared: greedy texts, and those of our own systems that promise the same."""
    exact = _exact(session.run)

    def explain(setting: Setting, plain: Measurement, other: Measurement) -> list[Divergence]:
        promised = (other.system, setting.dtype) in exact
        if setting.temperature > 0 and not promised:
            return []
        found = []
        for i, question in enumerate(other.questions):
            ids = plain.answers.answers[i].token_ids, other.answers.answers[i].token_ids
            position = first_divergence(*ids)
            if position is None:
                continue
            gap, steps, tie = None, None, False
            if setting.temperature == 0:
                target, prompt = session.plain[setting.dtype].loaded.target, session.asked.prompts[question]
                _, gap, steps, tie = explained(target, prompt, *ids, setting.dtype)
            found.append(Divergence(other.system, other.setting, question, position, gap, steps, tie and not promised))
        return found

    return explain


def _bounds(session: Session, run: Run) -> Iterator[Bound]:
    """Of our lossless systems that draft, in every setting of one prompt at once; a batch has the same laws."""
    have = {(each.system, each.setting) for each in run.bounds}
    out = {(each.system, each.setting) for each in run.dropped}
    count = min(session.plan.bounds, len(run.questions))
    chosen = [i * len(run.questions) // count for i in range(count)]
    for at, setting in enumerate(run.settings):
        for each in session.ours[at]:
            drafts = each.llm.drafting.origins and each.llm.claim != "lossy"
            if setting.batch > 1 or not drafts or not count or (each.name, at) in have | out:
                continue
            params = [
                SamplingParams(temperature=setting.temperature, seed=seed, max_tokens=session.plan.max_tokens)
                for seed in seeds_of(session.plan.seed, chosen)
            ]
            yield Bound(each.name, at, observed(each.llm, [session.asked.prompts[i] for i in chosen], params))
