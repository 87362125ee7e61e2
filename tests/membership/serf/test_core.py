"""Serf's layer by hand: intents, clocks, the status machine, queries; one core, a list as the wire."""

import random

import pytest

from shoal.membership.config import GossipConfig
from shoal.membership.serf.core import SerfCore
from shoal.membership.serf.events import LamportClock, SeenRing
from shoal.membership.serf.own_queries import QueryRequest
from shoal.membership.serf.ready import EventKind, QueryKey, QueryReply, ReceivedQuery
from shoal.membership.swim.ready import Datagram, Exchanged
from shoal.membership.wire.dialect import pack
from shoal.membership.wire.messages import (
    VSN,
    Ack,
    Alive,
    Dead,
    Endpoint,
    Message,
    Ping,
    PushPull,
    Suspect,
    User,
    decode_message,
)
from shoal.membership.wire.serf import (
    MAX_LTIME,
    JoinIntent,
    LeaveIntent,
    Query,
    QueryResponse,
    Relay,
    SerfMessage,
    SerfState,
    UserEvent,
    decode_serf,
    decode_state,
    encode_serf,
    encode_state,
    encode_tag_filter,
    encode_tags,
)


def at(number: int) -> Endpoint:
    """The address of node `number`."""
    return Endpoint(bytes((10, 0, 0, number)), 7946)


class Script:
    """One SerfCore called "me" that knows n2 and n3; others ack their pings unless dead."""

    def __init__(self, **knobs: object) -> None:
        config = GossipConfig.lan(name="me", tags={"role": "test"}, **knobs)
        self.core = SerfCore(config, at(1), random.Random(5), 0)
        self.now_ms = 0
        self.sent: list[tuple[Endpoint, Message]] = []
        self.events: list[tuple[str, str]] = []
        self.user_events: list[UserEvent] = []
        self.queries: list[ReceivedQuery] = []
        self.replies: list[QueryReply] = []
        for number in (2, 3):
            meta = encode_tags({"n": str(number)})
            self.hear(Alive(1, f"n{number}", at(number), meta, VSN))
        self.events.clear()

    def hear(self, *messages: Message) -> None:
        self.core.step(Datagram(at(9), messages), self.now_ms)
        self._take()

    def hear_serf(self, message: SerfMessage) -> None:
        self.hear(User(encode_serf(message)))

    def merge(self, state: SerfState, *, joined: bool = False) -> None:
        exchange = Exchanged(PushPull(True, (), encode_state(state)), joined)
        self.core.step(exchange, self.now_ms)
        self._take()

    def ask(self, request: QueryRequest) -> QueryKey:
        key = self.core.query(request, self.now_ms)
        self._take()
        return key

    def run(self, duration_ms: int) -> None:
        until_ms = self.now_ms + duration_ms
        while self.core.deadline() <= until_ms:
            self.now_ms = max(self.now_ms, self.core.deadline())
            self.core.wake(self.now_ms)
            self._take()
        self.now_ms = until_ms

    def _take(self) -> None:
        self.core.check_invariants()
        while (ready := self.core.ready()) is not None:
            self.core.advance(ready)
            self.events += [(event.kind.value, event.member.name) for event in ready.events]
            self.user_events += ready.user_events
            self.queries += ready.queries
            self.replies += ready.replies
            for packet in ready.packets:
                messages = [decode_message(part) for part in packet.parts]
                self.sent += [(packet.receiver, message) for message in messages]
                for message in messages:
                    if isinstance(message, Ping):
                        self.core.step(Datagram(packet.receiver, (Ack(message.sequence),)), self.now_ms)

    def told(self) -> list[SerfMessage]:
        """Serf messages sent, decoded, in order."""
        return [decode_serf(message.payload) for _, message in self.sent if isinstance(message, User)]

    def status(self, name: str) -> str:
        return next(member.shown_status for member in self.core.members() if member.name == name)

    def local_state(self) -> SerfState:
        return decode_state(self.core.local_state(join=False).user_state)


