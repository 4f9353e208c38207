"""Training a head from end to end on a tiny target: what it learns, and every way in which it may end."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof.cli import train_eagle
from draftproof.cli.app import run
from draftproof.fingerprint import fingerprint_of
from draftproof.models.eagle_files import load_head, read_about, save_head
from draftproof.models.load import load
from draftproof.train.batches import States, Text, batch_of, epoch_of, split
from draftproof.train.checkpoint import read_checkpoint
from draftproof.train.corpus import FORMAT, VERSION, Example, line_of, read_data, write_manifest
from draftproof.train.evaluate import evaluate, evaluating
from draftproof.train.features import FeatureStore, fill, folder_of
from draftproof.train.fit import Best, Material, Outcome, Watch, agreed, fit
from draftproof.train.objective import Objective
from draftproof.train.optimizers import optimizers_of
from draftproof.train.prepare import (
    identity_of,
    learned,
    objective_of,
    require_made_by,
    sides_of,
    sizes_of,
    texts_of,
    vocabulary_of,
)
from draftproof.train.settings import Settings
from draftproof.train.sources import Source, opened, together
from draftproof.train.target_head import TargetHead, require_same_logits, target_head_of
from draftproof.train.vocabulary import choose_vocabulary, coverage, label_counts
from tests import heads, tiny
from tests.folders import byte_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

VOCAB, SIZE, HEARD = 257, 32, (2, 4, 5)
TALK = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SETTINGS = Settings(
    draft_vocab_size=64,
    ttt_steps=3,
    lr=1e-2,
    epochs=3,
    batch_tokens=96,
    held_out=0.2,
    eval_every=4,
    save_every=3,
    narrow=False,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An 8-layer Llama."""
    path = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=SIZE,
        intermediate_size=48,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=256,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TALK
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def loaded(folder):
    return load(str(folder), dtype="float32", device="cpu", exact="law")


@pytest.fixture(scope="module")
def data(folder, loaded, tmp_path_factory) -> Path:
    """24 examples: cycles of few letters, so that there is something to learn."""
    path = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    examples = []
    for i in range(24):
        cycle = generator.integers(60, 90, 3).tolist()
        examples.append(Example(i, "answer", "x", tuple(cycle * 2), tuple(cycle * 5 + [256]), 0.0, i, "stop"))
    (path / "examples.jsonl").write_text("".join(line_of(example) + "\n" for example in examples))
    manifest = {
        "format": {"name": FORMAT, "version": VERSION},
        "target": "tiny",
        "fingerprint": fingerprint_of(folder, loaded.tokenizer),
        "examples": len(examples),
        "complete": True,
    }
    write_manifest(path, manifest)
    return path


@pytest.fixture(scope="module")
def store(loaded, data, tmp_path_factory) -> FeatureStore:
    store = FeatureStore(tmp_path_factory.mktemp("store"), (3 * SIZE, SIZE))
    head = target_head_of(loaded.target)
    texts = sides_of(texts_of(read_data(data).examples), VOCAB, SETTINGS, said).all
    assert fill(store, texts, loaded.target, head, HEARD, tell=said, show=shown, stopped=never)
    return store


def said(message: str) -> None:
    pass


def shown(done: int, total: int, loss: float | None = None) -> None:
    pass


def never() -> bool:
    return False


def prepared(loaded: Any, data: Path, store: FeatureStore, settings: Settings) -> tuple[Objective, Material]:
    sides = sides_of(texts_of(read_data(data).examples), VOCAB, settings, said)
    ids = vocabulary_of(sides, VOCAB, settings, [256], said)
    objective = objective_of(loaded, target_head_of(loaded.target), ids, settings, said)
    training = learned(sides.training, settings.labels)
    return objective, Material(training, sides.held_out, store.of, identity_of({"weights": "w"}, "float32", sides, ids))


class Trained:
    """One run in a folder, as often as it is started."""

    def __init__(self, loaded: Any, data: Path, store: FeatureStore, out: Path) -> None:
        self._given, self.out = (loaded, data, store), out
        self.kept: list[Best] = []

    def start(
        self, settings: Settings = SETTINGS, *, show: Any = shown, stopped: Callable[[], bool] = never
    ) -> tuple[Outcome, Objective]:
        self.objective, material = prepared(*self._given, settings)
        self.out.mkdir(exist_ok=True)
        watch = Watch(said, show, stopped, self.kept.append)
        return fit(self.objective, material, settings, self.out, watch, Accelerator(cpu=True)), self.objective

    def log(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (self.out / "log.jsonl").read_text().splitlines()]
        return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.fixture
def trained(loaded, data, store, tmp_path) -> Trained:
    return Trained(loaded, data, store, tmp_path / "out")


@pytest.fixture(scope="module")
def whole(loaded, data, store, tmp_path_factory) -> Trained:
    """A run that nothing stopped."""
    run = Trained(loaded, data, store, tmp_path_factory.mktemp("whole"))
    outcome, _ = run.start()
    assert outcome.how == "end"
    return run


