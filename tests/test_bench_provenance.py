"""What a run file says of its origin is true, can be checked by hand, and names no home folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from draftproof import __version__
from draftproof.bench import provenance as module
from draftproof.bench.provenance import provenance, weights_hash


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def model(tmp_path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes(b"{}")
    (folder / "model-2.safetensors").write_bytes(b"second")
    (folder / "model-1.safetensors").write_bytes(b"first")
    (folder / "tokenizer.json").write_bytes(b"{}")
    return folder


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package in a repository, with one commit. No settings of whoever runs this take part."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "repository" / "src" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    repository(folder, "init", "--quiet")
    repository(folder, "add", ".")
    repository(folder, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "One")
    return folder


def repository(folder: Path, *command: str) -> str:
    found = subprocess.run(["git", *command], cwd=folder.parents[1], check=True, capture_output=True, text=True)
    return found.stdout.strip()


# weights


def test_the_hash_of_a_folder_is_that_of_what_sha256sum_prints(model):
    names = {"config.json": b"{}", "model-1.safetensors": b"first", "model-2.safetensors": b"second"}
    lines = "".join(f"{sha(data)}  {name}\n" for name, data in names.items())
    assert weights_hash(model) == sha(lines.encode())


def test_the_hash_sees_weights_their_names_and_the_configuration_but_no_tokenizer(model):
    seen = [weights_hash(model)]
    (model / "tokenizer.json").write_bytes(b"[]")
    assert weights_hash(model) == seen[0]
    (model / "config.json").write_bytes(b"{ }")
    seen.append(weights_hash(model))
    (model / "model-1.safetensors").write_bytes(b"firsT")
    seen.append(weights_hash(model))
    (model / "model-1.safetensors").rename(model / "model-3.safetensors")
    seen.append(weights_hash(model))
    assert len(set(seen)) == 4


def test_weights_may_be_links_as_in_the_cache_of_the_hub(model, tmp_path):
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for file in model.iterdir():
        (linked / file.name).symlink_to(file)
    assert weights_hash(linked) == weights_hash(model)
    assert provenance([], {"m": linked})["models"][0]["bytes"] == 2 + 5 + 6


def test_older_weights_count_where_there_are_no_others(model):
    (model / "pytorch_model.bin").write_bytes(b"old")
    both = weights_hash(model)
    (model / "pytorch_model.bin").write_bytes(b"other")
    assert weights_hash(model) == both
    for file in model.glob("*.safetensors"):
        file.unlink()
    assert weights_hash(model) == sha(f"{sha(b'{}')}  config.json\n{sha(b'other')}  pytorch_model.bin\n".encode())


def test_the_hash_of_a_gguf_file_is_that_of_the_file(tmp_path):
    path = tmp_path / "model.Q4_1.GGUF"
    path.write_bytes(b"GGUF")
    assert weights_hash(path) == sha(b"GGUF")


@pytest.mark.parametrize("name", ["empty", "there is none", "notes.txt"])
def test_where_there_are_no_weights_the_path_is_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=f"^model: .*{name}.* holds no weights; give a folder with"):
        weights_hash(tmp_path / name)


# the source


def test_a_clean_checkout_has_its_commit(package):
    assert module._revision(package) == (repository(package, "rev-parse", "HEAD"), False)


@pytest.mark.parametrize("name", ["__init__.py", "new.py"])
def test_a_changed_or_a_new_file_of_the_package_is_a_change(package, name):
    (package / name).write_text("x = 1\n")
    assert module._revision(package)[1] is True


def test_a_file_beside_the_package_is_no_change_of_it(package):
    (package.parent / "results.json").write_text("{}")
    assert module._revision(package)[1] is False


def test_what_is_installed_within_a_checkout_has_no_revision(package):
    installed = package / "site-packages" / "other"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert module._revision(installed) == (None, None)


def test_variables_of_a_hook_do_not_lead_git_elsewhere(package, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert module._revision(package)[1] is False


def test_without_git_there_is_no_revision(package, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert module._revision(package) == (None, None)
    assert provenance([], {})["revision"] is None


def test_a_git_that_hangs_is_not_waited_for(package, tmp_path, monkeypatch):
    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\nsleep 30\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    began = time.monotonic()
    assert module._revision(package) == (None, None)
    assert time.monotonic() - began < 10


# the whole


def test_versions_machine_and_models_are_told_and_fit_in_a_file(model):
    found = provenance(["draftproof", "bench"], {"target": model})
    assert json.loads(json.dumps(found)) == found
    assert found["draftproof"] == __version__
    assert all(found[name] for name in ("numpy", "numba", "torch", "transformers", "python", "platform", "processor"))
    assert found["memory"] > 2**20
    assert found["models"] == [{"name": "target", "sha256": weights_hash(model), "bytes": 13}]
    date = datetime.fromisoformat(found["date"])
    assert date.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - date) < timedelta(minutes=1)


def test_a_command_shows_no_home_folder_and_a_shell_reads_it_back(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    argv = [
        "/home/ann/.venv/bin/draftproof",
        "--model",
        "/home/ann/my models/a",
        '{"model": "/home/ann/b"}',
        "/home/ann",
    ]
    command = provenance(argv, {})["command"]
    assert command == """draftproof --model ~/'my models/a' '{"model": "~/b"}' ~"""
    read = subprocess.run(["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True)
    assert read.stdout.splitlines() == [
        "draftproof",
        "--model",
        "/home/ann/my models/a",
        '{"model": "~/b"}',
        "/home/ann",
    ]


@pytest.mark.parametrize("argument", ["/home/anna/x", "/mnt/home/ann/x", "/home/ann-old", "~/x", "a b", "", "$x;y"])
def test_other_arguments_stay_what_they_are(monkeypatch, argument):
    monkeypatch.setenv("HOME", "/home/ann")
    command = provenance(["draftproof", argument], {})["command"]
    read = subprocess.run(["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True)
    assert read.stdout == f"draftproof\n{argument}\n"


def test_a_home_folder_within_an_argument_is_replaced_too(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    assert provenance(["x", "--out=/home/ann/a", "file:///home/ann/b"], {})["command"] == "x '--out=~/a' 'file://~/b'"


def test_a_home_folder_that_is_the_root_hides_nothing(monkeypatch):
    monkeypatch.setenv("HOME", "/")
    assert provenance(["x", "/data/m"], {})["command"] == "x /data/m"


def test_names_of_models_show_no_home_folder_either(model, monkeypatch):
    monkeypatch.setenv("HOME", str(model.parent))
    assert provenance([], {str(model): model})["models"][0]["name"] == "~/model"


def test_bytes_that_are_no_text_are_spelled_out():
    assert provenance(["x", os.fsdecode(b"\xff")], {})["command"] == r"x '\udcff'"
