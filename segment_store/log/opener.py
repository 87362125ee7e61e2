"""Opening a log: directory to segments, by the rules of recovery.py (safety 7 to 12). Streams in bounded
buffers.

Sealed segments are taken from their index files and not read. The active one is read from its last indexed
entry on. Opening writes index files that were missing or short, a torn tail's zeros, and every frame above
the last index known synced, again and in place, since the page cache may hold bytes that the disk does not.
"""

import logging
from dataclasses import dataclass, field
from typing import TypeVar, cast

from shoal.format.batch import (
    BatchError,
    Kind,
    LogIdentity,
    LogIndex,
    Term,
    decode_stream,
    parse_frame,
)
from shoal.segment_store.disk.disk import File, opened
from shoal.segment_store.errors import Damaged, ForeignIdentity, FormatError, WrongSchema, is_no_space
from shoal.segment_store.format.index import Entry, decode_index_file
from shoal.segment_store.format.layout import SegmentName, sort_directory
from shoal.segment_store.format.recovery import (
    Chain,
    Found,
    bridge,
)
from shoal.segment_store.format.segment_scan import SegmentScan, Steps
from shoal.segment_store.format.tail_record import (
    TRAILER_BYTES,
    TailRecord,
    decode_trailer,
    encode_trailer,
)
from shoal.segment_store.format.torn_write import found_at
from shoal.segment_store.log.index_cache import MAX_INDEX_FILE_BYTES, release_old
from shoal.segment_store.log.segment import Segment, SegmentFiles, write_zeros
from shoal.segment_store.log.spare_files import may_be_reused

MAX_HEADER_BYTES = 2**20  # a schema message; Shoal's own is below 1 KiB

logger = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(slots=True)
class Recovered:
    """The segments in log order, what is damaged in them, what was done (for the log and for people), and
    names of files for segments to come."""

    segments: list[Segment] = field(default_factory=list)
    damage: list[Damaged] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    term_runs: list[tuple[LogIndex, Term]] = field(default_factory=list)
    spares: list[str] = field(default_factory=list)
    cleared_behind: LogIndex | None = None
    """The entry behind which the beginning of another write stood, that was cleared."""


async def recover(files: SegmentFiles) -> Recovered:
    """Every segment of the directory (created when missing), ready to append to and to read.

    Damaged when the log's numbers cannot be established; ForeignIdentity when the files are another log's,
    WrongSchema when they have other columns.
    None of them changes anything on the disk.
    """
    await files.disk.make_directory(files.directory)
    names, orphans, spares = sort_directory(await files.disk.list(files.directory))
    found = Recovered(spares=list(spares))
    opening = _Opening(files, found)
    for place, name in enumerate(names):
        await opening.take(name, names[place + 1] if place + 1 < len(names) else None)
    for orphan in orphans:
        found.notes.append(f"removed {orphan}, left by an interrupted change")
        if await files.disk.exists(files.path(orphan)):  # no longer where that index was written again above
            await files.disk.unlink(files.path(orphan))
    if orphans:
        await files.disk.sync_directory(files.directory)
    for note in found.notes:
        logger.debug("%s: %s", files.directory, note)
    for damage in found.damage:
        logger.debug("damage found: %s", damage)  # their owner says so, with the name of the partition
    return found


