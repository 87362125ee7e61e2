"""What clients of a log saw, and the anomalies of Jepsen's log workloads that it shows.

Law of this file: pure. It knows operations with their times and outcomes, and the log as it was read at the
end; it knows no agent and no clock. Every value is written once, so that wherever it appears its origin is
certain.

The names are those of Jepsen's Kafka workload where it has one: lost-write, duplicate, inconsistent-offsets,
poll-skip, nonmonotonic-poll, aborted-read; `reordered` is nonmonotonic-send, `stale` its realtime check;
`overtaken` is its realtime edge between the appends of different producers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

Partition = tuple[str, int]
Outcome = Literal["ok", "fail", "info"]
"""Done; certainly not done; nobody knows."""
EXAMPLES_MAX = 3
LATEST, EARLIEST = -1, -2
"""Places that a read names instead of an offset."""
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Append:
    """One producer's request, with all its repetitions. Times in seconds of one clock. `at_leader_only`: it
    was sent once, and answered before anybody but the leader had it: it may be lost, or stands as told."""

    producer: str
    sequence: int
    partition: Partition
    values: tuple[str, ...]
    invoked_at: float
    completed_at: float
    outcome: Outcome
    base_offset: int | None = None
    at_leader_only: bool = False


@dataclass(frozen=True, slots=True)
class Poll:
    """One answered read at `offset`, LATEST (the last record) or EARLIEST. `linearizable`: not from a local
    replica. `seen`: the end that the reader said it had seen; `end`: the one that it was told. `told_start`:
    where the log was said to begin when an earlier offset was refused, by another replica perhaps."""

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
    completed_at: float = NEVER

    @property
    def states_the_end(self) -> bool:
        """Whether it says that there is nothing more; others may have been cut short."""
        return not self.records or self.offset == LATEST


@dataclass(frozen=True, slots=True)
class Ends:
    """What was said of a log's two ends as such, by its leader: an answer about offsets, or the refusal of
    an offset that is trimmed (then `high_watermark` is None)."""

    reader: str
    partition: Partition
    log_start_offset: int
    high_watermark: int | None
    invoked_at: float
    completed_at: float


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
    ends: list[Ends] = field(default_factory=list)
    finals: list[FinalLog] = field(default_factory=list)
    may_be_copied: set[str] = field(default_factory=set)
    """Values that may stand again, as others' records: nothing is said of where they stand."""

    @property
    def acknowledged_records(self) -> int:
        return sum(len(append.values) for append in self.appends if append.outcome == "ok")


