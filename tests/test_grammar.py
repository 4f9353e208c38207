"""Structured outputs: the mask by its definition, whatever was asked before; whole decodes; drafts that are cut."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from itertools import product

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftproof.audit.exact import LoopCase, deviation, emitted_law, fractions_row, target_law
from draftproof.audit.toys import Edited, chooser, chosen, coupled_grower, exact_table, grower, independent
from draftproof.base import ROOT, Context, Draft, Drafter, Kind, Row
from draftproof.chance import PhiloxChance
from draftproof.commit import Output
from draftproof.control import Fixed
from draftproof.drafters import Legal, ModelDrafter, NGramDrafter, NoDrafter
from draftproof.drafters.legal import cut
from draftproof.grammar import Grammar, Grammars
from draftproof.kernels.lazy import KernelChance, fused, raw_law_of
from draftproof.laws import total
from draftproof.loop import decode
from draftproof.models.table import TableTarget, hashed_logits
from draftproof.plan import Plan
from draftproof.processors import chain_of
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, StructuredOutputsParams, law_of
from draftproof.trees import path_to
from tests.folders import byte_tokenizer
from tests.toys import decode_in_company

EOS = "<eos>"
WORDS = ("a", "b", "c", "ab", "abc", "cc")
END, TOOL, WIDE = 6, 7, 9  # the end, another special token, and a model's padded vocabulary
BYTE_END = 256


def small(words: Sequence[str], special: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer of these words and an end: a word of several letters joins its beginning and its last."""
    vocab = {word: i for i, word in enumerate((*words, EOS))}
    merges = [(word[:-1], word[-1]) for word in words if len(word) > 1]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=EOS, additional_special_tokens=list(special))


LETTERS = Grammars(small(WORDS, ["<tool>"]), WIDE, frozenset({END}))
BYTES_TOKENIZER = byte_tokenizer()
BYTES = Grammars(BYTES_TOKENIZER, 257, frozenset({BYTE_END}))


def grammar_of(grammars: Grammars = LETTERS, prompt_length: int = 0, **form) -> Grammar:
    return grammars.of(StructuredOutputsParams(**form), prompt_length)


def allowed(grammar: Grammar, history: Sequence[int], size: int = WIDE) -> list[int]:
    """What a mask leaves, untouched."""
    row = np.arange(1, size + 1, dtype=np.float32)
    left = np.flatnonzero(np.isfinite(grammar.mask(row, history)))
    assert np.array_equal(row[left], left + 1)
    return left.tolist()


def encoded(text: str) -> list[int]:
    return BYTES_TOKENIZER(text).input_ids


# -- the mask


def by_definition(regex: str, letters: str, longest: int) -> Callable[[str, Sequence[str]], list[int]]:
    """(text, words) -> which words, and the end behind them, may follow; of texts that a few letters complete."""
    texts = ("".join(each) for size in range(longest + 1) for each in product(letters, repeat=size))
    language = {text for text in texts if re.fullmatch(regex, text)}
    beginnings = {text[:size] for text in language for size in range(len(text) + 1)}

    def follow(text: str, words: Sequence[str]) -> list[int]:
        return [i for i, word in enumerate(words) if text + word in beginnings] + [len(words)] * (text in language)

    return follow


@pytest.mark.parametrize("regex", ["ab(c)?", "[ab]*c", "(ab|cc?)+a?", "a{0,2}bc*", "(abc){1,2}", "(a|ab)(c|bcc)"])
def test_the_mask_is_what_its_definition_says(regex: str):
    grammar, follow = grammar_of(regex=regex), by_definition(regex, "abc", 9)
    paths: list[tuple[int, ...]] = [()]
    seen = 0
    while paths:
        path = paths.pop()
        text = "".join(WORDS[token] for token in path)
        left = allowed(grammar, path)
        assert left == follow(text, WORDS), text
        paths += [(*path, token) for token in left if token != END and len(text) < 3]
        seen += 1
    assert seen > 5


def test_no_other_special_token_is_text():
    assert allowed(grammar_of(regex="[ab<]*"), []) == [0, 1, 3, END]


def test_a_regex_is_read_as_python_reads_it():
    grammar = grammar_of(BYTES, regex=r"^\w\d/[/]\n$")
    assert allowed(grammar, encoded("é٣//\n"), 257) == [BYTE_END]


