"""The idempotence table of one partition: which sequences of which producers are in the log.

Law of this file: pure, and a fold of the log. The table changes only by `record` (an entry was appended, on
the leader or on a follower), `undo_from` (the log's suffix was cut) and `settle` (a prefix is committed and
can never be cut again). Time is the log's own elapsed time (log_state.py), never a clock. So every replica
that folds the same entries holds the same table (safety 18, 19). It never learns what a future, a file or a
socket is.

The promise: who repeats an append within RETRY_WINDOW_US is told that it is a repetition, however many others
there are. Nobody so young is ever forgotten; where MAX_TABLE_BYTES would be passed without that, new
producers are refused instead.

Two kinds of producers. Those whose sequences follow one another: the last SEQUENCES_KEPT of each are known.
And those that many tasks share, each with a lane of its own (`in_lanes`): a sequence is lane *
SEQUENCES_PER_LANE + number, the numbers of a lane follow one another, lanes come in any order; all sequences
of the epoch are known.
"""

import struct
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from shoal.errors import ShoalError
from shoal.format.arrow_stream import SEQUENCES_PER_LANE
from shoal.format.batch import LogIndex, Offset, ProducerStamp

SEQUENCES_KEPT = 5
"""A client may have this many requests in flight; an older repetition can no longer be told from a gap."""

RETRY_WINDOW_US = 20 * 60 * 1_000_000
"""Nobody is forgotten who appended within this time. 15 minutes are promised; the rest is for clocks: wrong
ones take at most a minute of it each time they are (log_state.py)."""

PRODUCER_EXPIRY_US = 24 * 3600 * 1_000_000
"""A producer silent for a day is forgotten though there is room; its next batch has to open a new epoch at
sequence 0."""

MAX_TABLE_BYTES = 4 * 2**20
"""Per partition, as it stands at the head of every segment: 24,000 producers, or 200,000 sequences of those
that have lanes. In memory it is up to six times as much."""

_PRODUCER = struct.Struct("<16sqqB")  # id, epoch, elapsed time at its last append, sequences (0: in lanes)
_SEQUENCE = struct.Struct("<qqIq")  # sequence, base offset, rows, entry
_COUNT = struct.Struct("<I")

PRODUCER_BYTES: Final = _PRODUCER.size + SEQUENCES_KEPT * _SEQUENCE.size
"""What each producer is counted with, whatever it takes: one that is known is never refused for room."""
LANE_BYTES: Final = 8 + 8 + 4  # what each sequence in a lane takes: itself, base offset, rows
_LANES_HEAD_BYTES: Final = _PRODUCER.size + 8 + _COUNT.size
DECODED_BYTES_MAX: Final = MAX_TABLE_BYTES + 2**20
"""Requests that are gathered into one batch are checked before any of them is recorded."""


class ProducerTableError(ValueError):
    """The bytes are not a producer table: the one error of the decoder here."""


class KeptSequence(NamedTuple):
    """One remembered sequence: where its records went, and the entry whose commit makes that true (0: it is
    committed)."""

    sequence: int
    base_offset: Offset
    rows: int
    entry: LogIndex


class Ordered(NamedTuple):
    """A producer whose sequences follow one another. `packed`: as it stands in a checkpoint, its sequences at
    the end, oldest first; kept so, since a checkpoint of thousands is made within one turn of the loop."""

    epoch: int
    last_us: int
    packed: bytes

    @property
    def recent(self) -> bytes:
        return self.packed[_PRODUCER.size :]

    @property
    def sequences(self) -> list[KeptSequence]:
        """At least one."""
        return [KeptSequence._make(fields) for fields in _SEQUENCE.iter_unpack(self.recent)]

    @property
    def last_offset(self) -> int:
        """Of its last append."""
        return int(_SEQUENCE.unpack_from(self.packed, len(self.packed) - _SEQUENCE.size)[1])

    @property
    def size_bytes(self) -> int:
        """As it is counted."""
        return PRODUCER_BYTES

    def to_bytes(self, _producer_id: bytes) -> bytes:
        """As it stands in a checkpoint."""
        return self.packed


