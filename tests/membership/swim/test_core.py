"""The SWIM core by hand: scripted scenarios, one core, a list as the wire."""

import random

from shoal.membership.config import GossipConfig
from shoal.membership.swim.core import SwimCore
from shoal.membership.swim.ready import (
    ChangeKind,
    Datagram,
    Exchange,
    Exchanged,
    StreamProbe,
    StreamProbed,
    SwimReady,
)
from shoal.membership.wire.messages import (
    MAX_INCARNATION,
    VSN,
    Ack,
    Alive,
    Dead,
    Endpoint,
    IndirectPing,
    Message,
    Nack,
    NodeState,
    Ping,
    PushPull,
    State,
    Suspect,
    User,
    decode_message,
)


def at(number: int) -> Endpoint:
    """The address of node `number`."""
    return Endpoint(bytes((10, 0, 0, number)), 7946)


ME = at(1)
STRANGER = at(9)
META = b"\xff\x80"


class Script:
    """One core called "me", and everything it asked for, decoded. Nodes other than n2
    ack their pings by themselves."""

    def __init__(self, **knobs: object) -> None:
        config = GossipConfig.lan(name="me", **knobs)
        self.core = SwimCore(config, ME, META, random.Random(7), 0)
        self.now_ms = 0
        self.silent = {"n2"}
        self.sent: list[tuple[Endpoint, Message]] = []
        self.changes: list[tuple[ChangeKind, str]] = []
        self.stream_probes: list[StreamProbe] = []
        self.exchanges: list[Exchange] = []
        self.users: list[bytes] = []
        self._take()

    def hear(self, *messages: Message, source: Endpoint = STRANGER) -> None:
        self.core.step(Datagram(source, messages), self.now_ms)
        self._take()

    def merge(self, *nodes: NodeState) -> None:
        self.core.step(Exchanged(PushPull(True, nodes, b"")), self.now_ms)
        self._take()

    def know(self, *numbers: int, incarnation: int = 1) -> None:
        for number in numbers:
            self.hear(Alive(incarnation, f"n{number}", at(number), META, VSN))

    def run(self, until_ms: int) -> None:
        while self.core.deadline() <= until_ms:
            self.now_ms = max(self.now_ms, self.core.deadline())
            self.core.wake(self.now_ms)
            self._take()
        self.now_ms = until_ms

    def _take(self) -> None:
        self.core.check_invariants()
        ready: SwimReady | None = self.core.ready()
        while ready is not None:
            self.core.advance(ready)
            for packet in ready.packets:
                messages = [decode_message(part) for part in packet.parts]
                self.sent += [(packet.receiver, message) for message in messages]
                self._ack(packet.receiver, messages)
            self.changes += [(change.kind, change.name) for change in ready.changes]
            self.stream_probes += ready.stream_probes
            self.exchanges += ready.exchanges
            self.users += ready.user_messages
            ready = self.core.ready()

    def _ack(self, asked: Endpoint, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, Ping) and message.node not in self.silent:
                self.core.step(Datagram(asked, (Ack(message.sequence),)), self.now_ms)

    def of(self, kind: type[Message]) -> list[tuple[Endpoint, Message]]:
        return [(receiver, message) for receiver, message in self.sent if isinstance(message, kind)]

    def probe_of(self, name: str) -> Ping:
        """Run until `name` is pinged."""
        while True:
            self.sent.clear()
            self.run(max(self.now_ms, self.core.deadline()))
            for _, message in self.of(Ping):
                assert isinstance(message, Ping)
                if message.node == name:
                    return message

    def state(self, name: str) -> tuple[State, int]:
        node = self.core.table.get(name)
        assert node is not None
        return node.state, node.incarnation


def test_ping_is_answered_to_its_source() -> None:
    """To the addresses inside when both are given, otherwise to where it came from;
    never for another name."""
    script = Script()
    script.hear(Ping(5, "me", at(3), "n3"), source=at(9))
    script.hear(Ping(6, "", None), source=at(9))
    script.hear(Ping(7, "somebody else", at(3)), source=at(9))
    assert [(receiver, message.sequence) for receiver, message in script.of(Ack)] == [(at(3), 5), (at(9), 6)]


