"""The conformance suite on Serf agents through their RPC, and what is special about standing behind one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.membership.config import GossipConfig
from shoal.membership.interface import KeyChange
from shoal.membership.net.gossip import Membership
from shoal.membership.serf.own_queries import QueryRequest
from shoal.membership.serf_agent import hosted_watch
from shoal.membership.serf_agent.membership import SerfMembership, SerfSettings
from shoal.membership.wire.keyring import key_text
from tests.conformance.gossip_suite import GossipSuite, Node, Pool, eventually
from tests.serf.real_serf import SerfAgent


class HostedNode(Node):
    """A Serf agent, and a member behind it."""

    ask_interval_ms = 3_000

    def __init__(self, name: str, tags: dict[str, str], directory: Path) -> None:
        super().__init__(name)
        self.tags = tags
        self.directory = directory
        self.agent: SerfAgent
        self.gossip: SerfMembership

    async def start(self, *flags: str, port: int = 0, rpc_port: int = 0) -> None:
        self.agent = SerfAgent(
            f"host-of-{self.name}",
            self.directory / f"{self.name}.log",
            "-tag",
            "operator=me",
            *flags,
            port=port,
            rpc_port=rpc_port,
        )
        await self.agent.listens()
        await self.attach()

    async def attach(self) -> None:
        """A member behind the agent that runs."""
        settings = SerfSettings(
            name=self.name,
            tags=self.tags,
            port=self.agent.rpc_port,
            refresh_interval_ms=100,
            ask_interval_ms=self.ask_interval_ms,
            owned_tags=frozenset({"role", "über"}),
        )
        gossip = SerfMembership(
            settings,
            rng=random.Random(self.name),
            on_event=self.on_event,
            on_user_event=self.user_events.append,
            on_query=self.on_query,
        )
        await gossip.start()
        await gossip.take()
        self.gossip = gossip

    async def crash(self) -> None:
        self.agent.kill()
        await self.gossip.stop()

    async def restart(self) -> None:
        await self.start(port=self.agent.port, rpc_port=self.agent.rpc_port)

    async def end(self) -> None:
        await self.gossip.stop()
        self.agent.kill()


class HostedPool(Pool):
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nodes: list[HostedNode] = []

    async def start(self, name: str, **tags: str) -> HostedNode:
        node = HostedNode(name, tags, self.directory)
        await node.start()
        self.nodes.append(node)
        return node


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[HostedPool]:
    started = HostedPool(tmp_path)
    yield started
    for node in started.nodes:
        await node.end()


class TestBehindSerf(GossipSuite):
    """Everything in the suite."""


async def test_the_agent_behind_a_serf_agent_dies_alone(
    pool: HostedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host lives on, and it is shown as failed all the same, by hosted agents and by one that gossips
    itself; a successor on the node is alive at once, under its own name, without the dead one's tags."""
    monkeypatch.setattr(HostedNode, "ask_interval_ms", 200)
    monkeypatch.setattr(hosted_watch, "ASK_INTERVAL_MS", 200)
    one, two = await pool.pool_of("one", "two")
    own = Membership(
        GossipConfig.local(name="own"), rng=random.Random(1), on_event=lambda event: heard.append(event.kind)
    )
    heard: list[str] = []
    await own.start()
    try:
        await own.join([one.own_address])
        await one.shows("own", "alive")
        await two.gossip.stop()
        await one.shows("two", "failed")
        await one.hears(("failed", "two"))
        await eventually(lambda: _status(own, "two") == "failed", "the one of the other kind sees it too")
        await eventually(lambda: "failed" in heard, "and hears of it")
        assert (await two.agent.members())["host-of-two"][0] == "alive"

        await two.attach()
        assert two.gossip.occupant is not None
        await one.shows("two", "alive")
        await eventually(lambda: _status(own, "two") == "alive", "and that it is back")
        await two.gossip.stop()
        two.name, two.tags = "three", {"über": "new"}
        await two.attach()
        assert two.gossip.occupant is not None
        assert two.gossip.occupant.tags["id"] == "two"
        await one.shows("three", "alive")
        assert "two" not in one.statuses()
        assert one.tags_of("three").keys() == {"operator", "über", "id", "at"}
    finally:
        await own.stop()


def _status(membership: Membership, name: str) -> str:
    return next((member.status for member in membership.members() if member.name == name), "")


