"""The one commit function: ids, text and finish reason are cut at the same index, and nothing shown is taken back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.commit import Output, commit
from draftproof.sampling import SamplingParams
from tests.toys import Letters

END = 99


class Bytes:
    """A detokenizer of UTF-8 bytes, token = byte: text appears when a character is whole."""

    def __init__(self) -> None:
        self._pending = b""

    def add(self, token: int) -> str:
        self._pending += bytes([token])
        try:
            text = self._pending.decode()
        except UnicodeDecodeError:
            return ""
        self._pending = b""
        return text

    def flush(self) -> str:
        return self._pending.decode(errors="ignore")


class HoldsBack:
    """A detokenizer that shows each piece one token late, and the last one at the end."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces, self._late = pieces, ""

    def add(self, token: int) -> str:
        shown, self._late = self._late, self._pieces[token]
        return shown

    def flush(self) -> str:
        return self._late


def output(pieces: list[str] | None = None, limit: int = 100, **params) -> Output:
    detokenizer = None if pieces is None else Letters(pieces)
    return Output(SamplingParams(**params), limit, frozenset({END}), detokenizer)


def ended(out: Output) -> tuple[list[int], str, str | None, str | int | None]:
    return out.token_ids, out.text, out.finish_reason, out.stop_reason


def test_without_a_reason_to_stop_everything_is_kept():
    out = output(["a", "b"])
    assert commit(out, (0, 1, 1)) == (0, 1, 1)
    assert ended(out) == ([0, 1, 1], "abb", None, None)
    assert out.remaining == 97


def test_an_end_of_sequence_inside_a_block_ends_it_and_adds_no_text():
    out = output(["a", "b"])
    assert commit(out, (0, END, 1)) == (0, END)
    assert ended(out) == ([0, END], "a", "stop", None)


def test_a_stop_id_ends_it_and_is_the_reason():
    out = output(["a", "b", "c"], stop_token_ids=(1,))
    assert commit(out, (0, 1, 2)) == (0, 1)
    assert ended(out) == ([0, 1], "a", "stop", 1)


def test_the_models_own_end_needs_no_reason_even_if_it_is_also_a_stop_id():
    out = output(["a"], stop_token_ids=(END,))
    commit(out, (0, END))
    assert ended(out) == ([0, END], "a", "stop", None)


def test_ids_end_a_request_that_has_no_text():
    out = output(stop_token_ids=(5,))
    assert commit(out, (3, 5, 4)) == (3, 5)
    assert ended(out) == ([3, 5], "", "stop", 5)


def test_length_ends_inside_a_block():
    out = output(["a"], limit=2)
    assert commit(out, (0, 0, 0)) == (0, 0)
    assert ended(out) == ([0, 0], "aa", "length", None)
    assert out.remaining == 0


@pytest.mark.parametrize(("last", "reason"), [(END, None), (1, "stop!")])
def test_a_stop_on_the_last_token_that_fits_is_a_stop(last: int, reason: str | None):
    out = output(["a", "stop!"], limit=2, stop=("stop!",))
    commit(out, (0, last))
    assert ended(out) == ([0, last], "a", "stop", reason)


def test_tokens_after_the_end_are_ignored():
    out = output(["a"])
    commit(out, (END,))
    before = ended(out)
    assert commit(out, (0, 0)) == ()
    assert ended(out) == before == ([END], "", "stop", None)


def test_a_stop_string_is_cut_away_with_all_that_follows_it():
    out = output(["one ", "two. Three", " four"], stop=(". ",))
    assert commit(out, (0, 1, 2)) == (0, 1)
    assert ended(out) == ([0, 1], "one two", "stop", ". ")


def test_a_stop_string_may_span_tokens():
    out = output(["ab", "cd", "ef", "g"], stop=("bcde",))
    assert commit(out, (0, 1)) == (0, 1)
    assert out.shown == "a", "what may begin a stop string is withheld"
    assert commit(out, (2, 3)) == (2,)
    assert ended(out) == ([0, 1, 2], "a", "stop", "bcde")
    assert out.shown == "a"


def test_what_was_withheld_is_shown_once_it_cannot_be_a_stop():
    out = output(["ab", "cd", "x"], stop=("bcde",))
    shown = []
    for token in (0, 1, 2):
        commit(out, (token,))
        shown.append(out.shown)
    assert shown == ["a", "a", "abcdx"]