def test_it_learns(whole):
    log = whole.log()
    measured = [line["held_out"] for line in log if "held_out" in line]
    losses = [line["loss"] for line in log if "loss" in line]
    assert [line["step"] for line in log if "loss" in line] == list(range(1, len(losses) + 1))
    assert sum(losses[-3:]) < 0.97 * sum(losses[:3])
    assert measured[-1]["sampled"] > measured[0]["sampled"]
    assert all(0 <= value <= 1 for each in measured for value in (*each["overlap"], *each["agreement"]))


class KilledError(Exception):
    pass


@pytest.mark.parametrize("at", [1, 2, 3, 5, 8])
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(at, whole, trained):
    def kill(done: int, total: int, loss: float) -> None:
        if done == at:
            raise KilledError

    with pytest.raises(KilledError):
        trained.start(show=kill)
    with (trained.out / "log.jsonl").open("a") as file:
        file.write('{"step": 99, "lo')  # it was writing
    outcome, objective = trained.start()
    assert outcome.how == "end"
    assert trained.log() == whole.log()
    for one, other in zip(objective.head.parameters(), whole.objective.head.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_has_ended_is_not_done_again(whole):
    before = whole.log()
    outcome, _ = whole.start()
    assert outcome.how == "end"
    assert whole.log() == before


def test_a_signal_ends_it_after_the_step_and_nothing_is_lost(whole, trained):
    done: list[int] = []
    outcome, _ = trained.start(show=lambda at, total, loss: done.append(at), stopped=lambda: len(done) == 4)
    assert (outcome.how, outcome.step) == ("signal", 4)
    assert read_checkpoint(trained.out).step == 4
    trained.start()
    assert trained.log() == whole.log()


def test_other_settings_are_refused_by_their_names(trained):
    trained.start(replace(SETTINGS, max_minutes=1e-9))
    with pytest.raises(ValueError, match=r"^out: .*lr was 0.01 and is 0.1.*seed was 0 and is 1"):
        trained.start(replace(SETTINGS, lr=0.1, seed=1))
    trained.start(replace(SETTINGS, save_every=7))


def changed(trained: Trained, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the checkpoint of a run."""
    state = torch.load(trained.out / "checkpoint.pt", weights_only=True)
    change(state)
    torch.save(state, trained.out / "checkpoint.pt")


def test_a_setting_that_was_not_there_yet_was_its_default(trained):
    trained.start(replace(SETTINGS, max_minutes=1e-9))
    changed(trained, lambda state: state["settings"].pop("labels"))
    with pytest.raises(ValueError, match=r"^out: .*labels was 'answers' and is 'all'"):
        trained.start(replace(SETTINGS, labels="all"))
    trained.start()


def test_the_best_head_is_written_down_again_when_a_run_is_gone_on_with(whole, trained):
    done: list[int] = []
    trained.start(show=lambda at, total, loss: done.append(at), stopped=lambda: len(done) == 5)
    best = trained.kept[-1]
    assert best.step == 4
    trained.start()
    again = trained.kept[trained.kept.index(best) + 1]
    assert (again.quality, again.step) == (best.quality, best.step)
    for name, weight in again.state.items():
        assert torch.equal(weight, best.state[name])
        assert weight.dtype is torch.bfloat16 or not weight.is_floating_point()
    assert trained.log() == whole.log()


@pytest.mark.parametrize("others", [0.0, 1.0])
def test_several_processes_agree(others):
    class Two:
        num_processes, device = 2, torch.device("cpu")

        def reduce(self, here):
            return (here + others) / 2

    assert agreed(Two(), False) is bool(others)
    assert agreed(Two(), True) is True


def test_only_one_of_several_processes_writes(trained, monkeypatch):
    monkeypatch.setattr(Accelerator, "is_main_process", False)
    outcome, _ = trained.start()
    assert outcome.how == "end"
    assert trained.kept == []
    assert list(trained.out.iterdir()) == []


def test_other_data_is_refused(trained):
    trained.start(replace(SETTINGS, max_minutes=1e-9))
    changed(trained, lambda state: state["identity"].update(data="other"))
    with pytest.raises(ValueError, match=r"^out: .* another data;"):
        trained.start()


def test_a_broken_checkpoint_is_refused(trained):
    trained.out.mkdir()
    (trained.out / "checkpoint.pt").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"^out: .*checkpoint.pt cannot be gone on with"):
        trained.start()


def test_muon_takes_the_layer_s_matrices_and_adamw_the_rest(loaded, data, store):
    for settings in (SETTINGS, replace(SETTINGS, muon_lr=0), replace(SETTINGS, freeze_head=True)):
        objective, _ = prepared(loaded, data, store, settings)
        names = {id(weight): name for name, weight in objective.head.named_parameters()}
        found = {
            type(optimizer).__name__: sorted(names[id(each)] for each in optimizer.param_groups[0]["params"])
            for optimizer in optimizers_of(objective.head, settings)
        }
        matrices = sorted(n for n, w in objective.head.named_parameters() if w.ndim == 2 and n != "lm_head.weight")
        assert len(matrices) == 8
        assert found.get("Muon") == (matrices if settings.muon_lr else None)
        trained = sorted(name for name, weight in objective.head.named_parameters() if weight.requires_grad)
        assert sorted(name for names in found.values() for name in names) == trained
    for optimizer in optimizers_of(objective.head, replace(SETTINGS, weight_decay=0.25)):
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.25]


def test_each_optimizer_has_its_own_rate_and_both_fall_together(trained):
    trained.start(replace(SETTINGS, muon_lr=0.5, epochs=1))
    checkpoint = read_checkpoint(trained.out)
    muon, adamw = (state["param_groups"][0]["lr"] for state in checkpoint.optimizers)
    assert muon / adamw == pytest.approx(0.5 / SETTINGS.lr)
    assert 0 < adamw < SETTINGS.lr


def test_patience_ends_it(trained):
    settings = replace(SETTINGS, lr=1e-12, muon_lr=0, eval_every=1, patience=2)
    outcome, _ = trained.start(settings)
    assert outcome.how == "patience"
    assert outcome.step <= 3
    assert trained.start(settings)[0] == outcome  # and says so again


def test_a_frozen_output_layer_stays(loaded, data, store, tmp_path):
    run = Trained(loaded, data, store, tmp_path)
    settings = replace(SETTINGS, freeze_head=True, epochs=1)
    before, _ = prepared(loaded, data, store, settings)
    _, after = run.start(settings)
    assert torch.equal(before.head.lm_head.weight, after.head.lm_head.weight)
    assert not torch.equal(before.head.fc.weight, after.head.fc.weight)


@pytest.mark.parametrize(
    ("at", "error"),
    [
        (5, r"^step 6: the loss is nan .* with the examples \d+, \d+.*checkpoint stays"),
        (4, r"^step 4: measured on what is held out, the loss is \(nan"),
    ],
)
def test_a_loss_that_is_no_number_stops_it_and_names_the_examples(at, error, trained):
    def spoil(done: int, total: int, loss: float) -> None:
        if done == at:
            with torch.no_grad():
                trained.objective.head.fc.weight[0, 0] = torch.nan

    with pytest.raises(ValueError, match=error):
        trained.start(show=spoil)
    assert read_checkpoint(trained.out).step == 3
    assert all(torch.isfinite(weight).all() for weight in read_checkpoint(trained.out).head.values())


# measuring


@pytest.mark.parametrize("training", [True, False])
def test_t50_measuring_leaves_the_mode_as_it_was_whatever_happens(training, loaded, data, store):
    objective, _ = prepared(loaded, data, store, SETTINGS)
    objective.train(training)
    seen: list[bool] = []

    def batches():
        seen.append(objective.head.training)
        raise KilledError
        yield

    with pytest.raises(KilledError):
        evaluate(objective, batches())
    assert seen == [False]
    assert all(module.training is training for module in objective.modules())
    with evaluating(objective):
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_a_head_that_is_the_target_s_law_is_worth_all_its_steps(loaded, data, store, monkeypatch):
    """Laws in place of the head's: then every draft is accepted."""
    settings = replace(SETTINGS, draft_vocab_size=None)
    objective, material = prepared(loaded, data, store, settings)
    batch = batch_of(material.held_out, store.of, 3)
    laws = objective.laws(batch)
    calls = iter(batch.laws)
    monkeypatch.setattr("draftproof.train.evaluate._AT_ONCE", 10**6)
    monkeypatch.setattr(objective.head, "logits", lambda hidden: laws.logits[next(calls)])
    found = evaluate(objective, [batch])
    assert found.overlap == pytest.approx((1, 1, 1), abs=2e-3)
    assert found.agreement == (1, 1, 1)
    assert (found.sampled, found.greedy) == pytest.approx((4, 4), abs=1e-2)
    assert found.rows == len(batch.rows[0])
    assert found.known == 1


@pytest.mark.parametrize(
    ("labels", "accepted", "worth"),
    [
        ("p" * 6 + "a" * 8, (0, 1, 1), 1.0),  # the first of a draft never is: no draft brings anything
        ("p" * 6 + "a" * 8, (1, 1, 0), 3.0),
        ("p" * 6 + "a" * 2, (1, 1, 1), 3.0),  # nowhere do three labels follow
        ("ppp" + "a" * 4 + "pp" + "a" * 4, (0, 1, 1), 1.0),
        ("ppp" + "a" * 4 + "pp" + "a" * 4, (1, 1, 1), 4.0),
    ],
)
def test_tokens_a_round_are_counted_where_all_of_a_draft_counts(
    labels, accepted, worth, loaded, data, store, monkeypatch
):
    objective, _ = prepared(loaded, data, store, SETTINGS)
    text = Text("x", "x", tuple(range(60, 60 + len(labels))), tuple(label == "a" for label in labels))

    def measured(objective, batch):
        return [(rows, torch.full((3, len(rows)), float(a))) for rows, a in zip(batch.rows, accepted, strict=True)]

    monkeypatch.setattr("draftproof.train.evaluate._measured", measured)
    found = evaluate(objective, [batch_of([text], some_states, 3)])
    assert (found.sampled, found.greedy) == (worth, worth)
    labels = [token for token, label in zip(text.tokens, text.labels, strict=True) if label]
    known = set(objective.head.token_ids.tolist())
    assert found.known == pytest.approx(sum(label in known for label in labels) / len(labels))


def some_states(text: Text) -> States:
    n = len(text.tokens)
    return States(torch.zeros(n, 3 * SIZE), torch.zeros(n, SIZE), torch.zeros(n), torch.zeros(n, dtype=torch.int64))


# what the target says


def test_states_are_those_of_a_plain_forward(loaded, folder, store, data):
    stock = LlamaForCausalLM.from_pretrained(folder).eval()
    [text, *_] = sides_of(texts_of(read_data(data).examples), VOCAB, SETTINGS, said).training
    with torch.no_grad():
        wanted = stock(torch.tensor([text.tokens]), output_hidden_states=True)
    found = store.of(text)
    near = {"rtol": 2e-2, "atol": 2e-2}  # kept in bfloat16
    torch.testing.assert_close(found.features[:, :SIZE].float(), wanted.hidden_states[2][0], **near)
    torch.testing.assert_close(found.last.float(), wanted.hidden_states[-1][0], **near)
    torch.testing.assert_close(found.log_z, wanted.logits[0].logsumexp(-1), rtol=1e-4, atol=1e-4)
    assert found.top.tolist() == wanted.logits[0].argmax(-1).tolist()


def test_a_store_that_was_stopped_goes_on(loaded, data, store, tmp_path, monkeypatch):
    monkeypatch.setattr("draftproof.train.features._AT_ONCE", 60)
    texts = sides_of(texts_of(read_data(data).examples), VOCAB, SETTINGS, said).all
    head, target, layers = target_head_of(loaded.target), loaded.target, HEARD
    first = FeatureStore(tmp_path, (3 * SIZE, SIZE))
    groups: list[int] = []
    kept = fill(
        first, texts, target, head, layers, tell=said, show=lambda *d: groups.append(1), stopped=lambda: len(groups) > 1
    )
    assert not kept
    for name in ("features.bin", "laws.bin", "index.jsonl"):  # it was killed while it wrote
        with (tmp_path / name).open("ab") as file:
            file.write(b'{"te')
    second = FeatureStore(tmp_path, (3 * SIZE, SIZE))
    with first.writing(), pytest.raises(ValueError, match=r"^features: .* written by another process"):
        fill(second, texts, target, head, layers, tell=said, show=shown, stopped=never)
    assert 0 < second.tokens < sum(len(text.tokens) for text in texts)
    assert fill(second, texts, target, head, layers, tell=said, show=shown, stopped=never)
    for text in texts:
        for name in ("features", "last", "log_z", "top"):
            a, b = (getattr(each.of(text), name) for each in (FeatureStore(tmp_path, (3 * SIZE, SIZE)), store))
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)
    with pytest.raises(ValueError, match="none of example z"):
        second.of(Text("z", "", (1, 2, 3), (True,) * 3))


def text_of(i: int, *tokens: int, labels: Sequence[bool] | None = None, group: str | None = None) -> Text:
    return Text(str(i), group or str(i), tokens, tuple(labels or (True,) * len(tokens)))


def random_states(text: Text) -> States:
    generator = torch.Generator().manual_seed(len(text.tokens))
    n = len(text.tokens)
    features, last = (torch.randn(n, wide, generator=generator).to(torch.bfloat16) for wide in (3 * SIZE, SIZE))
    return States(features, last, torch.randn(n, generator=generator), torch.arange(n))


TEXTS = [text_of(i, *range(1, n)) for i, n in enumerate((5, 9, 7))]


def zeroed(name: str, width: int, tokens: int) -> Callable[[Path], None]:
    """The last tokens of a file are what a disk has where nothing came."""

    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: -tokens * width] + bytes(tokens * width))

    return change