def test_answers_go_where_our_socket_can_send() -> None:
    """A Serf agent bound to 0.0.0.0 on a host with IPv6 names an IPv6 address and asks over IPv4: the answer
    goes back the way the question came. An IPv4 address in IPv6 clothes is one of IPv4."""
    script = Script()
    six = Endpoint(bytes.fromhex("fd00" + 12 * "00" + "0002"), 7946)
    clothed = Endpoint(bytes(10) + b"\xff\xff" + at(4).address, 7946)
    for number, named in enumerate((six, clothed, at(5))):
        script.hear(Ping(number, "me", named, "n3"), source=at(9))
    assert [receiver for receiver, _ in script.of(Ack)] == [at(9), clothed, at(5)]
    script.know(2, 3)
    script.sent.clear()
    script.hear(IndirectPing(7, at(2), "n2", True, six, "n3"), source=at(9))
    script.run(script.now_ms + 510)
    assert [receiver for receiver, _ in script.of(Nack)] == [at(9)]


def without_news(script: Script) -> None:
    """All is told: from now on packets carry what they are sent for."""
    for _ in range(20):
        script.core.outbox.own.take(65_000, 1, 255)
    script.sent.clear()


def test_who_pings_us_hears_what_is_believed_of_it() -> None:
    """A node that we suspect or hold for dead lives, if it pings: it is told with the ack, so that it can
    refute. Not a node that left, nor somebody else under its name."""
    script = Script()
    script.know(2, 3, 4, 5)
    script.hear(Suspect(1, "n2", "n9"), Dead(1, "n3", "n9"), Dead(1, "n4", "n4"))
    for number in (2, 3, 4, 5):
        without_news(script)
        script.hear(Ping(number, "me", at(number), f"n{number}"))
        expected = {2: [(at(2), Suspect(1, "n2", "me"))], 3: [(at(3), Dead(1, "n3", "me"))]}.get(number, [])
        assert script.of(Suspect) + script.of(Dead) == expected
    without_news(script)
    script.hear(Ping(9, "me", at(9), "n3"))
    assert script.of(Dead) == []


def test_an_outdated_accusation_is_answered() -> None:
    """We have refuted it; the sender has not heard. One answer to a packet, none about others, none when
    we leave."""
    script = Script()
    script.know(2, 3)
    script.hear(Suspect(1, "me", "n2"))
    without_news(script)
    script.hear(Suspect(1, "me", "n3"), Dead(1, "me", "n3"), source=at(3))
    script.hear(Suspect(1, "n2", "n3"), source=at(7))
    assert [(to, getattr(message, "incarnation", 0)) for to, message in script.of(Alive)] == [(at(3), 2)]
    script.core.leave(script.now_ms)
    without_news(script)
    script.hear(Suspect(1, "me", "n3"), source=at(3))
    assert script.of(Alive) == []


def test_probe_acked_in_time_changes_nothing() -> None:
    """One ack, and the round goes on."""
    script = Script()
    script.know(2)
    ping = script.probe_of("n2")
    assert ping.source == ME
    script.hear(Ack(ping.sequence))
    script.run(script.now_ms + 900)
    assert script.state("n2") == (State.ALIVE, 1)
    assert not script.of(IndirectPing)
    assert script.core.statistics().failed_probes == 0


