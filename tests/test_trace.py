"""A trace holds every round as it was: it adds up to the statistics, and what was decided can be decided again."""

from __future__ import annotations

import asyncio
import doctest
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from draftproof.async_engine import AsyncEngine, RequestError
from draftproof.base import Draft, Key, Purpose, Step, Verdict
from draftproof.base import Test as Asked
from draftproof.chance import PhiloxChance, heads
from draftproof.cli.app import run
from draftproof.commit import Output, commit
from draftproof.control import Fixed
from draftproof.drafters import NGramDrafter
from draftproof.laws import acceptance
from draftproof.llm import LLM
from draftproof.rules import LOSSY, NEEDS, RULES
from draftproof.sampling import SamplingParams, law_of
from draftproof.seats import Request
from draftproof.solo import Generation
from draftproof.stats import Stats
from draftproof.trace import VERSION, Trace, origins_of, read, step_of, steps_of, summed, writing
from draftproof.trace.fields import FIELDS
from draftproof.trace.record import likeliest, round_record
from tests.folders import make_folder, said

PARAMS = SamplingParams(seed=5, max_tokens=40)
PROMPT = "abcabcabc"


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = make_folder(tmp_path_factory.mktemp("model"))
    return LLM(str(folder), dtype="float32", speculative_config={"method": "ngram", "num_speculative_tokens": 4})


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return str(make_folder(tmp_path_factory.mktemp("other"), seed=1))


@pytest.fixture(scope="module")
def traced(llm, tmp_path_factory):
    """A trace of three requests at once, and their answers."""
    path = tmp_path_factory.mktemp("trace") / "rounds.jsonl"
    with writing(path) as writer:
        outputs = llm.traced(writer, {"system": "ngram", "repeat": 0}).generate([PROMPT] * 3, PARAMS)
    return path, [output.outputs[0] for output in outputs]


def spoken(*steps: Step) -> Output:
    output = Output(SamplingParams(max_tokens=100), 100)
    for step in steps:
        assert commit(output, step.tokens) == step.tokens
    return output


def told(path: Path, *steps: Step, name: str = "x", laws: int = 0) -> Stats:
    """A trace of one request that had these rounds, and its statistics."""
    request = Request(
        name,
        [0, 1, 2, 3],
        spoken(*steps),
        NGramDrafter(2, 1),
        Fixed(4),
        RULES["coupled"],
        law_of(SamplingParams()),
        PhiloxChance(7),
    )
    stats = Stats()
    stats.seconds["load"] = 1 / 3
    with writing(path, laws) as writer:
        tracer = writer.labelled(Spelling(), None)(request, 7, 0, {"model": "m", "dtype": "d"}, 1 / 3)
        for step in steps:
            stats.add(step)
            tracer.round(step)
        tracer.end(stats, None)
    return stats


class Spelling:
    """A tokenizer."""

    def decode(self, ids: Sequence[int], **options: bool) -> str:
        return "".join(f"<{token}>" for token in ids)


def verdict_of(mask: Sequence[bool], draft: Draft) -> Verdict:
    """What a chain rule says that asked about every node and met these answers."""
    accepted = mask.index(False) if False in mask else len(mask)
    tests = [
        Asked(node, Key(draft.root, node, Purpose.ACCEPT, node), 0.5, 1, 0.5, answer)
        for node, answer in enumerate(mask)
    ]
    tokens = (*draft.tokens[:accepted], 9)
    last = "bonus" if accepted == len(mask) else "replacement"
    return Verdict(tuple(range(accepted)), tokens, last, tuple(tests))


def chained(root: int, tokens: Sequence[int], mask: Sequence[bool], seconds: float = 0.1) -> Step:
    draft = Draft.chain(root, tokens, origin="ngram")
    verdict = verdict_of(mask, draft)
    return Step(draft, verdict, verdict.tokens, {"forward": seconds, "verify": seconds / 7})


