"""The connections of one server, and the clock that ends those that wait in vain.

Law of this file: memory, limits and time. Bytes are each connection's own matter (front.py).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

from aiohttp import web

from shoal.agent.http.admission.limits import KIB
from shoal.agent.http.fast_receive import FastReceive, FastReceives
from shoal.agent.http.fast_refusal import FastRefusals, Unpermitted
from shoal.agent.http.fast_row import BEGINNINGS, FastRow, FastRows
from shoal.agent.http.http1.head import RequestHead
from shoal.agent.http.produce.fast_append import FastAppends, FastRequest

if TYPE_CHECKING:
    from shoal.agent.http.front import Connection

Request: TypeAlias = FastRequest | FastReceive | FastRow | Unpermitted | RequestHead
# What is read at once; one for all connections, since everything in it is taken out before the next read.
SCRATCH_BYTES: Final = 256 * KIB
# The shortest wait of a connection takes so many looks at the clock; none ends before its time.
LOOKS: Final = 4


class Shared:
    """What the connections of one server have in common, and the clock that ends those that wait in vain."""

    __slots__ = (
        "_look_ms", "_timer", "appends", "doorkeeper", "fronts", "handlers", "limits",
        "loop", "now_ms", "receives", "refusals", "rows", "scratch",
    )  # fmt: skip

    def __init__(
        self,
        appends: FastAppends,
        receives: FastReceives,
        rows: FastRows,
        refusals: FastRefusals,
        handlers: web.Server,
    ) -> None:
        self.appends = appends
        self.doorkeeper = appends.context.doorkeeper
        self.receives = receives
        self.rows = rows
        self.refusals = refusals
        self.limits = limits = appends.context.limits
        self.handlers = handlers
        self.loop = asyncio.get_running_loop()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.fronts: set[Connection] = set()
        self.now_ms = 0.0
        self._look_ms = min(limits.idle_ms, limits.body_stall_ms, limits.unread_ms) / LOOKS
        self._timer: asyncio.TimerHandle | None = None

    def understood(self, data: bytes) -> FastRequest | FastReceive | FastRow | RequestHead | None:
        """The request of a whole head. RequestHead: it goes the ordinary way. None: it cannot be read."""
        if data.startswith(BEGINNINGS):
            row = self.rows.known(data)
            if row is not None:
                return row
        receive = self.receives.remembered.get(data)
        if receive is not None:
            return receive
        request = self.appends.request(data)
        if isinstance(request, RequestHead):
            return self.receives.request(data, request) or self.rows.request(data, request) or request
        return request

    def add(self, front: Connection) -> None:
        """A connection has come."""
        self.fronts.add(front)
        if self._timer is None:
            self._look()

    def _look(self) -> None:
        """One timer, however many connections and requests."""
        self.now_ms = self.loop.time() * 1000
        for front in list(self.fronts):
            front.check_wait(self.now_ms - self._look_ms)
        self._timer = self.loop.call_later(self._look_ms / 1000, self._look) if self.fronts else None
