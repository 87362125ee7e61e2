"""An agent's connections: clients', other agents', links. Clients cannot take what agents need.

Law of this file: pure; front.py brings addresses and heads. Links between agents, and requests of agents,
have places of their own. So a connection from a member's address is not refused before its head is read, even
when all the clients' places are taken. Links are counted by agent/peers/links.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, Protocol

from shoal.agent.http.admission.limits import HEAD_BYTES_MAX, HEAD_END, HttpLimits

_LINK: Final = b"GET /v1/peer HTTP/1.1\r\n"
_INTRODUCTION: Final = b"GET /v1/agent HTTP/1.1\r\n"  # what an agent asks that does not know its cluster yet
_FORWARDED: Final = re.compile(rb"\r\nshoal-forwarded-by:", re.IGNORECASE)


class Place(Enum):
    """The owner of a connection's place."""

    CLIENT = auto()
    AGENT = auto()
    LINK = auto()
    UNREAD = auto()


class Holder(Protocol):
    """A connection, as its place sees it."""

    def refuse(self) -> None:
        """Say that there is no place for it, and close."""


class Places:
    """One per server. `knows_address`: whether a member of the pool lives at this address."""

    __slots__ = ("_held", "_knows_address", "_limits", "_taken", "_unread", "refused_total")

    def __init__(self, limits: HttpLimits, knows_address: Callable[[str], bool]) -> None:
        self._limits = limits
        self._knows_address = knows_address
        self._held: dict[object, Place] = {}
        self._taken = dict.fromkeys(Place, 0)
        self._unread: dict[Any, None] = {}  # the one that waits longest comes first
        self.refused_total = 0

    def taken(self, place: Place) -> int:
        """How many have such a place."""
        return self._taken[place]

    def of(self, holder: object) -> Place | None:
        """The place that this connection has."""
        return self._held.get(holder)

    def enter(self, holder: Holder, address: str | None) -> Place | None:
        """The place of a new connection; None: it has to be refused. UNREAD: `settle` says more."""
        if self._taken[Place.CLIENT] < self._limits.connections:
            return self._put(holder, Place.CLIENT)
        if address is None or not self._knows_address(address):
            self.refused_total += 1
            return None
        if len(self._unread) >= self._limits.unread_connections:
            # An agent sends its head at once: the connection that has waited longest is none.
            next(iter(self._unread)).refuse()
        self._unread[holder] = None
        return self._put(holder, Place.UNREAD)

    def settle(self, holder: Holder, wanted: Place) -> bool:
        """An unread connection's head has come; False: it has to be refused."""
        self.leave(holder)
        if wanted is Place.AGENT and self._taken[Place.AGENT] >= self._limits.agent_connections:
            wanted = Place.CLIENT
        if wanted is Place.CLIENT and self._taken[Place.CLIENT] >= self._limits.connections:
            self.refused_total += 1
            return False
        self._put(holder, wanted)
        return True

    def become_link(self, holder: object) -> None:
        """Another agent's: it keeps no client away, and no client it. The links count it now."""
        self.leave(holder)
        self._put(holder, Place.LINK)

    def leave(self, holder: object) -> None:
        """A connection has ended; one without a place is no matter."""
        place = self._held.pop(holder, None)
        if place is not None:
            self._taken[place] -= 1
            self._unread.pop(holder, None)

    def _put(self, holder: object, place: Place) -> Place:
        assert holder not in self._held
        self._held[holder] = place
        self._taken[place] += 1
        return place


def wanted_place(head: bytes | bytearray) -> Place | None:
    """The place that a connection wants, by its first bytes; None while its head is incomplete."""
    end = head.find(HEAD_END, 0, HEAD_BYTES_MAX)
    if end < 0:
        return Place.CLIENT if len(head) >= HEAD_BYTES_MAX else None
    if head.startswith(_LINK):
        return Place.LINK
    if head.startswith(_INTRODUCTION) or _FORWARDED.search(head, 0, end + 2):
        return Place.AGENT
    return Place.CLIENT
