"""Draft models of another tokenizer: what is shared, how a text is told again, and that nothing of it changes a law."""

# ruff: noqa: N802  (the T is part of a case's name)

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof import vocabularies
from draftproof.audit.cases import checked
from draftproof.audit.exact import LoopCase, deviation, emitted_law, target_law
from draftproof.audit.toys import Eager, Moody, exact_table, up_to
from draftproof.base import Context, Draft, Keeper, Kind, Row, Step
from draftproof.chance import PhiloxChance
from draftproof.commit import Output
from draftproof.control import Fixed
from draftproof.drafters import ModelDrafter
from draftproof.drafters.vocabulary import RetokenisedDrafter, TranslatedDrafter
from draftproof.engine import Engine, EngineConfig
from draftproof.kernels.lazy import KernelChance, fused, raw_law_of
from draftproof.memory import KVMemory
from draftproof.models.table import TableTarget, hashed_logits
from draftproof.plan import Plan
from draftproof.rules import RULES
from draftproof.sampling import SamplingParams, law_of
from draftproof.seats import Request
from draftproof.vocabularies import (
    Pairing,
    Retold,
    Speller,
    Tokens,
    relation,
    restrict_law,
    restrict_logits,
    sure,
    unnamed,
    with_ends,
)
from tests import toys
from tests.toys import decoded, kind_for, reference

ALL = 1 << 30  # every earlier token matters, so a wrong cache shows
LAW = law_of(SamplingParams())


class Pieces:
    """A tokenizer of given pieces of bytes; the longest that fits comes first, and bytes without a piece are lost.

    It is a function of the whole text, as real ones are: pieces that end in a space or a letter merge across any seam.
    """

    def __init__(self, *pieces: str | bytes) -> None:
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.ids = {piece: i for i, piece in enumerate(self.pieces)}
        self.longest = max(map(len, self.pieces))

    @property
    def vocab(self) -> dict[str, int]:
        return {piece.decode("latin-1"): i for piece, i in self.ids.items()}

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.pieces[i] for i in ids if i < len(self.pieces)).decode(errors="replace")

    def encode(self, text: str) -> list[int]:
        left, out = text.encode(), []
        while left:
            size = next((n for n in range(self.longest, 0, -1) if left[:n] in self.ids), 0)
            out += [self.ids[left[:size]]] if size else []
            left = left[max(size, 1) :]
        return out


CHARACTERS = list(dict.fromkeys("漢字🤷🏽\u200d♀\ufe0fé\u0301 .!abcdeghlnortw"))
SPLIT = [bytes([byte]) for byte in sorted(set("漢🤷".encode()))]  # some characters come in pieces
WORDS = Pieces(
    *("the", " the", " water", " wa", "ter", "lo", "hello", " 漢字", "字", "🏽\u200d", "e\u0301", ". ", "é"),
    *("a", "b", "c", "d", "e", "g", "h", "l", "n", "o", "r", "t", "w", " ", ".", "!", "♀\ufe0f"),
    *SPLIT,
)
LETTERS = Pieces(*CHARACTERS[::-1])
HALVES = Pieces(
    *SPLIT, "a", "b", " ", " the", "the", "wa", " wa", "t", "er", "字", "🏽", "\u200d", "hell", "o", "lo", "l"
)
VW, VL, VH = len(WORDS.pieces), len(LETTERS.pieces), len(HALVES.pieces)
TEXT = st.lists(st.integers(0, VW - 1), min_size=1, max_size=60)


def paired(target: Pieces, draft: Pieces, method: str | None = None, more: int = 0) -> Pairing:
    return relation(target.vocab, draft.vocab, len(target.pieces), len(draft.pieces) + more, method=method)


def translated(draft: Pieces = HALVES, kind: Kind = Kind.SAMPLED, size: int | None = None, **options):
    size = size or len(draft.pieces) + 1
    model = options.pop("model", None) or TableTarget(hashed_logits(size, order=ALL, salt=2), size)
    return TranslatedDrafter(model, kind, paired(WORDS, draft, more=1).to_target, WORDS, draft, **options)


def retokenised(draft: Pieces = LETTERS, **options) -> RetokenisedDrafter:
    size = len(draft.pieces) + 1
    model = options.pop("model", None) or TableTarget(hashed_logits(size, order=ALL, salt=2), size)
    return RetokenisedDrafter(model, WORDS, draft, **{"unnamed": unnamed(draft.vocab, size)} | options)