PLAIN = Step(Draft(4), Verdict((), (5,), "target"), (5,), {"forward": 0.3}, rows=1, why="nothing pays")
T44 = chained(4, [1, 2, 3, 4], [True, False, True, True])
FULL = chained(6, [1, 2, 3, 4], [True] * 4)
SHORT = chained(11, [1], [True])


def test_what_was_traced_is_read_again(traced, llm):
    path, answers = traced
    found, prompt = read(path), llm.encode(PROMPT, raw=True)
    assert (found.header["draftproof_trace"], found.cut) == (VERSION, False)
    assert (found.header["dtype"], found.header["laws"]) == ("float32", 0)
    assert len(found.requests) == len(answers)
    for request, answer in zip(found.requests, answers, strict=True):
        assert summed(request).as_dict() == answer.stats.as_dict() == request.end["stats"]
        assert request.text == answer.text
        assert [token for step in steps_of(request) for token in step.tokens] == answer.token_ids
        assert request.begin["seed"] == answer.seed
        assert request.begin["label"] == {"system": "ngram", "repeat": 0}
        assert request.begin["prompt_token_ids"] == prompt
        assert request.begin["config"]["speculation"]["method"] == "ngram"
        assert request.end["finish_reason"] == answer.finish_reason
    assert list(path.parent.iterdir()) == [path]


def test_requests_interleave_and_every_line_names_its_own(traced):
    path, _ = traced
    names = [json.loads(line)["request"] for line in path.read_text(encoding="utf-8").split("\n")[1:] if line]
    assert len(set(names)) == 3
    assert sum(a != b for a, b in pairwise(names)) > 10


@pytest.mark.parametrize("step", [PLAIN, T44, FULL, SHORT])
def test_a_step_is_rebuilt_from_its_line(step):
    record = json.loads(json.dumps(round_record(0, step, PhiloxChance(7))))
    assert step_of(record) == step


def test_a_drafted_tree_is_rebuilt_but_for_its_laws(llm, other, tmp_path):
    drawn = llm.speculating(
        {"method": "draft_model", "model": other, "tree": "2x2", "verify": "recursive", "num_speculative_tokens": 2}
    )
    steps: list[Step] = []
    with writing(tmp_path / "t") as writer:
        for delta in drawn.traced(writer).start(PROMPT, PARAMS):
            steps.append(delta.step)
    [request] = read(tmp_path / "t").requests
    for found, step in zip(steps_of(request), steps, strict=True):
        assert found.verdict == step.verdict
        assert replace(found.draft, rows=step.draft.rows) == step.draft
        assert (found.tokens, found.seconds, found.rows, found.why) == (step.tokens, step.seconds, step.rows, step.why)


def test_t44_what_comes_after_a_refusal_is_not_accepted_and_a_bonus_is_no_draft(tmp_path):
    stats = told(tmp_path / "t", T44, FULL, SHORT)
    [request] = read(tmp_path / "t").requests
    first, full, short = (step_of(record) for record in request.rounds)
    assert [test.accepted for test in first.verdict.tests] == [True, False, True, True]
    assert (first.accepted, first.bonus, len(first.tokens)) == (1, 0, 2)
    assert (full.accepted, full.bonus, len(full.tokens)) == (4, 1, 5)
    assert (len(short.draft), short.accepted) == (1, 1)
    found = summed(request)
    assert (found.drafted, found.accepted, found.bonus, found.emitted) == (9, 6, 2, 9)
    assert found.acceptance_rate == 6 / 9
    assert found.as_dict() == stats.as_dict()


def test_t44_what_was_never_drafted_has_no_acceptance(tmp_path, capsys):
    told(tmp_path / "t", PLAIN)
    [request] = read(tmp_path / "t").requests
    assert summed(request).acceptance_rate is None
    assert summed(request).positions == ()
    run(["show", str(tmp_path / "t"), "--json"])
    [shown] = json.loads(capsys.readouterr().out)["requests"]
    assert shown["stats"]["acceptance_rate"] is None
    assert (shown["by_origin"], shown["by_depth"]) == ({}, [])


