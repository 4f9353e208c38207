"""From a `SpeculativeConfig` to who drafts and who decides how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .base import Controller, Drafter
from .calibrate import calibrated
from .control import Cost, Costs, Fixed, Record, Threshold
from .drafters import (
    CombinedDrafter,
    EagleDrafter,
    EarlyExitDrafter,
    ModelDrafter,
    NGramDrafter,
    NoDrafter,
    RetokenisedDrafter,
    SuffixDrafter,
    TranslatedDrafter,
)
from .drafters.corpus import SuffixCorpus, corpus_of
from .fingerprint import quick_fingerprint
from .models.eagle_files import WEIGHTS, load_head
from .models.eagle_runner import EagleRunner
from .models.load import Loaded
from .models.narrow import NarrowTarget
from .models.quantised import quantise
from .models.shelf import resolve_head, shipped_for
from .speculation import WITH_HEAD, SpeculativeConfig
from .vocabularies import Speller, relation, unnamed

ORIGINS = {"ngram": "ngram", "suffix": "suffix", "draft_model": "model", "early_exit": "early_exit", "eagle3": "eagle"}
"""What a drafter's nodes are labelled with."""

_MODELS = {"model", "early_exit", "eagle"}
_REMEMBERED = 200_000  # tokens of earlier answers

Notify = Callable[[str], None]

Heads = dict[tuple[Path, int, str | None], tuple[EagleRunner, tuple[float, ...]]]
"""Loaded heads and what is known of their acceptance, by folder, when their weights were written, and in how many bits
they run."""


@dataclass
class Drafting:
    """Drafters and controllers for the requests to one target. models: that draft, by origin. head: where the trained
    one that drafts lies. why: what was chosen on the way, for people."""

    config: SpeculativeConfig
    drafter: Drafter
    origins: tuple[str, ...] = ()
    draft: Loaded | None = None
    head: Path | None = None  # its folder
    models: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, tuple[float, ...]] = field(default_factory=dict)  # acceptances by level, where they are known
    answers: SuffixCorpus | None = None  # that were given before
    costs: Costs = field(default_factory=Costs)
    records: dict[float, Record] = field(default_factory=dict)  # what came true, by temperature
    why: list[str] = field(default_factory=list)

    def controller(self, temperature: float) -> Controller:
        """For one request."""
        config = self.config
        if not self.origins:
            return Fixed(0)
        if config.control == "fixed":
            return Fixed(config.depth, config.disable_by_batch_size, config.widths, self._in_one_tree)
        if config.control == "threshold":
            return Threshold(config.depth, config.disable_by_batch_size, config.widths, self._in_one_tree)
        return Cost(
            self.origins,
            [origin for origin in self.origins if origin in _MODELS],
            costs=self.costs,
            record=self._record(temperature),
            depth=config.depth,
            widths=config.widths,
            most_requests=config.disable_by_batch_size,
        )

    def _record(self, temperature: float) -> Record:
        """Of the requests before that were about as sure of their tokens."""
        about = 0.0 if temperature == 0 else max(0.25, min(round(4 * temperature) / 4, 2.0))
        return self.records.setdefault(about, Record(fade=0.998, known=self.measured))

    @property
    def _in_one_tree(self) -> int:
        """How many drafters fill a tree."""
        return len(self.origins) if self.config.takes_trees else 1

    def as_config(self) -> dict[str, Any]:
        """What is in effect, whoever chose it."""
        config = self.config
        asked = asdict(config)
        if asked["num_speculative_tokens"] is None:
            asked["num_speculative_tokens"] = "auto" if config.control == "cost" else config.depth
        chosen = {"controller": config.control, "depth": config.depth, "widths": config.widths, "parts": config.parts}
        return asked | chosen | {"why": list(self.why)}

    def learn(self, tokens: Sequence[int]) -> None:
        """Remember an answer for the requests to come: only where what is drafted cannot change a text."""
        if self.answers is not None and self.config.suffix_cache and self.config.verify == "coupled":
            self.answers.add(tokens)


