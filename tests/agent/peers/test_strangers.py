"""Who is no member, or not where gossip says, gets no link, leaves nothing behind and keeps nobody out."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from link_nodes import FAST, PATIENT, TEST_FRAME, Node, RawPeer, connected, nodes
from waiting import until

import shoal.agent.peers.dialler as dialler_module
import shoal.agent.peers.links as links_module
from shoal.addresses import host_of, plain_address
from shoal.agent.members.tags import is_shoal
from shoal.agent.peers.frames import FrameType, Hello, LinkKind, frame_head
from shoal.agent.peers.links import LinkConfig
from shoal.agent.peers.lobby import MAX_WAITING_CONNECTIONS, MAX_WAITING_STRANGERS, Lobby
from shoal.membership.interface import Member

CLUSTER = b"c" * 16
BRIEF = replace(FAST, greeting_timeout_ms=300)


def hello_of(node: Node, speaker: str, kind: LinkKind = LinkKind.CONTROL) -> bytes:
    """A correct greeting."""
    hello = Hello(kind, CLUSTER, speaker, node.links.agent_id, b"stranger").to_bytes(1)
    return frame_head(FrameType.HELLO, len(hello)) + hello


def identity(number: int) -> str:
    """Of agents that dial: theirs are the smaller ids."""
    return f"{number:032x}"


def at(host: str, port: int = 1) -> str:
    return f"http://{host}:{port}"


async def test_strangers_leave_nothing_behind() -> None:
    """However many greet: no peer, no watch, a bounded number of connections, and in the end none."""
    a = Node("a", config=BRIEF)
    async with nodes(a):
        peers = []
        for number in range(2 * MAX_WAITING_STRANGERS):
            peer = await RawPeer.connect(a)
            peer.writer.write(hello_of(a, identity(number)))
            peers.append(peer)
            assert len(a.links._lobby.all()) <= MAX_WAITING_STRANGERS
        for peer in peers:
            await peer.closed()
            peer.writer.close()
        assert a.links.statistics() == ()
        await until(lambda: len(a.links._lobby.all()) == 0)


async def test_who_greets_before_gossip_tells_is_let_in_when_it_does() -> None:
    """Without dialling again: a link may come before gossip."""
    a = Node("a", config=replace(FAST, greeting_timeout_ms=30_000))
    async with nodes(a):
        peer = await RawPeer.connect(a)
        peer.writer.write(hello_of(a, identity(1)))
        await until(lambda: a.links._lobby.greeted())
        assert a.links.statistics() == ()
        a.links.set_addresses({identity(2): at("127.0.0.1")})
        assert a.links.is_silent(identity(1))
        a.links.set_addresses({identity(1): at("127.0.0.1")})
        assert (await peer.next_frame()).type == FrameType.HELLO
        assert not a.links.is_silent(identity(1))
        peer.writer.close()


async def test_gossip_may_tell_of_a_stranger_that_has_just_gone() -> None:
    """Its connection is lost, and whoever waited for it hears so in the next round only."""
    a = Node("a", config=replace(FAST, greeting_timeout_ms=30_000))
    async with nodes(a):
        peer = await RawPeer.connect(a)
        peer.writer.write(hello_of(a, identity(1)))
        await until(lambda: a.links._lobby.greeted())
        ((connection, _),) = a.links._lobby.greeted()
        connection.connection_lost(None)
        a.links.set_addresses({identity(1): at("127.0.0.1")})
        assert not connection.is_open
        await until(lambda: not a.links._lobby.greeted())
        peer.writer.close()


async def test_a_member_is_taken_from_its_own_address_only() -> None:
    """Somebody else under its id is refused, and told what gossip says; where it moves to, it is taken."""
    a = Node("a", config=BRIEF)
    async with nodes(a):
        a.links.set_addresses({identity(1): at("127.0.0.2")})
        peer = await RawPeer.connect(a)
        peer.writer.write(hello_of(a, identity(1)))
        refusal = await peer.closed()
        assert b"is at 127.0.0.2 by gossip, but connects from 127.0.0.1" in refusal
        peer.writer.close()
        assert not any(known.control for known in a.links.statistics())
        a.links.set_addresses({identity(1): at("127.0.0.1", 2)})
        peer = await RawPeer.connect(a)
        peer.writer.write(hello_of(a, identity(1)))
        assert (await peer.next_frame()).type == FrameType.HELLO
        peer.writer.close()


async def test_an_agent_that_returns_elsewhere_is_linked_again() -> None:
    """On another port, as gossip tells both."""
    a, b = Node("a", config=PATIENT), Node("b", config=PATIENT)
    async with nodes(a, b):
        await until(lambda: connected(a) and connected(b))
        await b.stop()
        again = Node("b", nonce=b"reborn--", config=PATIENT)
        await again.start()
        try:
            again.links.set_addresses({a.links.agent_id: a.url})
            a.links.set_addresses({b.links.agent_id: again.url})
            await until(lambda: connected(a) and connected(again))
        finally:
            await again.stop()
        await b.start()


async def test_nothing_of_a_frame_is_stepped_before_the_greeting_is_answered() -> None:
    """Not for those either who know that they would be let in."""
    a = Node("a", config=replace(FAST, greeting_timeout_ms=30_000))
    async with nodes(a):
        peer = await RawPeer.connect(a)
        peer.writer.write(hello_of(a, identity(1)) + frame_head(TEST_FRAME, 1) + b"x")
        refusal = await peer.closed()
        assert b"before the greeting was answered" in refusal
        assert a.received == []
        peer.writer.close()


async def test_unfinished_frames_are_bounded_in_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link that would hold too much is closed; the others go on, and what it held is free again."""
    monkeypatch.setattr(links_module, "MAX_UNFINISHED_BYTES", 2**20)
    a = Node("a", config=PATIENT)
    async with nodes(a):
        a.links.set_addresses({identity(number): at("127.0.0.1") for number in (1, 2)})
        peers = []
        for number in (1, 2):
            peer = await RawPeer.connect(a)
            peer.writer.write(hello_of(a, identity(number), LinkKind.BULK))
            assert (await peer.next_frame()).type == FrameType.HELLO
            peer.writer.write(frame_head(TEST_FRAME, 800_000) + bytes(700_000))
            peers.append(peer)
            if number == 1:
                await until(lambda: a.links.unfinished_bytes > 600_000)
        with contextlib.suppress(ConnectionResetError):  # it had sent what nobody reads any more
            assert await peers[1].closed() == b""
        await until(lambda: 600_000 < a.links.unfinished_bytes < 800_000)
        peers[0].writer.write(bytes(100_000))
        await until(lambda: a.received == [(identity(1), bytes(800_000))])
        assert a.links.unfinished_bytes == 0
        for peer in peers:
            peer.writer.close()


