"""Lines that repeat are held back to one a minute, and counted. The clock is that of the records."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from shoal.agent.log_lines.repeats import INTERVAL_S, KINDS_MAX, RepeatFilter, once_a_minute

logger = logging.getLogger("shoal.test")
seldom = once_a_minute(logger)


class Heard(logging.Handler):
    """What the process's handler would show."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(RepeatFilter())
        self.lines: list[str] = []
        self.now_s = 1_000.0

    def handle(self, record: logging.LogRecord) -> bool:
        record.created = self.now_s
        return bool(super().handle(record))

    def emit(self, record: logging.LogRecord) -> None:
        count = getattr(record, "held_back", 0)
        self.lines.append(record.getMessage() + (f" +{count}" if count else ""))


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler = Heard()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)


def refuse(address: str, reason: str = "no member") -> None:
    seldom.info("refused a link from %s: %s", address, OSError(reason))


def test_the_same_line_is_shown_once_a_minute_with_the_number_held_back(heard: Heard) -> None:
    """Twice a second, as an agent dials one whose data were removed; errors may differ each time."""
    for number in range(241):
        refuse("10.0.0.1", f"after {number} ms")
        heard.now_s += 0.5
    assert heard.lines == [
        "refused a link from 10.0.0.1: after 0 ms",
        "refused a link from 10.0.0.1: after 120 ms +119",
        "refused a link from 10.0.0.1: after 240 ms +119",
    ]


def test_other_places_and_other_arguments_are_other_lines(heard: Heard) -> None:
    """Each address is shown, and each thing that is said of it."""
    refuse("10.0.0.1")
    refuse("10.0.0.2")
    seldom.info("refused a link from %s: %s", "10.0.0.1", OSError("here"))
    refuse("10.0.0.1")
    assert len(heard.lines) == 3


def test_lines_that_are_not_said_to_repeat_are_never_held_back(heard: Heard) -> None:
    """What happens thrice is told thrice."""
    for _ in range(3):
        logger.info("herring failed")
    assert heard.lines == ["herring failed"] * 3


def test_after_a_quiet_minute_a_line_is_new(heard: Heard) -> None:
    """Nothing was held back, so nothing is counted."""
    refuse("10.0.0.1")
    heard.now_s += INTERVAL_S
    refuse("10.0.0.1")
    assert heard.lines == ["refused a link from 10.0.0.1: no member"] * 2


def test_what_a_call_states_is_kept(heard: Heard) -> None:
    """Such a line has an event as any other."""
    records: list[logging.LogRecord] = []
    heard.emit = records.append  # type: ignore[method-assign,assignment]
    seldom.info("no answer", extra={"event": "peer-silent"})
    assert [vars(record)["event"] for record in records] == ["peer-silent"]


def test_a_flood_of_kinds_is_bounded_in_lines_and_in_memory(heard: Heard) -> None:
    """Who chooses the arguments gets one more line for all of them."""
    for number in range(5 * KINDS_MAX):
        refuse(f"stranger {number}")
    assert len(heard.lines) == KINDS_MAX + 1
    (only,) = heard.filters
    assert isinstance(only, RepeatFilter)
    assert len(only._shown) <= KINDS_MAX + 1
    heard.now_s += INTERVAL_S
    refuse("a new one")
    assert heard.lines[-1].endswith("a new one: no member")
    assert len(only._shown) <= KINDS_MAX + 1


def test_a_clock_that_is_set_back_silences_nothing(heard: Heard) -> None:
    """The day before, all would be held back for a day."""
    refuse("10.0.0.1")
    heard.now_s -= 86_400
    refuse("10.0.0.1")
    refuse("10.0.0.1")
    assert len(heard.lines) == 2


def test_a_flood_before_the_clock_was_set_back_silences_nothing_either(heard: Heard) -> None:
    """Kinds of then make room."""
    heard.now_s += 86_400
    for number in range(KINDS_MAX):
        refuse(f"stranger {number}")
    heard.now_s -= 86_400
    for number in range(3):
        refuse(f"another {number}")
    assert len(heard.lines) == KINDS_MAX + 3
