"""How soon everybody serves a new leader: fifty agents in virtual time, three real ones in real time.

The bound: with fifty agents within 1 s at the median and 2 s at the 99th percentile, with three within
300 ms (safety 28: route events say only who has news; receivers pull it).
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from waiting import PATIENCE_S

from shoal.agent.durable.ids import GroupId
from shoal.agent.events.change_counter import Watch
from shoal.agent.routing.exchange import ANNOUNCE_MS, CLAIMS_PER_TURN, RouteExchange
from tests.agent.agents import agents_in, eventually
from tests.agent.route_cluster import RouteCluster
from tests.agent.virtual_loop import run_virtually

AGENTS = 50
GROUPS = 40
MEDIAN_S = 1.0
P99_S = 2.0


async def _changes(cluster: RouteCluster, taken: list[float]) -> None:
    cluster.place()
    await cluster.settled()
    for number in range(5):
        group = cluster.groups[number]
        leader, term = cluster.leaders[group]
        successor = next(voter for voter in cluster.voters[group] if voter != leader)
        await asyncio.sleep(cluster.rng.uniform(0, 1.5))
        cluster.lead(group, successor, term + 1)
        taken += await cluster.latencies_s([group])
    # The agent that leads most dies; its groups elect within half a second, each on its own.
    led: dict[str, list[GroupId]] = {}
    for group, (leader, _) in cluster.leaders.items():
        led.setdefault(leader, []).append(group)
    victim = max(led, key=lambda name: len(led[name]))
    cluster.pool.kill(victim)
    for group in led[victim]:
        await asyncio.sleep(cluster.rng.uniform(0, 0.5) / len(led[victim]))
        successor = next(voter for voter in cluster.voters[group] if voter != victim)
        cluster.lead(group, successor, cluster.leaders[group][1] + 1)
    taken += await cluster.latencies_s(led[victim])


@pytest.mark.parametrize(("hint_loss", "loss"), [(0.0, 0.0), (1.0, 0.05)], ids=["links", "gossip-alone"])
def test_fifty_agents_serve_a_new_leader_in_time(hint_loss: float, loss: float) -> None:
    """One by one, and many at once as an agent dies. Over links within milliseconds; and within the bound
    even when no hint arrives and gossip loses packets."""
    cluster = RouteCluster(AGENTS, GROUPS, 7, hint_loss=hint_loss, loss=loss)
    taken: list[float] = []
    run_virtually(cluster.run(_changes(cluster, taken)))
    taken.sort()
    assert len(taken) >= 4 * (AGENTS - 1)
    assert statistics.median(taken) <= (MEDIAN_S if hint_loss else 0.1)
    assert taken[int(len(taken) * 0.99)] <= (P99_S if hint_loss else 0.1)


def test_route_events_are_few_and_the_last_change_is_always_told() -> None:
    """A hundred changes in a second are a handful of events, and the version of the last is among them."""
    told: list[int] = []

    async def changes() -> None:
        cluster = RouteCluster(2, 1, 3, hint_loss=1.0)
        agent = cluster.agents["n0"]
        announce = agent.announce_placement
        agent.announce_placement = lambda run, version: (told.append(version), announce(run, version))[1]  # type: ignore[method-assign]

        async def work() -> None:
            cluster.place()
            for term in range(2, 102):
                cluster.lead(cluster.groups[0], "n0", term)
                await asyncio.sleep(0.01)
            await asyncio.sleep(1)
            assert told[-1] == agent.exchange.own.placement_version

        cluster.voters = {}
        cluster.rng.sample = lambda names, count: list(names)  # type: ignore[method-assign,assignment]
        await cluster.run(work())

    run_virtually(changes())
    assert 3 <= len(told) <= 2_000 / ANNOUNCE_MS


def test_an_announcement_of_something_known_asks_nobody() -> None:
    """After the hint the route event is no news; of a stranger it is none either."""

    async def work(cluster: RouteCluster) -> None:
        cluster.place()
        await cluster.settled()
        exchange = cluster.agents["n0"].exchange
        run, version = exchange.table.placement_known("n1")
        exchange._behind.clear()
        exchange.on_announcement("n1", run, version)
        exchange.on_announcement("nobody", run, version + 7)
        assert not exchange._behind
        exchange.on_announcement("n1", run, version + 1)
        assert exchange._behind == {"n1"}

    cluster = RouteCluster(3, 4, 5, hint_loss=0.0)
    run_virtually(cluster.run(work(cluster)))


@pytest.mark.slow
async def test_three_real_agents_serve_a_new_leader_within_300_ms(tmp_path: Path) -> None:
    """From the moment at which the new leader says so itself until the last one says so, leader by leader;
    and each change is told on every agent's event feed. Then one crashes, and the stream says so."""
    async with agents_in(tmp_path) as agents:
        cluster = await agents.cluster(3)
        status, _ = await cluster[1].call("PUT", "/v1/topics/t", {"partitions": 6, "replication_factor": 3})
        assert status == 201
        told: dict[tuple[int, int], dict[str, float]] = {}
        listeners = []
        for running in cluster:
            feed, agent_id = running.agent.broker.events, running.agent.agent_id
            listener = feed.listen(feed.number)

            async def follow(listener: Any = listener, agent_id: str = agent_id) -> None:
                while True:
                    for event in await listener.take(60):
                        if (
                            event.kind == "leader-changed"
                            and event.data["topic"] == "t"
                            and event.data["leader"]
                        ):
                            change = told.setdefault((event.data["partition"], event.data["term"]), {})
                            change[agent_id] = asyncio.get_running_loop().time()

            listeners.append(asyncio.create_task(follow()))
        try:
            for running in cluster:
                host = running.agent.host
                assert host is not None
                before = len(told)

                async def gave_some(host: Any = host) -> bool:
                    return await host.transfer_all(20_000) > 0

                await eventually(gave_some, 60.0)  # on a busy machine it may lead nothing yet
                await eventually(lambda before=before: _all_told(told, before + 1, len(cluster)))
        finally:
            for task in listeners:
                task.cancel()
            await asyncio.gather(*listeners, return_exceptions=True)
        await _a_crash_is_streamed(cluster)
        by_all = [times.values() for times in told.values() if len(times) == len(cluster)]
        spreads = sorted(max(times) - min(times) for times in by_all)
        assert len(spreads) >= len(cluster)
        assert statistics.median(spreads) <= 0.3
        assert spreads[-1] <= 1.0  # the machine is shared: one late turn of the loop is not the protocol's


