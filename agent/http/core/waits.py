"""Long polls: bounded in number; ended when the server stops, which waits for nobody's news, and when the
client has gone, who will read none. Ended, too, when their asker may no longer wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final, Protocol, TypeVar

from shoal.agent.http.admission.limits import Gate
from shoal.agent.http.core.doorkeeper import Asker
from shoal.errors import ShoalError

T = TypeVar("T")

JUDGE_SECONDS: Final = 1.0
"""Between two looks at those who wait: of the 5 s within which a change of permissions holds."""
JUDGED_AT_ONCE: Final = 128
"""Then others get their turn: some 0.3 ms."""


class WaitingClient(Protocol):
    """A client whose answer takes its time. `protocol`: its connection; `transport`: None once it left."""

    @property
    def protocol(self) -> object: ...
    @property
    def transport(self) -> asyncio.BaseTransport | None: ...


class Waits:
    """Runs what may wait for up to a minute inside the request's own task."""

    __slots__ = ("_askers", "_gate", "_judging", "_tasks", "stopped")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._tasks: dict[object, asyncio.Task[Any]] = {}  # by connection, which has one request at a time
        self._askers: dict[object, Asker] = {}  # those of them that can be refused
        self._judging: asyncio.Task[None] | None = None
        self.stopped = False

    async def run(self, client: WaitingClient, asker: Asker, awaitable: Awaitable[T]) -> T:
        """Its result. ShoalError overloaded when too many wait, stopping when the server stops meanwhile.
        Unauthenticated or forbidden when the asker may no longer; ConnectionResetError when the client goes.
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
        if asker.is_asked:
            self._askers[connection] = asker
            if (self._judging is None or self._judging.done()) and not self.stopped:
                self._judging = asyncio.get_running_loop().create_task(self._judge())
        try:
            return await awaitable
        except asyncio.CancelledError:
            is_gone = connection not in self._tasks
            if (is_gone or self.stopped or asker.refused is not None) and task.uncancel() == 0:
                if is_gone:
                    raise ConnectionResetError("the client has gone") from None
                if asker.refused is not None:
                    raise asker.refused from None
                raise ShoalError("stopping", "this agent is stopping; ask another one") from None
            raise
        finally:
            self._tasks.pop(connection, None)
            self._askers.pop(connection, None)
            self._gate.leave_wait()

    async def _judge(self) -> None:
        """Ask again for those who wait, and end their waits where the answer is no."""
        while self._askers:
            await asyncio.sleep(JUDGE_SECONDS)
            for number, (connection, asker) in enumerate(list(self._askers.items()), 1):
                task = self._tasks.get(connection)
                if asker is self._askers.get(connection) and not asker.judge_again() and task is not None:
                    task.cancel()
                if number % JUDGED_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def gone(self, connection: object) -> None:
        """Its client has gone: what waits for it ends now, not when its time is up."""
        task = self._tasks.pop(connection, None)
        if task is not None:
            task.cancel()

    def stop(self) -> None:
        """End all that wait now; the server takes no new connections any more."""
        self.stopped = True
        if self._judging is not None:
            self._judging.cancel()
        for task in self._tasks.values():
            task.cancel()
