"""The links between this agent and its peers: two connections a pair, kept up, listened to, and bounded.

Law of this file: it knows agents, never groups. Of a pair the agent with the smaller id dials, so a pair
never has two connections of one kind; the other accepts on the HTTP port. Frames that cannot be sent are
dropped: Raft repeats. A peer that is not heard on its control link, or whose boot nonce changed, is reported
silent, once (safety 24, 25).
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext

from shoal.addresses import host_of, plain_address
from shoal.agent.levels import FIRST_LEVEL, SUPPORTED, Level, LevelRange, refusal
from shoal.agent.log_lines.names import agent_name
from shoal.agent.log_lines.repeats import once_a_minute
from shoal.agent.metrics.measures import LinkTraffic
from shoal.agent.peers.connection import PeerConnection, Refused
from shoal.agent.peers.dialler import Dialler
from shoal.agent.peers.frames import (
    FRAME_HEAD,
    PROTOCOL,
    FrameType,
    Hello,
    LinkKind,
    PeerWireError,
    Piece,
    RawFrame,
)
from shoal.agent.peers.linked_peer import LinkConfig as LinkConfig
from shoal.agent.peers.linked_peer import LinkedPeer, PeerStatistics
from shoal.agent.peers.lobby import Lobby
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.peers.renewal import LinkRenewal
from shoal.agent.peers.requests import PeerRequestFailed as PeerRequestFailed
from shoal.agent.peers.requests import PeerUnavailable as PeerUnavailable
from shoal.agent.peers.requests import RequestHandler, Requests
from shoal.agent.peers.terms import HEADER, LinkTerms, TermsError, agree, terms_from_text
from shoal.agent.process.clock import Clock
from shoal.errors import ShoalError

MAX_UNFINISHED_BYTES = 256 * 2**20
"""Of frames that are not complete, over all links: fourteen of the largest. Raft repeats what is cut off."""

logger = logging.getLogger(__name__)
seldom = once_a_minute(logger)

FrameHandler = Callable[[str, bytes], None]


class Links:
    """All links of this agent. Handlers are set before start; they are called from the event loop and must
    not raise anything but PeerWireError."""

    def __init__(
        self,
        *,
        agent_id: str,
        boot_nonce: bytes,
        cluster_id: bytes | None,
        clock: Clock,
        rng: random.Random,
        config: LinkConfig | None = None,
        levels: LevelRange = SUPPORTED,
    ) -> None:
        """`levels`: those that this agent understands."""
        self.agent_id = agent_id
        self.boot_nonce = boot_nonce
        self.cluster_id = cluster_id
        """None until the agent has bootstrapped or joined; nobody is connected before."""
        self.level = FIRST_LEVEL
        """Of the cluster, as far as this agent knows."""
        self.on_level: Callable[[Level], None] = lambda _: None
        """Called with a level above the one known here that a linked member says. Also with one above those
        understood here, which anybody may say."""
        self.on_silence: Callable[[str], None] = lambda _: None
        self.liveness_tail: Callable[[], bytes] = lambda: b""
        """What else to say in the liveness frames of this heartbeat interval."""
        self.on_liveness_tail: Callable[[str, bytes], None] = lambda *_: None
        """Called with what else a peer said in one, if anything. Raises PeerWireError."""
        self.around_input: AbstractContextManager[None] = nullcontext()
        """Entered while what a connection has received is handed out."""
        self.on_append_sent: Callable[[], None] = lambda: None
        """Called when a leader's entries have left."""
        self._clock = clock
        self._config = config or LinkConfig()
        self._levels = levels
        self.dialler = Dialler(self, self._config, rng, self._report_silence)
        self.requests = Requests(self.send_bulk)
        self._peers: dict[str, LinkedPeer] = {}
        self.renewal = LinkRenewal(self, self._peers, rng, self._spawn)
        self.handle_request(PeerMessage.LINK_RENEWAL, self.renewal.on_request)
        self._handlers: dict[int, FrameHandler] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lobby = Lobby()
        self.unfinished_bytes = 0
        self._running = False
        self._watching_since_ms = 0
        """Since when this agent itself did not stand still."""
        self.dropped_frames = 0
        self.traffic = {kind: LinkTraffic() for kind in LinkKind}
        """Of open connections; greetings are not in it."""

    def handle(self, frame_type: int, handler: FrameHandler) -> None:
        """`handler(agent_id, payload)` for every frame of this type."""
        assert frame_type not in self._handlers
        self._handlers[frame_type] = handler

    def handle_request(self, request_type: int, handler: RequestHandler) -> None:
        """`await handler(agent_id, payload)` is the answer; an exception of it reaches the asker as a
        reason."""
        assert 0 <= request_type <= 255
        assert request_type not in self.requests.handlers
        self.requests.handlers[request_type] = handler

    async def start(self) -> None:
        """Begin to dial and to listen for silence."""
        assert not self._running
        self._running = True
        self._spawn(self._watch())
        self._dial_missing()

    async def stop(self) -> None:
        """Close every connection; nobody is reported silent for it."""
        self._running = False
        for task in list(self._tasks):
            task.cancel()
        connections = self._lobby.all()
        for peer in self._peers.values():
            connections += peer.all_connections()
            self.requests.fail(peer)
        for connection in connections:
            connection.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(connection.closed.wait() for connection in connections))

    def _spawn(self, coroutine: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a link's task failed; this is a bug", exc_info=task.exception())

    # Peers to be connected with

    def set_addresses(
        self,
        urls: Mapping[str, str],
        failed: AbstractSet[str] = frozenset(),
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        """{agent id: its HTTP URL}, without this agent. Agents no longer named are disconnected. Gossip has
        given up those that `failed`: they are dialled ever more rarely until it lists them as alive.
        `addresses`: where gossip says that they are, of those whose URL has a name."""
        now_ms = self._clock.now_ms()
        known = addresses or {}
        for agent_id, url in urls.items():
            if agent_id != self.agent_id:
                address = known.get(agent_id) or host_of(url)
                peer = self._peers.setdefault(agent_id, LinkedPeer(agent_id, now_ms, url, address))
                peer.url, peer.address = url, address
                if agent_id in failed:
                    peer.lives.clear()
                else:
                    peer.lives.set()
        for agent_id in [known for known in self._peers if known not in urls]:
            self._forget(agent_id)
        for connection, hello in self._lobby.greeted():
            if self._lives_at(hello.agent_id, connection.address):
                connection.greet(hello)
        if self._running:
            self._dial_missing()

    def set_level(self, level: Level) -> None:
        """Of the cluster. Links to agents that do not understand it end, and are refused from now on."""
        if level == self.level:
            return
        self.level = level
        for peer in self._peers.values():
            for connection in peer.all_connections():
                if not connection.terms.levels.has(level):
                    peer.complain(f"closing its link: {refusal(connection.terms.levels, level)}")
                    connection.close()

    def greet_again(self) -> None:
        """End every link, to be made anew: the other sides heard of the level that was known here then."""
        for peer in self._peers.values():
            for connection in peer.all_connections():
                connection.close()

    def _lives_at(self, agent_id: str, address: str | None) -> bool:
        """Whether gossip knows this agent, at this very address."""
        peer = self._peers.get(agent_id)
        return peer is not None and address is not None and peer.address == plain_address(address)

    def _forget(self, agent_id: str) -> None:
        peer = self._peers.pop(agent_id)
        self.requests.fail(peer)
        for task in peer.dialling.values():
            task.cancel()
        for connection in peer.all_connections():
            connection.close()
        self._report_silence(
            peer
        )  # it is not watched any more, and the groups that it led quietly are led no longer

    def _dial_missing(self) -> None:
        for peer in self._peers.values():
            if self.agent_id > peer.agent_id:
                continue
            # Of a peer never met one connection tells whether it exists.
            for kind in LinkKind if peer.met else (LinkKind.CONTROL,):
                task = peer.dialling.get(kind)
                if task is None or task.done():
                    peer.dialling[kind] = self._spawn(self.dialler.keep_dialled(peer, kind))

    async def accept(
        self,
        transport: asyncio.Transport | None,
        http_protocol: asyncio.BaseProtocol,
        terms_text: str | None = None,
    ) -> None:
        """A connection on which GET /v1/peer was asked: taken over from the HTTP server, until it is closed.
        `terms_text`: what the other side says in the header HEADER. ShoalError not-ready before anything was
        written."""
        if not self._running or self.cluster_id is None:
            raise ShoalError("not-ready", "this agent takes no peers: it has no cluster yet, or is leaving")
        if transport is None or transport.is_closing():
            return
        connection = PeerConnection(self, None)
        connection.terms = terms_from_text(terms_text)
        if connection.terms.level > self._levels.highest:
            self.on_level(connection.terms.level)
        connection.take_address(transport)
        address = connection.address
        plain = None if address is None else plain_address(address)
        known = plain is not None and any(peer.address == plain for peer in self._peers.values())
        self._lobby.admit(connection, from_a_peers_address=known)
        head = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n"
        transport.write(f"{head}{HEADER}: {self.terms().to_text()}\r\n\r\n".encode())
        transport.set_protocol(connection)
        if not transport.is_reading():
            transport.resume_reading()
        connection.connection_made(transport)
        try:
            await self._greet_in_time(connection)
            await connection.closed.wait()
        finally:
            self._lobby.leave(connection)
            connection.abort()
            # The HTTP server still counts this connection among its own: tell it what its transport told us.
            http_protocol.connection_lost(None)

    async def _greet_in_time(self, connection: PeerConnection) -> None:
        try:
            async with asyncio.timeout(self._config.greeting_timeout_ms / 1000):
                await asyncio.shield(connection.opened)
        except TimeoutError:
            connection.refuse(self._why_it_waited(connection))
        except Refused as error:
            seldom.info("refused a link from %s: %s", connection.address, error)
        finally:
            self._lobby.leave(connection)

    def _why_it_waited(self, connection: PeerConnection) -> str:
        hello = self._lobby.said(connection)
        if hello is None:
            return "no greeting in time"
        peer = self._peers.get(hello.agent_id)
        if peer is None:
            return f"{agent_name(hello.agent_id)} is not a member of the pool, according to gossip here"
        name, at = agent_name(hello.agent_id), peer.address
        return f"{name} is at {at} by gossip, but connects from {connection.address}: check its --advertise"

    # What connections report

    def terms(self) -> LinkTerms:
        """This agent's."""
        return LinkTerms(levels=self._levels, level=self.level)

    def agreed_version(self, theirs: LinkTerms) -> int:
        """Of a link. Raises Refused."""
        if theirs.level > self._levels.highest:
            self.on_level(theirs.level)
        try:
            return agree(self.terms(), theirs)
        except TermsError as error:
            raise Refused(str(error)) from None

    def greeting(self, kind: LinkKind, peer_id: str) -> Hello:
        """What this agent says of itself."""
        assert self.cluster_id is not None
        return Hello(kind, self.cluster_id, self.agent_id, peer_id, self.boot_nonce)

    def check(self, hello: Hello, connection: PeerConnection) -> bool:
        """Whether it may be opened now: False, gossip has not told of this agent at its address yet, and may
        within the time of a greeting. Raises Refused (safety 2, 6, 24)."""
        name = agent_name(hello.agent_id)
        if hello.cluster_id != self.cluster_id:
            raise Refused(f"{name} belongs to cluster {hello.cluster_id.hex()}, not to this one")
        if hello.agent_id == self.agent_id:
            seldom.error("a process at %s has this agent's id: is its data a copy?", connection.address)
            raise Refused("this is the id of the agent asked: a data directory was copied")
        if hello.expected_agent_id != self.agent_id:
            raise Refused(f"this is {agent_name(self.agent_id)}, not {agent_name(hello.expected_agent_id)}")
        if not connection.was_dialled and not self._lives_at(hello.agent_id, connection.address):
            self._lobby.let_wait(connection, hello)
            return False
        peer = self._peers.get(hello.agent_id)
        if peer is None:
            raise Refused(f"{name} has left the pool")
        if hello.boot_nonce == peer.boot_nonce:
            return True
        control = peer.connections.get(LinkKind.CONTROL)
        heard_lately = self._clock.now_ms() - peer.heard_ms < self._config.silence_after_ms
        if control is not None and control is not connection and heard_lately:
            seldom.error("two live processes have the id of %s: is the data of one a copy?", name)
            raise Refused(f"another live process has the id of {name}")
        return True

    def opened(self, connection: PeerConnection, hello: Hello) -> None:
        """A connection is usable; it replaces one of the same kind, on which frames may still be under
        way."""
        now_ms = self._clock.now_ms()
        self._lobby.leave(connection)
        peer = self._peers[hello.agent_id]
        if not peer.met:
            peer.met = True
            self._dial_missing()
        reborn = peer.boot_nonce not in (b"", hello.boot_nonce)
        peer.boot_nonce = hello.boot_nonce
        previous = peer.connections.get(connection.kind)
        peer.connections[connection.kind] = connection
        if previous is not None and not reborn:
            peer.leaving.add(previous)
            previous.leave()
        elif previous is not None:
            previous.close()
        peer.last_complaint = ""
        if reborn:
            self._report_silence(peer)
        if connection.kind == LinkKind.CONTROL:
            peer.heard(now_ms)
        if connection.terms.level > self.level:
            self.on_level(connection.terms.level)

    def lost(self, connection: PeerConnection) -> None:
        """An open connection ended."""
        peer = self._peers.get(connection.peer_id)
        if peer is not None:
            peer.leaving.discard(connection)
        if peer is None or peer.connections.get(connection.kind) is not connection:
            return
        del peer.connections[connection.kind]
        if connection.kind == LinkKind.CONTROL:
            peer.lost_ms = self._clock.now_ms()
        else:
            self.requests.fail(peer)

    def hold_unfinished(self, difference_bytes: int) -> None:
        """More, or less, is held of incomplete frames. Raises PeerWireError: all links hold too much."""
        self.unfinished_bytes += difference_bytes
        assert self.unfinished_bytes >= 0
        if difference_bytes > 0 and self.unfinished_bytes > MAX_UNFINISHED_BYTES:
            raise PeerWireError(f"more than {MAX_UNFINISHED_BYTES} bytes of frames that are not complete")

    def frame(self, connection: PeerConnection, frame: RawFrame) -> None:
        """One frame of an open connection. Raises PeerWireError."""
        peer = self._peers.get(connection.peer_id)
        is_leaving = peer is not None and connection in peer.leaving
        if peer is None or (peer.connections.get(connection.kind) is not connection and not is_leaving):
            connection.close()
            return
        traffic = self.traffic[connection.kind]
        traffic.received_frames += 1
        traffic.received_bytes += FRAME_HEAD.size + len(frame.payload)
        if connection.kind is LinkKind.CONTROL:
            peer.heard(self._clock.now_ms())
        handler = self._handlers.get(frame.type)
        if handler is not None:
            handler(peer.agent_id, frame.payload)
        elif frame.type == FrameType.LIVENESS:
            if not frame.payload.startswith(connection.boot_nonce):
                raise PeerWireError("the boot nonce changed within a connection")
            if len(frame.payload) > len(connection.boot_nonce) and not is_leaving:  # there are newer ones
                self.on_liveness_tail(peer.agent_id, frame.payload[len(connection.boot_nonce) :])
        elif frame.type == FrameType.REQUEST:
            work = self.requests.take_request(peer, frame.payload)
            if work is not None:
                self._spawn(work)
        elif frame.type == FrameType.RESPONSE:
            self.requests.take_response(peer, frame.payload)
        else:
            raise PeerWireError(f"unknown frame type {frame.type}")

    # Silence

    def _report_silence(self, peer: LinkedPeer) -> None:
        if not peer.silent:
            peer.silent = True
            self.on_silence(peer.agent_id)

    async def _watch(self) -> None:
        config = self._config
        watched_ms = self._watching_since_ms = self._clock.now_ms()
        while self._running:
            now_ms = self._clock.now_ms()
            if now_ms - watched_ms >= config.silence_after_ms:
                self._watching_since_ms = now_ms
            watched_ms = now_ms
            alive = self.boot_nonce + self.liveness_tail()
            for peer in list(self._peers.values()):
                if peer.silent and not peer.connections:
                    continue  # nothing to say to it, and nothing more to find out
                self.send_control(peer.agent_id, FrameType.LIVENESS, alive)
                lost = peer.lost_ms is not None and now_ms - peer.lost_ms >= config.silence_after_loss_ms
                if lost or now_ms - peer.heard_ms >= config.silence_after_ms:
                    self._report_silence(peer)
                self._give_up_if_dead(peer)
            await asyncio.sleep(config.heartbeat_interval_ms / 1000)

    def _give_up_if_dead(self, peer: LinkedPeer) -> None:
        """Both connections, since their packets take one way. What was not heard while this agent stood still
        says nothing."""
        config = self._config
        heard_ms = max(peer.heard_ms, self._watching_since_ms)
        patience_ms = max(config.give_up_after_ms, 2 * config.silence_after_ms)
        if LinkKind.CONTROL in peer.connections and self._clock.now_ms() - heard_ms >= patience_ms:
            peer.complain(f"nothing heard for {patience_ms} ms: connecting anew")
            for connection in peer.all_connections():
                connection.abort()

    def is_silent(self, agent_id: str) -> bool:
        """True for a peer unheard for too long, and for one never met."""
        peer = self._peers.get(agent_id)
        return peer is None or peer.silent

    def knows(self, agent_id: str) -> bool:
        """Whether it is watched: False for an agent that has been forgotten."""
        return agent_id in self._peers

    def is_linked(self, agent_id: str) -> bool:
        """Whether a control connection is open now: one that was killed loses it at once, long before it
        counts as silent."""
        peer = self._peers.get(agent_id)
        return peer is not None and not peer.silent and LinkKind.CONTROL in peer.connections

    def has_met(self, agent_id: str) -> bool:
        """Whether that very agent was linked in this run: gossip alone proves nobody's existence."""
        peer = self._peers.get(agent_id)
        return peer is not None and bool(peer.boot_nonce)

    def statistics(self) -> tuple[PeerStatistics, ...]:
        """Every known peer."""
        now_ms = self._clock.now_ms()
        return tuple(peer.statistics(now_ms) for peer in self._peers.values())

    # Sending

    def send_control(self, agent_id: str, frame_type: int, payload: bytes) -> bool:
        """False when it was dropped."""
        peer = self._peers.get(agent_id)
        connection = None if peer is None else peer.connections.get(LinkKind.CONTROL)
        if connection is not None and connection.send(frame_type, (payload,)):
            return True
        self.dropped_frames += 1
        return False

    def send_bulk(self, agent_id: str, frame_type: int, pieces: Sequence[Piece]) -> bool:
        """False when it was dropped."""
        peer = self._peers.get(agent_id)
        connection = None if peer is None else peer.connections.get(LinkKind.BULK)
        if connection is not None and connection.send(frame_type, pieces):
            return True
        self.dropped_frames += 1
        return False

    def send_append(self, agent_id: str, pieces: Sequence[Piece]) -> None:
        """A leader's entries, which a follower answers once its disk has them; perhaps dropped."""
        if self.send_bulk(agent_id, FrameType.APPEND, pieces):
            self.on_append_sent()

    async def request(self, agent_id: str, request_type: int, payload: bytes, timeout_ms: int) -> bytes:
        """The peer's answer. Raises PeerUnavailable, or PeerRequestFailed with the peer's reason."""
        peer = self._peers.get(agent_id)
        if peer is None:
            raise PeerUnavailable(f"{agent_name(agent_id)} is not known here")
        return await self.requests.ask(peer, request_type, payload, timeout_ms)
