"""The engine's law, by exact enumeration: the request whose paths are walked runs in company, over fractions."""

from __future__ import annotations

import pytest

from draftproof.audit import exact
from draftproof.audit.cases import Case, cases_for, checked
from draftproof.audit.exact import deviation, emitted_law, target_law
from draftproof.rules import RULES
from tests.toys import decode_in_company

pytestmark = pytest.mark.usefixtures("unchecked")

SOME = 2  # of test_exact.py's cases for each rule: the engine walks their paths more slowly


def _some(rule: str) -> list[Case]:
    cases = [case for case in cases_for(rule) if case.rounds is None]
    return cases[:: max(1, len(cases) // SOME)]


@pytest.mark.parametrize(
    ("rule", "case"),
    [pytest.param(rule, case, id=f"{rule}: {case.name}") for rule in RULES for case in _some(rule)],
)
def test_the_emitted_law_is_the_targets_in_company(rule: str, case: Case, monkeypatch):
    monkeypatch.setattr(exact, "decode", decode_in_company)
    loop = case.under(checked(RULES[rule]))
    assert deviation(emitted_law(loop), target_law(loop)) == 0
