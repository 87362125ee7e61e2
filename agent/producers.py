"""The idempotence table of one partition: which sequences of which producers are in the log.

Law of this file: pure, and a fold of the log. The table changes only by `record` (an entry was appended, on
the leader or on a follower), `undo_from` (the log's suffix was cut) and `settle` (a prefix is committed and
can never be cut again). Time is the entry's append time, never a clock, so every replica that folds the same
entries holds the same table (safety 18, 19). It never learns what a future, a file or a socket is.
"""

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from shoal.batch import LogIndex, Offset, ProducerStamp
from shoal.errors import ShoalError

SEQUENCES_KEPT = 5
"""A client may have this many requests in flight; an older repetition can no longer be told from a gap."""

MAX_PRODUCERS = 2_048
"""Producers remembered per partition: about 360 KiB at the head of a segment when every slot is in use."""

PRODUCER_EXPIRY_US = 24 * 3600 * 1_000_000
"""A producer silent for a day of append time is forgotten; its next batch has to open a new epoch at
sequence 0."""

_PRODUCER = struct.Struct("<16sqqB")
_SEQUENCE = struct.Struct("<qqIq")
_COUNT = struct.Struct("<I")


class ProducerTableError(ValueError):
    """The bytes are not a producer table: the one error of the decoder here."""


class KeptSequence(NamedTuple):
    """One remembered sequence: where its records went, and the entry whose commit makes that true."""

    sequence: int
    base_offset: Offset
    rows: int
    entry: LogIndex


class ProducerEntry(NamedTuple):
    """What is known of one producer. `recent` is oldest first, at most SEQUENCES_KEPT, never empty."""

    epoch: int
    last_append_time_us: int
    recent: tuple[KeptSequence, ...]


class _Undo(NamedTuple):
    entry: LogIndex
    producer_id: bytes
    before: ProducerEntry | None


