"""What clients of a table saw, and what must be true of it.

Law of this file: pure. Times are of one monotonic clock. A request whose outcome nobody knows has no status:
it may have happened at any time after it began, or never.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from log_history import Anomaly

from tests.agent.linearizability import NEVER, Operation, is_linearizable, register_outcome

EXAMPLES_MAX = 3
Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class RowAct:
    """A request about a row. kind: get, local, put, put-if, delete or delete-if. `value`: put, or read.
    `expected`: the value that a condition names, None for no row. `offset`: of the record that a write says
    it has stored. `current`: of the row that a refusal says it rests on; without a status it was repeated,
    and refused the second time."""

    client: str
    kind: str
    key: str
    value: str | None
    status: int | None
    begun: float
    ended: float
    expected: str | None = None
    partition: int = -1
    offset: int | None = None
    current: int | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A record of the log; without a value it deletes."""

    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Scanned:
    """A page of rows, read at leaders: value and offset by key. It speaks of all keys that begin with
    `prefix`, behind `after` if that is one, up to `last` if that is one. `cut`: the end of what it rests on,
    by partition."""

    client: str
    prefix: str
    after: str | None
    last: str | None
    rows: dict[str, tuple[str, int]]
    cut: dict[int, int]
    begun: float

    def speaks_of(self, key: str) -> bool:
        name = key.encode()
        return (
            key.startswith(self.prefix)
            and (self.after is None or name > self.after.encode())
            and (self.last is None or name <= self.last.encode())
        )


@dataclass
class Watched:
    """The changes that one watch told behind the word `current`, in their order. `since`: where each
    partition's began."""

    client: str
    since: dict[int, int]
    changes: list[tuple[Place, Stored]] = field(default_factory=list)


@dataclass
class TableHistory:
    """Everything that clients saw. `undone`: values whose writes were refused for certain. `logs`: the
    records of each partition as they were read at the end, `starts`: where each begins."""

    acts: list[RowAct] = field(default_factory=list)
    undone: set[str] = field(default_factory=set)
    watches: list[Watched] = field(default_factory=list)
    scans: list[Scanned] = field(default_factory=list)
    logs: dict[int, dict[int, Stored]] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)

    def record_at(self, partition: int, offset: int) -> Stored | None:
        """None where the log has no such record (any more)."""
        return self.logs.get(partition, {}).get(offset)

    def is_kept(self, partition: int, offset: int) -> bool:
        """Whether retention has left a record of that offset in place."""
        return offset >= self.starts.get(partition, 0)


def anomalies(history: TableHistory) -> list[Anomaly]:
    """What must not be, named; empty when all is well."""
    checks: dict[str, Callable[[TableHistory], Iterable[str]]] = {
        "NotLinearizable": _not_linearizable,
        "ReadOfNothing": _reads_of_nothing,
        "AcknowledgedMissing": _missing,
        "RefusedByNothing": _refusals_of_nothing,
        "WinnerRefused": _refused_winners,
        "StoredTwice": _twice,
        "ScanDiffers": _wrong_scans,
        "WatchDiffers": _wrong_watches,
    }
    found = []
    for name, check in checks.items():
        examples = list(check(history))
        if examples:
            found.append(Anomaly(name, len(examples), tuple(examples[:EXAMPLES_MAX])))
    return found


def _not_linearizable(history: TableHistory) -> Iterator[str]:
    """What the whole log has not has never happened: that leaves fewer orders to be tried."""
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for act in history.acts:
        if act.kind == "local" or (act.status is None and (act.kind == "get" or not _may_be(history, act))):
            continue
        ended = NEVER if act.status is None else act.ended
        by_key[act.key].append(Operation(act.kind, act.value, act.status, act.begun, ended, act.expected))
    for key, operations in by_key.items():
        if not is_linearizable(operations, outcome=register_outcome):
            yield f"{key}: {sorted(operations, key=lambda item: item.begun)}"


