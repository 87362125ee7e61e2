"""Those who wait for messages of a subscription, and the error that one of them hears.

Law of this file: it wakes and it waits, and knows no message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.client.http.requests import now_ms

_FOREVER_MS = 1 << 40


class Pollers:
    """Bounded by the tasks of the user."""

    def __init__(self) -> None:
        self._until_ms: dict[object, int] = {}
        self._changed = asyncio.Condition()
        self._error: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self._until_ms)

    def longest_ms(self) -> int:
        """How long the most patient of them waits from now on; 0 where nobody waits."""
        return max([0, *(until_ms - now_ms() for until_ms in self._until_ms.values())])

    async def wait(self, is_over: Callable[[], bool], before_each: Callable[[], None] | None = None) -> None:
        """Until `is_over`, which is looked at after each `wake`. Raises the error of `fail`, once."""
        async with self._changed:
            while not is_over():
                error, self._error = self._error, None
                if error is not None:
                    raise error
                if before_each is not None:
                    before_each()
                await self._changed.wait()

    async def poll(
        self, timeout_seconds: float | None, is_over: Callable[[], bool], before_each: Callable[[], None]
    ) -> None:
        """The same, by somebody who wants messages, and gives up after so long by a timeout of its own."""
        token = object()
        patience_ms = _FOREVER_MS if timeout_seconds is None else round(timeout_seconds * 1_000)
        self._until_ms[token] = now_ms() + patience_ms
        try:
            await self.wait(is_over, before_each)
        finally:
            del self._until_ms[token]

    async def wake(self) -> None:
        """Have everybody look again."""
        async with self._changed:
            self._changed.notify_all()

    async def fail(self, error: Exception) -> None:
        """The next one to wait hears of it."""
        self._error = error
        await self.wake()
