"""The asyncio shell on 127.0.0.1: real sockets, few seconds, a fast profile."""

import asyncio
import contextlib
import gc
import random
import select
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from waiting import PATIENCE_S, until

from shoal.membership.config import GossipConfig
from shoal.membership.interface import JoinError, Member, MemberEvent
from shoal.membership.net.gossip import Membership
from shoal.membership.wire.messages import VSN, Ack, Alive, Endpoint, Ping, RemoteError, User, encode_message
from shoal.membership.wire.packets import decode_packet, encode_packet
from shoal.membership.wire.streams import StreamDecoder, encode_stream

FAST = {
    "probe_interval_ms": 100,
    "probe_timeout_ms": 40,
    "gossip_interval_ms": 20,
    "suspicion_mult": 4,
    "push_pull_interval_ms": 1_000,
    "leave_propagate_ms": 50,
    "reconnect_interval_ms": 300,
    "stream_timeout_ms": 5_000,
}
"""A tenth of the LAN profile, so that a death takes half a second."""


class Pool:
    """Started members and what each heard."""

    def __init__(self) -> None:
        self.members: list[Membership] = []
        self.heard: list[list[tuple[str, str]]] = []

    async def start(self, name: str, *, port: int = 0, **knobs: object) -> Membership:
        heard: list[tuple[str, str]] = []

        def on_event(event: MemberEvent) -> None:
            heard.append((event.kind, event.member.name))

        config = GossipConfig.local(name=name, bind_port=port, tags={"name": name}, **(FAST | knobs))
        member = Membership(config, rng=random.Random(name), on_event=on_event)
        await member.start()
        self.members.append(member)
        self.heard.append(heard)
        return member


@asynccontextmanager
async def pool(*names: str, **knobs: object) -> AsyncIterator[Pool]:
    """Members joined through the first; stopped at the end whatever happened."""
    started = Pool()
    try:
        for name in names:
            member = await started.start(name, **knobs)
            if len(started.members) > 1:
                assert await member.join([("127.0.0.1", started.members[0].port)]) == 1
        yield started
    finally:
        for member in started.members:
            await member.stop()


def statuses(member: Membership) -> dict[str, str]:
    """What a member shows."""
    return {other.name: other.status for other in member.members()}


ALL_ALIVE = {"a": "alive", "b": "alive", "c": "alive"}


async def test_three_members_find_each_other_with_tags() -> None:
    """One seed suffices; names, addresses, ports and tags arrive."""
    async with pool("a", "b", "c") as started:
        await until(lambda: all(statuses(member) == ALL_ALIVE for member in started.members))
        by_name = {member.name: member for member in started.members[1].members()}
        assert by_name["c"].tags == {"name": "c"}
        assert (by_name["c"].address, by_name["c"].port) == ("127.0.0.1", started.members[2].port)
        assert by_name["c"].incarnation >= 1
        assert ("joined", "c") in started.heard[1]


async def test_udp_and_tcp_share_the_picked_port() -> None:
    """Port 0 picks one that is free for both."""
    async with pool("a") as started:
        port = started.members[0].port
        assert port > 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, pytest.raises(OSError, match="in use"):
            udp.bind(("127.0.0.1", port))
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            pass


