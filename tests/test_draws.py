"""Seeded draws of the production path at V = 50 against the exact law. The long run is benchmarks/draws.py."""

from __future__ import annotations

import pytest

from benchmarks import draws
from draftproof import arrays
from draftproof.audit.faults import token_like
from draftproof.rules import RULES

pytestmark = pytest.mark.usefixtures("unchecked")

COUNT = 6_000


def test_every_rule_is_drawn():
    assert set(draws.RULES) == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_what_is_drawn_has_the_exact_law(rule: str):
    """Seeded, so there is no false alarm by chance: the budget of 1e-9 a rule is what a change of seed would risk."""
    result = draws.run(rule, COUNT)
    assert result.degrees > 50
    assert result.statistic <= result.limit
    assert result.accepted > 0.5


def test_a_faulty_rule_is_seen(monkeypatch):
    faulty = token_like(rest=lambda p, q, x: p)
    monkeypatch.setattr(arrays, "rule_named", lambda name, allow_lossy: faulty)
    result = draws.run("token", COUNT)
    assert result.statistic > result.limit
