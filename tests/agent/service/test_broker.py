"""The broker's decisions, with parts that only remember: who may be asked what, and what the errors carry."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from memory_disk import MemoryDisk

from shoal.agent.config import AgentConfig
from shoal.agent.durable.catalog_version import NO_VERSION, CatalogVersion
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.events.change_counter import Watch
from shoal.agent.events.feed import EventFeed
from shoal.agent.host.free_space import FreeSpace
from shoal.agent.host.scrubber import Scrubber
from shoal.agent.interface import Topic
from shoal.agent.levels import FIRST_LEVEL, HOLD, SUPPORTED, LevelRange
from shoal.agent.members.tags import TAG_LEVELS
from shoal.agent.partition.status import ServingState
from shoal.agent.routing.table import Claim, OwnClaims, RouteTable
from shoal.agent.service.broker import Broker
from shoal.agent.service.cluster_view import AgentFacts, Alone, Joined
from shoal.agent.service.documents import Overview, members_document
from shoal.agent.service.event_sources import EventSources
from shoal.agent.topics.catalog import Catalog, CreateTopic, DeleteTopic, RaiseLevel
from shoal.agent.topics.catalog_codec import level_of_command
from shoal.agent.topics.catalog_service import Applied
from shoal.errors import ShoalError
from shoal.format.batch import Offset
from shoal.membership.interface import JoinError, Member

SELF, OTHER, GONE = "a" * 32, "b" * 32, "c" * 32
CLUSTER_ID = b"i" * 16


def member(agent_id: str, status: str = "alive", **tags: str) -> Member:
    base = {
        "name": f"n-{agent_id[0]}",
        "cl": "shoal",
        "cid": CLUSTER_ID.hex(),
        "url": f"http://127.0.0.1:{ord(agent_id[0])}",
    }
    return Member(agent_id, "127.0.0.1", 1, base | tags, status, 1, 0)


@dataclass
class FakeRoster:
    """Two live members and a dead one."""

    list: list[Member] = field(default_factory=lambda: [member(SELF), member(OTHER), member(GONE, "failed")])
    cluster_id: bytes | None = CLUSTER_ID
    pool: Any = None
    understood: LevelRange = SUPPORTED
    """By the other agent."""

    def gossip(self) -> Any:
        return self.pool

    def members(self) -> tuple[Member, ...]:
        return tuple(self.list)

    def is_live(self, agent_id: str) -> bool:
        return any(item.name == agent_id and item.status == "alive" for item in self.list)

    def urls(self) -> dict[str, str]:
        return {item.name: item.tags["url"] for item in self.list}

    def placeable(self) -> list[Member]:
        return [item for item in self.list if item.status == "alive" and item.tags["cid"]]

    birthplaces = placeable

    def holders_count(self) -> int:
        return len(self.list)

    def newcomers(self) -> bool:
        return any(not item.tags["cid"] for item in self.list)

    def understood_levels(self) -> dict[str, LevelRange]:
        return {SELF: SUPPORTED, OTHER: self.understood}

    def levels_of_left(self) -> dict[str, LevelRange]:
        return {}

    def holds_level(self) -> list[str]:
        return [item.name for item in self.list if item.tags.get(TAG_LEVELS, "").endswith(HOLD)]

    def find(self, name_or_id: str) -> Member | None:
        return next((item for item in self.list if name_or_id in (item.name, item.tags["name"])), None)

    def catalog_versions(self) -> dict[str, CatalogVersion]:
        return {OTHER: NO_VERSION}


@dataclass
class FakeCatalog:
    """Applies what is proposed at once; `race` is applied before it, as another proposer's command would
    be.
    """

    catalog: Catalog = field(default_factory=Catalog)
    proposed: list[Any] = field(default_factory=list)
    race: Any = None
    """One, or several in their order, before one proposal each."""
    halted: str | None = None
    is_current: bool = True
    local: Any = field(default_factory=lambda: SimpleNamespace(astray=False, level=FIRST_LEVEL))
    kept_replicas: Any = field(default_factory=lambda: SimpleNamespace(here=list))
    birth: tuple[str, ...] = (SELF,)
    told: int = 0

    async def make_current(self, timeout_ms: int) -> None:
        pass

    async def propose(self, command: Any, timeout_ms: int) -> Applied:
        is_understood = level_of_command(command) <= self.catalog.level
        assert is_understood or isinstance(command, RaiseLevel), "not every member understands it"
        self.proposed.append(command)
        if self.race is not None:
            race, self.race = self.race, None
            if isinstance(race, list):
                race, self.race = race[0], race[1:] or None
            self.catalog.apply(self.catalog.offset, race)
        outcome = self.catalog.apply(self.catalog.offset, command)
        return Applied(outcome, self.catalog.subject(command))

    @property
    def exchange(self) -> FakeCatalog:
        return self

    async def tell_peers(self) -> None:
        self.told += 1


@dataclass
class FakeHost:
    """Holds the groups named; answers every call with `error`, or None."""

    groups: set[Any] = field(default_factory=set)
    cleared_writes: dict[Any, int] = field(default_factory=dict)
    error: ShoalError | None = None
    state: ServingState = ServingState.ACTIVE
    free_space: FreeSpace = field(default_factory=lambda: FreeSpace(MemoryDisk(), ""))

    def has(self, group: Any) -> bool:
        return group in self.groups

    def reader(self, group: Any) -> Any:
        if group not in self.groups:
            raise ShoalError("not-leader", "there is no replica here", leader=None)
        return self

    async def offsets(self) -> Any:
        if self.error is not None:
            raise self.error
        return "offsets"

    async def wait_past(self, offset: int, wait_ms: int) -> bool:
        if self.error is not None:
            raise self.error
        return offset < 5

    def status(self, group: Any) -> Any:
        return SimpleNamespace(state=self.state, reason="")

    def statuses(self) -> list[Any]:
        return []


class Fixture:
    def __init__(self, catalog_leader: str | None = SELF) -> None:
        self.roster, self.catalog, self.host = FakeRoster(), FakeCatalog(), FakeHost()
        self.table = RouteTable()
        self.watch = Watch("run")
        self.stops = 0
        self.left: list[str] = []
        clock = SimpleNamespace(now_ms=lambda: int(asyncio.get_event_loop().time() * 1_000), now_us=lambda: 5)
        roster: Any = self.roster
        roster.pool = SimpleNamespace(join=self.join, force_leave=self.left.append)
        self.broker = Broker(
            AgentFacts(AgentConfig(data="d"), SELF, "n-a", "http://127.0.0.1:97", "0", "memory"),
            roster=roster,
            links=SimpleNamespace(dropped_frames=3),  # type: ignore[arg-type]
            watch=self.watch,
            clock=clock,  # type: ignore[arg-type]
            request_stop=self.stop,
            draining=SimpleNamespace(),  # type: ignore[arg-type]
            event_sources=EventSources(EventFeed("run"), roster, self.watch, lambda: 0),
        )
        host: Any = self.host
        catalog: Any = self.catalog
        routes: Any = SimpleNamespace(
            table=self.table, freshen=lambda: None, freshen_everywhere=lambda: asyncio.sleep(0)
        )
        disk: Any = None
        scrubber = Scrubber(host, disk, "", self.broker._clock, bytes_per_s=0)
        letters: Any = None
        self.joined = Joined(host, catalog, routes, scrubber, letters)
        self.broker.attach(self.joined)
        if catalog_leader is not None:
            self.leads(CATALOG_GROUP, catalog_leader)

    def stop(self) -> None:
        self.stops += 1

    async def join(self, addresses: Any) -> int:
        if addresses[0][0] == "nobody":
            raise JoinError("refused")
        return len(addresses)

    def leads(self, group: GroupId, agent_id: str, term: int = 1) -> None:
        own = OwnClaims(agent_id, f"run{random.random()}")
        for claim in self.table.claims_of(agent_id):
            own.set(claim)
        own.set(Claim(group, "leader", term, 0, agent_id, (SELF, OTHER)))
        self.table.apply(own.delta("", 0))
        self.watch.changed()

    async def topic(self, name: str = "t", **body: Any) -> Topic:
        await self.broker.create_topic(name, body, 100)
        return self.broker.topic(name)


async def code(awaitable: Any) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        await awaitable
    return caught.value


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of these tests elects leaders: creations need not wait for them."""
    monkeypatch.setattr("shoal.agent.service.topic_admin.LEADERS_WAIT_MS", 0)


