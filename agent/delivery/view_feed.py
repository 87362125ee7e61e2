"""New messages of a timer topic for the leaders of its groups, in the order in which they fall due.

Law of this file: nothing is given before the horizon. No record that this replica's view has yet to take, and
none that is appended later, can stand before it. For an entry behind another has no lower append time, and no
record is due before it was appended. So the floor of a group never passes a record that it was not given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from shoal.agent.delivery.key_feed import KEYS_KEPT, SLICE_KEYS, KeyFeed
from shoal.agent.delivery.log_feed import MENDING_MS
from shoal.agent.groups.leader.candidates import FeedNotReady
from shoal.agent.partition.replica import Replica
from shoal.agent.receive import DuePlace, Range
from shoal.agent.views.due_places import FAR
from shoal.agent.views.row_order import OFFSET_COLUMN
from shoal.agent.views.run_reader import SortedRun
from shoal.agent.views.timer_view import END, ChunksMissing, TimerView
from shoal.agent.views.upkeep.timer_records import read_records
from shoal.agent.views.view import ViewNotReady
from shoal.format.batch import KEY_COLUMN
from shoal.format.hash_ranges import key_hash_64

LOOKS: Final = 4
"""Chunks that are read for a look, before it is given up: a run may be merged meanwhile."""
_T = TypeVar("_T")


class ViewFeed(KeyFeed):
    """A Feed by due time, with keys."""

    def __init__(self, replica: Replica, on_ready: Callable[[], None], timers: TimerView) -> None:
        super().__init__(replica, on_ready)
        self._timers = timers
        self._seen_us = FAR
        """The time of the last look for new messages, or of the last word about one that fell due since."""

    def end(self, append_us: int) -> DuePlace:
        """See Feed: the horizon."""
        now = DuePlace(append_us + 1, 0)
        view = self._timers.view
        if view.applied.offset >= self._replica.state.tail.end_offset:
            return now
        return min(now, DuePlace(view.applied_us, view.applied.offset))

    def new(self, after: DuePlace, limit: int, append_us: int) -> list[Range]:
        """See Feed."""
        view = self._timers.view
        self._seen_us = append_us
        if view.applied.offset < self._replica.state.high_watermark:
            view.on_applied = self._on_ready
        return self._look(lambda: self._timers.due(after, self.end(append_us), limit))

    def count(self, after: DuePlace, append_us: int) -> int:
        """See Feed: about so many, where chunks are not in memory; 0 while the view is made again."""
        try:
            return self._timers.count(after, self.end(append_us))
        except ViewNotReady:
            return 0

    def count_pending(self, append_us: int) -> int:
        """Messages behind the horizon, with those that the view has yet to take; 0 while it is made again."""
        view = self._timers.view
        not_taken = max(self._replica.state.high_watermark - view.applied.offset, 0)
        try:
            return self._timers.count(self.end(append_us), END) + not_taken
        except ViewNotReady:
            return 0

    def deadline_us(self, append_us: int) -> int | None:
        """See Feed. None also while that has to be read: the leader is told then. A message that fell due
        since the last look is told of once: else nobody would look for it before something else happens."""
        since = DuePlace(min(append_us, self._seen_us) + 1, 0)
        try:
            place = self._look(lambda: self._timers.nearest(since))
        except FeedNotReady:
            return None
        if place is not None and place.due_us <= append_us:
            self._seen_us = append_us
        return None if place is None else place.due_us

    async def due_us_from(self, place: DuePlace) -> int | None:
        """When the first record at or behind the place is due; None if there is none, or it cannot be read
        now. For people."""
        for _ in range(LOOKS):
            try:
                found = self._timers.nearest(place)
            except ChunksMissing as missing:
                with suppress(OSError, ViewNotReady):  # the view knows
                    await self._timers.load(missing.chunks)
            except ViewNotReady:
                return None
            else:
                return None if found is None else found.due_us
        return None

    def rows_within(self, piece: Range, max_bytes: int) -> tuple[int, int]:
        """See Feed: rows of one chunk, or of one batch, count alike."""
        row_bytes = self._look(lambda: self._timers.row_bytes(piece.begin))
        if row_bytes is None:
            return super().rows_within(piece, max_bytes)
        rows = min(piece.count, max_bytes // row_bytes)
        return rows, rows * row_bytes

    def _look(self, look: Callable[[], _T]) -> _T:
        async def load(chunks: Sequence[tuple[SortedRun, int]]) -> None:
            try:
                await self._timers.load(chunks)
            except (ViewNotReady, OSError):  # the view knows, and is mended, or is read again
                await asyncio.sleep(MENDING_MS / 1000)

        try:
            return look()
        except ChunksMissing as missing:
            self._begin(load(missing.chunks))
        except ViewNotReady:
            self._begin(asyncio.sleep(MENDING_MS / 1000))
        raise FeedNotReady

    async def _read(self, piece: Range) -> None:
        """The keys of the piece."""
        if len(self._hashes) + piece.count > KEYS_KEPT:
            self._hashes.clear()
        try:
            [rows] = await read_records(self._timers, self._replica.log, [piece])
        except (ViewNotReady, OSError):
            await asyncio.sleep(MENDING_MS / 1000)
            return
        # A record that is past its retention has no key any more.
        self._hashes |= dict.fromkeys(range(piece.first, piece.first + piece.count), 0)
        for first in range(0, rows.num_rows, SLICE_KEYS):
            part = rows.slice(first, SLICE_KEYS)
            keys, offsets = part.column(KEY_COLUMN).to_pylist(), part.column(OFFSET_COLUMN).to_pylist()
            for offset, key in zip(offsets, keys, strict=True):
                self._hashes[offset] = 0 if key is None else key_hash_64(key)
            await asyncio.sleep(0)
