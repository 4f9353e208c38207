"""The benchmarks measure what they say: the peers answer right, the bound counts rows, bad options are named."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from draftproof.bench import forward, kernels
from draftproof.cli import app
from draftproof.kernels import KERNELS
from tests.folders import make_folder

pytestmark = pytest.mark.usefixtures("unchecked")


def run(capsys, *argv: str) -> tuple[int, str, str]:
    code = app.run(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def test_kernels_are_timed_against_their_peers(capsys, monkeypatch):
    monkeypatch.setattr(kernels, "_PATIENCE", 0.01)
    argv = ("--batch", "2", "--vocab", "700", "--depth", "3", "--top-p", "1", "--top-p", "0.8", "--json")
    code, out, err = run(capsys, "bench", "kernels", *argv)
    assert code == 0, err
    report = json.loads(out)
    assert [(cell["batch"], cell["depth"], cell["vocabulary"], cell["top_p"]) for cell in report["cells"]] == [
        (2, 3, 700, 1.0),
        (2, 3, 700, 0.8),
    ]
    for cell in report["cells"]:
        assert set(cell["milliseconds"]) == {*KERNELS, "textbook", "hugging face", "torch"}
        assert set(cell["bound"]) == set(KERNELS)
        assert all(value > 0 for value in (*cell["milliseconds"].values(), *cell["bound"].values(), cell["bandwidth"]))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--batch", "0"), "--batch: 0 is not allowed; it must be at least 1"),
        (("--vocab", "-3"), "--vocab: -3 is not allowed; it must be at least 1"),
        (("--depth", "0"), "--depth: 0 is not allowed; it must be at least 1"),
        (("--threads", "0"), "--threads: 0 is not allowed; it must be at least 1"),
        (("--top-p", "1.5"), "--top-p: 1.5 is not allowed; it must be in [0.01, 1]"),
    ],
)
def test_a_shape_that_is_none_is_named(capsys, argv, message):
    code, _, err = run(capsys, "bench", "kernels", *argv)
    assert code == 2
    assert message in err


def test_the_bound_counts_the_rows_a_rule_reads():
    accepted = np.array([0, 2, 4])  # of 4 drafted
    assert kernels.rows_needed("coupled", accepted, 4) == 1 + 3 + 5
    assert kernels.rows_needed("token", accepted, 4) == 2 * (1 + 3 + 4) + 1
    assert kernels.rows_needed("block", accepted, 4) == 2 * 12 + 1


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_the_textbook_accepts_as_much_as_the_kernel(top_p: float):
    """Same law, other chance: the mean accepted length over many requests agrees within five standard errors."""
    given = kernels.problem(3000, 2, 60, top_p)
    ours = kernels.ours(given, "token")().accepted
    theirs = np.array([accepted for accepted, _ in kernels.textbook(given)()])
    error = np.sqrt((ours.var() + theirs.var()) / len(ours))
    assert abs(ours.mean() - theirs.mean()) < 5 * error
    assert 0 < ours.mean() < 2
    np.testing.assert_array_equal(np.bincount(ours, minlength=3) > 0, True)


def test_laws_of_the_peers_are_the_same():
    row = kernels.problem(1, 1, 500, 0.8).logits[0, 0]
    known = kernels._textbook_law(row, 0.8)
    found = kernels._torch_law(torch.from_numpy(row)[None], 0.8)[0].numpy()
    np.testing.assert_allclose(found, known, atol=1e-6)


def test_a_forward_is_timed_by_rows_and_context(capsys, tmp_path):
    folder = str(make_folder(tmp_path / "model"))
    options = ("--model", folder, "--rows", "1", "--rows", "4", "--context", "20", "--context", "100000", "--json")
    code, out, err = run(capsys, "bench", "forward", *options)
    assert code == 0, err
    [curve] = json.loads(out)["curves"]
    assert curve["context"] == 20, "the other does not fit the model"
    for name in ("draftproof", "hugging face"):
        assert set(curve["milliseconds"][name]) == {"1", "4"}
        assert curve["prefill"][name] > 0
    code, _, err = run(capsys, "bench", "forward", "--model", folder, "--context", "100000")
    assert code == 2
    assert "--context: none fits the model, which takes" in err


def test_a_picture_needs_its_library(monkeypatch, tmp_path):
    monkeypatch.setattr(forward, "import_module", _absent)
    with pytest.raises(ValueError, match=r"--draw: it needs matplotlib \(pip install 'draftproof\[bench\]'\)"):
        forward.draw([forward.Curve(1, {}, {"draftproof": {1: 1.0}, "hugging face": {1: 1.0}})], tmp_path / "x.svg")


def _absent(name: str):
    raise ImportError(name)


def test_the_doctor_only_compiles(capsys):
    code, out, _ = run(capsys, "doctor", "--warm", "--json")
    assert code == 0
    assert json.loads(out)["kernels_seconds"] >= 0
