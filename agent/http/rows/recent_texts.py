"""Rows that were just made into text, for requests that take a few rows each, one after the other.

Pure. Rows of a log never change, and a log that is recovered unsafely has another identity. So a text is
right for as long as it is kept. A batch is read and unpacked once for many requests, not once for each of
its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from shoal.agent.http.rows.row_pieces import Rows, RowWriter, Style
from shoal.format.batch import LogIdentity

FEW_ROWS: Final = 16
"""A request for more reads on its own: what it saves would be little beside making its text."""
AHEAD_ROWS_MAX: Final = 64
"""Made at once where requests follow one another: a third of a millisecond."""
KEPT_ROWS_BYTES: Final = 32 * 1024
"""Of stored rows whose texts are kept; of more only the reader's own are made."""
KEPT_TEXT_BYTES: Final = 64 * 1024
"""Of texts kept of a log."""
LOGS_MAX: Final = 64
"""So many logs have texts here: 4 MiB at most. The one that was served longest ago is forgotten first."""


class Window(NamedTuple):
    """Texts of neighbouring rows, the first of which has the offset `first`."""

    first: int
    texts: Sequence[bytes]


def short_texts(read: Iterable[Rows], first: int, style: Style) -> list[bytes]:
    """The texts of rows from the one with the offset `first` on, up to a long one or to a gap."""
    found: list[bytes] = []
    writer = RowWriter()
    for rows in read:
        if rows.base_offset != first + len(found):
            break
        for text in writer.texts(rows, style):
            if not isinstance(text, tuple):
                return found
            found += text
    return found


class RecentTexts:
    """One per agent, of one style of text for each log."""

    def __init__(self) -> None:
        self._windows: dict[LogIdentity, Window] = {}

    def find(self, log: LogIdentity, first: int, count: int) -> Sequence[bytes] | None:
        """The texts of these rows, if all of them are here."""
        window = self._windows.get(log)
        if window is None:
            return None
        begin = first - window.first
        if begin < 0 or begin + count > len(window.texts):
            return None
        return window.texts[begin : begin + count]

    def ahead(self, log: LogIdentity, first: int, count: int) -> int:
        """How many rows to make from there on, of which so many are asked for now: twice as many as the last
        time while requests follow one another."""
        window = self._windows.get(log)
        if window is None or not window.first < first <= window.first + len(window.texts):
            return count
        return max(count, min(2 * len(window.texts), AHEAD_ROWS_MAX))

    def keep(self, log: LogIdentity, first: int, texts: Sequence[bytes]) -> None:
        """These instead of the log's last ones, as many of them as there may be."""
        kept, left = 0, KEPT_TEXT_BYTES
        while kept < len(texts) and len(texts[kept]) <= left:
            left -= len(texts[kept])
            kept += 1
        self._windows.pop(log, None)
        if kept:
            self._windows[log] = Window(first, texts[:kept])
            if len(self._windows) > LOGS_MAX:
                del self._windows[next(iter(self._windows))]