def test_silence_asks_others_and_the_stream_then_suspects() -> None:
    """Ping; after 500 ms three helpers and TCP, same number; after 1 s suspicion with our name."""
    script = Script()
    script.know(2, 3, 4, 5)
    ping = script.probe_of("n2")
    start_ms = script.now_ms
    script.run(start_ms + 499)
    assert not script.of(IndirectPing)
    script.run(start_ms + 500)
    requests = [message for _, message in script.of(IndirectPing)]
    assert {receiver for receiver, _ in script.of(IndirectPing)} == {at(3), at(4), at(5)}
    assert requests[0] == IndirectPing(ping.sequence, at(2), "n2", True, ME, "me")
    assert script.stream_probes[0] == StreamProbe(ping.sequence, "n2", at(2), 500)
    script.run(start_ms + 1000)
    assert script.state("n2") == (State.SUSPECT, 1)
    assert (ChangeKind.SUSPECT, "n2") in script.changes
    script.run(start_ms + 1300)
    assert Suspect(1, "n2", "me") in [message for _, message in script.of(Suspect)]


def test_a_stall_before_others_are_asked_takes_nothing_of_their_time() -> None:
    """The ping left, the process stood still past the whole probe: helpers and TCP are asked all the same,
    and have as long as ever; whoever answers them is not suspected, whoever does not is."""
    for answers in (True, False):
        script = Script()
        script.know(2, 3)
        ping = script.probe_of("n2")
        script.now_ms += 1_700
        script.core.wake(script.now_ms)
        script._take()
        assert script.state("n2")[0] == State.ALIVE
        assert [probe.timeout_ms for probe in script.stream_probes] == [500]
        assert [receiver for receiver, _ in script.of(IndirectPing)] == [at(3)]
        script.run(script.now_ms + 499)
        assert script.state("n2")[0] == State.ALIVE
        if answers:
            script.hear(Ack(ping.sequence), source=at(3))
        script.run(script.now_ms + 1)
        assert script.state("n2")[0] == (State.ALIVE if answers else State.SUSPECT)


def test_a_stall_while_others_are_asked_is_waited_out_once() -> None:
    """A verdict that comes as late as this process was waits as much longer for answers that need its turns,
    at most a probe timeout and not a second time. A timer of a busy loop is no stall."""
    for late_ms, longer_ms in ((124, 0), (125, 125), (300, 300), (1_900, 500)):
        script = Script()
        script.know(2, 3)
        script.probe_of("n2")
        script.run(script.now_ms + 500)
        script.now_ms += 500 + late_ms
        script.core.wake(script.now_ms)
        script._take()
        assert (script.state("n2")[0] == State.SUSPECT) == (longer_ms == 0)
        script.run(script.now_ms + longer_ms - 1)
        assert (script.state("n2")[0] == State.SUSPECT) == (longer_ms == 0)
        script.now_ms += 1 + 400  # standing still again excuses nothing
        script.core.wake(script.now_ms)
        script._take()
        assert script.state("n2")[0] == State.SUSPECT


def test_late_and_relayed_acks_count() -> None:
    """Any ack with the number before the deadline clears the target."""
    script = Script()
    script.know(2, 3)
    ping = script.probe_of("n2")
    script.run(script.now_ms + 900)
    script.hear(Ack(ping.sequence), source=at(3))
    script.run(script.now_ms + 200)
    assert script.state("n2")[0] == State.ALIVE


def test_reachable_over_tcp_alone_is_alive() -> None:
    """A firewall that eats UDP does not kill."""
    script = Script()
    script.know(2)
    ping = script.probe_of("n2")
    script.run(script.now_ms + 600)
    script.core.step(StreamProbed(ping.sequence, True), script.now_ms)
    script.run(script.now_ms + 500)
    assert script.state("n2")[0] == State.ALIVE


def test_failed_stream_probe_alone_decides_nothing() -> None:
    """A refused connection before the deadline leaves the helpers their time."""
    script = Script()
    script.know(2)
    ping = script.probe_of("n2")
    script.run(script.now_ms + 600)
    script.core.step(StreamProbed(ping.sequence, False), script.now_ms)
    assert script.state("n2")[0] == State.ALIVE
    script.hear(Ack(ping.sequence))
    script.run(script.now_ms + 500)
    assert script.state("n2")[0] == State.ALIVE


