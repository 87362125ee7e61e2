"""The level as a request shows and raises it: which members count, and what a refusal names."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.agent.durable.ids import CATALOG_GROUP
from shoal.agent.levels import FIRST_LEVEL, HOLD, MAX_LEVEL, Level
from shoal.agent.members.roster import Roster
from shoal.agent.service.level_admin import NAMED_MAX
from shoal.agent.topics.catalog import CreateTopic, RaiseLevel
from shoal.errors import ShoalError
from shoal.membership.interface import Member
from tests.agent.service.test_broker import GONE, OTHER, SELF, FakeRoster, Fixture, member
from tests.agent.topics.test_catalog_service import entry

TIMEOUT_MS = 1_000
NOBODY: list[str] = []


class LevelRoster(FakeRoster):
    """With the questions that a real roster answers from its members."""

    understood_levels: Any = Roster.understood_levels
    levels_of_left: Any = Roster.levels_of_left
    holds_level: Any = Roster.holds_level

    def ours(self) -> list[Member]:
        return [item for item in self.list if item.tags["cid"]]


class LevelFixture(Fixture):
    def __init__(self, *members: Member, catalog_leader: str = SELF) -> None:
        super().__init__(catalog_leader)
        roster: Any = LevelRoster(list(members))
        self.broker._roster = self.roster = roster
        self.catalog.catalog.apply(0, CreateTopic(entry()))

    async def raised(self, wanted: object = None, *without: str) -> int:
        """The level afterwards; that of the document is the same."""
        document = await self.broker.raise_level(wanted, list(without), TIMEOUT_MS)
        assert document["level"] == self.catalog.catalog.level
        return int(document["level"])

    async def refused(self, wanted: object, code: str, without: object = NOBODY) -> str:
        """The reason. Nothing was changed or proposed."""
        before = self.catalog.catalog.to_bytes()
        with pytest.raises(ShoalError) as caught:
            await self.broker.raise_level(wanted, without, TIMEOUT_MS)
        assert (caught.value.code, self.catalog.catalog.to_bytes()) == (code, before)
        assert self.catalog.told == 0
        return caught.value.detail


async def test_the_level_rises_to_what_all_understand_and_peers_are_told() -> None:
    """Also above the next one; the second time nothing is proposed."""
    fixture = LevelFixture(member(SELF, lv="1-3"), member(OTHER, lv="1-3"))
    assert await fixture.raised() == 3
    assert fixture.catalog.told == 1
    offset = fixture.catalog.catalog.offset
    assert await fixture.raised(3) == await fixture.raised() == 3
    assert fixture.catalog.catalog.offset == offset


@pytest.mark.parametrize("status", ["alive", "suspect", "failed", "leaving"])
@pytest.mark.parametrize("wanted", [None, 2])
async def test_a_member_that_does_not_understand_the_level_is_named(status: str, wanted: int | None) -> None:
    """Also while it is down, and where no level was named."""
    fixture = LevelFixture(member(SELF, lv="1-2"), member(OTHER, status))
    detail = await fixture.refused(wanted, "level-refused")
    assert "not every member understands level 2: n-b understands 1; upgrade them" in detail
    assert "`shoal cluster raise-level --without NAME`" in detail


async def test_an_agent_two_levels_above_is_named_too() -> None:
    """It understands neither the cluster's level nor the next."""
    fixture = LevelFixture(member(SELF, lv="1-2"), member(OTHER, lv="3-4"))
    assert "n-b understands 3 to 4" in await fixture.refused(2, "level-refused")
    assert "n-a understands 1 to 2" in await fixture.refused(3, "level-refused")


async def test_a_holder_that_gossip_does_not_know_keeps_the_level() -> None:
    """It may be of any former version."""
    fixture = LevelFixture(member(SELF, lv="1-2"))
    fixture.leads(CATALOG_GROUP, SELF, term=2)  # the claim names OTHER as a voter
    assert f"{OTHER} understands 1" in await fixture.refused(2, "level-refused")


async def test_a_holder_whose_tags_gossip_does_not_know_keeps_the_level_too() -> None:
    """A member is listed under its id, and nothing says that it is an agent of this cluster."""
    fixture = LevelFixture(member(SELF, lv="1-2"), member(OTHER, "failed", cid="", lv="1-2"))
    assert "understands 1" in await fixture.refused(2, "level-refused")


