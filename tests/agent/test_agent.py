"""Agents as a whole: they boot, meet, elect, serve, lose members, leave, and refuse to start where they
must.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shoal.agent.agent import Agent, Outcome, StopRequest, run_agent
from shoal.agent.durable.data_directory import default_name
from shoal.agent.durable.ids import CATALOG_GROUP
from shoal.agent.process.errors import StartError
from shoal.agent.process.ports import PortError
from tests.agent.agents import EVENTUALLY_S, Agents, Running, agents_in, config, eventually

pytestmark = pytest.mark.slow


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    async with agents_in(tmp_path) as started:
        yield started


async def leaders(at: Running, topic: str) -> list[str | None]:
    status, body = await at.call("GET", "/v1/routes", topic=topic)
    assert status == 200, body
    return [partition["leader"] for partition in body["topics"][topic]["partitions"]]


async def values(at: Running, topic: str, partition: int = 0) -> list[str]:
    status, body = await at.call("GET", f"/v1/topics/{topic}/partitions/{partition}/records")
    assert status == 200, body
    return [record["value"] for record in body["records"]]


async def test_an_agent_boots_alone_serves_and_returns_with_its_data(agents: Agents) -> None:
    """Found, create, produce, read; then again from the same directory, under the same id and cluster."""
    first = await agents.alone("a")
    assert (await first.call("PUT", "/v1/topics/t", {"partitions": 2}))[0] == 201
    status, produced = await first.call(
        "POST", "/v1/topics/t/partitions/1/records", {"records": [{"value": "v"}]}
    )
    assert (status, produced["appended"]) == (200, [{"partition": 1, "base_offset": 0, "count": 1}])
    before = (await first.call("GET", "/v1/agent"))[1]
    assert await first.leave() is Outcome.STOPPED

    again = await agents.alone("a")
    after = (await again.call("GET", "/v1/agent"))[1]
    assert (after["id"], after["cluster_id"]) == (before["id"], before["cluster_id"])
    assert await values(again, "t", 1) == ["v"]
    assert (await again.call("PUT", "/v1/topics/t", {"partitions": 2}))[0] == 200


async def test_a_running_agent_follows_settings_that_were_reloaded(agents: Agents) -> None:
    """Each part asks for the value that counts now, and GET /v1/agent shows it."""
    first = await agents.alone("a")
    assert (await first.call("POST", "/v1/topics/one/records", {"records": [{"value": "v"}]}))[0] == 200
    changed = {"auto_create_topics": False, "shutdown_timeout": 7_000, "replace_after": 77_000}
    first.agent.follow(changed | {"scrub_bytes_per_s": 0, "log_level": "error"})
    status, refused = await first.call("POST", "/v1/topics/two/records", {"records": [{"value": "v"}]})
    assert (status, refused["code"]) == (404, "unknown-topic")
    shown = (await first.call("GET", "/v1/agent"))[1]["configuration"]
    assert (shown["auto_create_topics"], shown["replace_after_ms"]) == (False, 77_000)
    assert (shown["scrub_bytes_per_s"], shown["log_level"]) == (0, "error")
    assert first.agent.config.shutdown_timeout_ms == 7_000
    first.agent.follow({"auto_create_topics": True})
    assert (await first.call("POST", "/v1/topics/two/records", {"records": [{"value": "v"}]}))[0] == 200
    assert first.agent.config.replace_after_ms == 77_000


async def test_topics_are_created_once_and_differences_are_told(agents: Agents) -> None:
    """201, 200 if equal, 409 with what differs; a factor above the live members is refused only if it was
    given.
    """
    agent = await agents.alone("a")
    assert (await agent.call("PUT", "/v1/topics/t"))[0] == 201

    async def is_led() -> bool:
        return await leaders(agent, "t") == [agent.agent.agent_id]

    await eventually(is_led)  # a slow disk takes longer than the answer waits for it
    status, document = await agent.call("PUT", "/v1/topics/t")
    assert status == 200
    assert (document["replication_factor"], document["effective_replication_factor"]) == (3, 1)
    assert document["under_replicated"] == 0
    assert document["partitions"][0]["leader"] == agent.agent.agent_id
    status, problem = await agent.call("PUT", "/v1/topics/t", {"partitions": 2})
    assert (status, problem["code"]) == (409, "topic-differs")
    assert "partitions is 1" in problem["detail"]
    status, problem = await agent.call("PUT", "/v1/topics/u", {"replication_factor": 2})
    assert (status, problem["code"]) == (409, "not-enough-members")


async def test_three_agents_elect_serve_and_survive_the_loss_of_one(agents: Agents) -> None:
    """Six partitions, three replicas, two leaders each; after a crash the others lead everything and lose
    nothing.
    """
    cluster = await agents.cluster(3)
    topic = {"partitions": 6, "replication_factor": 3}
    status, _ = await cluster[1].call("PUT", "/v1/topics/t", topic, timeout="60s")
    assert status == 201
    ids = [running.agent.agent_id for running in cluster]

    async def led_by(running: Running, agents_partitions: dict[str, int]) -> bool:
        return Counter(await leaders(running, "t")) == agents_partitions

    for running in cluster:
        await eventually(lambda at=running: led_by(at, dict.fromkeys(ids, 2)))
    for partition in range(6):
        at = cluster[partition % 3]
        path = f"/v1/topics/t/partitions/{partition}/records"
        assert (await at.call("POST", path, {"records": [{"value": "before"}]}))[0] == 200

    lost, *rest = cluster
    await lost.crash()
    for partition in range(6):
        path = f"/v1/topics/t/partitions/{partition}/records"
        status, body = await rest[partition % 2].call("POST", path, {"records": [{"value": "after"}]})
        assert status == 200, body
        assert await values(rest[0], "t", partition) == ["before", "after"]

    async def led_by_the_others(running: Running) -> bool:
        return set(await leaders(running, "t")) == set(ids[1:])

    for running in rest:
        await eventually(lambda at=running: led_by_the_others(at))


async def test_the_lost_agent_catches_up_when_it_returns(agents: Agents) -> None:
    """What was written without it is on its disk soon after, and it is alive in everybody's list."""
    cluster = await agents.cluster(3)
    await cluster[0].call("PUT", "/v1/topics/t", {"replication_factor": 3})
    await cluster[2].crash()
    status, _ = await cluster[0].call(
        "POST", "/v1/topics/t/partitions/0/records", {"records": [{"value": "v"}] * 9}
    )
    assert status == 200
    back = await agents.start("a2", expect=3, join=[await cluster[0].gossip_address()]).until_ready()

    async def caught_up() -> bool:
        members = (await cluster[0].call("GET", "/v1/members"))[1]["members"]
        member = next(item for item in members if item["id"] == back.agent.agent_id)
        ends = [item["log_end_offset"] for item in member["partitions"] if item["topic"] == "t"]
        return bool(member["status"] == "alive" and ends == [9])

    await eventually(caught_up)


