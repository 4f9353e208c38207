"""The cases of test_cases.py again, under the engine: each request in company, all caches checked after every round."""

from __future__ import annotations

from functools import partial

import pytest

from draftproof.audit import exact
from tests import test_cases, toys
from tests.test_cases import *  # noqa: F403  (its tests are collected here once more)


@pytest.fixture(autouse=True)
def _by_the_engine(request, monkeypatch):
    often = "T13" in request.node.name  # thousands of decodes
    by_engine = partial(toys.decode_in_company, check=not often, mate_tokens=2 if often else 5)
    monkeypatch.setattr(toys, "decode", by_engine)
    monkeypatch.setattr(exact, "decode", by_engine)


def test_all_the_cases_are_here():
    names = [name for name in vars(test_cases) if name.startswith("test_T")]
    assert len(names) > 20
    assert set(names) <= set(globals())