def test_acks_of_another_number_do_not_count() -> None:
    """An ack of an earlier probe must not save the next one."""
    script = Script()
    script.know(2)
    ping = script.probe_of("n2")
    script.hear(Ack((ping.sequence - 1) % 2**32))
    script.run(script.now_ms + 1000)
    assert script.state("n2")[0] == State.SUSPECT


def test_nacks_clear_our_own_health() -> None:
    """The helper could not reach the target either and says so: the fault is not ours.
    Nacks count once each."""
    script = Script()
    script.know(2, 3)
    ping = script.probe_of("n2")
    script.run(script.now_ms + 600)
    script.hear(Nack(ping.sequence), source=at(3))
    script.run(script.now_ms + 400)
    assert script.state("n2")[0] == State.SUSPECT
    assert script.core.statistics().health_score == 0


def test_silent_helpers_count_against_us() -> None:
    """No ack and no nack: two helpers silent make two points."""
    script = Script()
    script.know(2, 3, 4)
    script.probe_of("n2")
    script.silent = {"n2", "n3", "n4"}
    script.run(script.now_ms + 999)
    assert script.core.statistics().health_score == 0
    script.run(script.now_ms + 1)
    assert script.core.statistics().health_score == 2


def test_bad_health_stretches_the_deadline() -> None:
    """After one failure without helpers the next probe has two intervals before it accuses."""
    script = Script()
    script.know(2)
    script.probe_of("n2")
    script.run(script.now_ms + 999)
    script.hear(Alive(2, "n2", at(2), META, VSN))
    script.probe_of("n2")
    assert script.core.statistics().health_score == 1
    script.hear(Alive(3, "n2", at(2), META, VSN))
    start_ms = script.now_ms
    script.run(start_ms + 1999)
    assert script.state("n2")[0] == State.ALIVE
    script.run(start_ms + 2000)
    assert script.state("n2")[0] == State.SUSPECT


def test_indirect_ping_relays_the_ack() -> None:
    """Own number towards the target, the requester's number back; no nack after an ack."""
    script = Script()
    script.hear(IndirectPing(77, at(4), "n4", True, at(3), "n3"), source=at(3))
    receiver, ping = script.of(Ping)[-1]
    assert isinstance(ping, Ping)
    assert (receiver, ping.node) == (at(4), "n4")
    script.hear(Ack(ping.sequence), source=at(4))
    assert (at(3), Ack(77)) in script.sent
    script.run(script.now_ms + 2000)
    assert not script.of(Nack)


def test_indirect_ping_without_answer_is_nacked_if_wanted() -> None:
    """After the probe timeout, and only to those who understand it."""
    script = Script()
    script.hear(IndirectPing(77, at(2), "n2", True, at(3), "n3"))
    script.hear(IndirectPing(78, at(2), "n2", False, at(3), "n3"))
    script.run(499)
    assert not script.of(Nack)
    script.run(501)
    assert script.of(Nack) == [(at(3), Nack(77))]


def test_relays_are_bounded() -> None:
    """A flood of requests gets so many pings and no more."""
    script = Script()
    for number in range(2000):
        script.hear(IndirectPing(number, at(2), "n2", True, at(3), "n3"))
    assert len(script.of(Ping)) == 512


def test_suspect_is_told_at_its_probe() -> None:
    """So that it can refute at once."""
    script = Script()
    script.know(2, 3, 4, 5, 6)
    script.hear(Suspect(1, "n2", "n3"))
    script.probe_of("n2")
    told = [message for receiver, message in script.of(Suspect) if receiver == at(2)]
    assert Suspect(1, "n2", "me") in told


def test_suspicion_ends_in_death_and_confirmations_shorten_it() -> None:
    """k = 2 at LAN with six members: 24 s alone, 4 s with two more accusers."""
    script = Script()
    script.know(2, 3, 4, 5, 6)
    script.hear(Suspect(1, "n2", "n3"))
    script.core.step(Datagram(at(9), (Suspect(1, "n2", "n4"),)), 0)
    script.core.step(Datagram(at(9), (Suspect(1, "n2", "n5"),)), 0)
    script.run(3999)
    assert script.state("n2")[0] == State.SUSPECT
    script.run(4000)
    assert script.state("n2") == (State.DEAD, 1)
    assert (ChangeKind.LEAVE, "n2") in script.changes


