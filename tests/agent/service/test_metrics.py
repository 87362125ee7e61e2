"""What a running agent exposes: every family of the table, numbers that follow what happens, and a walk over
replicas that others hardly notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import prometheus_text
import psutil
import pytest
from memory_disk import MemoryDisk
from prometheus_client.parser import text_string_to_metric_families
from prometheus_text import Exposed

from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.host.free_space import LAST_FREE_BYTES, MIN_FREE_BYTES, SMALL_APPEND_BYTES, FreeSpace
from shoal.agent.levels import BEFORE_LEVELS, FIRST_LEVEL, Level, LevelRange
from shoal.agent.metrics.families import FAMILIES
from shoal.agent.partition.status import ReplicaStatus, ServingState
from shoal.agent.process.loop_lag import INTERVAL_S, watch_loop_lag
from shoal.agent.process.process_statistics import process_statistics
from shoal.agent.service import metrics
from shoal.agent.service.metrics import REPLICAS_PER_TURN, of_disk, of_replicas
from shoal.errors import ShoalError
from tests.agent.agents import Agents, Running, agents_in, eventually

NO_LABELS: frozenset[tuple[str, str]] = frozenset()


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    async with agents_in(tmp_path) as started:
        yield started


async def text_of(agent: Running, query: str = "") -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{agent.agent.url}/metrics{query}") as answer:
        assert answer.status == 200
        return await answer.text()


async def scraped(agent: Running, query: str = "") -> dict[str, Exposed]:
    return prometheus_text.parse(await text_of(agent, query))


def count(family: Exposed) -> float:
    """Of a histogram."""
    (found,) = [value for (name, _), value in family.samples.items() if name.endswith("_count")]
    return found


async def append(agent: Running, values: int) -> None:
    records = {"records": [{"value": "v" * 100} for _ in range(values)]}
    assert (await agent.call("POST", "/v1/topics/t/records", records))[0] == 200


@pytest.mark.slow
async def test_a_running_agent_exposes_the_whole_table_and_what_it_did(agents: Agents) -> None:
    """Each family once, as Prometheus' own reader takes it too; records, requests, times and roles are those
    of what was asked."""
    agent = await agents.alone("a")
    await agent.call("PUT", "/v1/topics/t", {"partitions": 2, "replication_factor": 1})
    for _ in range(3):
        await append(agent, 5)
    read = 0
    for partition in range(2):
        path = f"/v1/topics/t/partitions/{partition}/records"
        read += len((await agent.call("GET", path, offset=0))[1]["records"])
    assert read == 15

    async def loop_was_timed() -> bool:
        return count((await scraped(agent))["shoal_loop_lag_seconds"]) > 0

    await eventually(loop_was_timed)  # the first time after INTERVAL_S
    text = await text_of(agent, "?partitions=true")
    families = prometheus_text.parse(text)
    assert list(families) == [family.name for family in FAMILIES]
    for family in FAMILIES:
        exposed = families[family.name]
        assert (exposed.help, exposed.kind) == (family.help, family.kind)
        for _, labels in exposed.samples:
            assert {name for name, _ in labels} - {"le"} == set(family.labels), family.name
    theirs = {family.name: family for family in text_string_to_metric_families(text)}
    assert sum(len(family.samples) for family in theirs.values()) == sum(
        len(family.samples) for family in families.values()
    )
    assert families["shoal_appended_records_total"].value() == 15
    assert families["shoal_appended_bytes_total"].value() > 1_500
    assert families["shoal_fetched_records_total"].value() == 15
    assert families["shoal_fetched_bytes_total"].value() > 1_500
    assert families["shoal_http_requests_total"].value(operation="createTopic", status="201") == 1
    assert families["shoal_http_requests_total"].value(operation="produce", status="200") == 3
    assert families["shoal_http_requests_total"].value(operation="readPartition", status="200") == 2
    for name in ("append", "commit", "fetch", "fsync", "loop_lag"):
        assert count(families[f"shoal_{name}_seconds"]) > 0, name
    assert families["shoal_replicas"].value(role="leader") == 3  # the catalog's is one
    assert families["shoal_partition_leader"].value(topic="t", partition="1") == 1
    ends = [families["shoal_partition_high_watermark"].value(topic="t", partition=p) for p in "01"]
    assert sum(ends) == 15
    assert families["shoal_log_size_bytes"].value() == sum(
        families["shoal_partition_size_bytes"].samples.values()
    )
    assert families["shoal_members"].value(status="alive", kind="shoal") == 1
    assert families["shoal_leaderships_gained_total"].value() >= 3
    assert families["shoal_partitions_without_leader"].value() == 0
    assert 0 < families["shoal_disk_free_bytes"].value() <= families["shoal_disk_size_bytes"].value()


@pytest.mark.slow
async def test_partitions_have_no_series_of_their_own_unless_asked_for(agents: Agents) -> None:
    """The text of an agent does not grow with its replicas."""
    agent = await agents.alone("a")
    await agent.call("PUT", "/v1/topics/t", {"partitions": 8, "replication_factor": 1})
    families = await scraped(agent)
    assert list(families) == [family.name for family in FAMILIES if not family.per_partition]
    assert families["shoal_topics"].value() == 1


@pytest.mark.slow
async def test_trouble_can_be_seen(agents: Agents) -> None:
    """Three agents: frames and acknowledgements flow. One is killed: it is missed by name and number, its
    followers lag, elections happen. A second one is: nobody leads."""
    first, *others = await agents.cluster(3)
    await first.call("PUT", "/v1/topics/t", {"partitions": 3, "replication_factor": 3})
    await append(first, 9)

    async def sum_of(name: str, agents: list[Running], **labels: str) -> float:
        return sum([(await scraped(agent))[name].value(**labels) for agent in agents])

    async def acknowledged() -> bool:
        families = [await scraped(agent) for agent in (first, *others)]
        return sum(count(item["shoal_replication_seconds"]) for item in families) > 0

    await eventually(acknowledged)
    families = await scraped(first)
    for kind in ("control", "bulk"):
        assert families["shoal_links"].value(kind=kind) == 2
    for way in ("sent", "received"):
        assert families[f"shoal_link_frames_{way}_total"].value(kind="control") > 0
        assert families[f"shoal_link_{way}_bytes_total"].value(kind="control") > 0
    assert await sum_of("shoal_partitions_under_replicated", [first, *others]) == 0
    await others[1].crash()
    survivors = [first, others[0]]

    async def is_missed() -> bool:
        leads = await sum_of("shoal_replicas", survivors, role="leader")
        return leads == 4 and await sum_of("shoal_partitions_under_replicated", survivors) == 4

    await eventually(is_missed)
    await eventually(lambda: _equals(sum_of("shoal_members", survivors, status="failed", kind="shoal"), 2))
    assert await sum_of("shoal_elections_total", survivors) > 0
    for _ in range(5):
        await append(first, 3)
    lags: list[Any] = []

    async def is_behind() -> bool:
        lags[:] = [await scraped(agent, "?partitions=true") for agent in survivors]
        rows = [labels for item in lags for _, labels in item["shoal_follower_lag_entries"].samples]
        return "a2" in {dict(labels)["follower"] for labels in rows}

    await eventually(is_behind)
    largest = max(item["shoal_follower_lag_entries"].value(follower="a2") for item in lags)
    assert largest == max(
        value
        for item in lags
        for (_, labels), value in item["shoal_partition_follower_lag_entries"].samples.items()
        if ("follower", "a2") in labels
    )
    assert largest > 0
    await others[0].crash()
    await eventually(lambda: _equals(sum_of("shoal_partitions_without_leader", [first]), 4))
    assert (await scraped(first))["shoal_replicas"].value(role="leader") == 0
    assert (await scraped(first))["shoal_leaderships_lost_total"].value() > 0


@pytest.mark.slow
async def test_levels_are_exposed(agents: Agents) -> None:
    """An upgraded agent that waits for another one understands more than the cluster's level. A cluster of
    upgraded agents has the highest one."""
    present = LevelRange(FIRST_LEVEL, Level(2))

    async def levels_of(agent: Running) -> tuple[float, float]:
        families = await scraped(agent)
        return families["shoal_cluster_level"].value(), families["shoal_understood_level"].value()

    old = await agents.alone("old", levels=BEFORE_LEVELS)
    new = await agents.start("new", present, expect=2, join=[await old.gossip_address()]).until_ready()
    other = await agents.alone("other", present, cluster="others")

    async def are_known() -> bool:
        return [await levels_of(agent) for agent in (old, new, other)] == [(1, 1), (1, 2), (2, 2)]

    await eventually(are_known)


async def _equals(found: Any, wanted: float) -> bool:
    return bool(await found == wanted)


class Replicas:
    """A host of many replicas, of which each says the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.here = {GroupId(b"t" * 16, partition): SimpleNamespace() for partition in range(number)}
        self.stopped: dict[GroupId, ServingState] = {}
        for group, replica in self.here.items():
            replica.group = group
        role = SimpleNamespace(name="LEADER")
        monkeypatch.setattr(
            metrics,
            "status_of",
            lambda replica: ReplicaStatus(replica.group, ServingState.ACTIVE, "", role, size_bytes=10),
        )
        monkeypatch.setattr(metrics, "_lags", lambda replica: {"f" * 32: replica.group.partition})
        monkeypatch.setattr(metrics, "_groups_led", AsyncMock(return_value=[]))

    def open_replicas(self) -> list[Any]:
        return list(self.here.values())

    def open_replica(self, group: GroupId) -> Any:
        return self.here.get(group)

    def stopped_groups(self) -> list[GroupId]:
        return list(self.stopped)

    def has(self, group: GroupId) -> bool:
        return group in self.here or group in self.stopped

    def status(self, group: GroupId) -> ReplicaStatus:
        return ReplicaStatus(group, self.stopped[group], "")

    async def read(self, *, partitions: bool) -> dict[str, Any]:
        host: Any = self
        return dict(await of_replicas(host, lambda group: "t", partitions=partitions))