async def test_explicit_port_in_use_is_an_error() -> None:
    """Taken for either protocol; nothing stays open."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        port = udp.getsockname()[1]
        started = Pool()
        with pytest.raises(OSError, match="in use"):
            await started.start("a", port=port)


async def test_a_member_that_stops_without_a_word_fails() -> None:
    """As after kill -9: suspected, then failed, for everybody else; the time of the change is told."""
    async with pool("a", "b", "c") as started:
        await until(lambda: all(statuses(member) == ALL_ALIVE for member in started.members))
        await started.members[2].stop()
        expected = ALL_ALIVE | {"c": "failed"}
        await until(lambda: all(statuses(member) == expected for member in started.members[:2]))
        assert started.heard[0].index(("suspected", "c")) < started.heard[0].index(("failed", "c"))


async def test_a_failed_member_returns_under_its_name_and_port() -> None:
    """Incarnation 1 again: it must find itself in the list and refute, or nobody believes it."""
    async with pool("a", "b", "c") as started:
        await until(lambda: all(statuses(member) == ALL_ALIVE for member in started.members))
        port = started.members[2].port
        await started.members[2].stop()
        await until(lambda: statuses(started.members[0])["c"] == "failed")
        again = await started.start("c", port=port)
        await again.join([("127.0.0.1", started.members[1].port)])
        await until(lambda: all(statuses(member) == ALL_ALIVE for member in (*started.members[:2], again)))
        assert next(member.incarnation for member in again.members() if member.name == "c") > 1


async def test_leave_is_left_and_not_failed() -> None:
    """And the call returns only when it was told."""
    async with pool("a", "b", "c") as started:
        await until(lambda: all(statuses(member) == ALL_ALIVE for member in started.members))
        await started.members[2].leave()
        await started.members[2].stop()
        expected = ALL_ALIVE | {"c": "left"}
        await until(lambda: all(statuses(member) == expected for member in started.members[:2]))
        assert ("failed", "c") not in started.heard[0] + started.heard[1]
        await started.members[2].leave()


async def test_tags_change_while_running() -> None:
    """Everybody hears `updated`; the version grows; too long tags change nothing."""
    async with pool("a", "b") as started:
        await until(lambda: len(started.members[0].members()) == 2)
        version = started.members[1].version
        started.members[0].set_tags({"name": "a", "pv": "7"})
        await until(lambda: started.members[1].members()[0].tags.get("pv") == "7")
        assert started.members[1].version > version
        with pytest.raises(ValueError, match="512"):
            started.members[0].set_tags({"k": "v" * 600})
        assert started.members[0].members()[0].tags["pv"] == "7"


async def test_join_counts_and_names_what_failed() -> None:
    """Some answered: how many. None: one error that says where and why. Ourselves: nobody."""
    async with pool("a", "b") as started:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            nowhere = ("127.0.0.1", closed.getsockname()[1])
            here = ("127.0.0.1", started.members[0].port)
            assert await started.members[1].join([nowhere, here]) == 1
            assert await started.members[0].join([here]) == 0
            assert await started.members[1].join([("localhost", here[1])]) == 1
            with pytest.raises(JoinError, match=str(nowhere[1])):
                await started.members[1].join([nowhere])


async def test_a_name_stands_for_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them is dead, one is ours, the third answers: that is contact. A name that
    is none is a fault."""
    async with pool("a", "b") as started:
        loop = asyncio.get_running_loop()
        port = started.members[0].port

        async def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
            if host != "seeds.example":
                raise socket.gaierror(-2, "Name or service not known")
            return [(0, 0, 0, "", (address, port)) for address in ("127.0.0.77", "127.0.0.1")]

        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        assert await started.members[1].join([("seeds.example", port)]) == 1
        with pytest.raises(JoinError, match="not known"):
            await started.members[1].join([("nobody.example", port)])


async def test_a_listener_that_raises_does_not_stop_gossip() -> None:
    """Its exception is the caller's; the timer goes on, and the others see nothing."""
    # Nobody gossips by itself: on a busy machine that would meet the listener before the join does.
    silent = {"gossip_interval_ms": 60_000, "push_pull_interval_ms": 60_000, "probe_interval_ms": 60_000}
    async with pool("a", "b", **silent) as started:
        config = GossipConfig.local(name="c")
        member = Membership(config, rng=random.Random(1), on_event=raise_on_others)
        await member.start()
        started.members.append(member)
        probes = member.statistics().probes
        with pytest.raises(ZeroDivisionError):
            await member.join([("127.0.0.1", started.members[0].port)])
        await until(lambda: member.statistics().probes > probes + 2)
        await until(lambda: statuses(started.members[0]) == ALL_ALIVE)


async def test_a_start_that_fails_leaves_nothing_open() -> None:
    """The port is free again at once."""

    def raise_at_once(event: MemberEvent) -> None:
        raise ZeroDivisionError(event.kind)

    member = Membership(GossipConfig.local(name="c"), rng=random.Random(1), on_event=raise_at_once)
    with pytest.raises(ZeroDivisionError):
        await member.start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", member.port))