@pytest.mark.usefixtures("quick")
async def test_creation_is_for_the_catalogs_leader() -> None:
    """Elsewhere 421 with the leader's URL, or 503 when there is none."""
    elsewhere = await code(Fixture(OTHER).broker.create_topic("t", None, 100))
    assert (elsewhere.code, elsewhere.extra["leader_url"]) == ("not-leader", "http://127.0.0.1:98")
    assert (await code(Fixture(None).broker.create_topic("t", None, 100))).code == "no-leader"
    assert (await code(Fixture(GONE).broker.create_topic("t", None, 100))).code == "no-leader"


@pytest.mark.usefixtures("quick")
async def test_a_lost_race_is_answered_by_what_was_committed() -> None:
    """The same settings: not created by us, and fine. Others: topic-differs."""
    for partitions, expected in ((1, None), (2, "topic-differs")):
        fixture, winner = Fixture(), Fixture()
        await winner.topic(partitions=partitions)
        fixture.catalog.race = CreateTopic(winner.catalog.catalog.topics["t"])
        if expected is None:
            assert (await fixture.broker.create_topic("t", None, 100))[0] is False
        else:
            assert (await code(fixture.broker.create_topic("t", None, 100))).code == expected


@pytest.mark.usefixtures("quick")
async def test_a_repeated_creation_is_told_that_it_made_the_topic() -> None:
    """By its key: the answer to an earlier attempt was lost, or that attempt is still under way. The id is a
    new one all the same, when the topic was deleted in between."""
    fixture = Fixture()
    create = fixture.broker.create_topic
    made, first = await create("t", {"partitions": 2}, 100, "one")
    assert (made, await create("t", {"partitions": 2}, 100, "one")) == (True, (True, first))
    for key in ("two", None):
        assert await create("t", {"partitions": 2}, 100, key) == (False, first)
    assert (await code(create("t", {"partitions": 3}, 100, "one"))).code == "topic-differs"
    await fixture.broker.delete_topic("t", 100)
    made, second = await create("t", {"partitions": 2}, 100, "one")
    assert (made, second["id"] != first["id"]) == (True, True)
    for key, is_own in (("three", True), ("four", False), (None, False)):
        winner = Fixture()
        await winner.broker.create_topic("u", None, 100, "three")
        racing = Fixture()
        racing.catalog.race = winner.catalog.proposed[0]
        assert (await racing.broker.create_topic("u", None, 100, key))[0] is is_own


