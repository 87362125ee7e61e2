"""A pool of pure cores in virtual time: the network of the membership tests.

Law of this file: every packet and stream is encoded and decoded on its way, so that
what the cores say to each other is what they would say to a stranger. Loss, delay,
partitions, crashes, pauses; all from one seed.
"""

import heapq
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from shoal.membership.asking import QueryRequest
from shoal.membership.config import GossipConfig
from shoal.membership.envelope import Envelope
from shoal.membership.ready import (
    Datagram,
    EventKind,
    Exchange,
    Exchanged,
    Input,
    KeyringKept,
    OutgoingPacket,
    QueryKey,
    QueryReply,
    Ready,
    StreamProbe,
    StreamProbed,
)
from shoal.membership.serf import SerfCore
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import Endpoint, PushPull
from shoal.membership.wire.packets import decode_packet, encode_packet
from shoal.membership.wire.streams import encode_stream
from shoal.membership.wrapped_streams import WrappedStreamDecoder


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


@dataclass
class Process:
    """One life of one node. `paused` holds what arrived meanwhile."""

    name: str
    endpoint: Endpoint
    core: SerfCore
    envelope: Envelope
    alive: bool = True
    paused: bool = False
    backlog: list[Callable[[], None]] = field(default_factory=list)


class Pool:
    """Nodes n0, n1, ... on a simulated network. Times are virtual milliseconds."""

    def __init__(
        self,
        count: int,
        seed: int,
        *,
        loss: float = 0.0,
        duplication: float = 0.0,
        delay_ms: tuple[int, int] = (1, 20),
        profile: Callable[..., GossipConfig] = GossipConfig.local,
        check_every: int = 1,
        **knobs: object,
    ) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.loss = loss
        self.duplication = duplication
        self.refused = 0
        self.replies: list[QueryReply] = []
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
        for number in range(1, count):
            self.at(self.rng.randrange(1000), lambda name=f"n{number}": self.join(name, "n0"))

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
        self.processes[name] = process
        self._names[endpoint] = name
        self._carry_out(process)
        return process

    def kill(self, name: str) -> None:
        self.processes[name].alive = False

    def restart(self, name: str, endpoint: Endpoint | None = None, seed: str = "n0") -> None:
        """A new life without any memory, joining through `seed`."""
        self.kill(name)
        self.start(name, endpoint or self.processes[name].endpoint, {"name": name, "life": str(self.now_ms)})
        self.join(name, seed)

    def pause(self, name: str, duration_ms: int) -> None:
        """The process stands still; what arrives waits in its sockets."""
        process = self.processes[name]
        process.paused = True
        self.at(duration_ms, lambda: self._resume(process))

    def _resume(self, process: Process) -> None:
        process.paused = False
        for arrival in process.backlog:
            arrival()
        process.backlog.clear()
        self._wake(process)

    def join(self, name: str, seed: str) -> None:
        process = self.processes[name]
        self._exchange(process, Exchange(self.processes[seed].endpoint, join=True), joined=True)

    def ask(self, name: str, request: QueryRequest) -> QueryKey:
        """What comes of it stands in `replies`."""
        process = self.processes[name]
        key = process.core.query(request, self.now_ms)
        self._carry_out(process)
        return key

    def leave(self, name: str) -> None:
        process = self.processes[name]
        process.core.leave(self.now_ms)
        self._carry_out(process)

    # The network

    def partition(self, *groups: Collection[str]) -> None:
        """Nothing passes between the groups."""
        for group in groups:
            for other in groups:
                if group is not other:
                    self._cut |= {(one, two) for one in group for two in other}

    def cut(self, sender: str, receiver: str) -> None:
        """One direction of one pair."""
        self._cut.add((sender, receiver))

    def heal(self) -> None:
        self._cut.clear()

    def _passes(self, sender: Process, receiver: Process | None) -> bool:
        if receiver is None or not receiver.alive:
            return False
        return (sender.name, receiver.name) not in self._cut

    def _receiver(self, endpoint: Endpoint) -> Process | None:
        name = self._names.get(endpoint)
        process = self.processes.get(name) if name is not None else None
        return process if process is not None and process.endpoint == endpoint else None

    def _delay(self) -> int:
        return self.rng.randint(*self._delay_ms)

    def _deliver(self, process: Process, arrival: Callable[[], None]) -> None:
        if not process.alive:
            return
        if process.paused:
            process.backlog.append(arrival)
        else:
            arrival()

    def _send(self, sender: Process, packet: OutgoingPacket) -> None:
        data = sender.envelope.wrap_packet(
            encode_packet(packet.parts, checksum=packet.checksum), packet.receiver
        )
        assert len(data) <= 1500  # the budget of 1400, and what checksums and old seals add
        receiver = self._receiver(packet.receiver)
        if receiver is None or not self._passes(sender, receiver) or self.rng.random() < self.loss:
            return

        def arrive() -> None:
            try:
                decoded = decode_packet(receiver.envelope.unwrap_packet(data, sender.endpoint))
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
        peer = self._receiver(exchange.endpoint)
        if peer is None or not self._passes(process, peer) or not self._passes(peer, process):
            return
        request = self._wrapped(process, exchange.join, opens=True)

        def answer() -> None:
            state = self._unwrapped(peer, request, accepted=True)
            if state is None:
                return
            reply = self._wrapped(peer, exchange.join, opens=False)
            self.at(self._delay(), lambda: self._deliver(process, lambda: merge(reply)))
            self._step(peer, Exchanged(state))

        def merge(reply: bytes) -> None:
            state = self._unwrapped(process, reply, accepted=False)
            if state is not None:
                self._step(process, Exchanged(state, joined), joined)

        self.at(self._delay(), lambda: self._deliver(peer, answer))

    @staticmethod
    def _wrapped(process: Process, join: bool, *, opens: bool) -> bytes:
        data = encode_stream(process.core.local_state(join=join), compressed=False)
        return process.envelope.wrap_stream(data, opens=opens)

    def _unwrapped(self, process: Process, data: bytes, *, accepted: bool) -> PushPull | None:
        """What arrives at a process; None when it is refused."""
        try:
            state = WrappedStreamDecoder(process.envelope, accepted=accepted).feed(data)
        except WireError as fault:
            self._refuse(fault)
            return None
        assert isinstance(state, PushPull)
        return state

    def _probe_stream(self, process: Process, probe: StreamProbe) -> None:
        peer = self._receiver(probe.endpoint)
        reached = peer is not None and not peer.paused and self._passes(process, peer)
        reached = reached and peer is not None and self._passes(peer, process)
        delay_ms = 2 * self._delay() if reached else probe.timeout_ms
        outcome = StreamProbed(probe.sequence, reached)
        self.at(delay_ms, lambda: self._deliver(process, lambda: self._step(process, outcome)))

    # Driving

    def _step(self, process: Process, event: Input, announce: bool = False) -> None:
        process.core.step(event, self.now_ms)
        if announce:
            process.core.announce_join(self.now_ms)
        self._carry_out(process)

    def _wake(self, process: Process) -> None:
        if not process.alive or process.paused or self.processes[process.name] is not process:
            return
        if process.core.deadline() <= self.now_ms:
            process.core.wake(self.now_ms)
            self._carry_out(process)

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
        self.at(max(0, process.core.deadline() - self.now_ms), lambda: self._wake(process))

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
