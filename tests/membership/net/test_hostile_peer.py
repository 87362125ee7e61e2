"""A peer that speaks the protocol well and lies: whatever it says, nothing breaks, nothing grows without
bound, and what we pass on would crash nobody.
"""

import random
from collections.abc import Callable

import pytest

from shoal.membership.config import GossipConfig
from shoal.membership.serf.core import SerfCore
from shoal.membership.serf.keys import KEY_QUERIES
from shoal.membership.serf.own_queries import MAX_ASKED, QueryRequest
from shoal.membership.serf.queries import MAX_OPEN
from shoal.membership.swim.broadcasts import MAX_QUEUED
from shoal.membership.swim.piggyback import MAX_PACKETS
from shoal.membership.swim.ready import Datagram, Exchanged, KeyringKept, StreamProbed
from shoal.membership.wire.key_messages import encode_key_request
from shoal.membership.wire.keyring import MAX_KEYS, Keyring
from shoal.membership.wire.messages import (
    MAX_INCARNATION,
    MAX_NAME_BYTES,
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
    encode_node_filter,
    encode_serf,
    encode_state,
    encode_tag_filter,
    encode_tags,
)

MAX_MEMBERS = 64
KEY = bytes(16)
VERSIONS = (b"", bytes((1, 5, 2, 2, 5, 5)), bytes(6), bytes((1, 1, 1, 1, 1, 1)), bytes((255,) * 6))
METAS = (
    b"",
    b"\xff\x80",
    b"\xff",
    b"role",
    encode_tags({"role": "web"}),
    b"\xff" + b"\x81" * 50,
    bytes(1024),
)