def test_a_depth_is_told_both_ways(tmp_path, capsys):
    told(tmp_path / "t", T44, FULL, SHORT, PLAIN)
    shown = json.loads(show(tmp_path / "t", "--json", capsys=capsys))["requests"][0]["by_depth"]
    counts = [[each[name] for name in ("drafted", "reached", "accepted")] for each in shown]
    assert counts == [[3, 3, 3], [2, 2, 1], [2, 1, 1], [2, 1, 1]]
    assert (shown[2]["marginal"], shown[2]["conditional"]) == (1 / 3, 1)
    [row] = [line for line in show(tmp_path / "t", capsys=capsys).splitlines() if line.split()[:1] == ["3"]]
    assert row.split() == ["3", "2", "1", "1", "100%", "33%"]


def test_what_commit_cut_has_no_origin():
    cut = replace(FULL, tokens=FULL.tokens[:2])
    assert origins_of(cut) == ["ngram", "ngram"]
    assert origins_of(T44) == ["ngram", None]


COINS = ["token", "block", "recursive", "traversal", "greedy_multi", "lossy_lenient"]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rule", [*RULES, *LOSSY])
def test_every_decision_can_be_made_again_from_its_line(rule, llm, other, tmp_path):
    config = {"method": "draft_model", "model": other, "verify": rule, "allow_lossy": rule in LOSSY}
    if NEEDS[rule].shape == "tree":
        config |= {"tree": "2x2"}
    elif NEEDS[rule].shape == "level":
        config |= {"num_speculative_tokens": 1}
    with writing(tmp_path / "t", 300) as writer:
        llm.speculating(config).traced(writer).generate([PROMPT, "xyz"], replace(PARAMS, temperature=0.7))
    chances, outcomes = 0, set()
    for request in read(tmp_path / "t").requests:
        chance = PhiloxChance(request.begin["seed"], request.begin["sample"])
        for record in request.rounds:
            step = step_of(record)
            for test, line, laws in zip(step.verdict.tests, record["tests"], record["laws"]["tests"], strict=True):
                outcomes.add(test.accepted)
                token = step.draft.tokens[test.node]
                assert dict(laws["p"]["top"]).get(token, 0) == pytest.approx(test.p, rel=1e-6)
                if laws["q"] is not None and rule != "coupled":
                    assert dict(laws["q"]["top"])[token] == pytest.approx(test.q, rel=1e-6)
                if test.prob is None:
                    assert line["u"] is None
                    assert test.accepted == compared(rule, step, test, laws)
                    continue
                tossed = 0 < test.prob < 1
                chances += tossed
                assert line["u"] == (chance.uniform(test.key) if tossed else None)
                assert test.accepted == heads(0.0 if line["u"] is None else line["u"], test.prob)
                if rule in ("token", "lossy_lenient"):
                    assert test.prob == acceptance(test.p, test.q * (0.5 if rule == "lossy_lenient" else 1))
    assert outcomes == {True, False}
    assert (chances > 0) == (rule in COINS)


def compared(rule: str, step: Step, test: Asked, laws: dict) -> bool:
    """The answer of a rule that compares."""
    if rule == "lossy_typical":
        entropy = -sum(p * math.log(p) for _, p in laws["p"]["top"])
        return test.p > min(0.09, 0.3 * math.exp(-entropy))
    depth = test.key.root - step.draft.root if rule == "coupled" else 0
    return step.draft.tokens[test.node] == step.verdict.tokens[depth]


@pytest.mark.parametrize("count", [1, 3, 300])
def test_a_law_and_its_tail_are_all_of_it(count, llm, other, tmp_path):
    config = {"method": "draft_model", "model": other, "verify": "token", "num_speculative_tokens": 3}
    with writing(tmp_path / "t", count) as writer:
        llm.speculating(config).traced(writer).generate(PROMPT, PARAMS)
    found = read(tmp_path / "t")
    laws = [record["laws"] for record in found.requests[0].rounds]
    rows = [law for each in laws for test in each["tests"] for law in (test["p"], test["q"])]
    assert len(rows) > 10
    for law in [*rows, *(each["last"] for each in laws)]:
        assert sum(p for _, p in law["top"]) + law["rest"] == pytest.approx(1, abs=1e-12)
        assert len(law["top"]) <= count
        assert [p for _, p in law["top"]] == sorted((p for _, p in law["top"]), reverse=True)
        assert all(token in found.texts for token, _ in law["top"])


