"""Texts that are kept for the next request: only whole answers, only so many bytes, only so many logs."""

from __future__ import annotations

import pyarrow as pa

from shoal.agent.http.rows.recent_texts import (
    AHEAD_ROWS_MAX,
    KEPT_TEXT_BYTES,
    LOGS_MAX,
    RecentTexts,
    short_texts,
)
from shoal.agent.http.rows.row_pieces import SLICE_BYTES, Rows, Style
from shoal.format.batch import DEFAULT_SCHEMA, LogIdentity

LOG = LogIdentity(b"c" * 16, b"t" * 16, 0)
STYLE = Style("text", "record")


def rows_at(offset: int, *values: bytes) -> Rows:
    columns = [[0] * len(values), [None] * len(values), list(values), [None] * len(values)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, DEFAULT_SCHEMA, strict=True)]
    return Rows(offset, pa.RecordBatch.from_arrays(arrays, schema=DEFAULT_SCHEMA))


def test_rows_are_found_where_all_of_them_are_kept() -> None:
    """No other log's, and none beside the window."""
    recent = RecentTexts()
    recent.keep(LOG, 5, [b"five", b"six", b"seven"])
    assert recent.find(LOG, 5, 3) == [b"five", b"six", b"seven"]
    assert recent.find(LOG, 6, 1) == [b"six"]
    for first, count in ((4, 1), (4, 4), (7, 2), (8, 1)):
        assert recent.find(LOG, first, count) is None
    for other in (LogIdentity(b"c" * 16, b"t" * 16, 1), LogIdentity(b"c" * 16, b"t" * 16, 0, log_epoch=1)):
        assert recent.find(other, 5, 1) is None
    recent.keep(LOG, 8, [b"eight"])
    assert recent.find(LOG, 7, 1) is None


def test_more_is_made_while_requests_follow_one_another() -> None:
    """Twice as much each time up to a bound; one that asks elsewhere, or for more, gets what it asks for."""
    recent, first, made = RecentTexts(), 0, []
    for _ in range(9):
        count = recent.ahead(LOG, first, 1)
        recent.keep(LOG, first, [b"x"] * count)
        made.append(count)
        first += count
    assert made == [1, 2, 4, 8, 16, 32, 64, AHEAD_ROWS_MAX, AHEAD_ROWS_MAX]
    assert recent.ahead(LOG, first + 1, 3) == 3
    assert recent.ahead(LOG, first, AHEAD_ROWS_MAX + 1) == AHEAD_ROWS_MAX + 1
    assert recent.ahead(LOG, 0, 2) == 2


def test_what_is_kept_is_bounded() -> None:
    """In bytes for each log, and in logs."""
    recent = RecentTexts()
    half = b"x" * (KEPT_TEXT_BYTES // 2)
    recent.keep(LOG, 0, [half, half, b"y"])
    assert recent.find(LOG, 0, 2) == [half, half]
    assert recent.find(LOG, 2, 1) is None
    recent.keep(LOG, 0, [half + half + b"y"])
    assert recent.find(LOG, 0, 1) is None
    logs = [LogIdentity(b"c" * 16, b"t" * 16, number) for number in range(LOGS_MAX + 1)]
    for log in logs:
        recent.keep(log, 0, [b"x"])
    assert [recent.find(log, 0, 1) for log in (logs[0], logs[1], logs[-1])] == [None, [b"x"], [b"x"]]


def test_texts_end_at_a_long_row_and_at_a_gap() -> None:
    """A long row is never made whole; rows that do not follow would stand at wrong offsets."""
    long = b"x" * (SLICE_BYTES + 1)
    read = [rows_at(3, b"a", b"b"), rows_at(5, b"c"), rows_at(7, b"d")]
    texts = short_texts(read, 3, STYLE)
    assert [text[:11] for text in texts] == [b'{"offset":3', b'{"offset":4', b'{"offset":5']
    assert short_texts(read, 4, STYLE) == []
    assert len(short_texts([rows_at(0, b"a", long, b"b")], 0, STYLE)) == 1
