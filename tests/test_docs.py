"""The documents stay true: their examples run, their figures are the proof's, their tables name every rule."""

from __future__ import annotations

import doctest
import re
from fractions import Fraction
from pathlib import Path

import pytest

from draftproof.audit.mutants import MUTANTS, first_difference
from draftproof.rules import LOSSY, RULES

DOCS = Path(__file__).parents[1] / "docs"
ERRORS = (DOCS / "common-errors.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `((?:[^`\\]|\\.)*)` \| (\d+)/(\d+) ≈ ([\d.e-]+)[^|]* \|", re.MULTILINE)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "name",
    [
        "rules.md",
        "common-errors.md",
        pytest.param("engine.md", marks=pytest.mark.real),
        pytest.param("huggingface.md", marks=pytest.mark.real),
        pytest.param("vllm.md", marks=pytest.mark.real),
    ],
)
def test_examples_run(name: str):
    parser = doctest.DocTestParser()
    text = (DOCS / name).read_text(encoding="utf-8").replace("```", "")
    test = parser.get_doctest(text, {}, name, name, 0)
    assert test.examples
    result = doctest.DocTestRunner(verbose=False).run(test)
    assert result.failed == 0


@pytest.mark.usefixtures("unchecked")
def test_the_price_of_every_error_is_what_the_proof_finds():
    known = {mutant.name: mutant for mutant in MUTANTS}
    shown = set()
    for name, n, d, rounded in ROW.findall(ERRORS):
        found = first_difference(known[name.replace("\\", "")])
        assert found is not None
        shown.add(name.replace("\\", ""))
        assert Fraction(int(n), int(d)) == found.deviation, name
        digits = len(rounded.lstrip("0.").split("e")[0].replace(".", ""))
        assert float(rounded) == float(f"{float(found.deviation):.{digits}g}"), name
    assert shown == set(known), "an error without its price, or a price without its error"


def test_the_table_of_rules_names_all_of_them():
    table = (DOCS / "rules.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (\**\w+)", table, re.MULTILINE)
    assert {name for name, _ in rows} == {*RULES, *LOSSY}
    for name, lossless in rows:
        assert lossless == ("yes" if name in RULES else "**no")
