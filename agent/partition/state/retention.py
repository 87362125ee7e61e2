"""Which segments a partition may drop, and when it starts a new one: pure (safety 17, 18).

Ages count from the append (log_time.py), sizes from stored bytes; the producers' timestamps decide nothing.
Where there are consumer groups, the bytes of records alone count: no record goes for what is noted of it.
The leader asks; its answer becomes a committed TRIM entry, and every replica drops the same whole segments.
Never dropped: the newest segment whose checkpoint is committed, and anything after it.

A replica that lags holds the head back, so that it can still be sent the entries that it lacks. Once the log
holds twice the topic's limit (bytes or age), the head goes all the same, and the replica needs whole
segments. Consumer groups hold it back alike, and as long, where the topic says so. A group that nobody reads
for must not fill the disk. Where the topic says so, records that all groups are done with go at once.
"""

import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shoal.agent.partition.state.log_time import MAX_CLOCK_JUMP_US, PeerTime, Span
from shoal.format.batch import LogIndex, Offset

LAGGARD_PATIENCE = 2  # times what retention allows, held for a replica that lags
VIEW_PATIENCE_BYTES = 2**30
"""Of a log beside a view, held for a replica that lags."""
MAX_OPINION_AGE_MS = 60_000  # what a peer's clock said counts so long; it is asked again at half of that

_TRIM = struct.Struct("<4sHHq")
_MAGIC = b"SHTR"
_VERSION = 1


class RetentionError(ValueError):
    """The payload of a TRIM entry that is none."""


AgeOf: TypeAlias = Callable[[Span], int | None]
"""Microseconds since a segment's first or last entry was appended, None where nobody can tell."""


@dataclass(frozen=True, slots=True)
class Retention:
    """A topic's limits: ages in milliseconds, sizes in bytes, None without limit. `segment_age_ms`: a segment
    with records that is older gets a successor, so that its records can go in time. `hold_for_groups`:
    records that some consumer group is not done with are kept longer. `acknowledged`: those that all groups
    are done with go at once."""

    age_ms: int | None = None
    size_bytes: int | None = None
    segment_age_ms: int | None = None
    hold_for_groups: bool = False
    acknowledged: bool = False

    @property
    def is_unlimited(self) -> bool:
        return self.age_ms is None and self.size_bytes is None and not self.acknowledged

    def to_trim(
        self,
        spans: Sequence[Span],
        *,
        commit_index: int,
        held_index: int,
        age_us: AgeOf,
        done_before: Offset | None = None,
    ) -> LogIndex | None:
        """Before which entry the log may be trimmed; None when nothing may go.

        `held_index`: the last entry that every replica holds. `age_us`: of a segment, since its last entry;
        None where that is not to be believed, and then no age counts. `done_before`: all consumer groups are
        done with the records before; None without a group. It may rest on entries that are not committed: a
        TRIM that follows them is not either.
        """
        sizes = [span.size_bytes if done_before is None else span.data_bytes for span in spans]
        patient = self._expired(spans, sizes, age_us, 1)
        if done_before is not None:
            done = sum(span.end_offset <= done_before for span in spans)
            if self.hold_for_groups:
                patient = min(patient, done)
            if self.acknowledged:
                patient = max(patient, done)
        patient = min(patient, droppable(spans, min(commit_index, held_index)))
        overdue = min(self._expired(spans, sizes, age_us, LAGGARD_PATIENCE), droppable(spans, commit_index))
        count = max(patient, overdue)
        return spans[count].first_index if count else None

    def _expired(self, spans: Sequence[Span], sizes: Sequence[int], age_us: AgeOf, patience: int) -> int:
        """How many segments from the head on exceed `patience` times what is kept."""
        too_old = too_many = 0
        if self.age_ms is not None:
            limit_us = patience * self.age_ms * 1000
            while too_old < len(spans) and (age_us(spans[too_old]) or 0) > limit_us:
                too_old += 1
        if self.size_bytes is not None:
            held = sum(sizes)
            # A segment goes only if what is left still holds as much as is to be kept.
            while too_many < len(spans) and held - sizes[too_many] >= patience * self.size_bytes:
                held -= sizes[too_many]
                too_many += 1
        return max(too_old, too_many)

    def should_roll(self, active: Span, age_us: AgeOf) -> bool:
        """Whether the active segment has grown old with records in it. `age_us`: since its first entry."""
        ages = [age for age in (self.segment_age_ms, self.age_ms) if age is not None]
        if not ages or active.end_offset == active.first_offset:
            return False
        return (age_us(active) or 0) > min(ages) * 1000


