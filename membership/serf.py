"""Serf's layer over SWIM: tags, intents with Lamport clocks, and whether a silent member left or failed.

Law of this file: member status is decided here. It drives SwimCore by the convention every core of this
project has and offers the same one to its own driver; no clock, no socket, no randomness of its own.

    alive --leave intent--> leaving --silence or dead--> left        alive --silence or dead--> failed
    failed --leave intent (force-leave)--> left                      any --alive claim--> alive

Facts of the protocol that shaped it:

- Memberlist's "I leave" alone shows as failed in Serf; the leave intent before it makes it a leave. An intent
  followed by silence ends as left as well, so a crash during shutdown does no harm.
- A leave intent about a living node (somebody's force-leave) is undone by that node with a newer join
intent. A
  Serf agent tells it to nobody when the accused was its only living peer: it shows only in its next
  push/pull, as a status time that is not ours.
- A Serf agent whose name is contested asks `_serf_conflict` and shuts itself down when nobody answers: we
answer.
- Peers ratchet each other's Lamport times about members that left; a status time proves nothing but order.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from shoal.membership.broadcasts import Broadcast
from shoal.membership.config import GossipConfig
from shoal.membership.events import EventLog, LamportClock
from shoal.membership.member import SerfMember, Status
from shoal.membership.queries import QueryDesk
from shoal.membership.ready import (
    Change,
    ChangeKind,
    EventKind,
    Exchange,
    Exchanged,
    Input,
    MemberChange,
    OutgoingPacket,
    Ready,
    StreamProbe,
)
from shoal.membership.swim import SwimCore, SwimStatistics
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.messages import Endpoint, PushPull
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
    decode_tags,
    encode_serf,
    encode_state,
    encode_tags,
)

MAX_RECENT_INTENTS = 1024
"""Intents about members not yet known; the oldest give way."""

MAX_EVENT_BYTES = 512
"""Name and payload of a user event we send: Serf's default limit."""


@dataclass(frozen=True, slots=True)
class RecentIntent:
    leaves: bool
    ltime: int
    heard_ms: int


class LeaveStage(Enum):
    """How far our own leave is; the order of memberlist's and Serf's words matters."""

    MEMBER = auto()
    INTENT = auto()
    DEAD = auto()
    DRAIN = auto()
    LEFT = auto()


