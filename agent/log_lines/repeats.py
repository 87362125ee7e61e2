"""Lines that say the same again and again, held back to one a minute.

Law of this file: one filter of the process's log handler. A line that may repeat is logged by way of
`once_a_minute(logger)`; the filter shows it again after a minute, with the number of lines that it held back
since. Lines are the same if place in the code and arguments are, but for errors: their texts may differ.
"""

from __future__ import annotations

import logging

INTERVAL_S = 60.0
KINDS_MAX = 1_024
"""Lines told apart at a time. Strangers choose some arguments; beyond it all lines of a place are one."""

_Key = tuple[str, int, tuple[str, ...] | None]


def once_a_minute(logger: logging.Logger) -> logging.LoggerAdapter[logging.Logger]:
    """The logger, for lines that repeat as long as their cause lasts."""
    return logging.LoggerAdapter(logger, {"repeats": True})


class RepeatFilter(logging.Filter):
    """One per process. Its clock is the time of the records."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[_Key, float] = {}  # the one shown longest ago comes first
        self._held_back: dict[_Key, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show it now."""
        if not getattr(record, "repeats", False):
            return True
        key = self._key(record)
        shown_s = self._shown.get(key)
        if shown_s is not None and record.created - shown_s < INTERVAL_S:
            self._held_back[key] = self._held_back.get(key, 0) + 1
            return False
        self._shown.pop(key, None)
        self._shown[key] = record.created
        if count := self._held_back.pop(key, 0):
            record.msg = f"{record.msg} (%d more in the last {INTERVAL_S:.0f} s or longer)"
            record.args = (*(record.args or ()), count)
        return True

    def _key(self, record: logging.LogRecord) -> _Key:
        arguments = record.args if isinstance(record.args, tuple) else ()
        same = tuple(str(item) for item in arguments if not isinstance(item, BaseException))
        key = record.pathname, record.lineno, same
        if key in self._shown:
            return key
        while self._shown and len(self._shown) >= KINDS_MAX:
            oldest = next(iter(self._shown))
            if record.created - self._shown[oldest] < INTERVAL_S:
                return record.pathname, record.lineno, None
            del self._shown[oldest]
            self._held_back.pop(oldest, None)
        return key
