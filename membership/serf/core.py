"""Serf's layer over SWIM: tags, intents with Lamport clocks, and whether a silent member left or failed.

Law of this file: it joins SWIM, the member list, events and queries into the one core
that a driver sees, and drives SwimCore by the convention every core of this project
has. No clock, no socket, no randomness of its own.

Facts of the protocol that shaped it:

- Memberlist's "I leave" alone shows as failed in Serf; the leave intent before it makes it a leave.
  An intent followed by silence ends as left as well, so a crash during shutdown does no harm.
- A leave intent about a living node (a force-leave) is undone by that node with a newer
  join intent. A Serf agent tells it to nobody when the accused was its only living
  peer: it shows only in its next push/pull, as a status time that is not ours.
- A Serf agent whose name is contested asks `_serf_conflict`; unanswered it shuts itself down, so we answer.
- Peers ratchet each other's Lamport times about members that left; a status time proves nothing but order.
"""

import random
from collections.abc import Mapping

from shoal.membership.config import GossipConfig
from shoal.membership.serf.events import EventLog
from shoal.membership.serf.keys import KEY_QUERIES, KeyDesk
from shoal.membership.serf.leave import Leave, LeaveStage
from shoal.membership.serf.member_list import IntentOutcome, MemberList
from shoal.membership.serf.own_queries import (
    MAX_QUERY_BYTES,
    MAX_TIMEOUT_MS,
    AskedQueries,
    QueryRequest,
    default_timeout_ms,
)
from shoal.membership.serf.queries import QueryDesk
from shoal.membership.serf.ready import QueryKey, Ready, ReceivedQuery, SerfMember, Status
from shoal.membership.serf.snapshot import Clocks
from shoal.membership.swim.core import SwimCore, SwimStatistics
from shoal.membership.swim.ready import Exchange, Exchanged, Input, KeyringKept, OutgoingPacket, StreamProbe
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.keyring import Keyring
from shoal.membership.wire.messages import Endpoint, PushPull, User
from shoal.membership.wire.serf import (
    ConflictAnswer,
    JoinIntent,
    LeaveIntent,
    Query,
    QueryResponse,
    Relay,
    SerfState,
    UserEvent,
    decode_serf,
    decode_state,
    encode_node_filter,
    encode_serf,
    encode_state,
    encode_tag_filter,
    encode_tags,
)

MAX_EVENT_BYTES = 512
"""Name and payload of a user event we send: Serf's default limit."""


