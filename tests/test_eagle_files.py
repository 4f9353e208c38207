"""Heads in folders: whole or absent, and read only if everything in them is right."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from draftproof.models import eagle_files
from draftproof.models.eagle_config import SPECULATORS, About
from draftproof.models.eagle_files import load_head, read_head, save_head
from tests.heads import ABOUT, HIDDEN, KNOWN, LAYERS, VOCAB, loaded, make_head, make_target


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return loaded(make_target(tmp_path_factory.mktemp("target")))


@pytest.fixture
def folder(tmp_path):
    save_head(tmp_path / "head", make_head(), ABOUT)
    return tmp_path / "head"


def rewrite(folder, change):
    """Change the tensors of a saved head."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def reword(folder, change):
    """Change the configuration of a saved head."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))


def same(one, other):
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(a[key].dtype == b[key].dtype and torch.equal(a[key], b[key]) for key in a)


# T49


def test_t49_a_head_that_lacks_a_tensor_or_has_a_renamed_one_is_refused_and_a_good_one_keeps_its_bits(folder, target):
    head, about = load_head(folder, target)
    assert same(head, make_head())
    assert about == ABOUT
    assert (head.config.feature_layers, head.config.norm_before_residual) == ((2, 3, 4), True)
    assert head.config.layer.to_dict() | {"dtype": None} == make_head().config.layer.to_dict() | {"dtype": None}

    def break_it(tensors):
        tensors["layers.0.self_attn.queries.weight"] = tensors.pop("layers.0.self_attn.q_proj.weight")
        del tensors["fc.weight"]

    rewrite(folder, break_it)
    with pytest.raises(ValueError, match=r"^head: .*model\.safetensors: missing: fc\.weight, ") as caught:
        load_head(folder, target)
    assert "layers.0.self_attn.q_proj.weight; unknown: layers.0.self_attn.queries.weight" in str(caught.value)


# writing


def test_the_same_head_is_written_as_the_same_bytes_and_float32_is_rounded(tmp_path, target):
    size = save_head(tmp_path / "a", make_head(), ABOUT)
    save_head(tmp_path / "b", make_head(), ABOUT)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert size == sum(file.stat().st_size for file in (tmp_path / "a").iterdir())
    save_head(tmp_path / "c", make_head(dtype=torch.float32), ABOUT)
    assert same(load_head(tmp_path / "c", target)[0], make_head())


def test_the_configuration_is_what_speculators_and_vllm_read(folder):
    config = json.loads((folder / "config.json").read_text())
    assert (config["speculators_model_type"], config["speculators_version"]) == ("eagle3", SPECULATORS)
    assert config["speculators_config"] == {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {"proposal_type": "greedy", "speculative_tokens": 4, "verifier_accept_k": 1, "accept_tolerance": 0.0}
        ],
        "verifier": {"name_or_path": "tiny", "architectures": ["LlamaForCausalLM"]},
    }
    layer = config["transformer_layer_config"]
    assert (layer["model_type"], layer["num_hidden_layers"], layer["vocab_size"]) == ("llama", 1, VOCAB)
    assert (layer["rope_theta"], layer["rope_parameters"]["rope_theta"]) == (5000.0, 5000.0)
    assert "rope_scaling" not in layer
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert (config["draft_vocab_size"], config["target_hidden_size"]) == (KNOWN, HIDDEN)
    assert (config["norm_before_residual"], config["embed_requires_grad"]) == (True, False)
    assert set(config["draftproof"]) == {"format", "fingerprint", "training", "measured"}


def test_a_head_is_replaced_as_a_whole_or_not_at_all(folder, target, monkeypatch):
    save_head(folder, make_head(1), ABOUT)
    assert same(load_head(folder, target)[0], make_head(1))

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(eagle_files, "save_file", fail)
    with pytest.raises(KeyboardInterrupt):
        save_head(folder, make_head(2), ABOUT)
    with pytest.raises(KeyboardInterrupt):
        save_head(folder.parent / "new", make_head(2), ABOUT)
    assert same(load_head(folder, target)[0], make_head(1))
    assert list(folder.parent.iterdir()) == [folder]


def test_whoever_may_read_one_file_of_a_head_may_read_both(folder):
    assert len({file.stat().st_mode for file in folder.iterdir()}) == 1


def test_what_is_no_head_is_not_replaced(tmp_path, folder):
    model = make_target(tmp_path / "model")
    for file in model.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    with pytest.raises(ValueError, match="holds a model"):
        save_head(model, make_head(), ABOUT)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds notes\.txt"):
        save_head(folder, make_head(), ABOUT)
    with pytest.raises(ValueError, match="is a file"):
        save_head(folder / "notes.txt", make_head(), ABOUT)


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    head = make_head()
    with torch.no_grad():
        head.fc.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"NaN or infinite numbers in fc\.weight"):
        save_head(tmp_path / "a", head, ABOUT)
    for training in ({"loss": float("nan")}, {"loss": object()}):
        with pytest.raises(ValueError, match="what JSON cannot say"):
            save_head(tmp_path / "a", make_head(), replace(ABOUT, training=training))
    falling = make_head()
    falling.config = replace(falling.config, feature_layers=(4, 2, 3))
    with pytest.raises(ValueError, match=r"^feature_layers: \[4, 2, 3\]"):
        save_head(tmp_path / "a", falling, ABOUT)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5000.0}
    with pytest.raises(ValueError, match=r"^rope_type: 'dynamic'"):
        save_head(tmp_path / "a", make_head(rope_parameters=rope), ABOUT)
    assert list(tmp_path.iterdir()) == []


def test_a_scaled_rope_comes_back(tmp_path, target):
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0}
    save_head(tmp_path / "a", make_head(rope_parameters=rope), ABOUT)
    assert load_head(tmp_path / "a", target)[0].config.layer.rope_parameters == rope


# tensors


FAULTS = {
    "shape": (lambda t: t.update({"norm.weight": torch.ones(3)}), r"wrong shapes: norm\.weight is \[3\], not \[64\]"),
    "dtype": (lambda t: t.update({"norm.weight": torch.ones(64)}), r"wrong dtypes: norm\.weight is float32, not bfl"),
    "integers": (lambda t: t.update({k: v.int() for k, v in t.items() if v.is_floating_point()}), "fc.weight is int32"),
    "map's dtype": (lambda t: t.update({"d2t": t["d2t"].int()}), "d2t is int32, not int64"),
    "nan": (lambda t: t["lm_head.weight"].fill_(torch.nan), r"NaN or infinite numbers in lm_head\.weight"),
    "inf": (lambda t: t["fc.weight"][:1, :1].fill_(torch.inf), r"NaN or infinite numbers in fc\.weight"),
    "d2t falls": (lambda t: t["d2t"][1:2].fill_(-500), "d2t must give rising ids"),
    "d2t repeats": (lambda t: t["d2t"][1:2].copy_(t["d2t"][:1] - 1), "d2t must give rising ids"),
    "d2t leaves": (lambda t: t["d2t"][-1:].fill_(VOCAB), "d2t must give rising ids within 0 .. 256"),
    "t2d lacks": (lambda t: t["t2d"].fill_(False), "t2d must be true for exactly the ids that d2t gives; 40 differ"),
    "no t2d": (lambda t: t.pop("t2d"), "missing: t2d"),
    "bias": (lambda t: t.update({"fc.bias": torch.ones(64)}), r"unknown: fc\.bias"),
    "q_norm": (lambda t: t.update({"layers.0.self_attn.q_norm.weight": torch.ones(16)}), "unknown: .*q_norm"),
    "two layers": (lambda t: t.update({"layers.1.mlp.up_proj.weight": torch.ones(1)}), r"unknown: layers\.1\.mlp"),
    "its repository's": (
        lambda t: t.update({"midlayer.hidden_norm.weight": t.pop("layers.0.hidden_norm.weight")}),
        r"midlayer\.\* is the layout of the EAGLE repositories",
    ),
    "embeddings of another size": (
        lambda t: t.update({"embed_tokens.weight": torch.ones(VOCAB, 3)}),
        r"embed_tokens\.weight is \[257, 3\], not \[257, 64\]",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_tensor_that_is_wrong_is_named_with_its_file(folder, target, fault):
    change, words = FAULTS[fault]
    rewrite(folder, change)
    with pytest.raises(ValueError, match=rf"^head: .*model\.safetensors: .*{words}") as caught:
        load_head(folder, target)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", [0, 4, 1000, -10])
def test_a_file_that_was_cut_is_one_clear_line(folder, target, cut):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"^head: .*model\.safetensors cannot be read: .+") as caught:
        load_head(folder, target)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_floats_are_read_as_they_are(folder, target, dtype):
    rewrite(folder, lambda t: t.update({k: v.to(dtype) for k, v in t.items() if v.is_floating_point()}))
    head, _ = load_head(folder, target)
    assert {weight.dtype for weight in head.parameters()} == {dtype}


# configurations


SPELLED = {
    "another algorithm": (lambda c: c.update(speculators_model_type="dflash"), "speculators_model_type: 'dflash'"),
    "a model": (lambda c: (c.clear(), c.update(model_type="llama")), "this is llama, no eagle3 head"),
    "its repository's": (
        lambda c: (c.clear(), c.update(model_type="llama", draft_vocab_size=9)),
        "layout of the EAGLE repositories: convert it with `speculators convert`",
    ),
    "keys": (
        lambda c: (c.pop("draft_vocab_size"), c.pop("norm_before_residual")),
        "draft_vocab_size, norm_before_residual: missing",
    ),
    "layer's keys": (lambda c: c["transformer_layer_config"].pop("hidden_size"), "it lacks hidden_size"),
    "no layer": (lambda c: c.update(transformer_layer_config=None), "transformer_layer_config: None is not allowed"),
    "layers": (lambda c: c["transformer_layer_config"].update(num_hidden_layers=2), "num_hidden_layers: 2 is not"),
    "qwen3": (lambda c: c["transformer_layer_config"].update(model_type="qwen3"), "model_type: 'qwen3' is not allowed"),
    "bias": (lambda c: c["transformer_layer_config"].update(attention_bias=True), "attention_bias: True is not"),
    "window": (lambda c: c["transformer_layer_config"].update(layer_types=["sliding_attention"]), "layer_types: slid"),
    "rope": (
        lambda c: c["transformer_layer_config"].update(rope_parameters={"rope_type": "dynamic", "factor": 2.0}),
        "rope_type 'dynamic' is not supported",
    ),
    "half turned": (
        lambda c: c["transformer_layer_config"].update(partial_rotary_factor=0.5),
        "partial_rotary_factor 0.5 is not supported",
    ),
    "heads": (lambda c: c["transformer_layer_config"].update(num_key_value_heads=3), "num_key_value_heads: 3 is not"),
    "a size": (lambda c: c["transformer_layer_config"].update(hidden_size="64"), "hidden_size: '64' is not allowed"),
    "an odd size": (lambda c: c["transformer_layer_config"].update(num_attention_heads=5), "not a multiple of"),
    "norm": (lambda c: c.update(norm_before_fc=True), "norm_before_fc: True is not allowed"),
    "fed back": (lambda c: c.update(norm_output=True), "norm_output: True is not allowed"),
    "residual": (lambda c: c.update(norm_before_residual=None), "norm_before_residual: None is not allowed"),
    "vocabulary": (lambda c: c.update(draft_vocab_size=VOCAB + 1), "draft_vocab_size: 258 is not allowed"),
    "hidden": (lambda c: c.update(target_hidden_size=128), "target_hidden_size: 128 is not allowed"),
    "features": (lambda c: c.update(eagle_aux_hidden_state_layer_ids=[1, 2]), r"\[1, 2\] is not allowed; it must be 3"),
    "their order": (lambda c: c.update(eagle_aux_hidden_state_layer_ids=[3, 2, 4]), "must be 3 rising layer numbers"),
    "speculators_config": (lambda c: c.update(speculators_config=[]), r"speculators_config: \[\] is not allowed"),
    "methods": (lambda c: c["speculators_config"].update(proposal_methods=[]), "proposal_methods: .. is not allowed"),
    "our format": (lambda c: c["draftproof"].update(format=2), "format: 2 is not allowed; this draftproof reads 1"),
    "our part": (lambda c: c["draftproof"].pop("training"), r"draftproof\.training: None is not allowed"),
}


@pytest.mark.parametrize("fault", SPELLED)
def test_a_configuration_that_is_wrong_is_named_with_its_file(folder, target, fault):
    change, words = SPELLED[fault]
    reword(folder, change)
    with pytest.raises(ValueError, match=rf"^head: .*config\.json: .*{words}") as caught:
        load_head(folder, target)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("written", "words"), [("{bad", "is not JSON"), ("[]", "holds list")])
def test_a_configuration_that_is_none_is_named(folder, written, words):
    (folder / "config.json").write_text(written)
    with pytest.raises(ValueError, match=rf"config\.json {words}"):
        read_head(folder)


def test_folders_that_are_none_are_named(tmp_path, folder):
    with pytest.raises(ValueError, match="there is no folder"):
        read_head(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        read_head(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"holds no model\.safetensors"):
        read_head(folder)


# heads of others


def published(config):
    """As the library writes it, of an older version, for Llama."""
    del config["draftproof"], config["norm_before_fc"], config["fc_norm"], config["norm_output"], config["dtype"]
    config |= {
        "architectures": ["Eagle3Speculator"],
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "eagle_aux_hidden_state_layer_ids": None,
        "has_no_defaults_at_init": False,
        "target_hidden_size": None,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.55.4",
    }
    layer = config["transformer_layer_config"]
    del layer["rope_parameters"], layer["head_dim"]
    layer |= {"rope_theta": 500.0, "rope_scaling": None, "use_cache": True, "pretraining_tp": 1, "_name_or_path": "x"}


def test_a_head_that_others_trained_is_read(folder, target):
    reword(folder, published)
    head, about = load_head(folder, target, fingerprint=ABOUT.fingerprint, check="strict")
    assert same(head, make_head())
    assert about == About("tiny", ("LlamaForCausalLM",), tokens=4, ours=False)
    assert head.config.feature_layers == (2, LAYERS // 2, LAYERS - 3)
    assert head.config.layer.rope_parameters["rope_theta"] == 500.0


def test_embeddings_of_its_own_are_read_and_written_and_a_copy_of_the_targets_is_not_kept(folder, target):
    own = torch.randn(VOCAB, HIDDEN).to(torch.bfloat16)
    rewrite(folder, lambda t: t.update({"embed_tokens.weight": own}))
    head, about = load_head(folder, target)
    assert torch.equal(about.embeddings, own)
    save_head(folder, head, about)
    assert torch.equal(read_head(folder).about.embeddings, own)
    theirs = target.target.model.get_input_embeddings().weight.detach().to(torch.bfloat16)
    rewrite(folder, lambda t: t.update({"embed_tokens.weight": theirs}))
    assert load_head(folder, target)[1].embeddings is None


def test_a_head_of_all_ids_needs_no_maps(tmp_path, target):
    save_head(tmp_path / "a", make_head(known=VOCAB), ABOUT)
    assert not {"d2t", "t2d"} & set(load_file(tmp_path / "a" / "model.safetensors"))
    assert same(load_head(tmp_path / "a", target)[0], make_head(known=VOCAB))
    maps = {"d2t": torch.zeros(VOCAB, dtype=torch.int64), "t2d": torch.ones(VOCAB, dtype=torch.bool)}
    rewrite(tmp_path / "a", lambda t: t.update(maps))
    assert same(load_head(tmp_path / "a", target)[0], make_head(known=VOCAB))


# targets


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hidden_size": 32}, "hidden_size 64; this one has 32"),
        ({"vocab_size": 300}, "vocab_size 257; this one has 300"),
        ({"num_hidden_layers": 4}, r"reads layer 4; this target's are 0 \.\. 3"),
    ],
)
def test_a_target_that_it_cannot_run_beside_is_refused(folder, changed, words):
    config = LlamaConfig(**({"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS} | changed))
    with pytest.raises(ValueError, match=words):
        eagle_files.fitted(read_head(folder), config)


def test_a_head_that_names_no_layers_wants_a_target_with_three(folder):
    reword(folder, published)
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=3)
    with pytest.raises(ValueError, match="it has 3 layers; features of three are needed"):
        eagle_files.fitted(read_head(folder), config)


def test_another_target_of_the_same_shape_is_told_or_refused_as_asked(folder, target):
    told = []
    load_head(folder, target, fingerprint=ABOUT.fingerprint, notify=told.append, check="strict")
    load_head(folder, target, fingerprint={"config": "c" * 64}, notify=told.append, check="strict")
    assert told == []
    other = {**ABOUT.fingerprint, "weights": "x" * 64}
    load_head(folder, target, fingerprint=other, notify=told.append)
    assert "was trained for another target (tiny: weights wwwwwwwwwwww, not xxxxxxxxxxxx)" in told[0]
    with pytest.raises(ValueError, match="weights wwwwwwwwwwww, not xxxxxxxxxxxx"):
        load_head(folder, target, fingerprint=other, check="strict")
    with pytest.raises(ValueError, match="tokenizer tttttttttttt, not xxxxxxxxxxxx"):
        load_head(folder, target, fingerprint={"tokenizer": "x" * 64})
    load_head(folder, target, fingerprint={"tokenizer": "x" * 64}, check="shapes", notify=told.append)
    assert "tokenizer" in told[1]
    with pytest.raises(ValueError, match=r"^check: 'none' is not allowed"):
        load_head(folder, target, check="none")


@pytest.mark.parametrize(
    ("measured", "known"),
    [
        ({"overlap": [0.5, 0.4], "agreement": [0.45, 0.42, 0.3]}, (0.45, 0.4)),
        ({"overlap": [1, 0], "agreement": [0.5, 0.5]}, (0.5, 0)),
        ({}, ()),
        ({"overlap": [0.5]}, ()),
        ({"overlap": [0.5], "agreement": []}, ()),
        ({"overlap": [True], "agreement": [0.5]}, ()),
        ({"overlap": [float("nan")], "agreement": [0.5]}, ()),
        ({"overlap": ["0.5"], "agreement": [0.5]}, ()),
        ({"overlap": 0.5, "agreement": [0.5]}, ()),
        ({"overlap": [1.5], "agreement": [0.5]}, ()),
    ],
)
def test_what_was_measured_is_known_only_where_it_is_a_share(measured, known):
    assert About(None, measured=measured).acceptance == known