def test_a_law_without_a_tail_has_none():
    assert likeliest(np.array([0.0, 1.0, 0.0]), 2) == {"top": [[1, 1.0]], "rest": 0.0}


def test_every_token_is_spelled_before_it_is_needed(traced, llm):
    path, _ = traced
    known: dict[int, str] = {}
    for line in path.read_text(encoding="utf-8").split("\n")[1:]:
        record = json.loads(line) if line else {}
        if record.get("event") == "round":
            assert known.keys().isdisjoint(map(int, record["texts"]))
            known |= {int(token): text for token, text in record["texts"].items()}
            assert known.keys() >= {*record["draft"]["tokens"], *record["tokens"]}
    tokenizer = llm.get_tokenizer()
    assert known == {token: tokenizer.decode([token]) for token in known}


def test_pieces_make_the_text_whatever_a_stop_string_cuts(llm, tmp_path):
    whole = said(llm, PROMPT, PARAMS).text
    for at in range(0, len(whole) - 3, 2):
        params = replace(PARAMS, stop=(whole[at : at + 3], whole[at + 1 : at + 3] + "never"))
        with writing(tmp_path / "t") as writer:
            answer = said(llm.traced(writer), PROMPT, params)
        [request] = read(tmp_path / "t").requests
        assert request.text == answer.text
        assert request.end["stop_reason"] == answer.stop_reason


def test_all_faces_tell_the_same_rounds_and_say_what_they_say_untraced(llm, tmp_path):
    def stream(llm):
        reply = llm.reply(PROMPT, PARAMS)
        return "".join(delta.text for delta in llm.stream(reply))

    async def engine(llm):
        async with AsyncEngine(llm) as engine:
            return (await engine.generate(PROMPT, PARAMS)).text

    faces = [
        stream,
        lambda llm: llm.start(PROMPT, PARAMS).result().text,
        lambda llm: next(llm.answer([llm.reply(PROMPT, PARAMS)]))[1].text,
        lambda llm: said(llm, PROMPT, PARAMS).text,
        lambda llm: asyncio.run(engine(llm)),
    ]
    rounds = []
    for face in faces:
        with writing(tmp_path / "t") as writer:
            text = face(llm.traced(writer))
        [request] = read(tmp_path / "t").requests
        assert text == request.text == face(llm)
        assert request.end["finish_reason"] == "length"
        rounds.append([(step.draft, step.verdict, step.tokens) for step in steps_of(request)])
    assert all(each == rounds[0] for each in rounds)
    with writing(tmp_path / "t") as writer:
        [output] = llm.traced(writer).chat([{"role": "user", "content": "ab"}], PARAMS)
    assert read(tmp_path / "t").requests[0].text == output.outputs[0].text


def test_an_llm_that_is_traced_leaves_the_original_as_it_was(llm, tmp_path):
    with writing(tmp_path / "t") as writer:
        one = llm.traced(writer, {"system": "a"})
        before = said(llm, PROMPT, PARAMS)
        assert said(one.speculating({"method": "suffix"}), PROMPT, PARAMS).token_ids == before.token_ids
        assert said(one.traced(writer, {"system": "b"}), PROMPT, PARAMS).token_ids == before.token_ids
        said(llm, PROMPT, PARAMS)
    found = read(tmp_path / "t")
    assert [each.begin["label"]["system"] for each in found.requests] == ["a", "b"]


def test_answers_to_one_prompt_and_requests_of_one_name_are_told_apart(llm, tmp_path):
    async def twice(llm):
        async with AsyncEngine(llm) as engine:
            for seed in (1, 2):
                await engine.generate(PROMPT, replace(PARAMS, seed=seed), request_id="x")

    with writing(tmp_path / "t") as writer:
        [output] = llm.traced(writer).generate(PROMPT, replace(PARAMS, n=2))
        asyncio.run(twice(llm.traced(writer)))
    requests = read(tmp_path / "t").requests
    assert [each.begin["sample"] for each in requests[:2]] == [0, 1]
    assert [each.text for each in requests[:2]] == [each.text for each in output.outputs]
    assert [each.name for each in requests[2:]] == ["x", "x (2)"]
    assert [each.begin["seed"] for each in requests[2:]] == [1, 2]


