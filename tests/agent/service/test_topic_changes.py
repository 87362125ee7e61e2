"""The catalog's leader changes topics: what a level allows, changes at once, and replicas that are to come.

The broker is real, with the parts of test_broker.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.agent.interface import Topic
from shoal.agent.levels import BEFORE_LEVELS, HOLD, SUPPORTED
from shoal.agent.members.tags import TAG_LEVELS
from shoal.agent.service.topic_admin import RISE_WAIT_MS
from shoal.agent.topics.catalog import AlterTopic, ChangeTopic, DeleteTopic, RaiseLevel
from shoal.agent.topics.settings import changed_settings, settings_version
from tests.agent.service.test_broker import OTHER, Fixture, code


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of these tests elects leaders: creations need not wait for them."""
    monkeypatch.setattr("shoal.agent.service.topic_admin.LEADERS_WAIT_MS", 0)


def raised() -> Fixture:
    """A cluster at the highest level."""
    fixture = Fixture()
    fixture.catalog.catalog.level = SUPPORTED.highest
    return fixture


def alterations(topic: Topic, fixture: Fixture, *bodies: dict[str, Any]) -> list[AlterTopic]:
    """What others change, one after the other."""
    settings = fixture.catalog.catalog.by_id(topic.id).settings
    found = []
    for body in bodies:
        after = changed_settings(settings, body)
        found.append(AlterTopic(topic.id, settings, after))
        settings = after
    return found


async def test_two_changes_at_once_lose_neither() -> None:
    """Somebody else changes another setting at the same time, several times: both changes stand; the same
    setting: the one committed last."""
    fixture = raised()
    topic = await fixture.topic()
    bodies = [{"retention": {"age": "1d"}}, {"segment": {"age": "1h"}}, {"replication_factor": 7}]
    fixture.catalog.race = alterations(topic, fixture, *bodies)
    document = await fixture.broker.change_topic("t", {"replication_factor": 2}, 100)
    assert (document["replication_factor"], document["retention"]["age"]) == (2, "1d")
    assert document["segment"]["age"] == "1h"
    fixture.catalog.race = DeleteTopic(topic.id)
    assert (
        await code(fixture.broker.change_topic("t", {"replication_factor": 3}, 100))
    ).code == "unknown-topic"


async def test_a_change_of_expected_settings() -> None:
    """Only on those that were read: not after another change, and not when that comes at the same time. A
    request that is repeated because its answer was lost finds its own change, and is answered alike."""
    fixture = raised()
    topic = await fixture.topic()
    change = fixture.broker.change_topic
    read = fixture.broker.topic_settings("t")["version"]
    first = await change("t", {"retention": {"age": "1d"}}, 100, read)
    assert first["settings_version"] == fixture.broker.topic_settings("t")["version"] != read
    assert await change("t", {"retention": {"age": "1d"}}, 100, read) == first
    late = await code(change("t", {"retention": {"age": "2d"}}, 100, read))
    assert (late.code, late.extra["settings_version"]) == ("settings-changed", first["settings_version"])
    fixture.catalog.race = alterations(topic, fixture, {"segment": {"age": "1h"}})
    raced = await code(change("t", {"retention": {"age": "2d"}}, 100, first["settings_version"]))
    assert raced.code == "settings-changed"
    now = fixture.catalog.catalog.by_id(topic.id).settings
    assert (now.retention_age_ms, now.segment_age_ms) == (86_400_000, 3_600_000)
    assert raced.extra["settings_version"] == settings_version(now)


async def test_below_level_2_replicas_do_not_change_and_retention_does() -> None:
    """A member of the former version would not understand the command. The refusal is final, as Kafka's
    UNSUPPORTED_VERSION is: repeating helps only after somebody has done what it says."""
    fixture = Fixture()
    fixture.roster.understood = BEFORE_LEVELS
    topic = await fixture.topic()
    catalog = fixture.catalog.catalog
    before, read = catalog.by_id(topic.id).settings, fixture.broker.topic_settings("t")["version"]
    refused = await code(fixture.broker.change_topic("t", {"replication_factor": 2}, 100))
    assert (refused.code, refused.retriable, refused.definite) == ("level-too-low", False, True)
    assert refused.detail == (
        "nothing was changed: another replication factor of t needs level 2, and the cluster is at level 1:"
        f" n-b must be upgraded before it can rise to {SUPPORTED.highest}"
    )
    expected = await code(fixture.broker.change_topic("t", {"retention": {"age": "1d"}}, 100, read))
    assert (expected.code, "`if_version` needs level 2" in expected.detail) == ("level-too-low", True)
    assert catalog.by_id(topic.id).settings == before
    changed = await fixture.broker.change_topic("t", {"retention": {"age": "1d"}}, 100)
    assert (changed["retention"]["age"], changed["replication_factor"]) == ("1d", before.replication_factor)
    assert fixture.catalog.proposed[-1] == ChangeTopic(topic.id, catalog.by_id(topic.id).settings)
    catalog.level = SUPPORTED.highest
    assert (await fixture.broker.change_topic("t", {"replication_factor": 2}, 100))["replication_factor"] == 2
    assert isinstance(fixture.catalog.proposed[-1], AlterTopic)


