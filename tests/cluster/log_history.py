"""What clients of a log saw, and the anomalies of Jepsen's log workloads that it shows.

Law of this file: pure. It knows operations with their times and outcomes, and the log as it was read at the
end; it knows no agent and no clock. Every value is written once, so that wherever it appears its origin is
certain.

The names are those of Jepsen's Kafka workload where it has one: lost-write, duplicate, inconsistent-offsets,
poll-skip, nonmonotonic-poll, aborted-read; `reordered` is nonmonotonic-send, `stale` its realtime check.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

Partition = tuple[str, int]
Outcome = Literal["ok", "fail", "info"]
"""Done; certainly not done; nobody knows."""
EXAMPLES_MAX = 3


@dataclass(frozen=True, slots=True)
class Append:
    """One producer's request, with all its repetitions. Times in seconds of one clock."""

    producer: str
    sequence: int
    partition: Partition
    values: tuple[str, ...]
    invoked_at: float
    completed_at: float
    outcome: Outcome
    base_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """One answered read at `offset` (-1: the last record). `linearizable`: not from a local replica. `seen`:
    the end that the reader said it had seen; `end`: the one that it was told. `told_start`: where the log was
    said to begin when an earlier offset was refused, by another replica perhaps."""

    reader: str
    partition: Partition
    offset: int
    records: tuple[tuple[int, str], ...]
    next_offset: int
    invoked_at: float
    linearizable: bool = True
    log_start_offset: int = 0
    seen: int = 0
    end: int | None = None
    told_start: int = 0