class Poisoned(Fixed):
    def update(self, state, step):
        raise RuntimeError("poisoned")


async def poisoned_late(llm):
    async with AsyncEngine(llm) as engine:
        stream = engine.stream(PROMPT, replace(PARAMS, max_tokens=200), request_id="x")
        await anext(stream)
        reply, _ = engine._replies["x"]
        reply.request.controller = Poisoned(1)
        with pytest.raises(RequestError, match="request x: poisoned"):
            await stream.completion()


@pytest.mark.parametrize("face", ["answer", "stream", "start", "async"])
def test_an_error_that_ends_a_request_is_its_end(face, llm, tmp_path):
    with writing(tmp_path / "t") as writer:
        one = llm.traced(writer)
        reply = one.reply(PROMPT, PARAMS)
        reply.request.controller = Poisoned(1)
        if face == "async":
            asyncio.run(poisoned_late(one))
        elif face == "answer":
            [(_, completion)] = one.answer([reply])
            assert completion.finish_reason == "error"
        elif face == "stream":
            with pytest.raises(RuntimeError, match="poisoned"):
                list(one.stream(reply))
        else:
            with pytest.raises(RuntimeError, match="poisoned"):
                Generation(one.loaded.target, reply).result()
    [request] = read(tmp_path / "t").requests
    assert (request.end["finish_reason"], request.end["error"]) == ("error", "poisoned")
    assert summed(request).as_dict() == request.end["stats"]


# files


def test_what_an_interrupt_leaves_is_the_part_and_the_old_trace_stays(llm, tmp_path):
    path = tmp_path / "t"
    path.write_text("old")

    def interrupted() -> None:
        with writing(path) as writer:
            for i, _ in enumerate(llm.traced(writer).start(PROMPT, PARAMS)):
                assert len(read(tmp_path / "t.part").requests[0].rounds) == i + 1
                if i == 2:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    found = read(tmp_path / "t.part")
    assert len(found.requests[0].rounds) == 3
    assert found.requests[0].end is None


def test_a_refused_request_leaves_no_file(llm, tmp_path):
    with pytest.raises(ValueError, match="prompt: it is empty"), writing(tmp_path / "t") as writer:
        llm.traced(writer).generate("", PARAMS)
    assert list(tmp_path.iterdir()) == []


def test_a_trace_without_requests_is_one(tmp_path):
    with writing(tmp_path / "t"):
        pass
    assert read(tmp_path / "t").requests == ()


def test_a_writer_is_for_within_its_block_and_for_one_model(llm, other, tmp_path):
    with writing(tmp_path / "t") as writer:
        one = llm.traced(writer)
        said(one, PROMPT, PARAMS)
        with pytest.raises(ValueError, match="needs a trace of its own"):
            LLM(other, dtype="float32").traced(writer).generate(PROMPT, PARAMS)
        with pytest.raises(ValueError, match=r"label: .* is not allowed; it must be a dict that JSON can hold"):
            llm.traced(writer, {"system": object()})
    with pytest.raises(ValueError, match="trace: its file is closed"):
        said(one, PROMPT, PARAMS)
    with pytest.raises(ValueError, match="laws: -1 is not allowed"), writing(tmp_path / "u", -1):
        pass


