"""Where log lines leave the process: one handler, as text for people or as JSON for programs.

Law of this file: everything that Python reports comes out as lines of one schema: records of libraries,
warnings, exceptions that nobody caught. A line that cannot be written as it is becomes one that says so.
Nothing here raises.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Protocol, TextIO

from shoal.agent.log_lines.names import own_name
from shoal.agent.log_lines.repeats import EventBound, RepeatFilter
from shoal.agent.log_lines.schema import (
    OWN_LOGGERS,
    about,
    document_of,
    message_of,
    time_of,
    traceback_of,
)
from shoal.agent.log_lines.waiting_lines import WaitingLines

COLOURS: Final = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
_STEERING = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
"""Characters that end lines or steer terminals; a message may hold any text of strangers."""
IN_TEXT: Final = {code: f"\\x{code:02x}" for code in _STEERING if code != ord("\t")}
IN_TRACEBACK: Final = {code: shown for code, shown in IN_TEXT.items() if code != ord("\n")}
IN_JSON: Final = {code: f"\\u{code:04x}" for code in _STEERING}
logger = logging.getLogger("shoal.agent")


class JsonForm(logging.Formatter):
    """One JSON document a line. A process has one agent: what its threads and hooks say, outside of its
    tasks, carries the agent's name too."""

    def __init__(self) -> None:
        super().__init__()
        self._agent: str | None = None

    def format(self, record: logging.LogRecord) -> str:
        self._agent = own_name() or self._agent
        document = document_of(record, self._agent)
        line = json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=str)
        return line.translate(IN_JSON)


class TextForm(logging.Formatter):
    """Time, level, place, message; a traceback stands on the lines below."""

    def __init__(self, *, has_colours: bool) -> None:
        super().__init__()
        self._has_colours = has_colours

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname:<7}"
        colour = COLOURS.get(record.levelname) if self._has_colours else None
        if colour is not None:
            level = f"\x1b[{colour}m{level}\x1b[0m"
        line = f"{time_of(record)} {level} {record.name} {message_of(record).translate(IN_TEXT)}"
        if held_back := getattr(record, "held_back", 0):
            line += f" ({held_back} more were held back)"
        trace = traceback_of(record)
        return line if trace is None else f"{line}\n{trace.translate(IN_TRACEBACK)}"


class LineSink(Protocol):
    """As much of a stream as lines need."""

    @property
    def closed(self) -> bool:
        """Whether it takes no line any more."""

    def write(self, line: str, /) -> object:
        """With its end."""

    def flush(self) -> object:
        """So that a reader sees it."""


class LogOutput(logging.StreamHandler[LineSink]):
    """The only handler of an agent's process."""

    def __init__(self, stream: LineSink, form: logging.Formatter) -> None:
        super().__init__(stream)
        self.setFormatter(form)
        self.addFilter(RepeatFilter())
        self.addFilter(EventBound())

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- logging's name
        """A line that does not fit its text is a bug; a stream that is gone leaves nobody to tell."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError | ValueError) and (self.stream.closed or isinstance(error, OSError)):
            return
        said = logging.LogRecord(
            record.name,
            logging.ERROR,
            record.pathname,
            record.lineno,
            "a log line could not be written: %r; this is a bug",
            (str(record.msg),),
            sys.exc_info(),
        )
        vars(said).update(about("log-line-failed"))
        try:
            self.stream.write(self.format(said) + self.terminator)
            self.flush()
        except (OSError, ValueError):
            return


def form_for(log_format: str, stream: TextIO) -> logging.Formatter:
    """Text on terminals, with colours unless NO_COLOR is set or the terminal has none."""
    is_terminal = stream.isatty()
    if log_format == "json" or (log_format == "auto" and not is_terminal):
        return JsonForm()
    has_colours = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return TextForm(has_colours=has_colours)


def set_level(level: str) -> None:
    """At once. Libraries are never more talkative than `info`: their details are theirs."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger(OWN_LOGGERS).setLevel(number)
    logging.getLogger().setLevel(max(number, logging.INFO))


def sink_for(stream: TextIO) -> tuple[LineSink, Callable[[], None]]:
    """A file takes lines at once. A pipe, a socket or a terminal may have a reader who stands still, and must
    not hold the agent with it. The second is to be called at the end."""
    try:
        descriptor = stream.fileno()
    except OSError:  # a text in memory
        return stream, stream.flush
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return stream, stream.flush
    stream.flush()

    def on_lost(lines: int) -> None:
        logger.warning(
            "%d log lines before this one are lost: whoever reads them stood still",
            lines,
            extra=about("log-lines-lost"),
        )

    waiting = WaitingLines(descriptor, on_lost)
    return waiting, waiting.close


def install(log_format: str, log_level: str, stream: TextIO | None = None) -> Callable[[], None]:
    """From now on, all that is reported in this process is a line on the stream, standard error unless
    another is given. One of FORMATS and one of LEVELS. Returns what takes all of it back."""
    chosen = sys.stderr if stream is None else stream
    reconfigure = getattr(chosen, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", errors="backslashreplace")  # JSON is UTF-8 in every locale
    root, own = logging.getLogger(), logging.getLogger(OWN_LOGGERS)
    kept = root.handlers[:], root.level, own.level
    kept_hooks = sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning
    sink, end = sink_for(chosen)
    root.handlers = [LogOutput(sink, form_for(log_format, chosen))]
    set_level(log_level)
    logging.captureWarnings(True)
    sys.excepthook = _on_uncaught
    threading.excepthook = _on_uncaught_in_thread
    sys.unraisablehook = _on_unraisable

    def take_back() -> None:
        end()
        root.handlers = kept[0]
        root.setLevel(kept[1])
        own.setLevel(kept[2])
        logging.captureWarnings(False)
        sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning = kept_hooks

    return take_back


def _on_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logger.critical(
        "nobody caught an exception; this is a bug", exc_info=error, extra=about("uncaught-exception")
    )


def _on_uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is None or issubclass(arguments.exc_type, SystemExit):
        return
    logger.critical(
        "nobody caught an exception in thread %s; this is a bug",
        arguments.thread.name if arguments.thread is not None else "?",
        exc_info=arguments.exc_value,
        extra=about("uncaught-exception"),
    )


def _on_unraisable(arguments: Any) -> None:
    """Of a destructor, mostly: nobody could have caught it. Its object may be half gone and is not shown."""
    source = arguments.object
    logger.error(
        "an exception was ignored in %s; this is a bug",
        getattr(source, "__qualname__", type(source).__qualname__),
        exc_info=arguments.exc_value,
        extra=about("ignored-exception"),
    )
