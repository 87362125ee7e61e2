"""One process per data directory: an advisory lock that the kernel releases when its holder dies, however
it dies."""

import errno
import fcntl
import os
from typing import Self

from shoal.segment_store.errors import NotOwner

LOCK_FILE = "lock"
_MAX_PID_BYTES = 32


def _lock(fd: int, mode: int, directory: str) -> None:
    """Lock the file, or close it and raise NotOwner."""
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, _MAX_PID_BYTES, 0).decode("ascii", "replace").strip()
        os.close(fd)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        who = f"process {holder}" if holder.isdecimal() else "another process"
        raise NotOwner(f"{directory} is in use by {who}") from error


class DirectoryLock:
    """`acquire` takes DATA/lock or raises NotOwner naming the process that holds it. The file stays:
    removing it would let two processes hold two files of one name."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, LOCK_FILE)
        self._fd = -1

    def acquire(self) -> None:
        """Raises NotOwner, or OSError when the directory cannot be written."""
        assert self._fd < 0, "the lock is held already"
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        _lock(fd, fcntl.LOCK_EX, os.path.dirname(self.path))
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.ftruncate(fd, 0)
            os.close(fd)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


class ReaderLock:
    """Held while a stopped agent's directory is read: no agent starts meanwhile, and nothing is written.

    `acquire` raises NotOwner while an agent runs on the directory, OSError when there is no lock file to
    read.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._fd = -1

    def __enter__(self) -> Self:
        fd = os.open(os.path.join(self._directory, LOCK_FILE), os.O_RDONLY | os.O_CLOEXEC)
        _lock(fd, fcntl.LOCK_SH, self._directory)
        self._fd = fd
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._fd)