@pytest.mark.parametrize("end", [(END,), (0, 0)])
def test_what_was_withheld_is_shown_at_the_end(end: tuple[int, ...]):
    out = output(["ab"], limit=3, stop=("bc",))
    commit(out, (0, *end))
    assert out.finish_reason is not None
    assert out.shown == out.text
    assert out.text.endswith("b")


def test_of_stops_completed_by_one_token_the_earliest_wins_then_the_longest():
    pieces = [" The", " user is a,"]
    for stops in (("a", "is", ","), (",", "is", "a"), ("is", "is a")):
        out = output(pieces, stop=stops)
        commit(out, (0, 1))
        assert out.text == " The user "
        assert out.stop_reason == ("is a" if "is a" in stops else "is")


def test_a_stop_may_end_inside_a_token_and_begin_inside_an_earlier_one():
    out = output(["xab", "abz", "c"], stop=("baba", "bab"))
    assert commit(out, (0, 1, 2)) == (0, 1)
    assert ended(out) == ([0, 1], "xa", "stop", "bab")


def test_characters_split_over_tokens_appear_when_whole():
    text = "é🙂."
    out = Output(SamplingParams(stop=("🙂",)), 100, detokenizer=Bytes())
    shown = []
    for token in text.encode():
        commit(out, (token,))
        shown.append(out.shown)
    assert shown == [""] + ["é"] * 6
    assert out.finish_reason == "stop"
    assert len(out.token_ids) == len("é🙂".encode())


def test_a_broken_character_at_the_end_is_left_out():
    out = Output(SamplingParams(), 3, detokenizer=Bytes())
    commit(out, tuple("a🙂".encode()))
    assert ended(out) == ([97, 0xF0, 0x9F], "a", "length", None)


@pytest.mark.parametrize("last", [END, 0])
def test_a_stop_that_only_the_flush_completes_counts(last: int):
    out = Output(SamplingParams(stop=("bc",)), 3, frozenset({END}), HoldsBack(["a", "b", "c"]))
    commit(out, (0, 1, 2))  # "a", then "b", then length: the flush brings "c"
    assert ended(out) == ([0, 1, 2], "a", "stop", "bc")


PIECES = ["a", "b", "ab", "ba", "aab", "", "c"]
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3).map(tuple)
TOKENS = st.lists(st.one_of(st.integers(0, len(PIECES) - 1), st.just(END)), max_size=14)


def fed(tokens: list[int], sizes: list[int], **params) -> tuple[Output, list[str]]:
    """The output after blocks of the given sizes, and what was shown after each."""
    out, at, shown = output(PIECES, limit=8, **params), 0, []
    for size in [*sizes, len(tokens)]:
        commit(out, tokens[at : at + size])
        at += size
        shown.append(out.shown)
    return out, shown


@given(TOKENS, STOPS, st.sampled_from([(), (6,)]), st.lists(st.integers(0, 5), max_size=8))
def test_blocks_and_single_tokens_give_the_same_output(tokens, stops, stop_ids, sizes):
    params = {"stop": stops, "stop_token_ids": stop_ids}
    blocks, shown = fed(tokens, sizes, **params)
    single, shown_singly = fed(tokens, [1] * len(tokens), **params)
    assert (*ended(blocks), blocks.released, blocks.ends) == (*ended(single), single.released, single.ends)
    for stream in (shown, shown_singly):
        assert all(later.startswith(sooner) for sooner, later in pairwise(stream)), "taken back"
        assert stream[-1] == blocks.shown


@given(TOKENS, STOPS)
def test_the_text_is_what_searching_after_every_token_would_leave(tokens, stops):
    """The plain reference: the whole text is searched again after each token."""
    known_text, known_ids, reason = "", [], None
    for token in tokens[:8]:
        known_ids.append(token)
        if token == END:
            reason = "stop"
            break
        known_text += PIECES[token]
        found = [(known_text.find(stop), -len(stop)) for stop in stops if stop in known_text]
        if found:
            known_text, reason = known_text[: min(found)[0]], "stop"
            break
        if len(known_ids) == 8:
            reason = "length"
    out, _ = fed(tokens, [], stop=stops)
    assert (out.token_ids, out.text, out.finish_reason) == (known_ids, known_text, reason)
    assert not any(stop in out.shown for stop in stops)
    assert out.finish_reason is None or out.shown == out.text
    assert len(out.ends) == len(out.token_ids)


def test_a_request_without_room_is_refused():
    with pytest.raises(ValueError, match="limit: 0 is not allowed"):
        Output(SamplingParams(), 0)
