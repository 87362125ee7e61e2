"""How long callbacks hold an event loop, whose they are, and where their time goes.

Law of this file: it measures the loop of its own process, and changes nothing there but the selector and the
calling of handles. A loaded machine lengthens every callback: the kernel says how long a thread had a
processor, and how long it had none though it could run. Source: sched-stats.rst of Linux, clock_gettime(2).
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import selectors
import time
from asyncio import events
from typing import Any, Final, NamedTuple

PIECE_NS: Final = 1_000_000
PIECES: Final = 20
"""Of work that is no scrape: as long as one of a thousand partitions takes, in pieces as it should have."""
TELLER: Final = "Teller."


class Hold(NamedTuple):
    """Nanoseconds of one callback, or of one round of them. `queued`: ready to run, while others had the
    processors. `collector`: in the garbage collector, on the processor. What is neither processor nor queued
    is a wait for the disk, or for another thread of the process."""

    held_ns: int = 0
    processor_ns: int = 0
    queued_ns: int = 0
    collector_ns: int = 0

    def since(self, began: Hold) -> Hold:
        """Of two readings of the clocks."""
        return Hold(*(now - then for now, then in zip(self, began, strict=True)))


class Holds(NamedTuple):
    """Of one window: the longest round, and of each kind of callback the one that took most of the processor,
    by the name of its coroutine or function."""

    longest: Hold
    callbacks: dict[str, Hold]

    def text(self) -> str:
        """For the process that measures."""
        return json.dumps(self)

    @staticmethod
    def parse(text: str) -> Holds:
        """What text() made."""
        longest, callbacks = json.loads(text)
        return Holds(Hold(*longest), {name: Hold(*hold) for name, hold in callbacks.items()})


class Clocks:
    """Those of one thread, in which they are made."""

    def __init__(self) -> None:
        self._collector_ns = 0
        self._collector_began_ns = 0
        self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        gc.callbacks.append(self._collects)

    def read(self) -> Hold:
        """As of now, since some beginning."""
        queued_ns = int(os.pread(self._schedule, 64, 0).split()[1])
        return Hold(time.monotonic_ns(), time.thread_time_ns(), queued_ns, self._collector_ns)

    def close(self) -> None:
        """No more readings."""
        gc.callbacks.remove(self._collects)
        os.close(self._schedule)

    def _collects(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collector_began_ns = time.monotonic_ns()
        else:
            self._collector_ns += time.monotonic_ns() - self._collector_began_ns


class TimedSelector(selectors.DefaultSelector):
    """Notes how long the loop was away between two questions to the kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.clocks = Clocks()
        self.longest = Hold()
        self._began: Hold | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As every selector."""
        if self._began is not None:
            self.longest = max(self.longest, self.clocks.read().since(self._began))
        events_ = super().select(timeout)
        self._began = self.clocks.read()
        return events_

    def begin_window(self) -> None:
        """Forget all rounds. The one that is under way counts from here."""
        self.longest = Hold()
        self._began = self.clocks.read()

    def close(self) -> None:
        """With the loop."""
        self.clocks.close()
        super().close()


class Teller:
    """A loop that is timed, for the process that measures."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._selector = TimedSelector()
        self._callbacks: dict[str, Hold] = {}
        self.loop = asyncio.SelectorEventLoop(self._selector)
        self._time_callbacks()

    def tell(self, *_: Any) -> None:
        """The window ends, and the next one begins. Writing the file belongs to neither."""
        say(self._path, Holds(self._selector.longest, self._callbacks).text())
        self._begin_window()

    def work(self, *_: Any) -> None:
        """A window of PIECES rounds, each with PIECE_NS on the processor; told when it is over."""
        self._begin_window()
        self.loop.call_soon_threadsafe(self._work, PIECES)

    def _begin_window(self) -> None:
        self._callbacks = {}
        self._selector.begin_window()

    def _work(self, left: int) -> None:
        if not left:
            self.tell()
            return
        end_ns = time.thread_time_ns() + PIECE_NS
        while time.thread_time_ns() < end_ns:
            pass
        self.loop.call_soon(self._work, left - 1)

    def _time_callbacks(self) -> None:
        handles: Any = events.Handle
        clocks, run = self._selector.clocks, handles._run  # noqa: SLF001 -- there is no other door

        def timed(handle: Any) -> None:
            callbacks, callback = self._callbacks, handle._callback  # noqa: SLF001
            began = clocks.read()
            run(handle)
            hold = clocks.read().since(began)
            if callbacks is self._callbacks:  # not one that ended its window
                name = name_of(callback)
                callbacks[name] = max(callbacks.get(name, hold), hold, key=lambda one: one.processor_ns)

        handles._run = timed  # noqa: SLF001


def name_of(callback: Any) -> str:
    """Of a task its coroutine's, of a method its class's and its own."""
    callback = getattr(callback, "func", callback)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return getattr(owner.get_coro(), "__qualname__", "a task")
    return getattr(callback, "__qualname__", type(callback).__name__)


def say(path: str, text: str) -> None:
    """Answer the process that measures, through a file that appears whole."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.replace(f"{path}.new", path)
