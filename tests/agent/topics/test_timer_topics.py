"""Topics of kind timer in the catalog: their settings, their level, and the replicas that keep them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from waiting import until

from shoal.agent.durable.ids import GroupId
from shoal.agent.groups.fold import GroupFold
from shoal.agent.levels import Level
from shoal.agent.partition.plan import ViewKind
from shoal.agent.topics.catalog import AlterTopic, Catalog, ChangeTopic, CreateTopic, RaiseLevel, TopicEntry
from shoal.agent.topics.catalog_codec import decode_command, encode_command, level_of_command
from shoal.agent.topics.settings import (
    TopicSettings,
    changed_settings,
    served_kinds,
    settings_from_body,
    settings_table,
)
from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA, TIMER_SCHEMA
from tests.agent.topics.test_catalog_service import SELF, Fixture, entry, frame

FOUR = Level(4)


def timers(**settings: object) -> TopicEntry:
    """The usual topic, of kind timer."""
    topic = entry()
    return replace(topic, settings=replace(topic.settings, kind="timer", **settings))  # type: ignore[arg-type]


def test_settings_of_a_timer_topic_survive_their_document() -> None:
    """The kind is that of its columns too."""
    settings, _ = settings_from_body({"kind": "timer", "retention": {"age": "7d", "bytes": None}})
    assert (settings.kind, settings.schema) == ("timer", TIMER_SCHEMA)
    assert settings_from_body(settings.to_document())[0] == settings
    assert settings_from_body({})[0].schema == DEFAULT_SCHEMA
    assert served_kinds() == ["log", "timer", "table"]
    [row] = [row for row in settings_table(settings) if row["name"] == "kind"]
    assert row == {"name": "kind", "value": "timer", "default": "log", "set": True, "changeable": False}
    assert settings.differences(TopicSettings(retention_age_ms=settings.retention_age_ms)) == [
        "kind is timer, asked was log"
    ]


@pytest.mark.parametrize(
    ("name", "value"), [("bytes", 1 << 30), ("hold_for_groups", True), ("acknowledged", True)]
)
def test_records_of_a_timer_topic_go_by_age_alone(name: str, value: object) -> None:
    """When it is made, and when it is changed."""
    body = {"kind": "timer", "retention": {name: value}}
    with pytest.raises(ShoalError, match=f"retention.{name} is not for topics of kind timer") as caught:
        settings_from_body(body)
    assert caught.value.code == "bad-request"
    made, _ = settings_from_body({"kind": "timer"})
    with pytest.raises(ShoalError, match=f"retention.{name} is not for topics of kind timer"):
        changed_settings(made, {"retention": {name: value}})
    aged = changed_settings(made, {"retention": {"age": "1h", "bytes": None, "acknowledged": False}})
    assert aged.retention_age_ms == 3_600_000


def test_the_kind_stays() -> None:
    """Of either kind."""
    for kind, other in (("timer", "log"), ("log", "timer")):
        made, _ = settings_from_body({"kind": kind})
        with pytest.raises(ShoalError, match="'kind' of an existing topic cannot be changed"):
            changed_settings(made, {"kind": other})


async def test_a_timer_topic_is_of_level_four() -> None:
    """Its creation, and each change of it; a log is not. Below that level nothing is appended."""
    its = timers().settings
    commands = [
        CreateTopic(timers()),
        ChangeTopic(entry().topic_id, its),
        AlterTopic(entry().topic_id, its, replace(its, retention_age_ms=1_000)),
    ]
    assert level_of_command(CreateTopic(entry())) == Level(1)
    for command in commands:
        assert decode_command(encode_command(command)) == command
        assert level_of_command(command) == json.loads(encode_command(command))["v"] == FOUR
        for level in (Level(1), Level(3)):
            fixture = Fixture((SELF,), Catalog(level=level))
            fixture.groups.on_append = lambda _: pytest.fail("it was appended")
            with pytest.raises(ShoalError, match="needs level 4") as caught:
                await fixture.service.propose(command, 50)
            assert caught.value.code == "level-too-low"


def test_a_catalog_with_timers_comes_back() -> None:
    """From its bytes."""
    catalog = Catalog()
    for offset, command in enumerate((RaiseLevel(FOUR), CreateTopic(timers()))):
        assert catalog.apply(offset, command) == "done"
    assert Catalog.from_bytes(catalog.to_bytes()) == catalog
    assert catalog.topics["t1"].settings.kind == "timer"


async def test_replicas_of_a_timer_topic_keep_a_view() -> None:
    """And its groups go by due times. A log has none of that."""
    fixture = Fixture((SELF,))
    log, due = GroupId(entry(2).topic_id, 0), GroupId(entry().topic_id, 0)
    fixture.service.apply(frame(0, RaiseLevel(FOUR), CreateTopic(timers()), CreateTopic(entry(2))))
    async with fixture.running():
        await until(lambda: {log, due} <= fixture.groups.opened.keys())
        opened = fixture.groups.opened[due]
        assert (opened["view"], opened["schema"]) == (ViewKind.TIMER, TIMER_SCHEMA)
        fold = opened["fold"]()
        assert isinstance(fold, GroupFold)
        assert fold.by_due
        opened = fixture.groups.opened[log]
        assert (opened["view"], opened["schema"], opened["fold"]().by_due) == (None, DEFAULT_SCHEMA, False)
