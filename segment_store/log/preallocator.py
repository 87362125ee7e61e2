"""Blocks for the next writes of one log, asked for while a write is under way: no append waits for them."""

import asyncio
import logging
from collections.abc import Callable

from shoal.segment_store.disk.disk import File
from shoal.segment_store.format.tail_record import TRAILER_BYTES
from shoal.segment_store.log.segment import Segment
from shoal.segment_store.log.write_queue import Append

AHEAD_WRITES = 2
"""Blocks for so many more writes are asked for beforehand."""

logger = logging.getLogger(__name__)


class Preallocator:
    """`ended()` is called when a reservation is over, also when it failed."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._task: asyncio.Task[None] | None = None
        self.is_busy = False
        """A file is growing."""

    def reserve_after(self, file: File, last: Append) -> None:
        """Begin to reserve blocks for the next writes of this size. The write that needs them meets a full
        disk."""
        segment = last.segment
        wanted = last.position + (1 + AHEAD_WRITES) * last.length + TRAILER_BYTES
        if wanted <= segment.allocated or wanted > segment.files.config.segment_bytes:
            return
        if not self.is_busy:
            self.is_busy = True
            self._task = asyncio.get_running_loop().create_task(self._reserve(segment, file, wanted))

    async def _reserve(self, segment: Segment, file: File, wanted: int) -> None:
        try:
            await segment.reserve(file, wanted)
        except OSError as error:
            logger.debug("cannot reserve space ahead in %s: %s", segment.path, error)
        finally:
            self._task, self.is_busy = None, False
            self._ended()

    async def wait(self) -> None:
        """Call it before a file is sealed, cut or removed: none grows when this returns."""
        if self._task is not None:
            await asyncio.wait([self._task])
