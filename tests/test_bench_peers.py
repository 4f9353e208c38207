"""Hugging Face in a process of its own: what it answers is what it says, and nothing it does takes us along."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from draftproof.bench import peers
from draftproof.bench.hugging_face import cut
from draftproof.bench.line import Line
from draftproof.bench.peers import HuggingFace, Method, PeerProcess, hugging_face_runners, methods_named
from draftproof.bench.runner import Ask, Runner, RunnerError, Setting
from tests.folders import make_folder

OWN = {"top_k": 1, "repetition_penalty": 1.8}  # what the folder asks for, and nobody shall apply
PROMPTS = tuple(tuple(text.encode()) for text in ("one two one two one two one", "three", "and four, and four, and"))
ASK = Ask(PROMPTS[:1], (7,), 0.0, 24, (), 257)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    """A model, and one that mostly agrees with it."""
    target, draft = (tmp_path_factory.mktemp("models") / name for name in ("target", "draft"))
    make_folder(target, generation=OWN)
    model = AutoModelForCausalLM.from_pretrained(make_folder(draft, generation=OWN), dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.02 * torch.randn_like(weights)
    model.save_pretrained(draft)
    return target, draft


@pytest.fixture(scope="module")
def systems(folders) -> Iterator[dict[str, HuggingFace]]:
    kinds = ["hf", "lookup:tokens=4,ngram=3"]
    found = hugging_face_runners(kinds, None, *folders, dtype="float32", threads=1, timeout=120.0)
    yield {each.name: each for each in found}
    found[0].close()


@pytest.fixture(scope="module")
def model(folders) -> Any:
    return AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.float32).eval()


def said(runner: HuggingFace, ask: Ask = ASK) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in runner.answer(ask).answers]


# what it answers


@pytest.mark.usefixtures("one_thread")
def test_plain_is_what_generate_says_without_the_folders_own_settings(systems, model):
    def direct(**more: Any) -> tuple[int, ...]:
        torch.manual_seed(7)
        ids = torch.tensor(ASK.prompts)
        given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 24, "pad_token_id": 256}
        return tuple(model.generate(ids, **given, **more)[0, ids.shape[1] :].tolist())

    assert said(systems["hf plain"]) == [direct(do_sample=False, repetition_penalty=1.0)]
    assert said(systems["hf plain"]) != [direct(do_sample=False)]
    sampling = {"do_sample": True, "temperature": 1.5, "repetition_penalty": 1.0, "top_p": 1.0}
    found = said(systems["hf plain"], replace(ASK, temperature=1.5))
    assert found == [direct(top_k=0, **sampling)]
    assert found not in ([direct(top_k=50, **sampling)], [direct(**sampling)])


def test_sampling_is_repeatable_for_a_seed(systems):
    for name in ("hf plain", "hf lookup", "hf assisted constant 3"):
        ask = replace(ASK, temperature=1.0)
        assert said(systems[name], ask) == said(systems[name], ask)
        assert said(systems[name], ask) != said(systems[name], replace(ask, seeds=(8,)))


def test_a_batch_of_unequal_prompts_says_what_each_says_alone(systems):
    runner, asks = systems["hf plain"], [replace(ASK, prompts=(prompt,)) for prompt in PROMPTS]
    alone = [said(runner, ask)[0] for ask in asks]
    ends = [alone[1][5]]
    both = replace(ASK, prompts=PROMPTS, seeds=(0, 1, 2), end_ids=tuple(ends))
    expected = [tuple(cut(list(each), ends)) for each in alone]
    assert len({len(each) for each in expected}) > 1
    assert said(runner, both) == expected


def test_drafting_changes_no_greedy_token(systems):
    [right] = said(systems["hf plain"])
    end = right[len(right) // 2]
    for runner in systems.values():
        assert said(runner) == [right]
        assert said(runner, replace(ASK, end_ids=(end, 3))) == [right[: right.index(end) + 1]]


def test_arrivals_are_rounds_and_add_up(systems):
    rounds = {}
    for name, runner in systems.items():
        found = runner.answer(ASK)
        [answer] = found.answers
        times, counts = zip(*answer.arrivals, strict=True)
        assert sum(counts) == len(answer.token_ids) == 24
        assert 0 < times[0] <= times[-1] <= found.seconds
        rounds[name] = counts
    assert rounds["hf plain"] == (1,) * 24
    assert max(rounds["hf assisted constant 3"]) == 4  # three and the target's own
    assert min(rounds["hf assisted constant 3"]) < 4
    assert max(rounds["hf lookup"]) > 1


def test_arrivals_of_a_batch_are_each_answers_own(systems):
    ask = replace(ASK, prompts=PROMPTS, seeds=(0, 1, 2))
    end = said(systems["hf plain"], ask)[1][5]
    found = systems["hf plain"].answer(replace(ask, end_ids=(end,)))
    longest = max((answer.arrivals for answer in found.answers), key=len)
    assert len({len(answer.arrivals) for answer in found.answers}) > 1
    for answer in found.answers:
        assert [count for _, count in answer.arrivals] == [1] * len(answer.token_ids)
        assert answer.arrivals == longest[: len(answer.token_ids)]


def test_settings_are_applied_and_begin_anew_with_every_answer(tmp_path):
    """A model to which all tokens are one repeats itself, so rounds are as long as was drafted."""
    model = AutoModelForCausalLM.from_pretrained(make_folder(tmp_path / "same"), dtype=torch.float32)
    with torch.no_grad():
        model.get_input_embeddings().weight[:] = model.get_input_embeddings().weight[0].clone()
    model.save_pretrained(tmp_path / "same")
    kinds = ["lookup", "lookup:tokens=4", "lookup:tokens=4,ngram=5"]
    kinds += ["assisted:tokens=3", "assisted:tokens=5,schedule=heuristic", "assisted:tokens=3,confidence=0.99"]
    found = hugging_face_runners(kinds, None, tmp_path / "same", tmp_path / "same", "float32", 1, 120.0)
    ask = replace(ASK, max_tokens=48)
    with closing(found[0]):
        _, *again = [each.answer(ask).answers[0] for each in found for _ in range(2)]
    ten, four, five_alike, *assisted = ([count for _, count in answer.arrivals] for answer in again[::2])
    assert (max(ten), max(four), max(five_alike)) == (11, 5, 5)
    assert len(five_alike) > len(four)
    assert [rounds[:3] for rounds in assisted] == [[4, 4, 4], [6, 8, 10], [2, 2, 2]]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_memory_is_that_of_the_peer(systems):
    assert systems["hf plain"].answer(ASK).peak_bytes > 50e6


def test_what_fails_within_is_told_and_it_goes_on(systems):
    with pytest.raises(RunnerError, match=r"^hf plain: IndexError: [^\n]*$"):
        systems["hf plain"].answer(replace(ASK, prompts=((99_999,),)))
    assert said(systems["hf plain"])


# what it takes


def test_they_are_runners_and_say_what_they_cannot_do(systems):
    plain, lookup, assisted = (systems[name] for name in ("hf plain", "hf lookup", "hf assisted constant 3"))
    assert isinstance(plain, Runner)
    one, many = Setting(dtype="float32"), Setting(dtype="float32", batch=2)
    assert [each.cannot(one) for each in (plain, lookup, assisted)] == [None] * 3
    assert plain.cannot(many) is None
    assert lookup.cannot(many) == assisted.cannot(many) == "it takes one prompt at a time"
    assert plain.cannot(Setting()) == "it was loaded in float32"
    said = assisted.describe()
    assert (said["kind"], said["tokens"], said["schedule"]) == ("peer", 3, "constant")
    assert said["versions"]["torch"] == torch.__version__


def test_without_a_draft_model_nothing_is_assisted(folders):
    [runner] = hugging_face_runners(["assisted:tokens=2"], None, folders[0], None, "float32", 1, 5.0)
    assert runner.cannot(Setting(dtype="float32")) == "it needs a draft model"
    assert [each.name for each in methods_named(["hf"], assistant=False)] == ["hf plain", "hf lookup"]


def test_an_assistant_that_cannot_be_loaded_puts_out_what_it_assists_alone(folders, tmp_path):
    kinds = ["assisted:tokens=2", "plain", "lookup"]
    assisted, plain, lookup = hugging_face_runners(kinds, None, folders[0], tmp_path, "float32", 1, 120.0)
    with closing(plain):
        assert fault(assisted, ASK).startswith("hf assisted constant 2: its assistant cannot be loaded: ")
        assert said(plain) == said(lookup)
        assert fault(assisted, ASK).startswith("hf assisted constant 2: its assistant cannot be loaded: ")
        assert said(plain)


def test_an_assistant_that_is_not_there_is_refused_at_once(folders, tmp_path):
    with pytest.raises(ValueError, match=r"^assistant: there is no folder '.*/no'; give that of a model$"):
        hugging_face_runners(["plain"], None, folders[0], tmp_path / "no", "float32", 1, 5.0)


def test_a_home_folder_is_nobodys_business(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    process = PeerProcess(tmp_path / "bin" / "python", tmp_path / "models" / "big", tmp_path / "small", "f", 1, 5.0)
    told = process.describe()
    assert (told["model"], told["assistant"]) == ("big", "small")
    assert str(tmp_path) not in json.dumps(told), "nor where Python lies"
    assert str(process.cannot()).startswith("skipped: ~/bin/python is no Python")
    broken = peer(tmp_path, f"reply(error='no {tmp_path}/x')")
    with closing(broken):
        assert fault(broken) == "hf plain: no ~/x"


def test_settings_of_its_own_are_read_and_named():
    named = ["assisted:tokens=4,schedule=heuristic,confidence=0.4", "lookup:tokens=5,ngram=3", "plain", "plain"]
    found = methods_named(named, assistant=True)
    assert [each.name for each in found] == ["hf assisted dynamic 4 conf .4", "hf lookup 5 ngram 3", "hf plain"]
    assert found[0].options == {"tokens": 4, "schedule": "heuristic", "confidence": 0.4}
    assert len(methods_named(["assisted"], assistant=True)) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("beam", "peers: 'beam' is unknown; known are plain, lookup, assisted, hf, lookup:tokens=5"),
        ("plain:tokens=1", "peers: 'plain:tokens=1' has settings, but plain takes none; leave them out"),
        ("lookup:", "peers: 'lookup:' has ''; lookup takes tokens, ngram, such as tokens=5"),
        ("lookup:tokens=0", "peers: 'lookup:tokens=0' has tokens=0; it must be a whole number from 1 on"),
        (
            "assisted:token=4",
            "peers: 'assisted:token=4' has 'token'; assisted takes tokens, schedule, confidence, such",
        ),
        ("assisted:schedule=new", "peers: 'assisted:schedule=new' has schedule=new; it must be constant or heuristic"),
        ("assisted:confidence=nan", "peers: 'assisted:confidence=nan' has confidence=nan; it must be a number from 0"),
    ],
)
def test_an_unknown_setting_is_named(text: str, message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        methods_named([text], assistant=True)


# a Python that is not there


def test_a_python_that_is_not_there_is_left_out():
    process = PeerProcess("/nowhere/python", Path(), None, "bfloat16", 1, 5.0)
    assert process.cannot() == (
        "skipped: /nowhere/python is no Python that runs (it cannot be started: No such file or directory)"
    )
    with pytest.raises(RunnerError, match="it cannot be loaded: it cannot be started"):
        process.ask({})
    assert "is no Python that runs" in str(PeerProcess("/bin/false", Path(), None, "bfloat16", 1, 5.0).cannot())


def test_a_python_without_the_libraries_is_left_out_and_the_program_needs_no_other(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    venv.create(tmp_path, symlinks=True)
    process = PeerProcess(tmp_path / "bin" / "python", Path(), None, "bfloat16", 1, 30.0)
    assert process.cannot() == f"skipped: {tmp_path}/bin/python has no torch and no transformers"
    with pytest.raises(RunnerError, match="it cannot be loaded: ModuleNotFoundError: No module named 'torch'"):
        process.ask({})


def test_what_libraries_print_is_no_reply(tmp_path, monkeypatch):
    noise = (
        "import os\nprint('noise', flush=True)\nos.write(1, b'more')\nos.system('echo most')\nraise OSError('broken')"
    )
    (tmp_path / "torch.py").write_text(noise)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RunnerError, match="it cannot be loaded: OSError: broken"):
        PeerProcess(sys.executable, Path(), None, "bfloat16", 1, 30.0).ask({})


OLD = """
__version__ = "4.50"
class logging:
    set_verbosity_error = disable_progress_bar = staticmethod(lambda: None)
