"""Two ways to let time pass: until an event or its timeout, and between the rounds of a periodic task.

Law of this file: it knows nobody who waits. A round that raises ends its task, and with it the agent: faults
that a round expects are logged where they are understood.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn


async def is_set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for the event. False: the timeout came first."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def repeat(interval_s: float, look: Callable[[], Awaitable[None]]) -> NoReturn:
    """Sleep and look, in turn, until cancelled."""
    while True:
        await asyncio.sleep(interval_s)
        await look()
