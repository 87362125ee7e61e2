"""An asyncio event loop whose time is a number, and which can kill and freeze the processes that it runs.

Law of this file: it knows nothing of agents. A process is a Life: everything that was scheduled in its
context belongs to it, is dropped once it is dead (kill -9: no `finally` runs) and waits while it is paused
(SIGSTOP). Order is decided by the program and the seed alone: tasks and futures hash by their number, not by
their address.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any

START_S = 1_000.0
ROUND_S = 2e-6
"""What one round of the loop takes, so that no two rounds happen at the same instant."""
WATCHED_ROUNDS = 16
KEPT_TASKS_MAX = 512
LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


class Deadlock(AssertionError):
    """Nothing is scheduled any more, though the simulation is not over."""


class Life:
    """One process, from its start to its end. `address`: its IP address."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.is_dead = False
        self.is_paused = False
        self.clock_offset_us = 0
        self.held: list[SimHandle | SimTimer] = []
        self.context = contextvars.copy_context()
        self.context.run(LIFE.set, self)
        self._tasks: list[asyncio.Task[Any]] = []

    def keep(self, task: asyncio.Task[Any]) -> None:
        """A dead process's coroutines are never resumed; were they collected, their `finally` would run."""
        self._tasks.append(task)
        if len(self._tasks) > KEPT_TASKS_MAX:
            running = [kept for kept in self._tasks if not kept.done()]
            self._tasks = running if len(running) < KEPT_TASKS_MAX // 2 else self._tasks
            if len(self._tasks) > 4 * KEPT_TASKS_MAX:
                self._tasks = running

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        return self._tasks


