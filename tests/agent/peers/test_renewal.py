"""Links are made anew while certificates are exchanged: the new connection first, then the end of the old."""

from __future__ import annotations

import asyncio

import pytest
from link_nodes import PATIENT, TEST_FRAME, Node, agent_id, connected, nodes
from waiting import until

from shoal.agent.peers import connection as link_connection
from shoal.agent.peers import renewal
from shoal.agent.peers.connection import PeerConnection
from shoal.agent.peers.frames import LinkKind
from shoal.agent.peers.linked_peer import LinkedPeer
from shoal.agent.peers.messages import PeerMessage, PeerMessageError
from shoal.agent.peers.renewal import RENEWAL_LEVEL

ECHO = 200
LONG_S = 0.5
"""Twenty-five turns of the tests' loop, however long each takes: a new link needs eight or so. Then the side
that accepted ends the old one, whether there is a new one or not."""


def connections(node: Node) -> set[PeerConnection]:
    """Of all its links."""
    return {one for peer in node.links._peers.values() for one in peer.connections.values()}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within milliseconds instead of half a minute."""
    monkeypatch.setattr(renewal, "RENEWED_WITHIN_S", 0.01)
    monkeypatch.setattr(link_connection, "LEAVE_S", 0.05)


@pytest.mark.parametrize("accepted", [False, True])
async def test_the_side_that_dials_replaces_what_it_dialled(
    accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both connections, without a moment in which there is none."""
    a, b = Node("a", config=PATIENT), Node("b", config=PATIENT)
    async with nodes(a, b):
        await until(lambda: connected(a) and connected(b))
        former = connections(a)
        ended, was_connected = a.links.lost, []

        def lost(connection: PeerConnection) -> None:
            ended(connection)
            was_connected.append(connected(a))

        monkeypatch.setattr(a.links, "lost", lost)
        a.links.renewal.begin(accepted=accepted)
        await until(lambda: all(one.closed.is_set() for one in former))
        assert was_connected == [True, True]
        assert not connections(a) & former
        renewed = connections(a)
        assert a.links.send_control(agent_id("b"), TEST_FRAME, b"one")
        await until(lambda: b.received == [(agent_id("a"), b"one")])
        assert connections(a) == renewed
        assert a.silent == b.silent == []


async def test_the_side_that_accepts_ends_what_must_not_stay() -> None:
    """Where the peer has not replaced it in time, as after an authority was withdrawn here alone."""
    a, b = Node("a", config=PATIENT), Node("b", config=PATIENT)
    async with nodes(a, b):
        await until(lambda: connected(a) and connected(b))
        former = connections(b)
        b.links.renewal.begin(accepted=False)
        assert connections(b) == former
        b.links.renewal.begin(accepted=True)
        await until(lambda: all(one.closed.is_set() for one in former))
        await until(lambda: connected(a) and connected(b))
        assert not connections(b) & former


async def test_the_side_that_accepted_asks_for_a_new_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is not without one, and neither is the side that dials. A new one is dialled once, however often
    it was asked for."""
    monkeypatch.setattr(renewal, "RENEWED_WITHIN_S", LONG_S)
    a, b = Node("a", config=PATIENT), Node("b", config=PATIENT)
    async with nodes(a, b):
        await until(lambda: connected(a) and connected(b))
        for node in (a, b):
            node.links.set_level(RENEWAL_LEVEL)
        former = connections(b)
        whole, dialled = [], []
        dial = a.links.dialler.dial
        ended = b.links.lost

        def lost(connection: PeerConnection) -> None:
            ended(connection)
            whole.append(connected(a) and connected(b))

        async def counted(peer: LinkedPeer, kind: LinkKind) -> bool:
            dialled.append(kind)
            return await dial(peer, kind)

        monkeypatch.setattr(b.links, "lost", lost)
        monkeypatch.setattr(a.links.dialler, "dial", counted)
        b.links.renewal.begin(accepted=True)
        b.links.renewal.begin(accepted=True)
        await until(lambda: all(one.closed.is_set() for one in former))
        assert whole == [True, True]
        assert len(connections(b)) == 2
        assert not connections(b) & former
        assert a.silent == b.silent == []
        assert sorted(dialled) == sorted(LinkKind)


async def test_nothing_is_lost_while_links_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames and questions of both sides arrive, each once, also those that were sent on the old connection
    when the other side knew the new one already."""
    monkeypatch.setattr(link_connection, "LEAVE_S", 10.0)  # a busy machine stops everybody for a while
    monkeypatch.setattr(renewal, "RENEWED_WITHIN_S", LONG_S)
    a, b = Node("a", config=PATIENT), Node("b", config=PATIENT)
    stop = asyncio.Event()
    sent = {a: 0, b: 0}

    async def echo(_peer: str, payload: bytes) -> bytes:
        return payload

    async def talk(node: Node, to: str) -> None:
        while not stop.is_set():
            payload = b"%d" % sent[node]
            if sent[node] % 2:
                assert node.links.send_control(agent_id(to), TEST_FRAME, payload)
            else:
                assert node.links.send_bulk(agent_id(to), TEST_FRAME, [payload])
            sent[node] += 1
            assert await node.links.request(agent_id(to), ECHO, payload, 10_000) == payload

    for node in (a, b):
        node.links.handle_request(ECHO, echo)
    async with nodes(a, b):
        await until(lambda: connected(a) and connected(b))
        for node in (a, b):
            node.links.set_level(RENEWAL_LEVEL)
        dropped = [node.links.dropped_frames for node in (a, b)]
        talks = [asyncio.create_task(talk(a, "b")), asyncio.create_task(talk(b, "a"))]
        for node in (a, b) * 5:
            former = connections(node)
            node.links.renewal.begin(accepted=True)
            await until(lambda node=node, former=former: len(connections(node) - former) == 2)
        await until(lambda: min(sent.values()) > 20)
        stop.set()
        await asyncio.gather(*talks)
        for node, other in ((a, b), (b, a)):
            await until(lambda node=node, other=other: len(other.received) == sent[node])
            numbers = sorted(int(payload) for _, payload in other.received)
            assert numbers == list(range(sent[node]))
        assert [node.links.dropped_frames for node in (a, b)] == dropped


async def test_questions_for_a_new_link_that_are_none() -> None:
    """Another kind, nobody's link, one that the asker has dialled itself."""
    a, b = Node("a", config=PATIENT), Node("b", config=PATIENT)
    async with nodes(a, b):
        await until(lambda: connected(a) and connected(b))
        for payload in (b"", b"\x07", b"\x00\x00"):
            with pytest.raises(PeerMessageError):
                await a.links.renewal.on_request(agent_id("b"), payload)
        former = connections(a) | connections(b)
        assert await a.links.renewal.on_request(agent_id("c"), b"\x00") == b""
        assert await a.links.request(agent_id("b"), PeerMessage.LINK_RENEWAL, b"\x00", 10_000) == b""
        await asyncio.sleep(0)
        assert connections(a) | connections(b) == former
