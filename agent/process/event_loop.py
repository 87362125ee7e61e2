"""asyncio's own event loop, with a shorter way for an event that arrives alone.

Law of this file: callbacks run as asyncio would run them, in the same order, in fewer steps; where that is
not certain, asyncio does it. It imports the standard library alone, so that it is tested on each CPython. The
setting `event_loop = asyncio` switches all of it off.

A small append wakes the agents that it concerns four times. Nearly always one file descriptor is readable
then, and nothing else waits. Its callback is called where the kernel was asked, not by way of two lists and a
queue. If the loop has nothing to do after that, the kernel is asked again at once.

A sender that expects an answer within a fraction of a millisecond says so. The kernel is then polled for a
while before the loop sleeps. Falling asleep and waking up costs more than it seems: the processor goes idle,
which on a virtual machine the host has a say in, and comes back with cold caches. Seastar polls likewise.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import time
from collections.abc import Callable
from typing import Any, Final

EVENTS_MAX: Final = 256
"""Taken from the kernel at once; the rest comes with the next question."""
CALLS_MAX: Final = 64
"""Until the loop itself has a look: cancelled timers go only there."""
_PARTS: Final = {"_ready", "_scheduled", "_stopping"}
"""What is looked at of the loop, and of the selector; asyncio is left alone where it has them not."""
_SELECTOR_PARTS: Final = {"_selector", "_fd_to_key"}


WINDOW_NS_MAX: Final = 400_000
"""The way of a small entry to a follower's disk and back, where both are quick, takes 200 to 300 us."""
WINDOW_NS_MIN: Final = 50_000
"""Shorter waits are not worth a look: falling asleep and waking up take some 30 us."""
CONTENDED_NS: Final = 50_000
"""One look takes two; if a look took this long somebody else had the core in between, and wants it."""


class IdlePoll:
    """For how long to poll before sleeping: Linux' haltpoll governor, for a wait whose end is expected.

    The window follows what such waits turn out to be. It doubles after one that polling a little longer would
    have met, and halves after one that was long, so that slow disks and peers cost nothing. Pure: times are
    nanoseconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self.window_ns = WINDOW_NS_MIN
        """How long to poll in a wait that may end soon; 0 for not at all."""
        self._expected_until_ns = 0

    def expect(self, now_ns: int) -> None:
        """Something was sent that is answered soon."""
        self._expected_until_ns = now_ns + WINDOW_NS_MAX

    def expects(self, now_ns: int) -> bool:
        """Whether the wait that begins now may end soon; `waited` is to be told of it then."""
        return now_ns < self._expected_until_ns

    def waited(self, took_ns: int) -> None:
        """Such a wait is over, polling and sleeping together."""
        if took_ns > WINDOW_NS_MAX:
            halved = self.window_ns // 2
            self.window_ns = halved if halved >= WINDOW_NS_MIN else 0
        elif took_ns > self.window_ns:
            self.window_ns = min(WINDOW_NS_MAX, max(WINDOW_NS_MIN, 2 * self.window_ns))


class DirectSelector(selectors.DefaultSelector):
    """Calls the reader of the one file descriptor that is ready, once it serves a loop."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: Any = None
        self._epoll: Any = None
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._idle_poll = IdlePoll()
        self._expecting = False

    def expect(self) -> None:
        """What was just sent is answered within a fraction of a millisecond, as a rule."""
        self._idle_poll.expect(time.monotonic_ns())
        self._expecting = True

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """This loop's readers may be called, if it and this selector are built as expected."""
        if vars(loop).keys() >= _PARTS and vars(self).keys() >= _SELECTOR_PARTS:
            self._epoll, self._keys = vars(self)["_selector"], vars(self)["_fd_to_key"]
            self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As every selector, without what was called at once. Early, and with nothing, when that has left
        something to do."""
        loop = self._loop
        if loop is None or (timeout is not None and timeout <= 0) or loop.get_debug():
            return super().select(timeout)
        parts = vars(loop)
        ready, timers, poll = parts["_ready"], parts["_scheduled"], self._epoll.poll
        nearest = timers[0] if timers else None
        due = None if timeout is None else time.monotonic() + timeout
        for _ in range(CALLS_MAX):
            try:
                # Rounded up to whole milliseconds, as timers want it.
                events = self._poll_and_sleep(timeout) if self._expecting else poll(timeout, EVENTS_MAX)
            except InterruptedError:
                break
            if len(events) != 1 or events[0][1] != select.EPOLLIN:
                return self._told(events)
            reader = self._keys[events[0][0]].data[0]
            if reader is None or reader.cancelled():
                return self._told(events)
            reader._run()  # noqa: SLF001 -- in its context, with its way of reporting what fails
            if ready or parts["_stopping"] or (timers[0] if timers else None) is not nearest:
                break
            if due is not None:
                timeout = due - time.monotonic()
                if timeout <= 0:
                    break
        return []

    def _poll_and_sleep(self, timeout: float | None) -> list[tuple[int, int]]:
        """What the kernel tells within `timeout` seconds; awake at first, unless others want the core."""
        began_ns = looked_ns = time.monotonic_ns()
        poll, idle_poll = self._epoll.poll, self._idle_poll
        self._expecting = idle_poll.expects(began_ns)
        window_ns = idle_poll.window_ns if self._expecting else 0
        if timeout is not None:
            window_ns = min(window_ns, int(timeout * 1e9))
        while looked_ns - began_ns < window_ns:
            events: list[tuple[int, int]] = poll(0, EVENTS_MAX)
            if events:
                return events
            os.sched_yield()  # to whoever waits for this core: it may be the one who is to answer
            before_ns, looked_ns = looked_ns, time.monotonic_ns()
            if looked_ns - before_ns > CONTENDED_NS:
                break
        if timeout is not None:
            timeout = max(0.0, timeout - (looked_ns - began_ns) / 1e9)
        events = poll(timeout, EVENTS_MAX)
        if self._expecting:
            idle_poll.waited(time.monotonic_ns() - began_ns)
        return events

    def _told(self, events: list[tuple[int, int]]) -> list[tuple[selectors.SelectorKey, int]]:
        """What the loop hears of these."""
        told = []
        for descriptor, event in events:
            key = self._keys.get(descriptor)
            if key is not None:
                mask = selectors.EVENT_WRITE if event & ~select.EPOLLIN else 0
                mask |= selectors.EVENT_READ if event & ~select.EPOLLOUT else 0
                told.append((key, mask & key.events))
        return told


class DirectLoop(asyncio.SelectorEventLoop):
    """A loop whose selector is known."""

    def __init__(self) -> None:
        self.direct_selector = DirectSelector()
        super().__init__(self.direct_selector)
        self.direct_selector.serve(self)


def new_event_loop(*, direct: bool = True) -> asyncio.AbstractEventLoop:
    """asyncio's loop; if `direct`, with the shorter way where asyncio is built as expected."""
    return DirectLoop() if direct and hasattr(select, "epoll") else asyncio.new_event_loop()


def expects_answers(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """To be called when something was sent that is answered soon. Does nothing in any other loop."""
    return loop.direct_selector.expect if isinstance(loop, DirectLoop) else _nothing


def _nothing() -> None:
    """The other loop sleeps whenever it has nothing to do."""
