"""The level in the catalog: folded, stored, copied, raised by the leader, and refused by former versions."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from memory_disk import MemoryDisk
from waiting import until

from shoal.agent import levels
from shoal.agent.durable.catalog_version import CatalogVersion
from shoal.agent.levels import BEFORE_LEVELS, FIRST_LEVEL, RAISE_AFTER_MS, Level, LevelRange
from shoal.agent.members.roster import Roster
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.process.errors import StartError
from shoal.agent.topics.catalog import (
    AlterTopic,
    Catalog,
    ChangeTopic,
    Command,
    CreateTopic,
    Outcome,
    RaiseLevel,
)
from shoal.agent.topics.catalog_codec import decode_command, encode_command, level_of_command
from shoal.agent.topics.catalog_service import Applied, CatalogService
from shoal.agent.topics.catalog_upkeep import LevelUpkeep
from shoal.agent.topics.cluster_file import (
    FILE_NAMES,
    ClusterOutgrown,
    ClusterRecord,
    load_cluster,
    newest_copy,
    save_cluster,
)
from shoal.agent.topics.entries import CatalogError, HigherLevel
from shoal.agent.topics.settings import TopicSettings
from shoal.errors import ShoalError
from tests.agent.topics.test_catalog_service import OTHER, SELF, Fixture, entry, frame, gives

TWO = Level(2)
NEW = LevelRange(FIRST_LEVEL, TWO)
REPLACE_AFTER_MS = 5 * RAISE_AFTER_MS


def raised(*levels: int) -> Catalog:
    catalog = Catalog()
    for offset, level in enumerate(levels):
        catalog.apply(offset, RaiseLevel(Level(level)))
        catalog.check_invariants()
    return catalog


def test_a_level_only_rises() -> None:
    """A command that comes too late changes nothing but the offset."""
    catalog = Catalog()
    outcomes: list[Outcome] = [catalog.apply(at, RaiseLevel(Level(n))) for at, n in enumerate((2, 2, 1, 3))]
    assert outcomes == ["done", "too-late", "too-late", "done"]
    assert (catalog.level, catalog.offset) == (3, 4)


def test_a_catalog_of_the_first_level_is_written_as_before_levels() -> None:
    """The former version reads it, and every command but that which raises."""
    catalog = Catalog()
    catalog.apply(0, CreateTopic(entry()))
    document = json.loads(catalog.to_bytes())
    assert document["v"] == 1
    assert set(document) == {"v", "version", "sealed_for", "topics", "tombstones"}
    assert json.loads(encode_command(CreateTopic(entry())))["v"] == 1


def test_a_raised_catalog_says_its_level_where_former_versions_look() -> None:
    """They refuse it by number."""
    catalog = raised(2)
    assert json.loads(catalog.to_bytes())["v"] == 2
    assert Catalog.from_bytes(catalog.to_bytes()) == catalog
    assert json.loads(encode_command(RaiseLevel(TWO))) == {"v": 2, "op": "level", "level": 2}
    assert decode_command(encode_command(RaiseLevel(TWO))) == RaiseLevel(TWO)
    assert raised().digest() != Catalog(offset=0, level=TWO).digest()


@pytest.mark.parametrize("value", [b'{"v":1,"op":"level","level":2}', b'{"v":2,"op":"level","level":true}',
                                   b'{"v":2,"op":"level"}', b'{"v":true,"op":"level","level":1}',
                                   b'{"v":0,"op":"level","level":0}'])  # fmt: skip
def test_a_raise_that_hides_its_level_is_refused(value: bytes) -> None:
    """A former version would stumble over it."""
    with pytest.raises(CatalogError):
        decode_command(value)


def test_a_state_of_an_unknown_level_is_refused_by_its_number() -> None:
    """And not for whatever else is new in it."""
    with pytest.raises(HigherLevel, match="at level 77, and the agent understands 1 to"):
        Catalog.from_bytes(b'{"v":77,"topics":"in another form"}')


# ---- on disk -------------------------------------------------------------------------------------


async def test_an_agent_of_a_former_version_does_not_start_on_a_raised_directory() -> None:
    """Also where one copy is still of the level before: that is no way back."""
    disk = MemoryDisk()
    await disk.make_directory("d")
    before = ClusterRecord("prod", b"c" * 16, (SELF,), Catalog().to_bytes())
    beyond = b'{"v":77,"version":1,"sealed_for":null,"topics":[],"tombstones":[]}'
    after = ClusterRecord("prod", b"c" * 16, (SELF,), beyond)
    await save_cluster(disk, "d", after)
    with pytest.raises(ClusterOutgrown, match=r"cluster prod: .*install on its host the version") as caught:
        await load_cluster(disk, "d")
    assert "move them away" not in str(caught.value)
    for copies in ([before.to_bytes(), after.to_bytes()], [after.to_bytes(), None]):
        with pytest.raises(ClusterOutgrown):
            newest_copy(copies)
    assert len(FILE_NAMES) == 2


# ---- in one agent --------------------------------------------------------------------------------


async def test_an_agent_that_the_cluster_outgrows_by_its_log_ends() -> None:
    """Nothing of the command is applied; the error says what to do."""
    fixture = Fixture((SELF,), levels=BEFORE_LEVELS)
    fixture.service.apply(frame(0, CreateTopic(entry())))
    fixture.service.apply(frame(1, RaiseLevel(TWO)))
    assert (fixture.service.catalog.offset, fixture.service.catalog.level) == (1, 1)
    await ends(fixture, r"cluster c: .* at level 2, and the agent understands 1: install")


async def test_an_agent_that_the_cluster_outgrows_by_a_copy_ends() -> None:
    """It was away, and taken for gone, when the level rose."""
    fixture = Fixture((OTHER,), leader=OTHER, levels=BEFORE_LEVELS)
    catalog = raised(2)
    fixture.peers.versions = {OTHER: catalog.version}
    fixture.peers.answers[PeerMessage.CATALOG_PULL] = gives(catalog)
    await ends(fixture, "at level 2, and the agent understands 1")
    assert fixture.service.catalog.level == 1
    assert fixture.saved == []


async def ends(fixture: Fixture, message: str) -> None:
    await fixture.service.start()
    with pytest.raises(BaseExceptionGroup) as caught:
        await asyncio.wait_for(fixture.service.run(), 30)
    (error,) = caught.value.exceptions
    assert isinstance(error, StartError)
    assert re.search(message, str(error)), str(error)


async def test_an_agent_that_understands_the_level_follows() -> None:
    """By its log, and by a copy."""
    fixture = Fixture((SELF,), levels=NEW)
    fixture.service.apply(frame(0, RaiseLevel(TWO), CreateTopic(entry())))
    assert (fixture.service.catalog.level, fixture.service.halted) == (2, None)
    follower = Fixture((OTHER,), leader=OTHER, levels=NEW)
    follower.peers.versions = {OTHER: CatalogVersion(0, 2)}
    follower.peers.answers[PeerMessage.CATALOG_PULL] = gives(fixture.service.catalog)
    async with follower.running():
        await until(lambda: follower.service.catalog.level == TWO)


async def test_a_command_above_the_level_is_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every member may understand it."""
    fixture = Fixture((SELF,))
    fixture.groups.on_append = lambda _: pytest.fail("it was appended")
    module = "shoal.agent.topics.catalog_service.level_of_command"
    monkeypatch.setattr(module, lambda command: TWO)
    with pytest.raises(ShoalError, match="needs level 2, and the cluster is at level 1") as caught:
        await fixture.service.propose(CreateTopic(entry()), 50)
    assert caught.value.code == "level-too-low"


