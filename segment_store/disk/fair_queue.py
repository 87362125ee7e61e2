"""The order of syncs where more are asked for than a disk should work on at once: pure.

Start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queuing", SIGCOMM 1996), by cost. Each
request is stamped with the virtual time at which its partition would have had its share, and the lowest stamp
goes first. A partition that asks for little passes those that ask for much. A waiting request is passed by no
more than its own cost, so no partition starves. Stamps are kept beyond their requests for this: whoever asks
for its next sync when its last has ended comes behind that last one.
"""

import heapq
from typing import Generic, NamedTuple, TypeVar

MAX_SYNCS_IN_FLIGHT = 16
"""Eight to sixteen saturate the disks we know (safety 16); more only make each of them slower."""
MAX_BYTES_IN_FLIGHT = 32 * 2**20
"""Four of the largest group commits: a small write waits behind no more than these."""
SYNC_COST_BYTES = 64 * 2**10
"""The cost of a sync besides its bytes: on the disks we know, as long as writing so many."""

STAMPS_MIN = 256
"""Stamps of so many partitions are kept without a look at which of them are past."""

_T = TypeVar("_T")


class _Waiting(NamedTuple, Generic[_T]):
    stamp: int
    number: int  # in the order of asking: decides between equals
    key: str
    size: int
    request: _T


class SyncSchedule(Generic[_T]):
    """Requests of many keys, at most so many and so many bytes in flight. Two calls change it: `offer` and
    `ended`; after either, `start` gives what may go."""

    def __init__(
        self, max_in_flight: int = MAX_SYNCS_IN_FLIGHT, max_bytes: int = MAX_BYTES_IN_FLIGHT
    ) -> None:
        self._max_in_flight = max_in_flight
        self._max_bytes = max_bytes
        self._waiting: list[_Waiting[_T]] = []
        self._newest: dict[str, int] = {}  # the stamp of the last request of a key, until that time is past
        self._prune_at = STAMPS_MIN
        self._now = 0  # virtual time, in bytes of cost
        self._number = 0
        self.in_flight = 0
        self.bytes_in_flight = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"SyncSchedule({self.in_flight} in flight, {self.bytes_in_flight} bytes, {len(self)} waiting)"

    def _has_room(self, size: int) -> bool:
        if not self.in_flight:
            return True  # one that is larger than the bound goes alone
        return self.in_flight < self._max_in_flight and self.bytes_in_flight + size <= self._max_bytes

    def start_at_once(self, size: int) -> bool:
        """Take room for a request of `size` bytes if none waits; else it has to be offered."""
        if self._waiting or (self.in_flight and not self._has_room(size)):
            return False
        self.in_flight += 1
        self.bytes_in_flight += size
        return True

    def offer(self, key: str, size: int, request: _T) -> None:
        stamp = max(self._now, self._newest.get(key, 0)) + SYNC_COST_BYTES + size
        self._newest[key] = stamp
        self._number += 1
        heapq.heappush(self._waiting, _Waiting(stamp, self._number, key, size, request))

    def start(self) -> _T | None:
        """The next request that may go, counted as in flight; None when there is none, or no room."""
        if not self._waiting or not self._has_room(self._waiting[0].size):
            return None
        stamp, _, _, size, request = heapq.heappop(self._waiting)
        self._now = max(self._now, stamp - SYNC_COST_BYTES - size)
        if len(self._newest) > self._prune_at:
            self._newest = {key: newest for key, newest in self._newest.items() if newest > self._now}
            self._prune_at = max(STAMPS_MIN, 2 * len(self._newest))
        self.in_flight += 1
        self.bytes_in_flight += size
        return request

    def ended(self, size: int) -> bool:
        """A request of `size` bytes is over, however it ended; whether another waits."""
        self.in_flight -= 1
        self.bytes_in_flight -= size
        if not self.in_flight and not self._waiting:
            self._newest.clear()  # nobody asks for anything: all have had their share
        return bool(self._waiting)

    def check_invariants(self) -> None:
        assert self.in_flight >= 0
        assert self.bytes_in_flight >= 0
        assert self.in_flight <= self._max_in_flight
        assert self.bytes_in_flight <= self._max_bytes or self.in_flight == 1
        for waiting in self._waiting:
            assert self._now < waiting.stamp <= self._newest[waiting.key]
        assert len(self._newest) <= self._prune_at + len(self._waiting)