@dataclass(frozen=True, slots=True)
class FinalLog:
    """A partition as read at the end, at one agent."""

    partition: Partition
    agent: str
    log_start_offset: int
    records: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One name of a fault, how often it was seen, and the first few places."""

    name: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} x{self.count}: {'; '.join(self.examples)}"


@dataclass
class History:
    """Everything clients did."""

    appends: list[Append] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    finals: list[FinalLog] = field(default_factory=list)

    @property
    def acknowledged_records(self) -> int:
        return sum(len(append.values) for append in self.appends if append.outcome == "ok")


class Checker:
    """Looks for every anomaly; `anomalies()` is empty for a log that kept its promises."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._found: dict[str, list[str]] = defaultdict(list)
        self._log: dict[Partition, dict[int, str]] = defaultdict(dict)
        """The truth: what the longest final read says."""
        self._start: dict[Partition, int] = {}
        self._places: dict[Partition, dict[str, list[int]]] = {}

    def anomalies(self) -> list[Anomaly]:
        self._read_finals()
        self._check_values()
        self._check_appends()
        self._check_order()
        self._check_polls()
        self._check_staleness()
        self._check_readers()
        return [
            Anomaly(name, len(places), tuple(places[:EXAMPLES_MAX]))
            for name, places in sorted(self._found.items())
        ]

    def _note(self, name: str, text: str) -> None:
        self._found[name].append(text)

    def _read_finals(self) -> None:
        for final in sorted(self._history.finals, key=lambda item: -len(item.records)):
            log = self._log[final.partition]
            start = self._start.get(final.partition)
            self._start[final.partition] = (
                final.log_start_offset if start is None else max(start, final.log_start_offset)
            )
            expected = final.log_start_offset
            for offset, value in final.records:
                if offset != expected:
                    self._note(
                        "gap", f"{final.partition} at {final.agent}: {offset} where {expected} was due"
                    )
                expected = offset + 1
                if log.setdefault(offset, value) != value:
                    self._note(
                        "inconsistent-offsets",
                        f"{final.partition}@{offset} is {value} at {final.agent}, {log[offset]} elsewhere",
                    )
        for partition, log in self._log.items():
            places: dict[str, list[int]] = defaultdict(list)
            for offset in sorted(log):
                places[log[offset]].append(offset)
            self._places[partition] = places

    def _check_values(self) -> None:
        """Each value stands once, and somebody wrote it who was not told that it failed."""
        failed = {value for item in self._history.appends if item.outcome == "fail" for value in item.values}
        written = {value for item in self._history.appends for value in item.values}
        for partition, places in self._places.items():
            for value, offsets in places.items():
                if len(offsets) > 1:
                    self._note("duplicate", f"{value} in {partition} at {offsets}")
                if value in failed:
                    self._note("aborted-read", f"{value} failed for certain, stands at {partition}@{offsets}")
                elif value not in written:
                    self._note("phantom", f"{value} at {partition}@{offsets} was written by nobody")

    def _check_appends(self) -> None:
        """What was acknowledged is where the answer said."""
        for append in self._history.appends:
            if append.outcome != "ok" or append.partition not in self._places:
                continue
            start = self._start[append.partition]
            places = self._places[append.partition]
            for number, value in enumerate(append.values):
                told = None if append.base_offset is None else append.base_offset + number
                offsets = places.get(value, [])
                if not offsets:
                    if told is None or told >= start:
                        self._note("lost-write", f"{value} was acknowledged at {append.partition}@{told}")
                elif told is not None and told not in offsets:
                    self._note("inconsistent-offsets", f"{value} answered as {told}, stands at {offsets}")

    def _check_order(self) -> None:
        """What one producer sent one after the other, each after the answer to the one before, stands in
        that order. What was never answered may come late."""
        newest: dict[tuple[str, Partition], tuple[int, int, str]] = {}
        for append in sorted(self._history.appends, key=lambda item: (item.producer, item.sequence)):
            if append.outcome != "ok":
                continue
            places = self._places.get(append.partition, {})
            for number, value in enumerate(append.values):
                for offset in places.get(value, [])[:1]:
                    key = (append.producer, append.partition)
                    before = newest.get(key)
                    if before is not None and offset < before[1]:
                        self._note("reordered", f"{value}@{offset} stands before {before[2]}@{before[1]}")
                    newest[key] = (append.sequence * 1_000_000 + number, offset, value)

    def _check_polls(self) -> None:
        """A read gives what the log holds, from where it was asked, without a hole."""
        for poll in self._history.polls:
            log = self._log.get(poll.partition, {})
            expected = poll.offset if poll.offset >= 0 else None
            for offset, value in poll.records:
                if expected is not None and offset > expected and offset > poll.log_start_offset:
                    self._note("poll-skip", f"{poll.reader} got {poll.partition}@{offset}, not {expected}")
                elif expected is not None and offset < expected:
                    self._note("nonmonotonic-poll", f"{poll.reader} got {offset}, asked for {expected}")
                expected = offset + 1
                if offset >= self._start.get(poll.partition, 0) and log.get(offset) != value:
                    name = "aborted-read" if offset not in log else "inconsistent-offsets"
                    self._note(
                        name, f"{poll.reader} read {value} at {poll.partition}@{offset}: {log.get(offset)}"
                    )

    def _check_staleness(self) -> None:
        """A linearizable read that says "here is the end" knows every append acknowledged before it began."""
        acknowledged: dict[Partition, list[tuple[float, int]]] = defaultdict(list)
        for append in self._history.appends:
            if append.outcome == "ok" and append.base_offset is not None:
                end = append.base_offset + len(append.values)
                acknowledged[append.partition].append((append.completed_at, end))
        ends: dict[Partition, tuple[list[float], list[int]]] = {}
        for partition, items in acknowledged.items():
            times, highest, end = [], [], 0
            for at, reached in sorted(items):
                end = max(end, reached)
                times.append(at)
                highest.append(end)
            ends[partition] = (times, highest)
        for poll in self._history.polls:
            if not poll.linearizable or poll.partition not in ends or (poll.records and poll.offset >= 0):
                continue
            times, highest = ends[poll.partition]
            place = bisect_right(times, poll.invoked_at)
            known = highest[place - 1] if place else 0
            if poll.next_offset < known:
                self._note(
                    "stale",
                    f"{poll.reader} was told {poll.partition} ends at {poll.next_offset}, not {known}",
                )

    def _check_readers(self) -> None:
        """One reader that goes from poll to poll never steps back, though it read at a local replica (safety
        23), and never leaves anything out."""
        position: dict[tuple[str, Partition], int] = {}
        for poll in self._history.polls:
            if poll.end is not None and poll.end < poll.seen:
                self._note("nonmonotonic-poll", f"{poll.reader} was told end {poll.end} after {poll.seen}")
            if poll.offset < 0:
                continue
            key = (poll.reader, poll.partition)
            before = position.get(key)
            if before is not None and poll.offset != before:
                name = "poll-skip" if poll.offset > before else "nonmonotonic-poll"
                if poll.offset > max(poll.log_start_offset, poll.told_start):
                    self._note(name, f"{poll.reader} went on at {poll.offset} after {before}")
            if poll.next_offset < poll.offset:
                self._note("nonmonotonic-poll", f"{poll.reader} was sent back to {poll.next_offset}")
            position[key] = poll.next_offset