def _may_be(history: TableHistory, act: RowAct) -> bool:
    """Whether a write without an answer may have happened."""
    if act.partition not in history.logs or not history.is_kept(act.partition, 0):
        return True
    value = None if act.kind.startswith("delete") else act.value
    log = history.logs[act.partition].items()
    found = [offset for offset, item in log if item == Stored(act.key, value)]
    claimed = {other.offset for other in history.acts if other.key == act.key and other.status == 200}
    return any(offset not in claimed for offset in found)


def _reads_of_nothing(history: TableHistory) -> Iterator[str]:
    """A replica beside the leader gives values that are committed, perhaps old ones."""
    put = {(act.key, act.value) for act in history.acts if act.kind in ("put", "put-if")}
    for act in history.acts:
        if act.kind in ("get", "local") and act.value is not None:
            refused = act.value in history.undone
            if refused or (act.key, act.value) not in put:
                yield f"{act}"


def _missing(history: TableHistory) -> Iterator[str]:
    for act in history.acts:
        if act.offset is None or act.status != 200 or act.kind in ("get", "local"):
            continue
        value = None if act.kind.startswith("delete") else act.value
        found = history.record_at(act.partition, act.offset)
        if history.is_kept(act.partition, act.offset) and found != Stored(act.key, value):
            yield f"{act}: {found}"


def _refusals_of_nothing(history: TableHistory) -> Iterator[str]:
    """A refusal names the row that it rests on: that is in the log, since it was committed."""
    for act in history.acts:
        if act.status == 412 and act.current is not None and history.is_kept(act.partition, act.current):
            found = history.record_at(act.partition, act.current)
            if found is None or found.key != act.key or found.value is None:
                yield f"{act}: {found}"


def _refused_winners(history: TableHistory) -> Iterator[str]:
    """A write that is asked again is refused only if it was not stored: not because of itself, nor because of
    what came after it."""
    for act in history.acts:
        if act.current is not None and act.value is not None:
            log = history.logs.get(act.partition, {}).items()
            stored = [offset for offset, item in log if item.value == act.value and offset <= act.current]
            if stored:
                yield f"{act}: stored at {stored}"


def _twice(history: TableHistory) -> Iterator[str]:
    values = Counter(item.value for log in history.logs.values() for item in log.values() if item.value)
    yield from (f"{value} {count} times" for value, count in values.items() if count > 1)


def _wrong_scans(history: TableHistory) -> Iterator[str]:
    """A page is what the log says at its cut, and that is not before what was answered until then."""
    stored = [act for act in history.acts if act.status == 200 and act.offset is not None]
    for scan in history.scans:
        newest: dict[str, tuple[str | None, int]] = {}
        for partition, end in scan.cut.items():
            for offset, item in sorted(history.logs.get(partition, {}).items()):
                if offset < end and scan.speaks_of(item.key):
                    newest[item.key] = (item.value, offset)
        told = {key: scan.rows.get(key) for key in newest}
        wrong = {
            key: (told[key], there)
            for key, there in newest.items()
            if told[key] != (None if there[0] is None else there)
        }
        foreign = [key for key in scan.rows if not scan.speaks_of(key)]
        missed = [
            act
            for act in stored
            if act.ended < scan.begun
            and act.offset is not None
            and act.offset >= scan.cut.get(act.partition, 0)
        ]
        if wrong or foreign or missed:
            yield f"{scan}: wrong {wrong}, beyond its range {foreign}, older than {missed[:3]}"


def _wrong_watches(history: TableHistory) -> Iterator[str]:
    """A watch without a prefix tells each record of the log behind its start, in order."""
    for watch in history.watches:
        behind = dict(watch.since)
        for (partition, offset), told in watch.changes:
            skipped = [
                number
                for number in history.logs.get(partition, {})
                if behind.get(partition, 0) <= number < offset and number >= history.starts.get(partition, 0)
            ]
            if offset < behind.get(partition, 0) or skipped:
                before = behind.get(partition)
                yield f"{watch.client}: {partition}/{offset} behind {before}, without {skipped}"
            found = history.record_at(partition, offset)
            if history.is_kept(partition, offset) and found != told:
                yield f"{watch.client}: {partition}/{offset} is {found}, and was told as {told}"
            behind[partition] = offset + 1
