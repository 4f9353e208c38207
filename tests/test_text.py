"""Incremental text: deltas concatenate to the whole, and no broken character is ever shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.text import IncrementalText
from tests.folders import byte_tokenizer

TOKENIZER = byte_tokenizer()


def decode(ids):
    return TOKENIZER.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def streamed(ids, before=()):
    text = IncrementalText(decode, before)
    return [*(text.add(token) for token in ids), text.flush()]


WRITTEN = st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"))


@given(WRITTEN, st.text(max_size=3))
def test_deltas_concatenate_to_the_text_whatever_the_characters(written, before):
    deltas = streamed(TOKENIZER(written).input_ids, TOKENIZER(before).input_ids)
    assert "".join(deltas) == written
    assert not any("\ufffd" in delta for delta in deltas)


def test_a_character_appears_whole_with_its_last_byte():
    assert streamed(TOKENIZER("é🙂").input_ids) == ["", "é", "", "", "", "🙂", ""]


def test_a_character_broken_off_at_the_end_is_not_shown():
    assert "".join(streamed(TOKENIZER("ab🙂").input_ids[:-1])) == "ab"


def test_bytes_that_never_make_a_character_do_not_hold_the_text_back():
    stray = TOKENIZER("🙂").input_ids[1]  # a continuation byte alone
    deltas = streamed([stray] * 6 + TOKENIZER("ok").input_ids)
    assert "".join(deltas).endswith("ok")
    assert any(deltas[:6])


@given(st.lists(st.integers(0, 255), max_size=12))
def test_any_bytes_give_the_text_of_the_whole(ids):
    whole = decode(ids)
    text = "".join(streamed(ids))
    assert whole.startswith(text)
    assert set(whole[len(text) :]) <= {"\ufffd"}
    assert len(whole) - len(text) <= 3


@pytest.mark.parametrize("raw", ["ff f0 9f 98 80 21", "c3 f0 9f 98 80", "e4 bd e4 bd a0 e4 bd a0"])
def test_a_character_behind_broken_bytes_is_not_lost(raw):
    table = bytes_to_ids()
    ids = [table[byte] for byte in bytes.fromhex(raw)]
    assert "".join(streamed(ids)) == decode(ids)


def bytes_to_ids():
    """byte -> token id, read off characters whose UTF-8 bytes are known."""
    table = {}
    for character in map(chr, [*range(1, 0x800), *range(0x800, 0xD800, 61), *range(0x10000, 0x10FFFF, 4093)]):
        table |= zip(character.encode(), TOKENIZER(character).input_ids, strict=True)
    return table | {0xFF: next(iter(set(range(256)) - set(table.values())))}


def test_special_tokens_add_no_text():
    ids = TOKENIZER("ab").input_ids
    assert "".join(streamed([ids[0], TOKENIZER.eos_token_id, ids[1]])) == "ab"
