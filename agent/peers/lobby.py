"""Connections that were accepted and are not open yet: bounded, and strangers make way for strangers only.

Law of this file: who waits for its greeting and how many may; whose greeting holds is links.py's business. A
peer greets as soon as it may, so that of too many the one that waits longest makes way. An agent that greets
before gossip has told of it waits among the strangers. It is let in when gossip tells, or refused in time.
"""

from __future__ import annotations

from shoal.agent.peers.connection import PeerConnection
from shoal.agent.peers.frames import Hello

MAX_WAITING_CONNECTIONS = 64
"""Accepted from where a peer lives; a port scan must not fill the table of descriptors."""
MAX_WAITING_STRANGERS = 16
"""Accepted from elsewhere, or greeted by whom gossip does not know there yet."""


class Lobby:
    """One per agent."""

    def __init__(self) -> None:
        self._greeting: dict[PeerConnection, None] = {}  # the one that waits longest comes first
        self._strangers: dict[PeerConnection, Hello | None] = {}

    def all(self) -> list[PeerConnection]:
        """Everybody who waits."""
        return [*self._greeting, *self._strangers]

    def admit(self, connection: PeerConnection, *, from_a_peers_address: bool) -> None:
        """It waits for its greeting from now on."""
        if not from_a_peers_address:
            self.let_wait(connection, None)
            return
        if len(self._greeting) >= MAX_WAITING_CONNECTIONS:
            self._give_way(next(iter(self._greeting)))
        self._greeting[connection] = None

    def let_wait(self, connection: PeerConnection, hello: Hello | None) -> None:
        """It is a stranger's, who perhaps has said who it is."""
        self.leave(connection)
        if len(self._strangers) >= MAX_WAITING_STRANGERS:
            self._give_way(next(iter(self._strangers)))
        self._strangers[connection] = hello

    def leave(self, connection: PeerConnection) -> None:
        """It is open, or closed; one that does not wait is no matter."""
        self._greeting.pop(connection, None)
        self._strangers.pop(connection, None)

    def said(self, connection: PeerConnection) -> Hello | None:
        """A stranger's greeting."""
        return self._strangers.get(connection)

    def greeted(self) -> list[tuple[PeerConnection, Hello]]:
        """Strangers who have said who they are."""
        return [(connection, hello) for connection, hello in self._strangers.items() if hello is not None]

    def _give_way(self, connection: PeerConnection) -> None:
        self.leave(connection)
        connection.refuse("others wait to greet")