def test_a_file_cut_in_mid_line_keeps_all_before_it(traced, tmp_path):
    path, _ = traced
    whole, known = path.read_bytes(), read(path)
    lines = whole.split(b"\n")
    for at in (len(lines[0]) + 2, len(whole) // 2, len(whole) - 2):
        (tmp_path / "t").write_bytes(whole[:at])
        found = read(tmp_path / "t")
        complete = whole[:at].count(b"\n")
        assert found.cut == (not whole[:at].endswith(b"\n"))
        assert size(found) == complete
    (tmp_path / "t").write_bytes(whole[:-1])  # a last line that is whole
    assert not read(tmp_path / "t").cut
    assert size(read(tmp_path / "t")) == size(known)


def size(found: Trace) -> int:
    return 1 + sum(1 + len(each.rounds) + (each.end is not None) for each in found.requests)


def damaged(how: str, lines: list[bytes]) -> bytes:
    if how == "line":
        lines[3] = lines[3][:-20]
    elif how == "field":
        lines[3] = lines[3].replace(b'"pieces"', b'"places"')
    elif how == "order":
        del lines[1]
    elif how == "event":
        lines[2] = lines[2].replace(b'"round"', b'"dance"', 1)
    return b"\n".join(lines)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("line", "line 4: it is damaged: it is no JSON object"),
        ("field", "line 4: it is damaged: it has no pieces"),
        ("order", "line 2: request '#.*' has not begun"),
        ("event", "line 3: it is damaged: it holds event 'dance' of request '#.*'"),
    ],
)
def test_a_damaged_line_is_named(how, said, tmp_path):
    told(tmp_path / "t", T44, FULL, SHORT, name="#1")
    (tmp_path / "t").write_bytes(damaged(how, (tmp_path / "t").read_bytes().split(b"\n")))
    with pytest.raises(ValueError, match=said):
        read(tmp_path / "t")