def shortened(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-size])


LOST = {
    "features short": (shortened("features.bin", 1), 2),
    "laws short by two texts": (shortened("laws.bin", 8 * 7), 1),
    "last is not there": (lambda folder: (folder / "last.bin").unlink(), 0),
    "features zero": (zeroed("features.bin", 6 * SIZE, 2), 2),
    "last zero": (zeroed("last.bin", 2 * SIZE, 6), 2),
    "laws zero, two texts": (zeroed("laws.bin", 8, 7), 1),
    "index zero": (lambda folder: (folder / "index.jsonl").open("ab").write(bytes(40) + b"\n"), 3),
    "nothing": (lambda folder: None, 3),
}


@pytest.mark.parametrize("lost", LOST)
def test_a_store_that_lost_its_power_holds_what_its_files_hold(lost, tmp_path):
    change, left = LOST[lost]
    widths = 3 * SIZE, SIZE
    store = FeatureStore(tmp_path, widths)
    for text in TEXTS:
        store.add([(text, random_states(text))])
    change(tmp_path)
    store = FeatureStore(tmp_path, widths)
    assert [text in store for text in TEXTS] == [i < left for i in range(3)]
    store.add((text, random_states(text)) for text in TEXTS[left:])
    for each in (store, FeatureStore(tmp_path, widths)):
        for text in TEXTS:
            found, wanted = each.of(text), random_states(text)
            for name in ("features", "last", "log_z", "top"):
                assert torch.equal(getattr(found, name), getattr(wanted, name))


