"""A run is written: sorted rows become chunks, and the chunks a file.

Law of this file: RunEncoder is pure and works in a thread. RunWriter gives its bytes to the disk as they
come, so that no run lies in memory whole. A file is complete and synced, and its name too, before anybody may
name it.
"""

from __future__ import annotations

from collections.abc import Iterable

import crc32c
import pyarrow as pa

from shoal.agent.views.manifest import RunEntry
from shoal.agent.views.row_order import RowOrder, chunks_of
from shoal.agent.views.run_format import MAX_KEY_BYTES, RunChunk, RunIndex, RunName, RunTail, encode_tail
from shoal.format.batch import END_OF_STREAM, Offset, schema_message
from shoal.segment_store.disk.disk import Disk, File


class RunEncoder:
    """The bytes of one run, one after the other. `seed`: of the log's identity."""

    def __init__(self, order: RowOrder, name: RunName, seed: int) -> None:
        self._order = order
        self._name = name
        self._seed = seed
        self.head = schema_message(order.schema)
        """What stands before the first chunk."""
        self._position = len(self.head)
        self._chunks: list[RunChunk] = []
        self._prints: list[pa.Array] = []

    @property
    def rows(self) -> int:
        """Rows so far."""
        return sum(chunk.rows for chunk in self._chunks)

    def rows_in_chunks(self, batches: Iterable[pa.RecordBatch]) -> list[memoryview]:
        """The bytes of sorted rows that follow all that came before."""
        encoded = []
        for batch in batches:
            for chunk in chunks_of(batch, self._order.chunk_bytes):
                data = memoryview(chunk.serialize())
                key = self._order.key_at(chunk, 0)
                assert len(key) <= MAX_KEY_BYTES
                checksum = crc32c.crc32c(data, self._seed)
                self._chunks.append(RunChunk(key, self._position, len(data), checksum, chunk.num_rows))
                self._position += len(data)
                prints = self._order.prints_of(chunk)
                self._prints += [] if prints is None else [prints]
                encoded.append(data)
        return encoded

    def end(self) -> bytes:
        """Everything behind the last chunk."""
        index = RunIndex(self._chunks).to_bytes()
        filtered = self._order.filter_of(self._prints)
        tail = RunTail(
            self._order.kind,
            self._name.first_index,
            self._name.last_index,
            self.rows,
            self._position + len(END_OF_STREAM),
            len(index),
            len(filtered),
            crc32c.crc32c(index, self._seed),
            crc32c.crc32c(filtered, self._seed),
        )
        rest = END_OF_STREAM + index + filtered + encode_tail(tail, self._seed)
        self._position += len(rest)
        return rest

    @property
    def size_bytes(self) -> int:
        """Of the file, as far as it goes."""
        return self._position


class RunWriter:
    """The file of one run that is being written. Raises OSError."""

    def __init__(self, disk: Disk, directory: str, name: RunName) -> None:
        self._disk = disk
        self._directory = directory
        self.path = f"{directory}/{name.file}"
        self.name = name
        self._file: File | None = None
        self._position = 0

    @property
    def has_begun(self) -> bool:
        """Whether something was written."""
        return self._position > 0

    async def write(self, data: bytes | list[memoryview]) -> None:
        """Behind what was written before."""
        if self._file is None:
            self._file = await self._disk.open(self.path, create=True)
        await self._file.write_back(self._position, data)
        self._position += len(data) if isinstance(data, bytes) else sum(map(len, data))

    async def finish(self, level: int, end_offset: Offset, rows: int) -> RunEntry:
        """Synced, with its name. Closed."""
        assert self._file is not None
        await self._file.sync()
        await self._file.close()
        self._file = None
        await self._disk.sync_directory(self._directory)
        return RunEntry(self.name, level, end_offset, rows, self._position)

    async def abandon(self) -> None:
        """The run is not wanted: remove what there is of it."""
        if self._file is not None:
            await self._file.close()
            self._file = None
        if await self._disk.exists(self.path):
            await self._disk.unlink(self.path)
