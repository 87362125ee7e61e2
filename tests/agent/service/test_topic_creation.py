"""On whom a new topic is placed, and whom its creation waits for.

The broker is real, with the parts of test_broker.py."""

from __future__ import annotations

import asyncio

import pytest

from shoal.agent.service.topic_admin import NEWCOMERS_WAIT_MS
from tests.agent.service.test_broker import GONE, OTHER, SELF, Fixture, code, member
from tests.agent.service.test_broker import quick as quick


@pytest.mark.usefixtures("quick")
async def test_creation_places_on_live_members_only() -> None:
    """The default factor takes what there is; an explicit one is exact or refused."""
    fixture = Fixture()
    made, document = await fixture.broker.create_topic("t", {"partitions": 4}, 100)
    assert made
    holders = {replica["id"] for item in document["partitions"] for replica in item["replicas"]}
    assert holders == {SELF, OTHER}
    assert (document["effective_replication_factor"], document["under_replicated"]) == (2, 4)
    assert fixture.catalog.told == 1
    refused = await code(fixture.broker.create_topic("u", {"replication_factor": 3}, 100))
    assert refused.code == "not-enough-members"
    birthplaces, fixture.roster.birthplaces = fixture.roster.birthplaces, list  # type: ignore[method-assign, assignment]
    drained = await code(fixture.broker.create_topic("v", None, 100))
    assert drained.code == "not-enough-members"
    assert "--undo" in str(drained)
    fixture.roster.birthplaces = birthplaces  # type: ignore[method-assign]
    assert await fixture.broker.create_topic("t", {"partitions": 4}, 100) == (False, document)


@pytest.mark.usefixtures("quick")
async def test_creation_waits_for_members_on_their_way() -> None:
    """Three agents that have just started and a script that creates at once: the third counts a moment
    later.
    """
    fixture = Fixture()
    fixture.roster.list[2] = member(GONE, cid="")
    creating = asyncio.create_task(fixture.broker.create_topic("t", {"replication_factor": 3}, 100))
    await asyncio.sleep(0.01)
    assert not creating.done()
    fixture.roster.list[2] = member(GONE)
    fixture.watch.changed()
    assert (await creating)[1]["effective_replication_factor"] == 3


@pytest.mark.usefixtures("quick")
async def test_a_factor_that_was_asked_for_waits_for_links() -> None:
    """One that is not up yet, or was silent for a moment, comes up in time. The default factor takes what
    there is, and a link that stays down is not waited for for long."""
    fixture = Fixture()
    roster, loop = fixture.roster, asyncio.get_running_loop()
    roster.birthplaces = lambda: roster.placeable()[:1]  # type: ignore[method-assign]
    began_s = loop.time()
    made = (await fixture.broker.create_topic("default", {"partitions": 1}, 100))[1]
    assert made["effective_replication_factor"] == 1
    assert loop.time() - began_s < NEWCOMERS_WAIT_MS / 1_000, "it would have waited to the end"
    began_s = loop.time()
    refused = await code(fixture.broker.create_topic("t", {"replication_factor": 2}, 100))
    assert refused.code == "not-enough-members"
    assert loop.time() - began_s >= (NEWCOMERS_WAIT_MS - 1) / 1_000  # its clock counts whole milliseconds
    creating = asyncio.create_task(fixture.broker.create_topic("t", {"replication_factor": 2}, 100))
    await asyncio.sleep(0.01)
    assert not creating.done()
    roster.birthplaces = roster.placeable  # type: ignore[method-assign]
    assert (await creating)[1]["effective_replication_factor"] == 2
