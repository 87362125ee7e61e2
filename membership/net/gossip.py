"""The asyncio shell around SerfCore: one UDP socket, one TCP listener on the same port, one timer.

Law of this file: it moves bytes and time, and decides nothing about members. Everything
is bounded: datagrams a turn, streams at a time, bytes and seconds of a stream.

Before deadlines are evaluated the socket is emptied: an ack that waits in the kernel
while the process was paused must not count as missing.
"""

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.membership.config import GossipConfig
from shoal.membership.interface import (
    JoinError,
    KeyChange,
    Member,
    MemberEvent,
    PoolEvent,
    PoolQuery,
    QueryError,
)
from shoal.membership.net.rejected_senders import Offenders
from shoal.membership.net.stream_tasks import StreamTasks
from shoal.membership.net.streams import StreamFault, open_listener, system_lookup
from shoal.membership.serf.core import SerfCore
from shoal.membership.serf.keys import LIST_QUERY, KeyReport, report
from shoal.membership.serf.own_queries import QueryRequest
from shoal.membership.serf.queries import INTERNAL_PREFIX
from shoal.membership.serf.ready import (
    EventKind,
    QueryKey,
    Ready,
    ReceivedQuery,
    SerfMember,
)
from shoal.membership.serf.snapshot import NO_CLOCKS, Clocks
from shoal.membership.serf_agent.agent_pool import AgentPool, QueryAnswers
from shoal.membership.serf_agent.hosted import as_agent, as_agents, node_names
from shoal.membership.swim.core import SwimStatistics
from shoal.membership.swim.ready import Datagram, Exchanged, Input, KeyringKept, OutgoingPacket
from shoal.membership.wire.envelope import Envelope
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.key_messages import encode_key_request
from shoal.membership.wire.keyring import Keyring
from shoal.membership.wire.messages import Endpoint, host_bytes, host_text
from shoal.membership.wire.packets import MAX_PACKET_BYTES, decode_packet, encode_packet

logger = logging.getLogger(__name__)

MAX_DATAGRAMS_PER_TURN = 128
"""Datagrams read before the loop gets its turn again: a flood must not starve
everything else of this process."""

MAX_TURN_S = 0.02
"""Nor must a few packets that are dear to decode: compressed ones take milliseconds each. Processor time of
this thread: that others hold the processor is no reason to leave acks unread."""

MAX_RESOLVED = 16
"""Addresses of one name that a join asks: any one of them tells the whole list."""


@dataclass(slots=True)
class Traffic:
    """UDP since the start. `faults` are packets or parts that were no messages, and
    sends the kernel refused; `strangers` are packets and streams with a wrong key or label."""

    sent_packets: int = 0
    sent_bytes: int = 0
    received_packets: int = 0
    received_bytes: int = 0
    faults: int = 0
    refused_streams: int = 0
    strangers: int = 0


