"""The disk as the store sees it: the interface, and which disk a machine gets.

Errors are the operating system's own (OSError); what they mean for a log is decided in log/writer.py. Reads
are short only at the end of a file; writes and syncs are whole or they raise. A file handle is used by one
event loop.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Literal, Protocol

Buffer = bytes | bytearray | memoryview
Data = Buffer | Sequence[Buffer]
Done = Callable[[BaseException | None], None]

MAX_BUFFERS_PER_WRITE = 512  # below IOV_MAX (1024): more are joined first
RESIDENT_TURN_BYTES = 2**20  # copied from the page cache in one turn: about 150 us
WRITE_AT_ONCE_BYTES = 2 * 2**20  # copied into the page cache in one turn: about 400 us

logger = logging.getLogger(__name__)


class File(Protocol):
    """An open file. `path` is as given to open; offsets and lengths in bytes."""

    path: str

    def descriptor(self) -> int:
        """The system's number of the open file. OSError when it is closed, or the system has none for it."""

    async def size(self) -> int: ...
    async def read(self, offset: int, length: int) -> bytes: ...
    async def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill the buffer from `offset`; the number of bytes read, fewer than its length only at the end."""

    def read_resident(self, offset: int, buffer: memoryview) -> int:
        """As many bytes as memory has at once; 0 where it has none, for any error, and when this turn of the
        loop has had its RESIDENT_TURN_BYTES: read_into then meets the error, or the next turn."""

    async def write(self, offset: int, data: Data) -> None: ...
    async def write_back(self, offset: int, data: Data) -> None:
        """Write in small pieces, each once the disk has taken the whole pages of the one before; no more
        durable than by `write`. For large files that nobody waits for: a sync of another file then finds one
        piece before it, and not all of them. An error of it is told here and by no later sync."""

    def write_at_once(self, offset: int, data: Data) -> bool:
        """Write in this very call what the page cache takes without the disk, at most WRITE_AT_ONCE_BYTES.
        False: it was not done, or not whole; the same write again meets the reason."""

    async def sync(self) -> None:
        """fdatasync: all bytes written before this call are on the disk when it returns. SyncFailed."""

    async def write_and_sync(self, offset: int, data: Data) -> None:
        """SyncFailed when the sync was what failed."""

    def begin_write_and_sync(self, offset: int, data: Data, done: Done) -> None:
        """write_and_sync with a callback: `done` is called once with None or the error, from the event loop
        and never before this returns."""

    def forget_cached(self, offset: int, length: int) -> None:
        """Have the next read of this range ask the disk, as far as the system's cache lets go of it: what was
        written and not synced stays cached."""

    async def allocate(self, length: int) -> None:
        """Reserve blocks so that the file is at least `length` bytes long; new bytes read as zeros."""

    async def release(self, offset: int, length: int) -> None:
        """Give blocks back: the range reads as zeros, and the file keeps its length, which a mapping of it
        may rely on. Nothing happens where the file system cannot."""

    async def close(self) -> None: ...


class Disk(Protocol):
    """A file system. Names made or removed are durable only after sync_directory of their parent."""

    kind: str
    around_completions: AbstractContextManager[None]
    """Entered around each round of completions by a disk that hands out several at once. It does nothing
    unless the disk's user sets it."""
    on_synced: Callable[[int], None]
    """Told of each sync, with its write where it has one, that has ended: how many nanoseconds it took from
    its beginning."""
    call_soon: Callable[[Callable[[], None]], None]
    """Makes a call before long, never within this one: in the next round of the event loop, unless the disk's
    user has an earlier place for it."""

    def crowd(self) -> None:
        """Others wait for the event loop than those who wait for the next syncs: these are not to hold it."""

    async def open(self, path: str, *, create: bool = False) -> File: ...
    async def list(self, directory: str) -> list[str]:
        """Names in the directory, sorted; empty when there is no such directory."""

    async def exists(self, path: str) -> bool: ...
    async def make_directory(self, *paths: str) -> set[str]:
        """All of them, with parents; on return each new one is synced into its parent, once for all that are
        new in it. Those that were not there before."""

    async def rename(self, old: str, new: str) -> None:
        """Replaces a file `new`. A directory, whose files are synced, moves with all of them at once, to
        where there is none, or an empty one."""

    async def unlink(self, path: str) -> None: ...
    async def remove_tree(self, path: str) -> None: ...
    async def sync_directory(self, path: str) -> None: ...
    async def free_bytes(self, path: str) -> tuple[int, int]:
        """(free for this user, total) bytes of the file system that holds path."""

    async def close(self) -> None: ...


@asynccontextmanager
async def opened(disk: Disk, path: str, *, create: bool = False) -> AsyncIterator[File]:
    """A file for the time of the block."""
    file = await disk.open(path, create=create)
    try:
        yield file
    finally:
        await file.close()


def call_when_done(task: asyncio.Future[None], done: Done) -> None:
    """Tell `done` how the task ended, unless it was cancelled: then its loop is ending."""

    def ended(future: asyncio.Future[None]) -> None:
        if not future.cancelled():
            done(future.exception())

    task.add_done_callback(ended)


def call_in_next_round(call: Callable[[], None]) -> None:
    """See Disk.call_soon."""
    asyncio.get_running_loop().call_soon(call)


def settle(ended: asyncio.Future[None], error: BaseException | None) -> None:
    """Give the outcome of an operation to the caller that awaits it."""
    if ended.done():
        return  # the caller was cancelled meanwhile
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)


def buffers_of(data: Data) -> list[Buffer]:
    """The non-empty buffers of a write, few enough for one writev."""
    if type(data) is not list and isinstance(data, bytes | bytearray | memoryview):
        return [data] if len(data) else []
    buffers = list(filter(len, data))
    if len(buffers) > MAX_BUFFERS_PER_WRITE:
        return [b"".join(buffers)]
    return buffers


def length_of(buffers: Sequence[Buffer]) -> int:
    """Bytes in all; a memoryview must be of bytes, or its len() would count something else."""
    for buffer in buffers:
        assert type(buffer) is not memoryview or buffer.itemsize == 1
    return sum(map(len, buffers))


def after_prefix(buffers: Sequence[Buffer], written: int) -> list[Buffer]:
    """The rest of the buffers after a short write of `written` bytes, without copying."""
    rest: list[Buffer] = []
    for buffer in buffers:
        if written >= len(buffer):
            written -= len(buffer)
            continue
        rest.append(memoryview(buffer)[written:] if written else buffer)
        written = 0
    return rest


async def open_disk(prefer: Literal["ring", "threads"] = "ring") -> Disk:
    """The best disk this machine allows; one warning where the kernel or a container refuses io_uring."""
    from shoal.segment_store.disk.threads import THREADS, ThreadDisk

    if prefer == "threads":
        return ThreadDisk()
    try:
        from shoal.segment_store.disk.ring import RingDisk

        return RingDisk()
    except (ImportError, OSError) as error:
        logger.warning("io_uring is not available, using %d threads for the disk: %s", THREADS, error)
        return ThreadDisk()