def test_an_index_never_says_more_than_is_on_the_disk(tmp_path, monkeypatch):
    store = FeatureStore(tmp_path, (3 * SIZE, SIZE))

    def fails(number: int) -> None:
        raise OSError("no power")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(OSError, match="no power"):
        store.add([(TEXTS[0], random_states(TEXTS[0]))])
    assert TEXTS[0] not in store
    assert TEXTS[0] not in FeatureStore(tmp_path, (3 * SIZE, SIZE))


def test_states_of_each_dtype_are_apart_and_those_that_there_were_stay_where_they_are(tmp_path):
    fingerprint = {"weights": "w", "config": "c"}
    names = [folder_of(tmp_path, fingerprint, dtype, (2, 4, 5)).name for dtype in ("bfloat16", "float32", "float16")]
    assert names[0] == "features-56978803087e"
    assert len(set(names)) == 3


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "phi3"])
def test_a_target_s_logits_are_its_head_s(name):
    from draftproof.models.bits import LAW_PLAN
    from draftproof.models.hf import HFTarget

    target = HFTarget(tiny.build(tiny.ARCHITECTURES[name]), LAW_PLAN)
    head = target_head_of(target)
    log_z, top = head.law(torch.randn(3, 64))
    assert log_z.shape == top.shape == (3,)
    with pytest.raises(ValueError, match=r"^target: the logits of .*model type"):
        require_same_logits(target, TargetHead(head.weight.flip(0), head.bias, 1.0, head.softcap), [5, 9, 4, 7])