@pytest.mark.usefixtures("quick")
async def test_a_change_of_settings() -> None:
    """Committed by id, shown in the answer, told to the peers; refused for a topic that is not there."""
    fixture = Fixture()
    topic = await fixture.topic()
    told = fixture.catalog.told
    document = await fixture.broker.change_topic("t", {"retention": {"age": "1d"}}, 100)
    kept = {"age": "1d", "bytes": None, "hold_for_groups": False, "acknowledged": False}
    assert document["retention"] == kept
    assert fixture.catalog.catalog.by_id(topic.id).settings.retention_age_ms == 86_400_000
    assert fixture.catalog.told == told + 1
    assert (await code(fixture.broker.change_topic("t", {"kind": "log"}, 100))).code == "bad-request"
    assert (await code(fixture.broker.change_topic("u", {"segment": {}}, 100))).code == "unknown-topic"


@pytest.mark.usefixtures("quick")
async def test_deletion() -> None:
    """By the id that the name has now; unknown afterwards."""
    fixture = Fixture()
    topic = await fixture.topic()
    await fixture.broker.delete_topic("t", 100)
    assert topic.id in fixture.catalog.catalog.tombstones
    assert (await code(fixture.broker.delete_topic("t", 100))).code == "unknown-topic"
    assert (await code(fixture.broker.topic_document("t"))).code == "unknown-topic"


