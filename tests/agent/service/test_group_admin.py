"""The catalog's leader makes, changes and deletes consumer groups, and the topics of their dead letters.

The broker is real, with the parts of test_broker.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shoal.agent.groups.settings import GroupSettings
from shoal.agent.levels import SUPPORTED, Level
from shoal.agent.receive import GroupKey
from shoal.agent.topics.catalog import DeleteTopic
from shoal.agent.topics.groups_catalog import (
    MAC_BYTES,
    MAX_GROUPS,
    ChangeGroup,
    CreateGroup,
    DeleteGroup,
    GroupEntry,
)
from tests.agent.service.test_broker import OTHER, Fixture, code


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of these tests elects leaders: creations need not wait for them."""
    monkeypatch.setattr("shoal.agent.service.topic_admin.LEADERS_WAIT_MS", 0)


async def with_topic(**body: Any) -> Fixture:
    """A cluster at the highest level, with topic t."""
    fixture = Fixture()
    fixture.catalog.catalog.level = SUPPORTED.highest
    await fixture.topic(**body)
    return fixture


def others(fixture: Fixture, name: str = "g", number: int = 9, **settings: Any) -> CreateGroup:
    """A group that somebody else makes."""
    key = GroupKey(bytes([number]) * 16)
    topic_id = fixture.catalog.catalog.topics["t"].topic_id
    return CreateGroup(topic_id, GroupEntry(name, key, bytes(MAC_BYTES), GroupSettings(**settings)))


async def test_a_group_gets_its_key_and_the_topic_of_its_letters() -> None:
    """That has the partitions and replicas of the source, and says whose letters it holds."""
    fixture = await with_topic(partitions=3, replication_factor=2, fsync=False)
    made, document = await fixture.broker.create_group("t", "g", {"visibility": "1m"}, 100)
    catalog = fixture.catalog.catalog
    entry, letters = catalog.topics["t"].group("g"), catalog.topics["t.dead.g"]
    assert entry is not None
    assert made
    assert (document["name"], document["topic"], document["visibility"]) == ("g", "t", "1m")
    assert document["id"] == entry.key.hex()
    assert document["settings_version"] == entry.settings.version()
    assert len({entry.key, entry.mac, bytes(16), bytes(32)}) == 4
    assert letters.letters_of == catalog.topics["t"].topic_id
    assert (letters.settings.partitions, letters.settings.replication_factor) == (3, 2)
    assert letters.settings.fsync is False
    proposed = [type(command).__name__ for command in fixture.catalog.proposed]
    assert proposed == ["CreateTopic", "CreateTopic", "CreateGroup"]
    topic = fixture.broker.topic("t")
    assert fixture.broker.group(topic, "g").key == entry.key
    assert [group.name for group in fixture.broker.groups(topic)] == ["g"]


async def test_a_group_that_exists_has_to_have_what_the_body_names() -> None:
    """Settings that it does not name are as they are."""
    fixture = await with_topic()
    create = fixture.broker.create_group
    await create("t", "g", {"mode": "exclusive", "retry": {"first": "5s"}}, 100)
    for body in (None, {}, {"mode": "exclusive"}, {"retry": {"first": "5s"}}, {"retry": {"factor": 2}}):
        assert (await create("t", "g", body, 100))[0] is False
    error = await code(create("t", "g", {"mode": "shared", "start": "latest"}, 100))
    assert error.code == "group-differs"
    assert "mode is 'exclusive', asked was 'shared'; start is 'earliest'" in error.detail
    assert len(fixture.catalog.proposed) == 3


async def test_of_two_creations_at_once_one_makes_the_group() -> None:
    """The other finds it, or differs from it."""
    fixture = await with_topic()
    fixture.catalog.race = [DeleteTopic(b"n" * 16), others(fixture)]
    made, document = await fixture.broker.create_group("t", "g", None, 100)
    assert (made, document["id"]) == (False, (b"\x09" * 16).hex())
    fixture = await with_topic()
    fixture.catalog.race = others(fixture)
    assert (await code(fixture.broker.create_group("t", "g", {"dead": "drop"}, 100))).code == "group-differs"


async def test_a_topic_of_the_letters_name_is_not_taken_over() -> None:
    """The group is not made; unless its messages never become letters."""
    fixture = await with_topic()
    await fixture.broker.create_topic("t.dead.g", None, 100)
    error = await code(fixture.broker.create_group("t", "g", None, 100))
    assert error.code == "topic-differs"
    assert "t.dead.g" in error.detail
    assert fixture.catalog.catalog.topics["t"].groups == ()
    assert (await fixture.broker.create_group("t", "g", {"dead": "stop"}, 100))[0]
    change = fixture.broker.change_group
    assert (await code(change("t", "g", {"dead": "letter"}, 100))).code == "topic-differs"
    await fixture.broker.delete_topic("t.dead.g", 100)
    assert (await change("t", "g", {"dead": "letter"}, 100))["dead"] == "letter"
    assert fixture.catalog.catalog.topics["t.dead.g"].letters_of is not None


