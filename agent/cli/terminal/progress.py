"""A line of progress on stderr: redrawn in place on a terminal, written anew now and then elsewhere.

Law of this file: it shows given values, and costs nothing between two updates.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

TERMINAL_INTERVAL_SECONDS = 0.1
PLAIN_INTERVAL_SECONDS = 1.0  # a log line a second is enough to see that it moves
BAR_WIDTH_MAX = 30


class Progress:
    """Shows how far a stream of records is. `total_bytes` None: unknown, no bar."""

    def __init__(self, total_bytes: int | None, *, shown: bool | None) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = self._terminal if shown is None else shown
        self._total_bytes = total_bytes
        self._started = self._last = time.monotonic()
        self._last_records = 0
        self._drawn = False

    def update(self, records: int, read_bytes: int, remark: str = "") -> None:
        """Show this state if the last one has stood for a while."""
        if not self._shown:
            return
        now = time.monotonic()
        interval = TERMINAL_INTERVAL_SECONDS if self._terminal else PLAIN_INTERVAL_SECONDS
        if now - self._last < interval:
            return
        rate = (records - self._last_records) / (now - self._last) if not self._terminal else None
        self._last, self._last_records = now, records
        self._draw(records, read_bytes, rate or records / max(now - self._started, 0.001), remark)

    def close(self) -> None:
        """Clear the line, so that what follows stands alone."""
        if self._drawn and self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _draw(self, records: int, read_bytes: int, rate: float, remark: str) -> None:
        text = f"{records:,} records  {rate:,.0f}/s{'  ' + remark if remark else ''}"
        if self._total_bytes:
            share = min(1.0, read_bytes / self._total_bytes)
            text = f"{share:4.0%}  {text}"
            if self._terminal:
                text = _bar(share, len(text), least=10) + text
        if self._terminal:
            sys.stderr.write(f"\r{_in_one_line(text)}\x1b[K")
        else:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
        self._drawn = True


class ProgressBar:
    """A share of a whole on a terminal; nothing at all elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = stream.isatty()

    def update(self, share: float, text: str) -> None:
        """Draw anew. share: 0 to 1."""
        if self._shown:
            share = min(1.0, max(0.0, share))
            text = f"{share:4.0%}  {text}"
            line = f"{_bar(share, len(text), least=0)}{text}"
            self._stream.write(f"\r{_in_one_line(line)}\x1b[K")
            self._stream.flush()

    def close(self) -> None:
        """Clear the line, so that what follows stands alone."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _in_one_line(text: str) -> str:
    """As much as a terminal does not fold: what was folded cannot be drawn over."""
    return text[: max(1, shutil.get_terminal_size().columns - 1)]


def _bar(share: float, text_width: int, *, least: int) -> str:
    """A bar that fits before so much text; nothing where fewer than `least` characters are left for it."""
    room = shutil.get_terminal_size().columns - text_width - 5
    width = max(0, min(BAR_WIDTH_MAX, room))
    return f"[{'#' * round(share * width):<{width}}] " if room >= least else ""