async def test_leaving_hands_leadership_over(agents: Agents) -> None:
    """After SIGTERM the others show `left`, lead everything, and no append failed meanwhile."""
    cluster = await agents.cluster(3)
    await cluster[0].call("PUT", "/v1/topics/t", {"partitions": 3, "replication_factor": 3})
    assert await cluster[0].leave() is Outcome.STOPPED
    for partition in range(3):
        path = f"/v1/topics/t/partitions/{partition}/records"
        assert (await cluster[1].call("POST", path, {"records": [{"value": "v"}]}))[0] == 200

    async def others_lead() -> bool:
        return set(await leaders(cluster[1], "t")) <= {running.agent.agent_id for running in cluster[1:]}

    async def is_left() -> bool:
        members = (await cluster[1].call("GET", "/v1/members"))[1]["members"]
        return Counter(member["status"] for member in members) == {"alive": 2, "left": 1}

    await eventually(others_lead)
    await eventually(is_left)


async def test_a_later_member_follows_the_catalog_and_holds_replicas(agents: Agents) -> None:
    """It is no voter of the catalog: it learns of topics by pulling, and forwards what it does not lead."""
    cluster = await agents.cluster(3)
    await cluster[0].call("PUT", "/v1/topics/old", {"replication_factor": 3})
    late = await agents.start("late", expect=None, join=[await cluster[0].gossip_address()]).until_ready()
    assert len((await late.call("GET", "/v1/agent"))[1]["catalog"]["birth"]) == 3
    assert (await late.call("POST", "/v1/topics/old/records", b"via the late one"))[0] == 200
    assert await values(late, "old") == ["via the late one"]

    async def all_see_it() -> bool:
        lists = [(await at.call("GET", "/v1/members", status="alive"))[1]["members"] for at in cluster]
        return [len(members) for members in lists] == [4] * 3

    await eventually(all_see_it)
    topic = {"partitions": 4, "replication_factor": 4}
    status, document = await late.call("PUT", "/v1/topics/new", topic, timeout="60s")
    assert status == 201, document
    assert late.agent.agent_id in {replica["id"] for replica in document["partitions"][0]["replicas"]}
    async with asyncio.timeout(60):
        while late.agent.agent_id not in await leaders(cluster[0], "new"):
            await asyncio.sleep(0.1)
    assert (await late.call("POST", "/v1/topics/new/records", b"x"))[0] == 200


