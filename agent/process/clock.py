"""Time, as the shells see it; the pure cores get numbers."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import NoReturn, Protocol, TypeVar

T = TypeVar("T")


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


async def by_turns(items: Iterable[T], items_per_turn: int) -> AsyncIterator[T]:
    """All items, so many in one turn of the loop: an agent may hold thousands of partitions. Items may change
    in between. Turns are counted, not timed, so that a simulation takes the same ones every time."""
    for number, item in enumerate(items, 1):
        yield item
        if number % items_per_turn == 0:
            await asyncio.sleep(0)
