"""Where in a partition a moment lies: the first record at or after a time.

Law of this file: it reads committed batches through a reader, like any consumer. Producers' timestamps need
not rise with the offsets, so no halving finds the place; but the log's index has the newest timestamp of each
entry, and of whole segments, and names the next batch that may have such a record. One batch is read then.
Where the index does not know (it was written by an earlier version, or the entry is damaged), batches are
looked through by their stamps alone.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from shoal.agent.fetch import FetchRequest
from shoal.agent.partition.reader import Reader
from shoal.format.batch import Offset, parse_stamp, timestamps_of

ONE_BATCH_BYTES = 1  # a read gives one, however large
READ_BYTES = 4 << 20  # one step where the index does not know; between steps the loop serves others


async def offset_at_time(reader: Reader, time_us: int) -> Offset:
    """The first offset whose record's timestamp is at or after `time_us`; the high watermark if there is
    none.

    Raises ShoalError as reads do.
    """
    ends = await reader.offsets()
    position, step_bytes = ends.log_start_offset, ONE_BATCH_BYTES
    while position < ends.high_watermark:
        position = await reader.find_time(time_us, position)
        if position >= ends.high_watermark:
            break
        fetch = await reader.read(FetchRequest(position, step_bytes, local=True))
        for frame in fetch.frames:
            stamp, _ = parse_stamp(frame, 0)
            if stamp.record_count and stamp.max_timestamp_us >= time_us:
                row = first_row_at(timestamps_of(frame, fetch.schema), time_us)
                return Offset(max(stamp.base_offset + row, position))
        if fetch.next_offset <= position:
            break
        position, step_bytes = fetch.next_offset, READ_BYTES
    return ends.high_watermark


def first_row_at(batch: pa.RecordBatch, time_us: int) -> int:
    """The first row whose timestamp is at or after the time; there is one. Vectorised but for the last
    step.
    """
    times = batch.column("timestamp").cast(pa.int64())
    late = pc.greater_equal(times, time_us)
    row: int = pc.index(late, pa.scalar(True)).as_py()
    assert row >= 0, "the stamp's newest timestamp is the batch's"
    return row
