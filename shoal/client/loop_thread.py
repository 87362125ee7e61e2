"""An event loop in a thread of its own: blocking objects use asyncio objects by it.

Law of this file: it runs coroutines and nothing else. The caller's own thread may run an event loop too (a
notebook does): it is never touched. An interrupt (Ctrl-C) may come between any two steps of the caller's
thread: it waits at a bare lock, since an interrupt may leave a lock of several steps half done
(concurrent.futures, conditions; `Thread.is_alive` can take a thread that runs for dead, bpo-45274).

concurrent.futures.thread is imported for pyarrow, which imports it with pandas when it makes its first array:
in a script's last flush, at the interpreter's end, that is too late.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - see above
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from shoal.client.produce.outcome import Outcome
from shoal.errors import ClientClosed, ClientError, ClientForked

P = ParamSpec("P")
T = TypeVar("T")


def on_thread(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The method of an asyncio object as a blocking one, with the same parameters, words and errors: it runs
    on the LoopThread `_thread` of its object, with the asyncio object `_inner`."""

    @functools.wraps(method)
    def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._thread.run(method(self._inner, *args, **kwargs))
        return result

    return run


class _Run(Outcome[T]):
    """One coroutine on its way, and its outcome. The loop's thread calls `begin` and `cancel`."""

    __slots__ = ("_task", "_work")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        super().__init__()
        self._work = work
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        if self.done:
            self._work.close()
            return
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[T]) -> None:
        error = ClientClosed("the client was closed meanwhile") if task.cancelled() else task.exception()
        if error is None:
            self.succeed(task.result())
        else:
            self.fail(error)

    def cancel(self) -> None:
        """The caller does not wait any more."""
        self.fail(ClientClosed("an interrupted call"))
        if self._task is not None:
            self._task.cancel()

    def end(self) -> None:
        """The loop has ended: it will not be carried out any more."""
        if self._task is None:
            self._work.close()
            self.fail(ClientClosed("the client was closed meanwhile"))


class LoopThread:
    """Started when made; `close` ends it. A daemon: it keeps no process alive."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._forked = False
        self._runs: set[_Run[Any]] = set()
        self._started: set[asyncio.Task[None]] = set()
        self._running = threading.Lock()  # held as long as the thread has something to do
        self._running.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._run_to_the_end()
        finally:
            self._running.release()

    def _run_to_the_end(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        # Here, not in `close`: its caller may be within an event loop of its own.
        self._loop.run_until_complete(_cancel_others())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(_cancel_others())  # tasks that began meanwhile
        self._loop.close()
        for run in list(self._runs):
            run.end()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it there, and wait. An interrupt here cancels it there: before anything that is run
        afterwards. Raises its errors, ClientClosed after `close`, ClientForked in a child process,
        ClientError from a callback on that very thread."""
        error = self.refusal()
        if error is not None:
            work.close()
            raise error
        run = _Run(work)
        self._runs.add(run)  # before it is told: the end of the loop finds it
        try:
            self._tell(run.begin)
            return run.result()
        except BaseException:
            self._tell(run.cancel)
            raise
        finally:
            self._runs.discard(run)

    def _tell(self, callback: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # closed: `_Run.end` tells the waiting thread
            if not self._loop.is_closed():
                raise

    def call(self, function: Callable[[], T]) -> T:
        """As `run`, of a function that waits for nothing."""

        async def work() -> T:
            return function()

        return self.run(work())

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it there some time, if this still runs, and do not wait. On any thread: garbage is collected on
        the loop's own as well."""
        if self._forked or self._is_over():
            return

        def begin() -> None:
            task = self._loop.create_task(work())
            self._started.add(task)  # a loop itself keeps no task
            task.add_done_callback(self._started.discard)

        self._tell(begin)

    def _is_over(self) -> bool:
        return self._loop.is_closed() or not self._running.locked()

    def refusal(self) -> ClientError | None:
        """Why nothing runs here for the calling thread; None when it does."""
        if self._forked:
            return forked()
        if self._is_over():
            return ClientClosed("the client is closed")
        if threading.get_ident() == self._thread.ident:
            return ClientError("on_delivery must not wait for the client that calls it")
        return None

    def finish(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run it there, end the loop behind it, and do not wait. False when nothing runs here any more."""
        if self._forked or self._is_over():
            return False

        def last() -> None:
            self._loop.create_task(work()).add_done_callback(lambda _: self._loop.stop())

        self._tell(last)
        return True

    def join(self) -> None:
        """Wait for the end that `finish` has begun."""
        with self._running:
            return

    def after_fork(self) -> None:
        """In the child of a fork there is no such thread. Its loop is left alone: it shares the parent's
        epoll descriptor."""
        self._forked = True

    def close(self) -> None:
        """Stop the loop and wait for the thread. Idempotent; in a forked child it does nothing."""
        if self._forked or self._loop.is_closed():
            return
        self._tell(self._loop.stop)
        self.join()


def forked() -> ClientForked:
    """The error for everything that was opened before a fork."""
    return ClientForked("this client was opened before the process forked: open another one in the child")


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
