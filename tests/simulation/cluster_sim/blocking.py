"""Blocking code in the simulation: it runs in a thread that waits whenever it would wait for the world.

Law of this file: one of the two runs at a time, the thread or the loop, and each hands over explicitly, so
that which one is next is never left to the machine.
"""

from __future__ import annotations

import asyncio
import contextvars
import http.client
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from log_clients import Connections, NoAnswer

from shoal.spark.read.http import Answer, MovedError

T = TypeVar("T")


class Blocking:
    """`await run(function)` on the loop's side; `wait(coroutine)` on the function's."""

    def __init__(self) -> None:
        self._turn_of_thread = threading.Semaphore(0)
        self._turn_of_loop = threading.Semaphore(0)
        self._question: Coroutine[Any, Any, Any] | None = None
        self._answer: Any = None
        self._error: BaseException | None = None
        self._is_over = False

    async def run(self, function: Callable[[], T]) -> T:
        """What the function returns or raises."""
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._in_thread, function), daemon=True)
        thread.start()
        while True:
            self._turn_of_thread.release()
            self._turn_of_loop.acquire()
            if self._is_over:
                thread.join()
                if self._error is not None:
                    raise self._error
                answer: T = self._answer
                return answer
            assert self._question is not None
            try:
                self._answer, self._error = await self._question, None
            except Exception as error:  # noqa: BLE001 -- it is for the function
                self._answer, self._error = None, error

    def _in_thread(self, function: Callable[[], Any]) -> None:
        self._turn_of_thread.acquire()
        try:
            self._answer, self._error = function(), None
        except Exception as error:  # noqa: BLE001 -- it is for whoever awaits `run`
            self._answer, self._error = None, error
        self._is_over = True
        self._turn_of_loop.release()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """In the function: until the loop has done it."""
        self._question = coroutine
        self._turn_of_loop.release()
        self._turn_of_thread.acquire()
        if self._error is not None:
            raise self._error
        answer: T = self._answer
        return answer

    def sleep(self, seconds: float) -> None:
        self.wait(asyncio.sleep(seconds))


class BlockingPool:
    """As shoal.spark.read.http.ConnectionPool, over the simulated network."""

    def __init__(self) -> None:
        self._connections = Connections()
        self.blocking: Blocking | None = None
        """Whose requests these are; one at a time."""

    def request(
        self,
        base: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Sequence[bytes | memoryview] | None = None,
        *,
        bytes_max: int = 0,
    ) -> Answer:
        """Raises MovedError."""
        assert self.blocking is not None
        parts = urlsplit(base)
        assert parts.hostname is not None
        agent = (parts.hostname, parts.port or 80)
        sent = {name: value for name, value in headers.items() if name != "Content-Length"}
        data = None if body is None else b"".join(body)
        try:
            status, fields, content = self.blocking.wait(
                self._connections.exchange(agent, method, path, data, sent)
            )
        except NoAnswer as error:
            raise MovedError(f"{base}: {error}") from None
        found = http.client.HTTPMessage()
        for name, value in fields.items():
            found[name] = value
        return Answer(status, found, content)

    def close(self) -> None:
        self._connections.close()
