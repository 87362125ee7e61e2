"""A listening socket in the file system: made where nobody listens, for the agent's user and group; removed.

Law of this file: a path. Another process's socket is never taken away, nor a file that is no socket; each
fault is one line that says what to do (PortError).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
import time
from collections.abc import Iterator

from shoal.agent.process.ports import HTTP_BACKLOG, PortError

MODE = 0o660
"""User and group; the rights of the directory decide further."""
LOCK_SECONDS = 2.0
"""Two agents that are given one path look and bind one after the other."""
LOCK_RETRY_SECONDS = 0.02

logger = logging.getLogger("shoal.agent")


def listen_at(path: str) -> socket.socket:
    """Raises PortError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _alone_in(os.path.dirname(path) or "."):
            if _is_left_over(path):
                os.unlink(path)
            listener.bind(path)
            os.chmod(path, MODE)  # nobody connects before it listens
            listener.listen(HTTP_BACKLOG)  # under the lock: the socket of an agent that starts is no leftover
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _refusal(path, error) from None
    except BaseException:
        listener.close()
        raise
    return listener


def check(path: str) -> None:
    """Whether an agent could listen there; changes nothing. Raises PortError."""
    directory = os.path.dirname(path) or "."
    try:
        os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        _is_left_over(path)
    except OSError as error:
        raise _refusal(path, error) from None


def _refusal(path: str, error: OSError) -> PortError:
    return PortError(
        f"--http-socket {path}: {error.strerror or error}: give a path in a directory that exists and"
        " that this user may write"
    )


def remove(path: str, listener: socket.socket) -> None:
    """The path, unless something else has taken it since. `listener` may be closed already."""
    listener.close()
    try:
        with _alone_in(os.path.dirname(path) or "."):
            if _is_left_over(path):
                os.unlink(path)
    except PortError:
        return  # it is somebody else's now
    except OSError as error:
        logger.warning("cannot remove the socket %s: %s", path, error.strerror or error)


@contextlib.contextmanager
def _alone_in(directory: str) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        give_up_s = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up_s:
                    raise OSError(errno.EBUSY, f"another process holds a lock on {directory}") from None
                time.sleep(LOCK_RETRY_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _is_left_over(path: str) -> bool:
    """Whether the socket of a process that was killed is there. Raises OSError, PortError."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise PortError(f"--http-socket {path}: there is something else than a socket: give another path")
    if _is_listened_to(path):
        raise PortError(f"--http-socket {path}: another process listens there: stop it, or give another path")
    return True


def _is_listened_to(path: str) -> bool:
    """Raises OSError where that cannot be told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            return True  # its backlog is full
    return True
