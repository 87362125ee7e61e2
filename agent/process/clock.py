"""Time, as the shells see it; the pure cores get numbers."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two times that must never be mixed."""

    def now_ms(self) -> int:
        """Monotonic milliseconds from an arbitrary start: deadlines, elections, silence."""

    def now_us(self) -> int:
        """Microseconds since the epoch: append times, which no decision about safety rests on (safety 17)."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Monotonic milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def now_us(self) -> int:
        """Microseconds since the epoch."""
        return time.time_ns() // 1_000
