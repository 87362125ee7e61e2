"""Time, as the shells see it; the pure cores get numbers."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol


class Clock(Protocol):
    """Two times that must never be mixed."""

    def now_ms(self) -> int:
        """Monotonic milliseconds from an arbitrary start: deadlines, elections, silence."""

    def now_us(self) -> int:
        """Microseconds since the epoch: append times. No decision about safety rests on them (safety 17)."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def now_us(self) -> int:
        return time.time_ns() // 1_000


async def is_set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for the event. False: the timeout came first."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def repeat(interval_s: float, look: Callable[[], Awaitable[None]]) -> NoReturn:
    """Sleep and look, in turn, until cancelled. A round that raises ends its task, and with it the agent:
    faults that a round expects are logged where they are understood."""
    while True:
        await asyncio.sleep(interval_s)
        await look()