def droppable(spans: Sequence[Span], index: int) -> int:
    """The number of segments from the head on that may go. The rest begins at or before `index`: with a
    committed checkpoint, or with an entry from which a replica that holds `index` can be sent on."""
    return max(0, sum(span.first_index <= index for span in spans) - 1)


def saved_elsewhere(
    spans: Sequence[Span], *, saved_offset: int, commit_index: int, held_index: int
) -> LogIndex | None:
    """Before which entry a log may be trimmed whose records before that offset stand in a sorted view; None
    when nothing may go. A replica that lags holds the head back as long as the log is small: then it copies
    a view."""
    saved_index = min(commit_index, known_from(spans, Offset(saved_offset)))
    count = droppable(spans, min(saved_index, held_index))
    size_bytes = sum(span.size_bytes for span in spans[count:])
    while count < droppable(spans, saved_index) and size_bytes > VIEW_PATIENCE_BYTES:
        size_bytes -= spans[count].size_bytes
        count += 1
    return spans[count].first_index if count else None


def known_from(spans: Sequence[Span], offset: int) -> LogIndex:
    """Where the log may begin for an owner that has the records before the offset elsewhere."""
    return max((span.first_index for span in spans if span.first_offset <= offset), default=LogIndex(0))


class PeerDifferences:
    """Which time other agents believe in, as each was asked last: offsets from this agent's monotonic clock,
    in microseconds."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[PeerTime, int]] = {}

    def note(self, agent_id: str, time: PeerTime, now_ms: int) -> None:
        """The agent's time when our monotonic clock said `now_ms`."""
        self._found[agent_id] = time, now_ms

    def is_fresh(self, agent_id: str, now_ms: int) -> bool:
        found = self._found.get(agent_id)
        return found is not None and now_ms - found[1] <= MAX_OPINION_AGE_MS

    def heard(self, now_ms: int) -> dict[str, PeerTime]:
        """Of each agent that was heard lately."""
        return {name: time for name, (time, _) in self._found.items() if self.is_fresh(name, now_ms)}

    def majority_agrees(self, own_id: str, own_offset_us: int, voters: Sequence[str], now_ms: int) -> bool:
        """Whether this agent and those voters that were heard lately, and are at most a minute off, are a
        majority of the voters. A clock that was not heard agrees with none."""
        agreeing = sum(
            voter == own_id
            or (
                self.is_fresh(voter, now_ms)
                and abs(self._found[voter][0].believed_us - own_offset_us) <= MAX_CLOCK_JUMP_US
            )
            for voter in voters
        )
        return 2 * agreeing > len(voters)

    def keep_only(self, agent_ids: Collection[str]) -> None:
        self._found = {name: found for name, found in self._found.items() if name in agent_ids}


def encode_trim(before_index: LogIndex) -> bytes:
    """The control payload of a TRIM entry: everything before this entry may go, in whole segments."""
    return _TRIM.pack(_MAGIC, _VERSION, 0, before_index)


def decode_trim(data: bytes) -> LogIndex:
    """Raises RetentionError."""
    if len(data) != _TRIM.size:
        raise RetentionError(f"a trim of {len(data)} bytes")
    magic, version, reserved, before_index = _TRIM.unpack(data)
    if magic != _MAGIC or version != _VERSION or reserved or before_index < 1:
        raise RetentionError(f"not a trim of version {_VERSION}")
    return LogIndex(before_index)
