"""One segment file and its index file: what lies where, and the writes that keep both true.

    | stamped schema message | frames ... | end-of-stream marker | tail record | zeros |

The caller (log.py) orders the calls: at most one of write, roll, truncate runs at a time. `index` and
`planned_end` run ahead of the disk: they describe frames that were accepted and are still on their way.
"""

from typing import NamedTuple

import pyarrow as pa

from shoal.format.batch import Frame, LogIdentity, LogIndex, Offset, Term, schema_frame
from shoal.segment_store.config import LogConfig
from shoal.segment_store.disk.disk import Buffer, Disk, File, opened
from shoal.segment_store.format.index import SegmentIndex, encode_blocks
from shoal.segment_store.format.layout import TEMPORARY_SUFFIX, SegmentName, next_allocation
from shoal.segment_store.format.tail_record import TRAILER_BYTES, TailRecord, encode_trailer
from shoal.segment_store.log.shared import SharedFiles

# Writing over blocks that were written once is about twice as fast as into fresh or merely reserved ones,
# since the file system's own journal is not involved (43 us against 80 us for 4 KiB and a sync; at 117 KiB
# the gain is smaller than the cost). So a small write takes zeros for the next window along, in the same
# call and under the same sync.
PREWRITE_WINDOW_BYTES = 256 * 2**10
PREWRITE_MAX_WRITE_BYTES = 16 * 2**10
ZERO_CHUNK_BYTES = 2**20
SMALL_STEP_BYTES = 64 * 2**10
"""Once a log has records, blocks are taken by no less than this, and less is not worth giving back."""
RELEASE_ALIGNMENT_BYTES = 4096
"""The block size of most file systems: parts of a block cannot be given back."""
_ZEROS = bytes(ZERO_CHUNK_BYTES)


