"""The wait for holders of deleted topics that never come back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from shoal.agent.members.roster import Roster
from shoal.agent.topics.catalog import Catalog, Command, CreateTopic, DeleteTopic, PartitionBirth, TopicEntry
from shoal.agent.topics.catalog_service import CatalogService
from shoal.agent.topics.catalog_upkeep import MAX_CONFIRMED_PER_LOOK, CatalogUpkeep
from shoal.agent.topics.settings import TopicSettings
from shoal.errors import ShoalError
from shoal.format.hash_ranges import HashRange

HERE, GONE, AWAY = "a" * 32, "b" * 32, "c" * 32
REPLACE_AFTER_MS = 10_000


class Fixture:
    """A catalog with topics whose deletion three agents have to confirm."""

    def __init__(self, topics: int = 1) -> None:
        self.catalog = Catalog()
        self.now_ms = 0
        self.lost: set[str] = set()
        self.leads = True
        self.refuses = False
        for number in range(topics):
            birth = PartitionBirth(HashRange(0, 2**32 - 1), (HERE, GONE, AWAY))
            entry = TopicEntry(f"t{number}", number.to_bytes(16, "big"), TopicSettings(), (birth,), 0)
            self.apply(CreateTopic(entry))
            self.apply(DeleteTopic(entry.topic_id))
        service: Any = SimpleNamespace(catalog=self.catalog, propose=self.propose, leads=lambda: self.leads)
        self.upkeep = CatalogUpkeep(
            cast("Roster", SimpleNamespace(is_lost=lambda agent_id: agent_id in self.lost)),
            cast("CatalogService", service),
            lambda: self.now_ms,
            replace_after_ms=lambda: REPLACE_AFTER_MS,
        )

    def apply(self, command: Command) -> None:
        self.catalog.apply(self.catalog.offset, command)
        self.catalog.check_invariants()

    async def propose(self, command: Command, _timeout_ms: int) -> None:
        if self.refuses:
            raise ShoalError("no-leader", "not now")
        self.apply(command)

    async def pass_time(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        await self.upkeep.look_at_deletions()

    def awaited(self) -> set[str]:
        return {agent for tombstone in self.catalog.tombstones.values() for agent in tombstone.waiting_for}


async def test_a_tombstone_waits_for_whoever_is_away_and_not_for_whoever_is_gone() -> None:
    """Lost without a break for as long as a replica would wait; nobody but the catalog's leader proposes it,
    and a refusal is met again."""
    fixture = Fixture()
    fixture.lost = {GONE, AWAY}
    await fixture.pass_time(0)
    await fixture.pass_time(REPLACE_AFTER_MS - 1)
    fixture.lost = {GONE}
    await fixture.pass_time(0)
    fixture.lost = {GONE, AWAY}
    fixture.leads = False
    await fixture.pass_time(1)
    assert fixture.awaited() == {HERE, GONE, AWAY}
    fixture.leads, fixture.refuses = True, True
    await fixture.pass_time(0)
    assert fixture.awaited() == {HERE, GONE, AWAY}
    fixture.refuses = False
    await fixture.pass_time(0)
    assert fixture.awaited() == {HERE, AWAY}
    await fixture.pass_time(REPLACE_AFTER_MS)
    assert fixture.awaited() == {HERE}


async def test_so_many_commands_at_a_time() -> None:
    """A lost agent that held a thousand deleted topics does not flood the catalog."""
    fixture = Fixture(2 * MAX_CONFIRMED_PER_LOOK)
    fixture.lost = {GONE}
    await fixture.pass_time(0)
    before = fixture.catalog.offset
    await fixture.pass_time(REPLACE_AFTER_MS)
    assert fixture.catalog.offset == before + MAX_CONFIRMED_PER_LOOK
    await fixture.pass_time(0)
    assert fixture.awaited() == {HERE, AWAY}
