"""Runs pieces of work, each in a process of its own, some at once.

Law of this file: it knows nothing of what is done. A process for each piece, so that what one leaves
(coroutines that were killed and never ended) cannot reach the next. Whoever ends without its whole word has
died, and is never taken for one that had nothing to say.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Generic, NoReturn, Self, TypeVar

W = TypeVar("W")

ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WHOLE: Final = b"\0whole"
"""Behind a word that was said to its end."""


@dataclass(frozen=True)
class Ended(Generic[W]):
    """`said`: the word of the work, empty if its process died. `death`: what it died of, else empty.
    `processor_s`: what the process took, of the system too."""

    work: W
    said: str
    death: str
    processor_s: float


@dataclass(frozen=True)
class _Running(Generic[W]):
    """`word`: a file in memory, for a process that writes there waits for no reader."""

    work: W
    pid: int
    word: int


class Processes(Generic[W]):
    """`do` makes a word of a piece of work, in a new process. How many run at once is up to the caller. Those
    that still run at the end of the context are killed."""

    def __init__(self, do: Callable[[W], str]) -> None:
        self._do = do
        self._running: dict[int, _Running[W]] = {}
        """By the file descriptor of the process, which can be read once it has ended."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        while self._running:
            self.wait()

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, work: W) -> None:
        """In a new process. Raises OSError."""
        word = os.memfd_create("word")
        sys.stdout.flush()
        sys.stderr.flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)  # a process that is in no list runs on
        try:
            pid = os.fork()
            if pid == 0:
                _say(self._do, work, word)
            self._running[os.pidfd_open(pid)] = _Running(work, pid, word)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def wait(self) -> list[Ended[W]]:
        """Those that have ended: one at least, if any runs. Waits for nothing but ends of processes."""
        ended = select.select(list(self._running), [], [])[0] if self._running else []
        return [self._ended(process) for process in ended]

    def _ended(self, process: int) -> Ended[W]:
        running = self._running.pop(process)
        os.close(process)
        _, status, used = os.wait4(running.pid, 0)
        with os.fdopen(running.word, "rb") as file:
            file.seek(0)
            word = file.read()
        death = _death(os.waitstatus_to_exitcode(status), is_whole=word.endswith(WHOLE))
        said = "" if death else word.removesuffix(WHOLE).decode()
        return Ended(running.work, said, death, used.ru_utime + used.ru_stime)


def _say(do: Callable[[W], str], work: W, word: int) -> NoReturn:
    """In the new process. It ends without cleaning up: what was killed in it never ends."""
    status = 1
    try:
        for number in ENDINGS:
            signal.signal(number, signal.SIG_DFL)  # its parent says what there is to say
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
        gc.disable()  # to the end: coroutines that were killed are never collected
        said = do(work).encode(errors="backslashreplace")
        sys.stdout.flush()
        with os.fdopen(word, "wb") as file:
            file.write(said + WHOLE)
        status = 0
    except BaseException:  # noqa: BLE001 -- whatever it is, the process dies of it
        traceback.print_exc()
    finally:
        os._exit(status)


def _death(exit_code: int, *, is_whole: bool) -> str:
    """What a process died of, empty if it said its whole word."""
    if exit_code < 0:
        return f"signal {-exit_code}, {signal.strsignal(-exit_code)}"
    return "" if exit_code == 0 and is_whole else f"exit status {exit_code} without its whole word"