# data


def test_the_vocabulary_is_what_is_said_most():
    counts = label_counts([text_of(0, 5, 5, 3, 4), text_of(1, 4, 7, labels=(False, True))], 10)
    assert choose_vocabulary(counts, 3, []).tolist() == [3, 4, 5]
    assert choose_vocabulary(counts, 3, [9]).tolist() == [3, 5, 9]
    assert choose_vocabulary(counts, None, [9]).tolist() == list(range(10))
    assert coverage(counts, np.array([5, 7])) == pytest.approx(3 / 5)
    for size in (0, 11):
        with pytest.raises(ValueError, match=r"^draft_vocab_size: "):
            choose_vocabulary(counts, size, [9])


def test_data_of_another_model_is_told_and_of_another_tokenizer_refused():
    ours = {"weights": "w", "config": "c", "tokenizer": "t"}
    told: list[str] = []
    require_made_by(ours, {"target": "x", "fingerprint": ours | {"tokenizer": "other"}}, told.append)
    assert not told
    require_made_by(ours, {"target": "x", "fingerprint": ours | {"weights": "other"}}, told.append)
    assert "made by other weights" in told[0]
    with pytest.raises(ValueError, match=r"^target: it has another tokenizer than 'x'"):
        require_made_by(ours, {"target": "x", "fingerprint": {"weights": "other", "tokenizer": "other"}}, told.append)


def test_answers_to_one_prompt_are_on_one_side():
    texts = [text_of(i, 1, 2, 3, group=f"prompt {i % 40}") for i in range(200)]
    training, held_out = split(texts, 0.1)
    assert not {text.group for text in training} & {text.group for text in held_out}
    assert 0 < len(held_out) < 60
    more_training, _ = split([*texts, text_of(999, 1, 2, 3)], 0.1)
    assert set(training) <= set(more_training)
    assert len(split(texts[:2], 0.0)[1]) == 1
    with pytest.raises(ValueError, match=r"^data: 1 different"):
        split(texts[:1], 0.1)


def test_prompts_are_learned_where_that_is_asked_for(loaded, data, store):
    (answers, one), (everything, other) = (
        prepared(loaded, data, store, replace(SETTINGS, labels=labels)) for labels in ("answers", "all")
    )
    assert {text.labels for text in one.training} == {(False,) * 6 + (True,) * 16}
    assert {text.labels for text in other.training} == {(False,) + (True,) * 21}
    assert other.held_out == one.held_out
    assert torch.equal(answers.head.token_ids, everything.head.token_ids)  # what it knows are answers' ids