class ProducerTable:
    """Producers in the order of their last append, the longest silent first."""

    def __init__(self, *, max_producers: int = MAX_PRODUCERS, expiry_us: int = PRODUCER_EXPIRY_US) -> None:
        assert max_producers > 0
        assert expiry_us > 0
        self._max_producers = max_producers
        self._expiry_us = expiry_us
        self._entries: dict[bytes, ProducerEntry] = {}
        # One item per change above the commit index; bounded by the core's bound on uncommitted entries.
        self._undo: deque[_Undo] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[bytes, ProducerEntry]]:
        return iter(self._entries.items())

    def __repr__(self) -> str:
        return f"ProducerTable(producers={len(self._entries)} undo={len(self._undo)})"

    def check(self, producer: ProducerStamp, *, consecutive: bool = True) -> KeptSequence | None:
        """None when `producer` may append; the remembered place when this sequence is already in the log.

        `consecutive` is the rule of the partition route: the sequence after the last one, starting at 0.
        Without it (the key-routed route spreads one producer's sequences over partitions) a sequence need
        only increase. Raises ShoalError producer-fenced or sequence-gap; both certify that nothing was
        appended.
        """
        known = self._entries.get(producer.producer_id)
        if known is None:
            self._check_first(producer, consecutive, "unknown here (new, or forgotten after a long silence)")
            return None
        if producer.epoch < known.epoch:
            raise ShoalError(
                "producer-fenced",
                f"epoch {producer.epoch} was replaced by {known.epoch}: a newer instance is writing",
                epoch=known.epoch,
            )
        if producer.epoch > known.epoch:
            self._check_first(producer, consecutive, f"new at epoch {producer.epoch}")
            return None
        for kept_sequence in known.recent:
            if kept_sequence.sequence == producer.sequence:
                return kept_sequence
        last = known.recent[-1].sequence
        if producer.sequence == last + 1 or (not consecutive and producer.sequence > last):
            return None
        raise ShoalError(
            "sequence-gap",
            f"sequence {producer.sequence} does not follow {last}, the producer's last in this partition",
            last_sequence=last,
        )

    def _check_first(self, producer: ProducerStamp, consecutive: bool, reason: str) -> None:
        if consecutive and producer.sequence != 0:
            raise ShoalError(
                "sequence-gap",
                f"the producer is {reason}: its first sequence is 0, not {producer.sequence}: open an epoch",
                last_sequence=None,
            )

    def record(
        self,
        producer: ProducerStamp,
        *,
        base_offset: Offset,
        count: int,
        index: LogIndex,
        append_time_us: int,
    ) -> None:
        """Fold one appended range. The log is the truth: whatever it holds is recorded, without a second
        check."""
        self._expire(index, append_time_us)
        producer_id = producer.producer_id
        before = self._entries.pop(producer_id, None)
        recent: tuple[KeptSequence, ...] = ()
        if before is not None and before.epoch == producer.epoch:
            recent = before.recent[-(SEQUENCES_KEPT - 1) :]
        kept_sequence = KeptSequence(producer.sequence, base_offset, count, index)
        self._entries[producer_id] = ProducerEntry(producer.epoch, append_time_us, (*recent, kept_sequence))
        self._undo.append(_Undo(index, producer_id, before))
        if len(self._entries) > self._max_producers:
            self._forget_oldest(index)

    def _expire(self, index: LogIndex, append_time_us: int) -> None:
        horizon = append_time_us - self._expiry_us
        while self._entries:
            oldest = next(iter(self._entries.values()))
            if oldest.last_append_time_us >= horizon:
                return
            self._forget_oldest(index)

    def _forget_oldest(self, index: LogIndex) -> None:
        producer_id = next(iter(self._entries))
        self._undo.append(_Undo(index, producer_id, self._entries.pop(producer_id)))

    def settle(self, commit_index: LogIndex) -> None:
        """Entries up to `commit_index` can never be cut again: forget how to undo them."""
        undo = self._undo
        while undo and undo[0].entry <= commit_index:
            undo.popleft()

    def undo_from(self, from_index: LogIndex) -> None:
        """The log was cut from `from_index` on: return to the table as it was before that entry."""
        undo = self._undo
        if not undo or undo[-1].entry < from_index:
            return
        while undo and undo[-1].entry >= from_index:
            change = undo.pop()
            if change.before is None:
                self._entries.pop(change.producer_id, None)
            else:
                self._entries[change.producer_id] = change.before
        # Offsets only grow, so the last one orders producers exactly as appending had.
        ordered = sorted(self._entries.items(), key=lambda item: item[1].recent[-1].base_offset)
        self._entries = dict(ordered)

    def to_bytes(self) -> bytes:
        """The table as it stands in a checkpoint, oldest producer first."""
        parts = [_COUNT.pack(len(self._entries))]
        for producer_id, entry in self._entries.items():
            parts.append(
                _PRODUCER.pack(producer_id, entry.epoch, entry.last_append_time_us, len(entry.recent))
            )
            parts.extend(_SEQUENCE.pack(*kept_sequence) for kept_sequence in entry.recent)
        return b"".join(parts)

    def restore(self, data: bytes) -> None:
        """Replace the table by a checkpoint's. Raises ProducerTableError and leaves the table as it was."""
        entries = _decode(data, self._max_producers)
        self._entries = entries
        self._undo.clear()


def _decode(data: bytes, max_producers: int) -> dict[bytes, ProducerEntry]:
    try:
        (count,) = _COUNT.unpack_from(data, 0)
        if count > max_producers:
            raise ProducerTableError(f"{count} producers, more than {max_producers}")
        position = _COUNT.size
        entries: dict[bytes, ProducerEntry] = {}
        for _ in range(count):
            producer_id, epoch, time_us, kept = _PRODUCER.unpack_from(data, position)
            position += _PRODUCER.size
            if not 1 <= kept <= SEQUENCES_KEPT or producer_id in entries:
                raise ProducerTableError("a producer without sequences, with too many, or twice")
            recent = []
            for _ in range(kept):
                sequence, base_offset, rows, index = _SEQUENCE.unpack_from(data, position)
                recent.append(KeptSequence(sequence, Offset(base_offset), rows, LogIndex(index)))
                position += _SEQUENCE.size
            entries[producer_id] = ProducerEntry(epoch, time_us, tuple(recent))
    except struct.error as error:
        raise ProducerTableError("the table ends inside a producer") from error
    if position != len(data):
        raise ProducerTableError(f"{len(data) - position} bytes after the table")
    return entries