@pytest.mark.usefixtures("quick")
async def test_records_are_for_the_partitions_leader() -> None:
    """Not held here: who leads, with the URL. Held: the host's word, its not-leader made useful."""
    fixture = Fixture()
    topic = await fixture.topic()
    group = GroupId(topic.id, 0)
    assert (await code(fixture.broker.offsets(topic, 0))).code == "no-leader"
    fixture.leads(group, OTHER, term=7)
    elsewhere = await code(fixture.broker.offsets(topic, 0))
    assert (elsewhere.code, elsewhere.extra) == (
        "not-leader",
        {"leader": OTHER, "leader_url": "http://127.0.0.1:98", "term": 7},
    )
    fixture.host.groups.add(group)
    assert await fixture.broker.offsets(topic, 0) == "offsets"
    assert await fixture.broker.wait_past(topic, 0, Offset(4), 10)
    fixture.host.error = ShoalError("not-leader", "somebody leads", leader=OTHER)
    assert (await code(fixture.broker.offsets(topic, 0))).extra["leader_url"] == "http://127.0.0.1:98"
    assert (await code(fixture.broker.wait_past(topic, 0, Offset(4), 10))).extra[
        "leader_url"
    ] == "http://127.0.0.1:98"
    fixture.host.error = ShoalError("not-leader", "beyond what is known here", leader=OTHER, high_watermark=4)
    assert (await code(fixture.broker.offsets(topic, 0))).extra["high_watermark"] == 4
    fixture.host.error = ShoalError("overloaded", "busy")
    assert (await code(fixture.broker.offsets(topic, 0))).code == "overloaded"
    assert (await code(fixture.broker.offsets(topic, 1))).code == "unknown-partition"


@pytest.mark.usefixtures("quick")
async def test_what_may_have_happened_here_is_not_tried_elsewhere() -> None:
    """A replica that stops with an append under way: others may have it already, so the agent must not hand
    it to them once more. What was refused for certain goes to another holder."""
    fixture = Fixture()
    await fixture.broker.create_topic("t", {"partitions": 1}, 100)
    topic = fixture.broker.topic("t")
    fixture.host.groups.add(GroupId(topic.id, 0))
    fixture.host.state = ServingState.FAILED
    fixture.host.error = ShoalError("damaged", "this replica stopped")
    assert (await code(fixture.broker.offsets(topic, 0))).code == "no-leader"
    fixture.host.error = ShoalError("leadership-lost", "this replica stopped", definite=False)
    refused = await code(fixture.broker.offsets(topic, 0))
    assert (refused.code, refused.definite) == ("leadership-lost", False)


@pytest.mark.usefixtures("quick")
async def test_a_replica_that_is_closed_is_no_agent_that_stops() -> None:
    """Whoever waits at it is sent on; or told that the topic is gone."""
    fixture = Fixture()
    await fixture.broker.create_topic("t", {"partitions": 1}, 100)
    topic = fixture.broker.topic("t")
    fixture.host.groups.add(GroupId(topic.id, 0))
    fixture.host.error = ShoalError("stopping", "the replica is closed")
    assert (await code(fixture.broker.offsets(topic, 0))).code == "no-leader"
    fixture.broker.stopping = True
    assert (await code(fixture.broker.offsets(topic, 0))).code == "stopping"
    fixture.broker.stopping = False
    del fixture.broker._catalog.topics["t"]
    assert (await code(fixture.broker.offsets(topic, 0))).code == "unknown-topic"


@pytest.mark.usefixtures("quick")
async def test_a_topic_says_how_far_its_replicas_lag() -> None:
    """Behind the leader's log; not known while nobody leads, or the replica has not been heard of."""
    fixture = Fixture()
    topic = await fixture.topic()
    group = GroupId(topic.id, 0)

    async def lags() -> dict[str, tuple[int | None, int | None]]:
        (partition,) = (await fixture.broker.topic_document("t"))["partitions"]
        assert partition["under_replicated"] is (partition["live_replicas"] < 3)
        return {
            replica["id"]: (replica["log_end_offset"], replica["lag"]) for replica in partition["replicas"]
        }

    assert set((await lags()).values()) == {(None, None)}
    for agent_id, role, end in ((SELF, "leader", 50), (OTHER, "follower", 38)):
        own = OwnClaims(agent_id, "run")
        own.set(Claim(group, role, 1, 0, SELF, (SELF, OTHER, "c" * 32), log_end_offset=end))
        fixture.table.apply(own.delta("", 0))
    assert await lags() == {SELF: (50, 0), OTHER: (38, 12), "c" * 32: (None, None)}