class Membership(AgentPool):
    """This process as a member of a gossip pool.

    `clocks` are those of a former life.
    `keep_keyring` makes a changed keyring outlive the process; it is called in a thread, and an OSError
    of it keeps the change from happening. `lookup`: the addresses of a name; it raises OSError.
    """

    def __init__(
        self,
        config: GossipConfig,
        *,
        rng: random.Random,
        on_event: Callable[[MemberEvent], None],
        on_user_event: Callable[[PoolEvent], None] | None = None,
        on_query: Callable[[PoolQuery], bytes | None] | None = None,
        clocks: Clocks = NO_CLOCKS,
        keep_keyring: Callable[[Keyring], None] = lambda _: None,
        lookup: Callable[[str], Awaitable[Sequence[str]]] = system_lookup,
    ) -> None:
        super().__init__(config.name, on_event, on_user_event, on_query)
        self._config = config
        self._keep_keyring = keep_keyring
        self._lookup = lookup
        self._rng = rng
        self._asked: dict[QueryKey, QueryAnswers] = {}
        self._silences = 0
        self._watching: asyncio.Task[None] | None = None
        self._former_clocks = clocks
        self._tags = dict(config.tags)
        self._core: SerfCore | None = None
        self._udp: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._listener: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._envelope = Envelope(
            label=config.label,
            keyring=lambda: self._running().keyring,
            verify_incoming=config.verify_incoming,
            verify_outgoing=config.verify_outgoing,
            random_bytes=os.urandom,
        )
        self._offenders = Offenders()
        self._streams = StreamTasks(
            config,
            self._envelope,
            local_state=lambda join: self._running().local_state(join=join),
            local_node=lambda: self._running().swim.table.local,
            deliver=self._input,
            on_stranger=self._note_stranger,
        )
        self._unix_offset_ms = 0
        self._left = asyncio.Event()
        self._traffic = Traffic()
        self.port = config.bind_port

    # Life

    async def start(self) -> None:
        """Bind and begin to gossip. Raises OSError when the port is taken or the address is not ours."""
        assert self._core is None
        tcp, self._udp = open_listener(self._config.bind_address, self._config.bind_port)
        self.port = tcp.getsockname()[1]
        try:
            self._server = await asyncio.start_server(self._streams.accept, sock=tcp)
            self._listener = tcp
            self._begin(self._udp)
        except BaseException:
            await self.stop()
            tcp.close()
            raise

    def _begin(self, udp: socket.socket) -> None:
        now_ms = self._now_ms()
        self._unix_offset_ms = int(time.time() * 1000) - now_ms
        endpoint = Endpoint(host_bytes(self.address), self.port)
        self._core = SerfCore(self._config.with_tags(self._tags), endpoint, self._rng, now_ms)
        self._core.restore(self._former_clocks)
        asyncio.get_running_loop().add_reader(udp, self._on_readable)
        self._watching = asyncio.create_task(self._watch.run(), name="hosted agents")
        self._carry_out()

    @property
    def address(self) -> str:
        if self._config.advertise_address:
            return self._config.advertise_address
        bound = self._config.bind_address
        return outward_address() if bound == "0.0.0.0" else bound  # noqa: S104 (compared, not bound)

    async def stop(self) -> None:
        """Stop at once, without a word to the others. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._udp is not None:
            asyncio.get_running_loop().remove_reader(self._udp)
            self._udp.close()
            self._udp = None
        server, self._server = self._server, None
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener = None
        for asked in self._asked.values():
            asked.over.set()
        try:
            await self._streams.stop()
        finally:
            # Last: a caller whom asyncio has accepted and hands over to a server that is closed is forgotten,
            # with the socket open.
            if server is not None:
                server.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    async def leave(self) -> None:
        """Leave gracefully: others show `left`, not `failed`. Bounded by the
        configuration's broadcast timeouts."""
        core = self._running()
        if self._udp is None:
            return
        core.leave(self._now_ms())
        self._carry_out()
        bound_ms = 2 * self._config.broadcast_timeout_ms + self._config.leave_propagate_ms + 1_000
        try:
            async with asyncio.timeout(bound_ms / 1000):
                await self._left.wait()
        except TimeoutError:
            logger.warning("left without hearing that all members know it, after %d ms", bound_ms)

    async def join(self, addresses: Sequence[tuple[str, int]]) -> int:
        """Exchange state with each address (names stand for all their addresses); how
        many members answered.

        Our own address is passed over, as a list of seeds may contain it. Raises
        JoinError when none answered though there was one to ask.
        """
        core = self._running()
        reached, faults = 0, []
        for host, port in addresses:
            try:
                resolved = await self._resolve(host, port)
            except (OSError, UnicodeError) as fault:
                faults.append(f"{host}:{port}: {str(fault) or type(fault).__name__}")
                continue
            for address in resolved:
                try:
                    state = await self._streams.pull(address, port, join=True)
                    self._input(Exchanged(state, joined=True))
                    reached += 1
                except (OSError, StreamFault, WireError) as fault:
                    faults.append(f"{address}:{port}: {str(fault) or type(fault).__name__}")
        if reached:
            core.announce_join(self._now_ms())
            self._carry_out()
        elif faults:
            raise JoinError("; ".join(faults))
        return reached

    async def _resolve(self, host: str, port: int) -> list[str]:
        """The addresses behind a name, without our own."""
        async with asyncio.timeout(self._config.stream_timeout_ms / 1000):
            found = await self._lookup(host)
        own = {self._config.bind_address, self.address} if port == self.port else set()
        return [address for address in found if address not in own][:MAX_RESOLVED]

    # What is known

    @property
    def version(self) -> int:
        return self._running().version + self._silences

    def members(self) -> tuple[Member, ...]:
        return as_agents(self._listed(), self._watch.silent)

    def _listed(self) -> list[Member]:
        return [self._member(member) for member in self._running().members()]

    @property
    def clocks(self) -> Clocks:
        return self._running().clocks

    def statistics(self) -> SwimStatistics:
        return self._running().statistics()

    def traffic(self) -> Traffic:
        return replace(
            self._traffic, refused_streams=self._streams.refused, strangers=self._offenders.refused
        )

    def _on_silence(self, agents: Collection[str]) -> None:
        self._silences += 1
        for member in self.members():
            if member.name in agents:
                self._on_event(MemberEvent("failed" if member.status == "failed" else "joined", member))

    def _member(self, member: SerfMember) -> Member:
        return Member(
            name=member.name,
            address=host_text(member.endpoint.address),
            port=member.endpoint.port,
            tags=member.tags,
            status=member.shown_status,
            incarnation=member.incarnation,
            since_ms=member.since_ms + self._unix_offset_ms,
        )

    # What this node says

    def set_tags(self, tags: Mapping[str, str]) -> None:
        self._config.with_tags(tags)
        self._tags = dict(tags)
        if self._core is not None:
            self._core.set_tags(tags, self._now_ms())
            self._carry_out()

    def move(self, address: str) -> bool:
        self._config = replace(self._config, advertise_address=address)
        self._running().move(Endpoint(host_bytes(address), self.port), self._now_ms())
        self._carry_out()
        return True

    def force_leave(self, name: str) -> None:
        node = node_names(self._listed()).get(name, name)
        self._running().force_leave(node, self._now_ms())
        self._carry_out()

    def send_user_event(self, name: str, payload: bytes) -> None:
        self._running().send_user_event(name, payload)
        self._carry_out()

    async def keys(self) -> KeyReport:
        return await self._ask_keyrings(LIST_QUERY, b"")

    async def change_keys(self, change: KeyChange, key: bytes) -> KeyReport:
        return await self._ask_keyrings(f"{INTERNAL_PREFIX}{change.value}-key", key)

    async def _ask_keyrings(self, name: str, key: bytes) -> KeyReport:
        alive = [member.name for member in self.members() if member.status in ("alive", "suspect")]
        result = await self._ask(QueryRequest(name, encode_key_request(key)), alive)
        return report(alive, result.answers)

    async def _put(self, request: QueryRequest, answers: QueryAnswers) -> None:
        try:
            key = self._running().query(request, self._now_ms())
        except ValueError as error:
            raise QueryError(str(error)) from None
        self._asked[key] = answers
        try:
            self._carry_out()
            await answers.over.wait()
        finally:
            del self._asked[key]
        if self._udp is None:
            raise QueryError("this node has stopped")

    # Driving the core

    def _running(self) -> SerfCore:
        if self._core is None:
            raise RuntimeError("membership is not started")
        return self._core

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _input(self, event: Input) -> None:
        self._running().step(event, self._now_ms())
        self._carry_out()

    def _carry_out(self) -> None:
        """Do what the core wants, then arm the timer for what it will want next."""
        core = self._running()
        try:
            while (ready := core.ready()) is not None:
                core.advance(ready)
                self._do(ready)
        finally:  # a listener may raise, and without its timer this node would be dead to the others
            if core.has_left:
                self._left.set()
            self._arm(core.deadline())

    def _do(self, ready: Ready) -> None:
        for packet in ready.packets:
            self._send(packet)
        for probe in ready.stream_probes:
            refused = self._streams.probe(probe)
            if refused is not None:
                self._running().step(refused, self._now_ms())
        for exchange in ready.exchanges:
            self._streams.exchange(exchange)
        for change in ready.events:
            if change.kind is EventKind.CONFLICT and not self._is_conflict_news():
                continue
            member = as_agent(self._member(change.member), self._watch.silent)
            self._on_event(MemberEvent(change.kind.value, member))
        for reply in ready.replies:
            if (asked := self._asked.get(reply.key)) is not None:
                asked.take(reply.kind, reply.sender, reply.payload)
        if ready.keyring is not None:
            self._streams.start(self._keep(ready.keyring))  # no flood of streams may refuse it
        if self._on_user_event is not None:
            for event in ready.user_events:
                self._on_user_event(event)
        if self._on_query is not None:
            for query in ready.queries:
                self._answer(self._on_query(PoolQuery(query.name, query.payload)), query)

    async def _keep(self, keyring: Keyring) -> None:
        fault = ""
        try:
            await asyncio.to_thread(self._keep_keyring, keyring)
        except OSError as error:
            fault = f"the keyring could not be written: {error.strerror or error}"
            logger.error("%s", fault, extra={"event": "keyring-not-saved"})
        self._input(KeyringKept(fault))

    def _answer(self, payload: bytes | None, query: ReceivedQuery) -> None:
        if payload is None:
            return
        try:
            self._running().respond(query.key, payload, self._now_ms())
        except (KeyError, ValueError) as fault:
            logger.warning("cannot answer query %s of %s: %s", query.name, query.source_node, fault)

    def _arm(self, deadline_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._udp is None:
            self._timer = None
            return
        # One millisecond late rather than early: the core counts whole ones, and an early timer would only
        # come again.
        self._timer = asyncio.get_running_loop().call_at((deadline_ms + 1) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._read_datagrams()
        self._running().wake(self._now_ms())
        self._carry_out()

    # Datagrams

    def _on_readable(self) -> None:
        self._read_datagrams()
        self._carry_out()

    def _read_datagrams(self) -> None:
        core, udp = self._running(), self._udp
        end_s = time.thread_time() + MAX_TURN_S
        for _ in range(MAX_DATAGRAMS_PER_TURN):
            if udp is None or time.thread_time() > end_s:
                return
            try:
                data, source = udp.recvfrom(MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                self._traffic.faults += (
                    1  # an ICMP answer to something we sent; probes find out by themselves
                )
                continue
            self._traffic.received_packets += 1
            self._traffic.received_bytes += len(data)
            sender = Endpoint(host_bytes(source[0].partition("%")[0]), source[1])
            try:
                packet = decode_packet(self._envelope.unwrap_packet(data))
            except WireError as fault:
                self._traffic.faults += 1
                self._note_stranger(str(sender), fault)
                continue
            self._traffic.faults += len(packet.faults)
            core.step(Datagram(sender, packet.messages), self._now_ms())

    def _send(self, packet: OutgoingPacket) -> None:
        if self._udp is None:
            return
        data = encode_packet(packet.parts, checksum=packet.checksum)
        data = self._envelope.wrap_packet(data)
        try:
            self._udp.sendto(data, (host_text(packet.receiver.address), packet.receiver.port))
        except OSError:
            self._traffic.faults += 1  # buffer full or no route: for the protocol the same as a lost packet
            return
        self._traffic.sent_packets += 1
        self._traffic.sent_bytes += len(data)

    def _note_stranger(self, who: str, fault: Exception) -> None:
        """A wrong key or label is a fault of configuration; all else is noise of a network."""
        if isinstance(fault, WireError) and fault.reason in ("key", "label"):
            line = self._offenders.note(who, fault.detail, self._now_ms())
            if line is not None:
                logger.warning("%s", line, extra={"event": "stranger-rejected"})


def outward_address() -> str:
    """The address this host is seen at from outside: the source the kernel would
    choose; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: a documentation address, never routed to anybody
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
