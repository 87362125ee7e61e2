"""The temporary directory from which a driver serves the zip, and those of drivers that were killed.

Law of this file: a directory belongs to the process that holds the lock on it, which the system frees however
that process ends. Others' directories, and what a link names, are left alone.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import stat
import tempfile
from typing import Final

if os.name == "posix":
    import fcntl

PREFIX: Final = "shoal-spark-served-"
FILES: Final = "shoal-*.zip"
REMOVED_MAX: Final = 64
"""In one go: nobody waits long for a driver's beginning. The next one removes the rest."""
TRIES_MAX: Final = 3
"""Of making a directory: another driver may take one for left behind before its owner has locked it."""


class ServedDirectory:
    """Made for this process, and removed by `close`, or when the process ends. Raises OSError."""

    def __init__(self) -> None:
        remove_those_left_behind()
        for _ in range(TRIES_MAX):
            self._directory = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
            self.name = self._directory.name
            self._lock = _lock_of(self.name)
            if self._lock is not None or os.name != "posix":
                return
            self._directory.cleanup()
        raise OSError(f"others remove {tempfile.gettempdir()}/{PREFIX}* as they are made")

    def close(self) -> None:
        """Nobody needs its files any more."""
        self._directory.cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_those_left_behind() -> None:
    """Of this user's drivers that do not run any more."""
    if os.name != "posix":
        return
    parent = tempfile.gettempdir()
    names = sorted(name for name in os.listdir(parent) if name.startswith(PREFIX))
    removed = 0
    for name in names:
        removed += _remove(os.path.join(parent, name))
        if removed == REMOVED_MAX:
            break


def _remove(path: str) -> bool:
    """False: it is in use, or not to be touched."""
    lock = _lock_of(path)
    if lock is None:
        return False
    try:
        for file in os.listdir(lock):
            if fnmatch.fnmatchcase(file, FILES):
                os.unlink(file, dir_fd=lock)
        os.rmdir(path)  # of an empty directory only, whoever put it there
    except OSError:
        return False  # something else is in it, or somebody else removes it: it is in nobody's way
    finally:
        os.close(lock)
    return True


def _lock_of(path: str) -> int | None:
    """The open directory, locked for this process. None where another process has it, where it is gone, and
    where it may be somebody else's."""
    if os.name != "posix":
        return None
    with contextlib.ExitStack() as undo:
        try:
            opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            undo.callback(os.close, opened)
            state = os.fstat(opened)
            if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) != stat.S_IRWXU:
                return None
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.lstat(path), state):
                return None
        except OSError:
            return None  # a link, a file, another's, or one in use
        undo.pop_all()
        return opened