async def test_the_catalog_outlives_the_agent_that_began_it(agents: Agents) -> None:
    """Begun by one, joined by two: the catalog gets three voters, and survives its founder and a restart."""
    founder = await agents.alone("a0")
    address = await founder.gossip_address()
    later = [agents.start(name, expect=None, join=[address]) for name in ("a1", "a2")]
    for running in later:
        await running.until_ready()
    await eventually(lambda: _catalog_voters(founder, 3))
    assert (await later[0].call("PUT", "/v1/topics/before", {"replication_factor": 3}))[0] == 201
    await founder.crash()
    status, document = await later[0].call(
        "PUT", "/v1/topics/after", {"replication_factor": 2}, timeout="10s"
    )
    assert status == 201, document

    await later[0].leave()
    again = await agents.start("a1", expect=None, join=[await later[1].gossip_address()]).until_ready()
    assert await _catalog_voters(again, 3)
    topics = (await again.call("GET", "/v1/topics"))[1]["topics"]
    assert [topic["name"] for topic in topics] == ["after", "before"]


async def _catalog_voters(running: Running, voters: int) -> bool:
    host = running.agent.host
    assert host is not None
    configuration = host.status(CATALOG_GROUP).configuration
    return configuration is not None and len(configuration.voters) == voters


async def test_deletion_frees_the_disk_of_every_holder(agents: Agents, tmp_path: Path) -> None:
    """The directories go, every holder confirms, and then the tombstone goes too (safety 4)."""
    cluster = await agents.cluster(3)
    _, document = await cluster[0].call("PUT", "/v1/topics/t", {"partitions": 2, "replication_factor": 3})
    directories = [tmp_path / f"a{number}" / "topics" / document["id"] for number in range(3)]

    async def made() -> bool:
        return all(directory.exists() for directory in directories)

    async def unknown() -> bool:
        return (await cluster[2].call("GET", "/v1/topics/t"))[0] == 404

    await eventually(made)
    assert (await cluster[1].call("DELETE", "/v1/topics/t"))[0] == 204
    await eventually(unknown)

    async def gone() -> bool:
        parts = [running.agent.broker._parts().catalog.catalog for running in cluster]
        return not any(map(Path.exists, directories)) and not any(catalog.tombstones for catalog in parts)

    await eventually(gone)
    assert (await cluster[2].call("PUT", "/v1/topics/t", {"partitions": 1, "replication_factor": 3}))[
        0
    ] == 201