class Liar:
    """Random well-formed messages, with a taste for the edges and for the victim's own name."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def name(self) -> str:
        return self._rng.choice(("me", "n1", "n2", f"x{self._rng.randrange(500)}", "y" * MAX_NAME_BYTES))

    def number(self, most: int) -> int:
        return self._rng.choice((0, 1, 2, self._rng.randrange(most + 1), most - 1, most))

    def endpoint(self) -> Endpoint:
        address = self._rng.choice((bytes((10, 0, 0, self._rng.randrange(4))), bytes(16), bytes((255,) * 4)))
        return Endpoint(address, self._rng.choice((7946, 1, 65_535)))

    def message(self) -> Message:
        incarnation, name = self.number(MAX_INCARNATION), self.name()
        makers: list[Callable[[], Message]] = [
            lambda: Ping(incarnation, self._rng.choice(("", name)), self.endpoint(), name),
            lambda: IndirectPing(incarnation, self.endpoint(), name, True, self.endpoint(), name),
            lambda: Ack(incarnation, bytes(self._rng.randrange(300))),
            lambda: Nack(incarnation),
            lambda: Suspect(incarnation, name, self.name()),
            lambda: Dead(incarnation, name, self.name()),
            lambda: Alive(
                incarnation, name, self.endpoint(), self._rng.choice(METAS), self._rng.choice(VERSIONS)
            ),
            lambda: User(encode_serf(self.serf_message())),
            lambda: User(self._rng.randbytes(self._rng.randrange(60))),
        ]
        return self._rng.choice(makers)()

    def serf_message(self) -> SerfMessage:
        ltime, name = self.number(MAX_LTIME) if self._rng.random() < 0.02 else self.number(900), self.name()
        makers: list[Callable[[], SerfMessage]] = [
            lambda: JoinIntent(ltime, name),
            lambda: LeaveIntent(ltime, name, self._rng.random() < 0.5),
            lambda: UserEvent(ltime, name, bytes(self._rng.randrange(1500))),
            lambda: self.query(ltime),
            lambda: QueryResponse(ltime, self.number(99), name, self._rng.randrange(3), bytes(40)),
            lambda: Relay(self.endpoint(), name, self._rng.randbytes(self._rng.randrange(900))),
        ]
        return self._rng.choice(makers)()

    def query(self, ltime: int) -> Query:
        filters = self._rng.choice(
            (
                (),
                (encode_node_filter(["me"]),),
                (encode_tag_filter("role", "(a+)+$"),),
                (b"",),
                (b"\x00",) * 9,
            )
        )
        request = encode_key_request(bytes((self._rng.randrange(40),)) * 16)
        return Query(
            ltime=ltime,
            id=self.number((1 << 32) - 1),
            source=self.endpoint(),
            source_node=self.name(),
            filters=filters,
            flags=self._rng.randrange(4),
            relay_factor=self._rng.randrange(256),
            timeout_ns=self.number((1 << 63) - 1),
            name=self._rng.choice((*sorted(KEY_QUERIES), "_serf_conflict", "_serf_ping", "_serf_none", "q")),
            payload=self._rng.choice((b"", b"me", b"n1", request, bytes(900))),
        )

    def state(self) -> PushPull:
        nodes = tuple(
            NodeState(
                self.name(),
                self.endpoint(),
                self._rng.choice(METAS),
                self.number(MAX_INCARNATION),
                State(self._rng.randrange(4)),
                self._rng.choice(VERSIONS),
            )
            for _ in range(self._rng.randrange(40))
        )
        serf = SerfState(
            self.number(900),
            {self.name(): self.number(900) for _ in range(20)},
            tuple(self.name() for _ in range(5)),
            self.number(900),
            self.number(900),
            tuple(UserEvent(self.number(900), "e", b"x") for _ in range(20)),
        )
        user_state = self._rng.choice((encode_state(serf), b"", b"\x02\x80", b"garbage"))
        return PushPull(self._rng.random() < 0.5, nodes, user_state)


class Victim:
    """One core, driven as the shell would, its sizes checked after every step."""

    def __init__(self, seed: int) -> None:
        config = GossipConfig.local(name="me", max_members=MAX_MEMBERS, keyring=Keyring((KEY,)))
        self.rng = random.Random(seed)
        self.core = SerfCore(config, Endpoint(bytes((10, 0, 0, 1)), 7946), self.rng, 0)
        self.now_ms = 0

    def step(self, liar: Liar) -> None:
        choice = self.rng.random()
        if choice < 0.9:
            messages = tuple(liar.message() for _ in range(self.rng.randrange(1, 6)))
            self.core.step(Datagram(liar.endpoint(), messages), self.now_ms)
        elif choice < 0.95:
            self.core.step(Exchanged(liar.state(), self.rng.random() < 0.2), self.now_ms)
        elif choice < 0.97:
            self.core.step(StreamProbed(liar.number(MAX_INCARNATION), True), self.now_ms)
        elif len(self.core._asked) < MAX_ASKED:
            self.core.query(QueryRequest("q", timeout_ms=500), self.now_ms)
        self.now_ms += self.rng.choice((0, 1, 20, 300))
        if self.core.deadline() <= self.now_ms:
            self.core.wake(self.now_ms)
        self._carry_out()

    def _carry_out(self) -> None:
        while (ready := self.core.ready()) is not None:
            self.core.advance(ready)
            for packet in ready.packets:
                for part in packet.parts:
                    self._check_sent(decode_message(part))
            if ready.keyring is not None:
                self.core.step(KeyringKept(self.rng.choice(("", "the disk is full"))), self.now_ms)

    def _check_sent(self, message: Message) -> None:
        """Serf crashes on versions of one to five bytes, and the message must be one that Serf can read."""
        if isinstance(message, Alive):
            assert len(message.vsn) in (0, 6)
        if isinstance(message, User):
            decode_serf(message.payload)

    def check(self) -> None:
        self.core.check_invariants()
        assert len(self.core.swim.table) <= MAX_MEMBERS
        outbox = self.core.swim.outbox
        assert len(outbox.packets) <= MAX_PACKETS
        for queue in (outbox.own, outbox.intents, outbox.queries, outbox.events):
            assert len(queue) <= MAX_QUEUED
        assert len(self.core._queries._open) <= MAX_OPEN
        assert self.core.keyring is not None
        assert 1 <= len(self.core.keyring.keys) <= MAX_KEYS
        me = self.core.swim.table.local
        assert (me.name, me.state) == ("me", State.ALIVE)


@pytest.mark.parametrize("seed", range(4))
def test_a_liar_breaks_nothing(seed: int) -> None:
    """Three thousand packets and exchanges of anything; we stay alive in our own eyes, and bounded."""
    victim = Victim(seed)
    liar = Liar(random.Random(1_000 + seed))
    for number in range(3_000):
        victim.step(liar)
        if number % 10 == 0:
            victim.check()
    assert len(victim.core.members()) <= 4 * MAX_MEMBERS
