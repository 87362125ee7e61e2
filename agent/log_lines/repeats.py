"""How often lines may stand: those that repeat once a minute, those of any event so many a minute.

Law of this file: two filters of the process's log handler. A line that may repeat is logged by way of
`once_a_minute(logger)`; the filter shows it again after a minute, with the number of lines that it held back
since. Lines are the same if place in the code and arguments are, but for errors: their texts may differ.
Every other line counts for its event: a fault that strikes a thousand partitions fills no disk with lines.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from shoal.agent.log_lines.schema import event_of

INTERVAL_S = 60.0
KINDS_MAX = 1_024
"""Lines told apart at a time. Strangers choose some arguments; beyond it all lines of a place are one."""

EVENT_LINES_MAX = 100
"""Of one event in INTERVAL_S: enough for each of a hundred partitions, little for a disk."""
EVENTS_MAX = 1_024
"""Events told apart at a time; beyond it all others count as one. Names of libraries are few."""

_ALL_OTHERS = ""
_Key = tuple[str, int, tuple[str, ...] | None]


class _Repeating(logging.LoggerAdapter[logging.Logger]):
    """Keeps what a call states by `extra`."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {"repeats": True, **(kwargs.get("extra") or {})}
        return msg, kwargs


def once_a_minute(logger: logging.Logger) -> logging.LoggerAdapter[logging.Logger]:
    """The logger, for lines that repeat as long as their cause lasts."""
    return _Repeating(logger, {})


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
        if shown_s is not None and _is_recent(shown_s, record):
            self._held_back[key] = self._held_back.get(key, 0) + 1
            return False
        self._shown.pop(key, None)
        self._shown[key] = record.created
        _add_held_back(record, self._held_back.pop(key, 0))
        return True

    def _key(self, record: logging.LogRecord) -> _Key:
        arguments = record.args if isinstance(record.args, tuple) else ()
        same = tuple(str(item) for item in arguments if not isinstance(item, BaseException))
        key = record.pathname, record.lineno, same
        if key in self._shown:
            return key
        while self._shown and len(self._shown) >= KINDS_MAX:
            oldest = next(iter(self._shown))
            if _is_recent(self._shown[oldest], record):
                return record.pathname, record.lineno, None
            del self._shown[oldest]
            self._held_back.pop(oldest, None)
        return key


class EventBound(logging.Filter):
    """One per process, behind the RepeatFilter. Its clock is the time of the records. Lines of level `debug`
    are not counted: who asks for them wants them all."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[str, _Window] = {}  # the one that began longest ago comes first

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show it. The last line that is shown says that others will not be."""
        if record.levelno <= logging.DEBUG:
            return True
        window = self._window(event_of(record), record)
        if window.lines >= EVENT_LINES_MAX:
            window.held_back += 1
            return False
        window.lines += 1
        if window.lines == EVENT_LINES_MAX:
            record.msg = f"{record.msg} (more lines of this event are held back for up to {INTERVAL_S:.0f} s)"
        return True

    def _window(self, event: str, record: logging.LogRecord) -> _Window:
        window = self._windows.get(event)
        if window is not None and _is_recent(window.began_s, record):
            return window
        if window is None and event != _ALL_OTHERS and len(self._windows) >= EVENTS_MAX:
            oldest = next(iter(self._windows))
            if _is_recent(self._windows[oldest].began_s, record):
                return self._window(_ALL_OTHERS, record)
            del self._windows[oldest]
        _add_held_back(record, 0 if window is None else window.held_back)
        self._windows.pop(event, None)
        window = self._windows[event] = _Window(record.created)
        return window


class _Window:
    """Lines of one event since then."""

    __slots__ = ("began_s", "held_back", "lines")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.lines = 0
        self.held_back = 0


def _is_recent(then_s: float, record: logging.LogRecord) -> bool:
    """Whether the record comes within the interval. A clock that was set back holds nothing back."""
    return 0 <= record.created - then_s < INTERVAL_S


def _add_held_back(record: logging.LogRecord, count: int) -> None:
    if count:
        vars(record)["held_back"] = getattr(record, "held_back", 0) + count
