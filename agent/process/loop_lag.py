"""How late the event loop is: a timer that looks when it is run.

Law of this file: it measures with the loop's own clock, and does nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn

INTERVAL_S: Final = 0.1
"""A callback that holds the loop for as long is always met, a shorter one as often as its share."""


async def watch_loop_lag(observe: Callable[[int], None]) -> NoReturn:
    """Until cancelled, tell by how many nanoseconds each timer came too late. Timers have the selector's
    resolution of a millisecond."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        observe(max(0, int((loop.time() - due_s) * 1e9)))
