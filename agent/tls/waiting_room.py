"""Connections that wait for their handshake: who is next, and who goes where too many wait.

Law of this file: pure; a connection is any value, a network the name of those whose connections they are.
Networks take turns, so whoever sends ten thousand connections waits behind itself, and nobody else does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

FREE_SHARE: Final = 7
"""A network has at most so many times as many places as are free, as switches share their buffers (Choudhury
and Hahne 1998): one alone has 7 of 8, two have 7 of 15 each, and the next one finds a place."""

T = TypeVar("T")


def may_enter(held: int, free: int) -> bool:
    """Whether a network that has `held` places may have one more, of `free` ones."""
    return held < FREE_SHARE * free


class WaitingRoom(Generic[T]):
    """At most `places` wait: after each that enters ask `overflow`."""

    def __init__(self, places: int) -> None:
        assert places > 0
        self._places = places
        self._size = 0
        self._lines: dict[str, deque[T]] = {}  # the network whose turn comes next is the first
        self._by_length: list[dict[str, None]] = [{}]  # the networks that have so many; no longer than needed

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"WaitingRoom(waiting={self._size} networks={len(self._lines)} places={self._places})"

    def enter(self, network: str, one: T) -> None:
        """One waits from now on."""
        line = self._lines.setdefault(network, deque())
        line.append(one)
        self._size += 1
        self._measured(network, len(line) - 1, len(line))

    def overflow(self) -> T | None:
        """Take out the one too many, if there is one: of the network that has most here the one that waits
        longest."""
        return self._take(next(iter(self._by_length[-1]))) if self._size > self._places else None

    def leave(self, is_let_in: Callable[[str], bool]) -> T | None:
        """The next one of the networks that are let in now: of each in turn its first. None: nobody is."""
        network = next(filter(is_let_in, self._lines), None)
        if network is None:
            return None
        one = self._take(network)
        if network in self._lines:
            self._lines[network] = self._lines.pop(network)  # behind all others
        return one

    def leave_while(self, is_late: Callable[[T], bool]) -> list[T]:
        """Those that have waited too long: of each network its first ones."""
        return [
            self._take(network)
            for network, line in list(self._lines.items())
            for _ in range(len(line))
            if line and is_late(line[0])
        ]

    def clear(self) -> list[T]:
        """Everybody goes."""
        gone = [one for line in self._lines.values() for one in line]
        self._lines.clear()
        self._by_length = [{}]
        self._size = 0
        return gone

    def _take(self, network: str) -> T:
        line = self._lines[network]
        one = line.popleft()
        self._size -= 1
        self._measured(network, len(line) + 1, len(line))
        if not line:
            del self._lines[network]
        return one

    def _measured(self, network: str, before: int, after: int) -> None:
        """Lengths change by one, so finding the longest line costs nothing."""
        if before:
            del self._by_length[before][network]
        if after:
            if after == len(self._by_length):
                self._by_length.append({})
            self._by_length[after][network] = None
        while len(self._by_length) > 1 and not self._by_length[-1]:
            self._by_length.pop()

    def check_invariants(self) -> None:
        """Asserts."""
        assert self._size == sum(map(len, self._lines.values())) <= self._places
        for length, networks in enumerate(self._by_length):
            assert set(networks) == {name for name, line in self._lines.items() if len(line) == length}, (
                length
            )
        assert len(self._by_length) - 1 == max(map(len, self._lines.values()), default=0)
