"""Small submissions on their way to becoming one batch (group commit for single records).

Law of this file: pure; it decides what goes into the next batch and in which order, never when. A batch holds
at most one range per producer, so that each is checked against a table that already knows the one before.
Behind a held-back submission all others of its producer are held back too, so sequences never overtake.
"""

from collections import deque
from typing import NamedTuple

from shoal.agent.submission import Answer, Submission
from shoal.errors import ShoalError
from shoal.format.producer_table import GatheredRange
from shoal.format.records import RecordColumns

MAX_BATCH_BYTES = 4 * 2**20
"""A gathered batch is cut here; one submission alone may be larger (a record has up to 8 MiB)."""
MAX_BATCH_ROWS = 65_536
MAX_QUEUED_BYTES = 32 * 2**20
"""Per partition. At the disk's speed this is a second or two of waiting; more is refused as overloaded."""
MAX_QUEUED = 16_384
MAX_SUBMISSIONS = 4_096
"""In one batch: its producer table stays below 160 KiB."""


class Queued(NamedTuple):
    """A submission of columns that waits. `size_bytes`: with its overhead. `deadline_ms`: on the monotonic
    clock."""

    columns: RecordColumns
    size_bytes: int
    submission: Submission
    deadline_ms: int
    answer: Answer


class GatherQueue:
    """Submissions in the order of their arrival, bounded in number and bytes."""

    def __init__(self) -> None:
        self._queue: deque[Queued] = deque()
        self.size_bytes = 0
        self.deadline_ms: int | None = None
        """When `expired` may find something; None while nothing waits."""

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, item: Queued) -> None:
        """Raises ShoalError overloaded; nothing was queued then."""
        full = self.size_bytes and self.size_bytes + item.size_bytes > MAX_QUEUED_BYTES
        if full or len(self._queue) >= MAX_QUEUED:
            raise ShoalError("overloaded", f"{self.size_bytes} bytes wait for the disk already")
        self._queue.append(item)
        self.size_bytes += item.size_bytes
        if self.deadline_ms is None or item.deadline_ms < self.deadline_ms:
            self.deadline_ms = item.deadline_ms

    def expired(self, now_ms: int) -> list[Queued]:
        """Take out the submissions that have run out of time while the disk took nothing."""
        if self.deadline_ms is None or now_ms < self.deadline_ms:
            return []
        gone = [item for item in self._queue if item.deadline_ms <= now_ms]
        kept = [item for item in self._queue if item.deadline_ms > now_ms]
        self._queue = deque(kept)
        self.size_bytes -= sum(item.size_bytes for item in gone)
        self.deadline_ms = min((item.deadline_ms for item in kept), default=None)
        return gone

    def take(self) -> list[Queued]:
        """The submissions of the next batch: at least one if any waits."""
        if len(self._queue) == 1:
            self.size_bytes, self.deadline_ms = 0, None
            return [self._queue.popleft()]
        taken: list[Queued] = []
        held_back: list[Queued] = []
        producers: set[bytes] = set()
        rows = size = 0
        queue = self._queue
        while queue:
            item = queue[0]
            over = (
                rows + len(item.columns.values) > MAX_BATCH_ROWS or size + item.size_bytes > MAX_BATCH_BYTES
            )
            if taken and (over or len(taken) >= MAX_SUBMISSIONS):
                break
            queue.popleft()
            producer = item.submission.producer
            if producer is not None and producer.producer_id in producers:
                held_back.append(item)
                continue
            if producer is not None:
                producers.add(producer.producer_id)
            taken.append(item)
            rows += len(item.columns.values)
            size += item.size_bytes
        queue.extendleft(reversed(held_back))
        self.size_bytes -= size
        if not queue:
            self.deadline_ms = None
        return taken

    def drain(self) -> list[Queued]:
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


def merge(queued: list[Queued]) -> GatheredBatch:
    """Lay the records of all submissions behind one another."""
    columns = RecordColumns()
    first_rows: list[int] = []
    ranges: list[GatheredRange] = []
    for item in queued:
        first_row = len(columns)
        first_rows.append(first_row)
        if item.submission.producer is not None:
            ranges.append(GatheredRange(item.submission.producer, first_row, len(item.columns)))
        columns.extend(item.columns)
    return GatheredBatch(columns, first_rows, ranges)
