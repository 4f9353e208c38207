"""From a request's parameters to what the loop and the engine run: its chain of processors and its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .base import Chance, Draft, Drafter, Keeper, Rule, Verdict, Watch
from .commit import Output
from .drafters import CombinedDrafter, Legal
from .grammar import Grammar
from .logprobs import note_of
from .models.looped import looped
from .processors import Change, chain_of
from .sampling import Adjust, SamplingParams
from .text import IncrementalText

_BEFORE = 6  # tokens of the prompt behind which the answer's first ones are decoded


@dataclass(frozen=True, slots=True)
class Known:
    """What of a model a request's parts are made from. end_ids: those that end its answers."""

    tokenizer: Any
    vocab_size: int
    end_ids: frozenset[int]
    _spelled: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)

    def spellings(self, word: str) -> list[tuple[int, ...]]:
        """As below, each word looked up once."""
        if word not in self._spelled:
            self._spelled[word] = spellings(word, self.tokenizer)
        return self._spelled[word]


def chain_for(params: SamplingParams, prompt: Sequence[int], known: Known, mask: Change | None = None) -> Adjust | None:
    """mask: of params.structured_outputs."""
    return chain_of(
        params,
        prompt_length=len(prompt),
        vocab_size=known.vocab_size,
        end_ids=known.end_ids,
        bad_words=[ids for word in params.bad_words for ids in known.spellings(word)],
        mask=mask,
        looped=[looped(processor) for processor in params.logits_processors],
    )


def drafter_under(grammar: Grammar | None, drafter: Drafter) -> Drafter:
    """The drafter of a request whose answer has a form; one that runs a model draws under the form anyway."""
    if grammar is None:
        return drafter
    if isinstance(drafter, CombinedDrafter):
        return drafter.each(lambda part: drafter_under(grammar, part))
    return drafter if isinstance(drafter, Keeper) else Legal(drafter, grammar.legal)


def watched(rule: Rule, watch: Watch) -> Rule:
    """The rule, and somebody who looks on."""

    def judged(draft: Draft, rows: Sequence[Any], chance: Chance) -> Verdict:
        verdict = rule(draft, rows, chance)
        watch(draft, rows, verdict)
        return verdict

    return judged


def output_for(params: SamplingParams, prompt: Sequence[int], limit: int, known: Known) -> Output:
    tokenizer = known.tokenizer

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def decode_one(token: int) -> str:
        return tokenizer.decode([token], clean_up_tokenization_spaces=False)

    told = [
        None if count is None else note_of(count, params.logprobs_mode, decode_one)
        for count in (params.logprobs, params.prompt_logprobs)
    ]
    return Output(
        params,
        limit,
        frozenset() if params.ignore_eos else known.end_ids,
        IncrementalText(decode, before=prompt[-_BEFORE:]),
        note=told[0],
        prompt_note=told[1],
    )


def spellings(word: str, tokenizer: Any) -> list[tuple[int, ...]]:
    """A word as tokens: as it is, as it begins a text, and as it begins a word within one. Other ways to spell it are
    not found."""
    bare = word.lstrip()
    found = []
    for text in (word, bare, f" {bare}") if bare else (word,):
        ids = tuple(tokenizer(text, add_special_tokens=False).input_ids)
        if ids and ids not in found:
            found.append(ids)
    if not found:
        raise ValueError(f"bad_words: {word!r} makes no tokens; give some text")
    return found
