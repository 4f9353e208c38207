"""docs/training.md stays true: its example runs, its options exist, its sizes are the code's."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from draftproof.cli.app import run
from draftproof.models.eagle import EagleConfig, EagleHead
from draftproof.train.features import FeatureStore
from draftproof.train.losses import LOSSES
from draftproof.train.start import random_head

TEXT = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")


def test_the_example_runs():
    test = doctest.DocTestParser().get_doctest(TEXT.replace("```", ""), {}, "training.md", "training.md", 0)
    assert test.examples
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


def test_the_options_exist(capsys):
    for command in (["train", "data"], ["train", "eagle"], ["generate"], ["inspect"], ["bench", "run"]):
        run([*command, "--help"])
    known = capsys.readouterr().out
    ours = {option for option in re.findall(r"(--[a-z][a-z0-9-]+)", TEXT) if option != "--speculative-config"}
    assert {option for option in ours if option not in known} == set()


def test_every_loss_is_in_the_table():
    assert set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) == set(LOSSES)


@pytest.mark.usefixtures("unchecked")
def test_the_sizes(tmp_path):
    assert FeatureStore(tmp_path, (3 * 576, 576)).bytes_per_token == 2 * (3 * 576 + 576) + 8 == 4616
    h, q, kv, i, d = 576, 576, 192, 1536, 8192
    layer = LlamaConfig(
        vocab_size=49152, hidden_size=h, intermediate_size=i, num_attention_heads=9, num_key_value_heads=3
    )
    head = random_head(EagleConfig(layer, d, (2, 15, 27)), torch.arange(d), 0)
    assert isinstance(head, EagleHead)
    matrices = 3 * h**2 + 2 * h * (q + 2 * kv) + q * h + 3 * h * i + d * h
    norms = 4 * h
    assert sum(weight.numel() for weight in head.parameters()) == matrices + norms
    assert f"{matrices / 1e6:.1f} million for SmolLM2" in TEXT