def raise_on_others(event: MemberEvent) -> None:
    """A bug in a listener."""
    if event.kind == "joined" and event.member.name != "c":
        raise ZeroDivisionError(event.member.name)


async def test_user_events_reach_the_others() -> None:
    """Delivered once, to the sender's peers."""
    async with pool("a") as started:
        received: list[bytes] = []
        config = GossipConfig.local(name="b", **FAST)
        member = Membership(
            config,
            rng=random.Random(1),
            on_event=lambda _: None,
            on_user_event=lambda event: received.append(event.payload),
        )
        await member.start()
        started.members.append(member)
        await member.join([("127.0.0.1", started.members[0].port)])
        started.members[0].send_user_event("routes", b"v7")
        await until(lambda: received == [b"v7"])


async def ask(port: int, data: bytes) -> bytes:
    """Write, read to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(40):
            return await reader.read()
    finally:
        writer.close()


async def test_stream_ping_is_answered_and_one_for_another_is_not() -> None:
    """What a peer does whose UDP is blocked."""
    async with pool("a") as started:
        port = started.members[0].port
        answer = await ask(port, encode_stream(Ping(9, "a")))
        assert StreamDecoder().feed(answer) == Ack(9)
        assert await ask(port, encode_stream(Ping(9, "somebody"))) == b""


async def test_bad_streams_get_an_error_and_nothing_breaks() -> None:
    """Garbage is answered with memberlist's error message; an unexpected message is just closed."""
    async with pool("a") as started:
        port = started.members[0].port
        answer = StreamDecoder().feed(await ask(port, b"\x06\x81\xa5Nodes\xa1x"))
        assert isinstance(answer, RemoteError)
        assert await ask(port, encode_stream(Ack(1))) == b""
        assert statuses(started.members[0]) == {"a": "alive"}


async def test_a_silent_stream_is_closed_after_its_time() -> None:
    """Half a second here; a slow or dead peer holds nothing for ever."""
    async with pool("a", stream_timeout_ms=500) as started:
        assert await ask(started.members[0].port, b"\x09\x82\xa4Algo") == b""


async def test_streams_are_bounded() -> None:
    """The 65th idle connection is refused at once, and the pool goes on working."""
    async with pool("a", stream_timeout_ms=60_000) as started:  # one that waits for it is not refused at once
        port = started.members[0].port
        writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(64)]
        await until(lambda: len(started.members[0]._streams) == 64)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(40):
                assert await reader.read() == b""
        finally:
            for open_writer in (*writers, writer):
                open_writer.close()
        assert started.members[0].traffic().refused_streams == 1
        await until(lambda: not started.members[0]._streams)


async def test_garbage_packets_are_counted_and_survived() -> None:
    """A flood of them neither stops probing nor grows anything."""
    async with pool("a", "b") as started:
        await until(lambda: len(started.members[0].members()) == 2)
        rng = random.Random(3)
        address = ("127.0.0.1", started.members[0].port)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            for _ in range(300):
                udp.sendto(rng.randbytes(rng.randrange(1, 200)), address)
            udp.sendto(encode_packet((encode_message(User(b"\x03\xff")),)), address)
        await until(lambda: started.members[0].traffic().faults > 200)
        probes = started.members[0].statistics().probes
        await until(lambda: started.members[0].statistics().probes > probes + 2)
        assert statuses(started.members[0]) == {"a": "alive", "b": "alive"}


@pytest.mark.machine_clock
async def test_a_stalled_loop_accuses_nobody() -> None:
    """Acks that wait in the kernel while the process stands still are read before any deadline is judged."""
    async with pool("a", "b", "c") as started:
        await until(lambda: all(statuses(member) == ALL_ALIVE for member in started.members))
        await asyncio.sleep(0.15)
        for _ in range(3):
            hold(0.25)
            await asyncio.sleep(0.05)
        assert not [kind for heard in started.heard for kind, _ in heard if kind == "failed"]


