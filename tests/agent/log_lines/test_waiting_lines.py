"""Whoever reads the log may stand still: nobody else does, and what is lost is counted."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pathlib
from collections.abc import Iterator

import pytest

from shoal.agent.log_lines import waiting_lines
from shoal.agent.log_lines.output import install
from shoal.agent.log_lines.waiting_lines import WAITING_CHARACTERS_MAX, WaitingLines

LINE = "x" * 999
MANY = 3 * WAITING_CHARACTERS_MAX // len(LINE)


class Reader:
    """Of a pipe, who may stand still."""

    def __init__(self) -> None:
        end, self.writer = os.pipe()
        self._lines = os.fdopen(end, "r", encoding="utf-8")

    def line(self) -> str:
        """The next one."""
        return self._lines.readline().removesuffix("\n")

    def go(self) -> None:
        """Nobody reads any more."""
        self._lines.close()

    def close(self) -> None:
        self._lines.close()
        os.close(self.writer)


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.close()


def test_a_reader_who_stands_still_holds_nobody_and_hears_what_was_lost(reader: Reader) -> None:
    """The lines that are kept come whole and in order; the others are counted, all of them."""
    lost: list[int] = []

    def on_lost(number: int) -> None:
        lost.append(number)
        lines.write("lost\n")

    lines = WaitingLines(reader.writer, on_lost)
    for number in range(MANY):
        lines.write(f"{number} {LINE}\n")
    found = []
    while (line := reader.line()) != "lost":
        number, _, rest = line.partition(" ")
        assert rest == LINE
        found.append(int(number))
    assert found == sorted(set(found))
    assert lost == [MANY - len(found)]
    assert WAITING_CHARACTERS_MAX // len(LINE) - 50 < len(found) < MANY
    lines.close()


def test_an_agents_log_says_how_much_of_it_is_lost(reader: Reader) -> None:
    """A line of the log like any other, with its event."""
    with os.fdopen(os.dup(reader.writer), "w", encoding="utf-8") as stream:
        take_back = install("json", "debug", stream)
        for _ in range(MANY):
            logging.getLogger("shoal.agent").debug("%s", LINE)
        document = json.loads(reader.line())
        while document["event"] != "log-lines-lost":
            document = json.loads(reader.line())
        assert (document["level"], document["logger"]) == ("warning", "shoal.agent")
        take_back()


def test_a_file_has_each_line_at_once(tmp_path: pathlib.Path) -> None:
    """Nobody reads it through a pipe; and the last line before a crash is there."""
    with open(tmp_path / "log", "w", encoding="utf-8") as stream:
        take_back = install("json", "info", stream)
        logging.getLogger("shoal.agent").info("hello")
        assert json.loads((tmp_path / "log").read_text())["message"] == "hello"
        take_back()


def test_the_end_waits_for_a_reader_but_not_for_ever(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read is written; a pipe that is full keeps no process from ending."""
    lines = WaitingLines(reader.writer, lambda _: None)
    for number in range(50):
        lines.write(f"{number}\n")
    lines.close()
    assert [reader.line() for _ in range(50)] == [str(number) for number in range(50)]
    assert lines.closed
    lines.write("late\n")

    monkeypatch.setattr(waiting_lines, "END_SECONDS_MAX", 0.05)
    stuck = WaitingLines(reader.writer, lambda _: None)
    for _ in range(MANY):
        stuck.write(LINE)
    stuck.close()
    reader.go()
    stuck._thread.join(60)
    assert not stuck._thread.is_alive()


def test_a_stream_that_is_gone_or_does_not_wait_is_no_fault(reader: Reader) -> None:
    """Whoever shares a stream may have made it one that does not wait."""
    flags = fcntl.fcntl(reader.writer, fcntl.F_GETFL)
    fcntl.fcntl(reader.writer, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    lines = WaitingLines(reader.writer, lambda _: None)
    for number in range(200):
        lines.write(f"{number} {LINE}\n")
    assert [reader.line() for _ in range(200)] == [f"{number} {LINE}" for number in range(200)]
    reader.go()
    lines.write("nobody\n")
    lines.close()
    assert not lines._thread.is_alive()