async def _a_crash_is_streamed(cluster: list[Any]) -> None:
    """Over HTTP, as a client reads it: whom gossip suspects, then gives up."""
    watcher, victim = cluster[0], cluster[2]
    victim_id, url = victim.agent.agent_id, f"{watcher.agent.url}/v1/events"
    seen: list[tuple[str, Any]] = []
    async with aiohttp.ClientSession() as session, session.get(url) as response, asyncio.timeout(PATIENCE_S):
        assert response.status == 200
        first = await response.content.readuntil(b"\n\n")
        assert b"event: listening" in first
        await victim.crash()
        while not {"failed", "left"} & {kind for kind, _ in seen}:  # on its way down it may say goodbye
            fields = dict(
                line.split(": ", 1)
                for line in (await response.content.readuntil(b"\n\n")).decode().splitlines()
                if line and not line.startswith(":")
            )
            if fields:
                seen.append((fields["event"], json.loads(fields["data"])))
    for kind, data in seen:
        if kind in ("failed", "left"):
            assert (data["member"]["id"], data["member"]["status"]) == (victim_id, kind)


async def _all_told(told: dict[tuple[int, int], dict[str, float]], at_least: int, agents: int) -> bool:
    """So many changes, and of each partition the newest by all: when leadership moves twice at once, an agent
    may tell of the second only."""
    newest: dict[int, int] = {}
    for partition, term in told:
        newest[partition] = max(term, newest.get(partition, 0))
    return len(told) >= at_least and all(len(told[change]) == agents for change in newest.items())


