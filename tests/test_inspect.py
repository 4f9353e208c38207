"""draftproof inspect: what a person sees of a drafter's folder."""

import json
from dataclasses import replace

import pytest
from transformers import AutoTokenizer

from draftproof.cli.app import run
from draftproof.fingerprint import fingerprint_of
from draftproof.models.eagle_files import save_head
from tests.heads import ABOUT, make_head, make_target


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture
def folder(tmp_path, target):
    fingerprint = fingerprint_of(target, AutoTokenizer.from_pretrained(target))
    save_head(tmp_path / "head", make_head(), replace(ABOUT, target=str(target), fingerprint=fingerprint))
    return tmp_path / "head"


def inspected(capsys, *words):
    assert run(["inspect", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_a_head_is_shown_with_all_that_its_folder_says(folder, target, capsys):
    out = inspected(capsys, folder)
    assert "EAGLE-3 head, in speculators' layout, trained by draftproof" in out
    assert f"match     {target} is what it was trained for" in out
    assert "reads     what enters layers 2, 3, 4\nguesses   40 of 257 tokens, 4 at once\n" in out
    assert "size      54,016 parameters, bfloat16, 0.1 MB\n" in out
    assert "training  steps 7, data.tokens 1000, data.sources a b\nmeasured  greedy.accepted 2.5\n" in out


def test_json_is_one_object(folder, target, other, capsys):
    found = json.loads(inspected(capsys, folder, "--json", "--target", other))
    assert (found["kind"], found["algorithm"], found["format"]) == ("drafter", "eagle3", "speculators")
    assert found["match"] == {"model": str(other), "fits": True, "same": False, "differ": ["weights"]}
    assert (found["draft_vocab_size"], found["feature_layers"]) == (40, [2, 3, 4])
    assert found["bytes"] == sum(file.stat().st_size for file in folder.iterdir())
    assert (found["training"], found["measured"]) == (dict(ABOUT.training), dict(ABOUT.measured))
    assert found["target"]["name"] == str(target)


def test_another_model_and_one_that_does_not_fit_are_told(folder, other, tmp_path, capsys):
    assert f"match     {other} fits, and is another: weights\n" in inspected(capsys, folder, "--target", other)
    wide = make_target(tmp_path / "wide", hidden_size=32)
    assert "does not fit: " in inspected(capsys, folder, "--target", wide)


def test_a_target_that_is_not_here_is_not_fetched(tmp_path, capsys):
    save_head(tmp_path / "head", make_head(), replace(ABOUT, target="nobody/such-model"))
    assert "match     its target is not here; --target MODEL compares\n" in inspected(capsys, tmp_path / "head")


def test_a_head_without_a_fingerprint_says_so(folder, target, capsys):
    save_head(folder, make_head(), replace(ABOUT, target=str(target), fingerprint={}))
    assert "fits; whether it was trained for that is not known: the head does not say" in inspected(capsys, folder)


def test_a_model_is_said_to_be_one(target, capsys):
    assert inspected(capsys, target) == "model     llama; a model, not a drafter\n"
    assert json.loads(inspected(capsys, target, "--json"))["kind"] == "model"


@pytest.mark.parametrize("fault", ["cut", "no weights", "no config", "not there"])
def test_a_damaged_folder_is_one_clear_line(folder, fault, capsys):
    weights = folder / "model.safetensors"
    if fault == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif fault == "no weights":
        weights.unlink()
    elif fault == "no config":
        (folder / "config.json").unlink()
    else:
        folder = folder / "nothing"
    assert run(["inspect", str(folder)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("draftproof: head: ")
