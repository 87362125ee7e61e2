"""Places in a topic's partitions as text: both forms, and what is neither."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.http.admission.limits import HttpLimits
from shoal.agent.http.fetch.cursors import MovingCursor, format_places, places
from shoal.agent.interface import MAX_PARTITIONS
from shoal.errors import ShoalError

OFFSETS = st.integers(0, 2**63 - 1)


def test_the_form_that_people_write() -> None:
    """In the order of the partitions, none lost."""
    found = places({"after": "3:7,0:12"}, "after", 4)
    assert found == {0: 12, 3: 7}
    assert format_places(found) == "0:12,3:7"
    assert places({}, "after", 4) is None


@given(st.dictionaries(st.integers(0, MAX_PARTITIONS - 1), OFFSETS, min_size=1))
def test_any_places_and_back(found: dict[int, int]) -> None:
    """Whatever the number of partitions and the size of their offsets."""
    ordered = dict(sorted(found.items()))
    assert places({"cursor": format_places(ordered)}, "cursor", MAX_PARTITIONS) == ordered


@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda data: "p" + urlsafe_b64encode(data).decode()))
def test_any_text_is_places_or_refused(text: str) -> None:
    """No text has another outcome; what is understood is written the same way again, or by its offsets."""
    found: dict[int, int] | None = None
    code = ""
    try:
        found = places({"cursor": text}, "cursor", MAX_PARTITIONS)
    except ShoalError as error:
        code = error.code
    if found is None:
        assert code in ("bad-request", "unknown-partition")
    else:
        assert places({"cursor": format_places(found)}, "cursor", MAX_PARTITIONS) == found


def test_what_is_refused() -> None:
    """Too short, of another width, without partitions, padded, other characters, offsets too large."""

    def packed(data: bytes) -> str:
        return "p" + urlsafe_b64encode(data).rstrip(b"=").decode()

    head = bytes([2]) + bytes(8)
    for text in (
        "p", "p!", "pAQ==", packed(b"\1"), packed(head), packed(head + b"\0\0"), packed(head + b"\0"),
        packed(bytes([9]) + bytes(8) + bytes(9)), packed(bytes([0]) + bytes(16)),
        packed(head + b"\0\1") + "=", packed(b"\1" + b"\xff" * 8 + b"\5"), "p\u00e9",
    ):  # fmt: skip
        with pytest.raises(ShoalError, match="as an answer gave it"):
            places({"cursor": text}, "cursor", 4)
    assert places({"cursor": packed(head + b"\0\1")}, "cursor", 4) == {0: 0}
    with pytest.raises(ShoalError, match="0 to 3, not 4"):
        places({"cursor": packed(head + b"\0\1" * 5)}, "cursor", 4)


def test_the_largest_topic_fits_a_request_line() -> None:
    """1,024 partitions within a trillion records of each other, with room for the rest of the line."""
    found = {partition: 9 * 10**15 + partition * 10**9 for partition in range(MAX_PARTITIONS)}
    assert len(format_places(found)) < HttpLimits().request_line_bytes - 1_000


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=300), st.lists(st.integers(0, 299), max_size=50))
def test_a_moving_cursor_is_behind_each_record(offsets: list[int], steps: list[int]) -> None:
    """After every step it says the same as the places themselves, in either form."""
    at = dict(enumerate(offsets))
    cursor = MovingCursor(at)
    for step in steps:
        partition = step % len(offsets)
        at[partition] += 1
        assert places({"cursor": cursor.step(partition)}, "cursor", len(offsets)) == at


def test_a_moving_cursor_grows_past_its_width() -> None:
    """An offset that no longer fits its place is laid out anew."""
    at = dict.fromkeys(range(600), 0) | {0: 2**24 - 3 - (1 << 16)}
    cursor = MovingCursor(at)
    for _ in range((1 << 16) + 8):
        text = cursor.step(0)
        at[0] += 1
    assert at[0] > 2**24
    assert places({"cursor": text}, "cursor", 600) == at