def test_dead_without_an_intent_is_failed() -> None:
    """Even when memberlist says "I leave" (From == Node): Serf wants the intent first."""
    script = Script()
    script.hear(Dead(1, "n2", "n2"))
    script.hear(Dead(1, "n3", "n2"))
    assert (script.status("n2"), script.status("n3")) == ("failed", "failed")
    assert script.events == [("failed", "n2"), ("failed", "n3")]


def test_dead_after_an_intent_is_left() -> None:
    """Whoever announces it, and however it is noticed."""
    script = Script()
    script.hear_serf(LeaveIntent(5, "n2"))
    assert script.status("n2") == "leaving"
    script.hear(Dead(1, "n2", "n3"))
    assert script.status("n2") == "left"
    assert script.events == [("updated", "n2"), ("left", "n2")]


def test_suspicion_is_shown_and_taken_back() -> None:
    """suspect, and alive again by a higher incarnation."""
    script = Script()
    script.hear(Suspect(1, "n2", "n3"))
    assert script.status("n2") == "suspect"
    script.hear(Alive(2, "n2", at(2), encode_tags({"n": "2"}), VSN))
    assert script.status("n2") == "alive"
    assert script.events == [("suspected", "n2"), ("updated", "n2")]


def test_failed_member_joins_again() -> None:
    """An alive claim brings back whoever failed or left, without looking at Lamport times."""
    script = Script()
    script.hear_serf(LeaveIntent(50, "n2"))
    script.hear(Dead(1, "n2", "n2"))
    script.hear(Alive(2, "n2", at(2), encode_tags({"n": "two"}), VSN))
    assert script.status("n2") == "alive"
    assert script.events[-1] == ("joined", "n2")


def test_join_intent_newer_than_the_leave_undoes_it() -> None:
    """And an older one does not."""
    script = Script()
    script.hear_serf(LeaveIntent(5, "n2"))
    script.hear_serf(JoinIntent(5, "n2"))
    assert script.status("n2") == "leaving"
    script.hear_serf(JoinIntent(6, "n2"))
    assert script.status("n2") == "alive"
    script.hear_serf(LeaveIntent(6, "n2"))
    assert script.status("n2") == "alive"


def test_intents_are_told_on_once() -> None:
    """News travels, old news does not."""
    script = Script()
    script.hear_serf(JoinIntent(7, "n2"))
    script.run(3_000)
    assert JoinIntent(7, "n2") in script.told()
    script.sent.clear()
    script.hear_serf(JoinIntent(7, "n2"))
    script.hear_serf(JoinIntent(3, "n2"))
    script.run(3_000)
    assert not [message for message in script.told() if isinstance(message, JoinIntent)]


def test_force_leave_of_ourselves_is_undone() -> None:
    """A leave intent about a living node is answered with a join intent of a later time."""
    script = Script()
    script.hear_serf(LeaveIntent(40, "me"))
    script.run(1_000)
    assert script.status("me") == "alive"
    assert JoinIntent(41, "me") in script.told()
    assert LeaveIntent(40, "me") not in script.told()


def test_force_leave_seen_only_in_a_push_pull_is_undone() -> None:
    """A real agent whose only living peer we are tells it to nobody; its state betrays
    it. Undone once, not for ever."""
    script = Script()
    script.merge(SerfState(9, {"me": 8, "n2": 1}, (), 1, 1))
    script.run(3_000)
    joins = {message for message in script.told() if isinstance(message, JoinIntent) and message.node == "me"}
    assert len(joins) == 1
    (join,) = joins
    assert join.ltime > 8
    script.sent.clear()
    script.merge(SerfState(20, {"me": join.ltime, "n2": 1}, (), 1, 1))
    script.run(3_000)
    assert not [
        message for message in script.told() if isinstance(message, JoinIntent) and message.node == "me"
    ]


