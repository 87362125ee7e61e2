"""For how long to poll before sleeping: Linux' haltpoll governor, for a wait whose end is expected.

Law of this file: pure; no clock. Whoever sends what is answered within a fraction of a millisecond, as a
leader its entries, says so; until that time is over an event loop with nothing to do asks the kernel again
and again before it sleeps. To fall asleep and be woken costs more than it seems: the processor goes idle,
which on a virtual machine the host has a say in, and comes back with cold caches. Seastar polls likewise.

The window follows what such waits turn out to be: it doubles after one that polling a little longer would
have met, and halves after one that was long, so that slow disks and peers, whom it cannot help, cost nothing.
"""

from __future__ import annotations

from typing import Final

WINDOW_NS_MAX: Final = 400_000
"""The way of a small entry to a follower's disk and back, where both are quick, takes 200 to 300 us."""
WINDOW_NS_MIN: Final = 50_000
"""Shorter waits are not worth a look: falling asleep and waking up take some 30 us."""
CONTENDED_NS: Final = 50_000
"""One look takes two; if a look took this long somebody else had the core in between, and wants it."""


class IdlePoll:
    """Times are nanoseconds of one monotonic clock."""

    def __init__(self) -> None:
        self._window_ns = WINDOW_NS_MIN
        self._expected_until_ns = 0

    def expect(self, now_ns: int) -> None:
        """Something was sent that is answered soon."""
        self._expected_until_ns = now_ns + WINDOW_NS_MAX

    def expects(self, now_ns: int) -> bool:
        """Whether the wait that begins now may end soon; `waited` is to be told of it then."""
        return now_ns < self._expected_until_ns

    @property
    def window_ns(self) -> int:
        """How long to poll in such a wait; 0 for not at all."""
        return self._window_ns

    def waited(self, took_ns: int) -> None:
        """Such a wait is over, polling and sleeping together."""
        if took_ns > WINDOW_NS_MAX:
            halved = self._window_ns // 2
            self._window_ns = halved if halved >= WINDOW_NS_MIN else 0
        elif took_ns > self._window_ns:
            self._window_ns = min(WINDOW_NS_MAX, max(WINDOW_NS_MIN, 2 * self._window_ns))