class Model:
    def __init__(self, dtype): self.dtype = dtype
    def eval(self): return self
class AutoModelForCausalLM:
    from_pretrained = staticmethod(lambda folder, *, torch_dtype: Model(torch_dtype))
GenerationConfig = dict
"""


def test_transformers_of_old_are_asked_in_their_own_words(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("__version__ = float32 = '2'\nset_num_threads = print")
    (tmp_path / "transformers.py").write_text(OLD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    line = Line([sys.executable, str(peers.PROGRAM)], os.environ)
    found = line.ask({"op": "load", "model": "m", "dtype": "float32", "threads": 1}, 30.0)
    line.close()
    assert found == {"ok": True, "versions": {"torch": "2", "transformers": "4.50"}}


# a peer that fails


HEAD = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
here = Path(__file__).parent
with (here / "pids").open("a") as file:
    print(os.getpid(), file=file)

def reply(ids=(1, 2), arrivals=((0.5, 2),), seconds=1.0, **more):
    answers = [{"token_ids": ids, "arrivals": arrivals}]
    print(json.dumps({"seconds": seconds, "answers": answers, "peak_bytes": None} | more), flush=True)

for line in sys.stdin:
    if json.loads(line)["op"] in ("load", "assist"):
        print('{"ok": true}', flush=True)
        continue
"""
SHORT = Ask(((1, 2, 3),), (0,), 0.0, 2, (), 257)