def test_an_epoch_has_every_text_once_in_an_order_of_its_own():
    lengths = [3, 9, 2, 7, 1, 1, 5]
    orders = [epoch_of(lengths, 10, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert all(sorted(i for batch in order for i in batch) == list(range(7)) for order in orders)
    assert all(sum(lengths[i] for i in batch) <= 10 for order in orders for batch in order)
    assert orders[0] == orders[3] != orders[1] != orders[2]


@pytest.mark.parametrize(
    "change",
    [
        {"ttt_steps": 0},
        {"ttt_steps": 17},
        {"lr": 0},
        {"lr": float("nan")},
        {"muon_lr": -1},
        {"muon_lr": float("inf")},
        {"decay": 0},
        {"loss": "no"},
        {"init": "no"},
        {"labels": "prompts"},
        {"held_out": 0.9},
        {"warmup": -1},
        {"max_minutes": 0},
        {"seed": -1},
        {"limit": 0},
        {"batch_tokens": 0},
    ],
)
def test_settings_that_are_none(change):
    [name] = change
    with pytest.raises(ValueError, match=f"^{name}: "):
        replace(SETTINGS, **change)


# the command


@pytest.fixture
def command(folder, data, tmp_path) -> list[str]:
    given = asdict(SETTINGS)
    options = [
        *("--target", str(folder), "--data", str(data), "--out", str(tmp_path / "head"), "--dtype", "float32"),
        *("--draft-vocab-size", "64", "--ttt-steps", "2", "--epochs", "1", "--eval-every", "2", "--device", "cpu"),
        *("--batch-tokens", str(given["batch_tokens"]), "--lr", "1e-3", "--held-out", "0.2"),
    ]
    return ["train", "eagle", *options]


def test_the_command_writes_a_head_that_can_be_loaded(command, tmp_path, loaded, capsys):
    assert run(command) == 0
    told = capsys.readouterr().err
    for what in (
        "examples to train on",
        "of 257 ids",
        "M parameters",
        "tokens/s",
        "held out overlap",
        "--draft eagle3:",
    ):
        assert what in told
    head, about = load_head(tmp_path / "head" / "head", loaded, check="strict")
    assert about.measured["rows"] > 0
    assert about.training["ttt_steps"] == 2
    assert head.config.feature_layers == HEARD
    assert run([*command, "--lr", "2e-3"]) == 2
    assert "out: the run there has other settings (lr was 0.001 and is 0.002)" in capsys.readouterr().err


def test_what_the_target_said_in_another_dtype_is_read_again(command, data, tmp_path, capsys):
    assert run(command) == 0
    assert run([*command, "--dtype", "bfloat16"]) == 2
    assert "out: the run there is of another dtype; give the same" in capsys.readouterr().err
    assert len(list(data.glob("features-*"))) == 2


def test_a_head_that_is_gone_is_written_again(command, tmp_path, capsys):
    assert run(command) == 0
    head = tmp_path / "head" / "head"
    before = {file.name: file.read_bytes() for file in head.iterdir()}
    shutil.rmtree(head)
    assert run(command) == 0
    assert {file.name: file.read_bytes() for file in head.iterdir()} == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_head_stays_whatever_comes_between_two_renames(error, tmp_path, monkeypatch):
    save_head(tmp_path / "head", heads.make_head(), heads.ABOUT)
    before = (tmp_path / "head" / "model.safetensors").read_bytes()
    rename = Path.rename

    def interrupted(self, to):
        if self.name == "new":
            raise error
        return rename(self, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        with pytest.raises(error):
            save_head(tmp_path / "head", heads.make_head(1), heads.ABOUT)
    assert (tmp_path / "head" / "model.safetensors").read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["head"]


@pytest.fixture
def talks(tmp_path) -> Path:
    """A file of messages; what the assistant says are the labels, here "five!" and the like."""
    file = tmp_path / "talks.jsonl"
    talks = [[{"role": "user", "content": "ab" * i}, {"role": "assistant", "content": "five!" * i}] for i in (1, 2, 3)]
    file.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    return file


def test_conversations_of_others_are_trained_on_too(command, data, talks, tmp_path, capsys):
    assert run([str(talks) if each == str(data) else each for each in command]) == 0
    assert "talks.jsonl: 3 examples" in capsys.readouterr().err
    assert (tmp_path / "head" / "head" / "config.json").exists()
    assert len(list(tmp_path.glob("talks.jsonl.features-*"))) == 1


def test_several_sources_are_learned_as_one(command, data, talks, tmp_path, capsys):
    for folder in data.glob("features-*"):
        shutil.rmtree(folder)
    assert run([*command, "--data", str(talks), "--limit", "8"]) == 0
    told = capsys.readouterr().err
    assert "talks.jsonl: 3 examples" in told
    counts = re.search(r"(\d+) examples to train on and (\d+) held out", told)
    assert counts is not None
    assert int(counts[1]) + int(counts[2]) == 8 + 3
    assert len(list(tmp_path.glob("talks.jsonl.features-*"))) == len(list(data.glob("features-*"))) == 1
    lines = (tmp_path / "head" / "log.jsonl").read_text().splitlines()
    names = {name for line in map(json.loads, lines) for name in line.get("texts", ())}
    assert {name.split("/")[0] for name in names} == {data.name, "talks.jsonl"}
    training = read_about(tmp_path / "head" / "head").training
    assert training["data"] == [data.name, "talks.jsonl"]
    assert training["examples"] == int(counts[1])


def test_a_disk_without_room_is_named_before_the_target_reads(command, data, talks, monkeypatch, capsys):
    for folder in data.glob("features-*"):
        shutil.rmtree(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 0, 100_000))
    monkeypatch.setattr("draftproof.train.sources.fill", None)  # would fail
    assert run([*command, "--data", str(talks)]) == 2
    assert "GB are free; give fewer examples (--limit)" in capsys.readouterr().err


def test_sizes_are_of_what_is_learned():
    text = Text("0", "g", tuple(range(9)), (False,) * 4 + (True,) * 5)
    assert sizes_of([text]) == {"examples": 1, "tokens": 9, "label_tokens": 5}
    assert sizes_of(learned([text, text], "all")) == {"examples": 2, "tokens": 18, "label_tokens": 14}


@pytest.mark.parametrize("reverse", [False, True])
def test_answers_to_one_prompt_are_on_one_side_from_wherever_they_come(reverse):
    """A conversation of two turns, and answers of another source to its first and to its second question."""
    talk = Text("0", "prompt (1, 2)", (1, 2, 3, 4, 5, 6), (False, False, True, False, False, True))
    answers = [
        Text("0", "prompt (1, 2)", (1, 2, 9), (False, False, True)),
        Text("1", "prompt (1, 2, 3, 4, 5)", (1, 2, 3, 4, 5, 9), (False,) * 5 + (True,)),
        Text("2", "prompt (7,)", (7, 9), (False, True)),
    ]
    sources = [Source(Path("a"), "a", None), Source(Path("b"), "b", None)]
    found = together(sources, [answers, [talk]] if reverse else [[talk], answers])
    groups = {text.id: text.group for text in found}
    a, b = ("b", "a") if reverse else ("a", "b")
    assert groups == dict.fromkeys([f"{a}/0", f"{b}/0", f"{b}/1"], "prompt (1, 2)") | {f"{b}/2": "prompt (7,)"}
    assert {text.source for text in found} == {0, 1}


def test_sources_of_one_name_are_told_apart(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "talks.jsonl").write_text("{}")
    paths = [tmp_path / name / "talks.jsonl" for name in ("one", "two")]
    assert [source.name for source in opened(paths)] == [str(path) for path in paths]
    assert opened(paths[:1])[0].name == "talks.jsonl"


def test_the_tokenizer_of_every_source_is_compared(command, data, tmp_path, capsys):
    other = shutil.copytree(data, tmp_path / "other", ignore=shutil.ignore_patterns("features-*"))
    manifest = json.loads((other / "data.json").read_text())
    manifest["fingerprint"] |= {"weights": "other", "tokenizer": "other"}
    (other / "data.json").write_text(json.dumps(manifest))
    assert run([*command, "--data", str(other)]) == 2
    assert "target: it has another tokenizer than 'tiny'" in capsys.readouterr().err


def test_a_source_that_is_given_twice_is_refused(command, data, capsys):
    assert run([*command, "--data", f"{data}/../{data.name}"]) == 2
    assert f"data: '{data}/../{data.name}' is given twice" in capsys.readouterr().err


def test_a_signal_gives_its_status(command, monkeypatch):
    from draftproof.train import fit as fitting

    def killed(objective, batches):
        signal.raise_signal(signal.SIGTERM)
        return evaluate(objective, batches)

    monkeypatch.setattr(fitting, "evaluate", killed)
    assert run(command) == 143


def test_a_signal_to_another_process_stops_this_one_too(command, monkeypatch, capsys):
    monkeypatch.setattr("draftproof.train.fit.agreed", lambda accelerator, here: True)
    assert run(command) == 0
    assert "stopped; what the target has read is kept" in capsys.readouterr().err


class Placed:
    """An Accelerator of a machine with two GPUs."""

    def __init__(self, cpu: bool, kwargs_handlers: Any) -> None:
        self.device = torch.device("cpu" if cpu else "cuda")


@pytest.fixture
def two_gpus(monkeypatch) -> list[torch.device]:
    """Which of them was made the current one."""
    current: list[torch.device] = []
    monkeypatch.setattr("draftproof.models.load.device_named", torch.device)
    monkeypatch.setattr("accelerate.Accelerator", Placed)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


def test_training_is_where_it_was_asked_for(two_gpus, monkeypatch):
    assert train_eagle._accelerator("cuda:1").device.type == "cuda"
    assert two_gpus == [torch.device("cuda:1")]
    assert train_eagle._accelerator("cuda").device.type == "cuda"
    assert train_eagle._accelerator("cpu").device.type == "cpu"
    assert len(two_gpus) == 1
    for name in ("mps", "xpu"):
        with pytest.raises(ValueError, match=f"^device: '{name}' is not allowed; Accelerate trains on cuda here"):
            train_eagle._accelerator(name)
    monkeypatch.setattr(Placed, "__init__", lambda self, **given: setattr(self, "device", torch.device("cuda:0")))
    with pytest.raises(ValueError, match=r"^device: 'cuda:1' is not allowed; .* give cuda"):
        train_eagle._accelerator("cuda:1")


def test_memory_is_that_of_where_it_trains(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: {torch.device("cuda"): 3e9}[device])
    assert train_eagle._peak(torch.device("cuda")) == "3.0 GB of the GPU's memory"
    assert re.fullmatch(r"\d+\.\d GB of memory", train_eagle._peak(torch.device("cpu")))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--device", "nonsense"], "device: 'nonsense' cannot be used"),
        (["--device", "mps"], "device: 'mps' cannot be used"),
        (["--labels", "prompts"], "--labels: 'prompts' is not allowed; it must be one of answers, all"),
        (["--draft-vocab-size", "few"], "--draft-vocab-size: 'few' is not allowed"),
        (["--ttt-steps", "0"], "--ttt-steps: 0 is not allowed"),
        (["--loss", "kl:1+no:2"], "--loss: 'kl:1+no:2' is not allowed"),
        (["--limit", "1"], "data: 1 different prompts are too few"),
    ],
)
def test_what_is_wrong_is_one_clear_line(options, error, command, capsys):
    assert run([*command, *options]) == 2
    assert error in capsys.readouterr().err