def test_force_leave_of_a_failed_member() -> None:
    """Ours: failed becomes left, and the intent is told; it has been gone since it failed."""
    script = Script()
    script.hear(Dead(1, "n2", "n3"))
    (failed,) = (member for member in script.core.members() if member.name == "n2")
    failed_ms = failed.since_ms
    script.run(60_000)
    script.core.force_leave("n2", script.now_ms)
    script.run(1_000)
    (left,) = (member for member in script.core.members() if member.name == "n2")
    assert (left.shown_status, left.since_ms) == ("left", failed_ms)
    assert [message for message in script.told() if isinstance(message, LeaveIntent)]
    with pytest.raises(KeyError):
        script.core.force_leave("nobody", script.now_ms)


def test_prune_erases_a_member_that_is_gone() -> None:
    """And only then: a living one would be missing here while it is alive everywhere else."""
    script = Script()
    script.hear(Dead(1, "n2", "n3"))
    script.hear_serf(LeaveIntent(9, "n2", prune=True))
    script.hear_serf(LeaveIntent(9, "n3", prune=True))
    assert [member.name for member in script.core.members()] == ["me", "n3"]
    assert ("reaped", "n2") in script.events
    script.hear(Alive(2, "n2", at(2), encode_tags({}), VSN))
    assert script.status("n2") == "alive"


def test_intents_about_strangers_wait_for_them() -> None:
    """A leave intent may overtake the alive message of its node."""
    script = Script()
    script.hear_serf(LeaveIntent(9, "n4"))
    script.hear(Alive(1, "n4", at(4), encode_tags({}), VSN))
    assert script.status("n4") == "leaving"


def test_intents_about_strangers_are_bounded() -> None:
    """A flood of invented names."""
    script = Script()
    for number in range(5_000):
        script.hear_serf(JoinIntent(number + 1, f"ghost-{number}"))
    script.core.check_invariants()
    assert len(script.core._list._recent_intents) == 1024


def test_leave_goes_in_serfs_order() -> None:
    """Intent first, then memberlist's word, then time to answer; then it is complete."""
    script = Script()
    script.core.leave(script.now_ms)
    assert script.status("me") == "leaving"
    script.run(999)
    assert not script.core.has_left
    script.hear(Ping(7, "me", at(2)))
    assert (at(2), Ack(7)) in script.sent
    script.run(3_000)
    assert script.core.has_left
    kinds = [
        type(decode_serf(message.payload)) if isinstance(message, User) else type(message)
        for _, message in script.sent
        if not isinstance(message, User) or isinstance(decode_serf(message.payload), LeaveIntent)
    ]
    assert Dead in kinds
    assert LeaveIntent in kinds
    assert kinds.index(LeaveIntent) < kinds.index(Dead)
    assert script.status("me") == "left"


def test_leave_is_bounded_even_when_nothing_can_be_told() -> None:
    """Twice the broadcast timeout and the time to drain: 5 + 5 + 1 s; a second call changes nothing."""
    script = Script(gossip_interval_ms=10**7, probe_interval_ms=10**7)
    script.run(10)  # the first gossip goes at once; from now on none does
    script.core.leave(script.now_ms)
    script.run(5_000)
    script.core.leave(script.now_ms)
    script.run(5_990)
    assert not script.core.has_left
    script.run(20)
    assert script.core.has_left


def test_clocks_follow_a_peers_state() -> None:
    """witness(LTime - 1), so that our next stamp is not below the peer's."""
    script = Script()
    script.merge(SerfState(30, {"n2": 4}, ("n3",), 20, 10))
    mine = script.local_state()
    assert (mine.ltime, mine.event_ltime, mine.query_ltime) == (30, 20, 10)
    assert mine.status_ltimes["n2"] == 4
    assert script.status("n3") == "leaving"


