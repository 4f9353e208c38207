"""The cases of test_cases.py again, under the engine: each request in company, all caches checked after every round."""

from __future__ import annotations

from functools import partial

import pytest

from draftproof.audit import exact
from tests import test_cases, toys
from tests.test_cases import *  # noqa: F403  (its tests are collected here once more)


@pytest.fixture(autouse=True)
def _by_the_engine(request, monkeypatch):
    monkeypatch.setattr(exact, "decode", toys.decode_in_company)
    if "T13" not in request.node.name:  # after its exact part, which is the engine's, thousands of decodes
        monkeypatch.setattr(toys, "decode", partial(toys.decode_in_company, check=True))


def test_all_the_cases_are_here():
    names = [name for name in vars(test_cases) if name.startswith("test_T")]
    assert len(names) > 20
    assert set(names) <= set(globals())