class Standing:
    """A member's clock that stands still but for `hold`: how long this process stood still is the test's."""

    def __init__(self, member: Membership, monkeypatch: pytest.MonkeyPatch) -> None:
        self._member = member
        self._now_ms = member._now_ms()
        monkeypatch.setattr(member, "_now_ms", lambda: self._now_ms)

    def hold(self, milliseconds: int) -> None:
        """The member's timer fires so much later, whatever the loop does."""
        self._now_ms += milliseconds
        self._member._on_timer()

    def next_ping(self, udp: socket.socket) -> Ping:
        """To a socket of ours. Nothing of its time is over."""
        while self._member._running().swim._prober._probe is None:
            self.hold(2)
        while True:
            messages = decode_packet(udp.recv(65_536)).messages
            pings = [message for message in messages if isinstance(message, Ping)]
            if pings:
                return pings[0]


async def test_what_arrived_counts_before_what_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline has passed and the ack lies in the kernel when the timer fires: the ack is read first."""
    async with pool("a") as started:
        member = started.members[0]
        standing = Standing(member, monkeypatch)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.bind(("127.0.0.1", 0))
            udp.settimeout(PATIENCE_S)
            endpoint = Endpoint(bytes((127, 0, 0, 1)), udp.getsockname()[1])
            alive = encode_message(Alive(1, "peer", endpoint, b"", VSN))
            udp.sendto(encode_packet((alive,)), ("127.0.0.1", member.port))
            arrived(member)
            ping = standing.next_ping(udp)
            for answers in (True, False):
                for _ in range(2):  # others are asked, late as it is; then the stall is excused, once
                    standing.hold(150)
                if answers:
                    ack = encode_packet((encode_message(Ack(ping.sequence)),))
                    udp.sendto(ack, ("127.0.0.1", member.port))
                    arrived(member)
                standing.hold(150)
                assert statuses(member) == {"a": "alive", "peer": "alive" if answers else "suspect"}


def arrived(member: Membership) -> None:
    """What was sent to it lies in the kernel."""
    assert select.select([member._udp], [], [], PATIENCE_S)[0]


def hold(seconds: float) -> None:
    """Stand still, as a long garbage collection or a stopped process would."""
    time.sleep(seconds)


async def test_stop_is_idempotent_and_before_start_harmless() -> None:
    """And asking an unstarted one is a bug that says so."""
    member = Membership(GossipConfig.local(name="a"), rng=random.Random(1), on_event=lambda _: None)
    await member.stop()
    with pytest.raises(RuntimeError, match="not started"):
        member.members()
    await member.start()
    await member.stop()
    await member.stop()


async def test_wildcard_bind_advertises_an_address_that_can_be_dialled() -> None:
    """0.0.0.0 is nobody's address."""
    config = GossipConfig.local(name="a", bind_address="0.0.0.0")
    member = Membership(config, rng=random.Random(1), on_event=lambda _: None)
    await member.start()
    try:
        (shown,) = member.members()
        assert isinstance(shown, Member)
        assert shown.address != "0.0.0.0"
    finally:
        await member.stop()


def test_endpoint_text() -> None:
    """For logs."""
    assert str(Endpoint(bytes((127, 0, 0, 1)), 80)) == "127.0.0.1:80"


async def test_a_stream_that_comes_with_the_end_is_closed() -> None:
    """Accepted in the very turn in which the member stops: its task never runs, and its socket must not stay
    open (a warning that nobody closed it would fail this test)."""
    for _ in range(5):
        async with pool("a") as started:
            reader, writer = await asyncio.open_connection("127.0.0.1", started.members[0].port)
            while not len(started.members[0]._streams):
                await asyncio.sleep(0)
            await started.members[0].stop()
            async with asyncio.timeout(40):
                assert await reader.read() == b""
            writer.close()


@pytest.mark.parametrize("turns", range(6))
async def test_a_caller_who_comes_with_the_end_is_hung_up_on(turns: int) -> None:
    """Taken by the loop, at whichever of its turns, and not handed over before the member stops: asyncio
    would forget the socket, open (the collector's warning would fail this test)."""
    async with pool("a") as started:
        with socket.create_connection(("127.0.0.1", started.members[0].port)) as caller:
            caller.setblocking(False)
            for _ in range(turns):
                await asyncio.sleep(0)
            await started.members[0].stop()
            gc.collect()
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(caller, 1), 30) == b""
