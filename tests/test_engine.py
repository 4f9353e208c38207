"""The engine agrees with the oracle, token for token and round for round, whatever company a request keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pytest

from draftproof.audit.toys import Eager, Moody, chooser
from draftproof.base import Controller, Drafter, Kind, Step
from draftproof.chance import PhiloxChance
from draftproof.commit import Output
from draftproof.control import Fixed
from draftproof.drafters import ModelDrafter, NGramDrafter, NoDrafter
from draftproof.engine import Engine, EngineConfig
from draftproof.loop import decode
from draftproof.memory import KVMemory
from draftproof.models.table import TableTarget, hashed_logits
from draftproof.plan import Plan
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of
from draftproof.seats import Request
from tests.toys import CHAIN_RULES, Watched, kind_for

V = 12
TABLE = hashed_logits(V, order=3, scale=1.5)
NEAR = hashed_logits(V, order=3, scale=1.5, salt=1)
PLENTY = 1 << 30
BLOCK = 64  # tokens, and bytes, that a table's session is counted in

pytestmark = pytest.mark.usefixtures("unchecked")


def noisy(history: Sequence[int]) -> np.ndarray:
    return (0.8 * TABLE(history) + 0.4 * NEAR(history)).astype(np.float32)


DRAFTERS: dict[str, Callable[[str], Drafter]] = {
    "none": lambda rule: NoDrafter(),
    "ngram": lambda rule: NGramDrafter(3, 1),
    "noisy": lambda rule: ModelDrafter(TableTarget(noisy, V), kind_for(rule)),
    "wrong": lambda rule: chooser(lambda history: int(np.argmin(TABLE(history)))),
}


@dataclass(frozen=True)
class Asked:
    """A request as plain data, so that it can be made twice."""

    name: str
    prompt: tuple[int, ...]
    seed: int = 0
    drafter: str = "ngram"
    rule: str = "coupled"
    controller: Controller = field(default_factory=lambda: Fixed(3))
    params: SamplingParams = field(default_factory=lambda: SamplingParams(max_tokens=20))
    end_ids: frozenset[int] = frozenset()

    def request(self, drafters: dict[tuple[str, str], Drafter] | None = None) -> Request:
        """drafters: shared by those who ask for the same one."""
        key = self.drafter, self.rule
        made = DRAFTERS[self.drafter](self.rule) if drafters is None or key not in drafters else drafters[key]
        if drafters is not None:
            drafters[key] = made
        output = Output(self.params, self.params.max_tokens, self.end_ids)
        law, chance = law_of(self.params), PhiloxChance(self.seed)
        return Request(self.name, self.prompt, output, made, self.controller, RULES[self.rule], law, chance)


def alone(asked: Asked, target: TableTarget | None = None) -> tuple[Output, list[Step]]:
    """By the oracle."""
    request = asked.request()
    steps = decode(
        request.prompt,
        request.output,
        target=target or TableTarget(TABLE, V),
        drafter=request.drafter,
        controller=request.controller,
        rule=request.rule,
        law=request.law,
        chance=request.chance,
    )
    return request.output, [replace(step, seconds={}) for step in steps]


def engine(limit: int = PLENTY, target: TableTarget | None = None, **options) -> Engine:
    config = EngineConfig(**{"check": True} | options)
    return Engine(target or TableTarget(TABLE, V), KVMemory(limit), config)


def run(engine: Engine, events: list | None = None) -> dict[str, list[Step]]:
    """Until nobody is left: the steps of each; an error is raised."""
    steps: dict[str, list[Step]] = {}
    while engine.busy:
        for event in engine.step():
            if event.error is not None:
                raise event.error
            steps.setdefault(event.request.name, []).append(replace(event.step, seconds={}))
    return steps


def same_rounds(one: Sequence[Step], other: Sequence[Step]) -> bool:
    """Drafts, verdicts and tokens; the arrays in a draft by value."""

    def plain(step: Step) -> tuple:
        draft = step.draft
        rows = [np.asarray(row).tolist() for row in draft.rows]
        return draft.root, draft.tokens, draft.parents, draft.kind, rows, step.verdict, step.tokens

    return [plain(step) for step in one] == [plain(step) for step in other]


PARAMS = [
    SamplingParams(temperature=0, max_tokens=12),
    SamplingParams(max_tokens=25),
    SamplingParams(temperature=0.7, top_k=6, top_p=0.9, min_p=0.02, max_tokens=17),
    SamplingParams(max_tokens=1),
]


CONTROLLERS = [Fixed(0), Fixed(1), Fixed(4), Eager(3), Moody()]


def some_request(random: Random, index: int) -> Asked:
    beginning = (1, 2, 3, 4, 5, 6, 7, 8) * 4
    prompt = beginning[: random.choice([0, 20, 32])] + tuple(random.randrange(V) for _ in range(random.randint(1, 100)))
    return Asked(
        f"r{index}",
        prompt,
        random.randrange(4),
        random.choice(sorted(DRAFTERS)),
        random.choice(CHAIN_RULES),
        random.choice(CONTROLLERS),
        random.choice(PARAMS),
        random.choice([frozenset(), frozenset({3})]),
    )


@pytest.mark.parametrize("seed", range(80))
def test_every_request_is_as_it_is_alone(seed: int):
    """Mixed settings, rules, drafters and controllers, spread arrivals, cancellations, rests, any bound on anything."""
    random = Random(seed)
    many = [some_request(random, i) for i in range(random.randint(1, 7))]
    largest = max(len(asked.prompt) + asked.params.max_tokens + 4 for asked in many)
    runner = engine(
        2 * BLOCK * -(-largest // BLOCK) * random.randint(1, 4),
        max_num_seqs=random.randint(1, 5),
        max_num_batched_tokens=random.randint(1, 40),
        enable_prefix_caching=random.random() < 0.7,
    )
    shared: dict = {}
    waiting = [asked.request(shared) for asked in many]
    made = {request.name: request for request in waiting}
    cancelled, rests, steps = set(), set(), {asked.name: [] for asked in many}
    while waiting or runner.busy or rests:
        if waiting and random.random() < 0.5:
            runner.add(waiting.pop(0))
        if random.random() < 0.02:
            name = random.choice(many).name
            if runner.cancel(name):
                cancelled.add(name)
        if random.random() < 0.1:
            rests.add(random.choice(many).name)
        if not runner.busy or random.random() < 0.2:
            rests.clear()
        for asked in many:
            runner.hold(asked.name, asked.name in rests)
        for event in runner.step():
            assert event.error is None
            steps[event.request.name].append(replace(event.step, seconds={}))
    for asked in many:
        output, known = alone(asked)
        if asked.name in cancelled:
            assert same_rounds(steps[asked.name], known[: len(steps[asked.name])])
        else:
            assert made[asked.name].output.token_ids == output.token_ids
            assert same_rounds(steps[asked.name], known)
    runner.clear()
    assert runner.memory.used == 0


def test_those_runs_were_not_tame():
    """The runs above evicted, preempted, reused and cut prompts; else they would have shown little."""
    shared: dict = {}
    runner = engine(3 * 2 * BLOCK, max_num_seqs=4, max_num_batched_tokens=10)
    prompt = tuple(i % V for i in range(40))
    many = [Asked(f"r{i}", (*prompt, i), i, "noisy", params=SamplingParams(max_tokens=60)) for i in range(5)]
    for asked in many:
        runner.add(asked.request(shared))
    steps = run(runner)
    for asked in many:
        assert same_rounds(steps[asked.name], alone(asked)[1])
    counts = runner.counts
    assert counts.preempted > 0
    assert counts.reused >= 40
    assert counts.most_running > 1
    assert counts.emitted == 5 * 60
    assert runner.memory.peak <= runner.memory.limit


# --- order, room and time ---------------------------------------------------------------------------------------------


class Noting(TableTarget):
    """Keeps the rows of every feed of every forward."""

    def __init__(self) -> None:
        super().__init__(TABLE, V)
        self.forwards: list[list[int]] = []

    def forward(self, feeds):
        self.forwards.append([len(feed.tokens) for feed in feeds])
        return super().forward(feeds)


def test_one_forward_a_round_with_prompts_in_pieces_beside_those_who_decode():
    target = Noting()
    runner = engine(target=target, max_num_batched_tokens=12, check=False, enable_prefix_caching=False)
    runner.add(Asked("short", (1, 2), drafter="none", params=SamplingParams(max_tokens=30)).request())
    runner.step()
    runner.add(Asked("long", tuple(i % V for i in range(50)), drafter="none", controller=Fixed(0)).request())
    for _ in range(5):
        runner.step()
    assert target.forwards == [[2], [1, 11], [1, 11], [1, 11], [1, 11], [1, 6]]
    run(runner)
    assert max(sum(rows) for rows in target.forwards) <= 12


def test_prompts_are_not_starved_by_those_who_decode():
    target = Noting()
    runner = engine(target=target, max_num_batched_tokens=4, check=False)
    for i in range(6):
        runner.add(Asked(f"r{i}", (1, i), drafter="none", params=SamplingParams(max_tokens=30)).request())
    for _ in range(8):
        runner.step()
    assert runner.running == 6
    assert all(rows == [1] * 6 for rows in target.forwards[-2:])


def test_whoever_comes_first_is_served_first_and_leaves_room_at_once():
    runner = engine(2 * BLOCK, max_num_seqs=8, enable_prefix_caching=False)
    many = [Asked(f"r{i}", (1, i), params=SamplingParams(max_tokens=4 + 3 * i)) for i in range(6)]
    for asked in many:
        runner.add(asked.request())
    ended, most = [], 0
    while runner.busy:
        ended += [event.request.name for event in runner.step() if event.ended]
        most = max(most, runner.running)
        assert runner.memory.used == runner.running * BLOCK
    assert ended == [asked.name for asked in many]
    assert most <= 2


def test_what_could_never_run_is_refused_before_it_waits():
    runner = engine(2 * BLOCK)
    with pytest.raises(
        ValueError, match=r"prompt: with its answer it may grow to 200 tokens, .* 256 bytes .* is 128: shorten"
    ):
        runner.add(Asked("big", (1,) * 100, params=SamplingParams(max_tokens=100)).request())
    with pytest.raises(ValueError, match="prompt: it has no tokens"):
        runner.add(Asked("none", ()).request())
    runner.add(Asked("x", (1,)).request())
    with pytest.raises(ValueError, match="name: a request 'x' is under way already"):
        runner.add(Asked("x", (1,)).request())
    assert not runner.cancel("y")
    assert runner.cancel("x")
    assert not runner.busy


def test_a_request_may_rest_and_goes_on_where_it_was():
    runner, asked = engine(), Asked("x", (1, 2, 3))
    request = asked.request()
    runner.add(request)
    runner.step()
    runner.hold("x")
    assert not runner.busy
    assert runner.step() == []
    runner.hold("x", False)
    run(runner)
    assert request.output.token_ids == alone(asked)[0].token_ids


def test_one_who_rests_takes_no_ones_place_and_gives_his_memory_first():
    runner = engine(2 * BLOCK, max_num_seqs=1, enable_prefix_caching=False)
    resting, other = Asked("resting", (1, 2)), Asked("other", (3,), params=SamplingParams(max_tokens=60))
    made = [asked.request() for asked in (resting, other)]
    for request in made:
        runner.add(request)
    runner.step()
    runner.hold("resting")
    rounds = 0
    while runner.busy:
        runner.step()
        rounds += 1
        assert runner.running <= 1
    assert rounds <= 60
    assert made[1].output.finish_reason == "length"
    assert runner.counts.preempted == 1
    assert runner.waits("resting")
    runner.hold("resting", False)
    run(runner)
    assert made[0].output.token_ids == alone(resting)[0].token_ids


def test_a_round_that_is_interrupted_leaves_nothing_behind():
    class Interrupted(TableTarget):
        broken = False

        def commit(self, sessions, paths):
            if self.broken:
                raise KeyboardInterrupt
            super().commit(sessions, paths)

    target = Interrupted(TABLE, V)
    runner = engine(target=target, check=False)
    for i in range(3):
        runner.add(Asked(f"r{i}", (1, i)).request())
    runner.step()
    target.broken = True
    with pytest.raises(KeyboardInterrupt):
        runner.step()
    target.broken = False
    assert (runner.running, runner.waiting, runner.memory.used, runner.step()) == (0, 0, 0, [])
    again = Asked("again", (1, 2))
    runner.add(again.request())
    assert same_rounds(run(runner)["again"], alone(again)[1])


def test_a_request_runs_once():
    runner, request = engine(), Asked("x", (1,)).request()
    runner.add(request)
    run(runner)
    with pytest.raises(ValueError, match="request: it has run before"):
        runner.add(request)


def test_a_cancelled_request_frees_its_memory_and_is_heard_of_no_more():
    runner = engine(enable_prefix_caching=False)
    for name in "ab":
        runner.add(Asked(name, (1, 2)).request())
    runner.step()
    assert runner.cancel("a")
    assert runner.memory.used == BLOCK
    assert {event.request.name for _ in range(30) for event in runner.step()} == {"b"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs: 0 is not allowed"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens: 0 is not allowed"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching: 1 is not allowed; it must be True or False"),
        ({"check": None}, "check: None is not allowed"),
    ],
)
def test_a_wrong_configuration_is_refused(wrong: dict, message: str):
    with pytest.raises(ValueError, match=message):
        EngineConfig(**wrong)


def test_nothing_is_drafted_while_too_many_share_a_round():
    runner, controller = engine(), Fixed(3, 2)
    many = [
        Asked(f"r{i}", (1, 2, i), i, "noisy", controller=controller, params=SamplingParams(max_tokens=10 + 20 * i))
        for i in range(4)
    ]
    for asked in many:
        runner.add(asked.request())
    steps = run(runner)
    assert not any(len(step.draft) for step in steps["r0"])
    assert any(len(step.draft) for step in steps["r3"][-8:])
    for asked in many:  # the text is the seed's either way
        assert [token for step in steps[asked.name] for token in step.tokens] == alone(asked)[0].token_ids


# --- drafting together ------------------------------------------------------------------------------------------------


def test_a_draft_model_runs_once_a_depth_for_all_and_never_for_those_who_want_nothing():
    model, asked_for = Noting(), []

    class Listening(ModelDrafter):
        def propose(self, sessions, plans, chances):
            asked_for.append(len(sessions))
            return super().propose(sessions, plans, chances)

    drafter = Listening(model, Kind.COUPLED)
    runner = engine(max_num_batched_tokens=100, check=False)
    depths = [0, 1, 3, 3]
    for i, depth in enumerate(depths):
        asked = Asked(f"r{i}", (1, 2, i), controller=Eager(depth), params=SamplingParams(max_tokens=40))
        runner.add(replace_drafter(asked, drafter))
    runner.step()
    assert asked_for == [3]
    assert [len(rows) for rows in model.forwards] == [3, 2, 2]
    run(runner)
    assert all(count == 3 for count in asked_for[:5])


def replace_drafter(asked: Asked, drafter: Drafter) -> Request:
    request = asked.request()
    request.drafter = drafter
    return request


def test_a_controller_is_told_what_of_a_prompt_is_left_to_read():
    """In pieces of 8 rows; a second request that begins like the first has less to read."""
    watched = Watched(Fixed(0))
    packed, prompt = engine(max_num_batched_tokens=8), tuple(range(1, 9)) * 5
    for name, left in (("first", [40, 32, 24, 16, 8, 1, 1]), ("second", [1, 1, 1])):
        watched.loads.clear()
        packed.add(Asked(name, prompt, params=SamplingParams(max_tokens=3), controller=watched).request())
        run(packed)
        assert [load.pending for load in watched.loads] == left


def test_a_drafter_that_was_not_wanted_for_a_while_catches_up():
    """Plain decoding for ten rounds, then drafts that are always right: from a cache that was brought up to date."""

    class Later:
        def init(self):
            return 0

        def plan(self, state, load):
            return Plan(3 if state >= 10 and load.remaining > 3 else 0)

        def update(self, state, step):
            return state + 1

    model = Noting()
    runner, drafter = engine(), ModelDrafter(model, Kind.COUPLED)
    for i in range(3):
        asked = Asked(f"r{i}", (1, 2, i), i, controller=Later(), params=SamplingParams(max_tokens=40))
        runner.add(replace_drafter(asked, drafter))
    steps = run(runner)
    for found in steps.values():
        assert [len(step.draft) for step in found[:10]] == [0] * 10
        assert all(step.accepted == 3 for step in found[10:-4])
    assert model.forwards[0] == [13, 13, 13]


# --- errors end one request -------------------------------------------------------------------------------------------


def failing(kind: str, asked: Asked) -> Request:
    """A request in which something breaks after a few tokens."""
    request = asked.request()

    def broken(*args):
        raise RuntimeError("broken " + kind)

    class Broken:
        def __getattr__(self, name):
            return broken

    def after(count: int, then: Callable):
        return lambda *args: then(*args) if len(request.output.token_ids) >= count else None

    if kind == "law":
        plain = request.law
        request.law = lambda logits, history: (after(3, broken)(), plain(logits, history))[1]
    elif kind == "rule":
        plain = request.rule
        request.rule = lambda *args: (after(3, broken)(), plain(*args))[1]
    elif kind == "detokenizer":
        request.output.detokenizer = Broken()
    elif kind == "controller":
        request.controller = Broken()
        request.controller.init = lambda: None
    elif kind == "drafter":
        request.drafter = chooser(lambda history: (after(3, broken)(), 0)[1])
    elif kind == "opening":
        request.drafter = NGramDrafter()
        request.drafter.open = broken
    return request


@pytest.mark.parametrize("kind", ["law", "rule", "detokenizer", "controller", "drafter", "opening"])
def test_what_breaks_in_one_request_ends_it_alone(kind: str):
    runner = engine(enable_prefix_caching=False)
    mates = [Asked(f"r{i}", (1, 2, i), i) for i in range(3)]
    made = [asked.request() for asked in mates]
    for request in (made[0], failing(kind, Asked("poisoned", (3, 4))), *made[1:]):
        runner.add(request)
    errors = []
    while runner.busy:
        errors += [(event.request.name, str(event.error)) for event in runner.step() if event.error is not None]
    assert errors == [("poisoned", f"broken {kind}")]
    for request, asked in zip(made, mates, strict=True):
        assert request.output.token_ids == alone(asked)[0].token_ids
    assert runner.memory.used == 0


def test_drafters_that_fail_together_are_asked_one_by_one():
    """One session's draft model has no law: the others draft on, as they do alone."""

    def poisoned(history: Sequence[int]) -> np.ndarray:
        return np.full(V, np.nan, np.float32) if 9 in history[:1] else noisy(history)

    drafter = ModelDrafter(TableTarget(poisoned, V), Kind.COUPLED)
    runner = engine()
    for i in range(4):
        runner.add(replace_drafter(Asked(f"r{i}", (9 if i == 2 else 1, i), i, "noisy"), drafter))
    steps, errors = {}, {}
    while runner.busy:
        for event in runner.step():
            if event.error is not None:
                errors[event.request.name] = str(event.error)
            else:
                steps.setdefault(event.request.name, []).append(replace(event.step, seconds={}))
    assert list(errors) == ["r2"]
    assert "draft model model: position 2: logits: the row's largest entry is nan" in errors["r2"]
    for i in (0, 1, 3):
        assert same_rounds(steps[f"r{i}"], alone(Asked(f"r{i}", (1, i), i, "noisy"))[1])


