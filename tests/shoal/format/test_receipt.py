"""Receipts: what comes out is what went in, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.format.receipt import (
    HEAD_CHARACTERS,
    MAX_RECEIPT_CHARACTERS,
    Receipt,
    ReceiptError,
    head_of,
    is_genuine,
    parse,
    receipt_of,
)

GROUP, KEY = bytes(range(16)), bytes(range(32))
NUMBERS = st.integers(0, 2**32 - 1)
PLACES = st.integers(0, 2**63 - 1)


@given(st.binary(min_size=16, max_size=16), NUMBERS, NUMBERS, st.integers(0, 2**64 - 1), PLACES, PLACES)
def test_a_receipt_is_read_as_it_was_made(
    group: bytes, partition: int, generation: int, delivery: int, offset: int, due_us: int
) -> None:
    """Of a whole answer, and of each of its messages."""
    head = head_of(group, KEY, partition, generation, delivery)
    assert len(head) == 2 + HEAD_CHARACTERS
    assert parse(head) == Receipt(group, partition, generation, delivery, None)
    text = receipt_of(head, offset, due_us)
    assert len(text) <= MAX_RECEIPT_CHARACTERS
    assert parse(text) == Receipt(group, partition, generation, delivery, offset, due_us)
    assert is_genuine(head, KEY)
    assert is_genuine(text, KEY)
    assert not is_genuine(text, KEY[:-1])


def test_no_character_of_the_head_can_be_changed() -> None:
    """A changed receipt is malformed or forged, never another one's."""
    head = head_of(GROUP, KEY, 3, 1, 4711)
    changed = {head[:place] + other + head[place + 1 :] for place in range(len(head)) for other in "Ab9-_"}
    taken = [text for text in changed - {head} if is_taken(text)]
    assert taken == []


def is_taken(text: str) -> bool:
    try:
        return is_genuine(text, KEY)
    except ReceiptError:
        return False


HEAD = head_of(GROUP, KEY, 3, 1, 4711)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "g1",
        "g2" + HEAD[2:],
        HEAD[:-1],
        HEAD + "A",
        HEAD + ".",
        HEAD + ".-1",
        HEAD + ".01",
        HEAD + ".1-",
        HEAD + ".1-0",
        HEAD + ".1-01",
        HEAD + ".1.2",
        HEAD + ".1 ",
        HEAD + ".1\n",
        HEAD + ".\u0661",
        HEAD + f".{2**63}",
        HEAD + f".1-{2**63}",
        HEAD[:-1] + "=",
        HEAD[:10] + "+" + HEAD[11:],
        HEAD[:10] + "\u00fc" + HEAD[11:],
        HEAD + "." + "1" * 1_000,
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """With the one error of this decoder, before anything is looked up."""
    with pytest.raises(ReceiptError) as caught:
        parse(text)
    assert caught.value.code == "receipt-malformed"


@given(st.text(max_size=120) | st.text("g1AZaz09-_.=", max_size=120).map(lambda tail: "g1" + tail))
def test_any_text_is_read_or_refused(text: str) -> None:
    """And what is read is written again as the same text."""
    try:
        receipt = parse(text)
    except ReceiptError:
        return
    head = text[: 2 + HEAD_CHARACTERS]
    assert text == (head if receipt.offset is None else receipt_of(head, receipt.offset, receipt.due_us))


def test_a_receipt_of_everything_up_to_an_offset() -> None:
    """It has no delivery, which no real receipt lacks: log indexes begin at 1."""
    assert Receipt.up_to(GROUP, 3, 17) == Receipt(GROUP, 3, 0, 0, 17, 0)