def places(value: object, above: tuple = ()) -> Iterator[tuple]:
    """Every field of an object, those within it, and the first of each list; not what is free to be anything."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield (*above, name)
            yield from () if name in ("config", "stats") else places(each, (*above, name))
    elif isinstance(value, list) and value:
        yield (*above, 0)
        yield from places(value[0], (*above, 0))


def replaced(record: dict, place: tuple, value: object) -> bytes:
    changed = json.loads(json.dumps(record))
    *above, last = place
    reduce(lambda each, name: each[name], above, changed)[last] = value
    return json.dumps(changed).encode()


def fully_told(path: Path) -> list[dict]:
    """A line of each kind, with all that may be in it."""
    told(path, T44)
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    law = {"top": [[1, 0.5]], "rest": 0.5}
    records[2]["laws"] = {"tests": [{"p": law, "q": law}] * 4, "last": law}
    records[2]["draft"]["confidence"] = [0.5] * 4
    records[1]["label"] = {"system": "ngram"}
    return records


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("line", range(4))
def test_whatever_a_field_is_replaced_by_it_reads_or_is_refused_in_one_line(line, tmp_path, capsys):
    path = tmp_path / "t"
    records = fully_told(path)
    refused = []
    for place in places(records[line]):
        for value in ([], {}, 3, "x", None, True):
            lines = [json.dumps(record).encode() for record in records]
            lines[line] = replaced(records[line], place, value)
            path.write_bytes(b"\n".join(lines) + b"\n")
            if run(["show", str(path)]) == 2:
                refused.append(place)
                assert capsys.readouterr().err.count("\n") == 1, (place, value)
                with pytest.raises(ValueError, match=f"^trace: {re.escape(repr(str(path)))}"):
                    read(path)
            else:
                assert run(["show", str(path), "--json"]) == run(["show", str(path), "--round", "0"]) == 0
                assert capsys.readouterr().err == "", (place, value)
                read(path)
    assert {place[0] for place in refused} == set(records[line])


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("texts",), [], "line 3: it is damaged: texts is []; it must be strings by token id"),
        (("pieces",), 7, "line 3: it is damaged: pieces is 7; it must be a list of strings"),
        (("pieces",), [], "line 3: it is damaged: it has 0 pieces for 2 tokens"),
        (("tokens",), {"a": 1}, "line 3: it is damaged: tokens is {'a': 1}; it must be a list of whole numbers from 0"),
        (("tests", 0, "p"), "x", "line 3: it is damaged: tests[0].p is 'x'; it must be a number"),
        (("tests", 0, "p"), 10**400, "it must be a number"),
        (("draft", "kind", 0), "x", "draft.kind is ['x', 'chosen', 'chosen', 'chosen']; it must be a list of chosen"),
        (("draft", "row_of", 0), 10**12, "it must be a list of whole numbers from -1 to 65536"),
        (("draft", "parents"), [0, 0, 1, 2], "line 3: round 0 of request 'x' is damaged: draft: node 0 has parent 0"),
        (("path",), [2], "path: (2,) is not a path of the draft"),
        (("tests", 0, "node"), 4, "line 3: it is damaged: tests ask about nodes [4, 1, 2, 3] of 4"),
        (("tokens", 0), 8, "line 3: it is damaged: tokens are not what verdict_tokens begin with"),
        (("accepted",), 2, "line 3: it is damaged: accepted and bonus must be 1 and 0"),
        (("seconds",), {"tea": 1.0}, "line 3: it is damaged: seconds is {'tea': 1.0}; it must be numbers by phase"),
        (("laws", "tests"), [], "line 3: it is damaged: laws.tests has 0 for 4 tests"),
        (("laws", "tests", 0, "p", "top"), [[1]], "laws.tests[0].p.top is [[1]]; it must be a list of [token id, prob"),
    ],
)
def test_a_damaged_field_is_named(place, value, said, tmp_path):
    records = fully_told(tmp_path / "t")
    lines = [json.dumps(record).encode() for record in records]
    lines[2] = replaced(records[2], place, value)
    (tmp_path / "t").write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(ValueError, match=re.escape(said)):
        read(tmp_path / "t")


def test_a_round_that_is_not_there_is_missed(tmp_path):
    told(tmp_path / "t", T44, FULL, SHORT)
    lines = (tmp_path / "t").read_bytes().split(b"\n")
    (tmp_path / "t").write_bytes(b"\n".join(lines[:3] + lines[4:]))
    with pytest.raises(ValueError, match="line 4: round 2 of request 'x' comes after 1"):
        read(tmp_path / "t")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty; a trace begins with a header"),
        (b"hello\n", "does not begin with a draftproof trace header"),
        (b"\xff\xfe\n", "does not begin with a draftproof trace header"),
        (b'{\n  "provenance": {},\n  "asked": {}\n}\n', "does not begin with a draftproof trace header"),
        (b'{"id": 1, "text": "an answer"}\n', "does not begin with a draftproof trace header"),
        (b'{"draftproof_tr', "does not begin with a draftproof trace header"),
        (b'{"draftproof_trace": 3}\n', "is of version 3; this draftproof reads version 2"),
    ],
)
def test_what_is_no_trace_is_said_in_one_line(content, said, tmp_path, capsys):
    (tmp_path / "t").write_bytes(content)
    assert run(["show", str(tmp_path / "t")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_a_folder_and_a_file_that_is_not_there_are_said(tmp_path, capsys):
    for path, line in ((tmp_path, "is a folder; it must be a file"), (tmp_path / "no", "there is no file")):
        assert run(["show", str(path)]) == 2
        assert line in capsys.readouterr().err


# show


def show(*words, capsys) -> str:
    assert run(["show", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_show_prints_the_texts_and_their_figures(traced, capsys):
    path, answers = traced
    out = show(path, capsys=capsys)
    for answer in answers:
        assert answer.text in out
        assert f"{answer.stats.emitted} tokens, {answer.stats.rounds} rounds" in out
    assert "\033" not in out
    assert "system ngram, repeat 0" in out
    assert "do not add up" not in out


def test_show_colours_who_drafted_what_on_a_terminal(traced, capsys, monkeypatch):
    path, _ = traced
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = show(path, capsys=capsys)
    assert "\033[32m" in out
    assert out.endswith("colours: \033[32mngram\033[0m; the target's own tokens plain\n")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in show(path, capsys=capsys)


def test_show_json_is_one_object_with_every_summary(traced, capsys):
    path, answers = traced
    shown = json.loads(show(path, "--json", capsys=capsys))
    assert [each["text"] for each in shown["requests"]] == [answer.text for answer in answers]
    for each, answer in zip(shown["requests"], answers, strict=True):
        assert each["stats"] == answer.stats.as_dict()
        assert each["adds_up"] is True
        assert each["by_origin"]["ngram"]["accepted"] == answer.stats.accepted
        assert sum(depth["accepted"] for depth in each["by_depth"]) == answer.stats.accepted


def test_show_draws_a_round(tmp_path, capsys):
    told(tmp_path / "t", T44, PLAIN)
    out = show(tmp_path / "t", "--round", 0, capsys=capsys)
    u = PhiloxChance(7).uniform(Key(4, 0, Purpose.ACCEPT, 0))
    assert out.splitlines()[:3] == [
        "round 0 of x, after 4 tokens: 4 tokens drafted, 0 rows for 1 request",
        f'  "<1>"[1] chosen by ngram: p 0.5 q 1 coin 0.5 u {u:.4g} accepted',
        out.splitlines()[2],
    ]
    assert 'emitted: "<1>"[1] "<9>"[9] (the last one: replacement)' in out
    assert "nothing pays" in show(tmp_path / "t", "--round", 1, capsys=capsys)
    assert json.loads(show(tmp_path / "t", "--round", 1, "--json", capsys=capsys))["tokens"] == [5]


def test_show_draws_laws_where_there_are_some(llm, tmp_path, capsys):
    with writing(tmp_path / "t", 2) as writer:
        llm.traced(writer).generate(PROMPT, PARAMS)
    assert ", rest " in show(tmp_path / "t", "--round", 0, capsys=capsys)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--request", "nobody"], "--request: there is no 'nobody'; known are '#"),
        (["--round", "0"], "--round: 0 needs --request, whose it is; known are '#"),
    ],
)
def test_show_says_what_is_not_there(words, line, traced, capsys):
    path, _ = traced
    assert run(["show", str(path), *words]) == 2
    assert line in capsys.readouterr().err


def test_show_says_that_there_is_no_such_round(tmp_path, capsys):
    told(tmp_path / "t", T44)
    assert run(["show", str(tmp_path / "t"), "--round", "1"]) == 2
    assert "--round: there is no 1; request 'x' has 1, from 0 on" in capsys.readouterr().err


def test_a_cut_trace_is_shown_and_the_cut_is_said(tmp_path, capsys):
    told(tmp_path / "t", T44, FULL)
    whole = (tmp_path / "t").read_bytes()
    (tmp_path / "t").write_bytes(whole[:-30])
    assert run(["show", str(tmp_path / "t")]) == 0
    out, err = capsys.readouterr()
    assert "it had not ended" in out
    assert "is cut in its last line" in err


@pytest.mark.usefixtures("unchecked")
def test_a_long_trace_is_read_in_a_few_seconds(tmp_path, capsys):
    from time import perf_counter

    told(tmp_path / "t", *([FULL] * 20))
    lines = (tmp_path / "t").read_text().split("\n")
    record = json.loads(lines[2])
    many = [json.dumps(record | {"round": i}) for i in range(10_000)]
    (tmp_path / "t").write_text("\n".join([*lines[:2], *many]) + "\n")
    began = perf_counter()
    show(tmp_path / "t", capsys=capsys)
    assert perf_counter() - began < 10


@pytest.mark.real
@pytest.mark.usefixtures("unchecked")
def test_the_examples_of_the_document_run():
    text = (Path(__file__).parents[1] / "docs" / "traces.md").read_text(encoding="utf-8").replace("```", "")
    test = doctest.DocTestParser().get_doctest(text, {}, "traces.md", "traces.md", 0)
    assert test.examples
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


def test_the_document_names_every_field_and_every_rule():
    document = (Path(__file__).parents[1] / "docs" / "traces.md").read_text(encoding="utf-8")
    fields = {*round_record(0, T44, PhiloxChance(7)), *FIELDS["begin"], *FIELDS["round"], *FIELDS["end"]}
    assert [name for name in sorted(fields | {*RULES, *LOSSY}) if f"`{name}`" not in document] == []
