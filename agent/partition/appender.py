"""Appends to one replica: who may, what is new, what becomes one batch, and whom to tell.

Law of this file: between a client's submission and the replica's proposals. It decides when small
submissions become a batch: at the next turn when the disk is idle, else when the sync under way has ended,
so that everything that arrives during a sync shares the next one. Nothing here awaits; answers come through
futures.
"""

import time
from collections import deque
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.metrics.measures import Measures
from shoal.agent.partition.batcher import GatherQueue, Queued, merge
from shoal.agent.partition.observer import ReplicaObserver
from shoal.agent.partition.pending import Waiter
from shoal.agent.partition.plan import ViewKind
from shoal.agent.partition.replica import Replica
from shoal.agent.partition.state.idempotence import KeptSequence
from shoal.agent.submission import Acks, Answer, Appended, Submission
from shoal.agent.table import MAX_TABLE_KEY_BYTES
from shoal.errors import ShoalError
from shoal.format.batch import (
    KEY_COLUMN,
    BatchError,
    Flag,
    Frame,
    Kind,
    LogIndex,
    Message,
    Offset,
    ProducerStamp,
    message_from_batch,
    to_record_batch,
)
from shoal.format.producer_table import encode_producer_table
from shoal.format.records import RecordColumns, columns_to_message

FLUSH_BYTES = 2**20
"""Gathered bytes that no longer wait for the sync under way: a write of this size is worth its own."""
SUBMISSION_OVERHEAD_BYTES = 256
MARK_INTERVAL_MS = 30_000
"""Half of what the log counts at most as elapsed between two entries."""
UNSTORABLE = (BatchError, pa.ArrowException, ArithmeticError, TypeError, ValueError)
"""What encoding raises for columns that are no records."""


