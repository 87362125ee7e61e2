"""Small submissions on their way to becoming one batch (group commit for single records).

Law of this file: pure; it decides what goes into the next batch and in which order, never when. A batch
holds at most one range per producer, so that each is checked against a table that already knows the one
before; whatever comes behind a producer's held-back submission and is of that producer is held back too, so
sequences never overtake.
"""

from collections import deque
from typing import NamedTuple

from shoal.agent.partition.pending import Answer
from shoal.errors import ShoalError
from shoal.format.batch import GatheredRange, ProducerStamp
from shoal.format.records import RecordColumns

MAX_BATCH_BYTES = 4 * 2**20
"""A gathered batch is cut here; one submission alone may be larger (a record has up to 8 MiB)."""
MAX_BATCH_ROWS = 65_536
MAX_QUEUED_BYTES = 32 * 2**20
"""Per partition. At the disk's speed this is a second or two of waiting; more is refused as overloaded."""
MAX_QUEUED = 16_384
MAX_SUBMISSIONS = 4_096
"""In one batch: its producer table stays below 160 KiB."""


class Submission(NamedTuple):
    """Records that came with one request. `deadline_ms` is on the monotonic clock."""

    columns: RecordColumns
    size_bytes: int
    producer: ProducerStamp | None
    consecutive: bool
    acks: str
    deadline_ms: int
    answer: Answer


class GatherQueue:
    """Submissions in the order of their arrival, bounded in number and bytes."""

    def __init__(self) -> None:
        self._queue: deque[Submission] = deque()
        self.size_bytes = 0
        self.deadline_ms: int | None = None
        """When `expired` may find something; None while nothing waits."""

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, submission: Submission) -> None:
        """Raises ShoalError overloaded; nothing was queued then."""
        full = self.size_bytes and self.size_bytes + submission.size_bytes > MAX_QUEUED_BYTES
        if full or len(self._queue) >= MAX_QUEUED:
            raise ShoalError("overloaded", f"{self.size_bytes} bytes wait for the disk already")
        self._queue.append(submission)
        self.size_bytes += submission.size_bytes
        if self.deadline_ms is None or submission.deadline_ms < self.deadline_ms:
            self.deadline_ms = submission.deadline_ms

    def expired(self, now_ms: int) -> list[Submission]:
        """Take out whatever has run out of time while the disk took nothing."""
        if self.deadline_ms is None or now_ms < self.deadline_ms:
            return []
        gone = [item for item in self._queue if item.deadline_ms <= now_ms]
        kept = [item for item in self._queue if item.deadline_ms > now_ms]
        self._queue = deque(kept)
        self.size_bytes -= sum(item.size_bytes for item in gone)
        self.deadline_ms = min((item.deadline_ms for item in kept), default=None)
        return gone

    def take(self) -> list[Submission]:
        """The submissions of the next batch: at least one if any waits."""
        if len(self._queue) == 1:
            self.size_bytes, self.deadline_ms = 0, None
            return [self._queue.popleft()]
        taken: list[Submission] = []
        held_back: list[Submission] = []
        producers: set[bytes] = set()
        rows = size = 0
        queue = self._queue
        while queue:
            submission = queue[0]
            over = (
                rows + len(submission.columns.values) > MAX_BATCH_ROWS
                or size + submission.size_bytes > MAX_BATCH_BYTES
            )
            if taken and (over or len(taken) >= MAX_SUBMISSIONS):
                break
            queue.popleft()
            producer = submission.producer
            if producer is not None and producer.producer_id in producers:
                held_back.append(submission)
                continue
            if producer is not None:
                producers.add(producer.producer_id)
            taken.append(submission)
            rows += len(submission.columns.values)
            size += submission.size_bytes
        queue.extendleft(reversed(held_back))
        self.size_bytes -= size
        if not queue:
            self.deadline_ms = None
        return taken

    def drain(self) -> list[Submission]:
        """Everything, to be refused."""
        drained = list(self._queue)
        self._queue.clear()
        self.size_bytes = 0
        self.deadline_ms = None
        return drained


class GatheredBatch(NamedTuple):
    """Columns of one batch and the rows each submission brought. `ranges`: of those with a producer."""

    columns: RecordColumns
    first_rows: list[int]
    ranges: list[GatheredRange]


def merge(submissions: list[Submission]) -> GatheredBatch:
    """Lay the records of all submissions behind one another; one alone is its own batch."""
    if len(submissions) == 1:
        alone = submissions[0]
        count = len(alone.columns.values)
        own = [] if alone.producer is None else [GatheredRange(alone.producer, 0, count)]
        return GatheredBatch(alone.columns, [0], own)
    columns = RecordColumns()
    first_rows: list[int] = []
    ranges: list[GatheredRange] = []
    for submission in submissions:
        first_row = len(columns)
        first_rows.append(first_row)
        if submission.producer is not None:
            ranges.append(GatheredRange(submission.producer, first_row, len(submission.columns)))
        columns.extend(submission.columns)
    return GatheredBatch(columns, first_rows, ranges)