def test_join_intent_exceeds_the_pools_clock() -> None:
    """Announced after the merge; else the pool would ignore it after our former life's leave."""
    script = Script()
    script.merge(SerfState(30, {"me": 28}, ("me",), 1, 1), joined=True)
    script.core.announce_join(script.now_ms)
    script.run(1_000)
    joins = [message for message in script.told() if isinstance(message, JoinIntent) and message.node == "me"]
    assert max(joins, key=lambda intent: intent.ltime).ltime >= 30
    assert script.status("me") == "alive"


def test_user_events_are_delivered_and_told_once() -> None:
    """Duplicates by time, name and payload are not news; the coalesce flag does not distinguish."""
    script = Script()
    script.hear_serf(UserEvent(4, "deploy", b"1"))
    script.hear_serf(UserEvent(4, "deploy", b"1", True))
    script.hear_serf(UserEvent(4, "deploy", b"2"))
    assert [(event.name, event.payload) for event in script.user_events] == [
        ("deploy", b"1"),
        ("deploy", b"2"),
    ]
    script.run(2_000)
    assert UserEvent(4, "deploy", b"1") in script.told()


def test_old_events_are_no_news() -> None:
    """512 Lamport times back, or from before our own join."""
    script = Script()
    script.hear_serf(UserEvent(1_000, "new", b""))
    script.hear_serf(UserEvent(1_001 - 514, "old", b""))
    assert [event.name for event in script.user_events] == ["new"]
    joined = Script()
    joined.merge(SerfState(1, {}, (), 7, 1, (UserEvent(6, "before", b""),)), joined=True)
    joined.hear_serf(UserEvent(6, "before", b""))
    joined.hear_serf(UserEvent(7, "after", b""))
    assert [event.name for event in joined.user_events] == ["after"]


def test_events_of_a_push_pull_fill_gaps() -> None:
    """What gossip lost arrives with the state, and we hand on what we saw."""
    script = Script()
    script.merge(SerfState(1, {}, (), 7, 1, (UserEvent(6, "missed", b"x"),)))
    assert script.user_events == [UserEvent(6, "missed", b"x")]
    assert script.local_state().events == (UserEvent(6, "missed", b"x"),)


def test_our_events_are_limited() -> None:
    """512 bytes, Serf's default; above, nothing is sent."""
    script = Script()
    script.core.send_user_event("name", b"x" * 508)
    with pytest.raises(ValueError, match="512 bytes"):
        script.core.send_user_event("name", b"x" * 509)


def query(name: str, **changes: object) -> Query:
    """A query of n2 with an acknowledgement asked for."""
    values: dict[str, object] = {
        "ltime": 3, "id": 77, "source": at(2), "source_node": "n2", "filters": (), "flags": Query.ACK,
        "relay_factor": 0, "timeout_ns": 10**9, "name": name, "payload": b"",
    }  # fmt: skip
    return Query(**(values | changes))


def answers(script: Script) -> list[tuple[Endpoint, QueryResponse]]:
    """Responses sent, with their receivers."""
    decoded = [
        (receiver, decode_serf(message.payload))
        for receiver, message in script.sent
        if isinstance(message, User)
    ]
    return [(receiver, message) for receiver, message in decoded if isinstance(message, QueryResponse)]


def test_ping_query_is_acknowledged_once_and_told_on() -> None:
    """`_serf_ping`: reachability of the whole pool hangs on it."""
    script = Script()
    script.hear_serf(query("_serf_ping"))
    script.hear_serf(query("_serf_ping"))
    assert answers(script) == [(at(2), QueryResponse(3, 77, "me", 1, b""))]
    script.run(1_000)
    assert query("_serf_ping") in script.told()


def test_no_broadcast_flag_is_respected() -> None:
    """Flag 2."""
    script = Script()
    script.hear_serf(query("_serf_ping", flags=3))
    script.run(1_000)
    assert not [message for message in script.told() if isinstance(message, Query)]


