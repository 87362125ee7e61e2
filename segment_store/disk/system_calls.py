"""Blocking calls on file descriptors, whole or an OSError: for threads, and for commands that may block.

A call that was interrupted goes on. A sync is made once: the kernel may have forgotten which pages were
dirty.
"""

import contextlib
import ctypes
import errno
import functools
import os
import shutil
from collections.abc import Callable, Sequence

from shoal.segment_store.disk.disk import WRITE_AT_ONCE_BYTES, Buffer, after_prefix, length_of
from shoal.segment_store.errors import SyncFailed

MAX_INTERRUPTIONS = 1000  # EINTR and EAGAIN in a row before they are an error: a bound, never met in practice
TRANSIENT_ERRORS = (errno.EINTR, errno.EAGAIN)
EARLY_WRITEBACK_BYTES = 512 * 2**10
EARLY_PIECE_BYTES = 256 * 2**10
MAX_EARLY_PIECES = 8
"""A write with sync of at least so many bytes goes in pieces, each told to the disk while the next is still
being copied: the sync at the end finds most of its work done."""
WRITE_BACK_BYTES = 256 * 2**10
"""Of a file that nobody waits for: so much stands before a sync of another file."""
RELEASE_MODE = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, linux/falloc.h."""
_RELEASE_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h
_SYNC_FILE_RANGE_WRITE_AND_WAIT = 7  # with SYNC_FILE_RANGE_WAIT_BEFORE and SYNC_FILE_RANGE_WAIT_AFTER
_WRITE_BACK_UNSUPPORTED = (errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP, errno.ENOSYS)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None, use_errno=True)  # its calls let go of the interpreter's lock


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


def _uninterrupted(call: Callable[[], int]) -> int:
    """The call's result; it is made again after an interruption."""
    for _ in range(MAX_INTERRUPTIONS):
        try:
            return call()
        except OSError as error:
            if error.errno not in TRANSIENT_ERRORS:
                raise
    return call()


def write_fully(fd: int, offset: int, buffers: Sequence[Buffer]) -> None:
    """pwritev until everything is written; a short write goes on where it stopped."""
    rest = list(buffers)
    while rest:
        written = _uninterrupted(functools.partial(os.pwritev, fd, rest, offset))
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
    """fdatasync once; its error is never retried. Not os.fdatasync, which asks again after EINTR: the kernel
    may have forgotten by then which pages were dirty."""
    _sync_once(_libc.fdatasync, fd)


def _sync_once(call: Callable[[int], int], fd: int) -> None:
    if call(fd):
        error = ctypes.get_errno()
        raise SyncFailed(error, os.strerror(error))


def read_fully_into(fd: int, offset: int, buffer: memoryview) -> int:
    """preadv until the buffer is full or the file ends; the number of bytes read."""
    filled = 0
    while filled < len(buffer):
        count = _uninterrupted(functools.partial(os.preadv, fd, [buffer[filled:]], offset + filled))
        if count == 0:
            break
        filled += count
    return filled


def read_resident_into(fd: int, offset: int, buffer: memoryview) -> int:
    """As many bytes as the page cache gives at once, from `offset` on; 0 where it has none, at the end of
    the file, and for every error: a read from the disk then meets it."""
    try:
        return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
    except OSError:
        return 0


def forget_cached(fd: int, offset: int, length: int) -> None:
    """Clean pages leave the page cache; a file system that keeps none is no error."""
    start = offset - offset % _PAGE_BYTES  # a page that is covered in part would stay
    end = offset + length + -(offset + length) % _PAGE_BYTES
    with contextlib.suppress(OSError):
        os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)


def read_fully(fd: int, offset: int, length: int) -> bytes:
    """`length` bytes, or fewer at the end of the file."""
    left = max(os.fstat(fd).st_size - offset, 0)  # room for more would be cleared for nothing
    buffer = memoryview(bytearray(min(length, left)))
    return bytes(buffer[: read_fully_into(fd, offset, buffer)])


ALLOCATE_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL)
"""How a file system says that it gives a file no blocks in advance."""


def allocate_blocks(fd: int, length: int) -> None:
    """posix_fallocate to `length`; a file system without it gets the length only."""
    size = os.fstat(fd).st_size
    if length <= size:
        return
    try:
        os.posix_fallocate(fd, size, length - size)
    except OSError as error:
        if error.errno not in ALLOCATE_UNSUPPORTED:
            raise
        os.ftruncate(fd, length)


def release_blocks(fd: int, offset: int, length: int) -> None:
    """fallocate(2) with FALLOC_FL_PUNCH_HOLE, which Python does not have."""
    if _libc.fallocate(fd, RELEASE_MODE, ctypes.c_int64(offset), ctypes.c_int64(length)):
        error = ctypes.get_errno()
        if error not in _RELEASE_UNSUPPORTED:
            raise OSError(error, os.strerror(error))


def make_directories(paths: Sequence[str]) -> set[str]:
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
        sync_directory(parent)
    return made


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync_once(_libc.fsync, fd)
    finally:
        os.close(fd)


def list_directory(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def remove_tree(path: str) -> None:
    if os.path.lexists(path):
        shutil.rmtree(path)
        sync_directory(os.path.dirname(path) or ".")


def free_bytes(path: str) -> tuple[int, int]:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


def begin_write_back(fd: int, start: int, end: int) -> None:
    """Ask the kernel to begin with the whole pages of [start, end). Advice: it neither waits nor takes an
    error away from the sync (sync_file_range(2), SYNC_FILE_RANGE_WRITE alone)."""
    first, length = whole_pages(start, end)
    if length:
        _libc.sync_file_range(fd, ctypes.c_int64(first), ctypes.c_int64(length), _SYNC_FILE_RANGE_WRITE)


def write_back(fd: int, offset: int, buffers: Sequence[Buffer]) -> None:
    """Returns once the disk has taken the whole pages of these bytes, in pieces of WRITE_BACK_BYTES; without
    a wait where the file system knows none. OSError also for a page that it could not take: the kernel tells
    of that once."""

    def wait(first: int, length: int) -> int:
        flags = _SYNC_FILE_RANGE_WRITE_AND_WAIT
        if _libc.sync_file_range(fd, ctypes.c_int64(first), ctypes.c_int64(length), flags):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return 0

    for piece in pieces_of(buffers, WRITE_BACK_BYTES):
        write_fully(fd, offset, piece)
        end = offset + length_of(piece)
        first, length = whole_pages(offset, end)
        if length:
            try:
                _uninterrupted(functools.partial(wait, first, length))
            except OSError as error:
                if error.errno not in _WRITE_BACK_UNSUPPORTED:
                    raise
        offset = end


def write_and_sync(fd: int, offset: int, buffers: Sequence[Buffer]) -> None:
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