async def test_letters_stay_when_their_group_goes() -> None:
    """A group of the same name finds them."""
    fixture = await with_topic()
    await fixture.broker.create_group("t", "g", None, 100)
    letters = fixture.catalog.catalog.topics["t.dead.g"].topic_id
    await fixture.broker.delete_group("t", "g", 100)
    assert (await code(fixture.broker.delete_group("t", "g", 100))).code == "unknown-group"
    assert (await fixture.broker.create_group("t", "g", None, 100))[0]
    assert fixture.catalog.catalog.topics["t.dead.g"].topic_id == letters


@pytest.mark.parametrize(
    ("topic", "name", "expected"),
    [
        ("t.dead.g", "h", "no-groups-here"), ("_catalog", "g", "no-groups-here"),
        ("none", "g", "unknown-topic"),
        ("t", "a/b", "illegal-name"), ("t", "n" * 65, "illegal-name"), ("t", "..", "illegal-name"),
    ],
)  # fmt: skip
async def test_groups_are_refused_where_they_cannot_be(topic: str, name: str, expected: str) -> None:
    """Nothing is proposed."""
    fixture = await with_topic()
    await fixture.broker.create_group("t", "g", None, 100)
    proposed = len(fixture.catalog.proposed)
    broker = fixture.broker
    for asked in (
        broker.create_group(topic, name, None, 100),
        broker.change_group(topic, name, {"paused": True}, 100),
        broker.delete_group(topic, name, 100),
    ):
        assert (await code(asked)).code == expected
    assert len(fixture.catalog.proposed) == proposed


async def test_the_65th_group_leaves_no_topic_behind() -> None:
    """Also where the 64th was made at the same time."""
    fixture = await with_topic()
    for number in range(MAX_GROUPS - 1):
        await fixture.broker.create_group("t", f"g{number}", {"dead": "drop"}, 100)
    fixture.catalog.race = others(fixture, "last")
    assert (
        await code(fixture.broker.create_group("t", "more", {"dead": "drop"}, 100))
    ).code == "too-many-groups"
    assert (await code(fixture.broker.create_group("t", "more", None, 100))).code == "too-many-groups"
    assert set(fixture.catalog.catalog.topics) == {"t"}


async def test_a_change_counts_on_what_was_read() -> None:
    """Not after another change; one at the same time, of something else, is no hindrance without that."""
    fixture = await with_topic()
    change = fixture.broker.change_group
    read = (await fixture.broker.create_group("t", "g", None, 100))[1]["settings_version"]
    first = await change("t", "g", {"paused": True}, 100, read)
    assert await change("t", "g", {"paused": True}, 100, read) == first
    late = await code(change("t", "g", {"visibility": "1m"}, 100, read))
    assert (late.code, late.extra["settings_version"]) == ("settings-changed", first["settings_version"])
    entry = fixture.catalog.catalog.topics["t"].group("g")
    assert entry is not None
    race = ChangeGroup(
        fixture.broker.topic("t").id, entry.key, entry.settings, GroupSettings(paused=True, session_ms=5_000)
    )
    fixture.catalog.race = race
    document = await change("t", "g", {"visibility": "1m"}, 100)
    assert (document["visibility"], document["session"], document["paused"]) == ("1m", "5s", True)
    fixture.catalog.race = DeleteGroup(race.topic_id, race.key)
    assert (await code(change("t", "g", {"visibility": "2m"}, 100))).code == "unknown-group"


async def test_below_the_level_no_group_is_made() -> None:
    """The refusal says what keeps the level; a cluster that is about to rise is waited for."""
    fixture = await with_topic()
    catalog = fixture.catalog.catalog
    catalog.level = Level(2)

    async def never(condition: Any, wait_ms: int) -> bool:
        return bool(condition())

    fixture.catalog.local = SimpleNamespace(wait_until=never, level=catalog.level)
    proposed = len(fixture.catalog.proposed)
    error = await code(fixture.broker.create_group("t", "g", None, 100))
    assert error.code == "level-too-low"
    assert "needs level 3, and the cluster is at level 2" in error.detail
    assert len(fixture.catalog.proposed) == proposed

    async def rises(condition: Any, wait_ms: int) -> bool:
        catalog.level = SUPPORTED.highest
        return bool(condition())

    fixture.catalog.local = SimpleNamespace(wait_until=rises, level=catalog.level)
    assert (await fixture.broker.create_group("t", "g", None, 100))[0]


async def test_only_the_catalogs_leader_changes_groups() -> None:
    """Others say who it is."""
    fixture = Fixture(catalog_leader=OTHER)
    assert (await code(fixture.broker.create_group("t", "g", None, 100))).code == "not-leader"