def peer(folder: Path, body: str, timeout: float = 20.0) -> HuggingFace:
    program = folder / "fake.py"
    program.write_text(HEAD + "".join(f"    {line}\n" for line in body.splitlines()))
    return HuggingFace(Method("plain", {}), PeerProcess(sys.executable, Path(), None, "bfloat16", 1, timeout, program))


def pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text().split()]


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Within so many seconds. A zombie that is not ours counts: its parent has yet to ask how it ended."""
    end = time.monotonic() + seconds
    while psutil.pid_exists(pid):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE and process.ppid() != os.getpid():
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def fault(runner: HuggingFace, ask: Ask = SHORT) -> str:
    with pytest.raises(RunnerError) as error:
        runner.answer(ask)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit('first\\nlast')", "its process ended with exit status 1: last"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL ended its process"),
        ("sys.stdout.close(); os.close(1); time.sleep(600)", "its process closed its output"),
        ("print('oops', flush=True)", "it wrote 'oops' instead of a reply"),
        ("print('[]', flush=True)", "it wrote '[]' instead of a reply"),
        ("os.write(1, b'\\xff\\n')", "it wrote '\ufffd' instead of a reply"),
        ("os.write(1, b'{}\\n{}\\n'); time.sleep(600)", "it wrote '{} {}' instead of a reply"),
    ],
)
def test_a_peer_that_crashes_is_named_and_gone(tmp_path, monkeypatch, body: str, message: str):
    monkeypatch.setattr("draftproof.bench.line._GRACE", 0.3)
    runner = peer(tmp_path, body)
    assert fault(runner) == f"hf plain: {message}"
    assert all(gone(pid) for pid in pids(tmp_path))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("reply(error='two\\nlines')", "two lines"),
        ("reply(answers=[])", "0 answers to 1 prompts"),
        ("reply(ids=(1,), arrivals=((0.5, 1),))", "answer 0 stops after 1 tokens without an end-of-sequence token"),
        ("reply(ids=(1, 2, 3), arrivals=((0.5, 3),))", "answer 0 has 3 tokens; 1 to 2 were asked for"),
        ("reply(arrivals=((0.5, 1),))", "answer 0 has 2 tokens, of which ((0.5, 1),) tells otherwise"),
        ("reply(ids=(1, -2))", "its reply is none to what was asked (ValueError: token_ids: not all are"),
        ("reply(ids=(1, 2.0))", "its reply is none to what was asked (ValueError: token_ids: not all are"),
        ("reply(arrivals=((0.5, 1), (0.4, 1)))", "its reply is none to what was asked (ValueError: arrivals: they are"),
        ("reply(arrivals=((1.5, 2),))", "its reply is none to what was asked (ValueError: arrivals: they are"),
        ("reply(answers=7)", "its reply is none to what was asked (TypeError"),
        ("reply(seconds='soon')", "its reply is none to what was asked (ValueError"),
        ("reply(seconds=float('inf'))", "it says that it took inf seconds"),
        ("print('{}', flush=True)", "its reply is none to what was asked (KeyError: 'seconds')"),
    ],
)
def test_a_peer_that_answers_nonsense_is_refused_and_goes_on(tmp_path, body: str, message: str):
    with closing(peer(tmp_path, body)) as runner:
        assert fault(runner).startswith(f"hf plain: {message}")
        assert fault(runner)
        assert len(pids(tmp_path)) == 1
    assert gone(pids(tmp_path)[0])


def test_a_peer_that_hangs_is_killed_with_what_it_started(tmp_path):
    body = (
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "with (here / 'pids').open('a') as file:\n"
        "    print(child.pid, file=file)\n"
        "time.sleep(600)"
    )
    assert fault(peer(tmp_path, body, timeout=1.0)) == "hf plain: no reply within 1 seconds"
    found = pids(tmp_path)
    assert len(found) == 2
    assert all(gone(pid) for pid in found)


def test_a_peer_that_crashes_leaves_nothing_that_it_started(tmp_path):
    body = (
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], stdout=subprocess.DEVNULL)\n"
        "with (here / 'pids').open('a') as file:\n"
        "    print(child.pid, file=file)\n"
        "sys.exit(3)"
    )
    assert fault(peer(tmp_path, body)) == "hf plain: its process ended with exit status 3"
    found = pids(tmp_path)
    assert len(found) == 2
    assert all(gone(pid) for pid in found)


def test_a_peer_that_does_not_read_is_killed_too(tmp_path):
    runner = peer(tmp_path, "reply()\ntime.sleep(600 * json.loads(line)['temperature'])", timeout=1.0)
    assert said(runner, SHORT) == said(runner, replace(SHORT, temperature=1.0))
    assert fault(runner, replace(SHORT, prompts=((1,) * 200_000,))) == "hf plain: no reply within 1 seconds"
    assert gone(pids(tmp_path)[0])


def test_chatter_does_not_fill_anything_up(tmp_path):
    with closing(peer(tmp_path, "sys.stderr.write('x' * 1_000_000); sys.stderr.flush(); reply()")) as runner:
        assert said(runner, SHORT) == [(1, 2)]
    expected = f"hf plain: its process ended with exit status 1: {'y' * 200}..."
    assert fault(peer(tmp_path, "sys.exit('x' * 1_000_000 + '\\n' + 'y' * 1_000)")) == expected


def test_threads_are_as_many_as_asked_for(tmp_path):
    with closing(peer(tmp_path, "reply(error=os.environ['OMP_NUM_THREADS'])")) as runner:
        assert fault(runner) == "hf plain: 1"


def test_it_is_started_again_once_after_a_crash(tmp_path):
    runner = peer(tmp_path, "sys.exit(3)")
    assert "exit status 3" in fault(runner)
    assert "exit status 3" in fault(runner)
    assert fault(runner) == "hf plain: its process ended 2 times; it is not started again"
    assert len(pids(tmp_path)) == 2


def test_one_that_crashes_takes_no_other_along(tmp_path):
    body = "sys.exit(3) if json.loads(line)['system']['method'] == 'lookup' else reply()"
    plain = peer(tmp_path, body)
    lookup = HuggingFace(Method("lookup", {"tokens": 10, "ngram": 2}), plain._process)
    for _ in range(3):
        assert said(plain, SHORT)
        assert fault(lookup).startswith("hf lookup: ")
    plain.close()


def test_the_first_answer_of_a_process_is_not_counted(tmp_path):
    body = "count = globals().get('count', 0) + 1\nreply(seconds=float(count))\nif count == 3: sys.exit(3)"
    runner = peer(tmp_path, body)
    assert [runner.answer(SHORT).seconds for _ in range(2)] == [2.0, 3.0]
    assert "exit status 3" in fault(runner)
    assert runner.answer(SHORT).seconds == 2.0
    runner.close()


def test_the_first_answer_with_an_assistant_is_not_counted(tmp_path):
    plain = peer(tmp_path, "count = globals().get('count', 0) + 1\nreply(seconds=float(count))")
    plain._process.assistant = tmp_path
    assisted = HuggingFace(Method("assisted", {"tokens": 5, "schedule": "constant", "confidence": 0.0}), plain._process)
    with closing(plain):
        assert [plain.answer(SHORT).seconds for _ in range(2)] == [2.0, 3.0]
        assert [assisted.answer(SHORT).seconds for _ in range(2)] == [5.0, 6.0]
        assert plain.answer(SHORT).seconds == 7.0


def test_one_that_cannot_be_loaded_is_not_tried_again(tmp_path):
    runner = peer(tmp_path, "")
    (tmp_path / "fake.py").write_text(HEAD.split("for line")[0] + "sys.exit(4)")
    assert fault(runner) == fault(runner) == "hf plain: it cannot be loaded: its process ended with exit status 4"
    assert len(pids(tmp_path)) == 1


def test_interrupted_it_ends(tmp_path, monkeypatch):
    def interrupt(*args: Any) -> bytes:
        raise KeyboardInterrupt

    runner = peer(tmp_path, "reply()")
    assert said(runner, SHORT)
    monkeypatch.setattr("draftproof.bench.line._exchanged", interrupt)
    with pytest.raises(KeyboardInterrupt):
        runner.answer(SHORT)
    assert gone(pids(tmp_path)[0])


def test_it_ends_with_whoever_started_it(tmp_path):
    peer(tmp_path, "reply()")
    code = (
        "from pathlib import Path; import sys; from draftproof.bench.peers import PeerProcess\n"
        f"program = Path({str(tmp_path / 'fake.py')!r})\n"
        "process = PeerProcess(sys.executable, Path(), None, 'bfloat16', 1, 20.0, program)\n"
        "assert process.ask({'op': 'answer'})\n"
        "raise KeyboardInterrupt"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert gone(pids(tmp_path)[0], 0.0)
