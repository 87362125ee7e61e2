"""Starts of `shoal` by tests, forked from one process that has imported it: tests/warm_process.py.

Law of this file: whoever starts a command cannot tell. `subprocess` and `asyncio` give the same objects, a
process is the child of the test's own, and all that it inherits is the same. A start takes half a second of
the processor, most of it for imports, and tests start hundreds; those that judge the start itself are marked
`cold_start`.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import itertools
import os
import pathlib
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from warm_process import HEADER, PID, Request

PROCESS = pathlib.Path(__file__).parent / "warm_process.py"
SHOAL = os.fsencode(pathlib.Path(sys.executable).parent / "shoal")
PYTHON = os.fsencode(sys.executable)
MODULE = (b"-m", b"shoal.agent")
READ_AT_IMPORT = tuple(b"PYTHON LC_ LANG LD_ TZ SSL_ OPENSSL_ AIOHTTP_ ARROW_ MALLOC_ GLIBC_".split())
"""Variables that the interpreter, libraries and modules read when they are loaded: who changes one of them
needs a start of its own."""
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_Real = subprocess.Popen


class WarmProcess:
    """The process that forks, from the first start on. One start at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._environment: dict[bytes, bytes] = {}
        self.is_off = False
        self.starts = 0

    def fits(self, environment: Mapping[bytes, bytes]) -> bool:
        """Whether a command with these variables would have imported the same."""
        with self._lock:
            self._begin()
        return decisive(environment) == decisive(self._environment)

    def start(self, request: Request, files: list[int]) -> int:
        """The id of a child of this process that runs it."""
        data = pickle.dumps(request)
        with self._lock:
            control = self._begin()
            _set_subreaper(1)
            try:
                socket.send_fds(control, [HEADER.pack(len(data))], files)
                control.sendall(data)
                answer = b""
                while len(answer) < PID.size + 1:
                    received = control.recv(PID.size + 1 - len(answer))
                    assert received, "the warm process has ended: its complaint stands above"
                    answer += received
            except BaseException:
                self.end()  # its answer, still on the way, would be taken for the answer to the next start
                raise
            finally:
                _set_subreaper(0)
            self.starts += 1
        return int(PID.unpack(answer[: PID.size])[0])

    def _begin(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair()
            self._environment = dict(os.environb)
            with theirs:
                self._process = _Real(
                    [sys.executable, str(PROCESS), str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
            assert self._control.recv(1), "the warm process did not begin: its complaint stands above"
        return self._control

    def end(self) -> None:
        """Once nobody starts anything any more."""
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait()
            self._control = self._process = None


def _set_subreaper(value: int) -> None:
    """Whether orphans below this process become its children: those that are forked twice."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, value, 0, 0, 0) == 0


def decisive(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Those variables that are read at import."""
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_IMPORT)}


def program_of(arguments: list[bytes]) -> tuple[bytes | None, list[bytes]] | None:
    """The file to run, or None for the module, and what comes behind; None for another program."""
    if arguments[:1] == [SHOAL]:
        return SHOAL, arguments[1:]
    if tuple(arguments[:3]) == (PYTHON, *MODULE):
        return None, arguments[3:]
    return None


def _encoded(environment: Mapping[Any, Any] | None) -> dict[bytes, bytes]:
    if environment is None:  # what C code has set is inherited as well
        inherited = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
        lines = itertools.takewhile(lambda line: line is not None, inherited)
        return dict(line.split(b"=", 1) for line in lines if line is not None)
    return {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}


def _umask() -> int:
    """Reading it by the call would set it."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Umask:")).split()[1], 8)


WARM = WarmProcess()


class WarmPopen(_Real):  # type: ignore[type-arg]
    """`subprocess.Popen`, which forks a start of `shoal` from the warm process unless it asks for more."""

    def _execute_child(self, *positional: Any, **named: Any) -> None:
        """In place of fork and exec. What is asked for beyond a plain start has a start of its own."""
        real = super()._execute_child  # type: ignore[misc]
        asked = inspect.signature(real).bind(*positional, **named).arguments
        request = None if WARM.is_off else self._request(asked)
        if request is None:
            real(*positional, **named)
            return
        ends = (asked["p2cread"], asked["c2pwrite"], asked["errwrite"])
        files = [standard if end < 0 else end for standard, end in enumerate(ends)]
        self.pid = WARM.start(request, files)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]

    def _request(self, asked: dict[str, Any]) -> Request | None:
        args = asked["args"]
        odd = ("executable", "preexec_fn", "pass_fds", "shell", "gid", "gids", "uid")
        plain = not any(asked[name] for name in odd) and asked["umask"] < 0 and asked["close_fds"]
        if not plain or isinstance(args, str | bytes | os.PathLike):
            return None
        found = program_of([os.fsencode(word) for word in args])
        environment = _encoded(asked["env"])
        if found is None or not WARM.fits(environment):
            return None
        group = asked["process_group"]
        return Request(
            program=found[0],
            arguments=found[1],
            environment=environment,
            directory=os.fsencode(os.getcwd() if asked["cwd"] is None else os.path.abspath(asked["cwd"])),
            umask=_umask(),
            limits={limit: resource.getrlimit(limit) for limit in LIMITS},
            ignored=frozenset(
                number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN
            ),
            blocked=frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            is_session=bool(asked["start_new_session"]),
            group=-1 if group is None else group,
        )


@contextlib.contextmanager
def warm_starts() -> Iterator[WarmProcess]:
    """While it lasts, all that this process starts by `subprocess` or `asyncio`."""
    subprocess.Popen = WarmPopen  # type: ignore[misc]
    try:
        yield WARM
    finally:
        subprocess.Popen = _Real  # type: ignore[misc]
        WARM.end()