async def test_a_walk_over_a_thousand_replicas_gives_the_loop_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else gets a turn after each slice."""
    replicas = Replicas(monkeypatch, 1_000)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    reading = await replicas.read(partitions=True)
    beside.cancel()
    assert turns >= 1_000 // REPLICAS_PER_TURN
    assert len(reading["shoal_partition_leader"]) == 1_000
    assert reading["shoal_replicas"] == {("leader",): 1_000, ("follower",): 0, ("candidate",): 0}
    assert reading["shoal_log_size_bytes"] == 10_000
    assert list(reading["shoal_follower_lag_entries"].values()) == [999]


async def test_replicas_may_come_and_go_during_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is closed meanwhile is not told of; one that does not serve is, by its state."""
    replicas = Replicas(monkeypatch, 4 * REPLICAS_PER_TURN)
    gone = GroupId(b"t" * 16, 4 * REPLICAS_PER_TURN - 1)
    lost, failed = GroupId(b"l" * 16, 0), GroupId(b"l" * 16, 1)
    replicas.stopped = {lost: ServingState.LOST, failed: ServingState.FAILED}
    asyncio.get_running_loop().call_soon(replicas.here.pop, gone)
    reading = await replicas.read(partitions=True)
    assert reading["shoal_replicas"]["leader",] == 4 * REPLICAS_PER_TURN - 1
    assert ("t", str(gone.partition)) not in reading["shoal_partition_term"]
    assert reading["shoal_replicas_out_of_service"] == {("installing",): 0, ("failed",): 1, ("lost",): 1}


