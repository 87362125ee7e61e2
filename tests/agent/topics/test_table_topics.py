"""Topics of kind table in the catalog: their settings, their level, and the replicas that keep them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from waiting import until

from shoal.agent.durable.ids import GroupId
from shoal.agent.groups.fold import GroupFold
from shoal.agent.levels import Level, LevelRange
from shoal.agent.partition.plan import ViewKind
from shoal.agent.topics.catalog import Catalog, CreateTopic, RaiseLevel, TopicEntry
from shoal.agent.topics.catalog_codec import decode_command, encode_command, level_of_command
from shoal.agent.topics.settings import changed_settings, served_kinds, settings_from_body
from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA
from tests.agent.topics.test_catalog_service import SELF, Fixture, entry, frame

FIVE = Level(5)


def table() -> TopicEntry:
    """The usual topic, of kind table."""
    topic = entry()
    return replace(topic, settings=replace(topic.settings, kind="table"))


def test_the_log_of_a_table_goes_back_a_day_or_32_mebibytes_unless_somebody_says_otherwise() -> None:
    """Retention bounds its history: by age, by bytes, or not at all."""
    settings, _ = settings_from_body({"kind": "table"})
    assert (settings.kind, settings.schema) == ("table", DEFAULT_SCHEMA)
    document = settings.to_document()
    assert (document["retention"]["age"], document["retention"]["bytes"]) == ("1d", 32 << 20)
    assert document["segment"]["bytes"] == 16 << 20
    assert settings_from_body(settings.to_document())[0] == settings
    assert "table" in served_kinds()
    endless, _ = settings_from_body({"kind": "table", "retention": {"age": None, "bytes": 1 << 30}})
    assert (endless.retention_age_ms, endless.retention_bytes) == (None, 1 << 30)
    assert settings_from_body(endless.to_document())[0] == endless
    assert changed_settings(settings, {"retention": {"age": "1h"}}).retention_age_ms == 3_600_000
    with pytest.raises(ShoalError, match="'kind' of an existing topic cannot be changed"):
        changed_settings(settings, {"kind": "log"})


async def test_a_table_is_of_level_five() -> None:
    """Below that level nothing is appended."""
    command = CreateTopic(table())
    assert decode_command(encode_command(command)) == command
    assert level_of_command(command) == FIVE
    fixture = Fixture((SELF,), Catalog(level=Level(3)))
    fixture.groups.on_append = lambda _: pytest.fail("it was appended")
    with pytest.raises(ShoalError, match="needs level 5") as caught:
        await fixture.service.propose(command, 50)
    assert caught.value.code == "level-too-low"


async def test_replicas_of_a_table_keep_a_view() -> None:
    """Its groups go by offsets, as those of a log."""
    fixture = Fixture((SELF,), levels=LevelRange(Level(1), FIVE))
    group = GroupId(entry().topic_id, 0)
    fixture.service.apply(frame(0, RaiseLevel(FIVE), CreateTopic(table())))
    async with fixture.running():
        await until(lambda: group in fixture.groups.opened)
        opened = fixture.groups.opened[group]
        assert (opened["view"], opened["schema"]) == (ViewKind.TABLE, DEFAULT_SCHEMA)
        fold = opened["fold"]()
        assert isinstance(fold, GroupFold)
        assert not fold.by_due