class Appender(ReplicaObserver):
    """One per replica."""

    def __init__(self, replica: Replica, measures: Measures) -> None:
        self._replica = replica
        self._measures = measures
        self._gathering = GatherQueue()
        self._next_mark_ms = 0
        self._proposed: deque[tuple[LogIndex, int, int, int]] = deque()
        """Batches that are not committed yet: entry, time of the proposal in ns, records, bytes. Bounded by
        what a group may have uncommitted."""

    def begin(self, submission: Submission, deadline_ms: int, answer: Answer) -> None:
        """Propose whole batches at once, or queue columns for the next gathered batch. `answer` is told.

        `deadline_ms`: on the monotonic clock. Raises ShoalError when nothing was proposed or queued.
        """
        replica, records, producer = self._replica, submission.records, submission.producer
        replica.require_leader()
        if replica.plan.view is ViewKind.TABLE:
            self.check_keys(records)
        if not isinstance(records, RecordColumns):
            self._propose_messages(records, submission, deadline_ms, answer)
        elif producer is not None and producer.in_lanes:  # tables of gathered batches have no place for that
            self._propose_messages([self._message(records)], submission, deadline_ms, answer)
        else:
            assert records.values
            size_bytes = SUBMISSION_OVERHEAD_BYTES + submission.size_bytes
            self._gathering.add(Queued(records, size_bytes, submission, deadline_ms, answer))
            replica.agenda.gathered_ms = self._gathering.deadline_ms
            replica.host.schedule(replica)

    def check_keys(self, records: RecordColumns | Sequence[Message]) -> None:
        """Every record of a table has a key, of a byte at least. Raises ShoalError."""
        if isinstance(records, RecordColumns):
            lacking = None in records.keys
            lengths = [len(key) for key in records.keys if key is not None]
        else:
            keys = [_batch_of(message, self._replica.plan.schema).column(KEY_COLUMN) for message in records]
            lacking = any(column.null_count for column in keys)
            bounds = [pc.min_max(pc.binary_length(column)).as_py() for column in keys]
            lengths = [bound[end] for bound in bounds for end in ("min", "max") if bound[end] is not None]
        if lacking:
            raise ShoalError("bad-request", "every record of a table has a key, and one has none here")
        if 0 in lengths:
            raise ShoalError("bad-request", "a key is empty here: a row has a key of a byte at least")
        if (longest := max(lengths, default=0)) > MAX_TABLE_KEY_BYTES:
            raise ShoalError("too-large", f"a key of {longest} bytes, more than {MAX_TABLE_KEY_BYTES}")

    def append_now(self, submission: Submission, deadline_ms: int, answer: Answer) -> None:
        """Propose records in columns as an entry of their own in this very turn; the rest as `begin`."""
        assert isinstance(submission.records, RecordColumns)
        message = self._message(submission.records)
        self._propose_messages([message], submission, deadline_ms, answer)

    def answer_repeated(self, submission: Submission, deadline_ms: int, answer: Answer) -> bool:
        """Whether the producer's records are there already; `answer` is told of them then. Raises ShoalError
        for a sequence that does not follow."""
        if submission.producer is None:
            return False
        rows = len(submission.records)
        kept = self._check(submission.producer, rows, consecutive=submission.consecutive)
        if kept is not None:
            self._answer_duplicate(kept, deadline_ms, answer)
        return kept is not None

    def _propose_messages(
        self, messages: Sequence[Message], submission: Submission, deadline_ms: int, answer: Answer
    ) -> None:
        """With a producer all messages become one entry, since one sequence is one entry (safety 19)."""
        assert messages
        replica, producer = self._replica, submission.producer
        if producer is not None:
            rows = sum(message.record_count for message in messages)
            kept = self._check(producer, rows, consecutive=submission.consecutive)
            if kept is not None:
                self._answer_duplicate(kept, deadline_ms, answer)
                return
            messages = (_join(messages, replica.plan.schema),)
        now_ms = replica.host.clock.now_ms()
        first = last = self._propose(messages[0], producer, now_ms)
        for message in messages[1:]:
            try:
                last = self._propose(message, None, now_ms)
            except ShoalError as error:
                done = last.stamp.base_offset + last.stamp.record_count - first.stamp.base_offset
                detail = f"{error.detail}; the first {done} records of the request were proposed before"
                raise ShoalError(error.code, detail, definite=False, **error.extra) from error
        count = last.stamp.base_offset + last.stamp.record_count - first.stamp.base_offset
        result = Appended(first.stamp.base_offset, count)
        self._wait(last.stamp.index, result, submission.acks, deadline_ms, answer)

    def _propose(
        self,
        message: Message,
        producer: ProducerStamp | None,
        now_ms: int,
        control: bytes = b"",
        flags: Flag = Flag.NONE,
    ) -> Frame:
        frame = self._replica.propose_message(message, producer, now_ms, control, flags)
        if not self._replica.plan.answers_wait:  # the system's own logs are no client's records
            index, records = frame.stamp.index, frame.stamp.record_count
            self._proposed.append((index, time.monotonic_ns(), records, len(frame.data)))
        return frame

    def committed(self) -> None:
        """Count what this leader proposed, and the group holds now."""
        proposed, replica = self._proposed, self._replica
        if not proposed or not replica.is_leader:  # another leader may have replaced it
            return
        measures, index, now_ns = self._measures, replica.state.committed.last_index, time.monotonic_ns()
        while proposed and proposed[0][0] <= index:
            _, began_ns, records, size_bytes = proposed.popleft()
            measures.commit.observe(now_ns - began_ns)
            measures.appended_records += records
            measures.appended_bytes += size_bytes

    def _check(self, producer: ProducerStamp, rows: int, *, consecutive: bool) -> KeptSequence | None:
        try:
            return self._replica.state.check_producer(producer, rows, consecutive=consecutive)
        except ShoalError as error:
            if error.code == "too-many-producers":
                # Where nothing is appended the log counts no time, and no producer grows old enough to be
                # forgotten: an entry without records, at most one in MARK_INTERVAL_MS.
                now_ms = self._replica.host.clock.now_ms()
                if now_ms >= self._next_mark_ms:
                    self._next_mark_ms = now_ms + MARK_INTERVAL_MS
                    self._replica.propose_control(Kind.NOOP, b"")
            raise

    def _wait(self, index: LogIndex, result: Appended, acks: Acks, deadline_ms: int, answer: Answer) -> None:
        if acks == "none":
            if not answer.done():
                answer.set_result(result)
            return
        self._replica.waiting.add(Waiter(index, answer, result, deadline_ms, acks == "leader"))

    def _answer_duplicate(self, kept: KeptSequence, deadline_ms: int, answer: Answer) -> None:
        """The first offsets, once the original is committed: until then the repetition is no safer than
        it."""
        result = Appended(kept.base_offset, kept.rows, duplicate=True)
        if kept.entry <= self._replica.state.committed.last_index:
            if not answer.done():
                answer.set_result(result)
        else:
            self._wait(kept.entry, result, "all", deadline_ms, answer)

    # Gathering

    def turn_begins(self, now_ms: int) -> None:
        """Propose what has gathered, as far as the disk is free for it. The replica hears whether some is
        left: it asks again when the disk is free."""
        if self._gathering.deadline_ms is None:
            return  # the turn is another observer's
        self._propose_waiting(now_ms)
        self._replica.agenda.gathered_ms = self._gathering.deadline_ms

    def _propose_waiting(self, now_ms: int) -> None:
        queue = self._gathering
        assert queue.deadline_ms is not None
        if queue.deadline_ms <= now_ms:
            for item in queue.expired(now_ms):
                if not item.answer.done():
                    item.answer.set_exception(ShoalError("timeout", "not begun in time", definite=True))
        while queue.size_bytes and (
            not self._replica.disk.unsynced_frames or queue.size_bytes >= FLUSH_BYTES
        ):
            taken = queue.take()
            if len(taken) > 1:
                self._propose_gathered([item for item in taken if self._is_fresh(item)], now_ms)
            elif self._is_fresh(taken[0]):
                self._propose_alone(taken[0], now_ms)
            if self._replica.ahead.frames and queue.size_bytes < FLUSH_BYTES:
                return  # the batch just proposed goes to the disk in this turn; the rest shares the next sync

    def _is_fresh(self, item: Queued) -> bool:
        if item.answer.done():
            return False  # its client has gone
        submission = item.submission
        if submission.producer is None:
            return True
        try:
            rows = len(item.columns.values)
            kept = self._check(submission.producer, rows, consecutive=submission.consecutive)
        except ShoalError as error:
            item.answer.set_exception(error)
            return False
        if kept is not None:
            self._answer_duplicate(kept, item.deadline_ms, item.answer)
        return kept is None

    def _propose_alone(self, item: Queued, now_ms: int) -> None:
        """As _propose_gathered of one: nothing is laid behind anything."""
        columns = item.columns
        try:
            message = self._message(columns)
            stamp = self._propose(message, item.submission.producer, now_ms).stamp
        except ShoalError as refused:
            _refuse([item], refused)
            return
        result = Appended(stamp.base_offset, len(columns.values))
        self._wait(stamp.index, result, item.submission.acks, item.deadline_ms, item.answer)

    def _message(self, columns: RecordColumns) -> Message:
        try:
            return columns_to_message(columns, self._replica.host.clock.now_us(), self._replica.plan.schema)
        except UNSTORABLE as error:
            raise ShoalError("bad-request", f"the records cannot be stored: {error}") from error

    def _propose_gathered(self, fresh: list[Queued], now_ms: int) -> None:
        if len(fresh) < 2:
            for item in fresh:
                self._propose_alone(item, now_ms)
            return
        gathered = merge(fresh)
        try:
            message = columns_to_message(
                gathered.columns, self._replica.host.clock.now_us(), self._replica.plan.schema
            )
        except UNSTORABLE:
            # Some submission's records fit no batch: no other one is refused for them.
            for item in fresh:
                self._propose_alone(item, now_ms)
            return
        table = encode_producer_table(gathered.ranges) if gathered.ranges else b""
        try:
            flags = Flag.GATHERED if table else Flag.NONE
            frame = self._propose(message, None, now_ms, table, flags)
        except ShoalError as refused:
            _refuse(fresh, refused)
            return
        base = frame.stamp.base_offset
        index = frame.stamp.index
        for item, first_row in zip(fresh, gathered.first_rows, strict=True):
            result = Appended(Offset(base + first_row), len(item.columns.values))
            self._wait(index, result, item.submission.acks, item.deadline_ms, item.answer)

    def role_changed(self) -> None:
        """What was never proposed is refused for certain: its client may go to the new leader at once."""
        if self._replica.is_leader:
            return
        self._proposed.clear()
        if not len(self._gathering):
            return
        try:
            self._replica.require_leader()
        except ShoalError as error:
            _refuse(self._gathering.drain(), error)
            self._replica.agenda.gathered_ms = None


def _refuse(queued: Sequence[Queued], error: ShoalError) -> None:
    for item in queued:
        if not item.answer.done():
            item.answer.set_exception(
                ShoalError(error.code, error.detail, definite=error.definite, **error.extra)
            )


def _join(messages: Sequence[Message], schema: pa.Schema) -> Message:
    """One message with the rows of all: columns are concatenated, never rows."""
    if len(messages) == 1:
        return messages[0]
    batches = [_batch_of(message, schema) for message in messages]
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    try:
        return message_from_batch(table.to_batches()[0])
    except BatchError as error:
        raise ShoalError(
            "too-large", f"one sequence is one batch, and this one is too large: {error}"
        ) from error


def _batch_of(message: Message, schema: pa.Schema) -> pa.RecordBatch:
    head = (b"\xff\xff\xff\xff", len(message.metadata).to_bytes(4, "little"))
    framed = b"".join((*head, message.metadata, message.body))  # as Arrow encapsulates a message
    return to_record_batch(framed, schema)
