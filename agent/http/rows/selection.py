"""Which stored rows go into an answer: from an offset on, so many and so many bytes of them, one in any case.

Law of this file: chosen rows are bounded by their size in memory, not on disk. Nothing else that was read or
unpacked is kept. Large records are read and unpacked by one request at a time, on a thread of its own. So all
requests together need 64 MiB unpacked (MAX_UNCOMPRESSED_BYTES) and one frame, beside their chosen rows. Knows
neither forms nor sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from shoal.agent.http.admission.answer_room import AnswerReservation, AnswerRoom
from shoal.agent.http.rows.row_pieces import Rows, leading_rows
from shoal.agent.interface import Admit, Fetch, Pieces
from shoal.errors import ShoalError
from shoal.format.batch import (
    BatchError,
    parse_stamp,
    timestamps_of,
    to_record_batch,
    unpacked_bytes,
)

INLINE_BYTES = 256 * 1024
"""Up to here rows are chosen on the loop: a tenth of a millisecond, less than the way to a thread."""
FRAME_COST_BYTES = 16 * 1024  # to open even the smallest takes as long as to copy so much, some 50 us

Frame: TypeAlias = bytes | memoryview


class Portion(NamedTuple):
    """Which rows: from `offset` on, at most `limit`, and as many as fit `room_bytes`, but at least one.
    `times_only`: nothing but their timestamps."""

    offset: int
    room_bytes: int
    limit: int | None = None
    times_only: bool = False


class Selected(NamedTuple):
    """Rows in memory of their own, or which they share with the small frames they came in; where to go on."""

    rows: list[Rows]
    next_offset: int
    size_bytes: int


class Received(NamedTuple):
    """Frames of another agent's answer, and where to go on behind them. `release`: what is held for them."""

    frames: Sequence[Frame]
    schema: pa.Schema
    next_offset: int
    release: Callable[[], None]


class Selector:
    """One per agent: the turn that large selections take one after the other, and their thread."""

    def __init__(self, room: AnswerRoom) -> None:
        self._room = room
        self._turn = asyncio.Lock()
        self._thread: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Nothing can be selected afterwards that is large."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def fetch_and_select(
        self,
        fetch_by: Callable[[Admit], Awaitable[Fetch]],
        portion: Portion,
        holding: AnswerReservation,
        timeout_ms: int,
    ) -> tuple[Fetch, Selected]:
        """Of what `fetch_by` finds, which it may leave in the log; what was selected is held. ShoalError as
        `fetch_by` raises it; overloaded when there is no room, or the turn does not come in time."""
        turn = Turn(self._turn, timeout_ms)
        try:
            fetch = await fetch_by(turn.take)
            selected = await self._of_fetch(fetch, portion, turn)
            await holding.add(selected.size_bytes, may_wait=turn.held)
            return fetch, selected
        finally:
            turn.release()

    async def select(
        self, received: Received, portion: Portion, holding: AnswerReservation, timeout_ms: int
    ) -> Selected:
        """Of frames that came from another agent; nothing is held for these any more. Raises BatchError, and
        ShoalError overloaded."""
        turn = Turn(self._turn, timeout_ms)
        selection = self._selection(portion)
        try:
            for frame in received.frames:
                if not await self._add(selection, frame, received.schema, turn, stays=False):
                    break
            selected = selection.selected(received.next_offset)
            received.release()
            await holding.add(selected.size_bytes, may_wait=turn.held)
            return selected
        finally:
            turn.release()

    def _selection(self, portion: Portion) -> _Selection:
        return _Selection(portion._replace(room_bytes=self._room.share(portion.room_bytes)))

    async def _of_fetch(self, fetch: Fetch, portion: Portion, turn: Turn) -> Selected:
        selection = self._selection(portion)
        if fetch.pieces is not None:
            await self._of_pieces(fetch.pieces, fetch.schema, selection, turn)
        else:
            for frame in fetch.frames:
                if not await self._add(selection, frame, fetch.schema, turn, stays=True):
                    break
        return selection.selected(fetch.next_offset)

    async def _of_pieces(self, pieces: Pieces, schema: pa.Schema, selection: _Selection, turn: Turn) -> None:
        try:
            while not selection.is_full:
                piece = await pieces.next()
                if piece is None:
                    return
                for frame in frames_in(piece):
                    if not await self._add(selection, frame, schema, turn, stays=False):
                        return
        except ShoalError:
            if not selection.rows:
                raise
            selection.is_full = True  # what lies before the damage is the answer; the next one meets it
        finally:
            await pieces.let_go()

    async def _add(
        self, selection: _Selection, frame: Frame, schema: pa.Schema, turn: Turn, *, stays: bool
    ) -> bool:
        """Add a frame's rows; whether there is room for more."""
        stamp, _ = parse_stamp(frame, 0)
        if not stamp.record_count or stamp.base_offset + stamp.record_count <= selection.portion.offset:
            return True
        unpacked = unpacked_bytes(frame)
        work_bytes, is_packed = max(len(frame), unpacked), unpacked > len(frame)
        if work_bytes <= INLINE_BYTES:
            selection.add(frame, schema, stamp.base_offset, stays=stays and not is_packed)
            selection.worked_bytes += work_bytes + FRAME_COST_BYTES
            if selection.worked_bytes > INLINE_BYTES:
                selection.worked_bytes = 0
                await asyncio.sleep(0)
        else:
            await turn.take(0)
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "selecting")
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(
                self._thread, lambda: selection.add(frame, schema, stamp.base_offset, stays=False)
            )
            await turn.until_done(work)
        return not selection.is_full


