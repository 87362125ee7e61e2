"""SWIM's failure detector: one probe at a time, and the probes made for others.

Law of this file: who is asked, by when an answer counts, and what silence means. It
reports suspects; what becomes of them is core.py's business.

A probe of X: ping; without an ack in time, ask others to ping X (same sequence number, so that any late
ack counts) and ping X over TCP; nothing by the stretched interval means suspect. Helpers that fail as
well say so with a nack: silence of the helpers points at our own network (Lifeguard, section IV.A).
"""

import random
from dataclasses import dataclass
from enum import Enum, auto

from shoal.membership.config import GossipConfig
from shoal.membership.swim.claims import Node, NodeTable
from shoal.membership.swim.piggyback import Outbox
from shoal.membership.swim.ready import StreamProbe
from shoal.membership.wire.messages import (
    Ack,
    Dead,
    Endpoint,
    IndirectPing,
    Message,
    Nack,
    Ping,
    State,
    Suspect,
    is_ipv4,
)

MAX_RELAYS = 512
"""Probes made for others at a time: a healthy pool asks for a few, a hostile one is not served beyond it."""

LATE_FRACTION = 4
"""A wake-up later than this part of the probe timeout (LAN: 125 ms) is a stall of this process: a timer of a
busy loop is late by some ten milliseconds, and answers are worth waiting for again."""

_SEQUENCES = 1 << 32


class Awareness:
    """Lifeguard's local health: how far this node should distrust its own timing, from 0 to maximum - 1.

    The score rises when probes fail without even a nack, and when others had to be refuted: both hint that we
    are the slow one. It falls with each success, and timeouts scale with it.
    """

    __slots__ = ("_maximum", "score")

    def __init__(self, maximum: int) -> None:
        assert maximum >= 1
        self._maximum = maximum
        self.score = 0

    def apply(self, delta: int) -> None:
        """Move the score by delta, within its bounds."""
        self.score = min(max(0, self.score + delta), self._maximum - 1)

    def scale(self, interval_ms: int) -> int:
        """The interval stretched by the score."""
        return interval_ms * (self.score + 1)


def probe_failure_delta(expected_nacks: int, received_nacks: int) -> int:
    """What a failed probe says about us: helpers that stayed silent, too, count against our own network."""
    if expected_nacks > 0:
        return max(0, expected_nacks - received_nacks)
    return 1


class Stage(Enum):
    DIRECT = auto()
    INDIRECT = auto()


@dataclass(slots=True)
class Probe:
    """The probe under way. `until_ms` grows with our own bad health, `direct_until_ms` does not.
    `is_excused`: it got more time once because this process stood still."""

    sequence: int
    node: Node
    stage: Stage
    direct_until_ms: int
    until_ms: int
    expected_nacks: int = 0
    received_nacks: int = 0
    is_excused: bool = False


@dataclass(slots=True)
class Relay:
    """A ping sent for somebody else."""

    requester: Endpoint
    sequence: int
    wants_nack: bool
    until_ms: int


def reply_address(came_from: Endpoint, named: Endpoint | None) -> Endpoint:
    """Where an answer goes: to the address that the question names, unless that is of another family than the
    packet: a Serf agent bound to 0.0.0.0 may advertise an IPv6 address, which no IPv4 socket reaches."""
    if named is None or is_ipv4(named.address) != is_ipv4(came_from.address):
        return came_from
    return named