@pytest.mark.usefixtures("quick")
async def test_waiting_for_a_leader() -> None:
    """Returns as soon as there is one; no-leader, definite, when the time is over; ends with the topic."""
    fixture = Fixture()
    topic = await fixture.topic()
    failed = await code(fixture.broker.wait_leader(topic, 0, 20))
    assert (failed.code, failed.definite) == ("no-leader", True)
    waiting = asyncio.create_task(fixture.broker.wait_leader(topic, 0, 5_000))
    await asyncio.sleep(0)
    fixture.leads(GroupId(topic.id, 0), SELF)
    leader = await waiting
    assert (leader.agent_id, leader.url, leader.local) == (SELF, "http://127.0.0.1:97", True)
    other = await fixture.topic("u")
    waiting = asyncio.create_task(fixture.broker.wait_leader(other, 0, 5_000))
    await asyncio.sleep(0)
    fixture.catalog.catalog.apply(fixture.catalog.catalog.offset, DeleteTopic(other.id))
    fixture.watch.changed()
    assert (await code(waiting)).code == "unknown-topic"


async def test_versions_block_until_something_changes() -> None:
    """The same version waits, another one (of whatever run) is answered at once."""
    fixture = Fixture()
    version = (await fixture.broker.members(None, 0)).version
    assert (await fixture.broker.members("of another run", 60_000)).version == version
    assert (await fixture.broker.members(version, 10)).version == version
    waiting = asyncio.create_task(fixture.broker.routes(None, version, 60_000))
    await asyncio.sleep(0)
    assert not waiting.done()
    fixture.watch.changed()
    assert (await waiting).version != version


async def test_before_and_after_its_time_the_agent_refuses() -> None:
    """not-ready until it belongs to a cluster, stopping once it leaves; documents about itself always."""
    fixture = Fixture()
    fixture.broker._cluster = Alone()
    fixture.broker.waiting_reason = "1 of 3 expected members have met"
    with pytest.raises(ShoalError, match="1 of 3"):
        fixture.broker.topic("t")
    assert fixture.broker.readiness()[0] is False
    assert fixture.broker.agent_document()["catalog"] is None
    fixture.broker.attach(fixture.joined)
    assert fixture.broker.readiness() == (True, {"joined": "ok", "catalog": "ok", "disk": "ok"})
    fixture.catalog.halted = "halted"
    assert fixture.broker.readiness()[1]["catalog"] == "halted"
    fixture.broker.stopping = True
    assert (await code(fixture.broker.topics())).code == "stopping"


async def test_membership_calls() -> None:
    """Names or ids; addresses that are none; nobody there."""
    fixture = Fixture()
    fixture.broker.force_leave("n-c")
    assert fixture.left == [GONE]
    with pytest.raises(ShoalError, match="unknown-member"):
        fixture.broker.force_leave("nobody")
    with pytest.raises(ShoalError, match="itself"):
        fixture.broker.force_leave(SELF)
    assert await fixture.broker.join(["10.0.0.1:1", "10.0.0.2:1"]) == 2
    assert (await code(fixture.broker.join(["10.0.0.1:x"]))).code == "bad-request"
    assert (await code(fixture.broker.join(["nobody:1"]))).code == "unreachable"
    await fixture.broker.leave()
    assert fixture.stops == 1


def test_foreign_members_are_not_listed() -> None:
    """Another name, another id: never ours. A Serf agent is a neighbour, and shown as one (safety 6)."""
    members = [
        member(SELF),
        member(OTHER, cid="ff" * 16),
        member(GONE, cl="other"),
        Member("serf-1", "127.0.0.1", 2, {}, "alive", 1, 0),
    ]
    view = Overview(Catalog(), RouteTable(), lambda _: True, {}, 4)
    document = members_document(view, members, cluster="shoal", cluster_id=CLUSTER_ID, version="v")
    assert [(item["id"], item["kind"]) for item in document["members"]] == [
        (SELF, "shoal"),
        ("serf-1", "serf"),
    ]


async def test_a_dead_leader_is_not_shown_as_leading() -> None:
    """What it said last is superseded by its death already, and by its successor for good."""
    fixture = Fixture(None)
    fixture.leads(CATALOG_GROUP, GONE, term=1)

    def roles() -> dict[str, str]:
        view = Overview(Catalog(), fixture.table, fixture.roster.is_live, {}, 3)
        members = fixture.roster.list
        document = members_document(view, members, cluster="shoal", cluster_id=CLUSTER_ID, version="v")
        return {item["id"]: part["role"] for item in document["members"] for part in item["partitions"]}

    assert roles() == {GONE: "follower"}
    fixture.leads(CATALOG_GROUP, OTHER, term=2)
    fixture.roster.list[2] = member(GONE)
    assert roles() == {GONE: "follower", OTHER: "leader"}
