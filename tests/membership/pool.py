"""A pool of pure cores in virtual time: the network of the membership tests.

Law of this file: every packet and stream is encoded and decoded on its way, so that
what the cores say to each other is what they would say to a stranger. Loss, delay,
duplication, reordering, cuts of single directions, crashes, pauses and clocks that jump;
all from one seed, and fingerprint() is equal for two runs of a seed.
"""

import gc
import hashlib
import heapq
import random
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from shoal.membership.config import GossipConfig, push_pull_interval_ms
from shoal.membership.serf.core import SerfCore
from shoal.membership.serf.own_queries import QueryRequest
from shoal.membership.serf.ready import EventKind, QueryKey, QueryReply, Ready, SerfMember
from shoal.membership.swim.claims import Node
from shoal.membership.swim.ready import (
    Datagram,
    Exchange,
    Exchanged,
    Input,
    KeyringKept,
    OutgoingPacket,
    StreamProbe,
    StreamProbed,
)
from shoal.membership.wire.envelope import Envelope
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import Endpoint, PushPull
from shoal.membership.wire.packets import MAX_PACKET_BYTES, MAX_PARTS, decode_packet, encode_packet
from shoal.membership.wire.streams import StreamDecoder, encode_stream


def endpoint_of(number: int) -> Endpoint:
    """10.0.x.y, one address a node."""
    return Endpoint(bytes((10, 0, number // 256, number % 256)), 7946)


@dataclass(frozen=True)
class Heard:
    """What one node's user was told."""

    at_ms: int
    observer: str
    kind: EventKind
    member: str


MAX_CODED_NODES = 100
"""State exchanges of bigger pools pass as they are: their bytes are the same, only more, and coding them
would be most of the simulation's time."""

BACKLOG_MAX = 256
"""Packets that a standing process finds when it goes on: what a socket's buffer of 208 KiB holds of ours."""


@dataclass
class Process:
    """One life of one node. `backlog` holds what arrived while it was paused or blocked, `held` what it
    wanted to send while it was blocked; its clock is the pool's plus `offset_ms`; `armed_ms` is when, in
    the pool's time, it is going to be woken."""

    name: str
    endpoint: Endpoint
    core: SerfCore
    envelope: Envelope
    alive: bool = True
    paused: bool = False
    blocked: bool = False
    held: list[Callable[[], None]] = field(default_factory=list)
    offset_ms: int = 0
    armed_ms: int | None = None
    backlog: list[Callable[[], None]] = field(default_factory=list)


class Pool:
    """Nodes n0, n1, ... on a simulated network. Times are virtual milliseconds."""

    def __init__(
        self,
        count: int,
        seed: int,
        *,
        loss: float = 0.0,
        stream_loss: float = 0.0,
        duplication: float = 0.0,
        delay_ms: tuple[int, int] = (1, 20),
        profile: Callable[..., GossipConfig] = GossipConfig.local,
        check_every: int = 1,
        trace: Callable[[str], None] | None = None,
        acquainted: bool = False,
        **knobs: object,
    ) -> None:
        """`stream_loss`: the odds that a ping over TCP comes too late (a lost SYN costs a second);
        `trace` gets a line for every packet, stream and change; `acquainted`: everybody knows everybody
        from the beginning and has no news, as in a pool that has been running for long."""
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.loss = loss
        self.stream_loss = stream_loss
        self.duplication = duplication
        self.refused = 0
        self.replies: list[QueryReply] = []
        self.packets = 0
        self.packet_bytes = 0
        self.stream_bytes = 0
        self.lossy: dict[str, tuple[float, float]] = {}
        self._trace = trace
        self._digest = hashlib.sha256()
        self.heard: list[Heard] = []
        self.processes: dict[str, Process] = {}
        self._profile = profile
        self._knobs = knobs
        self._delay_ms = delay_ms
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbered = 0
        self._check_every = check_every
        self._steps = 0
        self._cut: set[tuple[str, str]] = set()
        self._names: dict[Endpoint, str] = {}
        for number in range(count):
            self.start(f"n{number}", endpoint_of(number))
        if acquainted:
            gc.disable()  # a million records are made, and none is garbage
            self._introduce()
            gc.enable()
        for number in range(1, 0 if acquainted else count):
            self.at(self.rng.randrange(1000), lambda name=f"n{number}": self.join(name, "n0"))

    def _introduce(self) -> None:
        """Straight into the tables: through the protocol it takes n * n messages."""
        interval_ms = push_pull_interval_ms(
            self._profile(name="n", **self._knobs).push_pull_interval_ms, len(self.processes)
        )
        nodes = {process.name: process.core.swim.table.local for process in self.processes.values()}
        members = {name: process.core._list.get(name) for name, process in self.processes.items()}
        for process in self.processes.values():
            swim = process.core.swim
            others = [name for name in nodes if name != process.name]
            for name in others:
                node, member = nodes[name], members[name]
                assert member is not None
                swim.table._nodes[name] = Node(
                    name, node.endpoint, node.meta, node.vsn, node.incarnation, node.state, node.changed_ms
                )
                process.core._list._members[name] = SerfMember(
                    name, node.endpoint, member.tags, node.vsn, node.incarnation, member.status, self.now_ms
                )
            swim.table._round = self.rng.sample(others, len(others))
            swim.outbox.own.take(MAX_PACKET_BYTES, 1, MAX_PARTS)  # its own birth is no news
            swim._next_push_pull_ms = self.now_ms + self.rng.randrange(interval_ms)
            self._carry_out(process)
        self.heard.clear()

    # The world

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._numbered += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._numbered, action))

    def run_for(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._events)
            action()
        self.now_ms = end_ms

    def run_until(self, condition: Callable[[], bool], limit_ms: int) -> int:
        """Run until it holds, checking every 50 ms; the time it took. Fails beyond the limit."""
        start_ms = self.now_ms
        while not condition():
            assert self.now_ms - start_ms < limit_ms, f"not within {limit_ms} ms:\n" + self.story()
            self.run_for(50)
        return self.now_ms - start_ms

    def story(self) -> str:
        """Everybody's view and the last that was heard, for a failing test."""
        views = [repr(process.core) for process in self.processes.values() if process.alive]
        return "\n".join([*views, *(str(heard) for heard in self.heard[-30:])])

    def fingerprint(self) -> str:
        """Of everything that was sent and heard, and when."""
        return self._digest.hexdigest()

    def _note(self, *words: object) -> None:
        line = " ".join(map(str, (self.now_ms, *words)))
        self._digest.update(line.encode())
        if self._trace is not None:
            self._trace(line)

    def clock_ms(self, process: Process) -> int:
        """What time that process thinks it is."""
        return self.now_ms + process.offset_ms

    # Processes

    def start(
        self, name: str, endpoint: Endpoint, tags: dict[str, str] | None = None, **knobs: object
    ) -> Process:
        config = self._profile(name=name, tags=tags or {"name": name}, **(self._knobs | knobs))
        rng = random.Random(self.rng.getrandbits(64))
        core = SerfCore(config, endpoint, rng, self.now_ms)
        envelope = Envelope(
            label=config.label,
            keyring=lambda: core.keyring,
            verify_incoming=config.verify_incoming,
            verify_outgoing=config.verify_outgoing,
            random_bytes=rng.randbytes,
        )
        process = Process(name, endpoint, core, envelope)
        self._note("START", name)
        self.processes[name] = process
        self._names[endpoint] = name
        self._carry_out(process)
        return process

    def kill(self, name: str) -> None:
        self._note("KILL", name)
        self.processes[name].alive = False

    def restart(self, name: str, endpoint: Endpoint | None = None, seed: str = "n0") -> None:
        """A new life without any memory, joining through `seed`."""
        self.kill(name)
        self.start(name, endpoint or self.processes[name].endpoint, {"name": name, "life": str(self.now_ms)})
        self.join(name, seed)

    def pause(self, name: str, duration_ms: int) -> None:
        """The process stands still; what arrives waits in its sockets, as far as they hold it."""
        self._note("PAUSE", name, duration_ms)
        process = self.processes[name]
        process.paused = True
        self.at(duration_ms, lambda: self._resume(process))

    def freeze(self, name: str, duration_ms: int) -> None:
        """The whole machine stands still: what arrives is lost, and its clock, which stood, jumps at the
        end."""
        self._note("FREEZE", name, duration_ms)
        process = self.processes[name]
        process.paused = True

        def thaw() -> None:
            process.backlog.clear()
            self._resume(process)

        self.at(duration_ms, thaw)

    def block(self, name: str, duration_ms: int) -> None:
        """The anomaly of the Lifeguard paper (section V.D): timers go on, but nothing is sent, and what is
        received waits."""
        self._note("BLOCK", name, duration_ms)
        process = self.processes[name]
        process.blocked = True
        self.at(duration_ms, lambda: self._unblock(process))

    def _unblock(self, process: Process) -> None:
        process.blocked = False
        held, process.held = process.held, []
        for sending in held:
            sending()
        self._resume(process)

    def jump(self, name: str, by_ms: int) -> None:
        """That process's clock is later from now on; nobody else's is."""
        assert by_ms >= 0, "cores are driven by a monotonic clock"
        self._note("JUMP", name, by_ms)
        process = self.processes[name]
        process.offset_ms += by_ms
        if not process.paused:
            self._wake(process)

    def _resume(self, process: Process) -> None:
        process.paused = False
        backlog, process.backlog = process.backlog, []
        for arrival in backlog:
            arrival()
        self._wake(process)

    def join(self, name: str, seed: str) -> None:
        process = self.processes[name]
        self._exchange(process, Exchange(self.processes[seed].endpoint, join=True), joined=True)

    def ask(self, name: str, request: QueryRequest) -> QueryKey:
        """What comes of it stands in `replies`."""
        process = self.processes[name]
        key = process.core.query(request, self.clock_ms(process))
        self._carry_out(process)
        return key

    def leave(self, name: str) -> None:
        process = self.processes[name]
        self._note("LEAVE", name)
        process.core.leave(self.clock_ms(process))
        self._carry_out(process)

    # The network

    def partition(self, *groups: Collection[str]) -> None:
        """Nothing passes between the groups."""
        self._note("PARTITION", *(sorted(group) for group in groups))
        for group in groups:
            for other in groups:
                if group is not other:
                    self._cut |= {(one, two) for one in group for two in other}

    def cut(self, sender: str, receiver: str) -> None:
        """One direction of one pair."""
        self._note("CUT", sender, receiver)
        self._cut.add((sender, receiver))

    def heal(self) -> None:
        self._note("HEAL")
        self._cut.clear()
        self.lossy.clear()

    def _passes(self, sender: Process, receiver: Process | None) -> bool:
        if receiver is None or not receiver.alive:
            return False
        return (sender.name, receiver.name) not in self._cut

    def _is_lost(self, sender: Process, receiver: Process) -> bool:
        """`lossy`: per node the odds that what it sends, and what is sent to it, is lost."""
        odds = max(
            self.loss, self.lossy.get(sender.name, (0, 0))[0], self.lossy.get(receiver.name, (0, 0))[1]
        )
        return self.rng.random() < odds

    def _receiver(self, endpoint: Endpoint) -> Process | None:
        name = self._names.get(endpoint)
        process = self.processes.get(name) if name is not None else None
        return process if process is not None and process.endpoint == endpoint else None

    def _delay(self) -> int:
        return self.rng.randint(*self._delay_ms)

    def _deliver(self, process: Process, arrival: Callable[[], None]) -> None:
        if not process.alive:
            return
        if not process.paused and not process.blocked:
            arrival()
        elif len(process.backlog) < BACKLOG_MAX:
            process.backlog.append(arrival)

    def _send(self, sender: Process, packet: OutgoingPacket) -> None:
        if sender.blocked:
            if len(sender.held) < BACKLOG_MAX:
                sender.held.append(lambda: self._send(sender, packet))
            return
        data = sender.envelope.wrap_packet(encode_packet(packet.parts, checksum=packet.checksum))
        assert len(data) <= 1500  # the budget of 1400, and what a checksum adds
        self.packets += 1
        self.packet_bytes += len(data)
        receiver = self._receiver(packet.receiver)
        if receiver is None or not self._passes(sender, receiver) or self._is_lost(sender, receiver):
            self._note(sender.name, "-x", packet.receiver, zlib.crc32(data))
            return
        self._note(sender.name, "->", receiver.name, zlib.crc32(data))

        def arrive() -> None:
            try:
                decoded = decode_packet(receiver.envelope.unwrap_packet(data))
            except WireError as fault:
                self._refuse(fault)
                return
            assert not decoded.faults
            self._step(receiver, Datagram(sender.endpoint, decoded.messages))

        for _ in range(1 + (self.rng.random() < self.duplication)):
            self.at(self._delay(), lambda: self._deliver(receiver, arrive))

    def _refuse(self, fault: WireError) -> None:
        """Members may be strangers to one another; what one of them says is never broken."""
        if fault.reason not in ("key", "label"):
            raise fault
        self.refused += 1

    def _exchange(self, process: Process, exchange: Exchange, *, joined: bool = False) -> None:
        """TCP: no loss, but both directions must pass. The responder answers before it merges."""
        peer = None if process.blocked else self._receiver(exchange.endpoint)
        if peer is None or not self._passes(process, peer) or not self._passes(peer, process):
            return
        self._note(process.name, "<=>", peer.name)
        request = self._wrapped(process, exchange.join, opens=True)

        def answer() -> None:
            state = self._unwrapped(peer, request, accepted=True)
            if state is None:
                return
            reply = self._wrapped(peer, exchange.join, opens=False)
            self.at(self._delay(), lambda: self._deliver(process, lambda: merge(reply)))
            self._step(peer, Exchanged(state))

        def merge(reply: bytes | PushPull) -> None:
            state = self._unwrapped(process, reply, accepted=False)
            if state is not None:
                self._step(process, Exchanged(state, joined), joined)

        self.at(self._delay(), lambda: self._deliver(peer, answer))

    def _wrapped(self, process: Process, join: bool, *, opens: bool) -> bytes | PushPull:
        state = process.core.local_state(join=join)
        if len(state.nodes) > MAX_CODED_NODES:
            return state
        data = process.envelope.wrap_stream(encode_stream(state, compressed=False), opens=opens)
        self.stream_bytes += len(data)
        return data

    def _unwrapped(self, process: Process, data: bytes | PushPull, *, accepted: bool) -> PushPull | None:
        """What arrives at a process; None when it is refused."""
        if isinstance(data, PushPull):
            return data
        try:
            state = StreamDecoder(envelope=process.envelope, accepted=accepted).feed(data)
        except WireError as fault:
            self._refuse(fault)
            return None
        assert isinstance(state, PushPull)
        return state

    def _probe_stream(self, process: Process, probe: StreamProbe) -> None:
        peer = self._receiver(probe.endpoint)
        reached = peer is not None and not peer.paused and self._passes(process, peer)
        reached = reached and peer is not None and self._passes(peer, process)
        reached = reached and not process.blocked and not (peer is not None and peer.blocked)
        reached = reached and self.rng.random() >= self.stream_loss
        delay_ms = 2 * self._delay() if reached else probe.timeout_ms
        outcome = StreamProbed(probe.sequence, reached)
        self.at(delay_ms, lambda: self._deliver(process, lambda: self._step(process, outcome)))

    # Driving

    def _step(self, process: Process, event: Input, announce: bool = False) -> None:
        process.core.step(event, self.clock_ms(process))
        if announce:
            process.core.announce_join(self.clock_ms(process))
        self._carry_out(process)

    def _arm(self, process: Process) -> None:
        due_ms = self.now_ms + max(0, process.core.deadline() - self.clock_ms(process))
        if process.armed_ms is None or due_ms < process.armed_ms:
            process.armed_ms = due_ms
            self.at(due_ms - self.now_ms, lambda: self._on_timer(process, due_ms))

    def _on_timer(self, process: Process, due_ms: int) -> None:
        if process.armed_ms == due_ms:
            process.armed_ms = None
            self._wake(process)

    def _wake(self, process: Process) -> None:
        if not process.alive or process.paused:
            return
        if process.core.deadline() <= self.clock_ms(process):
            process.core.wake(self.clock_ms(process))
            self._carry_out(process)
        else:
            self._arm(process)

    def _carry_out(self, process: Process) -> None:
        ready = process.core.ready()
        while ready is not None:
            process.core.advance(ready)
            self._do(process, ready)
            ready = process.core.ready()
        self._steps += 1
        if self._steps % self._check_every == 0:
            process.core.check_invariants()
        if process.core.has_left:
            process.alive = False
            return
        self._arm(process)

    def _do(self, process: Process, ready: Ready) -> None:
        for packet in ready.packets:
            self._send(process, packet)
        for probe in ready.stream_probes:
            self._probe_stream(process, probe)
        for exchange in ready.exchanges:
            self._exchange(process, exchange)
        if ready.keyring is not None:
            self.at(self._delay(), lambda: self._deliver(process, lambda: self._step(process, KeyringKept())))
        self.replies += ready.replies
        for event in ready.events:
            self._note(process.name, "HEARS", event.kind.value, event.member.name)
            self.heard.append(Heard(self.now_ms, process.name, event.kind, event.member.name))

    # Questions

    def alive(self) -> list[Process]:
        return [process for process in self.processes.values() if process.alive]

    def view(self, observer: str) -> dict[str, str]:
        return {member.name: member.shown_status for member in self.processes[observer].core.members()}

    def all_show(self, expected: dict[str, str]) -> bool:
        """Every living node shows exactly this list."""
        return all(self.view(process.name) == expected for process in self.alive())

    def count(self, *kinds: EventKind) -> int:
        return sum(1 for heard in self.heard if heard.kind in kinds)