@pytest.mark.parametrize("size", [1, 3])
async def test_counts_are_as_fresh_as_the_last_acknowledged_append(tmp_path: Path, size: int) -> None:
    """Whoever is asked, of topics that others lead, too: what was acknowledged is counted."""
    async with agents_in(tmp_path) as agents:
        cluster = await agents.cluster(size)
        assert (await cluster[0].call("PUT", "/v1/topics/t", {"partitions": 3}))[0] == 201
        count = 0
        for turn in range(12):
            path = f"/v1/topics/t/partitions/{turn % 3}/records"
            for _ in range(3):
                status, _ = await cluster[turn % size].call("POST", path, b"v", timeout="30s")
                assert status == 200
                count += 1
            for asked in cluster:
                _, listed = await asked.call("GET", "/v1/topics")
                assert [topic["records"] for topic in listed["topics"]] == [count]
                _, document = await asked.call("GET", "/v1/topics/t")
                assert document["records"] == count
                ends = [partition["high_watermark"] for partition in document["partitions"]]
                assert sum(ends) == count


async def test_a_peer_that_does_not_answer_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counts are as they were; whoever asks meanwhile shares the next round."""
    monkeypatch.setattr("shoal.agent.routing.exchange.FRESHEN_TIMEOUT_MS", 20)

    class Silent:
        agent_id = "own"
        asked = 0

        async def request(self, agent_id: str, kind: int, payload: bytes, timeout_ms: int) -> bytes:
            self.asked += 1
            return await asyncio.get_running_loop().create_future()

        def send_control(self, agent_id: str, kind: int, payload: bytes) -> bool:
            return True

        def live_peers(self) -> list[str]:
            return ["silent"]

        def set_placement(self, run: str, version: int) -> None:
            pass

        def announce_placement(self, run: str, version: int) -> None:
            pass

        def placement_versions(self) -> dict[str, tuple[str, int]]:
            return {}

        def known_members(self) -> set[str]:
            return {"silent"}

    peers = Silent()
    exchange = RouteExchange(
        peers=peers, watch=Watch("b"), rng=random.Random(1), held=list, claim=lambda _: None, touched=list
    )
    async with asyncio.timeout(PATIENCE_S):
        first = asyncio.create_task(exchange.freshen_everywhere())
        await asyncio.sleep(0.001)
        await asyncio.gather(first, *(exchange.freshen_everywhere() for _ in range(10)))
    assert peers.asked == 2


def test_all_claims_are_looked_at_in_turns_and_what_changes_in_between_stands() -> None:
    """Somebody else has the loop after so many. A group that is held no more is forgotten, one that came
    meanwhile is kept."""

    async def work(cluster: RouteCluster) -> None:
        cluster.place()
        await cluster.settled()
        agent = cluster.agents["n0"]
        exchange = agent.exchange
        gone, other = list(agent.held)[-2:]
        claim = agent.held.pop(other)
        exchange.group_changed(other)
        await asyncio.sleep(0)
        turns: list[int] = []
        looking = asyncio.create_task(exchange._refresh_in_turns())
        while not looking.done():
            await asyncio.sleep(0)
            turns.append(len(list(exchange.own.held())))
            if len(turns) == 1:
                del agent.held[gone]  # nobody says so
                agent.hold(claim)
        assert len(turns) > len(agent.held) // CLAIMS_PER_TURN
        assert {item.group for item in exchange.own.held()} == agent.held.keys()

    cluster = RouteCluster(3, 4 * CLAIMS_PER_TURN, 5, hint_loss=0.0)
    run_virtually(cluster.run(work(cluster)))