class _Waiting:
    """A connection, as the lobby sees it."""

    def __init__(self) -> None:
        self.refusal = ""

    def refuse(self, reason: str) -> None:
        self.refusal = reason


def test_strangers_make_way_for_strangers_only() -> None:
    """Who comes from where a peer lives is not pushed out by who does not, whatever their number."""
    lobby = Lobby()
    known: list[Any] = [_Waiting() for _ in range(MAX_WAITING_CONNECTIONS + 1)]
    strangers: list[Any] = [_Waiting() for _ in range(3 * MAX_WAITING_STRANGERS)]
    for connection in known:
        lobby.admit(connection, from_a_peers_address=True)
    for connection in strangers:
        lobby.admit(connection, from_a_peers_address=False)
    assert [bool(one.refusal) for one in known] == [True] + [False] * MAX_WAITING_CONNECTIONS
    assert [bool(one.refusal) for one in strangers[-MAX_WAITING_STRANGERS - 1 :]] == [True] + [
        False
    ] * MAX_WAITING_STRANGERS
    lobby.leave(known[1])
    lobby.leave(known[1])
    assert len(lobby.all()) == MAX_WAITING_CONNECTIONS - 1 + MAX_WAITING_STRANGERS


async def test_members_that_do_not_exist_are_dialled_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gossip may invent thousands: of each one connection is tried, so many at once, and a real one that
    joins meanwhile is linked with."""
    monkeypatch.setattr(dialler_module, "MAX_DIALLING_NEWCOMERS", 4)
    monkeypatch.setattr(dialler_module, "MAX_DIALLING_STRANGERS", 2)
    open_now: set[object] = set()
    dialled: Counter[int] = Counter()
    most = 0
    heads = []
    connect = dialler_module.Dialler._connect

    async def connect_and_count(self: Any, connection: Any, places: Sequence[tuple[str, int]]) -> None:
        """Where they are dialled: the end of one may be seen after the beginning of the next."""
        nonlocal most
        dialled[places[0][1]] += 1
        most = max(most, dialled[port])
        try:
            await connect(self, connection, places)
        finally:
            dialled[places[0][1]] -= 1

    async def accept_and_say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now.add(writer)
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        await reader.read()
        open_now.discard(writer)
        writer.close()

    server = await asyncio.start_server(accept_and_say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = LinkConfig(
        heartbeat_interval_ms=20, silence_after_ms=10_000, silence_after_loss_ms=60, greeting_timeout_ms=100
    )
    monkeypatch.setattr(dialler_module.Dialler, "_connect", connect_and_count)
    a, b = Node("a", config=config), Node("b", config=PATIENT)
    await a.start()
    await b.start()
    try:
        invented = {f"f{number:031x}": at("127.0.0.1", port) for number in range(40)}
        a.links.set_addresses(invented)
        await until(lambda: len(heads) > 50)  # all were tried, and some again
        b.links.set_addresses({a.links.agent_id: a.url})
        a.links.set_addresses(invented | {b.links.agent_id: b.url})
        await until(lambda: connected(b))
        assert 4 <= most <= 6
        await until(lambda: len(open_now) <= 6)
    finally:
        await a.stop()
        await b.stop()
        server.close()


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://10.0.0.1:7070", "10.0.0.1"),
        ("http://[fd00::0001]:80", "fd00::1"),
        ("http://[::ffff:10.0.0.1]:80", "10.0.0.1"),
        ("http://10.0.0.1:7070/", None),
        ("http://10.0.0.1:7070/admin?x=", None),
        ("http://10.0.0.1:7070#", None),
        ("http://user@10.0.0.1:7070", None),
        ("http://10.0.0.1", None),
        ("http://10.0.0.1:0", None),
        ("http://10.0.0.1:70700", None),
        ("http://10.0.0.1:7070\n", None),
        ("http://10.0.0.1.7:7070", None),
        ("http://inside.example:80", None),
        ("https://10.0.0.1:7070", "10.0.0.1"),
        ("", None),
    ],
)
def test_an_agents_url_is_an_address_and_a_port(url: str, host: str | None) -> None:
    """No path, no name, nobody's password: what is asked there is this agent's to choose."""
    assert host_of(url) == host
    member = Member("m", "10.0.0.1", 1, {"cl": "fish", "url": url}, "alive", 1, 0)
    assert is_shoal(member) == (host == "10.0.0.1")
    assert plain_address("::ffff:10.0.0.1") == "10.0.0.1"
