"""From a folder of examples and a target to what the loop takes, and what it will need, said beforehand."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from ..models.eagle import EagleHead
from ..models.load import Loaded
from .batches import Text, batch_of, split
from .corpus import Example
from .fit import Material, schedule
from .labels import Labelled, mask_of
from .losses import loss_of, position_decay
from .objective import Objective
from .settings import Settings
from .start import Tell, config_for, parameters_of, random_head, take_from_target
from .target_head import TargetHead
from .vocabulary import choose_vocabulary, coverage, label_counts


@dataclass(frozen=True, slots=True)
class Sides:
    """Texts to train on, and texts to measure on."""

    training: list[Text]
    held_out: list[Text]

    @property
    def all(self) -> list[Text]:
        return [*self.training, *self.held_out]

    def digest(self) -> str:
        found = hashlib.sha256()
        for side in (self.training, self.held_out):
            for text in side:
                found.update(repr((text.tokens, text.labels)).encode())
            found.update(b"\n")
        return found.hexdigest()


def texts_of(examples: Sequence[Example]) -> list[Text]:
    """Of what `train data` made."""
    groups = [f"prompt {each.prompt}" if each.prompt else f"text {each.tokens}" for each in examples]
    return [
        Text(str(each.id), group, each.prompt + each.tokens, mask_of(each))
        for each, group in zip(examples, groups, strict=True)
    ]


def talks_of(conversations: Sequence[Labelled]) -> list[Text]:
    """Of conversations, those that begin alike in one group."""
    texts = []
    for at, (tokens, labels) in enumerate(conversations):
        texts.append(Text(str(at), f"prompt {tokens[: labels.index(True)]}", tokens, labels))
    return texts


def sides_of(given: Sequence[Text], vocab_size: int, settings: Settings, tell: Tell) -> Sides:
    """ValueError: an id is none of the target's, or too few texts have something to predict."""
    texts, long = [], 0
    for text in given:
        if max(text.tokens) >= vocab_size:
            raise ValueError(
                f"data: example {text.id} has token {max(text.tokens)}, the target knows {vocab_size}; it must be data "
                "that this target made"
            )
        long += len(text.tokens) > settings.max_length
        texts.append(text.cut(settings.max_length))
    kept = [text for text in texts if text.counts]
    training, held_out = split(kept, settings.held_out)
    tokens, labels = sum(len(text.tokens) for text in kept), sum(sum(text.labels) for text in kept)
    tell(
        f"{len(training)} examples to train on and {len(held_out)} held out: {tokens} tokens, {labels} of them labels"
        + (f"; {long} cut to {settings.max_length} tokens" if long else "")
        + (f"; {len(texts) - len(kept)} without anything to predict left out" if len(kept) < len(texts) else "")
    )
    return Sides(training, held_out)


def learned(texts: Sequence[Text], labels: str) -> list[Text]:
    """With what counts in training. labels "all": the prompts' tokens too, as the target has read them anyway."""
    if labels == "answers":
        return list(texts)
    return [replace(text, labels=(False,) + (True,) * (len(text.tokens) - 1)) for text in texts]


def sizes_of(training: Sequence[Text]) -> dict[str, int]:
    """Of what is trained on: texts, tokens, and those that are learned."""
    labels = sum(sum(text.labels[2:]) for text in training)
    return {"examples": len(training), "tokens": sum(len(text.tokens) for text in training), "label_tokens": labels}


def vocabulary_of(
    sides: Sides, vocab_size: int, settings: Settings, ends: Sequence[int], tell: Tell, head: EagleHead | None = None
) -> Int[np.ndarray, " d"]:
    """The ids that the head is to know. head: one to go on from, which knows its own."""
    counts = label_counts(sides.training, vocab_size)
    ids = choose_vocabulary(counts, settings.draft_vocab_size, ends) if head is None else head.token_ids.numpy()
    held_out = coverage(label_counts(sides.held_out, vocab_size), ids)
    tell(
        f"the head knows {len(ids)} of {vocab_size} ids: {coverage(counts, ids):.2%} of the labels to train on, "
        f"{held_out:.2%} of those held out"
    )
    return ids


