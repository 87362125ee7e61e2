"""Long polls: bounded in number, and ended when the server stops: stopping waits for nobody's news."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from shoal.agent.http.limits import Gate
from shoal.errors import ShoalError

T = TypeVar("T")


class Waits:
    """Runs what may wait for up to a minute inside the request's own task."""

    __slots__ = ("_gate", "_tasks", "stopped")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._tasks: set[asyncio.Task[Any]] = set()
        self.stopped = False

    async def run(self, awaitable: Awaitable[T]) -> T:
        """Its result. ShoalError overloaded when too many wait, stopping when the server stops meanwhile."""
        task = asyncio.current_task()
        assert task is not None, "requests are handled in tasks"
        try:
            self._gate.enter_wait()
        except ShoalError:
            _discard(awaitable)
            raise
        self._tasks.add(task)
        try:
            return await awaitable
        except asyncio.CancelledError:
            if self.stopped and task.uncancel() == 0:
                raise ShoalError("stopping", "this agent is stopping; ask another one") from None
            raise
        finally:
            self._tasks.discard(task)
            self._gate.leave_wait()

    def stop(self) -> None:
        """End all that wait now; the server takes no new connections any more."""
        self.stopped = True
        for task in self._tasks:
            task.cancel()


def _discard(awaitable: Awaitable[Any]) -> None:
    """A coroutine that is not going to be awaited is closed, or Python warns of it."""
    if asyncio.iscoroutine(awaitable):
        awaitable.close()