class Prober:
    """Drives probes. wake() returns the nodes that gave no sign of life."""

    def __init__(
        self,
        config: GossipConfig,
        table: NodeTable,
        outbox: Outbox,
        awareness: Awareness,
        rng: random.Random,
        now_ms: int,
    ) -> None:
        self._config = config
        self._table = table
        self._outbox = outbox
        self._awareness = awareness
        self._rng = rng
        self._sequence = rng.getrandbits(31)  # a restarted node must not take acks of its former life
        self._probe: Probe | None = None
        self._relays: dict[int, Relay] = {}
        self._next_probe_ms = now_ms + rng.randrange(config.probe_interval_ms)
        self.stream_probes: list[StreamProbe] = []
        self.probes = 0
        self.failures = 0

    def deadline(self) -> int:
        """When wake() has something to do."""
        deadlines = [relay.until_ms for relay in self._relays.values()]
        probe = self._probe
        if probe is None:
            deadlines.append(self._next_probe_ms)
        else:
            deadlines.append(probe.direct_until_ms if probe.stage == Stage.DIRECT else probe.until_ms)
        return min(deadlines)

    def wake(self, now_ms: int) -> Node | None:
        """Let time pass: give up relays, go on with the probe or start the next;
        returns a node to suspect."""
        for sequence in [number for number, relay in self._relays.items() if now_ms >= relay.until_ms]:
            relay = self._relays.pop(sequence)
            if relay.wants_nack:
                self._outbox.send(relay.requester, Nack(relay.sequence))
        suspect = self._continue_probe(now_ms)
        if self._probe is None and now_ms >= self._next_probe_ms:
            self._next_probe_ms = now_ms + self._config.probe_interval_ms
            self._start_probe(now_ms)
        return suspect

    def _start_probe(self, now_ms: int) -> None:
        horizon_ms = now_ms - self._config.gossip_to_dead_ms
        node = self._table.probe_target(self._rng, lambda node: node.gone and node.changed_ms <= horizon_ms)
        if node is None:
            return
        self.probes += 1
        interval_ms = self._awareness.scale(self._config.probe_interval_ms)
        sequence = self._next_sequence()
        direct_until_ms = now_ms + self._config.probe_timeout_ms
        self._probe = Probe(sequence, node, Stage.DIRECT, direct_until_ms, now_ms + interval_ms)
        local = self._table.local
        ping = Ping(sequence, node.name, local.endpoint, local.name)
        if node.state == State.SUSPECT:  # tell it, so that it can refute at once
            suspicion = Suspect(node.incarnation, node.name, local.name)
            self._outbox.send(node.endpoint, ping, suspicion, counted=False)
        else:
            self._outbox.send(node.endpoint, ping)

    def _next_sequence(self) -> int:
        self._sequence = (self._sequence + 1) % _SEQUENCES
        return self._sequence

    def _continue_probe(self, now_ms: int) -> Node | None:
        probe = self._probe
        if probe is None:
            return None
        if probe.stage == Stage.DIRECT and now_ms >= probe.direct_until_ms:
            probe.until_ms += now_ms - probe.direct_until_ms  # however late we ask, who is asked has its time
            self._ask_others(probe, now_ms)
        if now_ms < probe.until_ms or self._is_excused_for_now(probe, now_ms):
            return None
        self._probe = None
        self.failures += 1
        self._awareness.apply(probe_failure_delta(probe.expected_nacks, probe.received_nacks))
        return probe.node

    def _is_excused_for_now(self, probe: Probe, now_ms: int) -> bool:
        """We stood still while the answers should have come: those that need turns of this process, such as
        a ping over TCP, are waited for once more, no longer than a direct one is."""
        late_ms, timeout_ms = now_ms - probe.until_ms, self._config.probe_timeout_ms
        if probe.is_excused or late_ms * LATE_FRACTION < timeout_ms:
            return False
        probe.is_excused = True
        probe.until_ms = now_ms + min(late_ms, timeout_ms)
        return True

    def _ask_others(self, probe: Probe, now_ms: int) -> None:
        probe.stage = Stage.INDIRECT
        node, local = probe.node, self._table.local
        helpers = self._table.sample(
            self._rng,
            self._config.indirect_checks,
            lambda other: other.state == State.ALIVE and other is not node,
        )
        for helper in helpers:
            nack = helper.protocol_max >= 4
            probe.expected_nacks += nack
            request = IndirectPing(probe.sequence, node.endpoint, node.name, nack, local.endpoint, local.name)
            self._outbox.send(helper.endpoint, request)
        if node.protocol_max >= 3:
            timeout_ms = max(1, probe.until_ms - now_ms)
            self.stream_probes.append(StreamProbe(probe.sequence, node.name, node.endpoint, timeout_ms))

    def on_ping(self, source: Endpoint, ping: Ping) -> None:
        """Answer, unless it is meant for another node that had our address before."""
        if ping.node in ("", self._table.local.name):
            self._outbox.send(reply_address(source, ping.source), Ack(ping.sequence), *self._accusation(ping))

    def _accusation(self, ping: Ping) -> tuple[Message, ...]:
        """What is believed of a node that pings us, if it is wrong: it lives, and should hear that it must
        refute. After a cut of one direction nobody else would tell it before the next exchange of state."""
        node = self._table.get(ping.source_node)
        if node is None or node is self._table.local or node.endpoint != ping.source:
            return ()
        if node.state == State.SUSPECT:
            return (Suspect(node.incarnation, node.name, self._table.local.name),)
        if node.state == State.DEAD:
            return (Dead(node.incarnation, node.name, self._table.local.name),)
        return ()

    def on_indirect_ping(self, source: Endpoint, request: IndirectPing, now_ms: int) -> None:
        if len(self._relays) >= MAX_RELAYS:
            return
        local = self._table.local
        sequence = self._next_sequence()
        until_ms = now_ms + self._config.probe_timeout_ms
        requester = reply_address(source, request.source)
        self._relays[sequence] = Relay(requester, request.sequence, request.nack, until_ms)
        self._outbox.send(request.target, Ping(sequence, request.node, local.endpoint, local.name))

    def on_ack(self, ack: Ack) -> None:
        """An ack for our probe, direct or relayed, or for one made on another's behalf."""
        relay = self._relays.pop(ack.sequence, None)
        if relay is not None:
            self._outbox.send(relay.requester, Ack(relay.sequence))
        elif self._probe is not None and self._probe.sequence == ack.sequence:
            self._succeed()

    def on_nack(self, nack: Nack) -> None:
        probe = self._probe
        if probe is not None and probe.sequence == nack.sequence:
            probe.received_nacks = min(probe.expected_nacks, probe.received_nacks + 1)

    def ask_for_ourselves(self, endpoint: Endpoint) -> int:
        """Ping our own name over TCP where it was once; the ping's number."""
        sequence = self._next_sequence()
        name, timeout_ms = self._table.local.name, self._config.probe_timeout_ms
        self.stream_probes.append(StreamProbe(sequence, name, endpoint, timeout_ms))
        return sequence

    def on_stream_probed(self, sequence: int, reached: bool) -> None:
        if reached and self._probe is not None and self._probe.sequence == sequence:
            self._succeed()

    def abandon(self) -> None:
        """Forget the probe under way without a verdict."""
        self._probe = None

    def _succeed(self) -> None:
        assert self._probe is not None
        self._probe.node.answered = True
        self._probe = None
        self._awareness.apply(-1)

    def check_invariants(self) -> None:
        assert len(self._relays) <= MAX_RELAYS
        if self._probe is not None:
            assert self._probe.direct_until_ms <= self._probe.until_ms
            assert self._probe.received_nacks <= self._probe.expected_nacks
