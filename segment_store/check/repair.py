"""Exact bytes written back where they were damaged (safety 10).

Frames come from an intact copy of the same log. They are taken only where all knowledge of the place agrees:
the checksum, the numbers and terms on both sides, and the length of the hole. A segment's header, its tail
record and its index file follow from the rest of the segment.

This file knows logs and their files. It must not know where frames come from.
"""

from collections.abc import Sequence

from shoal.format.batch import Frame, LogIndex, Term
from shoal.segment_store.check.damage import DamagedRange
from shoal.segment_store.errors import ChainBroken, Damaged, OffsetOutOfRange, disk_fault
from shoal.segment_store.format.index import Entry, SegmentIndex, entry_of
from shoal.segment_store.format.recovery import Chain, chain_problem
from shoal.segment_store.format.segment_scan import SegmentScan
from shoal.segment_store.format.tail_record import TailRecord, encode_trailer
from shoal.segment_store.log.log import PartitionLog
from shoal.segment_store.log.opener import read_for
from shoal.segment_store.log.segment import Segment


async def mend_entries(log: PartitionLog, frames: Sequence[Frame]) -> None:
    """Write the frames in the place of the damaged entries of the same indices, all of one segment, and sync.

    Raises ChainBroken when they are not what is missing (nothing was written then), OffsetOutOfRange when the
    log has dropped them meanwhile, Damaged for an index that cannot be read, DiskFailed."""
    first, last = frames[0].stamp.index, frames[-1].stamp.index
    segment = log.segment_of(first)
    if segment.index.is_released:
        await log.load_index(first)
    if last > segment.last_index:
        raise ChainBroken(f"{segment.path}: entry {last} lies in another segment")
    before = segment.term_at(LogIndex(first - 1)) if first > segment.first_index else segment.previous_term
    known = list(segment.index.slice(first, last))
    problem = _mismatch(known, before, frames)
    if problem is not None:
        raise ChainBroken(f"{segment.path}: {problem}")
    start, generation = known[0].position, log.generation
    try:
        async with log.standing_still(), segment.files.open_files.pin(segment.path) as file:
            if log.generation != generation:
                raise ChainBroken(f"{segment.path}: the log was truncated meanwhile")
            segment.files.shared.lending.look_away(segment.path)
            await file.write_and_sync(start, b"".join([frame.data for frame in frames]))
            await _correct_index(segment, known, frames)
    except FileNotFoundError as error:  # trimmed meanwhile: no fault of the disk
        raise OffsetOutOfRange(first, log.first_index, log.last_index + 1) from error
    except OSError as error:
        raise disk_fault(error, segment.path) from error


def _mismatch(known: Sequence[Entry], before: Term, frames: Sequence[Frame]) -> str | None:
    """Why the frames are not those entries. Of a stretch that was bridged only its ends are known, so lengths
    count in sum."""
    chain = Chain(known[0].index, known[0].base_offset, before)
    size = 0
    for entry, (stamp, data) in zip(known, frames, strict=True):
        problem = chain_problem(chain, stamp.kind, stamp.index, stamp.base_offset, stamp.previous_term)
        if problem is None and stamp.term != entry.term:
            problem = f"entry {stamp.index} of term {stamp.term}, not {entry.term}"
        if problem is not None:
            return problem
        chain = chain.after(entry_of(stamp, 0, len(data)))
        size += len(data)
    hole = known[-1].end_position - known[0].position
    if size != hole:
        return f"{size} bytes for a hole of {hole}"
    if chain.next_offset != known[-1].end_offset:
        return f"records up to offset {chain.next_offset}, not {known[-1].end_offset}"
    return None


async def _correct_index(segment: Segment, known: Sequence[Entry], frames: Sequence[Frame]) -> None:
    """Inside a bridged stretch places and counts were guessed; now they are known."""
    position = known[0].position
    true: list[Entry] = []
    for stamp, data in frames:
        true.append(entry_of(stamp, position, len(data)))
        position += len(data)
    if true == list(known):
        return
    behind = list(segment.index.slice(LogIndex(known[-1].index + 1), segment.last_index))
    segment.index.truncate(known[0].index)
    for entry in (*true, *behind):
        segment.index.append(entry)
    if segment.indexed_index >= known[0].index:
        await segment.replace_index(segment.indexed_index)


async def mend_frame(log: PartitionLog, item: DamagedRange) -> None:
    """Write a header, a tail record or an index file again. Raises as mend_entries."""
    assert not item.costs_entries
    segment = log.segment_of(item.first_index)
    try:
        if item.path == segment.index_path:
            if segment.index.is_released:
                segment.index.restore(await _scanned(segment))
            await segment.replace_index(segment.indexed_index)
            return
        async with segment.files.open_files.pin(segment.path) as file:
            if item.position < len(segment.header):
                await file.write_and_sync(0, segment.header)
            elif segment.last_index < log.last_index:  # the active segment's is the writer's, and changes
                last, end = segment.index.entry(segment.last_index), segment.planned_end
                record = TailRecord(last.index, last.term, end, last.index, last.end_offset)
                await file.write_and_sync(end, encode_trailer(record, segment.files.identity))
    except FileNotFoundError as error:
        raise OffsetOutOfRange(item.first_index, log.first_index, log.last_index + 1) from error
    except OSError as error:
        raise disk_fault(error, segment.path) from error


async def _scanned(segment: Segment) -> SegmentIndex:
    """A sealed segment's index from its frames, in bounded pieces. Raises Damaged where they do not
    verify."""
    name, files, end = segment.name, segment.files, segment.planned_end
    chain = Chain(name.first_index, name.first_offset, segment.previous_term)
    scan = SegmentScan(files.identity, end, files.config.read_chunk_bytes, chain, len(segment.header))
    async with files.open_files.pin(segment.path) as file:
        stretch = await read_for(scan.follow(), file)
    if scan.end_position < end:
        raise Damaged(segment.path, scan.end_position, stretch.detail)
    found = SegmentIndex(name.first_index)
    for entry in scan.entries:
        found.append(entry)
    return found
