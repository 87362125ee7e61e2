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
    it has stored. `current`: of the row that a refusal says it rests on."""

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
        "StoredTwice": _twice,
        "WatchDiffers": _wrong_watches,
    }
    found = []
    for name, check in checks.items():
        examples = list(check(history))
        if examples:
            found.append(Anomaly(name, len(examples), tuple(examples[:EXAMPLES_MAX])))
    return found


def _not_linearizable(history: TableHistory) -> Iterator[str]:
    by_key: dict[str, list[Operation]] = defaultdict(list)
    for act in history.acts:
        if act.kind == "local" or (act.kind == "get" and act.status is None):
            continue
        ended = NEVER if act.status is None else act.ended
        by_key[act.key].append(Operation(act.kind, act.value, act.status, act.begun, ended, act.expected))
    for key, operations in by_key.items():
        if not is_linearizable(operations, outcome=register_outcome):
            yield f"{key}: {sorted(operations, key=lambda item: item.begun)}"


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


def _twice(history: TableHistory) -> Iterator[str]:
    values = Counter(item.value for log in history.logs.values() for item in log.values() if item.value)
    yield from (f"{value} {count} times" for value, count in values.items() if count > 1)


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
