"""Which small writes are synced within the call instead of by the ring's workers: pure, no clock and no I/O.

Why, and what it brings: decision 21.

Waking a worker and being woken by it takes as long as a quick sync: 40 to 80 us, and as much of a core. A
sync within the call holds the event loop for as long as the disk takes. So syncs are made within the call
only while the disk is quick and nothing else waits for it. After a sync within the call that took long, none
is made for TIMES_AS_LONG times its duration: slow syncs hold the loop for less than a tenth of the time. A
sync that begins sooner after the last one than that took found the disk busy. Several such in a row end it,
so that quick syncs hold the loop for no more than half of the time.
"""

MAX_IN_CALL_BYTES = 16 * 2**10
"""A few records. More takes longer to write, and a client that sends so much has other work meanwhile."""
QUICK_US = 1_000
"""How long one callback may hold an agent's loop without harm."""
ALONE_IN_A_ROW = 16
"""Syncs through the ring, each quick and with nothing beside it, before the first in a call."""
TIMES_AS_LONG = 10
CROWDED_GAP_US = 50
"""A sync that begins so soon after the end of the last, or sooner than that took, may have waited for it: a
client that waits for its answer before it sends again takes longer on a quick disk. The ring makes the syncs
of several waiting clients side by side."""
CROWDED_IN_A_ROW = 4


class QuickSyncs:
    """`begin` says how the next sync is made, and `ended` has to be told how that went. Times in
    microseconds of one clock that never goes back."""

    __slots__ = ("_alone", "_crowded", "_ended_us", "_rest_until_us", "_took_us")

    def __init__(self) -> None:
        self._alone = 0
        self._crowded = 0
        self._ended_us = 0
        self._took_us = 0  # of the last one
        self._rest_until_us = 0

    def __repr__(self) -> str:
        state = f"{self._alone} alone, {self._crowded} crowded, rest until {self._rest_until_us} us"
        return f"QuickSyncs({state})"

    def begin(self, length: int, now_us: int) -> bool:
        """Whether a write of so many bytes, with nothing else under way, is made within the call."""
        if self._alone < ALONE_IN_A_ROW or length > MAX_IN_CALL_BYTES or now_us < self._rest_until_us:
            return False
        if now_us - self._ended_us >= max(CROWDED_GAP_US, self._took_us):
            self._crowded = 0
            return True
        self._crowded += 1
        if self._crowded < CROWDED_IN_A_ROW:
            return True
        self.crowd()
        return False

    def crowd(self) -> None:
        """Something was asked for while a sync was under way, or waits for the event loop."""
        self._alone = self._crowded = 0

    def ended(self, began_us: int, now_us: int, *, in_call: bool) -> None:
        """A sync has ended that began with nothing beside it."""
        took_us = self._took_us = now_us - began_us
        self._ended_us = now_us
        if took_us <= QUICK_US:
            self._alone += 1
            return
        self._alone = 0
        if in_call:
            self._rest_until_us = now_us + TIMES_AS_LONG * took_us