def test_conflict_query_is_answered_with_what_we_know() -> None:
    """The member as we see it, nil for a stranger, nothing about ourselves: the asker counts answers."""
    script = Script()
    script.hear_serf(query("_serf_conflict", payload=b"n3", flags=0))
    script.hear_serf(query("_serf_conflict", payload=b"nobody", flags=0, id=78))
    script.hear_serf(query("_serf_conflict", payload=b"me", flags=0, id=79))
    payloads = [answer.payload for _, answer in answers(script)]
    assert len(payloads) == 2
    assert payloads[0].startswith(b"\x06\x8b\xa4Addr\xa4" + at(3).address)
    assert payloads[1] == b"\x06\xc0"


@pytest.mark.parametrize(
    ("filters", "answered"),
    [
        ((b"\x00" + pack(["me", "other"]),), 1),
        ((b"\x00" + pack(["other"]),), 0),
        ((encode_tag_filter("role", "^te.*t$"),), 0),
        ((encode_tag_filter("role", "^te.*$"),), 1),
        ((encode_tag_filter("role", "te"), b"\x00" + pack(["me"])), 1),
        ((encode_tag_filter("role", "te"), b"\x00" + pack(["other"])), 0),
        ((encode_tag_filter("none", "^$"),), 1),
        ((encode_tag_filter("role", "(a+)+$"),), 0),
        ((encode_tag_filter("role", "(te"),), 0),
        ((b"\x01" + pack(["x"]),), 0),
        ((encode_tag_filter("role", ""),) * 8, 1),
        ((encode_tag_filter("role", ""),) * 9, 0),
        ((b"\x07\xc0",), 0),
        ((b"",), 0),
        ((b"\x00\xff",), 0),
    ],
)
def test_filters(filters: tuple[bytes, ...], answered: int) -> None:
    """All must match: a node filter names us, a tag filter's expression is found (a missing tag is empty);
    what is not understood, or too much, does not match."""
    script = Script()
    script.hear_serf(query("_serf_ping", filters=filters))
    assert len(answers(script)) == answered


def test_what_was_asked_before_we_came_is_not_ours_to_answer() -> None:
    """A packet recorded in our former life, for example, that would change keys again; told after our first
    join, however often we exchange state later."""
    script = Script()
    script.merge(SerfState(1, {}, (), 1, 40), joined=True)
    script.hear_serf(query("_serf_ping", ltime=39))
    assert answers(script) == []
    script.merge(SerfState(1, {}, (), 1, 50), joined=True)
    script.hear_serf(query("_serf_ping", ltime=40))
    assert len(answers(script)) == 1


def test_relay_factor_sends_through_helpers() -> None:
    """The answer goes straight and through two members."""
    script = Script()
    script.hear_serf(query("_serf_ping", relay_factor=2))
    relays = [message for message in script.told() if isinstance(message, Relay)]
    assert len(relays) == 2
    assert relays[0].destination == at(2)
    assert decode_serf(relays[0].message) == QueryResponse(3, 77, "me", 1, b"")


def test_relayed_answers_are_handed_on_as_they_are() -> None:
    """To whatever address they name; nothing but answers, for it would go out in our name."""
    script = Script()
    answer = encode_serf(QueryResponse(3, 77, "n3", 0, b"yes")) + b"and more"
    script.hear_serf(Relay(at(8), "n8", answer))
    assert (at(8), User(answer)) in script.sent
    script.sent.clear()
    for other in (
        b"",
        b"\x05whatever",
        encode_serf(LeaveIntent(9, "n3")),
        encode_serf(Relay(at(8), "n8", answer)),
    ):
        script.hear_serf(Relay(at(8), "n8", other))
    assert script.sent == []


def test_unknown_and_bad_serf_messages_are_skipped() -> None:
    """A newer Serf's type, garbage, and a push/pull state that is not Serf's: nothing comes of them."""
    script = Script()
    before = script.core.version
    script.hear(User(b"\x2a\x80"), User(b"\x01\xff"), User(b""))
    script.core.step(Exchanged(PushPull(False, (), b"\x63junk")), 0)
    assert script.sent == script.events == []
    assert script.core.version == before