FORMS = {
    "regex": (LETTERS, WIDE, {"regex": "(ab|cc?)+a?"}),
    "choice": (LETTERS, WIDE, {"choice": ["ab", "abcc", "cab"]}),
    "lark": (LETTERS, WIDE, {"grammar": 'start: "a" start "b" | "c"'}),
    "lazy": (LETTERS, WIDE, {"grammar": 'start: head "c"\nhead[lazy]: /[abc]*b/'}),
    "json": (BYTES, 257, {"json": {"type": "object", "properties": {"a": {"type": "integer"}}}}),
    "json_object": (BYTES, 257, {"json_object": True}),
}


def outcome(grammar: Grammar, history: Sequence[int], width: int) -> list[int] | str:
    try:
        return allowed(grammar, history, width)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", FORMS)
def test_the_mask_is_a_function_of_the_history(name: str):
    """Walks, beginnings of them and spoilt ones, in any order, each as a new grammar has it."""
    grammars, width, form = FORMS[name]
    chance, histories = random.Random(3), []
    for _ in range(40):
        history = [5, 5]
        for _ in range(chance.randrange(12)):
            history.append(chance.choice(allowed(grammar_of(grammars, 2, **form), history, width)))
        spoilt = list(history)
        spoilt[chance.randrange(len(history))] = chance.randrange(width)
        histories += [history, history[: chance.randrange(1, len(history) + 1)], spoilt, [*spoilt, width - 1]]
    chance.shuffle(histories)
    asked = grammar_of(grammars, 2, **form)
    found = [outcome(asked, history, width) for history in histories]
    assert found == [outcome(grammar_of(grammars, 2, **form), history, width) for history in histories]
    refused = sum(isinstance(each, str) for each in found)
    assert 10 < refused < len(found) - 10


def test_rows_may_be_longer_or_shorter_than_the_vocabulary():
    grammar = grammar_of(regex="[abc]+")
    assert allowed(grammar, [0], 40) == [0, 1, 2, 3, 4, 5, END]
    assert allowed(grammar, [0], 4) == [0, 1, 2, 3]


def test_a_vocabulary_smaller_than_the_tokenizers():
    grammar = grammar_of(Grammars(small(WORDS), 4, frozenset({END})), regex="[abc]+")
    assert allowed(grammar, [0], 4) == [0, 1, 2, 3]


def test_rows_of_the_prompt_stay_as_they_are():
    grammar = grammar_of(regex="ab", prompt_length=3)
    assert allowed(grammar, [7, 7]) == list(range(WIDE))
    assert allowed(grammar, [7, 7, 7]) == [0, 3]


def test_the_end():
    """Every end id where the form may end, none elsewhere, nothing else behind it; an end id is no text."""
    grammar = grammar_of(Grammars(small(WORDS), WIDE, frozenset({5, END, 8})), regex="c{2,3}")
    assert allowed(grammar, []) == [2], "cc is an end here"
    assert allowed(grammar, [2, 2]) == [2, 5, END, 8]
    assert allowed(grammar, [2, 2, 2]) == [5, END, 8]
    for ended in ([5], [END], [8], [8, 5, 5]):
        assert allowed(grammar, [2, 2, *ended]) == [5, END, 8]
    with pytest.raises(ValueError, match=r"^structured_outputs: token 5 may not follow the first 1 of the answer$"):
        allowed(grammar, [2, 5])
    with pytest.raises(ValueError, match="token 2 may not follow"):
        allowed(grammar, [2, 2, 2, 2])
    with pytest.raises(ValueError, match="token 5 may not follow the first 2"):
        allowed(grammar, [2, 2, 5, 2])


def test_a_vocabulary_that_cannot_go_on_is_an_error_and_is_got_over():
    grammar = grammar_of(Grammars(small(["a"]), 2, frozenset({1})), regex="a(ab|a)?")
    assert allowed(grammar, [0], 2) == [0, 1]
    grammar = grammar_of(Grammars(small(["a"]), 2, frozenset({1})), regex="aab")
    for _ in range(2):
        assert allowed(grammar, [0], 2) == [0]
        with pytest.raises(ValueError, match=r"no token of the vocabulary leads on to a text of this form$"):
            allowed(grammar, [0, 0], 2)


