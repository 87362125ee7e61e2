"""The conformance suite on our own gossip."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from shoal.membership.config import GossipConfig
from shoal.membership.net.gossip import Membership
from tests.conformance.gossip_suite import GossipSuite, Node, Pool


class OwnNode(Node):
    def __init__(self, name: str, tags: dict[str, str]) -> None:
        super().__init__(name)
        self._tags = tags

    async def start(self, port: int = 0) -> None:
        config = GossipConfig.local(
            name=self.name, bind_port=port, tags=self._tags, gossip_interval_ms=50, leave_propagate_ms=100
        )
        membership = Membership(
            config,
            rng=random.Random(self.name),
            on_event=self.on_event,
            on_user_event=self.user_events.append,
            on_query=self.on_query,
        )
        await membership.start()
        self.gossip = membership

    async def crash(self) -> None:
        await self.gossip.stop()

    async def restart(self) -> None:
        await self.start(self.gossip.port)


class OwnPool(Pool):
    def __init__(self) -> None:
        self.nodes: list[OwnNode] = []

    async def start(self, name: str, **tags: str) -> Node:
        node = OwnNode(name, tags)
        await node.start()
        self.nodes.append(node)
        return node


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    started = OwnPool()
    yield started
    for node in started.nodes:
        await node.gossip.stop()


class TestOwnGossip(GossipSuite):
    """Everything in the suite."""