async def test_an_older_process_gives_way_on_its_node(
    pool: HostedPool, caplog: pytest.LogCaptureFixture
) -> None:
    """Two processes through one node: the one that came later has it, the other says so once, and the tags
    come to rest."""
    (one,) = await pool.pool_of("one")
    older = one.gossip
    one.name = "two"
    try:
        await one.attach()
        await eventually(lambda: "serves agent two now" in caplog.text, "the older one says so")
        older.set_tags({"role": "stubborn"})
        await asyncio.sleep(0.5)
        assert one.tags_of("two")["role"] == "one"
        assert caplog.text.count("serves agent two now") == 1
    finally:
        await older.stop()


async def test_a_copy_behind_another_serf_agent_is_told(pool: HostedPool) -> None:
    """Two nodes that speak for one agent: both hear of the conflict, and lists show the newer one under the
    name, the other as the Serf agent it is."""
    one, copy = await pool.pool_of("one", "two")
    await copy.gossip.stop()
    copy.name = "one"
    await copy.attach()
    for node in (one, copy):
        events = node.events
        await eventually(lambda events=events: ("conflict", "one") in events, "both hear of it")  # type: ignore[misc]
        await eventually(
            lambda node=node: node.statuses() == {"one": "alive", "host-of-one": "alive"},  # type: ignore[misc]
            "the newer one has the name",
        )
    ports = {member.name: member.port for member in one.gossip.members()}
    assert ports["one"] == copy.agent.port


async def test_keys_are_changed_through_the_serf_agent(tmp_path: Path) -> None:
    """Listed, installed, used, removed in a sealed pool; refusals name the agent; one without says so."""
    first, second = bytes([1]) * 16, bytes([2]) * 16
    node = HostedNode("one", {}, tmp_path)
    await node.start(f"-encrypt={key_text(first)}")
    try:
        assert (await node.gossip.keys()).keys == {first: 1}
        assert (await node.gossip.change_keys(KeyChange.INSTALL, second)).failures == {}
        assert (await node.gossip.keys()).keys == {first: 1, second: 1}
        refused = await node.gossip.change_keys(KeyChange.REMOVE, first)
        assert refused.failures == {"one": "Removing the primary key is not allowed"}
        assert (await node.gossip.change_keys(KeyChange.USE, second)).failures == {}
        assert (await node.gossip.change_keys(KeyChange.REMOVE, first)).failures == {}
        assert (await node.gossip.keys()).keys == {second: 1}
    finally:
        await node.end()
    plain = HostedNode("plain", {}, tmp_path)
    await plain.start()
    try:
        assert "encryption not enabled" in (await plain.gossip.keys()).failures["plain"]
    finally:
        await plain.end()


async def test_tags_that_do_not_fit_beside_the_operators_are_said(
    pool: HostedPool, caplog: pytest.LogCaptureFixture
) -> None:
    """The node's own tags take room as well: what the Serf agent refuses is one warning, not one a second."""
    node = HostedNode("crowded", {}, pool.directory)
    pool.nodes.append(node)
    await node.start("-tag", f"note={'x' * 340}")
    node.gossip.set_tags({"role": "y" * 150})
    await eventually(lambda: "exceeds limit of 512 bytes" in caplog.text, "it says so")
    await asyncio.sleep(0.5)
    assert caplog.text.count("exceeds limit of 512 bytes") == 1
    node.gossip.set_tags({"role": "short"})
    await eventually(lambda: node.tags_of("crowded").get("role") == "short", "and goes on")


async def test_the_serf_agent_restarts_under_the_member(pool: HostedPool) -> None:
    """Its tags come back by themselves, and so do events and answers."""
    one, two = await pool.pool_of("one", "two")
    two.agent.kill()
    two.agent = SerfAgent(
        "host-of-two", two.directory / "again.log", port=two.agent.port, rpc_port=two.agent.rpc_port
    )
    await two.agent.listens()
    await two.agent.shows("host-of-two", "alive", "role=two")
    await two.gossip.join([one.own_address])
    await eventually(lambda: one.tags_of("two").get("role") == "two", "its tags are told again")
    one.gossip.send_user_event("hello", b"")
    await eventually(lambda: [event.name for event in two.user_events] == ["hello"], "it hears events")
    result = await one.gossip.query(QueryRequest("load", b"you", timeout_ms=5_000), enough=["one", "two"])
    assert result.answers["two"] == b"two heard you"