async def test_a_full_disk_is_counted(tmp_path: Path) -> None:
    """Nothing is said of a size before the first look; then what is free, and each refusal."""
    disk = MemoryDisk()
    space = FreeSpace(disk, "d")
    assert of_disk(space) == {"shoal_disk_refusing": 0, "shoal_disk_refused_total": 0}

    async def free(_: str) -> tuple[int, int]:
        return MIN_FREE_BYTES - 1, 2**30

    disk.free_bytes = free  # type: ignore[method-assign]
    await space.look()
    with pytest.raises(ShoalError):
        space.require()
    space.size_bytes = LAST_FREE_BYTES - 1
    group = GroupId(b"t" * 16, 0)
    assert not space.admits(group, SMALL_APPEND_BYTES + 1)
    assert space.admits(group, SMALL_APPEND_BYTES)
    assert space.admits(CATALOG_GROUP, 2**20)
    assert of_disk(space) == {
        "shoal_disk_refusing": 1,
        "shoal_disk_refused_total": 2,
        "shoal_disk_free_bytes": LAST_FREE_BYTES - 1 - 2**20,
        "shoal_disk_size_bytes": 2**30,
    }


@pytest.mark.machine_clock
async def test_a_loop_that_is_held_is_late() -> None:
    """By as long as it was held, less the rest of the interval."""
    heard: list[int] = []
    told = asyncio.Event()

    def observe(lag_ns: int) -> None:
        heard.append(lag_ns)
        told.set()

    watching = asyncio.create_task(watch_loop_lag(observe))
    await asyncio.sleep(0)
    end = asyncio.get_running_loop().time() + 3 * INTERVAL_S
    while asyncio.get_running_loop().time() < end:
        pass
    await told.wait()
    watching.cancel()
    assert heard[0] >= 1.9 * INTERVAL_S * 1e9


def test_the_process_is_as_others_see_it() -> None:
    """Compared with psutil, which reads the same files."""
    found, process = process_statistics(), psutil.Process()
    assert found is not None
    with process.oneshot():
        times = process.cpu_times()
        assert abs(found.cpu_seconds - times.user - times.system) < 5
        assert abs(found.start_time_seconds - process.create_time()) < 2
        assert found.virtual_bytes == pytest.approx(process.memory_info().vms, rel=0.2)
        assert found.resident_bytes == pytest.approx(process.memory_info().rss, rel=0.2)
    assert abs(found.open_fds - process.num_fds()) <= 2
    assert found.max_fds == process.rlimit(psutil.RLIMIT_NOFILE)[0]
