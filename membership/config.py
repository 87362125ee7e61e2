"""The knobs of gossip, each with its formula and what moving it does.

Law of this file: frozen values and their checks. The profiles are memberlist's, so that a pool with
real Serf agents agrees on its timing; local() differs from memberlist's in two lines, said there.
"""

import dataclasses
import ipaddress
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from shoal.membership.wire.keyring import Keyring
from shoal.membership.wire.messages import MAX_NAME_BYTES
from shoal.membership.wire.sealing import MAX_LABEL_BYTES, OVERHEAD_BYTES
from shoal.membership.wire.serf import encode_tags


@dataclass(frozen=True, slots=True)
class GossipConfig:
    """One node's gossip. Times are milliseconds."""

    name: str
    bind_address: str = "127.0.0.1"
    bind_port: int = 0
    """UDP and TCP alike; 0 takes any port that is free for both."""
    advertise_address: str = ""
    """What others are told to dial; empty means bind_address, or the host's outward
    address if that is a wildcard."""
    tags: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    """Stands before every packet and stream; who has another one is refused. Serf agents know no labels."""
    keyring: Keyring | None = None
    """With keys everything is sealed. A pool's keys may change while it runs, whether it has any may not."""
    verify_incoming: bool = True
    """False accepts plain text beside sealed messages, while a pool changes over to keys."""
    verify_outgoing: bool = True
    """False sends plain text in spite of the keys, while a pool changes over to them."""

    probe_interval_ms: int = 1000
    """One member is probed per interval. Lower finds failures sooner and costs 2
    packets per interval and member."""
    probe_timeout_ms: int = 500
    """Wait for a direct ack before asking others; about the 99th percentile of the round trip."""
    indirect_checks: int = 3
    """Members asked to probe for us. More survive partial partitions, and cost as many
    packets per failed probe."""
    suspicion_mult: int = 4
    """Suspicion lasts at least mult * max(1, log10 n) * probe interval. Lower detects
    sooner and accuses falsely more often."""
    suspicion_max_mult: int = 6
    """An unconfirmed suspicion lasts this many times the minimum."""
    awareness_max: int = 8
    """Local health stretches probe deadlines at most this many times."""
    gossip_interval_ms: int = 200
    """Queued news leave once per interval. Lower spreads faster."""
    gossip_nodes: int = 3
    """Members told per interval. Rounds until all know: about ln(n) / ln(nodes + 1), plus some."""
    retransmit_mult: int = 4
    """A message is told mult * ceil(log10(n + 1)) times. Higher survives more loss."""
    gossip_to_dead_ms: int = 30_000
    """The dead still get gossip so long, so that a wrongly buried one hears of it; then
    they are forgotten."""
    dead_reclaim_ms: int = 1
    """A dead name may come back under another address after this. Serf's agent has it
    off (a name waits for being forgotten); our names are random ids that nobody else
    takes, so a restarted agent with a new port is welcome at once."""
    push_pull_interval_ms: int = 30_000
    """Full state exchange with one random member; times ceil(log2 n - 5) + 1 above 32
    members. Heals what gossip lost."""
    stream_timeout_ms: int = 10_000
    """One TCP exchange, from connect to the last byte."""
    reconnect_interval_ms: int = 30_000
    """Each time, with odds failed/alive, one failed member is dialled: this is what
    heals a partition longer than gossip_to_dead_ms."""
    reap_interval_ms: int = 15_000
    reconnect_timeout_ms: int = 24 * 3600 * 1000
    """A failed member is kept in the list so long."""
    tombstone_timeout_ms: int = 24 * 3600 * 1000
    """A member that left is kept in the list so long."""
    recent_intent_timeout_ms: int = 5 * 60 * 1000
    """An intent about a member not yet known is kept so long."""
    broadcast_timeout_ms: int = 5_000
    """A leave waits at most so long for its message to have been told."""
    leave_propagate_ms: int = 1_000
    """After the last word of a leave we still answer so long, so that nobody takes us for dead."""

    packet_bytes: int = 1400
    """Budget of one UDP packet: below the usual path MTU, for a fragment lost is all lost."""
    max_members: int = 4096
    """Names remembered at most: a flood of invented members must not grow memory."""

    @classmethod
    def lan(cls, **values: Any) -> Self:
        """Memberlist's LAN profile: a kill is seen after about 6 s."""
        return cls(**values)

    @classmethod
    def local(cls, **values: Any) -> Self:
        """Memberlist's local profile for agents of one host, with two lines of our own.

        Probing every 700 ms instead of 1 s: among three agents a kill is declared after 3.4 s in the
        median and 4.9 s at worst (a round reshuffled against us, 2.1 s, the probe 0.7 s, the suspicion
        2.1 s). And news is told four times instead of twice: with two, one round of gossip to three
        members (one of them perhaps the dead one) uses a message up, and in a pool of four or five some
        member regularly heard of a death or a join only by the next push/pull.
        """
        profile: dict[str, Any] = {
            "probe_interval_ms": 700,
            "probe_timeout_ms": 200,
            "indirect_checks": 1,
            "suspicion_mult": 3,
            "gossip_interval_ms": 100,
            "gossip_to_dead_ms": 15_000,
            "push_pull_interval_ms": 15_000,
            "stream_timeout_ms": 1_000,
            "reconnect_interval_ms": 5_000,
        }
        return cls(**(profile | values))

    def __post_init__(self) -> None:
        if not self.name or len(self.name.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"a gossip name has 1 to {MAX_NAME_BYTES} bytes: {self.name!r}")
        bound = ipaddress.ip_address(self.bind_address)
        if bound.version == 6 and bound.is_unspecified and not self.advertise_address:
            raise ValueError("a gossip bound to :: needs an address to advertise")
        if self.advertise_address and ipaddress.ip_address(self.advertise_address).is_unspecified:
            raise ValueError("the advertised address must be one that others can dial")
        if not 0 <= self.bind_port <= 65_535:
            raise ValueError(f"port {self.bind_port} is out of range")
        if not 0 < self.probe_timeout_ms < self.probe_interval_ms:
            raise ValueError("the probe timeout must be shorter than the probe interval")
        if not 512 <= self.packet_bytes <= 65_000:
            raise ValueError(f"packets of {self.packet_bytes} bytes")
        if len(self.label.encode()) > MAX_LABEL_BYTES:
            raise ValueError(f"a gossip label has at most {MAX_LABEL_BYTES} bytes: {self.label!r}")
        encode_tags(self.tags)

    @property
    def content_bytes(self) -> int:
        """What a packet holds beside its label and seal."""
        label_bytes = 2 + len(self.label.encode()) if self.label else 0
        return self.packet_bytes - label_bytes - (0 if self.keyring is None else OVERHEAD_BYTES)

    def with_tags(self, tags: Mapping[str, str]) -> Self:
        """The same node with other tags. Raises ValueError when they are too long."""
        return dataclasses.replace(self, tags=dict(tags))


def push_pull_interval_ms(interval_ms: int, members: int) -> int:
    """Stretched for big pools: above 32 members times ceil(log2 n - 5) + 1."""
    if members <= 32:
        return interval_ms
    return interval_ms * (math.ceil(math.log2(members) - 5) + 1)