class _Opening:
    """Segment after segment into `found`, with the chain that leads from each to the next."""

    def __init__(self, files: SegmentFiles, found: Recovered) -> None:
        self.files = files
        self.found = found
        self.chain: Chain | None = None

    async def take(self, name: SegmentName, successor: SegmentName | None) -> None:
        chain = self.chain
        path = self.files.path(name.segment_file)
        if chain is not None and (name.first_index, name.first_offset) != (
            chain.next_index,
            chain.next_offset,
        ):
            detail = f"the segment before ends at entry {chain.next_index - 1}, offset {chain.next_offset}"
            raise Damaged(path, 0, detail, chain.next_index, LogIndex(name.first_index - 1))
        async with self.files.open_files.pin(path) as file:
            segment = await self._read(name, file, successor)
        if segment is None:
            return
        self.found.segments.append(segment)
        runs = self.found.term_runs
        runs += [run for run in segment.index.term_runs() if not runs or runs[-1][1] != run[1]]
        release_old(self.found.segments, self.files.config.index_bytes)

    async def _read(self, name: SegmentName, file: File, successor: SegmentName | None) -> Segment | None:
        size = await file.size()
        previous_term = await self._previous_term(name, file, size)
        segment = Segment(self.files, name, previous_term)
        segment.allocated = size
        segment.is_over_zeros = successor is None  # settling clears what lies behind the last entry
        header_problem = await _header_problem(segment, file)
        time = self.chain.append_time_us if self.chain else 0
        chain = Chain(name.first_index, name.first_offset, previous_term, time)
        chunk_bytes = self.files.config.read_chunk_bytes
        scan = SegmentScan(self.files.identity, size, chunk_bytes, chain, len(segment.header))
        await self._load_index(segment, scan)
        known = max(segment.indexed_index, successor.first_index - 1 if successor else 0)
        if successor is None or known > segment.indexed_index:
            found = await self._successor_entry(successor, size) if successor else None
            try:
                await self._scan(segment, file, scan, known, found)
            except Damaged as damage:
                if header_problem and not scan.entries and not len(segment.index):
                    detail = f"nothing in the file verifies as this log's: {header_problem}"
                    raise ForeignIdentity(f"{segment.path}: {detail}") from damage
                raise
        for entry in scan.entries:
            segment.index.append(entry)
        if not len(segment.index):
            await self._drop_empty(segment, file, scan, header_problem)
            return None
        last = segment.index.entry(segment.last_index)
        segment.planned_end = segment.written_end = last.end_position
        if header_problem:
            # It follows from the log's identity and the segment before: damage that needs no peer.
            self.found.notes.append(f"{name.segment_file}: header written again ({header_problem})")
            await file.write_and_sync(0, segment.header)
        if successor is None:
            await self._settle_active(segment, file, scan)
        else:
            await self._complete_index(segment)
            if not may_be_reused(segment):  # a crash may have come between
                await segment.release_rest(file)
        self.chain = scan.chain
        return segment

    async def _previous_term(self, name: SegmentName, file: File, size: int) -> Term:
        """Known from the segment before; the first segment's own header says it for a log whose head was
        trimmed."""
        if self.chain is not None:
            return self.chain.previous_term
        if name.first_index == 1:
            return Term(0)
        head = await file.read(0, min(size, self.files.config.read_chunk_bytes))
        try:
            return parse_frame(head, 0, self.files.identity).stamp.previous_term
        except BatchError as error:
            raise Damaged(self.files.path(name.segment_file), 0, f"segment header: {error}") from error

    async def _successor_entry(self, successor: SegmentName, size: int) -> Found | None:
        """The next segment's first entry as the end of a damaged stretch; its header knows the term before
        it."""
        async with self.files.open_files.pin(self.files.path(successor.segment_file)) as file:
            head = await file.read(0, self.files.config.read_chunk_bytes)
        try:
            stamp = parse_frame(head, 0, self.files.identity).stamp
        except BatchError:
            return None  # then nothing tells the terms of the stretch: the caller reports the damage
        place = size - size % 8
        entry = Entry(successor.first_index, successor.first_offset, place, 8, 0, Term(0), 0)
        return Found(entry, stamp.previous_term)

    async def _load_index(self, segment: Segment, scan: SegmentScan) -> None:
        disk = self.files.disk
        if not await disk.exists(segment.index_path):
            self.found.notes.append(f"{segment.name.index_file} is missing; read from the segment")
            return
        async with opened(disk, segment.index_path) as file:
            data = await file.read(0, min(await file.size(), MAX_INDEX_FILE_BYTES))
        name = segment.name
        loaded = decode_index_file(data, name.first_index, name.first_offset, self.files.identity)
        if loaded.problem:
            self.found.notes.append(f"{name.index_file} is good up to {loaded.problem}")
        segment.index.extend(loaded.held)
        segment.index_bytes = loaded.good_bytes
        segment.index_is_ragged = loaded.good_bytes < len(data)
        segment.indexed_index = segment.last_index
        if len(loaded.held):
            last = loaded.held.entry(loaded.held.last_index)
            scan.chain = scan.chain.after(last)
            scan.end_position = last.end_position

    async def _scan(
        self, segment: Segment, file: File, scan: SegmentScan, known_index: int, successor: Found | None
    ) -> None:
        """Follow the frames, over damage where knowledge says that there was more. `known_index`: the last
        entry known to have been synced; `successor`: the next segment's first entry."""
        path = segment.path
        while True:
            stretch = await read_for(scan.follow(), file)
            beyond = await read_for(scan.look_beyond(), file)
            last = max(known_index, beyond.synced_index)
            verdict = await read_for(scan.judge(), file)
            if last < scan.chain.next_index and not verdict.was_written:
                return
            found = verdict.behind or await read_for(scan.find_later(), file)
            found = found or successor or found_at(beyond.newest)
            position, chain = scan.end_position, scan.chain
            if found is not None and found is successor:
                record = await read_tail_record(segment, file, chain, position)
                if record is not None:
                    return  # not damage here: a whole segment is missing behind this one
            reason = f"{stretch.reason}: {stretch.detail}"
            if found is None:
                raise Damaged(path, position, reason, chain.next_index, last)
            entries = bridge(path, position, chain, found.entry, found.previous_term)
            scan.entries += entries
            scan.skip_to(found)
            first, last_entry = entries[0], entries[-1]
            offsets, length = (first.base_offset, last_entry.end_offset), last_entry.end_position - position
            damage = Damaged(path, position, reason, first.index, last_entry.index, offsets, length)
            self.found.damage.append(damage)
            if found is successor:
                return

    async def _drop_empty(
        self, segment: Segment, file: File, scan: SegmentScan, header_problem: str | None
    ) -> None:
        """A segment whose creation was interrupted before its first frame: nothing in it was ever
        acknowledged."""
        beyond = scan.beyond.dirty_end > len(segment.header) + TRAILER_BYTES
        if header_problem and beyond:
            owner = await _owner(file, self.files.identity)
            raise ForeignIdentity(f"{segment.path}: nothing verifies as this log's; it says it is of {owner}")
        self.found.notes.append(f"{segment.name.segment_file} holds no entry; removed")
        await segment.remove()
        await self.files.disk.sync_directory(self.files.directory)

    async def _settle_active(self, segment: Segment, file: File, scan: SegmentScan) -> None:
        """Rewrite entries that may be in the page cache only, clear a torn tail, and sync, before anything is
        answered."""
        last, end = segment.last_index, scan.end_position
        newest = await read_tail_record(segment, file, scan.chain, end)
        clean = newest is not None
        synced = max(segment.indexed_index, min(scan.beyond.synced_index, last))
        dirty_end = max(scan.beyond.dirty_end, end)
        if clean and synced == last and dirty_end <= end + TRAILER_BYTES:
            await self._complete_index(segment)
            return
        written = 0
        if synced < last:
            start = segment.index.entry(LogIndex(synced + 1)).position
            await self._rewrite(file, start, end)
            if newest is not None and newest.start_position == start:
                written = newest.written_bytes  # the same bytes at the same place: what it says holds on
        if dirty_end > end + TRAILER_BYTES or not clean:
            self.found.notes.append(
                f"{segment.name.segment_file}: cleared an incomplete write behind entry {last}"
            )
            if dirty_end > end + TRAILER_BYTES:
                self.found.cleared_behind = last
        await segment.reserve(file, end + TRAILER_BYTES)
        segment.count_unused(0)  # counted with the rest once the whole log has opened
        await write_zeros(file, end, dirty_end)
        entry = segment.index.entry(last)
        record = TailRecord(last, entry.term, end, LogIndex(synced), entry.end_offset, written)
        await file.write_and_sync(end, encode_trailer(record, segment.files.identity))
        await self._complete_index(segment)

    async def _complete_index(self, segment: Segment) -> None:
        first = segment.indexed_index + 1
        if first > segment.last_index:
            return
        try:
            await segment.write_index(segment.last_index)
        except OSError as error:
            if not is_no_space(error):
                raise
            self.found.notes.append(f"{segment.name.index_file} not completed: {error}")  # it only saves time
        else:
            self.found.notes.append(f"{segment.name.index_file} completed from entry {first}")

    async def _rewrite(self, file: File, start: int, end: int) -> None:
        chunk = self.files.config.read_chunk_bytes
        for at in range(start, end, chunk):
            await file.write(at, await file.read(at, min(chunk, end - at)))