CHOICES = ['say "é"\\\n\t', "\x00x", "/x/", '"i', "🙂", "a | b", "ab", "abc", "\u2028"]


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_is_said_as_it_stands(choice: str):
    grammar = grammar_of(BYTES, choice=CHOICES)
    text = encoded(choice)
    lefts = [allowed(grammar, text[:i], 257) for i in range(len(text) + 1)]
    assert all(token in left for token, left in zip(text, lefts[:-1], strict=True))
    complete = [len(encoded(other)) for other in CHOICES if choice.startswith(other)]
    assert [i for i, left in enumerate(lefts) if BYTE_END in left] == complete
    assert allowed(grammar, encoded("ab"), 257) == [*encoded("c"), BYTE_END]


# -- what is wrong


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"regex": "a(b"}, r"regex: 'a\(b' is not allowed; invalid regex .* unclosed group"),
        ({"regex": r"[^\s\S]"}, r"regex: .* no token of the vocabulary leads on to a text of this form"),
        ({"grammar": "start: foo"}, r"grammar: 'start: foo' is not allowed; at 1\(8\): unknown name: \"foo\""),
        ({"grammar": 'start: a "c"\na[max_tokens=2]: /b+/'}, "grammar: .* max_tokens= and stop= cannot be undone .*"),
        ({"grammar": 'start: a "c"\na[stop="b"]: /[ab]+/'}, "grammar: .* max_tokens= and stop= cannot be undone .*"),
        ({"grammar": "start: a\na[temperature=0.5]: /b+/"}, r"grammar: .* temperature= in a rule is not read; .*"),
        ({"json": "{"}, "json: '{' is not allowed; it must be JSON: .*"),
        ({"json": "[1]"}, r"json: '\[1\]' is not allowed; it must be a JSON schema, which is an object .*"),
        ({"json": {"a": {1}}}, "json: .* it must be JSON: Object of type set .*"),
        ({"json": {"type": "bogus"}}, "json: .* Invalid type: bogus"),
        ({"json": {"type": "string", "not": {}}}, r"json: .* Unimplemented keys: \[\"not\"\]"),
        ({"json": {"enum": []}}, "json: .* Unsatisfiable schema: .*"),
        ({"choice": ["\ud800"]}, "choice: .* is not allowed; .*"),
    ],
)
def test_a_form_that_makes_no_sense_is_named_in_one_line(form: dict, why: str):
    with pytest.raises(ValueError, match=f"^{why}$") as caught:
        grammar_of(BYTES, **form)
    assert len(str(caught.value).splitlines()) == 1


def test_a_long_value_is_not_repeated_whole():
    with pytest.raises(ValueError, match=r"characters\) is not allowed") as caught:
        grammar_of(regex="(" * 5000)
    assert len(str(caught.value).split(" is not allowed; ")[0]) < 100


@pytest.mark.parametrize("ends", [[], [END + 1]])
def test_a_model_without_an_end_has_no_forms(ends: list[int]):
    with pytest.raises(
        ValueError, match=rf"^structured_outputs: end ids {re.escape(str(ends))} are not in the tokenizer"
    ):
        grammar_of(Grammars(small(WORDS), WIDE, frozenset(ends)), regex="a")


class Slow:
    """A tokenizer of the old kind."""

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, EOS: 1}


def test_a_tokenizer_of_another_kind_is_named():
    with pytest.raises(ValueError, match=r"^structured_outputs: not with this model's tokenizer, a Slow; "):
        grammar_of(Grammars(Slow(), 2, frozenset({1})), regex="a")


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    grammars = Grammars(small(WORDS), WIDE, frozenset({END}))
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match=r"^structured_outputs: it needs the package llguidance; run: ") as caught:
        grammar_of(grammars, regex="a")
    assert "pip install 'draftproof[grammar]'" in str(caught.value)


def test_a_form_is_compiled_once(monkeypatch: pytest.MonkeyPatch):
    compiled, compile_ = [], Grammars._compile
    monkeypatch.setattr(Grammars, "_compile", lambda self, lark: compiled.append(lark) or compile_(self, lark))
    grammars = Grammars(small(WORDS), WIDE, frozenset({END}))
    first, second = (grammar_of(grammars, regex="ab*") for _ in range(2))
    assert allowed(first, [0, 1]) == allowed(second, [0, 1]) == [1, END]
    assert len(compiled) == 1
    assert allowed(grammar_of(grammars, regex="b"), []) == [1]


