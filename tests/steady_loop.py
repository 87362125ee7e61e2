"""The event loop of asynchronous tests: in one turn of it only so much time passes.

A test runs agents, their peers and their clients in one process. Where that stands still, on a machine that
is too busy, all of them do, and by the machine's clock each finds the others silent for as long: leaders
fall, readers are too slow, and the test is red by chance. By this clock next to nothing has passed. It goes
as the machine's does while the loop waits, or turns.

Law of this file: waiting is cut into steps, as a stand-still while the loop waits cannot be told from
waiting. Nothing is ever early by the machine's clock.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from typing import Any

STEP_S = 0.02
"""At most so much passes in a turn: an election in a test takes fifteen turns or more."""
WAIT_S = 0.01
"""Of waiting at a time, which takes a little longer."""


class _SteppingSelector(selectors.DefaultSelector):
    """Counts the time of each turn, and of each piece of a wait, but at most STEP_S of it."""

    def __init__(self) -> None:
        super().__init__()
        self._began_s = self._began_at_s = time.monotonic()

    def now_s(self) -> float:
        return self._began_s + min(time.monotonic() - self._began_at_s, STEP_S)

    def _step(self) -> float:
        self._began_s, self._began_at_s = self.now_s(), time.monotonic()
        return self._began_s

    def select(self, timeout: float | None = None) -> Any:
        left_s = math.inf if timeout is None else timeout
        until_s = self._step() + left_s
        while True:
            ready = super().select(max(0.0, min(left_s, WAIT_S)))
            left_s = until_s - self._step()
            if ready or left_s <= 0:
                return ready


class SteadyLoop(asyncio.SelectorEventLoop):
    """time() never falls, and is behind time.monotonic() by what was lost in stand-stills of the process."""

    def __init__(self) -> None:
        self._stepping = _SteppingSelector()
        super().__init__(self._stepping)

    def time(self) -> float:
        return self._stepping.now_s()


def end_timers(loop: asyncio.AbstractEventLoop) -> None:
    """Of what a test has left open, as a crash leaves it: nobody is there any more. One that fired in the
    last turn of the loop would begin a task that never runs, and another test would be blamed when that is
    collected."""
    for timer in tuple(loop._scheduled):  # type: ignore[attr-defined]
        timer.cancel()
    for task in asyncio.all_tasks(loop):
        task.cancel()


def shutdown_asyncgens(loop: asyncio.BaseEventLoop) -> Any:
    """In place of the loop's own, which asyncio calls once all tasks have ended."""
    end_timers(loop)
    return _shutdown_asyncgens(loop)


_shutdown_asyncgens = asyncio.BaseEventLoop.shutdown_asyncgens


def now_ms(_clock: object = None) -> int:
    """In place of SystemClock.now_ms: the running loop's time where that is steady."""
    loop = asyncio._get_running_loop()
    return int(loop.time() * 1_000) if isinstance(loop, SteadyLoop) else time.monotonic_ns() // 1_000_000