def objective_of(
    loaded: Loaded,
    target_head: TargetHead,
    ids: Int[np.ndarray, " d"],
    settings: Settings,
    tell: Tell,
    head: EagleHead | None = None,
) -> Objective:
    """A head for the target, a new one or one to go on from, and what it is to minimise. Nothing of the target stays
    but what these need."""
    model, known = loaded.target.model, torch.from_numpy(ids)
    if head is None:
        head = random_head(config_for(model, len(ids), settings.intermediate_size), known, settings.seed)
        if settings.init != "random":
            taken = take_from_target(head, model, target_head, layer=settings.init == "layer")
            tell(f"from the target: {', '.join(taken)}")
    trained = parameters_of(head, freeze_head=settings.freeze_head)
    count = sum(each.numel() for each in trained)
    tell(
        f"{sum(each.numel() for each in head.parameters()) / 1e6:.1f} M parameters, {count / 1e6:.1f} M of them "
        f"trained: {count * 16 / 1e9:.2f} GB at most with gradients and the optimizers' states"
    )
    return Objective(
        head.to(model.device),
        model.get_input_embeddings().weight.detach(),
        target_head.only(known.to(model.device)),
        loss_of(settings.loss),
        position_decay(settings.decay, settings.ttt_steps),
        narrow=settings.narrow,
    )


def try_a_step(
    objective: Objective,
    material: Material,
    settings: Settings,
    accelerator: Any,
    peak: Callable[[], str],
    tell: Tell,
) -> None:
    """Say what training will need, from one step that changes nothing. peak: memory in use at most so far, in words."""
    steps = schedule(material, settings, accelerator.num_processes)
    texts = [material.training[at] for at in steps[0][accelerator.process_index]]
    batch = batch_of(texts, material.states_of, settings.ttt_steps).to(accelerator.device)
    seconds = []
    for _ in range(2):  # the first one is slower
        began = time.perf_counter()
        objective(batch).total.backward()
        for weight in objective.parameters():
            weight.grad = None
        seconds.append(time.perf_counter() - began)
    pace = len(batch.tokens) / min(seconds) * accelerator.num_processes
    tokens = settings.epochs * sum(len(text.tokens) for text in material.training)
    tell(
        f"{len(steps)} steps over {tokens} tokens, at about {pace:.0f} tokens/s: {tokens / pace / 60:.0f} minutes, and "
        f"what is measured; {peak()} at most so far"
    )


def identity_of(
    fingerprint: Mapping[str, str],
    dtype: str,
    sides: Sides,
    ids: Int[np.ndarray, " d"],
    head: EagleHead | None = None,
) -> dict[str, str]:
    """What a run is for and on: it is gone on with only if that is the same. dtype: the target's, as torch names it.
    head: that it began with, before a step of it was made."""
    start = {} if head is None else {"first head": _digest(head)}
    return start | {
        "target": " ".join(fingerprint.get(name, "") for name in ("weights", "config")),
        "dtype": dtype,
        "data": sides.digest(),
        "draft vocabulary": hashlib.sha256(ids.astype(np.int64).tobytes()).hexdigest(),
    }


def _digest(head: EagleHead) -> str:
    found = hashlib.sha256(repr(head.config).encode())
    for name, weight in head.state_dict().items():
        found.update(f"{name} {tuple(weight.shape)}".encode())
        found.update(weight.detach().cpu().numpy())
    return found.hexdigest()


def require_made_by(fingerprint: Mapping[str, str], manifest: Mapping[str, Any], tell: Tell) -> None:
    """ValueError: another model with another tokenizer made the data. That another with the same one did is told.

    With the target's own weights the ids are the target's own, whatever is said of its tokenizer.
    """
    then = manifest.get("fingerprint") or {}
    differ = [name for name in fingerprint if then.get(name) not in (None, fingerprint[name])]
    if not {"weights", "config"} & set(differ):
        return
    if "tokenizer" in differ:
        raise ValueError(
            f"target: it has another tokenizer than {manifest.get('target')!r}, which made the data; give that, or "
            "make data with this one"
        )
    tell(f"the data was made by other {' and '.join(differ)} than the target's: it is no text of the target's own")