async def read_for(steps: Steps[_T], file: File) -> _T:
    """Fill the buffers of a scan's step."""
    try:
        position, buffer = next(steps)
        while True:
            filled = await file.read_into(position, buffer)
            del buffer  # its memory is used again for the next one
            position, buffer = steps.send(filled)
    except StopIteration as ended:
        return cast("_T", ended.value)


async def read_tail_record(segment: Segment, file: File, chain: Chain, end: int) -> TailRecord | None:
    """The tail record at `end` if it says that the chain's last entry was the last one."""
    try:
        record = decode_trailer(await file.read(end, TRAILER_BYTES), 0, segment.files.identity)
    except FormatError:
        return None
    is_end = record.end_position == end and record.last_index == chain.next_index - 1
    return record if is_end else None


async def _header_problem(segment: Segment, file: File) -> str | None:
    """None when the file opens with this log's header, which may be longer or shorter than the one we would
    write (another version of Arrow). Whether one that does not verify is damaged or foreign, the frames
    decide. Raises WrongSchema."""
    if await file.read(0, len(segment.header)) == segment.header:
        return None
    data = await file.read(0, MAX_HEADER_BYTES)
    identity = segment.files.identity
    try:
        frame = parse_frame(data, 0, identity)
    except BatchError as error:
        return str(error)
    stamp = frame.stamp
    if (stamp.kind, stamp.index, stamp.base_offset) != (Kind.SCHEMA, *segment.name):
        return "the header is another segment's"
    stored = decode_stream(bytes(frame.data))[0]
    if not stored.equals(segment.files.schema, check_metadata=False):
        problem = f"it holds the columns {stored.names}, not {segment.files.schema.names}"
        raise WrongSchema(f"{segment.path}: {problem}, or they are of other types")
    segment.header = bytes(frame.data)
    segment.planned_end = len(frame.data)
    return None


async def _owner(file: File, identity: LogIdentity) -> str:
    """The log that the file names as its own, for an error message: nothing of it has been verified."""
    try:
        header = bytes(parse_frame(await file.read(0, MAX_HEADER_BYTES), 0, identity, verify=False).data)
        metadata = decode_stream(header)[0].metadata or {}
    except BatchError:
        return "an unknown log"
    topic, partition = metadata.get(b"shoal.topic_id", b"?"), metadata.get(b"shoal.partition", b"?")
    return f"topic {topic.decode('ascii', 'replace')}, partition {partition.decode('ascii', 'replace')}"
