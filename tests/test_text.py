"""Incremental text: deltas concatenate to the whole, and no broken character is ever shown."""

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


@given(st.text(), st.text(max_size=3))
def test_deltas_concatenate_to_the_text_whatever_the_characters(written, before):
    deltas = streamed(TOKENIZER(written).input_ids, TOKENIZER(before).input_ids)
    assert "".join(deltas) == written
    if "\ufffd" not in written:
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


def test_special_tokens_add_no_text():
    ids = TOKENIZER("ab").input_ids
    assert "".join(streamed([ids[0], TOKENIZER.eos_token_id, ids[1]])) == "ab"
