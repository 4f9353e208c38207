"""SpeculativeConfig: how a caller asks for speculation, validated once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from .base import Kind
from .rules import NEEDS, RULES, rule_named, why_not
from .sampling import check_integer

METHODS = ("auto", "ngram", "suffix", "draft_model", "early_exit", "eagle3", "combined", "none")
CONTROLS = ("fixed", "threshold", "cost")
QUANTIZATIONS = ("int8", "int4")
VOCABULARIES = ("auto", "same", "tli", "slem")

WITH_HEAD = {"method": "combined", "drafters": ("suffix", "eagle3")}
"""What "auto" is where there is a head for the target."""

_DRAWING = ("draft_model", "early_exit", "eagle3")
"""Drafters that draw their tokens from laws."""

_USUAL_DEPTH, _DEEPEST = 5, 16
_USUAL_WIDTHS = (3, 2)
_LARGEST_TREE = 256  # of a tree that is asked for

_USED_BY = (  # option, what it is if nobody asks for it, and the drafters that it is of
    ("draft_vocabulary", None, ("draft_model",)),
    ("vocabulary", "auto", ("draft_model",)),
    ("quantization", None, ("draft_model", "eagle3")),
    ("prompt_lookup_max", 4, ("ngram",)),
    ("prompt_lookup_min", 1, ("ngram",)),
    ("suffix_cache", True, ("suffix",)),
)


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """How to speculate; vLLM's names where it has them.

    method: "auto" (suffix lookup, and the draft model if there is one), "ngram" (prompt lookup), "suffix",
    "draft_model" (needs `model`), "early_exit" (needs `early_exit_layers`), "eagle3" (a trained head; `model` is its
    folder), "combined" (of `drafters`), "none". "auto" takes a head for `model`, too.
    num_speculative_tokens: most levels drafted a round; "auto" lets the controller choose up to 16. controller:
    "fixed", "threshold" (fewer when few are accepted) or "cost" (as many as pay, by measured costs). None, for both:
    "auto" and "cost" under the coupled rule; 5 and "fixed" under others, whose text depends on what is drafted and so
    would change with the clock. tree: children a node, level by level, "4x2x1". disable_by_batch_size: draft nothing
    while more requests than this run at once. prompt_lookup_max, prompt_lookup_min: n-gram sizes. suffix_corpus: a
    folder of texts to look suffixes up in, too; suffix_cache: earlier answers (under the coupled rule, where they
    cannot change a text). vocabulary: how to draft with another tokenizer ("tli", "slem"). draft_vocabulary: the draft
    model proposes ids below this alone, which makes its steps cheaper, as does quantization ("int8", "int4") of its
    weights.
    verify: the rule; "coupled" keeps the text of a seed. allow_lossy: admit rules that change what the model says.
    """

    method: str = "auto"
    model: str | None = None
    num_speculative_tokens: int | Literal["auto"] | None = None
    controller: str | None = None
    tree: str | Sequence[int] | None = None
    disable_by_batch_size: int | None = None
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 1
    early_exit_layers: int | None = None
    drafters: Sequence[str] = ()
    suffix_corpus: str | None = None
    suffix_cache: bool = True
    vocabulary: str = "auto"
    draft_vocabulary: int | None = None
    quantization: str | None = None
    verify: str = "coupled"
    allow_lossy: bool = False

    def __post_init__(self) -> None:
        self._normalise()
        _require_known("method", self.method, METHODS)
        _require_known("vocabulary", self.vocabulary, VOCABULARIES)
        if self.controller is not None:
            _require_known("controller", self.controller, CONTROLS)
        for name in ("allow_lossy", "suffix_cache"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: {getattr(self, name)!r} is not allowed; it must be True or False")
        rule_named(self.verify, allow_lossy=self.allow_lossy, argument="verify")
        self._require_numbers()
        self._require_drafters()
        self._require_rule_for_drafts()

    def _normalise(self) -> None:
        """What means the same is the same, and plain enough for JSON."""
        changed: dict[str, Any] = {}
        if self.tree is not None:
            changed["tree"] = "x".join(map(str, widths_of(self.tree)))
        if self.drafters is None or isinstance(self.drafters, str | bytes) or not isinstance(self.drafters, Sequence):
            raise ValueError(f"drafters: {self.drafters!r} is not allowed; give a list: ['suffix', 'draft_model']")
        changed["drafters"] = tuple(self.drafters)
        if self.method == "auto" and is_head(self.model):
            changed |= WITH_HEAD
        if isinstance(self.suffix_corpus, Path):
            changed["suffix_corpus"] = str(self.suffix_corpus)
        for name, value in changed.items():
            object.__setattr__(self, name, value)
        for name in ("model", "suffix_corpus"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise ValueError(f"{name}: {value!r} is not allowed; it must be a name, or None")
        if self.suffix_corpus is not None and not Path(self.suffix_corpus).is_dir():
            raise ValueError(f"suffix_corpus: there is no folder {self.suffix_corpus!r}")

    def _require_numbers(self) -> None:
        tokens = self.num_speculative_tokens
        if tokens is not None and not (isinstance(tokens, str) and tokens == "auto"):
            check_integer("num_speculative_tokens", tokens, lambda n: 0 <= n <= 1024, "in 0 .. 1024, or 'auto'")
        if isinstance(tokens, str) and self.controller == "fixed":
            raise ValueError("num_speculative_tokens: 'auto' is not allowed with controller 'fixed'; give a number")
        optional = ("disable_by_batch_size", "early_exit_layers", "draft_vocabulary")
        for name in optional:
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), lambda n: n >= 1, ">= 1, or None")
        check_integer("prompt_lookup_min", self.prompt_lookup_min, lambda n: n >= 1, ">= 1")
        check_integer(
            "prompt_lookup_max",
            self.prompt_lookup_max,
            lambda n: n >= self.prompt_lookup_min,
            f">= prompt_lookup_min ({self.prompt_lookup_min})",
        )
        levels = widths_of(self.tree)
        if isinstance(tokens, int) and len(levels) > tokens:
            raise ValueError(
                f"num_speculative_tokens: {tokens} is not allowed; it must be >= {len(levels)}, the levels of the tree"
            )

    def _require_drafters(self) -> None:
        """That what is given is used, and what is needed is there."""
        if (self.method == "combined") != bool(self.drafters):
            raise ValueError(f"drafters: {list(self.drafters)} with method {self.method!r}; they go with 'combined'")
        parts = self.parts
        for part in parts:
            _require_known("drafters", part, METHODS[1:6])
        if len(set(parts)) < len(parts):
            raise ValueError(f"drafters: {list(parts)} is not allowed; each may be there once")
        if {"draft_model", "eagle3"} <= set(parts):
            raise ValueError(
                f"drafters: {list(parts)} is not allowed; 'draft_model' and 'eagle3' each need the one `model`"
            )
        needs = (
            ("model", ("draft_model", "eagle3")),
            ("early_exit_layers", ("early_exit",)),
            ("suffix_corpus", ("suffix",)),
        )
        for name, users in needs:
            if getattr(self, name) is not None and not set(users) & set(parts):
                value = getattr(self, name)
                raise ValueError(
                    f"{name}: {value!r} is not used by method {self.method!r}; use {' or '.join(map(repr, users))}"
                )
        for name, users in needs[:2]:
            for part in set(users) & set(parts):
                if getattr(self, name) is None:
                    raise ValueError(f"{name}: None is not allowed; method {part!r} needs one")
        if self.quantization is not None:
            _require_known("quantization", self.quantization, QUANTIZATIONS)
        for name, usual, users in _USED_BY:
            if getattr(self, name) != usual and not set(users) & set(parts):
                value, who = getattr(self, name), " or ".join(map(repr, users))
                raise ValueError(f"{name}: {value!r} is not used by method {self.method!r}; it goes with {who}")

        grows = {"suffix", *_DRAWING} & set(parts)
        if self.tree is not None and (not grows or self.vocabulary in ("tli", "slem")):
            raise ValueError(f"tree: {self.tree!r} is not used by method {self.method!r}, which drafts chains at most")
        if self.method == "none" and self.controller is not None:
            raise ValueError(f"controller: {self.controller!r} is not used by method 'none'")

    # what follows from it

    @property
    def parts(self) -> tuple[str, ...]:
        """The drafters, in the order in which they are asked."""
        if self.method == "none":
            return ()
        if self.method == "auto":
            return ("suffix",) if self.model is None else ("suffix", "draft_model")
        if self.method != "combined":
            return (self.method,)
        return tuple(sorted(self.drafters, key=lambda part: part in _DRAWING))

    @property
    def control(self) -> str:
        if self.controller is not None:
            return self.controller
        if self.num_speculative_tokens == "auto":
            return "cost"
        return "cost" if self.num_speculative_tokens is None and self._free and self.tree is None else "fixed"

    @property
    def _free(self) -> bool:
        """Whether what is drafted leaves the text alone."""
        return self.verify == "coupled"

    @property
    def depth(self) -> int:
        """Most levels of a draft."""
        if self.method == "none":
            return 0
        if isinstance(self.num_speculative_tokens, int):
            return self.num_speculative_tokens
        if self.control == "cost":
            return max(_DEEPEST, len(widths_of(self.tree)))
        return len(widths_of(self.tree)) or _USUAL_DEPTH

    @property
    def widths(self) -> tuple[int, ...]:
        """Most children a node, by level."""
        if self.tree is not None:
            return widths_of(self.tree)
        return _USUAL_WIDTHS if self.control == "cost" and self.takes_trees else ()

    @property
    def takes_trees(self) -> bool:
        return NEEDS[self.verify].shape == "tree"

    @property
    def kind(self) -> Kind:
        """How a model draws: with the target's noise if the rule takes that, or with its own."""
        return Kind.COUPLED if NEEDS[self.verify].coupled else Kind.SAMPLED

    def _cannot(self, rule: str, depth: int) -> str | None:
        """Why `rule` could not verify what is drafted under it."""
        kind = Kind.CHOSEN
        if set(_DRAWING) & set(self.parts) and self.vocabulary != "slem":
            kind = Kind.COUPLED if NEEDS[rule].coupled else Kind.SAMPLED
        parents = full_tree(widths_of(self.tree), depth)
        return why_not(rule, parents, (kind,) * len(parents))

    def _require_rule_for_drafts(self) -> None:
        depth = self.depth
        if not depth or self._cannot(self.verify, depth) is None:
            return
        able = [rule for rule in RULES if self._cannot(rule, depth) is None]
        one = "" if self._cannot(self.verify, 1) or self.tree else ", or draft one token (num_speculative_tokens 1)"
        form = f"a chain of up to {depth} tokens" if self.tree is None else f"a tree, {self.tree}"
        raise ValueError(
            f"verify: {self.verify!r} takes {NEEDS[self.verify].takes}, but {self.method} drafts {form}; "
            f"use {', '.join(able)}{one}"
        )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SpeculativeConfig:
        """From a mapping, refusing keys that mean nothing. A model without a method is a draft model or, if it is the
        folder of one, a head, as in vLLM."""
        if not isinstance(given, Mapping):
            raise ValueError(f"speculative_config: {given!r} is not allowed; it must be a mapping, such as a dict")
        known = [f.name for f in fields(cls)]
        for key in given:
            if key not in known:
                raise ValueError(f"speculative_config: unknown key {key!r}; known are {', '.join(known)}")
        guessed: dict[str, Any] = {}
        if given.get("model") is not None:
            guessed["method"] = "eagle3" if is_head(given["model"]) else "draft_model"
        return cls(**(guessed | dict(given)))