class SerfCore:
    """Membership of one node, whole: what the shell and the simulation drive."""

    def __init__(self, config: GossipConfig, endpoint: Endpoint, rng: random.Random, now_ms: int) -> None:
        self._config = config
        self._rng = rng
        self._members: dict[str, SerfMember] = {}
        self._recent_intents: dict[str, RecentIntent] = {}
        self._clock = LamportClock()
        self._event_log = EventLog()
        self._queries = QueryDesk(config.name)
        self._packets: list[OutgoingPacket] = []
        self._stream_probes: list[StreamProbe] = []
        self._exchanges: list[Exchange] = []
        self._events: list[MemberChange] = []
        self._user_events: list[UserEvent] = []
        self._next_reap_ms = now_ms + config.reap_interval_ms
        self._next_reconnect_ms = now_ms + rng.randrange(1, config.reconnect_interval_ms + 1)
        self._leave_stage = LeaveStage.MEMBER
        self._leave_broadcast: Broadcast | None = None
        self._leave_deadline_ms = 0
        self.version = 0
        self.wire_faults = 0
        self.swim = SwimCore(config, endpoint, encode_tags(config.tags), rng, now_ms)
        self._absorb(now_ms)

    def __repr__(self) -> str:
        listed = sorted(self._members.values(), key=lambda member: member.name)
        shown = " ".join(f"{member.name}={member.shown_status}" for member in listed)
        return f"<SerfCore {self._config.name} {self._leave_stage.name.lower()} {shown}>"

    @property
    def has_left(self) -> bool:
        """The graceful leave is complete: the driver may stop."""
        return self._leave_stage is LeaveStage.LEFT

    def members(self) -> list[SerfMember]:
        """Everybody known, ourselves included, by name."""
        for member in self._members.values():
            node = self.swim.table.get(member.name)
            if node is not None:
                member.incarnation = node.incarnation
        return sorted(self._members.values(), key=lambda member: member.name)

    def member(self, name: str) -> SerfMember | None:
        """One of them, as of its last change."""
        return self._members.get(name)

    # What arrives, and time

    def step(self, event: Input, now_ms: int) -> None:
        """Something arrived."""
        self.swim.step(event, now_ms)
        self._absorb(now_ms)
        if isinstance(event, Exchanged):
            self._merge(event, now_ms)
            self._absorb(now_ms)

    def wake(self, now_ms: int) -> None:
        """Time has passed."""
        self.swim.wake(now_ms)
        self._absorb(now_ms)
        if now_ms >= self._next_reap_ms:
            self._next_reap_ms = now_ms + self._config.reap_interval_ms
            self._reap(now_ms)
        if now_ms >= self._next_reconnect_ms:
            self._next_reconnect_ms = now_ms + self._config.reconnect_interval_ms
            self._reconnect()
        self._go_on_leaving(now_ms)

    def deadline(self) -> int:
        """Call wake() by then."""
        deadlines = [self.swim.deadline(), self._next_reap_ms, self._next_reconnect_ms]
        if self._leave_stage in (LeaveStage.INTENT, LeaveStage.DEAD, LeaveStage.DRAIN):
            deadlines.append(self._leave_deadline_ms)
        return min(deadlines)

    def _absorb(self, now_ms: int) -> None:
        """Take what SWIM has to say, and give it its Serf meaning."""
        while (ready := self.swim.ready()) is not None:
            self.swim.advance(ready)
            self._packets += ready.packets
            self._stream_probes += ready.stream_probes
            self._exchanges += ready.exchanges
            for change in ready.changes:
                self._on_change(change, now_ms)
            for payload in ready.user_messages:
                self._on_user_message(payload, now_ms)

    def _on_user_message(self, payload: bytes, now_ms: int) -> None:
        try:
            message = decode_serf(payload)
        except WireError:
            self.wire_faults += 1  # a type of a newer Serf, or garbage: either way nothing to act upon
            return
        outbox = self.swim.outbox
        match message:
            case JoinIntent():
                if self._on_join_intent(message, now_ms):
                    outbox.intents.queue(payload, message.node)
            case LeaveIntent():
                if self._on_leave_intent(message, now_ms):
                    outbox.intents.queue(payload, message.node)
            case UserEvent():
                if self._on_user_event(message):
                    outbox.events.queue(payload)
            case Query():
                self._on_query(message, payload)
            case QueryResponse() | Relay():
                self._queries.on_passing(message, self.swim.outbox)

    # Member status

    def _on_change(self, change: Change, now_ms: int) -> None:
        match change.kind:
            case ChangeKind.JOIN:
                self._on_node_join(change, now_ms)
            case ChangeKind.LEAVE:
                self._on_node_leave(change, now_ms)
            case ChangeKind.CONFLICT:
                if (member := self._members.get(change.name)) is not None:
                    self._events.append(MemberChange(EventKind.CONFLICT, replace(member)))
            case ChangeKind.UPDATE | ChangeKind.SUSPECT | ChangeKind.REFUTED:
                member = self._members[change.name]
                self._refresh(member, change)
                self._set_suspected(member, change.kind is ChangeKind.SUSPECT, now_ms)
                kind = EventKind.SUSPECTED if change.kind is ChangeKind.SUSPECT else EventKind.UPDATED
                self._tell(kind, member)

    def _on_node_join(self, change: Change, now_ms: int) -> None:
        member = self._members.get(change.name)
        if member is None:
            self._make_room()
            member = SerfMember(
                change.name, change.endpoint, {}, change.vsn, change.incarnation, Status.ALIVE, now_ms
            )
            self._members[change.name] = member
        self._refresh(member, change)
        member.suspected = False
        self._set_status(member, Status.ALIVE, now_ms)
        intent = self._recent_intents.pop(change.name, None)
        if intent is not None and intent.ltime > member.status_ltime:
            member.status_ltime = intent.ltime
            if intent.leaves:
                self._set_status(member, Status.LEAVING, now_ms)
        self._tell(EventKind.JOINED, member)

    def _on_node_leave(self, change: Change, now_ms: int) -> None:
        member = self._members[change.name]
        self._refresh(member, change)
        member.suspected = False
        if member.status == Status.LEAVING:
            self._set_status(member, Status.LEFT, now_ms)
            self._tell(EventKind.LEFT, member)
        elif member.status == Status.ALIVE:
            self._set_status(member, Status.FAILED, now_ms)
            self._tell(EventKind.FAILED, member)

    def _refresh(self, member: SerfMember, change: Change) -> None:
        member.endpoint, member.vsn, member.incarnation = change.endpoint, change.vsn, change.incarnation
        try:
            member.tags = decode_tags(change.meta)
        except WireError:
            self.wire_faults += 1
            member.tags = {}  # the node is a member all the same, as in Serf

    def _set_status(self, member: SerfMember, status: Status, now_ms: int) -> None:
        if member.status != status:
            member.status = status
            member.since_ms = now_ms

    def _set_suspected(self, member: SerfMember, suspected: bool, now_ms: int) -> None:
        if member.suspected != suspected:
            member.suspected = suspected
            member.since_ms = now_ms

    def _tell(self, kind: EventKind, member: SerfMember) -> None:
        self.version += 1
        self._events.append(MemberChange(kind, replace(member)))

    # Intents

    def _on_join_intent(self, intent: JoinIntent, now_ms: int) -> bool:
        """True when it was news and should be told on."""
        self._clock.witness(intent.ltime)
        member = self._members.get(intent.node)
        if member is None:
            return self._remember_intent(intent.node, RecentIntent(False, intent.ltime, now_ms))
        if intent.ltime <= member.status_ltime:
            return False
        member.status_ltime = intent.ltime
        if member.status == Status.LEAVING:
            self._set_status(member, Status.ALIVE, now_ms)
            self._tell(EventKind.UPDATED, member)
        return True

    def _on_leave_intent(self, intent: LeaveIntent, now_ms: int) -> bool:
        self._clock.witness(intent.ltime)
        member = self._members.get(intent.node)
        if member is None:
            return self._remember_intent(intent.node, RecentIntent(True, intent.ltime, now_ms))
        if intent.ltime <= member.status_ltime:
            return False
        if intent.node == self._config.name and self._leave_stage is LeaveStage.MEMBER:
            self.announce_join(now_ms)
            return False
        member.status_ltime = intent.ltime
        if member.status == Status.ALIVE:
            self._set_status(member, Status.LEAVING, now_ms)
            self._tell(EventKind.UPDATED, member)
        elif member.status == Status.FAILED:
            self._set_status(member, Status.LEFT, now_ms)
            self._tell(EventKind.LEFT, member)
        if intent.prune and member.status == Status.LEFT:
            self._erase(member)
        return True

    def _remember_intent(self, name: str, intent: RecentIntent) -> bool:
        held = self._recent_intents.get(name)
        if held is not None and intent.ltime <= held.ltime:
            return False
        self._recent_intents.pop(name, None)
        self._recent_intents[name] = intent  # last in the order of insertion, which is the order of age
        if len(self._recent_intents) > MAX_RECENT_INTENTS:
            del self._recent_intents[next(iter(self._recent_intents))]
        return True

    def announce_join(self, now_ms: int) -> None:
        """Tell all that we are in; to be called after a join's exchanges, whose clocks it must exceed."""
        intent = JoinIntent(self._clock.time, self._config.name)
        self._on_join_intent(intent, now_ms)
        self.swim.outbox.intents.queue(encode_serf(intent), self._config.name)

    # Push/pull

    def local_state(self, *, join: bool) -> PushPull:
        """Our side of a push/pull."""
        members = self._members.values()
        state = SerfState(
            ltime=self._clock.time,
            status_ltimes={member.name: member.status_ltime for member in members},
            left_members=tuple(member.name for member in members if member.status == Status.LEFT),
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
            self.wire_faults += 1
            return
        self._clock.witness(state.ltime - 1)
        self._event_log.clock.witness(state.event_ltime - 1)
        self._queries.clock.witness(state.query_ltime - 1)
        left = set(state.left_members)
        for name in state.left_members:
            self._on_leave_intent(LeaveIntent(state.status_ltimes.get(name, 0) + 1, name), now_ms)
        contested = self._contests_us(state, left)
        for name, ltime in state.status_ltimes.items():
            if name not in left:
                self._on_join_intent(JoinIntent(ltime, name), now_ms)
        if contested:
            self.announce_join(now_ms)
        if exchanged.joined:  # what happened before we came is not ours to act upon
            self._event_log.min_ltime = max(self._event_log.min_ltime, state.event_ltime)
        for event in state.events:
            self._on_user_event(event)

    def _contests_us(self, state: SerfState, left: set[str]) -> bool:
        """Whether the peer has heard an intent about us that we never sent: a force-leave it told nobody
        of, or one of our former life. Answered with a newer join intent it is undone there."""
        name = self._config.name
        mine = self._members[name].status_ltime
        told = state.status_ltimes.get(name, 0)
        return self._leave_stage is LeaveStage.MEMBER and name not in left and told > mine

    # Events and queries

    def _on_user_event(self, event: UserEvent) -> bool:
        news = self._event_log.accept(event)
        if news:
            self._user_events.append(event)
        return news

    def send_user_event(self, name: str, payload: bytes) -> None:
        """Tell every member once. Raises ValueError above MAX_EVENT_BYTES."""
        if len(name.encode()) + len(payload) > MAX_EVENT_BYTES:
            raise ValueError(f"a user event has at most {MAX_EVENT_BYTES} bytes of name and payload")
        event = UserEvent(self._event_log.clock.stamp(), name, payload)
        self._event_log.accept(event)
        self.swim.outbox.events.queue(encode_serf(event))

    def _on_query(self, query: Query, payload: bytes) -> None:
        if not self._queries.is_news(query):
            return
        outbox = self.swim.outbox
        if not query.flags & Query.NO_BROADCAST:
            outbox.queries.queue(payload)
        answers = self._queries.answers(query, self._conflict_view)
        helpers = []
        if 0 < query.relay_factor < len(self.swim.table):
            alive = self.swim.table.sample(
                self._rng, query.relay_factor, lambda node: not node.gone and node.protocol_max >= 5
            )
            helpers = [node.endpoint for node in alive]
        for answer in answers:
            self._queries.respond(query, answer, helpers, outbox)

    def _conflict_view(self, name: str) -> ConflictAnswer | None:
        """What we know of a contested name."""
        member = self._members.get(name)
        if member is None:
            return None
        return ConflictAnswer(name, member.endpoint, member.tags, int(member.status), member.vsn)

    # Keeping the list

    def _reap(self, now_ms: int) -> None:
        """Drop members gone for long, and intents that nobody came for."""
        limits = {
            Status.FAILED: self._config.reconnect_timeout_ms,
            Status.LEFT: self._config.tombstone_timeout_ms,
        }
        for member in list(self._members.values()):
            limit_ms = limits.get(member.status)
            if limit_ms is not None and now_ms - member.since_ms > limit_ms:
                self._erase(member)
        horizon_ms = now_ms - self._config.recent_intent_timeout_ms
        for name in [name for name, held in self._recent_intents.items() if held.heard_ms < horizon_ms]:
            del self._recent_intents[name]

    def _erase(self, member: SerfMember) -> None:
        """Forget the member, if SWIM has nothing alive under the name: its changes must find it here."""
        node = self.swim.table.get(member.name)
        if node is None or node.gone:
            del self._members[member.name]
            self._tell(EventKind.REAPED, member)

    def _make_room(self) -> None:
        """A flood of names that come and go must not grow the list: beyond the bound those gone longest are
        erased."""
        if len(self._members) < self._config.max_members:
            return
        gone = [member for member in self._members.values() if member.status in (Status.FAILED, Status.LEFT)]
        gone.sort(key=lambda member: member.since_ms)
        for member in gone[: max(1, self._config.max_members // 8)]:
            self._erase(member)

    def _reconnect(self) -> None:
        """Dial one failed member, with odds failed/alive: the more are gone, the likelier it is a
        partition."""
        if self._leave_stage is not LeaveStage.MEMBER:
            return
        failed = [member for member in self._members.values() if member.status == Status.FAILED]
        alive = sum(1 for member in self._members.values() if member.status == Status.ALIVE)
        if failed and self._rng.random() < len(failed) / max(1, alive):
            self._exchanges.append(Exchange(self._rng.choice(failed).endpoint, join=False))

    # What the owner of this node wants

    def set_tags(self, tags: Mapping[str, str], now_ms: int) -> None:
        """Change our tags. Raises ValueError when they are too long."""
        self.swim.set_meta(encode_tags(tags))
        self._absorb(now_ms)

    def force_leave(self, name: str, now_ms: int) -> None:
        """Take a failed member for one that left; a living one undoes it. Raises KeyError for an unknown
        name."""
        if name not in self._members:
            raise KeyError(name)
        intent = LeaveIntent(self._clock.stamp(), name)
        if self._on_leave_intent(intent, now_ms):
            self.swim.outbox.intents.queue(encode_serf(intent), name)

    def leave(self, now_ms: int) -> None:
        """Begin a graceful leave; has_left turns true when it is complete. A second call changes nothing."""
        if self._leave_stage is not LeaveStage.MEMBER:
            return
        self._leave_stage = LeaveStage.INTENT
        intent = LeaveIntent(self._clock.stamp(), self._config.name)
        self._on_leave_intent(intent, now_ms)
        self._leave_broadcast = self.swim.outbox.intents.queue(encode_serf(intent), self._config.name)
        self._leave_deadline_ms = now_ms + self._config.broadcast_timeout_ms
        self._go_on_leaving(now_ms)

    def _go_on_leaving(self, now_ms: int) -> None:
        """Intent told, then memberlist's word told, then some time to answer late questions."""
        told = self._leave_broadcast is None or self._leave_broadcast.finished or not self.swim.others_alive()
        due = told or now_ms >= self._leave_deadline_ms
        if self._leave_stage is LeaveStage.INTENT and due:
            self._leave_stage = LeaveStage.DEAD
            self._leave_broadcast = self.swim.leave(now_ms)
            self._leave_deadline_ms = now_ms + self._config.broadcast_timeout_ms
            self._absorb(now_ms)
            told = not self.swim.others_alive()
            due = told
        if self._leave_stage is LeaveStage.DEAD and due:
            self._leave_stage = LeaveStage.DRAIN
            wait_ms = self._config.leave_propagate_ms if self.swim.others_alive() else 0
            self._leave_deadline_ms = now_ms + wait_ms
        if self._leave_stage is LeaveStage.DRAIN and now_ms >= self._leave_deadline_ms:
            self._leave_stage = LeaveStage.LEFT

    # Convention

    def ready(self) -> Ready | None:
        """What is to be done; None when there is nothing."""
        if not any((self._packets, self._stream_probes, self._exchanges, self._events, self._user_events)):
            return None
        return Ready(
            packets=tuple(self._packets),
            stream_probes=tuple(self._stream_probes),
            exchanges=tuple(self._exchanges),
            events=tuple(self._events),
            user_events=tuple(self._user_events),
        )

    def advance(self, ready: Ready) -> None:
        """It has been done, or is on its way."""
        del self._packets[: len(ready.packets)]
        del self._stream_probes[: len(ready.stream_probes)]
        del self._exchanges[: len(ready.exchanges)]
        del self._events[: len(ready.events)]
        del self._user_events[: len(ready.user_events)]

    def statistics(self) -> SwimStatistics:
        return self.swim.statistics()

    def check_invariants(self) -> None:
        self.swim.check_invariants()
        assert len(self._recent_intents) <= MAX_RECENT_INTENTS
        for node in self.swim.table:
            member = self._members.get(node.name)
            if member is None:
                assert node.gone  # pruned or reaped here, not yet forgotten below
                continue
            assert node.gone or member.status in (Status.ALIVE, Status.LEAVING), (node, member)
            assert member.endpoint == node.endpoint
            assert not member.suspected or not node.gone