def drafting_for(
    config: SpeculativeConfig,
    target: Loaded,
    load: Callable[[str], Loaded],
    *,
    heads: Heads | None = None,
    cache_dir: Path | None = None,
    notify: Notify = lambda message: None,
) -> Drafting:
    """Load and make all that the configuration asks for. load: a draft model, as the configuration wants it. heads:
    those for this target that are loaded, for other configurations too."""
    made = Drafting(config, NoDrafter())
    made.config = config = with_shipped(config, target, made.why)
    parts: dict[str, Drafter] = {}
    models = made.models
    for part in config.parts:
        origin = ORIGINS[part]
        if part == "ngram":
            parts[origin] = NGramDrafter(config.prompt_lookup_max, config.prompt_lookup_min)
        elif part == "suffix":
            made.answers = SuffixCorpus(max_tokens=_REMEMBERED)
            given = [] if config.suffix_corpus is None else [_corpus(config.suffix_corpus, target)]
            parts[origin] = SuffixDrafter([made.answers, *given])
        elif part == "early_exit":
            models[origin] = target.target.early(config.early_exit_layers)
            parts[origin] = EarlyExitDrafter(models[origin], config.kind)
        elif part == "eagle3":
            made.head = resolve_head(str(config.model), notify)
            known = {} if heads is None else heads
            models[origin], made.measured[origin] = _head(made.head, target, config.quantization, known, notify)
            parts[origin] = EagleDrafter(models[origin], config.kind)
        else:
            made.draft = load(str(config.model))
            models[origin] = made.draft.target
            parts[origin] = _model_drafter(config, target, made.draft, made.why)
    for choice in made.why:
        notify(choice)
    made.origins = tuple(parts)
    if len(parts) == 1:
        (made.drafter,) = parts.values()
    elif parts:
        made.drafter = CombinedDrafter(parts, merge=config.takes_trees)
    if parts and config.control == "cost":
        made.costs = calibrated(target, models, cache_dir=cache_dir, notify=notify)
    return made


def with_shipped(config: SpeculativeConfig, target: Loaded, why: list[str]) -> SpeculativeConfig:
    """Under "auto", a head that comes with the package for this target drafts, where the rule takes what it drafts."""
    if config.method != "auto" or config.model is not None or (shipped := shipped_for(target)) is None:
        return config
    try:
        config = replace(config, model=shipped, **WITH_HEAD)
    except ValueError as error:
        why.append(f"the head that comes with draftproof for {target.name} does not draft: {error}")
    else:
        why.append(f"a head for {target.name} comes with draftproof: it drafts, too")
    return config


def _head(
    folder: Path, target: Loaded, quantization: str | None, heads: Heads, notify: Notify
) -> tuple[EagleRunner, tuple[float, ...]]:
    weights = folder / WEIGHTS
    key = folder, weights.stat().st_mtime_ns if weights.is_file() else 0, quantization
    if key not in heads:
        known = quick_fingerprint(target.path, target.tokenizer)
        head, about = load_head(folder, target, fingerprint=known, notify=notify)
        heads[key] = EagleRunner(target.target, head, about.embeddings, quantization), about.acceptance
    return heads[key]


def _corpus(folder: str, target: Loaded) -> SuffixCorpus:
    tokenizer = target.tokenizer
    return corpus_of(
        Path(folder),
        lambda text: tokenizer(text, add_special_tokens=False).input_ids,
        max_tokens=10 * _REMEMBERED,
    )


def lightened(config: SpeculativeConfig, draft: Loaded) -> Loaded:
    """A draft model that nobody else uses, as its steps are cheaper."""
    target = draft.target
    if config.draft_vocabulary is not None:
        target = NarrowTarget(target, min(config.draft_vocabulary, target.vocab_size))
    if config.quantization is not None:
        quantise(target, config.quantization)
    return replace(draft, target=target)


def _model_drafter(config: SpeculativeConfig, target: Loaded, draft: Loaded, why: list[str]) -> Drafter:
    """One that reads the target's tokens, or one that translates, by what the two vocabularies share."""
    ours, theirs = target.tokenizer, draft.tokenizer
    control = frozenset(theirs.all_special_ids)
    pairing = relation(
        ours.get_vocab(),
        theirs.get_vocab(),
        target.target.vocab_size,
        draft.target.vocab_size,
        control=control,
        method=None if config.vocabulary == "auto" else config.vocabulary,
    )
    if pairing.method == "same":
        return ModelDrafter(draft.target, config.kind, ORIGINS["draft_model"])
    if config.tree is not None:
        raise ValueError(f"tree: {config.tree!r} needs a draft model of the target's tokenizer; {pairing.why}")
    why.append(f"draft {draft.name}: another vocabulary; {pairing.why}")
    spell, respell, bos, ends = Speller(ours), Speller(theirs), _own_start(theirs), _ends(ours, theirs)
    if pairing.method == "tli":
        ids = pairing.to_target
        return TranslatedDrafter(draft.target, config.kind, ids, spell, respell, bos=bos, ends=ends)
    unused = unnamed(theirs.get_vocab(), draft.target.vocab_size)
    return RetokenisedDrafter(draft.target, spell, respell, unnamed=unused, control=control, bos=bos, ends=ends)


def _own_start(tokenizer: Any) -> int | None:
    """The token that it puts before every text, if it does."""
    start = tokenizer.bos_token_id
    return start if start is not None and tokenizer("a").input_ids[:1] == [start] else None


def _ends(ours: Any, theirs: Any) -> dict[int, int]:
    """The end of an answer, in both."""
    pair = theirs.eos_token_id, ours.eos_token_id
    return {} if None in pair else {pair[0]: pair[1]}
