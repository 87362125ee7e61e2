"""One sorted run that is read: its index in memory, its chunks from the file, each verified.

Law of this file: no row is given out before its whole chunk has verified. A run that a merge has replaced is
removed once nobody reads it. view.py decides about damage.
"""

from __future__ import annotations

import crc32c
import pyarrow as pa

from shoal.agent.views.manifest import RunEntry
from shoal.agent.views.row_order import RowOrder
from shoal.agent.views.run_format import (
    MAX_HEAD_BYTES,
    TAIL_BYTES,
    RunFormatError,
    RunIndex,
    decode_index,
    decode_tail,
)
from shoal.segment_store.disk.disk import Buffer, Disk
from shoal.segment_store.disk.open_files import OpenFiles
from shoal.segment_store.errors import Damaged


class SortedRun:
    """One file. `index`: its chunks by their first keys; `filter`: of its keys, empty for none."""

    def __init__(self, files: OpenFiles, path: str, entry: RunEntry, order: RowOrder, seed: int) -> None:
        self._files = files
        self._order = order
        self._seed = seed
        self.path = path
        self.entry = entry
        self.index = RunIndex(())
        self.filter = b""
        self._known = bytearray()
        """For each chunk whether rows with its checksum were found to be what the index says."""

    def __repr__(self) -> str:
        return f"SortedRun({self.path}, level {self.entry.level}, {self.entry.rows} rows)"

    @classmethod
    async def open(
        cls, files: OpenFiles, directory: str, entry: RunEntry, order: RowOrder, seed: int
    ) -> SortedRun:
        """Read and verify all but the chunks. Raises Damaged, OSError."""
        run = cls(files, f"{directory}/{entry.name.file}", entry, order, seed)
        await run.load()
        return run

    async def load(self) -> None:
        """Read and verify all but the chunks, perhaps once more. Raises Damaged, OSError."""
        try:
            await self._load()
        except RunFormatError as error:
            raise self.damaged(0, str(error)) from error
        except FileNotFoundError as error:
            raise self.damaged(0, "the file is gone") from error

    async def _load(self) -> None:
        async with self._files.pin(self.path) as file:
            size = await file.size()
            tail = decode_tail(await file.read(max(size - TAIL_BYTES, 0), TAIL_BYTES), self._seed)
            name = self.entry.name
            if (tail.first_index, tail.last_index) != (name.first_index, name.last_index):
                raise RunFormatError("the file is of other entries than its name says")
            if tail.kind is not self._order.kind or tail.file_bytes != size or tail.rows != self.entry.rows:
                raise RunFormatError("the file is another one than the manifest names")
            index = await file.read(tail.index_position, tail.index_length)
            filtered = await file.read(tail.filter_position, tail.filter_length)
            head = await file.read(0, min(tail.index_position, MAX_HEAD_BYTES))
        if crc32c.crc32c(index, self._seed) != tail.index_checksum or len(index) < tail.index_length:
            raise RunFormatError("the index does not verify")
        if crc32c.crc32c(filtered, self._seed) != tail.filter_checksum or len(filtered) < tail.filter_length:
            raise RunFormatError("the filter does not verify")
        self.index, self.filter = decode_index(index), filtered
        if self.index.rows != tail.rows or self.index.end > tail.index_position:
            raise RunFormatError("the index has another number of rows or bytes than the tail record")
        self._order.check_schema(head)
        self._known = bytearray(len(self.index))

    def damaged(self, position: int, detail: str) -> Damaged:
        """The error that names this run's entries."""
        name = self.entry.name
        return Damaged(self.path, position, detail, name.first_index, name.last_index)

    async def chunk(self, number: int) -> pa.RecordBatch:
        """Its rows, verified. Raises Damaged, OSError."""
        return (await self.chunks(number, number + 1))[0]

    async def chunks(self, first: int, stop: int) -> list[pa.RecordBatch]:
        """Neighbouring chunks in one read. Raises Damaged, OSError."""
        return self.verified(first, stop, await self.chunk_bytes(first, stop))

    async def chunk_bytes(self, first: int, stop: int) -> memoryview:
        """Of neighbouring chunks, in one read, as the file has them. Raises Damaged, OSError."""
        if first == stop:
            return memoryview(b"")
        begin, last = self.index.chunk(first).position, self.index.chunk(stop - 1)
        data = memoryview(pa.allocate_buffer(last.position + last.length - begin)).cast("B")
        try:
            async with self._files.pin(self.path) as file:
                return data[: await file.read_into(begin, data)]
        except FileNotFoundError as error:
            raise self.damaged(begin, "the file is gone") from error

    def verified(self, first: int, stop: int, data: memoryview) -> list[pa.RecordBatch]:
        """The rows of neighbouring chunks, of which these are the bytes, and which they share. May be called
        in any thread. Raises Damaged."""
        found: list[pa.RecordBatch] = []
        begin = self.index.place(first)[0] if first < stop else 0
        for number in range(first, stop):
            position, length = self.index.place(number)
            own = data[position - begin :][:length]
            self.check(own, number)
            found.append(self.rows_of(own, number))
        return found

    def read_at_once(self, number: int) -> bytearray | None:
        """The bytes of one chunk, in this very call; None where memory has not all of them."""
        file = self._files.open_file(self.path)
        if file is None:
            return None
        position, length = self.index.place(number)
        data = bytearray(length)
        return data if file.read_resident(position, memoryview(data)) == length else None

    def check(self, data: Buffer, number: int) -> None:
        """These are the bytes of that chunk, by its checksum. Raises Damaged."""
        position, length = self.index.place(number)
        if len(data) != length or crc32c.crc32c(data, self._seed) != self.index.checksum(number):
            raise self.damaged(position, "a chunk does not verify")

    def rows_of(self, data: Buffer, number: int) -> pa.RecordBatch:
        """The rows in bytes that have verified. Raises Damaged where they are not what the index says."""
        chunk = self.index.chunk(number)
        try:
            rows = self._order.read_chunk(memoryview(data), chunk, is_known=bool(self._known[number]))
        except RunFormatError as error:
            raise self.damaged(chunk.position, str(error)) from error
        self._known[number] = True
        return rows

    async def read_bytes(self, position: int, length: int) -> bytes:
        """Of the file as it lies, for a peer that verifies them. Raises OSError."""
        async with self._files.pin(self.path) as file:
            return await file.read(position, length)

    async def verify(self) -> None:
        """Read every chunk. Raises the first Damaged, OSError."""
        await self.load()
        for number in range(len(self.index)):
            await self.chunk(number)

    async def remove(self, disk: Disk) -> None:
        """The file goes; reads under way end with the bytes they asked for. The directory is the caller's to
        sync. Raises OSError."""
        await self._files.forget(self.path)
        if await disk.exists(self.path):
            await disk.unlink(self.path)