class SerfCore:
    """Membership of one node, whole: what the shell and the simulation drive."""

    def __init__(self, config: GossipConfig, endpoint: Endpoint, rng: random.Random, now_ms: int) -> None:
        self._config = config
        self._rng = rng
        self._event_log = EventLog()
        self._queries = QueryDesk(config.name, self._own_tags)
        self._packets: list[OutgoingPacket] = []
        self._stream_probes: list[StreamProbe] = []
        self._exchanges: list[Exchange] = []
        self._user_events: list[UserEvent] = []
        self._received: list[ReceivedQuery] = []
        self._asked = AskedQueries(config.max_members)
        self._keys = KeyDesk(
            config.name, config.keyring, only_sealed=config.verify_incoming and config.verify_outgoing
        )
        self._keyring_told: Keyring | None = None
        self._next_reap_ms = now_ms + config.reap_interval_ms
        self._next_reconnect_ms = now_ms + rng.randrange(1, config.reconnect_interval_ms + 1)
        self.swim = SwimCore(config, endpoint, encode_tags(config.tags), rng, now_ms)
        self._list = MemberList(config)
        self._leave = Leave(config)
        self._absorb(now_ms)

    def __repr__(self) -> str:
        shown = " ".join(f"{member.name}={member.shown_status}" for member in self.members())
        return f"<SerfCore {self._config.name} {self._leave.stage.name.lower()} {shown}>"

    @property
    def version(self) -> int:
        """Grows with every change of the list."""
        return self._list.version

    @property
    def keyring(self) -> Keyring | None:
        """What is to be sealed and opened with from now on."""
        return self._keys.keyring

    @property
    def has_left(self) -> bool:
        """The graceful leave is complete: the driver may stop."""
        return self._leave.stage is LeaveStage.LEFT

    def members(self) -> list[SerfMember]:
        """Everybody known, ourselves included, by name."""
        for member in self._list:
            node = self.swim.table.get(member.name)
            if node is not None:
                member.incarnation = node.incarnation
        return sorted(self._list, key=lambda member: member.name)

    @property
    def clocks(self) -> Clocks:
        """The last Lamport times seen."""
        clocks = (self._list.clock, self._event_log.clock, self._queries.clock)
        return Clocks(*(clock.time - 1 for clock in clocks))

    def restore(self, clocks: Clocks) -> None:
        """Continue with the clocks of a former life; before anything else happens. Zeros: there was none."""
        self._list.clock.witness(clocks.member)
        if clocks.event:
            self._event_log.restore(clocks.event)
        if clocks.query:
            self._queries.restore(clocks.query)

    # What arrives, and time

    def step(self, event: Input, now_ms: int) -> None:
        """Something arrived."""
        self.swim.step(event, now_ms)
        self._absorb(now_ms)
        if isinstance(event, Exchanged):
            self._merge(event, now_ms)
            self._absorb(now_ms)
        elif isinstance(event, KeyringKept):
            self._keys.kept(event.fault)
            self._send_key_answers()

    def wake(self, now_ms: int) -> None:
        """Time has passed."""
        self.swim.wake(now_ms)
        self._absorb(now_ms)
        if now_ms >= self._next_reap_ms:
            self._next_reap_ms = now_ms + self._config.reap_interval_ms
            self._list.reap(now_ms)
        if now_ms >= self._next_reconnect_ms:
            self._next_reconnect_ms = now_ms + self._config.reconnect_interval_ms
            self._reconnect()
        if self._leave.wake(self.swim, now_ms):
            self._absorb(now_ms)
        self._asked.wake(now_ms)

    def deadline(self) -> int:
        """Call wake() by then."""
        deadlines = [self.swim.deadline(), self._next_reap_ms, self._next_reconnect_ms]
        if self._leave.deadline_ms is not None:
            deadlines.append(self._leave.deadline_ms)
        if (asked_ms := self._asked.deadline()) is not None:
            deadlines.append(asked_ms)
        return min(deadlines)

    def _absorb(self, now_ms: int) -> None:
        """Take what SWIM has to say, and give it its Serf meaning."""
        while (ready := self.swim.ready()) is not None:
            self.swim.advance(ready)
            self._packets += ready.packets
            self._stream_probes += ready.stream_probes
            self._exchanges += ready.exchanges
            for change in ready.changes:
                self._list.on_change(change, now_ms)
            for payload in ready.user_messages:
                self._on_user_message(payload, now_ms)

    def _on_user_message(self, payload: bytes, now_ms: int) -> None:
        try:
            message = decode_serf(payload)
        except WireError:
            return  # a type of a newer Serf, or garbage: either way nothing to act upon
        outbox = self.swim.outbox
        match message:
            case JoinIntent():
                if self._list.on_join_intent(message, now_ms):
                    outbox.intents.queue(payload, message.node)
            case LeaveIntent():
                if self._on_leave_intent(message, now_ms):
                    outbox.intents.queue(payload, message.node)
            case UserEvent():
                if self._on_user_event(message):
                    outbox.events.queue(payload)
            case Query():
                self._on_query(message, payload, now_ms)
            case QueryResponse():
                self._asked.on_response(message)
            case Relay():
                self._hand_on(message)

    def _hand_on(self, relay: Relay) -> None:
        """For somebody else or, as Serf picks relays, for us by way of ourselves. Only answers to queries are
        relayed: nobody shall send anything else to anybody in our name."""
        try:
            answer = decode_serf(relay.message)
        except WireError:
            return
        if isinstance(answer, QueryResponse):
            self.swim.outbox.send(relay.destination, User(relay.message))

    # Intents

    def _on_leave_intent(self, intent: LeaveIntent, now_ms: int, *, told: bool = True) -> bool:
        """True when it was news and should be told on; a false one about ourselves is answered instead."""
        heard = self._list.on_leave_intent(intent, now_ms, leaving=self._leave.begun, told=told)
        if heard is IntentOutcome.FALSE:
            self.announce_join(now_ms)
        return heard is IntentOutcome.NEWS

    def announce_join(self, now_ms: int) -> None:
        """Tell all that we are in; to be called after a join's exchanges, whose clocks it must exceed.
        Nothing once we leave: an exchange that ends then would undo that, and all show us as failed."""
        if self._leave.begun:
            return
        intent = JoinIntent(self._list.clock.time, self._config.name)
        self._list.on_join_intent(intent, now_ms)
        self.swim.outbox.intents.queue(encode_serf(intent), self._config.name)

    # Push/pull

    def local_state(self, *, join: bool) -> PushPull:
        """Our side of a push/pull."""
        state = SerfState(
            ltime=self._list.clock.time,
            status_ltimes={member.name: member.status_ltime for member in self._list},
            left_members=tuple(member.name for member in self._list if member.status == Status.LEFT),
            event_ltime=self._event_log.clock.time,
            query_ltime=self._queries.clock.time,
            events=self._event_log.recent(),
        )
        return PushPull(join, self.swim.local_nodes(), encode_state(state))

    def _merge(self, exchanged: Exchanged, now_ms: int) -> None:
        """A peer's clocks, intents and events, in Serf's order; nothing of it is told on."""
        if not exchanged.state.user_state:
            return
        try:
            state = decode_state(exchanged.state.user_state)
        except WireError:
            return
        self._list.clock.witness(state.ltime - 1)
        self._event_log.clock.witness(state.event_ltime - 1)
        self._queries.clock.witness(state.query_ltime - 1)
        left = set(state.left_members)
        for name in state.left_members:
            intent = LeaveIntent(state.status_ltimes.get(name, 0) + 1, name)
            self._on_leave_intent(intent, now_ms, told=False)
        # The peer may have heard an intent about us that we never sent: a force-leave that it told nobody of,
        # or one of our former life. Answered with a newer join intent it is undone there.
        name = self._config.name
        local = self._list.get(name)
        assert local is not None
        told = state.status_ltimes.get(name, 0)
        contested = not self._leave.begun and name not in left and told > local.status_ltime
        for name, ltime in state.status_ltimes.items():
            if name not in left:
                self._list.on_join_intent(JoinIntent(ltime, name), now_ms, told=False)
        if contested:
            self.announce_join(now_ms)
        if exchanged.joined:  # what happened before we came is not ours to act upon
            self._event_log.min_ltime = max(self._event_log.min_ltime, state.event_ltime)
            self._queries.begin_at(state.query_ltime)
        for event in state.events:
            self._on_user_event(event)

    # Events and queries

    def _on_user_event(self, event: UserEvent) -> bool:
        news = self._event_log.accept(event)
        if news:
            self._user_events.append(event)
        return news

    def send_user_event(self, name: str, payload: bytes) -> None:
        """Tell every member once, ourselves included. Raises ValueError above MAX_EVENT_BYTES."""
        if len(name.encode()) + len(payload) > MAX_EVENT_BYTES:
            raise ValueError(f"a user event has at most {MAX_EVENT_BYTES} bytes of name and payload")
        event = UserEvent(self._event_log.clock.stamp(), name, payload)
        self._on_user_event(event)
        self.swim.outbox.events.queue(encode_serf(event))

    def _own_tags(self) -> Mapping[str, str]:
        local = self._list.get(self._config.name)
        return {} if local is None else local.tags

    def _on_query(self, query: Query, payload: bytes, now_ms: int) -> None:
        if not self._queries.is_news(query.ltime, query.id):
            return
        if not query.flags & Query.NO_BROADCAST:
            self.swim.outbox.queries.queue(payload)
        for answer in self._queries.answers(query, self._conflict_view):
            self._send_answer(query, answer)
        if query.name in KEY_QUERIES and self._queries.is_meant(query):
            self._keys.on_query(query)
            self._send_key_answers()
        received = self._queries.open(query, now_ms)
        if received is not None:
            self._received.append(received)

    def _send_key_answers(self) -> None:
        for query, answer in self._keys.answers:
            self._send_answer(query, answer)
        self._keys.answers.clear()

    def _send_answer(self, query: Query, answer: QueryResponse) -> None:
        if query.source_node == self._config.name and query.source == self.swim.table.local.endpoint:
            self._asked.on_response(answer)
            return
        helpers = []
        if 0 < query.relay_factor < len(self.swim.table):
            alive = self.swim.table.sample(
                self._rng, query.relay_factor, lambda node: not node.gone and node.protocol_max >= 5
            )
            helpers = [node.endpoint for node in alive]
        self._queries.respond(query, answer, helpers, self.swim.outbox)

    def query(self, request: QueryRequest, now_ms: int) -> QueryKey:
        """Ask the pool; the answers come as replies. Raises ValueError when the query is too long, or too
        many are under way. Ourselves are asked too, if the filters match."""
        alive = sum(1 for member in self._list if member.status == Status.ALIVE)
        timeout_ms = request.timeout_ms or default_timeout_ms(self._config.gossip_interval_ms, alive)
        timeout_ms = min(timeout_ms, MAX_TIMEOUT_MS)
        filters = [encode_node_filter(request.nodes)] if request.nodes else []
        filters += [encode_tag_filter(tag, expression) for tag, expression in request.tags.items()]
        query = Query(
            ltime=self._queries.clock.time,
            id=self._rng.getrandbits(32),
            source=self.swim.table.local.endpoint,
            source_node=self._config.name,
            filters=tuple(filters),
            flags=Query.ACK if request.want_acks else 0,
            relay_factor=request.relay_factor,
            timeout_ns=timeout_ms * 1_000_000,
            name=request.name,
            payload=request.payload,
        )
        encoded = encode_serf(query)
        if len(encoded) > MAX_QUERY_BYTES:
            raise ValueError(f"a query has at most {MAX_QUERY_BYTES} bytes when encoded, not {len(encoded)}")
        key = (self._queries.clock.stamp(), query.id)
        self._asked.begin(key, now_ms + timeout_ms)
        self._on_query(query, encoded, now_ms)
        return key

    def respond(self, key: QueryKey, payload: bytes, now_ms: int) -> None:
        """Answer a query that was handed to the application. Raises KeyError when it is not open (any more),
        ValueError when the answer is too long."""
        query, answer = self._queries.close(key, payload, now_ms)
        self._send_answer(query, answer)

    def _conflict_view(self, name: str) -> ConflictAnswer | None:
        """What we know of a contested name."""
        member = self._list.get(name)
        if member is None:
            return None
        return ConflictAnswer(name, member.endpoint, member.tags, int(member.status), member.vsn)

    def _reconnect(self) -> None:
        """Dial one failed member, with odds failed/alive: the more are gone, the
        likelier it is a partition."""
        if self._leave.begun:
            return
        failed = [member for member in self._list if member.status == Status.FAILED]
        alive = sum(1 for member in self._list if member.status == Status.ALIVE)
        if failed and self._rng.random() < len(failed) / max(1, alive):
            self._exchanges.append(Exchange(self._rng.choice(failed).endpoint, join=False))

    # What the owner of this node wants

    def set_tags(self, tags: Mapping[str, str], now_ms: int) -> None:
        """Change our tags. Raises ValueError when they are too long."""
        self.swim.set_meta(encode_tags(tags))
        self._absorb(now_ms)

    def move(self, endpoint: Endpoint, now_ms: int) -> None:
        """This node is reached there from now on."""
        self.swim.move(endpoint)
        self._absorb(now_ms)

    def force_leave(self, name: str, now_ms: int) -> None:
        """Take a failed member for one that left; a living one undoes it. Raises
        KeyError for an unknown name."""
        if self._list.get(name) is None:
            raise KeyError(name)
        intent = LeaveIntent(self._list.clock.stamp(), name)
        if self._on_leave_intent(intent, now_ms):
            self.swim.outbox.intents.queue(encode_serf(intent), name)

    def leave(self, now_ms: int) -> None:
        """Begin a graceful leave; has_left turns true when it is complete. A second call changes nothing."""
        if self._leave.begun:
            return
        intent = LeaveIntent(self._list.clock.stamp(), self._config.name)
        broadcast = self.swim.outbox.intents.queue(encode_serf(intent), self._config.name)
        self._leave.begin(broadcast, now_ms)
        self._on_leave_intent(intent, now_ms)
        if self._leave.wake(self.swim, now_ms):
            self._absorb(now_ms)

    # Convention

    def ready(self) -> Ready | None:
        """What is to be done; None when there is nothing."""
        changes, replies = self._list.changes, self._asked.replies
        news = (changes, self._user_events, self._received, replies, self._untold_keyring())
        if not any((self._packets, self._stream_probes, self._exchanges, *news)):
            return None
        return Ready(
            packets=tuple(self._packets),
            stream_probes=tuple(self._stream_probes),
            exchanges=tuple(self._exchanges),
            events=tuple(changes),
            user_events=tuple(self._user_events),
            queries=tuple(self._received),
            replies=tuple(replies),
            keyring=self._untold_keyring(),
        )

    def _untold_keyring(self) -> Keyring | None:
        return None if self._keys.change is self._keyring_told else self._keys.change

    def advance(self, ready: Ready) -> None:
        """It has been done, or is on its way."""
        del self._packets[: len(ready.packets)]
        del self._stream_probes[: len(ready.stream_probes)]
        del self._exchanges[: len(ready.exchanges)]
        del self._list.changes[: len(ready.events)]
        del self._user_events[: len(ready.user_events)]
        del self._received[: len(ready.queries)]
        del self._asked.replies[: len(ready.replies)]
        self._keyring_told = ready.keyring or self._keyring_told

    def statistics(self) -> SwimStatistics:
        return self.swim.statistics()

    def check_invariants(self) -> None:
        self.swim.check_invariants()
        self._list.check_invariants()
        self._asked.check_invariants()
        self._keys.check_invariants()
        for node in self.swim.table:
            member = self._list.get(node.name)
            if member is None:
                assert node.gone  # pruned or reaped here, not yet forgotten below
                continue
            assert node.gone or member.status in (Status.ALIVE, Status.LEAVING), (node, member)
            assert member.endpoint == node.endpoint
            assert not member.suspected or not node.gone
