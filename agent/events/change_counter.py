"""A counter that can be waited for: the opaque versions of blocking queries.

Law of this file: one event loop, no threads. A version is `<run>.<counter>`, of one run of one agent: a
reader with another version is answered at once with everything.
"""

from __future__ import annotations

import asyncio

from shoal.agent.process.clock import is_set_within

MAX_WAITERS = 4_096  # long polls held open; beyond it a poll is answered at once, as after its wait


class Watch:
    """Counts changes and wakes those who wait for the next one."""

    def __init__(self, run: str) -> None:
        self.run = run
        """The run whose changes are counted."""
        self._counter = 1
        self._changed = asyncio.Event()
        self._waiting = 0

    @property
    def version(self) -> str:
        return f"{self.run}.{self._counter}"

    def changed(self) -> None:
        """A reader of the document would notice the change."""
        self._counter += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_after(self, version: str | None, wait_ms: int) -> None:
        """Return once the version differs from this one, or when the time is over."""
        if version != self.version or wait_ms <= 0 or self._waiting >= MAX_WAITERS:
            return
        await self.wait_next(wait_ms)

    async def wait_next(self, wait_ms: int) -> bool:
        """True when a change came in time."""
        self._waiting += 1
        try:
            return await is_set_within(self._changed, wait_ms / 1_000)
        finally:
            self._waiting -= 1
