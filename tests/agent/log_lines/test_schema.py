"""Lines of the schema: what a record becomes, and that whatever Python reports becomes one."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import pathlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from shoal.agent.log_lines.names import Names
from shoal.agent.log_lines.output import TextForm, form_for, install, set_level
from shoal.agent.log_lines.repeats import EVENT_LINES_MAX, EVENTS_MAX, INTERVAL_S, EventBound
from shoal.agent.log_lines.schema import (
    KEYS,
    MESSAGE_CHARACTERS_MAX,
    TRACEBACK_CHARACTERS_MAX,
    about,
    faults_of,
    partition_facts,
    slug,
)

logger = logging.getLogger("shoal.agent.test")


class Group(NamedTuple):
    """As the agent's."""

    topic_id: bytes
    partition: int


@contextlib.contextmanager
def installed(log_format: str, log_level: str, stream: io.StringIO) -> Iterator[None]:
    take_back = install(log_format, log_level, stream)
    try:
        yield
    finally:
        take_back()


def documents(report: Callable[[], object], level: str = "info") -> list[dict[str, Any]]:
    """Each line that is written meanwhile, held against the schema."""
    stream = io.StringIO()
    with installed("json", level, stream):
        report()
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [fault for line in found for fault in faults_of(line)] == []
    return found


def one(report: Callable[[], object], level: str = "info") -> dict[str, Any]:
    (line,) = documents(report, level)
    return line


def fail(words: str) -> None:
    raise RuntimeError(words)


def test_a_record_becomes_a_document_with_what_it_states() -> None:
    """By the names that people gave, and without keys that say nothing."""
    names = Names()
    names.own = "cod"
    names.find_topic = lambda _: "orders"
    with names.in_use():
        line = one(
            lambda: logger.warning(
                "%s: damage found: %d bytes", Group(b"x" * 16, 3), 7, extra=about("damage-found")
            )
        )
    assert list(line) == ["ts", "level", "event", "agent", "logger", "message", "topic", "partition"]
    assert (line["level"], line["event"], line["agent"]) == ("warning", "damage-found", "cod")
    assert (line["topic"], line["partition"], line["logger"]) == ("orders", 3, "shoal.agent.test")


def test_every_key_can_be_filled() -> None:
    """And each has its kind."""
    stated = about("a-b", topic="t", partition=0, term=3, offset=5, request="GET /", total=1)
    names = Names()
    names.own = "cod"

    def report() -> None:
        try:
            fail("no")
        except RuntimeError:
            lists = {"members": ("a",), "partitions": ("t/0",), "held_back": 2}
            logger.exception("it failed", extra={**stated, **lists})

    with names.in_use():
        assert list(one(report)) == list(KEYS)


def test_a_traceback_is_a_field_of_one_line() -> None:
    """However long it is, and whatever stands in it."""

    def report() -> None:
        try:
            fail("x" * 2 * TRACEBACK_CHARACTERS_MAX + "\nthe\u2028 end\x85.")
        except RuntimeError:
            logger.exception("it failed")

    line = one(report)
    assert line["error"] == "RuntimeError"
    assert line["traceback"].endswith("\nthe\u2028 end\x85.")
    assert len(line["traceback"]) < TRACEBACK_CHARACTERS_MAX + 10


def test_what_nobody_caught_is_a_line() -> None:
    """In the main thread, in another one, in a destructor; and a warning of Python."""

    class Dying:
        def __del__(self) -> None:
            fail("in a destructor")

    def in_thread() -> None:
        thread = threading.Thread(target=fail, args=("in a thread",), name="worker")
        thread.start()
        thread.join()

    def in_main() -> None:
        try:
            fail("in main")
        except RuntimeError as error:
            sys.excepthook(RuntimeError, error, error.__traceback__)

    caught = one(in_main)
    assert (caught["level"], caught["event"], caught["error"]) == (
        "critical",
        "uncaught-exception",
        "RuntimeError",
    )
    threaded = one(in_thread)
    assert (threaded["event"], "worker" in threaded["message"]) == ("uncaught-exception", True)
    assert "in a thread" in threaded["traceback"]
    assert one(Dying)["event"] == "ignored-exception"
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warned = one(lambda: warnings.warn("old\nthing", DeprecationWarning, stacklevel=1))
    assert (warned["event"], warned["level"]) == ("python-warning", "warning")