async def test_an_agent_that_no_longer_understands_the_first_level_reads_its_commands() -> None:
    """They were committed before the cluster rose; the agent has joined since, with a range above them."""
    fixture = Fixture((SELF,), Catalog(level=TWO), levels=LevelRange(TWO, Level(3)))
    fixture.service.apply(frame(0, CreateTopic(entry()), RaiseLevel(TWO), CreateTopic(entry(2))))
    catalog = fixture.service.catalog
    assert (catalog.level, catalog.offset, fixture.service.halted) == (2, 3, None)
    assert len(catalog.topics) == 2


@pytest.mark.parametrize(
    ("command", "level"),
    [
        (CreateTopic(entry()), 1),
        (ChangeTopic(b"i" * 16, TopicSettings()), 1),
        (AlterTopic(b"i" * 16, TopicSettings(), TopicSettings(replication_factor=1)), 2),
    ],
)
def test_a_command_with_a_setting_of_a_higher_level_is_of_that_level(
    command: Command, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents below refuse settings that they do not know."""
    assert json.loads(encode_command(command))["v"] == level_of_command(command) == level
    monkeypatch.setitem(levels._LEVELS, (levels.AdditionKind.TOPIC_SETTING, "fsync"), Level(3))
    assert json.loads(encode_command(command))["v"] == level_of_command(command) == 3


# ---- raised by the leader ------------------------------------------------------------------------


class World:
    """A catalog and its leader, members as gossip lists them, and a clock."""

    def __init__(self, *, topics: int = 1, founder: bool = False) -> None:
        self.catalog = Catalog()
        for number in range(1, topics + 1):
            self.catalog.apply(self.catalog.offset, CreateTopic(entry(number)))
        self.now_ms = 0
        self.known = FIRST_LEVEL
        self.replace_after_ms = REPLACE_AFTER_MS
        self.leads = True
        self.said: dict[str, LevelRange] = {SELF: NEW, OTHER: NEW}
        self.left: set[str] = set()
        self.holds: list[str] = []
        self.holders = {SELF, OTHER}
        self.refusals = 0
        service: Any = SimpleNamespace(leads=lambda: self.leads, propose=self.propose)
        self.service = service
        self.left_with: dict[str, LevelRange] = {}
        self.claims_read = 0
        roster: Any = SimpleNamespace(
            understood_levels=lambda: self.said,
            levels_of_left=lambda: self.left_with,
            members=lambda: [
                SimpleNamespace(name=name, status="left") for name in self.left | {*self.left_with}
            ],
            holds_level=lambda: self.holds,
        )
        self.upkeep = LevelUpkeep(
            cast("Roster", roster),
            cast("CatalogService", service),
            lambda: self.now_ms,
            holders=self.read_claims,
            replace_after_ms=lambda: self.replace_after_ms,
            is_founder=founder,
        )

    def read_claims(self) -> set[str]:
        self.claims_read += 1
        return self.holders

    async def propose(self, command: Command, timeout_ms: int) -> Applied:
        if self.refusals:
            self.refusals -= 1
            raise ShoalError("no-leader", "just now")
        return Applied(self.catalog.apply(self.catalog.offset, command), None)

    async def after(self, pause_ms: int) -> Level:
        self.now_ms += pause_ms
        self.service.catalog = self.catalog
        self.service.local = SimpleNamespace(level=max(self.known, self.catalog.level))
        await self.upkeep.look()
        self.catalog.check_invariants()
        return self.catalog.level


async def test_the_leader_raises_the_level_after_a_minute() -> None:
    """Not before, and once."""
    world = World()
    assert await world.after(0) == 1
    assert await world.after(RAISE_AFTER_MS - 1) == 1
    assert await world.after(1) == 2
    assert await world.after(RAISE_AFTER_MS) == 2
    assert world.catalog.offset == 2


def former(world: World) -> None:
    world.said[OTHER] = BEFORE_LEVELS


def unknown_holder(world: World) -> None:
    world.holders.add("c" * 32)


def hold(world: World) -> None:
    world.holds = [OTHER]


def not_leading(world: World) -> None:
    world.leads = False


@pytest.mark.parametrize("change", [former, unknown_holder, hold, not_leading])
async def test_the_level_stays_while(change: Callable[[World], None]) -> None:
    """A member of the former version, a holder that gossip does not know, a hold, another leader."""
    world = World()
    await world.after(0)
    change(world)
    for _ in range(3):
        assert await world.after(RAISE_AFTER_MS) == 1


async def test_a_holder_that_has_left_is_no_obstacle() -> None:
    """Its replica is being replaced."""
    world = World()
    world.holders.add("c" * 32)
    world.left.add("c" * 32)
    await world.after(0)
    assert await world.after(RAISE_AFTER_MS) == 2


async def test_a_refused_proposal_is_made_again() -> None:
    """Leadership moves."""
    world = World()
    world.refusals = 1
    await world.after(0)
    assert await world.after(RAISE_AFTER_MS) == 1
    assert await world.after(500) == 2


async def test_a_cluster_that_is_being_founded_takes_the_level_at_once() -> None:
    """What is new works there from the first minute on, also for whoever makes a topic first."""
    for topics in (0, 1):
        assert await World(topics=topics, founder=True).after(0) == 2


@pytest.mark.parametrize("topics", [0, 1])
async def test_an_old_cluster_waits_with_and_without_topics(topics: int) -> None:
    """Its former version may come back."""
    world = World(topics=topics)
    assert await world.after(0) == 1
    assert await world.after(RAISE_AFTER_MS - 1) == 1
    assert await world.after(1) == 2


async def test_a_new_cluster_waits_too_once_a_former_version_has_been_there() -> None:
    """That one may come back."""
    world = World(founder=True)
    world.said = {SELF: NEW, OTHER: BEFORE_LEVELS}
    assert await world.after(0) == 1
    world.said = {SELF: NEW, OTHER: NEW}
    await world.after(0)
    assert await world.after(RAISE_AFTER_MS - 1) == 1
    assert await world.after(1) == 2


async def test_a_host_that_was_stopped_in_order_may_come_back_as_it_was() -> None:
    """It is between two versions, longer than a minute: its level counts until its replicas move away."""
    world = World()
    world.said = {SELF: NEW}
    world.left_with = {OTHER: BEFORE_LEVELS}
    await world.after(0)
    assert await world.after(REPLACE_AFTER_MS - 1) == 1
    assert await world.after(1) == 1  # the minute begins now
    assert await world.after(RAISE_AFTER_MS) == 2


async def test_a_host_that_was_stopped_in_order_is_waited_for_as_was_reloaded_last() -> None:
    """--replace-after may change while the leader runs."""
    world = World()
    world.said, world.left_with = {SELF: NEW}, {OTHER: BEFORE_LEVELS}
    await world.after(0)
    assert await world.after(RAISE_AFTER_MS) == 1
    world.replace_after_ms = RAISE_AFTER_MS
    assert await world.after(0) == 1  # the minute begins now
    assert await world.after(RAISE_AFTER_MS) == 2


async def test_a_hold_holds_while_its_host_is_stopped_in_order() -> None:
    """It is being upgraded as any other; the operator's word is not gone with the process."""
    world = World()
    world.said, world.left_with, world.holds = {SELF: NEW}, {OTHER: NEW}, [OTHER]
    await world.after(0)
    assert await world.after(REPLACE_AFTER_MS - 1) == 1
    await world.after(1)
    assert await world.after(RAISE_AFTER_MS) == 2


@pytest.mark.parametrize(("holds_replicas", "levels"), [(False, BEFORE_LEVELS), (True, NEW)])
async def test_a_member_that_left_with_nothing_or_understands_the_level_is_no_obstacle(
    holds_replicas: bool, levels: LevelRange
) -> None:
    """Nothing waits for the one; the other starts as it is."""
    world = World()
    world.said, world.left_with = {SELF: NEW}, {OTHER: levels}
    world.holders = {SELF, OTHER} if holds_replicas else {SELF}
    await world.after(0)
    assert await world.after(RAISE_AFTER_MS) == 2


async def test_a_host_that_comes_back_and_stops_again_is_waited_for_anew() -> None:
    """An operator goes back and forth."""
    world = World()
    world.left_with = {OTHER: BEFORE_LEVELS}
    world.said = {SELF: NEW}
    await world.after(0)
    await world.after(REPLACE_AFTER_MS - 1)
    world.left_with, world.said = {}, {SELF: NEW, OTHER: BEFORE_LEVELS}
    assert await world.after(1) == 1
    world.left_with, world.said = {OTHER: BEFORE_LEVELS}, {SELF: NEW}
    for _ in range(4):
        assert await world.after(RAISE_AFTER_MS) == 1


async def test_claims_are_not_read_while_no_level_can_rise() -> None:
    """There are as many as replicas, and this is looked at twice a second."""
    world = World()
    world.said = {SELF: NEW, OTHER: BEFORE_LEVELS}
    for _ in range(5):
        await world.after(500)
    assert world.claims_read == 0