class Laned:
    """A producer whose tasks share it, in lanes. Changed in place: it may hold 200,000 sequences."""

    __slots__ = ("epoch", "last_offset", "last_us", "offsets", "places", "rows", "sequences")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.last_us = 0
        self.last_offset = 0
        self.places: dict[int, int] = {}
        """Where a sequence stands in the arrays, which are in the order of appends."""
        self.sequences = array("q")
        self.offsets = array("q")
        self.rows = array("I")

    @property
    def size_bytes(self) -> int:
        """As it is counted, and stands in a checkpoint."""
        return _LANES_HEAD_BYTES + len(self.places) * LANE_BYTES

    def to_bytes(self, producer_id: bytes) -> bytes:
        """As it stands in a checkpoint."""
        head = _PRODUCER.pack(producer_id, self.epoch, self.last_us, 0)
        count = len(self.places)
        parts = (self.sequences.tobytes(), self.offsets.tobytes(), self.rows.tobytes())
        return b"".join((head, self.last_offset.to_bytes(8, "little"), _COUNT.pack(count), *parts))


Known: TypeAlias = Ordered | Laned


class _Undo(NamedTuple):
    """A change above the commit index, to be undone if its entry is cut. `sequence`: what was recorded, of a
    producer with lanes; `joined`: into `before`, in place, which had the times and offsets that follow."""

    entry: LogIndex
    producer_id: bytes
    before: Known | None
    sequence: int | None = None
    joined: bool = False
    last_us: int = 0
    last_offset: int = 0