# -- drafts


def random_tree(chance: random.Random, grammar: Grammar, history: list[int], width: int) -> Draft:
    """Half of its nodes are allowed where they stand, if their parents are."""
    tokens, parents = [], []
    for i in range(chance.randrange(1, 9)):
        parents.append(chance.randrange(ROOT, i))
        path = [tokens[node] for node in path_to(parents, parents[-1])]
        right = outcome(grammar, [*history, *path], width)
        tokens.append(chance.randrange(width) if chance.random() < 0.5 or isinstance(right, str) else right[-1])
    n = len(tokens)
    return Draft(len(history), tuple(tokens), tuple(parents), (Kind.CHOSEN,) * n, ("",) * n, (), (-1,) * n)


@pytest.mark.parametrize("name", FORMS)
def test_a_node_is_legal_if_every_mask_on_its_path_lets_it_pass(name: str):
    grammars, width, form = FORMS[name]
    asked, chance, verdicts = grammar_of(grammars, 1, **form), random.Random(1), []
    for _ in range(60):
        history = [5]
        for _ in range(chance.randrange(4)):
            history.append(chance.choice(allowed(asked, history, width)))
        draft = random_tree(chance, asked, history, width)
        legal = asked.legal(history, draft)
        for node, verdict in enumerate(legal):
            path = [draft.tokens[each] for each in path_to(draft.parents, node)]
            fresh = grammar_of(grammars, 1, **form)
            whole = [outcome(fresh, [*history, *path[:i]], width) for i in range(len(path))]
            assert verdict == all(
                isinstance(left, list) and token in left for token, left in zip(path, whole, strict=True)
            )
        verdicts += legal
    assert 0.2 < np.mean(verdicts) < 0.8


def test_a_token_that_is_in_no_vocabulary_is_not_legal():
    grammar = grammar_of(regex="[abc]*")
    assert grammar.legal([0], Draft.chain(1, [1, 1000, 1])) == [True, False, False]
    assert grammar.legal([0], Draft.chain(1, [1, TOOL, 1])) == [True, False, False]


def test_a_cut_takes_what_hangs_below_and_nothing_that_was_sampled():
    q = [fractions_row(1, 1), fractions_row(1, 2), fractions_row(1, 3)]
    kinds = (Kind.SAMPLED, Kind.CHOSEN, Kind.SAMPLED, Kind.SAMPLED, Kind.CHOSEN, Kind.COUPLED)
    draft = Draft(
        4, (0, 1, 0, 1, 0, 1), (ROOT, ROOT, 1, 0, 0, 0), kinds, tuple("abcdef"), tuple(q), (0, -1, 1, 2, -1, -1)
    )
    assert cut(draft, [True] * 6) is draft
    left = cut(draft, [False, False, False, False, True, False])
    assert (left.root, left.tokens, left.parents) == (4, (0, 1, 0), (ROOT, 0, 0))
    assert (left.origin, left.kind) == (("a", "d", "e"), (Kind.SAMPLED, Kind.SAMPLED, Kind.CHOSEN))
    assert [left.law(node) for node in range(3)] == [q[0], q[2], None]
    assert len(left.rows) == 2, "a row that nobody was drawn from is not carried"


def test_the_state_of_a_wrapped_drafter_is_what_was_committed():
    grammar = grammar_of(regex="[ab]*", prompt_length=1)
    drafter = Legal(NGramDrafter(2, 1), grammar.legal)
    one, other, third = (drafter.open(Context(law_of(SamplingParams()), WIDE, 20)) for _ in range(3))
    for tokens in ([0, 1, 0], [1], [0, 1]):
        drafter.commit([one], [tokens])
        drafter.propose([one], [Plan(3)], [PhiloxChance(0)])
    drafter.commit([other], [[0, 1, 0, 1, 0, 1]])
    drafter.commit([third], [[0, 1, 0, 1, 0, 0]])
    assert one == other
    assert one != third


