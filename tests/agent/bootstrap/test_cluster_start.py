"""Whole agents that start a cluster: all at once, N of them, and again without being told anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from waiting import until

from shoal.agent.agent import Outcome
from shoal.agent.durable.gossip_snapshot import FILE_NAME
from shoal.agent.members import contact as meeting
from tests.agent.agents import Agents, Running, agents_in, eventually
from tests.agent.test_agent import free_ports

pytestmark = pytest.mark.slow


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    async with agents_in(tmp_path) as started:
        yield started


def clusters(running: list[Running]) -> set[bytes | None]:
    return {one.agent.node.roster.cluster_id for one in running}


async def test_agents_that_name_each_other_start_one_cluster_at_once(agents: Agents) -> None:
    """Four with the same list of seeds, themselves in it, one of them a name: no first one is needed."""
    base = free_ports(4)
    seeds = [f"127.0.0.1:{base}", f"localhost:{base + 1}", f"127.0.0.1:{base + 2}", f"127.0.0.1:{base + 3}"]
    started = [
        agents.start(f"a{number}", gossip_port=base + number, join=seeds, expect=None, discovery_window=500)
        for number in range(4)
    ]
    for one in started:
        await one.until_ready()
    assert len(clusters(started)) == 1
    births = {tuple(one.agent.broker.catalog_birth or ()) for one in started}
    assert len(births) == 1
    assert births.pop()[0] == min(one.agent.agent_id for one in started)


async def test_agents_wait_until_those_expected_have_met(agents: Agents) -> None:
    """Two of three: 503 with the count, on both; the third makes it a cluster of three catalog voters."""
    first = agents.start("a0", expect=3)
    address = await first.gossip_address()
    second = agents.start("a1", expect=3, join=[address])

    async def both_wait() -> bool:
        answers = [await one.call("GET", "/readyz") for one in (first, second) if hasattr(one.agent, "url")]
        return len(answers) == 2 and all(code == 503 and "2 of 3" in body["detail"] for code, body in answers)

    await eventually(both_wait)
    status, problem = await second.call("PUT", "/v1/topics/t")
    assert (status, problem["code"]) == (503, "not-ready")
    third = agents.start("a2", expect=3, join=[address])
    started = [await one.until_ready() for one in (first, second, third)]
    assert len(clusters(started)) == 1
    assert len(first.agent.broker.catalog_birth or ()) == 3


async def three_that_remember(agents: Agents) -> tuple[int, list[Running], list[Path]]:
    """A cluster, each snapshot of which names the two others: its first port, its agents, those files."""
    base = free_ports(3)
    seeds = [f"127.0.0.1:{base}"]
    cluster = [agents.start(f"a{n}", expect=3, gossip_port=base + n, join=seeds) for n in range(3)]
    for one in cluster:
        await one.until_ready()
    paths = [Path(one.agent.config.data) / FILE_NAME for one in cluster]

    async def remembered() -> bool:
        return all(path.exists() and path.read_text().count("alive: ") == 2 for path in paths)

    await eventually(remembered)
    return base, cluster, paths


async def test_agents_come_back_without_being_told_anything(
    agents: Agents, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No seed and no mDNS: each remembers the others. All at once, one alone, and one whose snapshot is
    damaged and who is called by another; the Lamport clocks go on."""
    monkeypatch.setattr(meeting, "REMEMBER_INTERVAL_S", 0.1)
    monkeypatch.setattr(meeting, "REVISIT_MS", 500)
    base, cluster, paths = await three_that_remember(agents)
    former = cluster[0].agent.pool.membership.clocks
    assert former.member > 0
    for one in cluster:
        assert await one.leave() is Outcome.STOPPED
    paths[2].write_bytes(paths[2].read_bytes()[:-3])
    caplog.set_level(logging.WARNING)
    again = [agents.start(f"a{n}", expect=3, gossip_port=base + n) for n in range(3)]
    for one in again:
        await one.until_ready()

    async def all_see_all() -> bool:
        lists = [one.agent.node.roster.members() for one in again]
        return all([member.status for member in members] == ["alive"] * 3 for members in lists)

    await eventually(all_see_all)
    assert clusters(again) == clusters(cluster)
    assert again[0].agent.pool.membership.clocks.member >= former.member
    assert [
        FILE_NAME in record.getMessage() for record in caplog.records if "cannot read" in record.getMessage()
    ] == [True]
    await again[1].crash()
    back = await agents.start("a1", expect=3, gossip_port=base + 1).until_ready()
    await eventually(lambda: _lives(again[0], back))


async def test_one_that_has_forgotten_everybody_and_comes_last_is_called(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No seed and no mDNS: the two that met before it was there remember it, and are not content with each
    other."""
    monkeypatch.setattr(meeting, "REMEMBER_INTERVAL_S", 0.1)
    base, cluster, paths = await three_that_remember(agents)
    for one in cluster:
        await one.leave()
    paths[2].unlink()
    for one in [agents.start(f"a{n}", expect=3, gossip_port=base + n) for n in range(2)]:
        await one.until_ready()
    await agents.start("a2", expect=3, gossip_port=base + 2).until_ready()


async def _lives(at: Running, other: Running) -> bool:
    member = at.agent.node.roster.find(other.agent.agent_id)
    return member is not None and member.status == "alive" and member.port == other.agent.pool.membership.port


async def test_a_seed_that_comes_late_is_joined(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent waits, 503, and calls again until somebody is there; it never founds before."""
    monkeypatch.setattr(meeting, "RETRY_MS_MAX", 300)
    silence, contact = asyncio.Lock(), meeting.PoolContact._contact

    async def contact_unless_silent(self: meeting.PoolContact, addresses: Sequence[meeting.Address]) -> bool:
        async with silence:
            return await contact(self, addresses)

    monkeypatch.setattr(meeting.PoolContact, "_contact", contact_unless_silent)
    port = free_ports(1)
    early = agents.start("early", join=[f"localhost:{port}"], expect=None, discovery_window=0)
    await early.gossip_address()
    await until(lambda: early.agent.broker.waiting_reason == "no seed has answered yet")
    await asyncio.sleep(0.8)
    assert early.agent.broker.waiting_reason == "no seed has answered yet"
    async with silence:  # two that met before either had a cluster might both found one, which then merge
        late = await agents.alone("late", gossip_port=port)
    await early.until_ready()
    assert early.agent.node.roster.cluster_id == late.agent.node.roster.cluster_id