def test_records_of_libraries_have_the_same_keys() -> None:
    """Their event is the library, whatever they put into their records."""
    line = one(lambda: logging.getLogger("asyncio.events").error("no %s", "news", extra={"topic": object()}))
    assert (line["event"], line["logger"], line["message"]) == ("asyncio", "asyncio.events", "no news")
    assert "topic" not in line


def test_a_line_that_does_not_fit_its_text_says_so() -> None:
    """Such a bug hides nothing and breaks no reader."""
    line = one(lambda: logger.info("%d topics", "seven"))
    assert (line["event"], line["error"]) == ("log-line-failed", "TypeError")
    assert "%d topics" in line["message"]


@pytest.mark.parametrize(
    ("template", "event"),
    [
        ("%s: damage found, by a read: %s", "damage-found"),
        (
            "_catalog: cannot read the voters from the log here: %s",
            "cannot-read-the-voters-from-the-log-here",
        ),
        ("disk full: %d bytes are free in %s, and appends", "disk-full"),
        ("the agent failed and stops", "agent-failed-and-stops"),
        ("%s", "other"),
    ],
)
def test_lines_without_a_stated_event_have_one_of_their_text(template: str, event: str) -> None:
    """The words that stay the same."""
    assert slug(template) == event


def test_lines_go_to_standard_error_and_nowhere_else(
    capfd: pytest.CaptureFixture[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file, no socket: whoever starts the agent decides where they end."""
    monkeypatch.chdir(tmp_path)
    take_back = install("json", "info")
    try:
        logger.warning("hello")
        (handler,) = logging.getLogger().handlers
    finally:
        take_back()
    told = capfd.readouterr()
    assert told.out == ""
    assert json.loads(told.err)["message"] == "hello"
    assert list(tmp_path.iterdir()) == []
    assert handler not in logging.getLogger().handlers


def test_text_is_for_people_and_a_message_is_one_line_of_it() -> None:
    """UTC with its zone; a stranger's line feed or escape forges nothing."""
    stream = io.StringIO()
    with installed("text", "info", stream):
        logger.warning("from %s", "a\n2026 ERROR b\x1b[2J\x9b")
        try:
            fail("no\x1b[2J")
        except RuntimeError:
            logger.exception("it failed")
    first, second, *trace = stream.getvalue().splitlines()
    time, level, place, message = first.split(maxsplit=3)
    assert (time[-1], time[10], level, place) == ("Z", "T", "WARNING", "shoal.agent.test")
    assert message == "from a\\x0a2026 ERROR b\\x1b[2J\\x9b"
    assert "\x1b" not in stream.getvalue()
    assert second.endswith("it failed")
    assert trace[0].startswith("Traceback")


class Terminal(io.StringIO):
    """Somebody looks at it."""

    def isatty(self) -> bool:
        return True


def test_terminals_get_text_and_everything_else_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours on terminals that have them, unless NO_COLOR says otherwise; either form can be asked for."""

    def shown(log_format: str, stream: io.StringIO) -> str:
        record = logging.LogRecord("shoal.agent", logging.WARNING, "", 1, "hello", (), None)
        return form_for(log_format, stream).format(record)

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[33mWARNING" in shown("auto", Terminal())
    assert json.loads(shown("auto", io.StringIO()))["message"] == "hello"
    assert json.loads(shown("json", Terminal()))["message"] == "hello"
    assert "\x1b" not in shown("text", io.StringIO())
    for variable, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patched:
            patched.setenv(variable, value)
            assert "\x1b" not in shown("auto", Terminal())


def test_a_level_changes_at_once_and_libraries_stay_at_info() -> None:
    """Their details help nobody who runs agents."""

    def report() -> None:
        logger.info("unheard")
        set_level("debug")
        logger.debug("heard")
        logging.getLogger("asyncio").debug("unheard")
        logging.getLogger("asyncio").info("heard too")

    assert [line["message"] for line in documents(report, "error")] == ["heard", "heard too"]


def test_an_installed_output_can_be_taken_back() -> None:
    """Nothing of it stays in the process."""
    before = logging.getLogger().handlers[:], sys.excepthook, threading.excepthook, warnings.showwarning
    with installed("auto", "info", io.StringIO()):
        assert logging.getLogger().handlers != before[0]
    assert before == (
        logging.getLogger().handlers,
        sys.excepthook,
        threading.excepthook,
        warnings.showwarning,
    )


def test_long_messages_are_cut() -> None:
    """A stranger's text may be any length."""
    assert len(one(lambda: logger.info("%s", "x" * 100_000))["message"]) < MESSAGE_CHARACTERS_MAX + 100


def test_lines_of_one_event_are_bounded_and_the_last_one_says_so() -> None:
    """A thousand damaged partitions fill no disk with lines; what is held back is counted."""
    bound = EventBound()

    def shown(event: str, now_s: float, level: int = logging.ERROR) -> logging.LogRecord | None:
        record = logging.LogRecord("shoal.agent", level, "", 1, "broken", (), None)
        vars(record).update(about(event), created=now_s)
        return record if bound.filter(record) else None

    records = [record for _ in range(1_000) if (record := shown("damage-found", 5.0)) is not None]
    assert len(records) == EVENT_LINES_MAX
    assert [record.msg for record in records if "held back" in record.msg] == [records[-1].msg]
    assert shown("another", 5.0) is not None
    assert shown("damage-found", 6.0, logging.DEBUG) is not None
    after = shown("damage-found", 5.0 + INTERVAL_S)
    assert after is not None
    assert vars(after)["held_back"] == 1_000 - EVENT_LINES_MAX


def test_a_flood_of_events_is_bounded_too() -> None:
    """Libraries name their loggers as they like; the bound forgets none for ever."""
    bound = EventBound()

    def count(names: str, now_s: float) -> int:
        shown = 0
        for number in range(EVENTS_MAX + 5 * EVENT_LINES_MAX):
            record = logging.LogRecord(f"{names}{number}", logging.INFO, "", 1, "x", (), None)
            record.created = now_s
            shown += bound.filter(record)
        return shown

    assert count("first", 0.0) == EVENTS_MAX + EVENT_LINES_MAX
    assert count("second", 2 * INTERVAL_S) >= EVENTS_MAX


@pytest.mark.parametrize(
    ("where", "facts"),
    [
        ("orders/3", {"topic": "orders", "partition": 3}),
        ("_catalog", {"topic": "_catalog", "partition": 0}),
        ("orders", {}),
    ],
)
def test_a_partition_by_its_name(where: str, facts: dict[str, object]) -> None:
    """As lines name it."""
    assert partition_facts(where) == facts


@pytest.mark.parametrize(
    "change",
    [
        {"ts": "2026-11-23 08:00:00"},
        {"level": "loud"},
        {"event": "Two words"},
        {"colour": "red"},
        {"partition": "3"},
        {"partition": True},
        {"message": ""},
    ],
)
def test_faults_of_a_line_are_found(change: dict[str, object]) -> None:
    """So that the test of a cluster's log can fail."""
    line = {
        "ts": "2026-11-23T08:00:00.123Z",
        "level": "info",
        "event": "ready",
        "logger": "a",
        "message": "b",
    }
    assert faults_of(line) == []
    assert faults_of(line | change) != []
    assert faults_of({key: value for key, value in line.items() if key != "event"}) != []


def test_the_text_form_counts_what_was_held_back() -> None:
    """For people as for programs."""
    record = logging.LogRecord("shoal.agent", logging.INFO, "", 1, "hello", (), None)
    vars(record)["held_back"] = 7
    assert TextForm(has_colours=False).format(record).endswith("hello (7 more were held back)")
