"""One peer as the links know it, and the times by which links live.

Law of this file: values and plain state. links.py and dialler.py change them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.schema import about
from shoal.agent.peers.connection import PeerConnection
from shoal.agent.peers.frames import LinkKind

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """Milliseconds.

    heartbeat_interval_ms: a liveness frame to every connected peer each interval. silence_after_ms: a peer
    unheard for so long is reported silent; below an election timeout's mean. silence_after_loss_ms: the same
    when its control connection has broken, which a killed process does at once. give_up_after_ms, and never
    before twice silence_after_ms: a connection on which nothing was heard for so long is made anew, since TCP
    repeats what an outage swallowed more and more slowly, after a minute of it not for another.
    connect_timeout_ms: for TCP's handshake, which likewise is better begun anew. redial_min_ms,
    redial_max_ms: doubling between, with jitter; a peer that restarts is back within a second.
    redial_stranger_max_ms: the same for a peer never met, which may not exist. redial_failed_max_ms: the
    longest pause for a member that gossip has given up, which may have another id by now.
    """

    heartbeat_interval_ms: int = 100
    silence_after_ms: int = 600
    silence_after_loss_ms: int = 200
    give_up_after_ms: int = 2_000
    connect_timeout_ms: int = 1_000
    greeting_timeout_ms: int = 3_000
    redial_min_ms: int = 50
    redial_max_ms: int = 1_000
    redial_stranger_max_ms: int = 5_000
    redial_failed_max_ms: int = 60_000

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_interval_ms < self.silence_after_loss_ms <= self.silence_after_ms:
            raise ValueError("silence lasts longer than a heartbeat interval")
        if not 0 < self.redial_min_ms <= self.redial_max_ms:
            raise ValueError("redial_min_ms is above 0 and not above redial_max_ms")


@dataclass(slots=True)
class LinkedPeer:
    """The state of one agent's links. `leaving`: connections that others have replaced, on which the peer may
    have sent something before it knew. `silent` from the report until it is heard again. `lives` is set
    unless gossip has given it up. `address`: where gossip says that it is; its URL may hold a name."""

    agent_id: str
    heard_ms: int
    url: str
    address: str | None
    dialled: bool = False
    met: bool = False
    boot_nonce: bytes = b""
    silent: bool = False
    lost_ms: int | None = None
    lives: asyncio.Event = field(default_factory=asyncio.Event)
    connections: dict[LinkKind, PeerConnection] = field(default_factory=dict)
    leaving: set[PeerConnection] = field(default_factory=set)
    dialling: dict[LinkKind, asyncio.Task[None]] = field(default_factory=dict)
    requests: dict[int, asyncio.Future[bytes]] = field(default_factory=dict)
    answering: int = 0
    last_complaint: str = ""

    def all_connections(self) -> list[PeerConnection]:
        """Those that are leaving, too."""
        return [*self.connections.values(), *self.leaving]

    def statistics(self, now_ms: int) -> PeerStatistics:
        """As it is now."""
        return PeerStatistics(
            self.agent_id,
            LinkKind.CONTROL in self.connections,
            LinkKind.BULK in self.connections,
            self.silent,
            now_ms - self.heard_ms,
        )

    def heard(self, now_ms: int) -> None:
        """Something came over its control connection."""
        self.heard_ms, self.silent, self.lost_ms = now_ms, False, None

    def complain(self, reason: str) -> None:
        """Once per reason: a peer that is down is dialled every second."""
        if self.last_complaint != reason:
            self.last_complaint = reason
            name = agent_name(self.agent_id)
            facts = about("link-failed", members=(name,), total=1)
            logger.warning("the link to %s: %s", name, reason, extra=facts)


class PeerStatistics(NamedTuple):
    """One peer, for the status page."""

    agent_id: str
    control: bool
    bulk: bool
    silent: bool
    unheard_ms: int