async def test_a_leadership_change_reaches_everybody(agents: Agents) -> None:
    """Also those who were not told of it by hand; agent/routing/test_exchange.py says how soon, in virtual
    time."""
    cluster = await agents.cluster(3)
    await cluster[0].call("PUT", "/v1/topics/t", {"replication_factor": 3})

    found: list[str] = []

    async def moved() -> bool:
        """What is told of leaders may be old on a busy machine: whoever is told of leads no more then."""
        found[:] = [leader for leader in await leaders(cluster[0], "t") if leader is not None]
        told = [running.agent.host for running in cluster if running.agent.agent_id in found]
        return bool(told) and told[0] is not None and await told[0].transfer_all(30_000) >= 1

    await eventually(moved)
    leader_id = found[0]
    observer = next(running for running in cluster if running.agent.agent_id != leader_id)

    async def seen() -> bool:
        return (await leaders(observer, "t"))[0] not in (leader_id, None)

    await eventually(seen)


async def test_open_long_polls_do_not_delay_the_end(agents: Agents) -> None:
    """Readers and watchers that wait for news are answered, or cut off, as soon as the agent leaves."""
    agent = await agents.alone("a")
    await agent.call("PUT", "/v1/topics/t")
    version = (await agent.call("GET", "/v1/routes"))[1]["version"]
    polls = [
        asyncio.create_task(agent.call("GET", "/v1/topics/t/partitions/0/records", wait="60s")),
        asyncio.create_task(agent.call("GET", "/v1/routes", after_version=version, wait="60s")),
    ]
    await asyncio.sleep(0.2)
    started = asyncio.get_running_loop().time()
    assert await agent.leave() is Outcome.STOPPED
    assert asyncio.get_running_loop().time() - started < 20
    await asyncio.gather(*polls, return_exceptions=True)


async def test_asked_to_stop_at_once_an_agent_does_not_say_goodbye(agents: Agents) -> None:
    """Neither to its pool, which would take it for an agent that left instead of one that failed, nor to its
    groups."""
    running = await agents.alone("hurried")
    said: list[str] = []

    async def goodbye() -> None:
        said.append("leaving")

    running.agent._goodbyes.append(goodbye)
    await running.crash()
    assert said == []


async def test_an_agent_that_waits_says_so_and_can_be_stopped(agents: Agents) -> None:
    """--expect 2 with nobody else: alive, not ready, 503 with the reason; SIGTERM works while starting."""
    waiting = agents.start("a", expect=2)
    await waiting.gossip_address()
    await eventually(lambda: _is_waiting(waiting))
    assert (await waiting.call("GET", "/livez"))[0] == 200
    status, problem = await waiting.call("GET", "/readyz")
    assert (status, problem["code"]) == (503, "not-ready")
    assert "1 of 2" in problem["detail"]
    status, problem = await waiting.call("POST", "/v1/topics/t/records", b"x")
    assert (status, problem["code"]) == (503, "not-ready")
    assert await waiting.leave() is Outcome.STOPPED


async def _is_waiting(running: Running) -> bool:
    return "1 of 2" in running.agent.broker.waiting_reason


async def test_two_empty_clusters_of_one_name_become_one(agents: Agents, tmp_path: Path) -> None:
    """The larger id commits a seal, empties its directory and joins as a newcomer (safety 6)."""
    one, two = await agents.alone("one"), await agents.alone("two")
    assert await one.agent.pool.membership.join([("127.0.0.1", two.agent.pool.membership.port)]) == 1
    first_id, second_id = one.agent.node.roster.cluster_id, two.agent.node.roster.cluster_id
    assert first_id is not None
    assert second_id is not None
    loser, winner = (one, two) if first_id > second_id else (two, one)
    assert await asyncio.wait_for(loser.task, EVENTUALLY_S) is Outcome.DISSOLVED
    assert os.listdir(loser.agent.config.data) == ["lock"]
    reborn = await agents.start(
        Path(loser.agent.config.data).name, join=[await winner.gossip_address()], expect=None
    ).until_ready()
    assert reborn.agent.node.roster.cluster_id == winner.agent.node.roster.cluster_id