@pytest.mark.parametrize("rises", [True, False])
async def test_a_level_that_is_about_to_rise_is_waited_for(rises: bool) -> None:
    """A script that changes a topic as soon as the first agent serves. An upgraded cluster waits for a
    minute, which is too long for a request."""
    fixture = Fixture()
    await fixture.topic()

    async def wait_until(condition: Callable[[], bool], timeout_ms: int) -> bool:
        assert (condition(), timeout_ms) == (False, RISE_WAIT_MS)
        if rises:
            await fixture.catalog.propose(RaiseLevel(SUPPORTED.highest), timeout_ms)
        return condition()

    fixture.catalog.local.wait_until = wait_until
    changing = fixture.broker.change_topic("t", {"replication_factor": 2}, 100)
    if rises:
        assert (await changing)["replication_factor"] == 2
    else:
        why = (
            f"every member understands {SUPPORTED.highest}; it rises within a minute, and by"
            " `shoal cluster raise-level` at once"
        )
        assert (await code(changing)).detail.endswith(f"level 1: {why}")


async def test_who_holds_the_level_stands_in_the_refusal() -> None:
    """With the command that lifts it: nobody else can, so nothing is waited for."""
    fixture = Fixture()
    await fixture.topic()

    def never(*_: object) -> None:
        raise AssertionError("a level that is held does not rise by itself")

    fixture.catalog.local.wait_until = never
    other = next(item for item in fixture.roster.list if item.name == OTHER)
    other.tags[TAG_LEVELS] = f"{SUPPORTED}{HOLD}"
    refused = await code(fixture.broker.change_topic("t", {"replication_factor": 2}, 100))
    raised = f"`shoal cluster raise-level` raises it to {SUPPORTED.highest}"
    assert refused.detail.endswith(f"held by n-b (--hold-level); {raised}")


async def test_a_factor_above_the_agents_is_taken_and_said() -> None:
    """Two live agents of three: what is missing is counted as far as agents can hold it, and the rest is told
    in words; 0 is refused, and nothing changes."""
    fixture = raised()
    topic = await fixture.topic(partitions=2)
    document = await fixture.broker.change_topic("t", {"replication_factor": 5}, 100)
    assert (
        document["note"]
        == "5 replicas are wanted, and 3 agents can hold them: 2 more are made as agents join"
    )
    assert (document["missing_replicas"], document["surplus_replicas"]) == (2, 0)
    assert (await fixture.broker.change_topic("t", {"replication_factor": 4}, 100))["note"] == (
        "4 replicas are wanted, and 3 agents can hold them: one more is made when an agent joins"
    )
    refused = await code(fixture.broker.change_topic("t", {"replication_factor": 0}, 100))
    assert (refused.code, "1 to 7" in refused.detail) == ("bad-request", True)
    assert fixture.catalog.catalog.by_id(topic.id).settings.replication_factor == 4
    fewer = await fixture.broker.change_topic("t", {"replication_factor": 1}, 100)
    assert (fewer["missing_replicas"], fewer["surplus_replicas"]) == (0, 2)
    assert "note" not in fewer
    everywhere = await fixture.broker.change_topic("t", {"replication_factor": "all"}, 100)
    assert (everywhere["missing_replicas"], everywhere["surplus_replicas"]) == (2, 0)


async def test_what_the_former_command_cannot_say_is_refused_below_the_level() -> None:
    """It would be left out in silence: nothing is changed, and the refusal says why."""
    fixture = Fixture()
    fixture.roster.understood = BEFORE_LEVELS
    topic = await fixture.topic()
    before = fixture.catalog.catalog.by_id(topic.id).settings
    error = await code(fixture.broker.change_topic("t", {"retention": {"hold_for_groups": True}}, 100))
    assert error.code == "level-too-low"
    assert "this change of t needs level 3" in error.detail
    assert fixture.catalog.catalog.by_id(topic.id).settings == before