class SegmentFiles:
    """Shared by the segments of one log: their place and how they are written."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        identity: LogIdentity,
        schema: pa.Schema,
        config: LogConfig,
        shared: SharedFiles | None = None,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.identity = identity
        self.schema = schema
        self.config = config
        self.shared = shared or SharedFiles(disk, max_open_files=config.max_open_files)
        self.open_files = self.shared.open_files

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"


class SegmentSpan(NamedTuple):
    """One segment as retention sees it. Sizes in bytes, `data_bytes` of its records alone; append times in
    microseconds since the epoch (0: empty)."""

    first_index: LogIndex
    first_offset: Offset
    end_offset: Offset
    size_bytes: int
    data_bytes: int
    first_append_time_us: int
    last_append_time_us: int


class Segment:
    """State of one segment. Positions and lengths in bytes from the start of its file."""

    def __init__(self, files: SegmentFiles, name: SegmentName, previous_term: Term) -> None:
        self.files = files
        self.name = name
        self.path = files.path(name.segment_file)
        self.index_path = files.path(name.index_file)
        self.index = SegmentIndex(name.first_index)
        self.header = schema_frame(
            files.schema,
            files.identity,
            first_index=name.first_index,
            first_offset=name.first_offset,
            previous_term=previous_term,
        )
        self.previous_term = previous_term
        self.planned_end = len(self.header)
        self.written_end = len(self.header)  # behind the last frame in the file
        self.soiled_end = 0  # a refused write may have left bytes up to here; 0: none
        self.allocated = 0
        self.unused_bytes = 0  # of what is allocated, as counted when the file grew
        self.prewritten_end = 0
        self.is_over_zeros = True  # behind written_end the file holds nothing but a trailer and zeros
        self.recycled_bytes = 0  # of the file, if it had an earlier life and this one is not full
        self.indexed_index = LogIndex(name.first_index - 1)  # last entry in the index file
        self.index_bytes = 0  # good bytes of the index file
        self.index_is_ragged = False  # bad bytes follow them: less written over them would leave some

    def __repr__(self) -> str:
        return f"Segment({self.name.stem}, {len(self.index)} entries, {self.planned_end} bytes)"

    @property
    def first_index(self) -> LogIndex:
        return self.name.first_index

    @property
    def last_index(self) -> LogIndex:
        return self.index.last_index

    @property
    def frames_bytes(self) -> int:
        """Of all its frames, once it is sealed."""
        return self.planned_end - len(self.header)

    def span(self, end_offset: Offset) -> SegmentSpan:
        """It as retention sees it; `end_offset`: where the next begins."""
        index, first_us, last_us = self.index, 0, 0
        if len(index):
            first_us = index.entry(self.first_index).append_time_us
            last_us = index.entry(self.last_index).append_time_us
        return SegmentSpan(*self.name, end_offset, self.planned_end, index.data_bytes, first_us, last_us)

    def plan(self, frame: Frame) -> None:
        """Give the frame its place behind all accepted so far, at `planned_end`."""
        length = len(frame.data)
        self.index.append_frame(frame.stamp, self.planned_end, length)
        self.planned_end += length

    def position_of(self, index: LogIndex) -> int:
        """Where the entry starts; where the next would when it is not here."""
        return self.index.entry(index).position if index <= self.last_index else self.planned_end

    def end_offset_before(self, index: LogIndex) -> Offset:
        """Where the entries of this segment before `index`, at least one, end."""
        return self.index.entry(LogIndex(min(index - 1, self.last_index))).end_offset

    def cut(self, from_index: LogIndex) -> None:
        """Forget planned entries from `from_index` on; the disk is another matter."""
        self.index.truncate(from_index)
        last = self.last_index
        self.planned_end = self.index.entry(last).end_position if len(self.index) else len(self.header)

    def term_at(self, index: LogIndex) -> Term:
        """Of an entry here, or of the one right before the segment."""
        return self.index.entry(index).term if index >= self.first_index else self.previous_term

    async def create(self, file: File) -> None:
        """Header, marker and tail record durable in the file; the caller syncs the directory before any
        frame."""
        assert await file.size() == 0, f"{self.path} exists already"
        await self.reserve(file, len(self.header) + TRAILER_BYTES)
        await self.write_beginning(file)

    async def write_beginning(self, file: File) -> None:
        """Header, marker and tail record of a segment without entries, synced."""
        before = LogIndex(self.first_index - 1)
        record = TailRecord(before, self.previous_term, len(self.header), before, self.name.first_offset)
        await file.write_and_sync(0, [self.header, encode_trailer(record, self.files.identity)])

    async def reserve(self, file: File, needed: int) -> None:
        """Blocks for `needed` bytes, in growing steps."""
        if needed <= self.allocated:
            return
        config, reserved = self.files.config, self.files.shared.reserved
        disk_bytes = await self.files.shared.disk_bytes(self.files.directory)
        first, most = config.first_allocation_bytes, config.max_allocation_step_bytes
        least = min(SMALL_STEP_BYTES, most)
        step = reserved.step_bytes(self.unused_bytes, least, most, disk_bytes)
        length = next_allocation(self.allocated, needed, first, step, config.segment_bytes)
        await file.allocate(length)
        self.allocated = max(self.allocated, length)
        self.count_unused(self.allocated - needed)

    def count_unused(self, size: int) -> None:
        """So many bytes of the file's blocks hold nothing, as far as the agent's bound on them goes."""
        self.files.shared.reserved.change(size - self.unused_bytes)
        self.unused_bytes = size

    async def release_rest(self, file: File) -> None:
        """Blocks that were reserved and are not needed any more go back to the disk: a segment that ends
        early (its age, a new leader, a smaller segment.bytes) may have megabytes of them. Should a truncation
        make it the active one again, it takes blocks as it is written."""
        end = max(self.written_end, self.planned_end, self.soiled_end) + TRAILER_BYTES
        end += -end % RELEASE_ALIGNMENT_BYTES
        if self.allocated - end >= SMALL_STEP_BYTES:
            await file.release(end, self.allocated - end)

    def zeros_after(self, end: int, written: int) -> list[Buffer]:
        """Zeros to take along with a write of `written` bytes that ends at `end` (see
        PREWRITE_WINDOW_BYTES)."""
        if written > PREWRITE_MAX_WRITE_BYTES or end <= self.prewritten_end:
            return []
        window_end = min(end - end % PREWRITE_WINDOW_BYTES + PREWRITE_WINDOW_BYTES, self.allocated)
        if window_end <= end:
            return []
        self.prewritten_end = window_end
        return [memoryview(_ZEROS)[: window_end - end]]

    async def write_index(self, upto: LogIndex) -> None:
        """Append entries up to `upto`, whose frames are known synced, to the index file and sync it."""
        first = LogIndex(self.indexed_index + 1)
        if upto < first:
            return
        if self.index_is_ragged:
            await self.replace_index(upto)
            return
        blocks = encode_blocks(list(self.index.slice(first, upto)), self.files.identity)
        create = self.index_bytes == 0
        async with opened(self.files.disk, self.index_path, create=True) as file:
            await file.write_and_sync(self.index_bytes, blocks)
        if create:
            await self.files.disk.sync_directory(self.files.directory)
        self.index_bytes += sum(map(len, blocks))
        self.indexed_index = upto

    async def replace_index(self, upto: LogIndex) -> None:
        """The index file anew, with entries up to `upto` only; durable when this returns, the old one whole
        until then."""
        disk = self.files.disk
        blocks = encode_blocks(list(self.index.slice(self.first_index, upto)), self.files.identity)
        temporary = self.index_path + TEMPORARY_SUFFIX
        if await disk.exists(temporary):  # of an attempt that failed; its longer tail must not show through
            await disk.unlink(temporary)
        async with opened(disk, temporary, create=True) as file:
            await file.write_and_sync(0, blocks)
        await disk.rename(temporary, self.index_path)
        await disk.sync_directory(self.files.directory)
        self.index_bytes = sum(map(len, blocks))
        self.index_is_ragged = False
        self.indexed_index = upto

    async def remove_index(self) -> None:
        """Durably without an index file."""
        await self.files.disk.unlink(self.index_path)
        await self.files.disk.sync_directory(self.files.directory)
        self.index_bytes = 0
        self.indexed_index = LogIndex(self.first_index - 1)

    async def remove(self) -> None:
        """Both files gone from the directory; the caller syncs it. The index goes first: an index without a
        segment is an orphan, a segment without an index is only slow."""
        disk = self.files.disk
        self.count_unused(0)
        self.files.shared.lending.forget(self.path)
        await self.files.open_files.forget(self.path)
        for path in (self.index_path, self.path):
            if await disk.exists(path):
                await disk.unlink(path)


async def write_zeros(file: File, start: int, end: int) -> None:
    """Zeros over [start, end), in bounded pieces, not synced."""
    while start < end:
        length = min(end - start, ZERO_CHUNK_BYTES)
        await file.write(start, memoryview(_ZEROS)[:length])
        start += length