DRAFTERS: dict[str, Callable] = {
    "translated": translated,
    "translated, coupled": partial(translated, kind=Kind.COUPLED),
    "translated, with a beginning": partial(translated, bos=VH),
    "retokenised": retokenised,
    "retokenised halves": lambda **options: retokenised(HALVES, **options),
    "retokenised, with a beginning": partial(retokenised, bos=VL),
}


def opened(drafter, *commits: Sequence[int], capacity: int = 300):
    session = drafter.open(Context(LAW, VW, capacity))
    for tokens in commits:
        drafter.commit([session], [tokens])
    return session


def proposed(drafter, session, depth: int, seed: int = 0) -> Draft:
    [draft] = drafter.propose([session], [Plan(depth)], [PhiloxChance(seed)])
    return draft


@pytest.mark.parametrize("name", DRAFTERS)
def test_what_it_has_yet_to_read_is_counted_in_the_targets_tokens(name: str):
    """However many those are in its own: read once, they are not asked to be paid for again."""
    drafter = DRAFTERS[name]()
    text = [i % VW for i in range(30)]
    session = opened(drafter, text)
    assert drafter.unread(session) == {"model": 30}
    proposed(drafter, session, 2)
    assert drafter.unread(session) == {"model": 0}
    drafter.commit([session], [[1, 2, 3]])
    assert drafter.unread(session) == {"model": 3}
    late = opened(drafter, text)
    drafter.adopt(late, drafter.keep(session), 20)
    assert drafter.unread(late) == {"model": 10}
    drafter.close(session)
    assert drafter.unread(session) == {"model": 33}


def plain(draft: Draft) -> tuple:
    return (
        replace(draft, rows=()) if not draft.rows else (draft.tokens, [np.asarray(row).tolist() for row in draft.rows])
    )


# -- two vocabularies


def named(*names: str, first: int = 0) -> dict[str, int]:
    return {name: first + i for i, name in enumerate(names)}


def test_the_same_vocabulary_may_be_padded_and_lack_added_tokens():
    names = [f"t{i}" for i in range(60)]
    for ours, theirs in ((names, names), (names, [*names, "<end>"]), ([*names, "<end>"], names)):
        found = relation(named(*ours), named(*theirs), 64, 61)
        assert found.method == "same"
        assert found.to_target[:60].tolist() == list(range(60))
    assert found.why == "same: 60 tokens are shared, of the target's 61 and the draft's 60"


def test_an_id_with_two_meanings_is_not_the_same_vocabulary():
    found = relation(named("a", "b", "<end>"), named("a", "b", "<pad>"), 3, 3)
    assert (found.method, found.to_target.tolist(), found.shared) == ("tli", [0, 1, -1], 2)
    assert relation(named("a", "b", "c"), named("a", "c"), 3, 2).method == "tli"


def test_half_of_either_vocabulary_is_enough_to_draft_in():
    ours = named("a", "b", "c", "d")
    assert relation(ours, named("d", "x", "a"), 4, 3).method == "tli"
    assert relation(ours, named("d", "x", "a", "y", "z"), 4, 5).method == "slem"
    assert relation(ours, named("d"), 4, 1).method == "slem"
    found = relation(ours, named("d", "x", "y"), 4, 9)
    assert (found.method, found.why) == ("slem", "slem: 1 tokens are shared, of the target's 4 and the draft's 3")
    forced = relation(ours, named("d", "x", "y"), 4, 9, method="tli")
    assert (forced.method, forced.to_target.tolist()) == ("tli", [3, *[-1] * 8])
    assert "as asked, instead of slem" in forced.why