# -- whole decodes

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-c]{1,4}$"},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["x", "yy"]}, "maxItems": 2},
    },
    "required": ["name", "n", "tags"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
PROMPT = encoded('{"name":"abc","n":5,"tags":["x","zz"]} {"name":"cab","nn":17} {"n":420,"tags":["yy"],"name":"d"}:')
MODEL = hashed_logits(257)


def valid(text: str) -> bool:
    read = json.loads(text)
    return (
        set(read) == {"name", "n", "tags"}
        and re.fullmatch("[a-c]{1,4}", read["name"]) is not None
        and type(read["n"]) is int
        and 0 <= read["n"] <= 99
        and len(read["tags"]) <= 2
        and set(read["tags"]) <= {"x", "yy"}
    )


def said(seed: int, wrap: Callable[[Grammar], Drafter], temperature: float = 1.0, how: str | None = None):
    """One decode under the schema: output and rounds. how: by the kernels, or by the engine."""
    form = StructuredOutputsParams(json=SCHEMA)
    params = SamplingParams(max_tokens=200, temperature=temperature, structured_outputs=form)
    grammar, ends = BYTES.of(form, len(PROMPT)), frozenset({BYTE_END})
    chain = chain_of(params, prompt_length=len(PROMPT), vocab_size=257, end_ids=ends, mask=grammar.mask)
    output = Output(params, params.max_tokens, ends)
    fast = how == "kernels"
    run = partial(decode_in_company, check=True) if how == "engine" else decode
    steps = run(
        PROMPT,
        output,
        target=TableTarget(MODEL, 257),
        drafter=wrap(grammar),
        controller=Fixed(4),
        rule=fused("coupled", params) if fast else RULES["coupled"],
        law=(raw_law_of if fast else law_of)(params, chain),
        chance=(KernelChance if fast else PhiloxChance)(seed),
    )
    return output, list(steps)


def plain(grammar: Grammar) -> Drafter:
    return NoDrafter()


def unwrapped(grammar: Grammar) -> Drafter:
    return NGramDrafter(3, 1)


def wrapped(grammar: Grammar) -> Drafter:
    return Legal(NGramDrafter(3, 1), grammar.legal)


@pytest.mark.usefixtures("unchecked")  # the checks look at rows that no rule asks for
def test_every_answer_has_the_form_and_drafts_change_none():
    accepted = rows = rows_uncut = 0
    for seed in range(12):
        output, steps = said(seed, plain, temperature=seed % 3)
        assert output.finish_reason == "stop"
        assert valid(str(BYTES_TOKENIZER.decode(output.token_ids[:-1])))
        drafted, its_steps = said(seed, wrapped, temperature=seed % 3)
        uncut, uncut_steps = said(seed, unwrapped, temperature=seed % 3)
        assert drafted.token_ids == uncut.token_ids == output.token_ids
        accepted += sum(step.accepted for step in its_steps)
        rows += sum(len(step.draft) for step in its_steps)
        rows_uncut += sum(len(step.draft) for step in uncut_steps)
        assert len(its_steps) == len(uncut_steps) < len(steps)
        for step in its_steps:
            text = drafted.token_ids[: step.draft.root - len(PROMPT)]
            fresh = grammar_of(BYTES, 0, json=SCHEMA)
            assert all(
                token in allowed(fresh, [*text, *step.draft.tokens[:i]], 257)
                for i, token in enumerate(step.draft.tokens)
            )
    assert accepted > 50
    assert rows < 0.8 * rows_uncut


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("how", ["kernels", "engine"])
def test_it_is_the_same_by(how: str):
    """Also when a draft leads beyond what the grammar allows, where a row has no law. The engine compares the wrapped
    drafter's state with a replay, and its mates ask the same grammar about other texts."""
    for seed in range(3):
        output, _ = said(seed, plain)
        for wrap in (wrapped, unwrapped):
            assert said(seed, wrap, how=how)[0].token_ids == output.token_ids


# -- exactly

TWO = ("a", "b", "ab")
PAIR = Grammars(small(TWO), 4, frozenset({3}))
P, Q = exact_table(4, "form p"), exact_table(4, "form q")


def restricted(left: Callable[[Sequence[int]], Sequence[int]]):
    """The table's law on what is left, normalised."""

    def law(row: Row, history: Sequence[int]) -> Row:
        keep = left(history)
        masked = np.array([mass if token in keep else Fraction(0) for token, mass in enumerate(row)], dtype=object)
        return masked / total(masked)

    return law


def exact_case(regex: str, rule: str, drafter: Callable[[], Drafter], wrapped: bool, depth: int) -> LoopCase:
    def left(history: Sequence[int]) -> list[int]:
        return allowed(grammar, history, 4)

    def wrap() -> Drafter:
        return Legal(drafter(), grammar.legal) if wrapped else drafter()

    grammar = grammar_of(PAIR, 1, regex=regex)
    ends = frozenset({3})
    law = restricted(left)
    return LoopCase(P, lambda: TableTarget(P, 4), wrap, Fixed(depth), RULES[rule], (0,), 3, ends, law=law)


def liked(history: Sequence[int]) -> int:
    """What a drafter that knows no grammar guesses."""
    return int(np.argmax(Q(history)))


TREE, LEVEL = (lambda root: (-1, -1, 0)), (lambda root: (-1, -1))
DRAWN = {
    "coupled chain": ("coupled", lambda: chooser(liked), 2),
    "coupled tree": ("coupled", lambda: coupled_grower(Q, TREE), 2),
    "token": ("token", lambda: chooser(liked), 2),
    "block": ("block", lambda: chooser(liked), 2),
    "recursive": ("recursive", lambda: grower(Q, TREE, [chosen]), 2),
    "traversal": ("traversal", lambda: grower(Q, TREE, [chosen]), 2),
    "sampled": ("recursive", lambda: grower(Q, LEVEL, [independent]), 1),  # of a law that knows no grammar
    "chosen, then sampled": ("recursive", lambda: grower(Q, TREE, [chosen, independent]), 2),
    "model": ("token", lambda: ModelDrafter(TableTarget(Q, 4), Kind.SAMPLED), 2),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("regex", ["ab?(ab)?", "(b|ab)+"])
@pytest.mark.parametrize("name", DRAWN)
def test_the_law_is_the_models_on_what_the_grammar_allows(name: str, regex: str):
    """With illegal drafts cut and with all of them scored."""
    rule, drafter, depth = DRAWN[name]
    follow = by_definition(regex, "ab", 8)
    plain = exact_case(regex, rule, NoDrafter, False, 0)
    by_hand = restricted(lambda history: follow("".join(TWO[token] for token in history[1:]), TWO))
    known = target_law(LoopCase(P, plain.target, NoDrafter, Fixed(0), plain.rule, (0,), 3, plain.end_ids, law=by_hand))
    assert len(known) > 4
    assert sum(known.values()) == 1
    for cutting in (False, True):
        assert deviation(emitted_law(exact_case(regex, rule, drafter, cutting, depth)), known) == 0
    assert deviation(emitted_law(plain), known) == 0


@pytest.mark.usefixtures("unchecked")
def test_cutting_a_sampled_token_would_show():
    """The fault that Legal is careful about, made by hand."""
    regex, (rule, drafter, depth) = "(b|ab)+", DRAWN["sampled"]
    grammar = grammar_of(PAIR, 1, regex=regex)
    known = emitted_law(exact_case(regex, rule, NoDrafter, False, 0))

    def first_legal(draft: Draft) -> Draft:
        n = len(draft)
        as_chosen = Draft(draft.root, draft.tokens, draft.parents, (Kind.CHOSEN,) * n, draft.origin, (), (-1,) * n)
        if draft.root > 1 or all(grammar.legal([0], as_chosen)):
            return draft
        return Draft(draft.root)  # "the guess was not allowed, so do not ask"

    faulty = exact_case(regex, rule, lambda: Edited(drafter(), first_legal), False, depth)
    assert deviation(emitted_law(faulty), known) > 0


def test_json_has_bounded_white_space_unless_the_schema_says_otherwise():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    many, few = "{" + " " * 25 + '"a":1}', '{\n  "a": 1}'
    forms = Grammars(BYTES_TOKENIZER, 257, frozenset({256}))
    ids = {text: BYTES_TOKENIZER(text, add_special_tokens=False).input_ids for text in (many, few)}
    bounded, free = (
        forms.of(StructuredOutputsParams(json=each), 0)
        for each in (schema, schema | {"x-guidance": {"lenient": False}})
    )
    assert all(bounded.legal([], Draft.chain(0, ids[few])))
    assert not all(bounded.legal([], Draft.chain(0, ids[many])))
    assert all(free.legal([], Draft.chain(0, ids[many])))
