"""A look at a thousand partitions does not hold the event loop, and minds what changes meanwhile."""

from __future__ import annotations

import asyncio

from shoal.agent.placement.rebalancer import GROUPS_PER_TURN, SETTLE_MS
from shoal.format.batch import LogIndex
from shoal.replication.interfaces import Configuration, Replica, ReplicaId
from tests.agent.placement.test_rebalancer_steps import OTHER, PARTITIONS, SELF, THIRD, Fixture

LED = 1_000


async def look(fixture: Fixture) -> None:
    async with asyncio.TaskGroup() as tasks:
        await fixture.rebalancer.look(tasks)


async def test_a_look_at_a_thousand_groups_gives_the_loop_back() -> None:
    """Somebody else gets a turn after so many groups."""
    fixture = Fixture((SELF, OTHER, THIRD), led=LED)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await look(fixture)
    beside.cancel()
    assert turns >= LED // GROUPS_PER_TURN


async def test_a_group_that_is_led_no_more_when_its_turn_comes_takes_no_step() -> None:
    """The one before it in the same look does."""
    fixture = Fixture((SELF,), led=2)
    first, last = fixture.led
    await fixture.pass_time(SETTLE_MS)
    assert first.holders() == "a"
    first.asked = lambda: setattr(last, "leads", False)
    await fixture.pass_time(250)
    assert "?" in first.holders()
    assert last.holders() == "a"
    first.asked, last.leads = lambda: None, True
    await look(fixture)
    assert "?" in last.holders()


async def test_a_learner_that_appears_during_a_look_is_told() -> None:
    """Its group's configuration is newer than the look."""
    fixture = Fixture((SELF,), led=2)
    first, last = fixture.led

    def add_learner() -> None:
        learner = Replica(ReplicaId(1, 100), OTHER, learner=True)
        last.configuration = Configuration(LogIndex(100), (*last.configuration.replicas, learner))
        first.asked = lambda: None

    first.asked = add_learner
    await look(fixture)
    assert fixture.told == [(OTHER, False)]


async def test_balance_waits_no_longer_than_replace_after_as_it_was_reloaded_last() -> None:
    """Ten seconds are for a cluster that minds a longer absence."""
    fixture = Fixture((SELF, OTHER, THIRD), led=PARTITIONS)
    fixture.catch_up()
    fixture.replace_after_ms = 1_000
    await fixture.pass_time(SETTLE_MS + 2_000)
    assert fixture.handed_over != []
