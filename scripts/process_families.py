"""Ends processes with all that they have started, by their own ids.

Law of this file: whoever is asked to end has a bounded time for it. The others go with it, by force: they are
held by descriptors, which no other process takes over as it may take over a number.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

LAST_WORDS_SECONDS = 10.0
"""For the stacks that a hanging pytest prints when it is aborted, and for an interrupted one to end what its
tests have begun."""


def run(command: Sequence[str], variables: Mapping[str, str], directory: str) -> int:
    """In the foreground, so that a debugger has the terminal; its exit status. It ends with its caller."""
    process = subprocess.Popen(command, cwd=directory, env=variables)
    try:
        return process.wait()
    except BaseException as error:
        # A terminal's Ctrl-C has reached both, and a second one would keep pytest from cleaning up.
        in_front = os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
        has_heard = isinstance(error, KeyboardInterrupt) and in_front
        end([process], None if has_heard else signal.SIGINT)
        raise


def leave_on_signals() -> None:
    """From now on the program leaves by SystemExit, as on Ctrl-C by KeyboardInterrupt, when it is told to end
    or its terminal goes: nobody else ends what it has started."""

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


def end(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals | None) -> None:
    """By this signal, all at once, or by force where that is not enough. None: they have been told. Those
    that have ended before stay as they are. For the main thread: signals to it wait meanwhile."""
    endings = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, endings)
    try:
        _end(processes, number)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals | None) -> None:
    running = [process for process in processes if process.poll() is None]
    family = [member for process in running for member in descendants(process.pid)]
    for process in running:
        if number is not None:
            process.send_signal(number)
    deadline_s = time.monotonic() + LAST_WORDS_SECONDS
    for process in running:
        try:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            family += descendants(process.pid)  # with those that it has started since
            process.kill()
            process.wait()
    for member in family:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself, as it should
            signal.pidfd_send_signal(member, signal.SIGKILL)
        os.close(member)


def descendants(ancestor: int) -> list[int]:
    """A descriptor for each, to be closed."""
    children: dict[int, list[tuple[int, str]]] = {}
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        if (found := _parent_and_start(int(directory.name))) is not None:
            children.setdefault(found[0], []).append((int(directory.name), found[1]))
    opened, waiting = [], [ancestor]
    while waiting:
        for child, start in children.get(waiting.pop(), []):
            try:
                descriptor = os.pidfd_open(child)
            except ProcessLookupError:
                continue
            now = _parent_and_start(child)
            if now is None or now[1] != start:  # another one by the same number
                os.close(descriptor)
                continue
            opened.append(descriptor)
            waiting.append(child)
    return opened


def _parent_and_start(process: int) -> tuple[int, str] | None:
    """The parent's number, and when the process began, in the kernel's ticks; None for one that is gone."""
    try:
        text = pathlib.Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # behind the name, which may hold anything
    return int(fields[1]), fields[19]