class _Numbered:
    next = itertools.count(1).__next__


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task that hashes by its number."""

    __slots__ = ("_number",)

    def __init__(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = _Numbered.next()
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class SimFuture(asyncio.Future):  # type: ignore[type-arg]
    """A future that hashes by its number, which whoever makes it gives it."""

    __slots__ = ("_number",)

    _number: int

    def __hash__(self) -> int:
        return self._number


class SimHandle(asyncio.Handle):
    """`life`: whose code it runs. A context never changes hands, so it is asked once."""

    __slots__ = ("life",)

    def cancel(self) -> None:
        _void(self)


class SimTimer(asyncio.TimerHandle):
    """The same, for a time. Once void it stays in the heap until its time comes."""

    __slots__ = ("life",)

    def cancel(self) -> None:
        _void(self)


def _void(handle: Any) -> None:
    handle._cancelled = True
    handle._callback = handle._args = None


_new: Any = object.__new__
"""Handles are filled in where they are made, without a constructor and its questions about debugging: there
are tens of thousands of them in a seed."""


class SimLoop(asyncio.BaseEventLoop):
    """`network` answers for sockets; `on_round()` is called after every round in which somebody set
    `is_watched`, and every WATCHED_ROUNDS in any case."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self._now: float = START_S
        self.network = network
        self.rounds = 0
        self.handles_run = 0
        self.is_watched = False
        self.on_round: Callable[[], None] = lambda: None
        self._append: Callable[[Any], None] = self._ready.append  # type: ignore[attr-defined]
        self._timers: list[tuple[float, int, SimTimer]] = []
        self._timer_count = 0
        _Numbered.next = itertools.count(1).__next__
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now

    get_debug = bool  # False, at once: every future asks

    @property
    def elapsed_ms(self) -> int:
        """Virtual milliseconds since the start."""
        return int((self._now - START_S) * 1_000)

    def _make_task(
        self, _loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        task = SimTask(coroutine, loop=self, **options)
        life = LIFE.get()
        if life is not None:
            life.keep(task)
        return task

    def create_future(self) -> asyncio.Future[Any]:
        future: SimFuture = SimFuture(loop=self)
        future._number = _Numbered.next()
        return future

    # ---- scheduling ------------------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if context is None:  # an empty one is false
            context = contextvars.copy_context()
        handle = _new(SimHandle)
        handle._callback = callback
        handle._args = args
        handle._context = context
        handle._cancelled = False
        handle.life = context.get(LIFE)
        self._append(handle)
        return handle  # type: ignore[no-any-return]

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Of timers for the same instant, the one that was set first comes first."""
        if context is None:
            context = contextvars.copy_context()
        timer = _new(SimTimer)
        timer._callback = callback
        timer._args = args
        timer._context = context
        timer._cancelled = False
        timer._when = when
        timer.life = context.get(LIFE)
        self._timer_count += 1
        heappush(self._timers, (when, self._timer_count, timer))
        return timer  # type: ignore[no-any-return]

    def call_later(
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    # ---- one round -------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """One round after the other, until somebody stops the loop."""
        ready: deque[Any] = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        while not self._stopping:  # type: ignore[attr-defined]
            if not ready or (timers and timers[0][0] <= self._now):
                self._wake_timers(ready)
            for _ in range(len(ready)):
                handle = ready.popleft()
                callback = handle._callback
                if callback is None:
                    continue  # it was cancelled
                life = handle.life
                if life is not None:
                    if life.is_dead:
                        continue
                    if life.is_paused:
                        life.held.append(handle)
                        continue
                self.handles_run += 1
                try:
                    handle._context.run(callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 -- as asyncio.Handle does it
                    self._tell_of(error, callback)
            self._now += ROUND_S
            self.rounds += 1
            if self.is_watched or not self.rounds % WATCHED_ROUNDS:
                self.is_watched = False
                self.on_round()

    def _tell_of(self, error: BaseException, callback: Any) -> None:
        self.call_exception_handler(
            {
                "message": f"Exception in callback {getattr(callback, '__qualname__', callback)}",
                "exception": error,
            }
        )

    def _wake_timers(self, ready: deque[SimHandle | SimTimer]) -> None:
        """Those whose time has come are ready; when nothing else is, time goes on to the next one."""
        timers = self._timers
        if not ready:
            while timers and _is_void(timers[0][2]):
                heappop(timers)
            if not timers:
                raise Deadlock("nothing is scheduled")
            self._now = max(self._now, timers[0][0])
        now = self._now
        while timers and timers[0][0] <= now:
            timer = heappop(timers)[2]
            if not _is_void(timer):
                ready.append(timer)

    def resume(self, life: Life) -> None:
        """SIGCONT: what has waited comes first, in its order."""
        life.is_paused = False
        held, life.held = life.held, []
        self._ready.extend(held)  # type: ignore[attr-defined]

    def spawn(self, life: Life, coroutine: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Start a coroutine as code of that process."""
        return life.context.copy().run(self.create_task, coroutine, name=name or life.name)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """There are no threads: the work is done at once, its answer comes with the next round."""
        future = self.create_future()
        try:
            outcome = func(*args)
        except Exception as error:  # noqa: BLE001 -- it is whoever awaits that is told
            self.call_soon(_fail, future, error)
        else:
            self.call_soon(_succeed, future, outcome)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        return None

    # ---- sockets ---------------------------------------------------------------------------------

    def _process_events(self, event_list: Any) -> None:
        raise AssertionError("there is no selector")

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        return [(2, 1, 6, "", (host, port))]

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **o: Any) -> Any:
        assert o.get("sock") is not None, "agents bind before they serve"
        return self.network.serve(o["sock"], protocol_factory)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, *, sock: Any = None, **_: Any
    ) -> Any:
        address = sock.target if sock is not None else (host, port)
        return await self.network.connect(protocol_factory, address)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        await self.network.connect(lambda: sock, address[:2])

    def add_writer(self, fd: Any, callback: Any, *args: Any) -> None:
        fd.set_writer(callback, args, contextvars.copy_context())

    def remove_writer(self, fd: Any) -> bool:
        return bool(fd.clear_writer())

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        fd.set_reader(callback, args, contextvars.copy_context())

    def remove_reader(self, fd: Any) -> bool:
        return bool(fd.clear_reader())


def _is_void(timer: Any) -> bool:
    return timer._callback is None or (timer.life is not None and timer.life.is_dead)


def _succeed(future: asyncio.Future[Any], outcome: Any) -> None:
    if not future.done():
        future.set_result(outcome)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