def test_a_folder_of_somebody_else_is_left_alone(command, tmp_path, capsys):
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "thesis.tex").touch()
    assert run(command) == 2
    assert "holds 'thesis.tex'" in capsys.readouterr().err


def test_a_file_beside_the_head_is_found_before_it_trains(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("draftproof.models.load.load", lambda *args, **given: pytest.fail("it was loaded"))
    (tmp_path / "head" / "head").mkdir(parents=True)
    (tmp_path / "head" / "head" / "notes.txt").touch()
    assert run(command) == 2
    assert "holds notes.txt; give a new one" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("init", ["target", "layer", "random"])
def test_where_a_head_starts(init, loaded, data, store):
    objective, _ = prepared(loaded, data, store, replace(SETTINGS, init=init))
    head, model = objective.head, loaded.target.model
    rows = torch.equal(head.lm_head.weight, model.lm_head.weight[head.token_ids])
    last = torch.equal(head.layers[0].self_attn.k_proj.weight[:, SIZE:], model.model.layers[-1].self_attn.k_proj.weight)
    assert (rows, last) == (init != "random", init == "layer")
    again, _ = prepared(loaded, data, store, replace(SETTINGS, init=init))
    assert all(torch.equal(a, b) for a, b in zip(head.parameters(), again.head.parameters(), strict=True))


def test_a_head_that_was_trained_before_is_gone_on_from(command, tmp_path, loaded, capsys):
    assert run(command) == 0
    first, more = (
        tmp_path / "head" / "head",
        ["--out", str(tmp_path / "more"), "--init", str(tmp_path / "head" / "head")],
    )
    was, about = load_head(first, loaded)
    assert run([*command, *more, "--loss", "lk"]) == 0
    measured = [line for line in (tmp_path / "more" / "log.jsonl").read_text().splitlines() if "held_out" in line]
    begun = json.loads(measured[0])["held_out"]
    assert begun["overlap"] == pytest.approx(about.measured["overlap"], abs=0.01), "bfloat16 is all that is lost"
    now, told = load_head(tmp_path / "more" / "head", loaded)
    assert torch.equal(now.token_ids, was.token_ids)
    assert told.training["init"].startswith("head "), "no path of this machine"
    assert run([*command, *more[:-1], f"{first}/", "--loss", "lk"]) == 0, "the same, spelled otherwise"
    assert run([each for each in command if each not in ("--draft-vocab-size", "64")] + [*more, "--loss", "lk"]) == 0
    assert first.is_dir()
    capsys.readouterr()
    for change, why in (
        (("--draft-vocab-size", "65"), "--draft-vocab-size: 65 is not allowed"),
        (("--draft-vocab-size", "full"), "--draft-vocab-size: full is not allowed"),
        (("--intermediate-size", "7"), "--intermediate-size: 7 is not allowed"),
        (("--init", str(tmp_path / "head")), f"holds no config.json; did you mean '{first}'?"),
        (("--init", "nosuch/head"), "there is no folder 'nosuch/head'"),
        (("--init", command[3]), "(it is a model's)"),
        (("--out", str(tmp_path / "head"), "--init", f"{first}/../head"), "is where --out writes its head"),
    ):
        assert run([*command, "--out", str(tmp_path / "other"), *more[2:], *change]) == 2
        assert why in capsys.readouterr().err.replace("\n", " ")
    was.config = replace(was.config, norm_before_residual=not was.config.norm_before_residual)
    save_head(first, was, about)
    assert run([*command, *more, "--loss", "lk"]) == 2, "another head is there now"
    assert "another first head" in capsys.readouterr().err


def test_two_may_train_on_what_the_target_has_said(loaded, data, store):
    """Nothing is missing, so nothing is locked."""
    _, material = prepared(loaded, data, store, SETTINGS)
    with store.writing():
        done = fill(
            store,
            [*material.training, *material.held_out],
            loaded.target,
            target_head_of(loaded.target),
            HEARD,
            tell=said,
            show=shown,
            stopped=never,
        )
    assert done
