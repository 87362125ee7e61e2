"""Long polls: bounded in number; ended when the server stops, which waits for nobody's news, and when the
client has gone, who will read none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

from shoal.agent.http.admission.limits import Gate
from shoal.errors import ShoalError

T = TypeVar("T")


class WaitingClient(Protocol):
    """A client whose answer takes its time. `protocol`: its connection; `transport`: None once it left."""

    @property
    def protocol(self) -> object: ...
    @property
    def transport(self) -> asyncio.BaseTransport | None: ...


class Waits:
    """Runs what may wait for up to a minute inside the request's own task."""

    __slots__ = ("_gate", "_tasks", "stopped")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._tasks: dict[object, asyncio.Task[Any]] = {}  # by connection, which has one request at a time
        self.stopped = False

    async def run(self, client: WaitingClient, awaitable: Awaitable[T]) -> T:
        """Its result. ShoalError overloaded when too many wait, stopping when the server stops meanwhile;
        ConnectionResetError when the client goes.
        """
        task = asyncio.current_task()
        assert task is not None, "requests are handled in tasks"
        connection = client.protocol
        try:
            if client.transport is None:
                raise ConnectionResetError("the client has gone")
            self._gate.enter_wait()
        except (ShoalError, ConnectionResetError):
            if asyncio.iscoroutine(awaitable):
                awaitable.close()  # or Python warns that it was never awaited
            raise
        self._tasks[connection] = task
        try:
            return await awaitable
        except asyncio.CancelledError:
            is_gone = connection not in self._tasks
            if (is_gone or self.stopped) and task.uncancel() == 0:
                if is_gone:
                    raise ConnectionResetError("the client has gone") from None
                raise ShoalError("stopping", "this agent is stopping; ask another one") from None
            raise
        finally:
            self._tasks.pop(connection, None)
            self._gate.leave_wait()

    def gone(self, connection: object) -> None:
        """Its client has gone: what waits for it ends now, not when its time is up."""
        task = self._tasks.pop(connection, None)
        if task is not None:
            task.cancel()

    def stop(self) -> None:
        """End all that wait now; the server takes no new connections any more."""
        self.stopped = True
        for task in self._tasks.values():
            task.cancel()