class _Known:
    """The highest number that somebody had been told at a time."""

    def __init__(self, told: list[tuple[float, int]]) -> None:
        self._times: list[float] = []
        self._highest: list[int] = []
        highest = 0
        for at, number in sorted(told):
            highest = max(highest, number)
            self._times.append(at)
            self._highest.append(highest)

    def before(self, time_s: float) -> int:
        """Told before then, not at that very instant; 0 if nothing was."""
        place = bisect_left(self._times, time_s)
        return self._highest[place - 1] if place else 0


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
        self._check_real_time()
        self._check_polls()
        self._check_staleness()
        self._check_starts()
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
                if log[offset] not in self._history.may_be_copied:
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
                if not offsets and value not in self._history.may_be_copied:
                    is_kept = start == 0 if told is None else told >= start
                    if is_kept and not append.at_leader_only:
                        self._note("lost-write", f"{value} was acknowledged at {append.partition}@{told}")
                elif offsets and told is not None and told not in offsets:
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
            if poll.offset == EARLIEST:
                expected = poll.log_start_offset
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

    def _told_ends(self, *, appends: bool) -> dict[Partition, _Known]:
        """How far each log was known to reach, by acknowledged `appends` and by whatever readers saw."""
        told: dict[Partition, list[tuple[float, int]]] = defaultdict(list)
        for append in self._history.appends if appends else ():
            if append.outcome == "ok" and append.base_offset is not None and not append.at_leader_only:
                end = append.base_offset + len(append.values)
                told[append.partition].append((append.completed_at, end))
        for poll in self._history.polls:
            if poll.records:
                told[poll.partition].append((poll.completed_at, poll.records[-1][0] + 1))
        for ends in self._history.ends:
            if ends.high_watermark is not None:
                told[ends.partition].append((ends.completed_at, ends.high_watermark))
        return defaultdict(lambda: _Known([]), {key: _Known(items) for key, items in told.items()})

    def _check_real_time(self) -> None:
        """What was sent after another append was answered, or after a record was read, stands behind that,
        whoever sent it (linearizability); by its place in the log, or by the answer where that is trimmed.
        An append that only its leader had may be lost, but where it stands it stands in this order too: its
        index was given in its term before the other one's was."""
        placed: dict[Partition, list[tuple[Append, int]]] = defaultdict(list)
        for append in self._history.appends:
            if append.outcome != "ok":
                continue
            offsets = self._places.get(append.partition, {}).get(append.values[0], [])
            if offsets:
                placed[append.partition].append((append, offsets[0]))
            elif append.base_offset is not None and not append.at_leader_only:
                placed[append.partition].append((append, append.base_offset))
        read = self._told_ends(appends=False)
        for partition, appends in placed.items():
            answered = _Known([(item.completed_at, offset + len(item.values)) for item, offset in appends])
            for item, offset in appends:
                known = max(answered.before(item.invoked_at), read[partition].before(item.invoked_at))
                if offset < known:
                    self._note(
                        "overtaken",
                        f"{item.values[0]}@{offset} of {partition} was sent when {known - 1} was known",
                    )

    def _check_staleness(self) -> None:
        """Who says for certain where a log ends knows every append acknowledged before, every record that was
        read, and whatever was said of that end before; and says no more than there will have been."""
        told = self._told_ends(appends=True)
        said = [
            (poll.reader, poll.partition, poll.next_offset, poll.invoked_at)
            for poll in self._history.polls
            if poll.linearizable and poll.states_the_end and poll.offset != EARLIEST
        ] + [
            (ends.reader, ends.partition, ends.high_watermark, ends.invoked_at)
            for ends in self._history.ends
            if ends.high_watermark is not None
        ]
        for reader, partition, end, invoked_at in said:
            known = told[partition].before(invoked_at)
            if end < known:
                self._note("stale", f"{reader} was told {partition} ends at {end}, not {known}")
        for ends in self._history.ends:
            log = self._log.get(ends.partition)
            final = max(log) + 1 if log else self._start.get(ends.partition, 0)
            if ends.high_watermark is not None and log is not None and ends.high_watermark > final:
                self._note(
                    "phantom",
                    f"{ends.reader} was told {ends.partition} ends at {ends.high_watermark}, not {final}",
                )

    def _check_starts(self) -> None:
        """A log's start never goes back for those who ask its leader: what was said to be gone is gone."""
        said = [
            (poll.reader, poll.partition, poll.log_start_offset, poll.invoked_at, poll.completed_at)
            for poll in self._history.polls
            if poll.linearizable and poll.offset == EARLIEST
        ] + [
            (ends.reader, ends.partition, ends.log_start_offset, ends.invoked_at, ends.completed_at)
            for ends in self._history.ends
        ]
        told: dict[Partition, list[tuple[float, int]]] = defaultdict(list)
        for _, partition, start, _, completed_at in said:
            told[partition].append((completed_at, start))
        known = {partition: _Known(items) for partition, items in told.items()}
        for reader, partition, start, invoked_at, _ in said:
            before = known[partition].before(invoked_at)
            if start < before:
                self._note("stale-start", f"{reader} was told {partition} begins at {start}, not {before}")
            final = self._start.get(partition)
            if final is not None and start > final:
                self._note("stale-start", f"{partition} begins at {final}, {reader} was told {start}")

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
