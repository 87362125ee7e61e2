"""A log of any size on little disk: sealed segments of which header, first batch, tail record and index file
are real, and the batches between are holes.

The index says that they are there, as it would of a real one, so a start has as much to look at; who reads
a hole is told that it is damage.
"""

import os

from store_frames import IDENTITY, message

from shoal.format.batch import DEFAULT_SCHEMA, Flag, LogIndex, Offset, Term, schema_frame, stamp_message
from shoal.segment_store.format.index import Entry, encode_blocks, entry_of
from shoal.segment_store.format.layout import SegmentName
from shoal.segment_store.format.tail_record import TailRecord, encode_trailer

ENTRY_BYTES = 128 * 2**10
RECORDS = 1000  # of each batch that is a hole


def make_sparse_log(directory: str, segments: int, segment_bytes: int) -> Offset:
    """So many sealed segments, and an active one of one batch; where the log ends."""
    os.makedirs(directory)
    index, offset = LogIndex(1), Offset(0)
    for number in range(segments + 1):
        size = segment_bytes if number < segments else 0
        index, offset = _make_segment(directory, index, offset, size)
    return offset


def _make_segment(
    directory: str, first_index: LogIndex, first_offset: Offset, size: int
) -> tuple[LogIndex, Offset]:
    name = SegmentName(first_index, first_offset)
    term = Term(1)
    previous = Term(1) if first_index > 1 else Term(0)
    header = schema_frame(
        DEFAULT_SCHEMA, IDENTITY, first_index=first_index, first_offset=first_offset, previous_term=previous
    )
    first = stamp_message(
        message(1),
        IDENTITY,
        flags=Flag.FIRST_OF_SEGMENT,
        base_offset=first_offset,
        term=term,
        previous_term=previous,
        index=first_index,
        append_time_us=5,
    )
    entries = [entry_of(first.stamp, len(header), len(first.data))]
    while entries[-1].end_position + 2 * ENTRY_BYTES < size:
        last = entries[-1]
        position = last.end_position
        index = LogIndex(last.index + 1)
        entries.append(Entry(index, last.end_offset, position, ENTRY_BYTES, RECORDS, term, 5))
    last = entries[-1]
    record = TailRecord(last.index, term, last.end_position, last.index, last.end_offset)
    with open(f"{directory}/{name.segment_file}", "wb") as file:
        file.write(header + first.data)
        file.seek(last.end_position)
        file.write(encode_trailer(record, IDENTITY))
        file.truncate(max(size, file.tell()))
    with open(f"{directory}/{name.index_file}", "wb") as file:
        file.writelines(encode_blocks(entries, IDENTITY))
    return LogIndex(last.index + 1), last.end_offset
