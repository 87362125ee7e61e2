"""New messages of a log topic with the hashes of their keys, for groups that keep the order of each key.

Law of this file: keys are read beside the turns, in slices, and kept as hashes. A leader asks for a chunk at
a time, and keeps what it was told. So a few chunks ahead of it are enough here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from shoal.agent.delivery.log_feed import LogFeed
from shoal.agent.groups.leader.candidates import FeedNotReady
from shoal.agent.partition.replica import Replica
from shoal.agent.receive import Range
from shoal.format.batch import Frame, Kind, Offset, to_record_batch
from shoal.format.hash_ranges import key_hash_64

KEYS_KEPT: Final = 65_536
"""Messages whose hashes are held: as many as a leader's window."""
READ_BYTES: Final = 2**20
SLICE_KEYS: Final = 4_096
"""Hashed in about a millisecond; then the others have their turn."""


class KeyFeed(LogFeed):
    """A Feed with keys."""

    def __init__(self, replica: Replica, on_ready: Callable[[], None]) -> None:
        super().__init__(replica, on_ready)
        self._hashes: dict[int, int] = {}

    def end_offset(self) -> int:
        """Keys are read of records that are committed, and in the log."""
        replica = self._replica
        return min(replica.state.high_watermark, replica.log.end_offset)

    def keys(self, piece: Range) -> Sequence[int]:
        """See Feed."""
        found = [self._hashes.get(offset, -1) for offset in range(piece.first, piece.first + piece.count)]
        if -1 in found:
            self._begin(self._read(piece))
            raise FeedNotReady
        return found

    async def _read(self, piece: Range) -> None:
        """The keys of the piece, and of what was read with them."""
        log, offset, behind = self._replica.log, piece.first, piece.first + piece.count
        if len(self._hashes) + piece.count > KEYS_KEPT:
            self._hashes.clear()
        while offset < behind:
            index = await log.find_offset(Offset(offset))
            frames = await log.read(index, self._replica.state.committed.last_index, READ_BYTES)
            for frame in frames:
                if frame.stamp.kind == Kind.DATA:
                    await self._hash(frame, offset)
                    offset = frame.stamp.base_offset + frame.stamp.record_count

    async def _hash(self, frame: Frame, begin: int) -> None:
        """From that offset on: the largest batch has some millions of rows, of which a chunk is wanted."""
        batch = to_record_batch(frame.data, self._replica.plan.schema)
        column = pa.RecordBatch.column(batch, "key")
        begin = max(begin - frame.stamp.base_offset, 0)
        for first in range(begin, min(len(column), begin + KEYS_KEPT), SLICE_KEYS):
            offset = frame.stamp.base_offset + first
            for key in column.slice(first, SLICE_KEYS).to_pylist():
                self._hashes[offset] = 0 if key is None else key_hash_64(key)
                offset += 1
            await asyncio.sleep(0)
