"""Directories of replicas that are born together: made in one go, sharing the sync of their parent.

Law of this file: group commit for names. Directories asked for during a call go into the next one. One call
is under way at a time, so that none takes a parent for durable that another has just made.
"""

import asyncio

from shoal.segment_store.disk.disk import Disk

MAX_TOGETHER = 1_024
"""Directories of one call: it holds a thread of the disk for some 30 ms."""


class NewDirectories:
    """One per agent. Use from one event loop."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._wanted: list[tuple[str, asyncio.Future[bool]]] = []
        self._task: asyncio.Task[None] | None = None

    async def make(self, path: str) -> bool:
        """With its parents, durable on return; False: it was there already. Raises OSError."""
        made: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._wanted.append((path, made))
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        return await made

    async def _work(self) -> None:
        try:
            while self._wanted:
                batch = self._wanted[:MAX_TOGETHER]
                del self._wanted[:MAX_TOGETHER]
                await self._make(batch)
        finally:
            self._task = None

    async def _make(self, batch: list[tuple[str, asyncio.Future[bool]]]) -> None:
        try:
            new = await self._disk.make_directory(*(path for path, _ in batch))
        except OSError as error:
            for _, made in batch:
                if not made.done():  # else the caller was cancelled meanwhile
                    made.set_exception(error)
            return
        except BaseException:
            for _, made in batch:
                made.cancel()
            raise
        for path, made in batch:
            if not made.done():
                made.set_result(path in new)
