"""Links are made anew while certificates are exchanged: the new connection first, then the end of the old."""

from __future__ import annotations

import pytest
from link_nodes import PATIENT, TEST_FRAME, Node, agent_id, connected, nodes
from waiting import until

from shoal.agent.peers import dialler
from shoal.agent.peers.connection import PeerConnection


def connections(node: Node) -> set[PeerConnection]:
    """Of all its links."""
    return {one for peer in node.links._peers.values() for one in peer.connections.values()}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within milliseconds instead of half a minute."""
    monkeypatch.setattr(dialler, "RENEWED_WITHIN_S", 0.01)


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
        a.links.renew(accepted=accepted)
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
        b.links.renew(accepted=False)
        assert connections(b) == former
        b.links.renew(accepted=True)
        await until(lambda: all(one.closed.is_set() for one in former))
        await until(lambda: connected(a) and connected(b))
        assert not connections(b) & former
