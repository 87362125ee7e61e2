"""One replica's view of its own log: what the next frame's numbers are, and the fold that a checkpoint
carries.

Law of this file: pure. It folds frames as they are appended (on the leader when stamped, on a follower when
its core accepted them, at a restart when scanned), follows truncation by undoing, and follows the commit
index by settling. The log's own writes lag behind; this is the in-memory end that the next stamp is made
from. It never learns what a future, a file or a socket is; who waits for which entry is pending.py's
business.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from shoal.agent.partition.state.checkpoint import Checkpoint, FoldError, decode_configuration
from shoal.agent.partition.state.entry_fold import EntryFold, NoFold
from shoal.agent.partition.state.idempotence import KeptSequence, ProducerTable
from shoal.agent.partition.state.retention import RetentionError, decode_trim
from shoal.format.batch import (
    BatchError,
    Flag,
    Frame,
    Kind,
    LogIndex,
    Offset,
    ProducerStamp,
    Stamp,
    Term,
    control_payload,
)
from shoal.format.producer_table import decode_producer_table
from shoal.replication.interfaces import Configuration

ELAPSED_STEP_US = 60_000_000
"""As so much at most counts the time between two entries, and never as less than none: a clock that is wrong
by years makes producers a minute older. While nothing is appended hardly any time passes."""


class Tail(NamedTuple):
    """Where the log stands after an entry; index 0 and term 0 before the first."""

    last_index: LogIndex
    last_term: Term
    end_offset: Offset
    append_time_us: int
    log_bytes: int
    """Of all frames folded since the start: only differences mean something."""
    elapsed_us: int
    """Time as the log counts it: the sum of the steps between append times, none above ELAPSED_STEP_US."""

    def elapsed_at(self, append_time_us: int) -> int:
        """The same at an entry that follows."""
        step_us = append_time_us - self.append_time_us
        return self.elapsed_us + min(max(step_us, 0), ELAPSED_STEP_US)


EMPTY_TAIL = Tail(LogIndex(0), Term(0), Offset(0), 0, 0, 0)


class PartitionState:
    """The fold of one replica's log up to its in-memory end."""

    def __init__(self, birth: Configuration, fold: EntryFold | None = None) -> None:
        """`fold`: of the entries that are its own; without one there are none in this log."""
        self.fold: EntryFold = NoFold() if fold is None else fold
        self._unsettled = LogIndex(0)
        """The last entry that the fold has taken and may have to undo; 0 for none."""
        self.producers = ProducerTable()
        self.committed: Tail = EMPTY_TAIL
        """After the last entry that is committed and in this replica's log: its `end_offset` is the high
        watermark."""
        self.tail: Tail = EMPTY_TAIL
        # One item per entry above the commit index: bounded by the core's bound on uncommitted entries while
        # running, and by the entries of the segments scanned at a restart until the commit index is known
        # again.
        self._uncommitted: deque[Tail] = deque()
        self._configurations: list[Configuration] = [birth]
        self.trim_before = LogIndex(1)
        """The group has committed that everything before this entry may go, as far as folded here."""
        self._trims: deque[tuple[LogIndex, LogIndex]] = deque()

    def __repr__(self) -> str:
        tail = self.tail
        return (
            f"PartitionState(last={tail.last_index}/{tail.last_term} end={tail.end_offset} "
            f"committed={self.committed.last_index} hw={self.committed.end_offset} {self.producers!r})"
        )

    @property
    def high_watermark(self) -> Offset:
        """One past the last record that may be read."""
        return self.committed.end_offset

    @property
    def configuration(self) -> Configuration:
        """The newest in the log, committed or not: what Raft votes with (Ongaro's thesis, 4.1)."""
        return self._configurations[-1]

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """The committed one, then those in the log that are not committed."""
        return tuple(self._configurations)

    @property
    def trim_asked(self) -> LogIndex:
        """As `trim_before`, with what is in the log and not committed."""
        return max([self.trim_before, *(before for _, before in self._trims)])

    def start_from(self, head: Frame) -> None:
        """Begin with a segment's first frame instead of index 1. A CHECKPOINT restores; anything else must
        be index 1.

        Raises FoldError.
        """
        assert self.tail is EMPTY_TAIL
        stamp = head.stamp
        if stamp.kind == Kind.CHECKPOINT and stamp.index > 1:
            self._restore(Checkpoint.from_bytes(control_payload(head.data)), stamp)
        self.append(head)

    def _restore(self, checkpoint: Checkpoint, stamp: Stamp) -> None:
        if checkpoint.last_index != stamp.index - 1 or checkpoint.last_term != stamp.previous_term:
            raise FoldError(
                f"the checkpoint at {stamp.index} folds the log before {checkpoint.last_index + 1}"
            )
        if checkpoint.end_offset != stamp.base_offset:
            raise FoldError(f"the checkpoint at {stamp.index} ends at another offset than its stamp")
        try:
            self.producers.restore(checkpoint.producers)
            if checkpoint.group_state:
                self.fold.restore(checkpoint.group_state)
        except ValueError as error:
            raise FoldError(f"the checkpoint at {stamp.index}: {error}") from error
        self._configurations = [checkpoint.configuration]
        end = Offset(checkpoint.end_offset)
        self.tail = self.committed = Tail(
            checkpoint.last_index,
            checkpoint.last_term,
            end,
            checkpoint.append_time_us,
            0,
            checkpoint.elapsed_us,
        )

    def append(self, frame: Frame) -> None:
        """Fold the next frame. Raises FoldError when it does not continue the log or its payload cannot be
        read."""
        stamp = frame.stamp
        tail = self.tail
        if (
            stamp.index != tail.last_index + 1
            or stamp.base_offset != tail.end_offset
            or stamp.previous_term != tail.last_term
        ):
            raise FoldError(
                f"entry {stamp.index} (offset {stamp.base_offset}, after term {stamp.previous_term}) does "
                f"not continue entry {tail.last_index} (end {tail.end_offset}, term {tail.last_term})"
            )
        kind = stamp.kind
        elapsed_us = tail.elapsed_at(stamp.append_time_us)
        if kind == Kind.DATA:
            if stamp.producer is not None or (stamp.flags and stamp.flags & Flag.GATHERED):
                self._record_producers(frame, elapsed_us)
        elif kind == Kind.CONFIGURATION:
            self._configurations.append(decode_configuration(control_payload(frame.data)))
        elif kind == Kind.TRIM:
            self._fold_trim(frame)
        elif kind == Kind.GROUP_STATE:
            try:
                self.fold.fold(stamp, control_payload(frame.data))
            except ValueError as error:
                raise FoldError(f"entry {stamp.index}: {error}") from error
            self._unsettled = stamp.index
        self.tail = Tail(
            stamp.index,
            stamp.term,
            Offset(stamp.base_offset + stamp.record_count),
            stamp.append_time_us,
            tail.log_bytes + len(frame.data),
            elapsed_us,
        )
        self._uncommitted.append(self.tail)

    def skip(self, index: LogIndex, term: Term, end_offset: Offset, append_time_us: int, length: int) -> None:
        """Go on behind a batch of records that nobody can read any more (safety 10). What it said of
        producers is lost with it."""
        assert index == self.tail.last_index + 1
        tail = self.tail
        elapsed_us = tail.elapsed_at(append_time_us)
        self.tail = Tail(index, term, end_offset, append_time_us, tail.log_bytes + length, elapsed_us)
        self._uncommitted.append(self.tail)

    def _fold_trim(self, frame: Frame) -> None:
        try:
            self._trims.append((frame.stamp.index, decode_trim(control_payload(frame.data))))
        except RetentionError as error:
            raise FoldError(f"entry {frame.stamp.index}: {error}") from error

    def _record_producers(self, frame: Frame, elapsed_us: int) -> None:
        stamp = frame.stamp
        record = self.producers.record
        if not stamp.flags & Flag.GATHERED:
            assert stamp.producer is not None
            record(
                stamp.producer,
                base_offset=stamp.base_offset,
                count=stamp.record_count,
                index=stamp.index,
                elapsed_us=elapsed_us,
            )
            return
        try:
            ranges = decode_producer_table(control_payload(frame.data))
        except BatchError as error:
            raise FoldError(f"entry {stamp.index}: {error}") from error
        for gathered in ranges:
            record(
                gathered.producer,
                base_offset=Offset(stamp.base_offset + gathered.first_row),
                count=gathered.rows,
                index=stamp.index,
                elapsed_us=elapsed_us,
            )

    def check_producer(self, producer: ProducerStamp, rows: int, *, consecutive: bool) -> KeptSequence | None:
        """ProducerTable.check at the log's end."""
        elapsed_us = self.tail.elapsed_us
        return self.producers.check(producer, rows=rows, elapsed_us=elapsed_us, consecutive=consecutive)

    def truncate(self, from_index: LogIndex) -> None:
        """The log lost everything from `from_index` on. Committed entries are never among it."""
        assert from_index > self.committed.last_index, (from_index, self.committed)
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[-1].last_index >= from_index:
            uncommitted.pop()
        self.tail = uncommitted[-1] if uncommitted else self.committed
        self.producers.undo_from(from_index)
        if self._unsettled >= from_index:
            self.fold.undo_from(from_index)
            self._unsettled = LogIndex(from_index - 1)
        configurations = self._configurations
        while len(configurations) > 1 and configurations[-1].index >= from_index:
            configurations.pop()
        while self._trims and self._trims[-1][0] >= from_index:
            self._trims.pop()

    def commit(self, commit_index: LogIndex) -> bool:
        """The group committed up to here; True when this replica's committed end moved."""
        uncommitted = self._uncommitted
        if not uncommitted or uncommitted[0].last_index > commit_index:
            return False
        committed = self.committed
        while uncommitted and uncommitted[0].last_index <= commit_index:
            committed = uncommitted.popleft()
        self.committed = committed
        self.producers.settle(committed.last_index)
        if self._unsettled:
            self.fold.settle(committed.last_index)
            if self._unsettled <= committed.last_index:
                self._unsettled = LogIndex(0)
        configurations = self._configurations
        while len(configurations) > 1 and configurations[1].index <= committed.last_index:
            configurations.pop(0)
        while self._trims and self._trims[0][0] <= committed.last_index:
            self.trim_before = max(self.trim_before, self._trims.popleft()[1])
        return True

    def term_at(self, index: LogIndex) -> Term | None:
        """The term of an entry between the committed end and the tail, None outside."""
        if index == self.committed.last_index:
            return self.committed.last_term
        position = index - self.committed.last_index - 1
        if 0 <= position < len(self._uncommitted):
            return self._uncommitted[position].last_term
        return None

    @property
    def uncommitted_bytes(self) -> int:
        """Stored bytes of the entries above the committed end."""
        return self.tail.log_bytes - self.committed.log_bytes

    def bytes_after(self, index: LogIndex) -> int:
        """Stored bytes of the entries after `index`; of the uncommitted ones if `index` is below those."""
        position = index - self.committed.last_index - 1
        if position < 0 or not self._uncommitted:
            return self.uncommitted_bytes
        if position >= len(self._uncommitted):
            return 0
        return self.tail.log_bytes - self._uncommitted[position].log_bytes

    def checkpoint(self) -> Checkpoint:
        """The fold of everything appended so far: the payload of a checkpoint that comes next."""
        tail = self.tail
        return Checkpoint(
            tail.last_index,
            tail.last_term,
            tail.end_offset,
            tail.append_time_us,
            self.configuration,
            self.producers.to_bytes(),
            self.fold.to_bytes(),
            tail.elapsed_us,
        )


def check_chain(frames: Sequence[Frame], first_index: LogIndex, previous_term: Term) -> None:
    """Frames received from a peer continue one another (safety 7). Raises FoldError.

    The first frame's offset is checked when it is folded, against the local log.
    """
    index, term = first_index, previous_term
    offset: Offset | None = None
    for frame in frames:
        stamp = frame.stamp
        if stamp.index != index or stamp.previous_term != term or stamp.term < term:
            raise FoldError(f"entry {stamp.index}/{stamp.term} where {index} after term {term} was named")
        if offset is not None and stamp.base_offset != offset:
            raise FoldError(
                f"entry {stamp.index} starts at {stamp.base_offset}, the one before ends at {offset}"
            )
        offset = Offset(stamp.base_offset + stamp.record_count)
        index, term = LogIndex(index + 1), stamp.term
