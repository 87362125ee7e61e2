"""One log looked through slowly: every stored byte is read again from the disk and verified.

A look goes from a cursor, an entry's index, over a bounded number of bytes. The holder of the cursor may stop
and go on at any time, also after a restart. Appends, truncations and trims may go on meanwhile: a look takes
entries that are known to be synced, and entries that were cut under it are not judged. It looks at sealed and
active segments, and at the header, tail record and index file of sealed ones.

This file knows logs and their files. It must not know clocks or rates: the caller decides how often to look.
"""

from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from shoal.format.batch import BatchError, Kind, LogIndex, Term, parse_frame
from shoal.segment_store.check.damage import DamagedRange, check_entries, range_without_entries
from shoal.segment_store.disk.disk import opened
from shoal.segment_store.errors import Damaged, FormatError, OffsetOutOfRange
from shoal.segment_store.format.index import Entry, decode_index_file
from shoal.segment_store.format.tail_record import TRAILER_BYTES, decode_trailer
from shoal.segment_store.log.index_cache import MAX_INDEX_FILE_BYTES
from shoal.segment_store.log.log import PartitionLog
from shoal.segment_store.log.segment import Segment


class ScrubResult(NamedTuple):
    """The result of one look. `next_index`: where the next one goes on, None at the end of the log. Compared
    were the entries `first_index` to `last_index`, and in the files `paths` the bytes that are no entry;
    `found` are those that do not verify."""

    next_index: LogIndex | None
    bytes_read: int
    first_index: LogIndex
    last_index: LogIndex
    paths: tuple[str, ...]
    found: list[DamagedRange]


async def look(log: PartitionLog, cursor: LogIndex, max_bytes: int) -> ScrubResult:
    """Read and verify about `max_bytes` from the entry `cursor` on (at least one entry). A cursor before the
    log's start begins there. Raises LogClosed."""
    log.check_open()
    index = max(cursor, log.first_index)
    last = min(log.last_index, log.synced_index)
    if index > last:
        return ScrubResult(None, 0, index, LogIndex(index - 1), (), [])
    generation = log.generation
    segment = log.segment_of(index)
    found: list[DamagedRange] = []
    paths: tuple[str, ...] = ()
    bytes_read = 0
    if index == segment.first_index:
        is_sealed = segment.last_index < log.last_index
        bytes_read += await _look_at_frame(segment, found, is_sealed=is_sealed)
        paths = (segment.path, segment.index_path) if is_sealed else (segment.path,)
    entries, before = await _entries(log, segment, index, last, max_bytes, found)
    if entries:
        bytes_read += await _look_at_entries(segment, entries, before, found)
    log.check_open()
    end = entries[-1].index if entries else segment.last_index
    following = LogIndex(end + 1) if end < last else None
    if generation != log.generation or log.first_index > index:
        # Cut or trimmed meanwhile: what was read is of a log that is no more. It is looked at again.
        return ScrubResult(max(index, log.first_index), bytes_read, index, LogIndex(index - 1), (), [])
    return ScrubResult(following, bytes_read, index, LogIndex(end), paths, found)


async def _entries(
    log: PartitionLog,
    segment: Segment,
    index: LogIndex,
    last: LogIndex,
    max_bytes: int,
    found: list[DamagedRange],
) -> tuple[list[Entry], Term]:
    """The entries to compare, all of one segment, and the term before the first of them. None of them when
    the index cannot be read: that is found, and the look goes on behind the segment."""
    if segment.index.is_released:
        try:
            await log.load_index(index)
        except (Damaged, OffsetOutOfRange) as error:
            if isinstance(error, Damaged) and not any(item.path == segment.index_path for item in found):
                found.append(_no_entry(segment, segment.index_path, 0, segment.index_bytes, str(error)))
            return [], Term(0)
    if index > segment.last_index:
        return [], Term(0)  # cut meanwhile
    before = segment.term_at(LogIndex(index - 1))
    entries: list[Entry] = []
    size = 0
    while index <= min(last, segment.last_index) and (size < max_bytes or not entries):
        entry = segment.index.entry(index)
        entries.append(entry)
        size += entry.length
        index = LogIndex(index + 1)
    return entries, before


