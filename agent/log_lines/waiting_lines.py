"""Lines on their way out of the process: a thread writes them, and a reader who stands still holds nobody.

Law of this file: texts and one file descriptor. The text that waits is bounded. Lines beyond the bound are
lost, counted, and told of once lines go out again. One call writes a line, as other processes may write to
the same pipe.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

WAITING_CHARACTERS_MAX: Final = 1 << 20
"""Some thousand lines: minutes of an agent in trouble, and little memory."""
END_SECONDS_MAX: Final = 2.0
"""At the end of the process, for lines that still wait."""


class WaitingLines:
    """A stream for a handler of logging. `on_lost` is called with the number of lines."""

    def __init__(self, descriptor: int, on_lost: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._on_lost = on_lost
        self._lines: deque[str] = deque()
        self._characters = 0
        self._lost = 0
        self._is_closing = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._write_all, name="log-lines", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def closed(self) -> bool:
        """No line is taken any more."""
        return self._is_closing

    def write(self, line: str) -> None:
        """Never waits for a reader."""
        with self._news:
            if self._is_closing or self._characters + len(line) > WAITING_CHARACTERS_MAX:
                self._lost += 1
                return
            self._lines.append(line)
            self._characters += len(line)
            self._news.notify()

    def flush(self) -> None:
        """As streams have it; the thread does what there is to do."""

    def close(self) -> None:
        """Waiting lines are written, as far as somebody reads them now."""
        atexit.unregister(self.close)
        with self._news:
            self._is_closing = True
            self._news.notify()
        self._thread.join(END_SECONDS_MAX)
        with self._news:
            self._lines.clear()  # the descriptor may soon be another stream's

    def _write_all(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._lines or self._is_closing)
                if not self._lines:
                    return
                line = self._lines.popleft()
            rest = line.encode(errors="backslashreplace")
            with contextlib.suppress(OSError):  # nobody is left who could be told
                while rest:
                    try:
                        rest = rest[os.write(self._descriptor, rest) :]
                    except BlockingIOError:  # somebody who shares the stream has made it so
                        select.select((), (self._descriptor,), ())
            with self._news:
                self._characters -= len(line)
                lost = 0 if self._lines or self._is_closing else self._lost
                self._lost -= lost
            if lost:
                self._on_lost(lost)
