"""An answer on its way out: its reader has to keep taking it, or is cut off.

Law of this file: deadlines; the bytes themselves, and the connection that is ended, are respond.py's,
streamed_answer.py's and event_stream.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from aiohttp import web

from shoal.agent.http.admission.limits import HttpLimits

# Our own waits below this are not worth a timer.
EXCUSED_S = 0.01


class AnswerDeadline:
    """How long a reader may take next to nothing: its time begins anew when it has taken enough since it last
    did. Then it is one to 1.25 times `send_stall_ms`, as a timer for every piece would cost too much."""

    def __init__(self, limits: HttpLimits, held_bytes: int = 0) -> None:
        """`held_bytes`: of memory, until the reader has taken all."""
        self._stall_s = limits.send_stall_ms / 1000
        self._least_bytes = limits.least_taken_bytes(held_bytes)
        self._now = asyncio.get_running_loop().time
        self._began_s = self._now()
        self._limit = asyncio.timeout(self._stall_s)
        self._taken_bytes = 0

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            raise SlowReader(too_little(self._stall_s, self._taken_bytes, self._least_bytes)) from None

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Time spent here is the agent's, and does not count against the reader."""
        began_s = self._now()
        yield
        late_s = self._now() - began_s
        until_s = self._limit.when()
        if late_s > EXCUSED_S and until_s is not None:
            self._began_s += late_s
            self._limit.reschedule(until_s + late_s)

    def took(self, size_bytes: int) -> None:
        """So much has left."""
        self._taken_bytes += size_bytes
        now_s = self._now()
        if self._taken_bytes >= self._least_bytes and now_s > self._began_s + self._stall_s / 4:
            self._begin(now_s, 1.25 * self._stall_s)

    def last(self) -> None:
        """All has been handed on, and the rest may take as long again to leave."""
        self._begin(self._now(), self._stall_s)

    def _begin(self, now_s: float, seconds: float) -> None:
        self._began_s, self._taken_bytes = now_s, 0
        self._limit.reschedule(now_s + seconds)


class StreamDeadline:
    """The reader of a stream, of which nobody knows how long it is: judged over windows of `send_stall_ms` in
    which it was waited for."""

    def __init__(self, limits: HttpLimits) -> None:
        self._stall_s = limits.send_stall_ms / 1000
        self._least_bytes = limits.least_taken_bytes(0)
        self._now = asyncio.get_running_loop().time
        self._waited_s = 0.0
        self._taken_bytes = 0

    async def write(self, response: web.StreamResponse, data: bytes) -> None:
        """Returns once there is room for more. SlowReader."""
        began_s = self._now()
        try:
            async with asyncio.timeout(self._stall_s):
                await response.write(data)
        except TimeoutError:
            raise SlowReader(too_little(self._stall_s, 0, self._least_bytes)) from None
        self._waited_s += self._now() - began_s
        self._taken_bytes += len(data)
        if self._waited_s < self._stall_s:
            return
        if self._taken_bytes < self._least_bytes:
            raise SlowReader(too_little(self._stall_s, self._taken_bytes, self._least_bytes))
        self._waited_s, self._taken_bytes = 0.0, 0


class SlowReader(ConnectionResetError):
    """A reader is cut off: it holds what others need."""


def too_little(stall_s: float, taken_bytes: int, least_bytes: int) -> str:
    """The detail of a SlowReader."""
    if not taken_bytes:
        return f"the reader took nothing for {stall_s:g} s"
    return f"the reader took {taken_bytes} bytes in {stall_s:g} s; at least {least_bytes} were wanted"
