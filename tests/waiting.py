"""How a test waits in real time for what it cannot await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

PATIENCE_S = 90.0
"""What never comes has not come by then, on any machine: elections take as long as it takes to run them."""
LOOK_INTERVAL_S = 0.005


async def until(condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """Wait until it holds and return its value. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not (value := condition()):
            await asyncio.sleep(LOOK_INTERVAL_S)
        return value
