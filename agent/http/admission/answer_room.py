"""The memory of answers until their readers have taken them: bounded for all of them together.

Law of this file: an answer that does not fit is refused or waits. Only the request with the selectors' turn
may wait (selection.py), so few hold memory that is not counted yet. Part of the room is kept for small
answers, so that readers of large ones who take their time do not keep out everybody else.
"""

from __future__ import annotations

import asyncio
from collections import deque

from shoal.agent.http.admission.limits import MIB, Gate
from shoal.errors import ShoalError

SMALL_ANSWER_BYTES = 64 * 1024
ANSWER_SHARE = 8
SMALL_SHARE = 8  # of the room one in so many is for small answers alone


class AnswerRoom:
    """One per agent. Its bytes count at the gate as well."""

    def __init__(self, gate: Gate, room_bytes: int) -> None:
        self._gate = gate
        self._room_bytes = room_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.held_bytes = 0

    def share(self, wanted_bytes: int) -> int:
        """How much of what one answer wants it gets now: an eighth of what is free, at least 1 MiB. So a few
        slow readers leave room for others."""
        return min(wanted_bytes, max(MIB, (self._room_bytes - self.held_bytes) // ANSWER_SHARE))

    def _fits(self, size_bytes: int) -> bool:
        room_bytes = self._room_bytes
        if size_bytes > SMALL_ANSWER_BYTES:
            if self.held_bytes <= room_bytes // SMALL_SHARE:
                return True  # alone with small ones; a single record may be as large as all of the room
            room_bytes -= room_bytes // SMALL_SHARE
        return self.held_bytes + size_bytes <= room_bytes

    async def take(self, size_bytes: int, wait_ms: int) -> None:
        """Hold so many bytes more, after a wait if need be. ShoalError overloaded."""
        if not self._fits(size_bytes) or (self._waiting and size_bytes > SMALL_ANSWER_BYTES):
            await self._wait_for(size_bytes, wait_ms)
        else:
            self.held_bytes += size_bytes
        try:
            self._gate.hold(size_bytes)
        except ShoalError:
            self._give(size_bytes)
            raise

    async def _wait_for(self, size_bytes: int, wait_ms: int) -> None:
        entry = size_bytes, asyncio.get_running_loop().create_future()
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await entry[1]
        except BaseException as error:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._give(0)  # the next one in the queue may need less
            elif not entry[1].cancelled():
                self._give(size_bytes)
            if not isinstance(error, TimeoutError):
                raise
            raise ShoalError(
                "overloaded",
                f"answers hold {self.held_bytes} bytes until their readers take them, and {size_bytes} more "
                "do not fit; try again in a moment, or ask for less with max_bytes",
            ) from None

    def give_back(self, size_bytes: int) -> None:
        """So many bytes are no longer held."""
        self._gate.hold(-size_bytes)
        self._give(size_bytes)

    def _give(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0, "more bytes were given back than taken"
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, granted = self._waiting.popleft()
            if not granted.done():
                self.held_bytes += size_bytes
                granted.set_result(None)


class AnswerReservation:
    """One request's share of the room."""

    __slots__ = ("_room", "_wait_ms", "size_bytes")

    def __init__(self, room: AnswerRoom, wait_ms: int) -> None:
        """`wait_ms`: how long it may wait where it may."""
        self._room = room
        self._wait_ms = wait_ms
        self.size_bytes = 0

    async def add(self, size_bytes: int, *, may_wait: bool = False) -> None:
        """Hold so much more. ShoalError overloaded: nothing has changed."""
        await self._room.take(size_bytes, self._wait_ms if may_wait else 0)
        self.size_bytes += size_bytes

    async def await_room(self, size_bytes: int) -> None:
        """Hold so much from now on, before it is read."""
        if size_bytes > self.size_bytes:
            await self.add(size_bytes - self.size_bytes, may_wait=True)

    def drop(self, size_bytes: int) -> None:
        """Hold so much less."""
        assert size_bytes <= self.size_bytes, "dropped what was not held"
        self.size_bytes -= size_bytes
        self._room.give_back(size_bytes)

    def release(self) -> None:
        """Hold nothing. Idempotent."""
        self.drop(self.size_bytes)