@pytest.mark.parametrize(
    ("theirs", "method", "named_in"),
    [
        (named("x", "y"), "tli", "share no token"),
        (named("b", "x"), "same", "ids mean other"),
        (named("a"), "best", "unknown"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(theirs: dict[str, int], method: str, named_in: str):
    with pytest.raises(ValueError, match=named_in):
        relation(named("a", "b", "c"), theirs, 3, 2, method=method)
    with pytest.raises(ValueError, match="empty"):
        relation(named("a"), {}, 3, 2)


def test_control_tokens_are_shared_by_name_only_if_the_vocabularies_are_the_same():
    ours, theirs = named("a", "b", "<end>"), named("<end>", "a", "b", "x")
    assert relation(ours, theirs, 3, 4).to_target.tolist() == [2, 0, 1, -1]
    found = relation(ours, theirs, 3, 4, control=[0])
    assert found.to_target.tolist() == [-1, 0, 1, -1]
    assert with_ends(found.to_target, {0: 2}).tolist() == [2, 0, 1, -1]
    assert with_ends(found.to_target, {3: 1}).tolist() == [-1, 0, -1, 1], "no two ids for one token"
    assert relation(ours, ours, 3, 3, control=[2]).shared == 3
    assert unnamed(theirs, 6) == {4, 5}


def test_between_spellings_only_ascii_is_shared():
    """é is a byte in one and a letter in the other."""
    ours = named("Ġ", "Ġwater", "a", "é", "Ċ", "ĠĠ")
    theirs = named("▁water", "é", "a", "▁", "▁été", "▁▁", first=3)
    found = relation(ours, theirs, 6, 9)
    assert found.to_target.tolist() == [-1, -1, -1, 1, -1, 2, 0, -1, 5]
    assert "between SentencePiece and byte-level tokens only ASCII can be" in found.why


@given(st.permutations(range(5)), st.integers(0, 3))
def test_a_restricted_row_has_what_is_shared_and_nothing_else(ids: list[int], shared: int):
    to_target = np.array([i if i < shared else -1 for i in ids])
    logits, law = np.arange(6, dtype=np.float32), np.array([Fraction(i + 1, 21) for i in range(6)])
    if not shared:
        for restrict, row in ((restrict_logits, logits), (restrict_law, law)):
            with pytest.raises(ValueError, match="no shared token"):
                restrict(row, to_target, 4)
        return
    row, exact = restrict_logits(logits, to_target, 4), restrict_law(law, to_target, 4)
    assert [x for x in range(4) if row[x] > -np.inf] == [x for x in range(4) if exact[x] > 0] == list(range(shared))
    assert exact.sum() == 1
    for x in range(shared):
        assert row[x] == logits[ids.index(x)]
        assert exact[x] / exact[0] == law[ids.index(x)] / law[ids.index(0)]


# -- one text, told again


def test_an_unfinished_character_is_held_back():
    assert sure("a漢\ufffd\ufffd") == "a漢"
    held = WORDS.ids["漢".encode()[:1]]
    told = Retold(WORDS, LETTERS, tokens=[WORDS.ids[b"a"], held])
    assert told.tell() == (LETTERS.encode("a"), 1)
    told.tokens += WORDS.encode("漢")[1:]
    assert told.tell() == (LETTERS.encode("a漢"), 4)


@pytest.fixture
def short_steps(monkeypatch):
    """Settle a text every few tokens, so that short ones have much that is settled."""
    monkeypatch.setattr(vocabularies, "_STEP", 4)


@pytest.mark.usefixtures("short_steps")
@given(text=TEXT, cuts=st.lists(st.integers(0, 60), max_size=6))
def test_a_text_is_told_alike_in_whatever_pieces_it_came(text: list[int], cuts: list[int]):
    for sink, bos in ((LETTERS, VL), (HALVES, None)):
        whole = Retold(WORDS, sink, bos, list(text))
        pieces = Retold(WORDS, sink, bos)
        for begin, end in pairwise(sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})):
            pieces.tokens += text[begin:end]
            pieces.tell()
        assert pieces.tell() == whole.tell()
        assert pieces == whole
        assert len(text) - whole.cut < 8


@pytest.mark.usefixtures("short_steps")
@given(st.lists(st.sampled_from(["hello ", "the water", " 漢字", "🤷🏽\u200d♀\ufe0f", "e\u0301", "lo. "]), max_size=30))
def test_a_settled_text_is_the_whole_one(words: list[str]):
    text = "".join(words)
    told = Retold(WORDS, LETTERS, VL, WORDS.encode(text))
    ids, end = told.tell()
    assert end == len(told.tokens)
    assert ids == [VL, *LETTERS.encode(text)]


def test_a_long_text_is_not_told_again():
    told_of: list[int] = []

    class Counting(Pieces):
        def encode(self, text: str) -> list[int]:
            told_of.append(len(text))
            return super().encode(text)

    told = Retold(WORDS, Counting(*CHARACTERS), tokens=WORDS.encode("hello the water. " * 1000))
    told.tell()
    told_of.clear()
    told.tokens += WORDS.encode("hello")
    told.tell()
    assert sum(told_of) < 500


class Metaspace:
    """As SentencePiece does: a space before every text, dropped again when it is read."""

    words = ("▁hello", "▁wa", "ter", "▁", "\n", "a")

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        left, out = "▁" + text.replace(" ", "▁"), []
        while left:
            size = next(n for n in range(len(left), 0, -1) if left[:n] in self.words)
            out.append(self.words.index(left[:size]))
            left = left[size:]
        return out

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert not skip_special_tokens
        assert not clean_up_tokenization_spaces
        return "".join(self.words[i] for i in ids).replace("▁", " ").removeprefix(" ")


def test_a_tokenizer_that_begins_with_a_space_is_read_as_in_the_middle_of_a_text():
    speller = Speller(Metaspace(), without=[5])
    assert isinstance(speller, Tokens)
    for text, ids in ((" hello", [0]), ("ter", [2]), (" water", [1, 2]), ("", []), ("\n hello", [4, 0])):
        assert speller.encode(text) == ids
        assert speller.decode(ids) == text
    assert speller.decode([5, 0, 5]) == " hello"


# -- the drafters


def test_they_are_keepers():
    assert all(isinstance(make(), Keeper) for make in DRAFTERS.values())


@pytest.mark.usefixtures("short_steps")
@pytest.mark.parametrize("name", DRAFTERS)
@settings(max_examples=50)
@given(text=TEXT, depth=st.integers(0, 4), cuts=st.lists(st.integers(0, 60), max_size=5), tried=st.integers(0, 4))
def test_state_is_a_replay_of_what_was_committed(name: str, text: list[int], depth: int, cuts: list[int], tried: int):
    """Committed at once, or in pieces with drafts in between, or begun with what another computed: the same draft."""
    drafter = DRAFTERS[name]()
    known = proposed(drafter, opened(drafter, text), depth)
    session = opened(drafter)
    for begin, end in pairwise(sorted({min(cut, len(text)) for cut in cuts if cut > 0} | {0, len(text)})):
        drafter.commit([session], [text[begin:end]])
        proposed(drafter, session, tried, end)
        assert drafter.check(session, text[:end]) is None
    assert plain(proposed(drafter, session, depth)) == plain(known)
    kept = drafter.keep(session)
    late = opened(drafter, text)
    drafter.adopt(late, kept, len(text) - 1)
    assert drafter.check(late, text) is None
    assert plain(proposed(drafter, late, depth)) == plain(known)
    assert len(known) <= depth
    assert known.root == len(text)
    assert all(0 <= token < VW for token in known.tokens)


@pytest.mark.parametrize("name", DRAFTERS)
def test_sessions_do_not_see_each_other(name: str):
    drafter = DRAFTERS[name]()
    texts = [WORDS.encode("hello the wa"), WORDS.encode("漢字")[:2], WORDS.encode("a")]
    sessions = [opened(drafter, text) for text in texts]
    plans, chances = [Plan(3), Plan(2), Plan(0)], [PhiloxChance(seed) for seed in range(3)]
    together = drafter.propose(sessions, plans, chances)
    for seed, (text, plan, draft) in enumerate(zip(texts, plans, together, strict=True)):
        assert plain(proposed(drafter, opened(drafter, text), plan.depth, seed)) == plain(draft)


def test_a_translated_draft_carries_the_law_it_was_drawn_from():
    drafter = translated()
    text = WORDS.encode("hello the wa")
    draft = proposed(drafter, opened(drafter, text), 3)
    shared = paired(WORDS, HALVES).to_target
    ids = HALVES.encode("hello the wa")
    for node, token in enumerate(draft.tokens):
        logits = hashed_logits(VH + 1, order=ALL, salt=2)(ids)
        row = LAW(restrict_logits(logits, shared, VW), [])
        assert np.array_equal(draft.law(node), row)
        assert draft.confidence[node] == row[token] > 0
        ids.append(int(np.flatnonzero(shared == token)[0]))
    assert draft.kind == (Kind.SAMPLED,) * 3
    with pytest.raises(ValueError, match="kind"):
        translated(kind=Kind.CHOSEN)


def saying(draft: Pieces, text: str, then: int | None = None) -> TableTarget:
    """A draft model that writes `text` after anything it is asked first, then `then`."""
    size, first = len(draft.pieces) + 2, []
    ids = [*draft.encode(text), *([] if then is None else [then])]

    def row(history: Sequence[int]) -> np.ndarray:
        first[:] = first or [len(history)]
        said = len(history) - first[0]
        return (np.arange(size) == (ids[said] if said < len(ids) else size - 1)).astype(np.float32)

    return TableTarget(row, size)


STOPS = {"unnamed": (), "control": (VL, VL + 1)}


@pytest.mark.parametrize(
    ("text", "says", "found"),
    [
        ("hello", " the water", [" the", " water"]),
        ("hello", " 漢字!", [" 漢字", "!"]),
        ("", "hello", ["hello"]),
        ("hel", "lo", ["lo"]),  # the two would merge: the draft alone
        (" wa", "ter a", ["ter", " ", "a"]),
        ("a 🤷", "🏽\u200d♀\ufe0f", ["🏽\u200d", "♀\ufe0f"]),
        ("e", "\u0301a", []),  # no token of the target's begins with it
    ],
)
def test_what_the_draft_writes_is_offered_in_the_targets_tokens(text: str, says: str, found: list[str]):
    tokens = WORDS.encode("a. ") + WORDS.encode(text)
    drafter = retokenised(model=saying(LETTERS, says), stretch=20, **STOPS)
    draft = proposed(drafter, opened(drafter, tokens), 5)
    got = [WORDS.pieces[token].decode() for token in draft.tokens]
    assert got == found or (not found and "\u0301" not in "".join(got))
    assert set(draft.kind) <= {Kind.CHOSEN}
    assert not draft.confidence


def test_a_character_that_the_text_leaves_unfinished_is_finished():
    tokens = WORDS.encode("a 漢")[:-1]
    drafter = retokenised(model=saying(LETTERS, "漢字"), stretch=20, **STOPS)
    assert proposed(drafter, opened(drafter, tokens), 3).tokens == tuple(WORDS.encode("漢")[-1:] + WORDS.encode("字"))
    halves = translated(model=saying(HALVES, "漢"))  # its draft model is fed the bytes that both have
    assert proposed(halves, opened(halves, tokens), 3).tokens[0] in paired(WORDS, HALVES).to_target


def test_a_control_token_is_no_text_and_an_end_is_one_only_if_it_is_given():
    drafter = partial(retokenised, stretch=20, **STOPS)
    text, end = WORDS.encode("a hello "), WORDS.ids[b"!"]
    for ends, tokens in (({}, WORDS.encode("hello")), ({VL: end}, [*WORDS.encode("hello"), end])):
        made = drafter(model=saying(LETTERS, "hello", VL), ends=ends)
        assert proposed(made, opened(made, text), 4).tokens == tuple(tokens)
    size = VH + 1
    model = TableTarget(lambda history: np.where(np.arange(size) == VH, 9, 0).astype(np.float32), size)
    made = translated(model=model, ends={VH: end})
    assert end in proposed(made, opened(made, text), 4).tokens
    made = translated(model=model)
    assert set(proposed(made, opened(made, text), 4).tokens) <= set(paired(WORDS, HALVES).to_target)


def test_a_text_that_outgrows_the_draft_model_is_not_drafted_for():
    for model in (TableTarget(hashed_logits(VL + 1), VL + 1, max_context=40), None):
        drafter = retokenised(model=model, stretch=1)
        session = opened(drafter)
        for _ in range(30):
            drafter.commit([session], [WORDS.encode("hello the water")])
            draft = proposed(drafter, session, 3)
        assert not draft.tokens
        assert drafter.check(session, session.text.tokens) is None


def test_a_draft_model_is_asked_for_no_token_that_the_request_forbids_or_forces():
    """No shared token allowed: no draft. A token forced that is not shared: it ends the draft."""
    lone = next(x for x in range(VW) if x not in paired(WORDS, HALVES).to_target)

    def only(row: Row, history: Sequence[int], bias: float) -> Row:
        out = np.full(VW, -np.inf, np.float32)
        out[lone] = bias if bias else row[lone]
        return LAW(out, history)

    for bias, tokens in ((0.0, ()), (1.0, (lone,))):
        drafter = translated()
        session = drafter.open(Context(partial(only, bias=bias), VW, 50))
        drafter.commit([session], [WORDS.encode("hello")])
        assert proposed(drafter, session, 4).tokens == tokens


@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_an_error(fault: float):
    for make, size in ((translated, VH + 1), (retokenised, VL + 1)):
        drafter = make(model=TableTarget(lambda history, n=size: np.full(n, fault, np.float32), size))
        with pytest.raises(ValueError, match="draft model model: logits"):
            proposed(drafter, opened(drafter, [1]), 2)
    with pytest.raises(ValueError, match="stretch"):
        retokenised(stretch=0)


# -- lossless


A, B, C = "a", "b", "ab"
OURS = Pieces("a", "b", "ab")
THEIRS = {
    "permuted, one more": Pieces("b", "c", "a"),
    "pieces of it": Pieces("ab", "b"),
    "more of everything": Pieces("b", "ba", "ab", "aa", "a"),
}


def vanishing(table, ids: Sequence[int]):
    """The law without its shared tokens after some texts: there a draft ends early."""

    def row(history: Sequence[int]) -> Row:
        found = table(history)
        if len(history) % 3:
            return found
        keep = [i not in ids for i in range(len(found))]
        return np.array([x if kept else 0 * x for x, kept in zip(found, keep, strict=True)], dtype=object)

    return row


def exact_case(rule: str, drafter, controller=None, max_tokens: int = 3) -> LoopCase:
    p = exact_table(3, "p", up_to(9))
    return LoopCase(
        row=p,
        target=lambda: TableTarget(p, 3),
        drafter=drafter,
        controller=controller or Fixed(2),
        rule=checked(RULES[rule]),
        max_tokens=max_tokens,
    )


def exact_translated(rule: str, draft: Pieces, early: bool = False, restrict=restrict_law) -> TranslatedDrafter:
    size, to_target = len(draft.pieces), paired(OURS, draft, "tli").to_target
    q = exact_table(size, "q", up_to(9))
    q = vanishing(q, np.flatnonzero(to_target >= 0)) if early else q
    return TranslatedDrafter(TableTarget(q, size), kind_for(rule), to_target, OURS, draft, restrict=restrict)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
@pytest.mark.parametrize("theirs", THEIRS)
@pytest.mark.parametrize("early", [False, True], ids=["", "ends early"])
def test_a_translated_draft_changes_no_law(rule: str, theirs: str, early: bool):
    for controller in (Fixed(2), Eager(2)):
        case = exact_case(rule, partial(exact_translated, rule, THEIRS[theirs], early), controller)
        assert deviation(emitted_law(case), target_law(case)) == 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rule", ["token", "coupled"])
@pytest.mark.parametrize("theirs", THEIRS)
def test_a_retokenised_draft_changes_no_law(rule: str, theirs: str):
    draft = THEIRS[theirs]
    q = exact_table(len(draft.pieces), "q", up_to(9))
    drafter = lambda: RetokenisedDrafter(TableTarget(q, len(draft.pieces)), OURS, draft)  # noqa: E731
    case = exact_case(rule, drafter, max_tokens=4)
    assert deviation(emitted_law(case), target_law(case)) == 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rule", ["token", "block"])
def test_verifying_with_the_unrestricted_law_is_caught(rule: str):
    draft = THEIRS["permuted, one more"]
    to_target, q = paired(OURS, draft).to_target, exact_table(3, "q", up_to(9))

    def own(row: Row, ids: np.ndarray, size: int) -> Row:
        """What is shared, with the mass it has in the draft's own law."""
        out = np.full(size, 0 * row[0], dtype=object)
        out[ids[ids >= 0]] = row[ids >= 0]
        return out

    def made() -> TranslatedDrafter:
        return TranslatedDrafter(TableTarget(q, 3), Kind.SAMPLED, to_target, OURS, draft, restrict=own)

    case = replace(exact_case(rule, made), law=lambda row, history: row)  # draws renormalise, the law does not
    assert deviation(emitted_law(case), target_law(case)) > 0


# -- cases that users of other systems reported


GREEDY, SAMPLED = SamplingParams(temperature=0, max_tokens=24), SamplingParams(max_tokens=24)


@pytest.fixture(params=["loop", "engine"])
def decode(request, monkeypatch) -> Callable[..., tuple[Output, list[Step]]]:
    """By the oracle, and by the engine in company, all caches checked after every round."""
    if request.param == "engine":
        monkeypatch.setattr(toys, "decode", partial(toys.decode_in_company, check=True))
    return decoded


def padded(size: int, real: int, salt: int = 0):
    """Logits of which those beyond the real vocabulary mean nothing: large, where a draft may not follow."""
    table = hashed_logits(size, order=3, salt=salt)
    return lambda history: np.where(np.arange(size) < real, table(history), -np.inf if salt == 0 else 9.0).astype("f4")


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("sizes", [(64, 60), (60, 64)], ids=str)
def test_T31_padded_vocabularies(decode, sizes: tuple[int, int], params: SamplingParams):
    ours, theirs = sizes
    names = [chr(0x100 + i) for i in range(60)]
    same = relation(named(*names), named(*names), ours, theirs)
    assert same.method == "same"
    target = padded(ours, 60)
    q = padded(theirs, 60, salt=1)
    near = lambda history: np.where(np.arange(theirs) < 60, np.resize(target(history), theirs) + 0.3 * q(history), 9)  # noqa: E731
    permuted = np.random.default_rng(0).permutation(60)
    letters, other = Pieces(*names), Pieces(*(names[i] for i in permuted))

    def moved(history: Sequence[int]) -> np.ndarray:
        row = near([int(permuted[i]) for i in history])
        return np.concatenate([row[permuted], row[60:]]).astype(np.float32)

    model = TableTarget(lambda history: near(history).astype(np.float32), theirs)
    foreign, to_target = TableTarget(moved, theirs), np.array([*permuted, *[-1] * (theirs - 60)])
    drafters = {
        "coupled": [ModelDrafter(model, Kind.COUPLED)] if theirs <= ours else [],
        "token": [RetokenisedDrafter(foreign, letters, other, unnamed=unnamed(other.vocab, theirs))],
    }
    drafters["coupled"] += [
        TranslatedDrafter(foreign, Kind.COUPLED, to_target, letters, other),
        RetokenisedDrafter(foreign, letters, other, unnamed=unnamed(other.vocab, theirs)),
    ]
    for rule, some in drafters.items():
        for drafter in some:
            output, steps = decode(target, ours, drafter, PhiloxChance(5), rule=rule, params=params)
            if rule == "coupled" or params is GREEDY:
                assert output.token_ids == reference(target, (0,), 24, PhiloxChance(5), params)
            assert max(output.token_ids) < 60
            assert max(token for step in steps for token in step.draft.tokens) < 60
            assert sum(step.accepted for step in steps) > 0


def test_T31_a_permuted_vocabulary_is_refused():
    names = [f"t{i}" for i in range(60)]
    for method in (None, "tli", "slem", "same"):
        with pytest.raises(ValueError, match=r"permuted: 60 of 60 tokens have other ids \('t0' is 0 and 59"):
            relation(named(*names), named(*names[::-1]), 60, 64, method=method)
    swapped = named(*names) | {"t3": 4, "t4": 3}
    with pytest.raises(ValueError, match="2 of 60"):
        relation(named(*names), swapped, 64, 60)


WORD_TABLE = hashed_logits(VW, order=2, scale=3.0)


class Seen(TableTarget):
    """A draft model that writes down what it reads."""

    def __init__(self, row, size: int) -> None:
        super().__init__(self._note, size)
        self.inner, self.read = row, []

    def _note(self, history: Sequence[int]) -> Row:
        self.read.append(list(history))
        return self.inner(history)


def spelling(history: Sequence[int], draft: Pieces, size: int) -> np.ndarray:
    """Logits of a draft model that has read the target's mind: it spells what the target would say."""
    text = draft.decode(history)
    tokens = WORDS.encode(text)
    for back in range(3):
        begun = draft.decode(history[len(history) - back :]) if back else ""
        said = WORDS.encode(text[: len(text) - len(begun)])
        word = WORDS.pieces[int(np.argmax(WORD_TABLE(said)))] if said else b"a"
        if word.startswith(begun.encode()) and len(word) > len(begun.encode()):
            left = word[len(begun.encode()) :].decode(errors="ignore")
            ids = draft.encode(left)
            if ids:
                return np.where(np.arange(size) == ids[0], 9.0, 0.0).astype(np.float32)
    return hashed_logits(size, order=2, salt=len(tokens))(history)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("text", ["hello the water. ", "漢字🤷🏽\u200d♀\ufe0f", "e\u0301lo é ", "a"])
@pytest.mark.parametrize("way", ["slem", "tli", "slem, halves"])
def test_T32_a_character_drafter_for_a_word_target(decode, way: str, text: str, params: SamplingParams):
    draft = LETTERS if way == "slem" else HALVES
    bos, size = len(draft.pieces), len(draft.pieces) + 2
    found = paired(WORDS, draft, way if way == "tli" else None)
    assert found.method == ("tli" if way == "tli" else "slem")
    model = Seen(partial(spelling, draft=draft, size=size), size)
    drafter = (
        TranslatedDrafter(model, Kind.COUPLED, found.to_target, WORDS, draft, bos=bos)
        if way == "tli"
        else RetokenisedDrafter(model, WORDS, draft, unnamed=unnamed(draft.vocab, size), bos=bos)
    )
    prompt = tuple(WORDS.encode(text))
    output, steps = decode(WORD_TABLE, VW, drafter, PhiloxChance(3), prompt=prompt, params=params)
    assert output.token_ids == reference(WORD_TABLE, prompt, 24, PhiloxChance(3), params)
    assert all(token < VW for step in steps for token in step.draft.tokens)
    assert any(step.draft.tokens for step in steps)
    assert model.read
    assert all(history[0] == bos and history.count(bos) == 1 for history in model.read)


def test_T32_rounds_without_drafting_and_full_acceptance(decode):
    """The draft model is the target, in other ids: greedy, all of it is accepted, as long as the text is its own."""
    letters = Pieces(*"abcdefgh")
    other = Pieces(*"hgfedcbaz")
    table = hashed_logits(8)
    to_target = paired(letters, other).to_target

    def moved(history: Sequence[int]) -> np.ndarray:
        row = table([7 - i for i in history])
        return np.array([*row[::-1], 0], np.float32)

    greedy = SamplingParams(temperature=0, max_tokens=24)
    for drafter in (
        TranslatedDrafter(TableTarget(moved, 9), Kind.COUPLED, to_target, letters, other),
        RetokenisedDrafter(TableTarget(lambda history: moved(history) - 20 * (np.arange(9) == 8), 9), letters, other),
    ):
        output, steps = decode(table, 8, drafter, PhiloxChance(0), params=greedy, k=3)
        assert output.token_ids == reference(table, (0,), 24, PhiloxChance(0), greedy)
        assert [len(step.tokens) for step in steps] == [4] * 6
        decode(table, 8, drafter, PhiloxChance(0), params=greedy, controller=Fixed(0))
        _, mixed = decode(table, 8, drafter, PhiloxChance(0), params=greedy, controller=Moody())
        assert all(step.accepted == len(step.draft) for step in mixed[:-1])


@pytest.mark.usefixtures("short_steps")
@pytest.mark.parametrize("room", [1 << 20, 900], ids=["plenty", "scarce"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_requests_that_share_a_drafter_begin_with_what_others_computed(name: str, room: int):
    """Beginnings are kept and taken over, requests give way and come back; every cache is checked in every round."""
    size = VH + 1 if "translated" in name or "halves" in name else VL + 1
    model = Adopting(hashed_logits(size, order=ALL, salt=2), size)
    drafter = DRAFTERS[name](model=model)
    engine = Engine(TableTarget(WORD_TABLE, VW), KVMemory(room), EngineConfig(max_num_seqs=3, check=True))
    beginning, asked = WORDS.encode("hello the water. 漢字🤷🏽" * 2), []
    for i, text in enumerate(["", "the", "lo. ", " 漢", "hello"]):
        output = Output(SAMPLED, 24)
        rule, chance = RULES["coupled" if name == "translated, coupled" else "token"], PhiloxChance(i)
        prompt = (*beginning, *WORDS.encode(text))
        asked.append(Request(str(i), prompt, output, drafter, Fixed(3), rule, LAW, chance))
        engine.add(asked[-1])
    while engine.busy:
        for event in engine.step():
            assert event.error is None, event.error
    assert engine.memory.used <= room
    assert model.adopted > 20 or room == 900
    assert engine.counts.preempted > 0 or room > 900
    for request in asked:
        given = {"prompt": request.prompt, "rule": request.rule, "params": SAMPLED}
        output, _ = decoded(WORD_TABLE, VW, DRAFTERS[name](), PhiloxChance(int(request.name)), **given)
        assert output.token_ids == request.output.token_ids


class Adopting(TableTarget):
    """A draft model that counts what it did not compute."""

    adopted = 0

    def adopt(self, session, donor, length: int) -> None:
        self.adopted += length
        super().adopt(session, donor, length)


@pytest.mark.parametrize("rule", ["coupled", "token", "block"])
def test_every_rule_takes_them_at_any_temperature(decode, rule: str):
    for params in (GREEDY, SAMPLED, SamplingParams(temperature=0.7, top_k=6, top_p=0.9, max_tokens=24)):
        for drafter in (translated(kind=kind_for(rule)), retokenised()):
            output, _ = decode(WORD_TABLE, VW, drafter, PhiloxChance(1), rule=rule, params=params)
            assert len(output.token_ids) == 24
            if rule == "coupled" or params is GREEDY:
                assert output.token_ids == reference(WORD_TABLE, (0,), 24, PhiloxChance(1), params)


@pytest.mark.parametrize("rule", ["coupled", "token", "block"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SamplingParams(top_p=0.8, max_tokens=24)], ids=str)
def test_the_kernels_decide_as_the_rules_do(rule: str, params: SamplingParams):
    """Rows with tokens that have no mass, as laws that nobody computed."""
    for make in (partial(translated, kind=kind_for(rule)), retokenised):
        by_rule, steps = decoded(WORD_TABLE, VW, make(), PhiloxChance(2), rule=rule, params=params)
        quick = {"rule": fused(rule, params), "law": raw_law_of(params)}
        by_kernel, same = decoded(WORD_TABLE, VW, make(), KernelChance(2), params=params, **quick)
        assert by_kernel.token_ids == by_rule.token_ids
        assert [step.draft.tokens for step in same] == [step.draft.tokens for step in steps]
        confident = [np.allclose(a.draft.confidence, b.draft.confidence) for a, b in zip(same, steps, strict=True)]
        assert all(confident)