def test_a_forward_that_fails_for_one_is_repeated_without_it():
    class Picky(TableTarget):
        def _forward(self, feed):
            if 11 in feed.session.tokens[:1]:
                raise OverflowError("too hot")
            return super()._forward(feed)

    runner = engine(target=Picky(TABLE, V), check=False, enable_prefix_caching=False)
    made = [Asked(f"r{i}", (11 if i == 1 else 1, 2, i), i).request() for i in range(3)]
    for request in made:
        runner.add(request)
    errors = []
    while runner.busy:
        errors += [(event.request.name, str(event.error)) for event in runner.step() if event.error is not None]
    assert errors == [("r1", "too hot")]
    assert made[2].output.token_ids == alone(Asked("r2", (1, 2, 2), 2))[0].token_ids


# --- the check mode ---------------------------------------------------------------------------------------------------


def test_the_check_sees_caches_that_do_not_follow_what_was_committed():
    class Forgetful(TableTarget):
        def commit(self, sessions, paths):
            super().commit(sessions, paths)
            for session in sessions:
                if len(session.tokens) > 6:
                    session.tokens[2] = 0

    class Deaf(NGramDrafter):
        def commit(self, sessions, tokens):
            super().commit(sessions, [some[:2] for some in tokens])

    for target, drafter, message in [
        (Forgetful(TABLE, V), "noisy", "check: after round .*: target: cached"),
        (None, Deaf(), "check: after round .*: drafter: its state is not that of a replay"),
    ]:
        runner = engine(target=target)
        request = Asked("x", (1, 2, 3)).request()
        request.drafter = drafter if not isinstance(drafter, str) else request.drafter
        runner.add(request)
        with pytest.raises(RuntimeError, match=message):
            run(runner)