def test_refutation_by_the_suspect_stops_the_clock() -> None:
    """A higher incarnation clears it; the old one does not."""
    script = Script()
    script.know(2, 3, 4, 5, 6)
    script.hear(Suspect(1, "n2", "n3"), Suspect(1, "n2", "n4"), Suspect(1, "n2", "n5"))
    script.hear(Alive(1, "n2", at(2), META, VSN))
    assert script.state("n2") == (State.SUSPECT, 1)
    script.hear(Alive(2, "n2", at(2), META, VSN))
    assert script.state("n2") == (State.ALIVE, 2)
    assert script.changes[-1] == (ChangeKind.REFUTED, "n2")


def test_versions_once_known_are_kept() -> None:
    """An alive claim may come without them; what the node can do has not changed, and
    we do not pass on their lack."""
    script = Script()
    script.know(2)
    script.hear(Alive(2, "n2", at(2), META, b""))
    assert script.core.table.get("n2").vsn == VSN
    script.run(500)
    assert Alive(2, "n2", at(2), META, VSN) in [message for _, message in script.of(Alive)]


def test_we_refute_what_is_said_of_us() -> None:
    """Suspect, dead, and alive with another meta: each is outbid by one, and our health score pays."""
    script = Script()
    script.know(2)
    script.hear(Suspect(1, "me", "n2"))
    assert script.state("me") == (State.ALIVE, 2)
    script.hear(Dead(7, "me", "n2"))
    assert script.state("me") == (State.ALIVE, 8)
    script.hear(Alive(8, "me", ME, b"\xff\x81\xa1a\xa1b", VSN))
    assert script.state("me") == (State.ALIVE, 9)
    script.hear(Dead(3, "me", "n2"))
    assert script.state("me") == (State.ALIVE, 9)
    script.run(500)
    assert Alive(9, "me", ME, META, VSN) in [message for _, message in script.of(Alive)]
    assert script.core.statistics().refutations == 3
    assert script.core.statistics().health_score == 3


def test_our_own_words_coming_back_are_not_refuted() -> None:
    """Else the pool would be told of nothing but us."""
    script = Script()
    script.hear(Alive(1, "me", ME, META, VSN))
    script.hear(Alive(1, "me", ME, META, VSN + b""))
    assert script.core.statistics().refutations == 0


def test_the_last_incarnation_cannot_be_outbid() -> None:
    """A hostile peer may claim it; we neither overflow nor crash."""
    script = Script()
    script.hear(Dead(MAX_INCARNATION, "me", "n2"))
    assert script.state("me") == (State.ALIVE, 1)
    script.hear(Dead(MAX_INCARNATION - 1, "me", "n2"))
    assert script.state("me") == (State.ALIVE, MAX_INCARNATION)


def test_restarted_node_finds_itself_and_refutes() -> None:
    """Incarnation 1 again, left at 5 for the pool: only the exchange tells it, and it comes back at 6."""
    script = Script()
    script.merge(
        NodeState("n2", at(2), META, 1, State.ALIVE, VSN), NodeState("me", ME, META, 5, State.LEFT, VSN)
    )
    assert script.state("me") == (State.ALIVE, 6)
    script.run(500)
    assert Alive(6, "me", ME, META, VSN) in [message for _, message in script.of(Alive)]


def test_dead_in_a_peers_list_is_only_a_suspicion_here() -> None:
    """The accused gets its chance; a peer's word kills nobody."""
    script = Script()
    script.know(2, 3, 4)
    script.merge(NodeState("n3", at(3), META, 1, State.DEAD, VSN))
    assert script.state("n3")[0] == State.SUSPECT
    script.merge(NodeState("n4", at(4), META, 1, State.LEFT, VSN))
    assert script.state("n4")[0] == State.LEFT