def test_bad_tags_leave_a_member_without_tags() -> None:
    """One value that is no text loses them all, and the member stays."""
    script = Script()
    script.hear(Alive(1, "n5", at(5), b"\xff\x81\xa1k\x05", VSN))
    assert script.status("n5") == "alive"
    assert next(member.tags for member in script.core.members() if member.name == "n5") == {}


def test_gone_members_are_reaped_after_their_time() -> None:
    """Failed and left ones each have their own; then the list forgets them and says so."""
    script = Script(reconnect_timeout_ms=60_000, tombstone_timeout_ms=120_000)
    script.hear(Dead(1, "n2", "n3"))
    script.hear_serf(LeaveIntent(5, "n3"))
    script.hear(Dead(1, "n3", "n3"))
    script.run(80_000)
    assert [member.name for member in script.core.members()] == ["me", "n3"]
    script.run(60_000)
    assert [member.name for member in script.core.members()] == ["me"]
    assert script.events[-2:] == [("reaped", "n2"), ("reaped", "n3")]


def test_names_that_come_and_go_are_bounded() -> None:
    """A flood of members that join and fail: the list stays bounded, and who is alive stays in it."""
    script = Script(max_members=64, gossip_to_dead_ms=1_000)
    for number in range(500):
        name = f"ghost-{number}"
        script.hear(Alive(1, name, at(number % 250 + 4), encode_tags({}), VSN), Dead(1, name, "n2"))
        script.run(100)
    names = [member.name for member in script.core.members()]
    assert len(names) <= 64
    newest = {f"ghost-{number}" for number in range(470, 500)}
    assert {"me", "n2", "n3"} | newest <= set(names)


def test_a_flood_does_not_push_a_failed_member_out_that_had_answered() -> None:
    """It is dialled again until it is back; the invented ones go first, however long it has been gone."""
    script = Script(max_members=64, gossip_to_dead_ms=1_000)
    script.run(20_000)
    script.hear(Dead(1, "n3", "n2"))
    script.run(30_000)
    for number in range(500):
        name = f"ghost-{number}"
        script.hear(Alive(1, name, at(number % 250 + 4), encode_tags({}), VSN), Dead(1, name, "n2"))
        script.run(100)
    status = {member.name: member.shown_status for member in script.core.members()}
    assert len(status) <= 64
    assert status["n3"] == "failed"


def test_version_counts_every_change_of_the_list() -> None:
    """What a blocking query waits for."""
    script = Script()
    versions = [script.core.version]
    for message in (Suspect(1, "n2", "n3"), Dead(1, "n2", "n3"), Alive(2, "n2", at(2), b"\xff\x80", VSN)):
        script.hear(message)
        versions.append(script.core.version)
    assert versions == sorted(set(versions))
    script.hear(Dead(1, "n2", "n3"))
    assert script.core.version == versions[-1]


def test_lamport_clock_stops_before_it_overflows() -> None:
    """A hostile time near the end of 64 bits must not break the encoding of ours."""
    clock = LamportClock()
    clock.witness(2**64 - 2)
    assert encode_serf(JoinIntent(clock.stamp(), "me"))
    assert encode_serf(JoinIntent(clock.stamp(), "me"))


def test_seen_ring_is_bounded_per_slot() -> None:
    """Distinct messages of one time beyond the bound are no news; an older lap of the ring neither."""
    ring = SeenRing()
    assert sum(ring.is_news(5, number) for number in range(100)) == 16
    assert ring.is_news(5 + 512, "lap")
    assert ring.is_news(6, "just young enough")
    ring.clock.witness(518)
    assert not ring.is_news(6, "too old")
    assert ring.is_news(MAX_LTIME, "last")
    assert not ring.is_news(MAX_LTIME - 512, "its slot holds a newer lap")


def test_status_events_name_their_kind() -> None:
    """The names that the member list's users hear."""
    assert {kind.value for kind in EventKind} >= {"joined", "suspected", "failed", "left", "updated"}