async def test_a_member_that_has_left_is_listed_and_is_no_obstacle() -> None:
    """Whoever raises by hand knows that it is gone."""
    fixture = LevelFixture(member(SELF, lv="1-2"), member(OTHER, "left"), member(GONE, "left"))
    document = fixture.broker.level_document()
    assert document["possible"] == 2
    assert [(item["id"], item["status"], item["highest"]) for item in document["members"]] == [
        (SELF, "alive", 2),
        (OTHER, "left", 1),  # a claim names it; GONE holds nothing any more
    ]
    assert await fixture.raised(2) == 2


async def test_many_who_do_not_understand_are_counted() -> None:
    """The answer stays short."""
    old = [member(f"{number:032x}") for number in range(NAMED_MAX + 5)]
    detail = await LevelFixture(member(SELF, lv="1-2"), *old).refused(2, "level-refused")
    assert detail.count(" understands 1") == NAMED_MAX
    assert ", and 6 more" in detail  # OTHER, too, which a claim names


async def test_no_level_is_lowered() -> None:
    """The present one may be asked for."""
    fixture = LevelFixture(member(SELF, lv="1-3"), member(OTHER, lv="1-3"))
    fixture.catalog.catalog.apply(1, RaiseLevel(Level(3)))
    assert "at level 3, and no level is ever lowered" in await fixture.refused(2, "level-refused")
    assert await fixture.raised(3) == 3


async def test_a_member_that_came_back_too_old_does_not_lower_it_either() -> None:
    """It is what the cluster is at; nothing higher is possible, and nobody understands more."""
    fixture = LevelFixture(member(SELF, lv="1-2"), member(OTHER))
    fixture.catalog.catalog.apply(1, RaiseLevel(Level(2)))
    assert await fixture.raised() == 2
    assert fixture.broker.level_document()["possible"] == 1


@pytest.mark.parametrize("wanted", [0, -1, True, "2", 2.0, [2], {}, MAX_LEVEL + 1])
async def test_what_is_no_level_is_refused(wanted: object) -> None:
    """By its type, and by its bounds."""
    fixture = LevelFixture(member(SELF, lv="1-2"), member(OTHER, lv="1-2"))
    assert "give a whole number from 1" in await fixture.refused(wanted, "bad-request")


async def test_another_agent_leads_the_catalog() -> None:
    """The request goes there."""
    fixture = LevelFixture(member(SELF, lv="1-2"), member(OTHER, lv="1-2"), catalog_leader=OTHER)
    await fixture.refused(2, "not-leader")


async def test_who_holds_the_level_is_shown_and_does_not_keep_it_from_being_raised_by_hand() -> None:
    """--hold-level waits for exactly this."""
    fixture = LevelFixture(member(SELF, lv="1-2"), member(OTHER, lv=f"1-2{HOLD}"))
    assert [item["holds"] for item in fixture.broker.level_document()["members"]] == [False, True]
    assert fixture.broker.level_document()["level"] == FIRST_LEVEL
    assert await fixture.raised() == 2


async def test_those_that_are_gone_for_good_are_named_by_whoever_raises() -> None:
    """One that failed, by its name, and one that gossip has forgotten, by its id: no other way is left."""
    fixture = LevelFixture(member(SELF, lv="1-2"), member(GONE, "failed"))
    assert f"{OTHER} understands 1" in await fixture.refused(2, "level-refused", ["n-c"])
    assert "n-c understands 1" in await fixture.refused(2, "level-refused", [OTHER])
    assert await fixture.raised(2, "n-c", OTHER) == 2


async def test_nobody_who_is_alive_is_called_gone() -> None:
    """Nor whoever does not exist; nothing is raised for the rest of the list."""
    fixture = LevelFixture(member(SELF, lv="1-2"), member(OTHER), member(GONE, "suspect"))
    assert "n-b is alive" in await fixture.refused(2, "level-refused", ["n-b"])
    assert "n-c is alive" in await fixture.refused(2, "level-refused", ["n-c"])
    for wrong in (["nobody"], [7], [None], "n-b", {"n-b": 1}, ["n-b"] * 65, [OTHER * 100]):
        await fixture.refused(2, "bad-request", wrong)


async def test_what_is_no_name_names_nobody() -> None:
    """A template leaves it behind. An agent that gossip has forgotten has no name either."""
    fixture = LevelFixture(member(SELF, lv="1-2"), member(GONE, "failed", name=""))
    for wrong in ([None], [""], ["n-c", None], [True]):
        assert "is no agent that counts" in await fixture.refused(2, "bad-request", wrong)
