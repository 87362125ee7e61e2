"""One record of a partition, wherever it lies: in the log, or in a timer topic's view.

Law of this file: it reads. People look at keys that hold others up, and senders of letters at dead messages:
one at a time.
"""

from __future__ import annotations

import pyarrow as pa

from shoal.agent.partition.replica import Replica
from shoal.agent.receive import DuePlace, Range
from shoal.agent.views.timer_view import TimerView
from shoal.agent.views.upkeep.timer_records import read_records
from shoal.format.batch import Offset, to_record_batch


async def read_one(replica: Replica, timers: TimerView | None, place: DuePlace) -> pa.RecordBatch:
    """The record, or no row: of a batch that no voter has intact, or past its retention. Raises
    OffsetOutOfRange where the log has it no more; StoreError, ViewNotReady, OSError."""
    if timers is not None:
        (batch,) = await read_records(timers, replica.log, [Range(place.due_us, place.offset, 1)])
        return batch
    log, plan = replica.log, replica.plan
    offset = Offset(place.offset)
    index = await log.find_offset(offset)
    if index in plan.quarantined:
        return pa.RecordBatch.from_pylist([], schema=plan.schema)
    (frame,) = await log.read(index, index, 1)
    return to_record_batch(frame.data, plan.schema).slice(offset - frame.stamp.base_offset, 1)