def is_head(name: Any) -> bool:
    """Whether a name is the folder of a trained head, and not of a model."""
    if not isinstance(name, str | Path) or not name:
        return False
    try:
        config = json.loads((Path(name).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):
        return False
    return isinstance(config, dict) and "speculators_model_type" in config


def _require_known(name: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name}: {value!r} is unknown; known are {', '.join(known)}")


def widths_of(tree: str | Sequence[int] | None) -> tuple[int, ...]:
    """Children a node, level by level.

    >>> widths_of("4x2x1"), widths_of([3, 2]), widths_of(None)
    ((4, 2, 1), (3, 2), ())
    """
    if tree is None:
        return ()
    try:
        parts = tree.lower().split("x") if isinstance(tree, str) else list(tree)
        whole = isinstance(tree, str) or all(type(part) is int for part in parts)
        widths = tuple(int(part) for part in parts) if whole else ()
    except (TypeError, ValueError):
        widths = ()
    if not widths or min(widths) < 1 or len(full_tree(widths, len(widths))) > _LARGEST_TREE:
        raise ValueError(
            f"tree: {tree!r} is not allowed; give children a node, level by level, such as 4x2x1, "
            f"of at most {_LARGEST_TREE} nodes in all"
        )
    return widths


def full_tree(widths: Sequence[int], depth: int) -> tuple[int, ...]:
    """The parents of the whole tree, as far as some hundred nodes.

    >>> full_tree((2, 1), 3)
    (-1, -1, 0, 1, 2, 3)
    """
    parents: list[int] = []
    level = [-1]
    for i in range(depth):
        width = widths[i] if i < len(widths) else 1
        first = len(parents)
        parents += [node for node in level for _ in range(width)]
        level = list(range(first, len(parents)))
        if len(parents) > 2 * _LARGEST_TREE:
            break
    return tuple(parents)
