"""The README stays true: its loop is the loop, its example runs, its options exist."""

import re
from pathlib import Path

import pytest

import draftproof
from draftproof.cli.app import run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_loop_shown_is_the_loop():
    [shown] = [block for block in BLOCKS if "while output.finish_reason" in block]
    source = [line.strip() for line in (ROOT / "src/draftproof/loop.py").read_text(encoding="utf-8").splitlines()]
    lines = [line.strip() for line in shown.strip().splitlines()]
    assert len(lines) <= 12
    for line in lines[:-1]:
        assert line in source
    assert lines[-1] == "state = controller.update(state, Step(draft, verdict, kept))"


def test_the_array_example_runs(capsys):
    [example] = [block for block in BLOCKS if "verify(" in block]
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("(")


@pytest.mark.real
@pytest.mark.usefixtures("unchecked")
def test_the_example_runs(capsys):
    [example] = [block for block in BLOCKS if "LLM(" in block]
    exec(compile(example, "README.md", "exec"), {})
    text, number = capsys.readouterr().out.rsplit(maxsplit=1)
    assert text.strip()
    assert number == "None" or float(number) >= 1


def test_the_options_shown_exist(capsys):
    run(["generate", "--help"])
    known = capsys.readouterr().out
    for option in set(re.findall(r"`(--[a-z-]+)", README)) - {"--help"}:
        assert option in known


def test_the_public_names():
    names = ["LLM", "AsyncEngine", "PhiloxChance", "SamplingParams", "StructuredOutputsParams", "Verdict"]
    names += ["generate", "speculative", "theory", "verify", "verify_batch"]
    assert draftproof.__all__ == names
    assert set(dir(draftproof)) == {*names, "__version__"}
    assert all(getattr(draftproof, name) is not None for name in names)
    assert draftproof.SamplingParams(seed=1).seed == 1
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        _ = draftproof.LMM
