"""An event loop in a thread of its own: how blocking objects use what is written for asyncio.

Law of this file: it runs coroutines and nothing else. The caller's own thread may run an event loop too (a
notebook does): it is never touched.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from shoal.errors import ClientClosed, ClientError, ClientForked

T = TypeVar("T")


class LoopThread:
    """Started when made; `close` ends it. A daemon: it keeps no process alive."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._forked = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        # Here, not in `close`: whoever closes may be within an event loop of its own.
        self._loop.run_until_complete(_cancel_others())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it there, and wait. An interrupt here cancels it there. Raises what it raises, ClientClosed
        after `close`, ClientForked in a child process, ClientError from a callback on that very thread."""
        error = self._refusal()
        if error is not None:
            work.close()
            raise error
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosed("the client was closed meanwhile") from None
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it there some time, if this still runs; nobody waits."""
        if self._refusal() is None:
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(work()))

    def _refusal(self) -> ClientError | None:
        if self._forked:
            return forked()
        if self._loop.is_closed() or not self._thread.is_alive():
            return ClientClosed("the client is closed")
        if threading.current_thread() is self._thread:
            return ClientError("on_delivery must not wait for the client that calls it")
        return None

    def after_fork(self) -> None:
        """In the child of a fork there is no such thread. Its loop is left alone: it shares the parent's
        epoll descriptor."""
        self._forked = True

    def close(self) -> None:
        """Stop the loop and wait for the thread. Idempotent; in a forked child it does nothing."""
        if self._forked or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def forked() -> ClientForked:
    """The error for whatever was opened before a fork."""
    return ClientForked("this client was opened before the process forked: open another one in the child")


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