class ProducerTable:
    """Producers in the order of their last append, the longest silent first."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_TABLE_BYTES,
        expiry_us: int = PRODUCER_EXPIRY_US,
        window_us: int = RETRY_WINDOW_US,
    ) -> None:
        assert 0 < window_us <= expiry_us
        self._max_bytes = max_bytes
        self._expiry_us = expiry_us
        self._window_us = window_us
        self._entries: dict[bytes, Known] = {}
        self.size_bytes = 0
        """As counted against the bound."""
        # One item per change above the commit index; bounded by the core's bound on uncommitted entries.
        self._undo: deque[_Undo] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[bytes, Known]]:
        return iter(self._entries.items())

    def __repr__(self) -> str:
        return f"ProducerTable(producers={len(self._entries)} undo={len(self._undo)})"

    def check(
        self, producer: ProducerStamp, *, rows: int, elapsed_us: int, consecutive: bool = True
    ) -> KeptSequence | None:
        """None when `producer` may append; the remembered place when this sequence is already in the log.

        `consecutive` is the rule of the partition route: the sequence after the last one, starting at 0.
        Without it (the key-routed route spreads one producer's sequences over partitions) a sequence need
        only increase. `elapsed_us`: what the log counts now. Raises ShoalError producer-fenced, sequence-gap,
        sequence-differs or too-many-producers; all certify that nothing was appended.
        """
        known = self._entries.get(producer.producer_id)
        kept = None if known is None else self._check_known(known, producer, consecutive)
        if kept is not None:
            if kept.rows != rows:
                raise ShoalError(
                    "sequence-differs",
                    f"sequence {producer.sequence} is stored with {kept.rows} records, and comes with {rows}:"
                    " a repetition brings the same ones",
                    base_offset=kept.base_offset,
                    count=kept.rows,
                )
            return kept
        if known is None:
            self._check_first(producer, consecutive, "unknown here (new, or forgotten after a long silence)")
        replaced_bytes = 0 if known is None or producer.epoch == known.epoch else known.size_bytes
        if (known is None or producer.in_lanes) and not self._has_room(elapsed_us, replaced_bytes):
            raise ShoalError(
                "too-many-producers",
                f"{len(self._entries)} producers appended to this partition within the last"
                f" {self._window_us // 60_000_000} minutes, and none of them may be forgotten sooner: let"
                " fewer producers live longer, or try again later",
            )
        return None

    def _check_known(self, known: Known, producer: ProducerStamp, consecutive: bool) -> KeptSequence | None:
        if producer.epoch < known.epoch:
            raise ShoalError(
                "producer-fenced",
                f"epoch {producer.epoch} was replaced by {known.epoch}: a newer instance is writing",
                epoch=known.epoch,
            )
        if producer.epoch > known.epoch:
            self._check_first(producer, consecutive, f"new at epoch {producer.epoch}")
            return None
        if isinstance(known, Laned) != producer.in_lanes:
            raise ShoalError(
                "sequence-gap",
                "an epoch of a producer has lanes or has none, not both: open an epoch",
                last_sequence=None,
            )
        if isinstance(known, Laned):
            return self._find_in_lane(known, producer)
        sequences = known.sequences
        for kept_sequence in sequences:
            if kept_sequence.sequence == producer.sequence:
                return kept_sequence
        last = sequences[-1].sequence
        if producer.sequence == last + 1 or (not consecutive and producer.sequence > last):
            return None
        raise ShoalError(
            "sequence-gap",
            f"sequence {producer.sequence} does not follow {last}, the producer's last in this partition",
            last_sequence=last,
        )

    def _find_in_lane(self, known: Laned, producer: ProducerStamp) -> KeptSequence | None:
        place = known.places.get(producer.sequence)
        if place is None and (
            producer.sequence % SEQUENCES_PER_LANE == 0 or producer.sequence - 1 in known.places
        ):
            return None
        if place is None:
            lane, number = divmod(producer.sequence, SEQUENCES_PER_LANE)
            raise ShoalError(
                "sequence-gap", f"number {number} does not follow the last of lane {lane}", last_sequence=None
            )
        entry = next(
            (
                change.entry
                for change in self._undo
                if change.producer_id == producer.producer_id and change.sequence == producer.sequence
            ),
            LogIndex(0),
        )
        return KeptSequence(producer.sequence, Offset(known.offsets[place]), known.rows[place], entry)

    def _check_first(self, producer: ProducerStamp, consecutive: bool, reason: str) -> None:
        number = producer.sequence % SEQUENCES_PER_LANE if producer.in_lanes else producer.sequence
        if number != 0 and (consecutive or producer.in_lanes):
            raise ShoalError(
                "sequence-gap",
                f"the producer is {reason}: its first sequence is 0, not {producer.sequence}: open an epoch",
                last_sequence=None,
            )

    def _has_room(self, elapsed_us: int, replaced_bytes: int) -> bool:
        if self.size_bytes - replaced_bytes < self._max_bytes or not self._entries:
            return True
        return next(iter(self._entries.values())).last_us < elapsed_us - self._window_us

    def record(
        self,
        producer: ProducerStamp,
        *,
        base_offset: Offset,
        count: int,
        index: LogIndex,
        elapsed_us: int,
    ) -> None:
        """Fold one appended range. The log is the truth: its sequences are recorded without a second
        check."""
        self._forget(index, elapsed_us)
        if producer.in_lanes:
            self._record_in_lane(producer, base_offset, count, index, elapsed_us)
            return
        producer_id = producer.producer_id
        before = self._pop(producer_id)
        recent = b""
        if type(before) is Ordered and before.epoch == producer.epoch:
            recent = before.recent[-(SEQUENCES_KEPT - 1) * _SEQUENCE.size :]
        recent += _SEQUENCE.pack(producer.sequence, base_offset, count, index)
        head = _PRODUCER.pack(producer_id, producer.epoch, elapsed_us, len(recent) // _SEQUENCE.size)
        self._put(producer_id, Ordered(producer.epoch, elapsed_us, head + recent))
        self._undo.append(_Undo(index, producer_id, before))

    def _record_in_lane(
        self, producer: ProducerStamp, base_offset: Offset, count: int, index: LogIndex, elapsed_us: int
    ) -> None:
        producer_id = producer.producer_id
        before = self._pop(producer_id)
        if isinstance(before, Laned) and before.epoch == producer.epoch:
            known = before
            if producer.sequence in known.places:  # which no leader appends, but the log is the truth
                self._put(producer_id, known)
                return
            change = _Undo(
                index, producer_id, before, producer.sequence, True, known.last_us, known.last_offset
            )
        else:
            known = Laned(producer.epoch)
            change = _Undo(index, producer_id, before, producer.sequence)
        known.places[producer.sequence] = len(known.offsets)
        known.sequences.append(producer.sequence)
        known.offsets.append(base_offset)
        known.rows.append(count)
        known.last_us, known.last_offset = elapsed_us, base_offset
        self._put(producer_id, known)
        self._undo.append(change)

    def _pop(self, producer_id: bytes) -> Known | None:
        known = self._entries.pop(producer_id, None)
        if known is not None:
            self.size_bytes -= known.size_bytes
        return known

    def _put(self, producer_id: bytes, known: Known) -> None:
        self._entries[producer_id] = known
        self.size_bytes += known.size_bytes

    def _forget(self, index: LogIndex, elapsed_us: int) -> None:
        """Producers that have been silent for a day; in a full table, for the window."""
        while self._entries:
            silent_us = elapsed_us - next(iter(self._entries.values())).last_us
            if silent_us <= (self._window_us if self.size_bytes >= self._max_bytes else self._expiry_us):
                return
            producer_id = next(iter(self._entries))
            self._undo.append(_Undo(index, producer_id, self._pop(producer_id)))

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
            self._pop(change.producer_id)
            before = change.before
            if change.joined:
                assert isinstance(before, Laned)
                assert change.sequence is not None
                place = before.places.pop(change.sequence)
                assert place == len(before.offsets) - 1
                before.sequences.pop()
                before.offsets.pop()
                before.rows.pop()
                before.last_us, before.last_offset = change.last_us, change.last_offset
            if before is not None:
                self._put(change.producer_id, before)
        # Offsets only grow, so the last one orders producers exactly as appending had.
        self._entries = dict(sorted(self._entries.items(), key=lambda item: item[1].last_offset))

    def to_bytes(self) -> bytes:
        """The table as it stands in a checkpoint, oldest producer first."""
        parts = [_COUNT.pack(len(self._entries))]
        parts += [known.to_bytes(producer_id) for producer_id, known in self._entries.items()]
        return b"".join(parts)

    def restore(self, data: bytes) -> None:
        """Replace the table by a checkpoint's. Raises ProducerTableError and leaves the table as it was."""
        self._entries = _decode(data)
        self.size_bytes = sum(known.size_bytes for known in self._entries.values())
        self._undo.clear()


def _decode(data: bytes) -> dict[bytes, Known]:
    if len(data) > DECODED_BYTES_MAX:
        raise ProducerTableError(f"{len(data)} bytes, more than {DECODED_BYTES_MAX}")
    try:
        (count,) = _COUNT.unpack_from(data, 0)
        position = _COUNT.size
        entries: dict[bytes, Known] = {}
        for _ in range(count):
            producer_id, epoch, last_us, kept = _PRODUCER.unpack_from(data, position)
            position += _PRODUCER.size
            if kept > SEQUENCES_KEPT or producer_id in entries:
                raise ProducerTableError("a producer with too many sequences, or twice")
            if kept == 0:
                entries[producer_id], position = _decode_lanes(data, position, epoch, last_us)
                continue
            end = position + kept * _SEQUENCE.size
            if end > len(data):
                raise ProducerTableError("the table ends inside a producer")
            entries[producer_id] = Ordered(epoch, last_us, data[position - _PRODUCER.size : end])
            position = end
    except struct.error as error:
        raise ProducerTableError("the table ends inside a producer") from error
    if position != len(data):
        raise ProducerTableError(f"{len(data) - position} bytes after the table")
    return entries


def _decode_lanes(data: bytes, position: int, epoch: int, last_us: int) -> tuple[Laned, int]:
    known = Laned(epoch)
    known.last_us = last_us
    known.last_offset = int.from_bytes(data[position : position + 8], "little", signed=True)
    (count,) = _COUNT.unpack_from(data, position + 8)
    begin = position + 8 + _COUNT.size
    end = begin + count * LANE_BYTES
    if count == 0 or end > len(data):
        raise ProducerTableError("a producer without sequences, or the table ends inside it")
    known.sequences = array("q", data[begin : begin + 8 * count])
    known.offsets = array("q", data[begin + 8 * count : begin + 16 * count])
    known.rows = array("I", data[begin + 16 * count : end])
    known.places = dict(zip(known.sequences, range(count), strict=True))
    if len(known.places) != count:
        raise ProducerTableError("a sequence stands twice in the table")
    return known, end