async def _look_at_entries(
    segment: Segment, entries: list[Entry], before: Term, found: list[DamagedRange]
) -> int:
    start = entries[0].position
    buffer, problem = await _read(segment, start, entries[-1].end_position - start)
    if problem is None:
        identity = segment.files.identity
        found += check_entries(segment.path, buffer, start, entries, before, identity)
        return len(buffer)
    # Which of them cannot be read is asked one by one: an error is one of its own range only.
    for place, entry in enumerate(entries):
        buffer, problem = await _read(segment, entry.position, entry.length)
        term = entries[place - 1].term if place else before
        checked = check_entries(segment.path, buffer, entry.position, [entry], term, segment.files.identity)
        found += [replace(item, detail=problem or item.detail) for item in checked]
    return entries[-1].end_position - start


async def _look_at_frame(segment: Segment, found: list[DamagedRange], *, is_sealed: bool) -> int:
    """The segment's header, and when it is sealed its end and its index file."""
    buffer, problem = await _read(segment, 0, len(segment.header))
    if problem is None:
        problem = _header_problem(segment, bytes(buffer))
    if problem is not None:
        found.append(_no_entry(segment, segment.path, 0, len(segment.header), f"header: {problem}"))
    bytes_read = len(buffer)
    if is_sealed:
        end = segment.planned_end
        buffer, problem = await _read(segment, end, TRAILER_BYTES)
        if problem is None:
            problem = _trailer_problem(segment, bytes(buffer))
        if problem is not None:
            found.append(_no_entry(segment, segment.path, end, TRAILER_BYTES, f"tail record: {problem}"))
        bytes_read += len(buffer) + await _look_at_index(segment, found)
    return bytes_read


def _header_problem(segment: Segment, data: bytes) -> str | None:
    try:
        stamp = parse_frame(data, 0, segment.files.identity).stamp
    except BatchError as error:
        return str(error)
    if (stamp.kind, stamp.index, stamp.base_offset) != (Kind.SCHEMA, *segment.name):
        return "it is another segment's"
    return None


def _trailer_problem(segment: Segment, data: bytes) -> str | None:
    try:
        record = decode_trailer(data, 0, segment.files.identity)
    except FormatError as error:
        return str(error)
    if (record.last_index, record.end_position) != (segment.last_index, segment.planned_end):
        return f"it ends the segment at entry {record.last_index}, byte {record.end_position}"
    return None


async def _look_at_index(segment: Segment, found: list[DamagedRange]) -> int:
    """Compare the index file with the index in memory; of a released index only the first and last entry. A
    file that lacks entries which were never known synced is not damaged."""
    disk, path = segment.files.disk, segment.index_path
    expected_bytes = segment.index_bytes
    if not expected_bytes:
        return 0
    try:
        async with opened(disk, path) as file:
            file.forget_cached(0, expected_bytes)
            data = await file.read(0, min(expected_bytes, MAX_INDEX_FILE_BYTES))
    except OSError as error:
        found.append(_no_entry(segment, path, 0, expected_bytes, f"read failed: {error}"))
        return 0
    name = segment.name
    loaded = decode_index_file(data, name.first_index, name.first_offset, segment.files.identity)
    if loaded.good_bytes < min(expected_bytes, MAX_INDEX_FILE_BYTES):
        at = loaded.good_bytes
        detail = f"index: {loaded.problem or 'the file has become short'}"
        found.append(_no_entry(segment, path, at, expected_bytes - at, detail))
    elif loaded.held.last_index == segment.last_index:
        last = segment.index.entry(segment.last_index)
        if loaded.held.entry(segment.last_index) != last:
            found.append(_no_entry(segment, path, 0, expected_bytes, "index: it is of another branch"))
    return len(data)


def _no_entry(segment: Segment, path: str, position: int, length: int, detail: str) -> DamagedRange:
    return range_without_entries(path, position, length, *segment.name, detail)


async def _read(segment: Segment, position: int, length: int) -> tuple[memoryview, str | None]:
    """From the disk itself, as far as the kernel lets go of what it has cached."""
    buffer = memoryview(pa.allocate_buffer(length)).cast("B")
    try:
        async with segment.files.open_files.pin(segment.path) as file:
            lending = segment.files.shared.lending
            lending.look_away(segment.path, position, position + length)  # mapped pages would stay
            file.forget_cached(position, length)
            filled = await file.read_into(position, buffer)
    except OSError as error:
        return buffer[:0].toreadonly(), f"read failed: {error}"
    return buffer[:filled].toreadonly(), None