class Turn:
    """A request's place among those that select much."""

    __slots__ = ("_lock", "_timeout_ms", "held")

    def __init__(self, lock: asyncio.Lock, timeout_ms: int) -> None:
        self._lock = lock
        self._timeout_ms = timeout_ms
        self.held = False

    async def take(self, held_bytes: int) -> None:
        """Wait for it, unless it has come. The lock goes to the request that has waited longest."""
        del held_bytes  # one frame, which its bound allows for
        if self.held:
            return
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await self._lock.acquire()
        except TimeoutError:
            raise ShoalError(
                "overloaded", "other reads of large records took all the time; try again in a moment"
            ) from None
        self.held = True

    async def until_done(self, work: asyncio.Future[None]) -> None:
        """The thread's work is never left alone with the turn given to another."""
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.done():
                self.held = False
                work.add_done_callback(lambda _: self._lock.release())
            raise

    def release(self) -> None:
        """Idempotent."""
        if self.held:
            self.held = False
            self._lock.release()


class _Selection:
    """The rows chosen so far."""

    def __init__(self, portion: Portion) -> None:
        self.portion = portion
        self.rows: list[Rows] = []
        self.is_full = False
        self.worked_bytes = 0  # since others had their turn of the loop
        self._size_bytes = 0
        self._left = portion.limit

    def add(self, frame: Frame, schema: pa.Schema, base_offset: int, *, stays: bool) -> None:
        """Choose from a frame that has such rows. `stays`: they may share memory with a copy of it."""
        if self.portion.times_only:
            batch = timestamps_of(frame, schema)
        else:
            batch = to_record_batch(bytes(frame) if stays else frame, schema)
        start = max(0, self.portion.offset - base_offset)
        wanted = batch.slice(start, self._left) if self._left is not None else batch.slice(start)
        room = self.portion.room_bytes - self._size_bytes
        if self.rows and room <= 0:
            self.is_full = True
            return
        count, size = leading_rows(wanted, room)
        if self.rows and size > room:  # only the very first row may be larger than the room
            self.is_full = True
            return
        chosen = wanted.slice(0, count)
        if not stays:
            chosen = chosen.take(pa.arange(0, count))
        self.rows.append(Rows(base_offset + start, chosen))
        self._size_bytes += size
        if self._left is not None:
            self._left -= count
        self.is_full = self._left == 0 or count < wanted.num_rows

    def selected(self, next_offset: int) -> Selected:
        """All of it. `next_offset`: behind everything that there was to choose from."""
        following = max(self.portion.offset, next_offset)
        if self.rows and self.is_full:
            last = self.rows[-1]
            following = last.base_offset + last.batch.num_rows
        return Selected(self.rows, following, self._size_bytes)


def frames_in(piece: Frame) -> Iterator[memoryview]:
    """The frames that lie one behind the other. Raises BatchError."""
    view = memoryview(piece)
    position = 0
    while position < len(view):
        _, length = parse_stamp(view, position)
        if position + length > len(view):
            raise BatchError("short", "the bytes end inside a frame")
        yield view[position : position + length]
        position += length