def test_second_address_of_a_living_name_is_a_conflict() -> None:
    """The first heard keeps the name, and the conflict is reported."""
    script = Script()
    script.know(2)
    script.hear(Alive(9, "n2", at(3), META, VSN))
    assert script.changes[-1] == (ChangeKind.CONFLICT, "n2")
    assert script.core.table.get("n2").endpoint == at(2)


def test_contested_node_asks_again_soon() -> None:
    """Back under another address while the old record still lives: exchange every 2 s until let in."""
    script = Script()
    script.know(3)
    for _ in range(3):
        script.exchanges.clear()
        script.merge(NodeState("me", at(7), META, 4, State.ALIVE, VSN))
        script.run(script.now_ms + 2100)
        assert script.exchanges == [Exchange(at(3), join=False)]


def test_dead_name_comes_back_elsewhere() -> None:
    """Reclaim: a killed agent that restarts on another port need not wait for being forgotten."""
    script = Script()
    script.know(2, incarnation=5)
    script.hear(Dead(5, "n2", "n3"))
    script.run(script.now_ms + 10)
    script.hear(Alive(1, "n2", at(12), META, VSN))
    assert script.state("n2") == (State.ALIVE, 1)
    assert script.core.table.get("n2").endpoint == at(12)


def test_long_dead_are_forgotten_and_get_no_gossip() -> None:
    """For 30 s the dead hear gossip, in case they are not dead; then their record goes at the round's end."""
    script = Script()
    script.know(2, 3)
    script.hear(Dead(1, "n2", "n3"))
    script.run(400)
    assert at(2) in {receiver for receiver, _ in script.sent}
    script.core.table.get("n3").changed_ms = 0
    script.sent.clear()
    for second in range(31, 60):
        script.run(second * 1000)
        script.hear(Alive(second, "n3", at(3), META, VSN))
    assert script.core.table.get("n2") is None


def test_news_is_told_on_a_bounded_number_of_times() -> None:
    """Retransmit limit 4 below ten members: then silence."""
    script = Script()
    script.know(2, 3)
    script.run(100)
    script.sent.clear()
    script.hear(Alive(2, "n3", at(3), META, VSN))
    told = Alive(2, "n3", at(3), META, VSN)
    script.hear(*[Ack(0)] * 3)
    script.run(script.now_ms + 5000)
    assert len([message for _, message in script.sent if message == told]) == 4


def test_members_are_bounded() -> None:
    """A flood of invented names is ignored beyond the limit, and the known ones stay."""
    script = Script(max_members=10)
    script.know(*range(2, 100))
    assert script.core.statistics().members == 10


def test_leave_says_dead_about_ourselves() -> None:
    """From == Node; afterwards we do not refute our own death."""
    script = Script()
    script.know(2, 3)
    broadcast = script.core.leave(script.now_ms)
    script.run(3000)
    assert Dead(1, "me", "me") in [message for _, message in script.of(Dead)]
    assert broadcast is not None
    assert broadcast.finished
    script.hear(Dead(1, "me", "me"), Suspect(1, "me", "n2"))
    assert script.state("me") == (State.LEFT, 1)
    assert script.core.leave(script.now_ms) is None


def test_changed_meta_is_a_new_incarnation() -> None:
    """Peers see an update; the same meta again is no news."""
    script = Script()
    script.know(2)
    script.core.set_meta(b"\xff\x81\xa1a\xa1b")
    script.core.set_meta(b"\xff\x81\xa1a\xa1b")
    assert script.state("me") == (State.ALIVE, 2)


def test_user_messages_pass_through_unread() -> None:
    """They are another layer's."""
    script = Script()
    script.hear(User(b"\x03whatever"))
    assert script.users == [b"\x03whatever"]


def test_repr_is_one_sorted_line() -> None:
    """Fit for a golden file."""
    script = Script()
    script.know(3, 2)
    assert repr(script.core) == "<SwimCore me health=0 me=alive/1 n2=alive/1 n3=alive/1>"
