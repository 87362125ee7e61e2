"""Links between agents behind names: looked up at each connection; gossip's address is tried, too."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest
from waiting import until

from shoal.agent.peers.frames import LinkKind
from shoal.agent.peers.linked_peer import LinkedPeer
from shoal.lookup import Lookup
from tests.agent.link_nodes import Node, agent_id, connected, nodes

NAME = "shoal-1.example"
HERE = "127.0.0.1"


class Names:
    """A resolver: `answer` is what every name leads to."""

    def __init__(self, *answer: str) -> None:
        self.answer: Sequence[str] | OSError = answer
        self.asked = 0

    def __call__(self, name: str) -> Sequence[str]:
        self.asked += 1
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "is_alive", "places"),
    [
        (["10.0.0.1"], False, ["10.0.0.1"]),
        (["10.0.0.2", "10.0.0.1"], False, ["10.0.0.1", "10.0.0.2"]),
        (["10.0.0.9"], False, ["10.0.0.9", "10.0.0.1"]),
        (["10.0.0.9"], True, ["10.0.0.1", "10.0.0.9"]),
        ([], False, ["10.0.0.1"]),
        (["::ffff:10.0.0.1"], False, ["10.0.0.1"]),
    ],
)
async def test_where_an_agent_behind_a_name_is_looked_for(
    answer: list[str], is_alive: bool, places: list[str]
) -> None:
    """Where gossip sees it alive or the name agrees, at gossip's address first; else where the name leads."""
    node = Node("a")
    node.links.dialler.lookup = Lookup(Names(*answer))
    peer = LinkedPeer("b", 0, f"http://{NAME}:7070", "10.0.0.1")
    if is_alive:
        peer.lives.set()
    found = await node.links.dialler._places(peer, "10.0.0.1")
    assert found == [(place, 7070) for place in places]


async def test_links_go_to_names_and_follow_them(caplog: pytest.LogCaptureFixture) -> None:
    """A name that leads nowhere is said by name and does not cut a link off: gossip knows the address. One
    that led to an address where nobody listens leads to the agent at the next try."""
    a, b = Node("a"), Node("b")
    names = Names(HERE)
    a.links.dialler.lookup = Lookup(names)
    async with nodes(a, b):
        url = f"http://{NAME}:{b.port}"
        a.links.set_addresses({agent_id("b"): url}, addresses={agent_id("b"): HERE})
        await until(lambda: connected(a) and connected(b))
        asked = names.asked
        assert asked >= 1
        for connection in list(a.links._peers[agent_id("b")].connections.values()):
            connection.abort()
        names.answer = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        await until(lambda: names.asked > asked)
        await until(lambda: connected(a) and connected(b))
        said = f"the name {NAME} has no address: Name or service not known; trying {HERE}"
        assert any(said in record.message for record in caplog.records)
        # It moves: gossip still tells of an address where nobody is.
        names.answer = (HERE,)
        a.links.set_addresses({agent_id("b"): url}, addresses={agent_id("b"): "127.0.0.77"})
        for connection in list(a.links._peers[agent_id("b")].connections.values()):
            connection.abort()
        asked = names.asked
        await until(lambda: names.asked > asked)
        await until(lambda: connected(a))


async def test_two_addresses_of_which_one_refuses_are_no_dead_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where nobody listens at any of them has its process ended."""
    gone: list[str] = []
    node = Node("a")
    node.links.dialler.lookup = Lookup(Names("127.0.0.1", "127.0.0.2"))
    node.links.dialler._gone = lambda peer: gone.append(peer.agent_id)
    answers: list[Exception] = [ConnectionRefusedError(), TimeoutError()]

    async def connect(_connection: Any, _host: str, _port: int) -> None:
        raise answers.pop(0)

    monkeypatch.setattr(node.links.dialler, "_connect_to", connect)
    peer = LinkedPeer("b", 0, f"http://{NAME}:7070", "127.0.0.1", met=True, lost_ms=1)
    assert not await node.links.dialler.dial(peer, LinkKind.CONTROL)
    assert gone == []
    answers = [ConnectionRefusedError(), ConnectionRefusedError()]
    assert not await node.links.dialler.dial(peer, LinkKind.CONTROL)
    assert gone == ["b"]
