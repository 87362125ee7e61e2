"""Something that happens once, on one thread, and is waited for on any, blocking or in an event loop.

Law of this file: an interrupt may come between any two steps of a waiting thread, and must leave nothing
held. A Future of concurrent.futures takes its lock in Python: an interrupt right behind that keeps the lock
for ever, and the thread that sets the result waits for ever too. Here only the waiting thread takes the lock
that it waits on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Outcome(Generic[T]):
    """Set once, by `succeed` or `fail`, on any thread. `result()` waits (blocking), `await outcome` does in a
    coroutine."""

    __slots__ = ("_unsaid", "_value", "_waiters", "done", "error")

    def __init__(self) -> None:
        self.done = False
        """It has happened, well or not."""
        self.error: BaseException | None = None
        """Why it failed."""
        self._unsaid = [True]  # the thread that takes it out, in one step, is the first
        self._value: T | None = None
        self._waiters: list[Callable[[], None]] = []
        """Of those that wait at the moment: each is told once, or finds that it is done."""

    def succeed(self, value: T) -> None:
        """The first word counts."""
        if self._is_first():
            self._value = value
            self._end()

    def fail(self, error: BaseException) -> None:
        """The first word counts."""
        if self._is_first():
            self.error = error
            self._end()

    def _is_first(self) -> bool:
        try:
            return self._unsaid.pop()
        except IndexError:
            return False

    def _end(self) -> None:
        self.done = True  # before the waiting are told: one that comes to wait from now on sees it
        while self._waiters:
            self._waiters.pop()()

    def result(self, timeout_seconds: float | None = None) -> T:
        """Wait for it on any other thread. Raises the error of `fail`, TimeoutError when it has not happened
        in time."""
        if not self.done:
            over = threading.Lock()
            over.acquire()
            with self._told(over.release):
                if not self.done:
                    over.acquire(timeout=-1 if timeout_seconds is None else max(0.0, timeout_seconds))
        return self._get()

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done:
            loop = asyncio.get_running_loop()
            over: asyncio.Future[None] = loop.create_future()

            def tell() -> None:
                with contextlib.suppress(RuntimeError):  # that loop has ended meanwhile
                    loop.call_soon_threadsafe(_settle, over)

            with self._told(tell):
                if not self.done:
                    yield from over
        return self._get()

    @contextlib.contextmanager
    def _told(self, tell: Callable[[], None]) -> Generator[None, None, None]:
        """While a thread or a coroutine waits."""
        self._waiters.append(tell)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):  # it has been told
                self._waiters.remove(tell)

    def _get(self) -> T:
        if not self.done:
            raise TimeoutError
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]


def _settle(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)
