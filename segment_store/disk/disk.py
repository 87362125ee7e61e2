"""The disk as the store sees it: the interface, and its plain version on threads.

Errors are the operating system's own (OSError); what they mean for a log is decided in log.py. Reads are
short only at the end of a file; writes and syncs are whole or they raise. A file handle is used by one
event loop.
"""

import asyncio
import ctypes
import errno
import functools
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

from shoal.segment_store.errors import SyncFailed

Buffer = bytes | bytearray | memoryview
Data = Buffer | Sequence[Buffer]
Done = Callable[[BaseException | None], None]

MAX_BUFFERS_PER_WRITE = 512  # below IOV_MAX (1024): more are joined first
MAX_INTERRUPTIONS = 1000  # EINTR and EAGAIN in a row before they are an error: a bound, never met in practice
THREADS = 16  # safety 16: 8 to 16 syncs in flight; a thread each
RESIDENT_TURN_BYTES = 2**20  # copied from the page cache in one turn: about 150 us
WRITE_AT_ONCE_BYTES = 2 * 2**20  # copied into the page cache in one turn: about 400 us
EARLY_WRITEBACK_BYTES = 512 * 2**10
EARLY_PIECE_BYTES = 256 * 2**10
MAX_EARLY_PIECES = 8
"""A write with sync of at least so many bytes goes in pieces, each told to the disk while the next is still
being copied: the sync at the end finds most of its work done."""
TRANSIENT_ERRORS = (errno.EINTR, errno.EAGAIN)
_FILE_MODE = 0o644
_libc = ctypes.CDLL(None, use_errno=True)  # its calls let go of the interpreter's lock
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

RELEASE_MODE = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, linux/falloc.h."""
RELEASE_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

logger = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


class File(Protocol):
    """An open file. `path` is as given to open; offsets and lengths in bytes."""

    path: str

    def descriptor(self) -> int:
        """What the system knows the open file by. OSError when it is closed, or the system knows none."""

    async def size(self) -> int: ...
    async def read(self, offset: int, length: int) -> bytes: ...
    async def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill the buffer from `offset`; the number of bytes read, fewer than its length only at the end."""

    def read_resident(self, offset: int, buffer: memoryview) -> int:
        """As many bytes as memory has at once; 0 where it has none, for any error, and when this turn of the
        loop has had its RESIDENT_TURN_BYTES: read_into then meets the error, or the next turn."""

    async def write(self, offset: int, data: Data) -> None: ...
    def write_at_once(self, offset: int, data: Data) -> bool:
        """Write in this very call what the page cache takes without the disk, at most WRITE_AT_ONCE_BYTES.
        False: it was not done, or not whole; the same write again meets the reason."""

    async def sync(self) -> None:
        """fdatasync: all bytes written before this call are on the disk when it returns. SyncFailed."""

    async def write_and_sync(self, offset: int, data: Data) -> None:
        """SyncFailed when the sync was what failed."""

    def begin_write_and_sync(self, offset: int, data: Data, done: Done) -> None:
        """write_and_sync without anybody awaiting it: `done` is called once with None or the error, from the
        event loop and never before this returns."""

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


def call_when_done(task: asyncio.Future[None], done: Done) -> None:
    """Tell `done` how the task ended; a cancelled one tells nobody, its loop is ending."""

    def ended(future: asyncio.Future[None]) -> None:
        if not future.cancelled():
            done(future.exception())

    task.add_done_callback(ended)


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
    """What remains of the buffers after a short write of `written` bytes, without copying."""
    rest: list[Buffer] = []
    for buffer in buffers:
        if written >= len(buffer):
            written -= len(buffer)
            continue
        rest.append(memoryview(buffer)[written:] if written else buffer)
        written = 0
    return rest