async def test_clusters_with_topics_never_merge(agents: Agents, caplog: pytest.LogCaptureFixture) -> None:
    """Each filters the other out of its list and says clearly that they stay apart."""
    one, two = await agents.alone("one"), await agents.alone("two")
    for running in (one, two):
        assert (await running.call("PUT", "/v1/topics/t"))[0] == 201
    await one.agent.pool.membership.join([("127.0.0.1", two.agent.pool.membership.port)])
    await eventually(lambda: _said(caplog, "two clusters never merge", 2))
    for running in (one, two):
        members = (await running.call("GET", "/v1/members"))[1]["members"]
        assert [member["id"] for member in members] == [running.agent.agent_id]
        assert not running.task.done()


async def _said(caplog: pytest.LogCaptureFixture, text: str, times: int) -> bool:
    return sum(text in record.getMessage() for record in caplog.records) >= times


def free_ports(count: int) -> int:
    """The first of so many ports that nobody uses now, below those that the kernel gives out by itself."""
    for base in random.sample(range(20_000, 32_000, 50), 20):
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in range(base, base + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return base
    raise AssertionError("no ports are free")


async def test_cores_are_agents_that_start_and_end_together(tmp_path: Path) -> None:
    """Two processes in one failure domain; SIGTERM to the first process ends all of them, with code 0."""
    command = [sys.executable, "-m", "shoal.agent", "agent", "--data", str(tmp_path), "--cores", "2"]
    base = free_ports(12)
    flags = ["--http-port", str(base), "--gossip-port", str(base + 10), "--cluster", f"cores-{base}"]
    process = await asyncio.create_subprocess_exec(
        *command, *flags, "--expect", "2", stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with aiohttp.ClientSession() as session:

            async def two_members() -> bool:
                try:
                    async with session.get(f"http://127.0.0.1:{base + 1}/v1/members") as response:
                        members = (await response.json())["members"]
                except aiohttp.ClientError:
                    assert process.returncode is None, "it has ended"
                    return False
                domains = {member["failure_domain"] for member in members}
                ready = sum(bool(member["partitions"]) for member in members)
                return len(members) == 2 and len(domains) == 1 and ready >= 1

            await eventually(two_members)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), EVENTUALLY_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    for port in (base, base + 1):
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 1):
            pass


# ---- refusing to start ---------------------------------------------------------------------------------


async def refused(settings: Any) -> str:
    with pytest.raises((StartError, PortError)) as caught:
        await asyncio.wait_for(Agent(settings).run(StopRequest()), EVENTUALLY_S)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_a_directory_of_another_cluster_is_refused(agents: Agents, tmp_path: Path) -> None:
    """By name, with the name to use; without --cluster the agent returns to where it belongs."""
    first = await agents.alone("a", cluster="blue")
    await first.leave()
    assert "belongs to cluster 'blue', not 'red'" in await refused(config(tmp_path / "a", cluster="red"))
    again = await agents.alone("a")
    assert again.agent.config.cluster == "blue"


async def test_a_directory_in_use_is_refused(agents: Agents, tmp_path: Path) -> None:
    """By the process that holds it."""
    await agents.alone("a")
    assert f"in use by process {os.getpid()}" in await refused(config(tmp_path / "a"))


async def test_a_port_that_was_asked_for_and_is_taken_is_refused(tmp_path: Path) -> None:
    """HTTP and gossip alike; nothing else is tried."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} on 127.0.0.1 is in use" in await refused(config(tmp_path / "a", http_port=port))
        assert "--gossip-port" in await refused(config(tmp_path / "b", gossip_port=port))


async def test_a_directory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """A file stands there; another address than ours; both in one line, and the exit code says failure."""
    (tmp_path / "file").write_text("")
    assert "is not a directory" in await refused(config(tmp_path / "file"))
    assert "is not an address of this host" in await refused(
        config(tmp_path / "a", bind="192.0.2.1", insecure=True)
    )
    assert await run_agent(config(tmp_path / "file")) == 1


def test_default_names() -> None:
    """HOST-xxxxxxxx in the alphabet of names, whatever the host is called."""
    assert default_name("host.example.org", "0123456789abcdef") == "host-01234567"
    assert default_name("häst_1", "0123456789abcdef") == "h-st_1-01234567"
    assert default_name("", "0123456789abcdef") == "agent-01234567"
    assert len(default_name("x" * 200, "0123456789abcdef")) == 64
