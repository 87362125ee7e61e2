"""When a peer is dialled again, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from shoal.agent.peers.connection import Refused
from shoal.agent.peers.dialler import Dialler
from shoal.agent.peers.frames import LinkKind
from shoal.agent.peers.linked_peer import LinkConfig, LinkedPeer
from tests.agent.link_nodes import Node, agent_id
from tests.agent.virtual_loop import run_virtually

CONFIG = LinkConfig()
DAY_S = 24 * 3600.0


def nobody_listens(_connection: Any) -> None:
    raise ConnectionRefusedError


def another_agent_lives_there(connection: Any) -> None:
    connection.opened.set_exception(Refused("agent b is not here, this is c"))
    connection.opened.exception()


class Peer:
    """A peer that is dialled in vain, and when that was."""

    def __init__(self, answer: Callable[[Any], None]) -> None:
        self.dials: list[float] = []
        self.state = LinkedPeer("b", 0, "http://127.0.0.1:7070", "127.0.0.1", met=True)
        self.state.lives.set()
        self._answer = answer

    def start(self) -> asyncio.Task[None]:
        loop: Any = asyncio.get_running_loop()
        owner: Any = None

        async def create_connection(make: Callable[[], Any], *_: Any, **__: Any) -> None:
            self.dials.append(loop.time())
            self._answer(make())

        loop.create_connection = create_connection
        dialler = Dialler(owner, CONFIG, random.Random(1), lambda _: None)
        return asyncio.create_task(dialler.keep_dialled(self.state, LinkKind.CONTROL))

    def dials_between(self, first_s: float, last_s: float) -> int:
        return sum(first_s <= moment < last_s for moment in self.dials)


@pytest.mark.parametrize("answer", [nobody_listens, another_agent_lives_there])
def test_a_failed_member_is_dialled_ever_more_rarely(answer: Callable[[Any], None]) -> None:
    """One whose id is gone for good costs a connection or two a minute, not two a second for ever; after a
    partition it is dialled within a quarter of the time that the partition lasted."""

    async def work() -> Peer:
        peer = Peer(answer)
        dialling = peer.start()
        peer.state.lives.clear()
        await asyncio.sleep(DAY_S)
        dialling.cancel()
        return peer

    peer = run_virtually(work())
    assert peer.dials_between(0, 10) >= 10
    for earlier, later in pairwise(peer.dials):
        assert later - earlier <= CONFIG.redial_max_ms / 1000 + earlier / 4
        assert later - earlier <= CONFIG.redial_failed_max_ms / 1000
    assert peer.dials_between(DAY_S - 3600, DAY_S) <= 120


def test_a_failed_member_that_lives_again_is_dialled_at_once() -> None:
    """And as often as any other from then on."""

    async def work() -> Peer:
        peer = Peer(nobody_listens)
        dialling = peer.start()
        peer.state.lives.clear()
        await asyncio.sleep(DAY_S)
        peer.state.lives.set()
        await asyncio.sleep(60)
        dialling.cancel()
        return peer

    peer = run_virtually(work())
    assert peer.dials_between(DAY_S, DAY_S + 0.001) == 1
    assert peer.dials_between(DAY_S, DAY_S + 60) >= 60


def test_a_member_that_lives_is_dialled_every_second() -> None:
    """However long it was out of reach: its link is to be back within a second."""

    async def work() -> Peer:
        peer = Peer(nobody_listens)
        dialling = peer.start()
        await asyncio.sleep(3600)
        dialling.cancel()
        return peer

    dials = run_virtually(work()).dials
    assert max(later - earlier for earlier, later in pairwise(dials)) <= 1.0


async def test_the_links_hear_of_whom_gossip_has_given_up() -> None:
    """With each change of the member list."""
    links = Node("a").links
    for failed in ({agent_id("b")}, set(), {agent_id("b")}):
        links.set_addresses(
            {agent_id("b"): "http://127.0.0.1:1", agent_id("c"): "http://127.0.0.1:2"}, failed
        )
        assert [peer.agent_id for peer in links._peers.values() if not peer.lives.is_set()] == list(failed)
