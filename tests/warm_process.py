"""A process that has imported the command `shoal` and forks for each start of it: tests/warm_start.py asks.

Law of this file: what it forks begins as a started command does. It has the arguments, variables, directory,
limits, mask and open files of whoever asks, is its child, and ends as the interpreter ends. It runs apart
from the tests, and imports nothing of them.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import os
import pathlib
import pickle
import pkgutil
import resource
import runpy
import signal
import socket
import struct
import sys
import threading
import time
import types
from dataclasses import dataclass

STANDARD = 3
"""Input, output and errors: the open files that a command has."""
UNCHANGED = frozenset((signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ))
"""Signals that the interpreter ignores, whatever it inherits, or that nobody can."""
HEADER = struct.Struct("!I")
PID = struct.Struct("!i")
PACKAGES = ("shoal.agent", "shoal.client", "shoal.membership", "shoal.replication", "shoal.segment_store")
LEFT_OUT = ("shoal.agent.__main__",)
FORGOTTEN_THREADS = frozenset(("jemalloc_bg_thd",))
"""Arrow's second allocator has one, and forgets it in whoever is forked; agents allocate from another."""


@dataclass(frozen=True)
class Request:
    """One start: `python -m shoal.agent` where `program` is None, and that file otherwise."""

    program: bytes | None
    arguments: list[bytes]
    environment: dict[bytes, bytes]
    directory: bytes
    umask: int
    limits: dict[int, tuple[int, int]]
    ignored: frozenset[int]
    """Signals."""
    blocked: frozenset[int]
    is_session: bool
    group: int
    """-1: that of whoever asks."""


def import_everything() -> None:
    """The command, and what its commands import once they run; without data frames, as they do. The commands
    are made as well: that is the same in each."""
    from shoal.agent.process.footprint import import_no_frames

    import_no_frames()
    importlib.import_module("typer._adapters")
    for name in PACKAGES:
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            if found.name not in LEFT_OUT:
                importlib.import_module(found.name)
    importlib.import_module("shoal.agent.cli.main").root_command()


def threads() -> set[str]:
    """The names of those beside the main one."""
    tasks = [task for task in pathlib.Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
    return {(task / "comm").read_text().strip() for task in tasks}


def receive(control: socket.socket) -> tuple[Request, list[int]] | None:
    """The next request and the files that came with it; None when whoever asks has ended."""
    head, descriptors, _, _ = socket.recv_fds(control, HEADER.size, STANDARD)
    head += whole(control, HEADER.size - len(head))
    size = HEADER.unpack(head)[0] if len(head) == HEADER.size else 1
    data = whole(control, size)
    return (pickle.loads(data), descriptors) if len(data) == size else None


def whole(control: socket.socket, size: int) -> bytes:
    """So many bytes; fewer where there will be no more."""
    data = bytearray()
    while len(data) < size and (piece := control.recv(size - len(data))):
        data += piece
    return bytes(data)


def serve(control: socket.socket) -> Request | None:
    """Returns in each child with what that has to run, and with None at the end."""
    while (received := receive(control)) is not None:
        request, descriptors = received
        between = os.fork()
        if between == 0:
            parent = os.getpid()
            child = os.fork()
            if child:
                control.sendall(PID.pack(child))
                os._exit(0)
            control.close()
            while os.getppid() == parent:  # until it is the child of whoever asked
                time.sleep(0.0002)
            become(request, descriptors)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(between, 0)
        control.sendall(b"\0")
    return None


def become(request: Request, descriptors: list[int]) -> None:
    """Everything of a process that its start decides."""
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard, inheritable=True)
    os.closerange(STANDARD, max(descriptors) + 1)
    open_standard_streams()
    if request.is_session:
        os.setsid()
    if request.group >= 0:
        os.setpgid(0, request.group)
    for limit, bounds in request.limits.items():
        resource.setrlimit(limit, bounds)
    for number in signal.valid_signals() - UNCHANGED:
        signal.signal(number, signal.SIG_IGN if number in request.ignored else signal.SIG_DFL)
    if signal.SIGINT not in request.ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
    os.umask(request.umask)
    os.chdir(request.directory)
    os.environ.clear()
    os.environb.update(request.environment)


def open_standard_streams() -> None:
    """As the interpreter opens them: lines go at once to a terminal, and complaints everywhere."""
    is_unbuffered = sys.stdout.write_through  # python -u, or the variable for it
    for name, descriptor in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        mode = "r" if descriptor == 0 else "w"
        buffering = 0 if is_unbuffered and mode == "w" else -1
        buffer = open(descriptor, f"{mode}b", buffering, closefd=False)  # noqa: SIM115 -- to the end
        getattr(buffer, "raw", buffer).name = f"<{name}>"
        stream = io.TextIOWrapper(
            buffer,
            encoding=before.encoding,
            errors=before.errors,
            newline=None if descriptor == 0 else "\n",
            line_buffering=not is_unbuffered and (descriptor == 2 or os.isatty(descriptor)),
            write_through=is_unbuffered,
        )
        stream.mode = mode  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def run(request: Request) -> None:
    """The command, as the main module of this process."""
    arguments = [os.fsdecode(word) for word in request.arguments]
    if request.program is None:
        sys.path[0] = os.getcwd()
        sys.argv = ["-m", *arguments]
        sys.orig_argv = [sys.executable, "-m", "shoal.agent", *arguments]
        runpy._run_module_as_main("shoal.agent")  # type: ignore[attr-defined]
        return
    path = os.fsdecode(request.program)
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    sys.argv = [path, *arguments]
    sys.orig_argv = [sys.executable, *sys.argv]
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__)
    exec(code, main.__dict__)


def end(ended: SystemExit) -> None:
    """As the interpreter ends, but for a thousand modules, which would be taken apart one by one. Returns,
    for the interpreter to do it, where words or an output that fails are part of the end."""
    code = 0 if ended.code is None else ended.code
    if not isinstance(code, int):
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # what is found only now, complains only now
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit(code & 0xFF)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    import_everything()
    assert threads() <= FORGOTTEN_THREADS, f"threads do not survive a fork: {threads()}"
    gc.collect()
    gc.freeze()  # memory that stays shared: the collector writes to whatever it looks at
    control.sendall(b"\0")
    request = serve(control)
    if request is None:
        return
    try:
        run(request)
    except SystemExit as ended:
        end(ended)
        raise


if __name__ == "__main__":
    main()