def pieces_of(buffers: Sequence[Buffer], piece_bytes: int) -> list[list[Buffer]]:
    """The same bytes in runs of `piece_bytes` (the last may be shorter), without copying."""
    pieces: list[list[Buffer]] = []
    room = 0
    for buffer in buffers:
        at, end = 0, len(buffer)
        while at < end:
            if not room:
                pieces.append([])
                room = piece_bytes
            taken = min(room, end - at)
            whole = taken == end
            pieces[-1].append(buffer if whole else memoryview(buffer)[at : at + taken])
            at += taken
            room -= taken
    return pieces


def early_piece_bytes(length: int) -> int:
    """How long the pieces of a large write with sync are."""
    return max(EARLY_PIECE_BYTES, -(-length // MAX_EARLY_PIECES))


def whole_pages(start: int, end: int) -> tuple[int, int]:
    """Offset and length of the pages of [start, end) that no later byte will touch; the first may be shared
    with what was written before."""
    first, last = start - start % _PAGE_BYTES, end - end % _PAGE_BYTES
    return first, max(0, last - first)


def write_fully(fd: int, offset: int, buffers: Sequence[Buffer]) -> None:
    """pwritev until everything is written; a short write goes on where it stopped."""
    rest = list(buffers)
    interruptions = 0
    while rest:
        try:
            written = os.pwritev(fd, rest, offset)
        except OSError as error:
            interruptions += 1
            if error.errno not in TRANSIENT_ERRORS or interruptions > MAX_INTERRUPTIONS:
                raise
            continue
        if written == 0:
            raise OSError(errno.EIO, "the disk accepted no byte of a write")
        offset += written
        rest = after_prefix(rest, written)


def write_resident(fd: int, offset: int, buffers: Sequence[Buffer]) -> bool:
    """One pwritev; whether it took everything."""
    length = length_of(buffers)
    try:
        return length <= WRITE_AT_ONCE_BYTES and os.pwritev(fd, buffers, offset) == length
    except OSError:
        return False


def sync_fully(fd: int) -> None:
    """fdatasync once, whatever it says. Not os.fdatasync, which asks again after EINTR: the kernel may have
    forgotten by then which pages were dirty."""
    _sync_once(_libc.fdatasync, fd)


def _sync_once(call: Callable[[int], int], fd: int) -> None:
    if call(fd):
        error = ctypes.get_errno()
        raise SyncFailed(error, os.strerror(error))


def read_fully_into(fd: int, offset: int, buffer: memoryview) -> int:
    """preadv until the buffer is full or the file ends; the number of bytes read."""
    filled = 0
    interruptions = 0
    while filled < len(buffer):
        try:
            count = os.preadv(fd, [buffer[filled:]], offset + filled)
        except OSError as error:
            interruptions += 1
            if error.errno not in TRANSIENT_ERRORS or interruptions > MAX_INTERRUPTIONS:
                raise
            continue
        if count == 0:
            break
        filled += count
    return filled


def read_resident_into(fd: int, offset: int, buffer: memoryview) -> int:
    """As many bytes as the page cache gives at once, from `offset` on; 0 where it has none, at the end of
    the file, and for every error: whoever asks the disk then meets it."""
    try:
        return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
    except OSError:
        return 0


def forget_cached(fd: int, offset: int, length: int) -> None:
    """Clean pages leave the page cache; a file system that keeps none is no error."""
    start = offset - offset % _PAGE_BYTES  # a page that is covered in part would stay
    end = offset + length + -(offset + length) % _PAGE_BYTES
    with suppress(OSError):
        os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)


def read_fully(fd: int, offset: int, length: int) -> bytes:
    """`length` bytes, or fewer at the end of the file."""
    pieces: list[bytes] = []
    interruptions = 0
    while length:
        try:
            piece = os.pread(fd, length, offset)
        except OSError as error:
            interruptions += 1
            if error.errno not in TRANSIENT_ERRORS or interruptions > MAX_INTERRUPTIONS:
                raise
            continue
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def allocate_blocks(fd: int, length: int) -> None:
    """posix_fallocate to `length`; a file system without it gets the length only."""
    size = os.fstat(fd).st_size
    if length <= size:
        return
    try:
        os.posix_fallocate(fd, size, length - size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(fd, length)


def release_blocks(fd: int, offset: int, length: int) -> None:
    """fallocate(2) with FALLOC_FL_PUNCH_HOLE, which Python does not have."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, RELEASE_MODE, ctypes.c_int64(offset), ctypes.c_int64(length)):
        error = ctypes.get_errno()
        if error not in RELEASE_UNSUPPORTED:
            raise OSError(error, os.strerror(error))


def _make_directories(paths: Sequence[str]) -> set[str]:
    made: set[str] = set()
    parents: dict[str, None] = {}  # outermost first for each path: no name is durable before its parent's
    for path in paths:
        missing = []
        if not os.path.isdir(path):
            made.add(path)
        while not os.path.isdir(path):
            missing.append(path)
            parent = os.path.dirname(path) or "."
            if parent == path:
                break
            path = parent
        for directory in reversed(missing):
            os.makedirs(directory, exist_ok=True)
            parents[os.path.dirname(directory) or "."] = None
    for parent in parents:
        _sync_directory(parent)
    return made


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync_once(_libc.fsync, fd)
    finally:
        os.close(fd)


def _list_directory(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def _remove_tree(path: str) -> None:
    if os.path.lexists(path):
        shutil.rmtree(path)
        _sync_directory(os.path.dirname(path) or ".")


def _free_bytes(path: str) -> tuple[int, int]:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


class ThreadDisk:
    """Every operation a blocking call on one of THREADS threads. Its directory operations serve the ring
    too."""

    kind = "threads"

    def __init__(self, threads: int = THREADS) -> None:
        self.around_completions: AbstractContextManager[None] = nullcontext()
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="shoal-disk")
        self._resident_bytes = 0

    def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
        call = functools.partial(function, *args, **kwargs)
        return asyncio.get_running_loop().run_in_executor(self._executor, call)

    def read_resident(self, fd: int, offset: int, buffer: memoryview) -> int:
        """What the page cache has of it, without the way through a ring or a thread, which costs several
        times the copy."""
        if self._resident_bytes >= RESIDENT_TURN_BYTES:
            return 0
        filled = read_resident_into(fd, offset, buffer) if len(buffer) else 0
        self._resident_bytes += filled
        return filled

    async def next_turn(self) -> None:
        """Others get a turn of the loop for every RESIDENT_TURN_BYTES."""
        if self._resident_bytes >= RESIDENT_TURN_BYTES:
            self._resident_bytes = 0
            await asyncio.sleep(0)

    def open_descriptor(self, path: str, create: bool) -> asyncio.Future[int]:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return self.run(os.open, path, flags, _FILE_MODE)

    async def open(self, path: str, *, create: bool = False) -> File:
        return ThreadFile(self, path, await self.open_descriptor(path, create))

    async def list(self, directory: str) -> list[str]:
        return await self.run(_list_directory, directory)

    async def exists(self, path: str) -> bool:
        return await self.run(os.path.lexists, path)

    async def make_directory(self, *paths: str) -> set[str]:
        return await self.run(_make_directories, paths)

    async def rename(self, old: str, new: str) -> None:
        await self.run(os.replace, old, new)

    async def unlink(self, path: str) -> None:
        await self.run(os.unlink, path)

    async def remove_tree(self, path: str) -> None:
        await self.run(_remove_tree, path)

    async def sync_directory(self, path: str) -> None:
        await self.run(_sync_directory, path)

    async def free_bytes(self, path: str) -> tuple[int, int]:
        return await self.run(_free_bytes, path)

    async def close(self) -> None:
        # No wait: every caller has awaited its own operation, so the threads are idle.
        self._executor.shutdown(wait=False)


def begin_write_back(fd: int, start: int, end: int) -> None:
    """Ask the kernel to begin with the whole pages of [start, end). Advice: it neither waits nor takes an
    error away from the sync (sync_file_range(2), SYNC_FILE_RANGE_WRITE alone)."""
    first, length = whole_pages(start, end)
    if length:
        _libc.sync_file_range(fd, ctypes.c_int64(first), ctypes.c_int64(length), _SYNC_FILE_RANGE_WRITE)


def _write_and_sync(fd: int, offset: int, buffers: Sequence[Buffer]) -> None:
    length = length_of(buffers)
    if length >= EARLY_WRITEBACK_BYTES:
        pieces = pieces_of(buffers, early_piece_bytes(length))
        for piece in pieces[:-1]:
            write_fully(fd, offset, piece)
            end = offset + length_of(piece)
            begin_write_back(fd, offset, end)
            offset = end
        buffers = pieces[-1]
    write_fully(fd, offset, buffers)
    sync_fully(fd)


class ThreadFile:
    """An open file of ThreadDisk. A cancelled caller does not end its operation, so close waits for those
    under way: a descriptor number that is used again while an old write runs would write into another
    file."""

    def __init__(self, disk: ThreadDisk, path: str, fd: int) -> None:
        self.path = path
        self._disk = disk
        self._fd = fd
        self._active: set[asyncio.Future[Any]] = set()

    async def _run(
        self, function: Callable[Concatenate[int, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        future = self._disk.run(function, self.descriptor(), *args, **kwargs)
        self._active.add(future)
        future.add_done_callback(self._active.discard)
        return await asyncio.shield(future)

    def descriptor(self) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, "file is closed", self.path)
        return self._fd

    async def size(self) -> int:
        return os.fstat(self.descriptor()).st_size

    async def read(self, offset: int, length: int) -> bytes:
        return await self._run(read_fully, offset, length)

    async def read_into(self, offset: int, buffer: memoryview) -> int:
        await self._disk.next_turn()
        filled = self._disk.read_resident(self.descriptor(), offset, buffer)
        if filled == len(buffer):
            return filled
        return filled + await self._run(read_fully_into, offset + filled, buffer[filled:])

    def read_resident(self, offset: int, buffer: memoryview) -> int:
        return self._disk.read_resident(self._fd, offset, buffer) if self._fd >= 0 else 0

    async def write(self, offset: int, data: Data) -> None:
        await self._run(write_fully, offset, buffers_of(data))

    def write_at_once(self, offset: int, data: Data) -> bool:
        return self._fd >= 0 and write_resident(self._fd, offset, buffers_of(data))

    async def sync(self) -> None:
        await self._run(sync_fully)

    async def write_and_sync(self, offset: int, data: Data) -> None:
        await self._run(_write_and_sync, offset, buffers_of(data))

    def begin_write_and_sync(self, offset: int, data: Data, done: Done) -> None:
        if self._fd >= 0:
            task = self._disk.run(_write_and_sync, self._fd, offset, buffers_of(data))
        else:  # the error is told as any other
            task = asyncio.ensure_future(self.write_and_sync(offset, data))
        self._active.add(task)
        task.add_done_callback(self._active.discard)
        call_when_done(task, done)

    def forget_cached(self, offset: int, length: int) -> None:
        forget_cached(self.descriptor(), offset, length)

    async def allocate(self, length: int) -> None:
        await self._run(allocate_blocks, length)

    async def release(self, offset: int, length: int) -> None:
        await self._run(release_blocks, offset, length)

    async def close(self) -> None:
        fd, self._fd = self._fd, -1
        if self._active:
            await asyncio.wait(self._active)
        if fd >= 0:
            await self._disk.run(os.close, fd)


async def open_disk(prefer: Literal["ring", "threads"] = "ring") -> Disk:
    """The best disk this machine allows, its syncs in a fair order; one warning where the kernel or a
    container refuses io_uring."""
    from shoal.segment_store.disk.fair import FairDisk

    return FairDisk(ThreadDisk() if prefer == "threads" else _ring_or_threads())


def _ring_or_threads() -> Disk:
    try:
        from shoal.segment_store.disk.ring import RingDisk

        return RingDisk()
    except (ImportError, OSError) as error:
        logger.warning("io_uring is not available (%s): the disk runs on %d threads instead", error, THREADS)
        return ThreadDisk()
