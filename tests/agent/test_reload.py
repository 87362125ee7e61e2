"""A configuration that is read again: what counts at once, what later; a broken one changes nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest

from shoal.agent.config import SETTINGS, AgentConfig
from shoal.agent.process.config_source import ConfigSource
from shoal.agent.reload import difference, reloading, with_values
from shoal.agent.settings import Effect

OTHER_VALUES = {
    "log_level": "debug",
    "auto_create_topics": False,
    "shutdown_timeout": 77,
    "replace_after": 77_000,
    "scrub_bytes_per_s": 0,
}


def test_every_setting_that_is_reloaded_can_be_changed_and_is_found() -> None:
    """In groups and outside of them; all others wait for a start."""
    assert set(OTHER_VALUES) == {item.name for item in SETTINGS.values() if item.effect is Effect.RELOAD}
    before = AgentConfig(data="d")
    after = with_values(before, OTHER_VALUES)
    assert {name: SETTINGS[name].of(after) for name in OTHER_VALUES} == OTHER_VALUES
    found = difference(before, dataclasses.replace(after, weight=5, cluster="other"))
    assert found.now == OTHER_VALUES
    assert found.later == ("cluster", "weight")
    assert difference(before, before) == ({}, ())


class World:
    """A file, and what follows it."""

    def __init__(self, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
        self.path = tmp_path / "shoal.toml"
        self.path.write_text("log_level = 'info'\n")
        self.source = ConfigSource({"data": "d"}, {}, str(self.path))
        self.followed: list[Mapping[str, Any]] = []
        self._caplog = caplog

    async def events(self, count: int) -> list[tuple[str, str]]:
        """The next so many lines: event and message."""
        async with asyncio.timeout(60):
            while len(self._caplog.records) < count:
                await asyncio.sleep(0.005)
        found = [(vars(record)["event"], record.getMessage()) for record in self._caplog.records]
        self._caplog.clear()
        return found


async def test_a_reload_says_what_changed_and_what_waits(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What waits is named until it counts; nothing changes twice."""
    caplog.set_level(logging.INFO)
    world = World(tmp_path, caplog)
    async with reloading(world.source.read(), world.source, world.followed.append) as reloads:
        world.path.write_text("log_level = 'debug'\nreplace_after = '1h'\nweight = 5\n")
        reloads.ask()
        told = [
            ("reloaded", "configuration reloaded: log_level info -> debug, replace_after 300000 -> 3600000"),
            ("reload-needs-restart", "takes effect after a restart: weight"),
        ]
        assert await world.events(2) == told
        assert world.followed == [{"log_level": "debug", "replace_after": 3_600_000}]
        assert (reloads.config.log.log_level, reloads.config.weight) == ("debug", 100)
        reloads.ask()
        told[0] = ("reloaded", "configuration reloaded: nothing has changed")
        assert await world.events(2) == told
        assert len(world.followed) == 1


@pytest.mark.parametrize(
    "text", ["log_level = 'loud'", "log_level = ", "replace_after = '1h'\nlog_level = 7"]
)
async def test_a_broken_file_leaves_the_old_configuration_whole(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """It is named with its line and key, nothing of it counts, and the next good one does."""
    caplog.set_level(logging.INFO)
    world = World(tmp_path, caplog)
    async with reloading(world.source.read(), world.source, world.followed.append) as reloads:
        before = reloads.config
        world.path.write_text(text)
        reloads.ask()
        ((event, said),) = await world.events(1)
        line = text.count("\n") + 1
        assert event == "reload-refused"
        assert f"nothing has changed: {world.path}, line {line}, key log_level" in said
        assert (reloads.config, world.followed) == (before, [])
        world.path.unlink()
        reloads.ask()
        ((event, said),) = await world.events(1)
        assert event == "reload-refused"
        assert str(world.path) in said
        world.path.write_text("log_level = 'error'")
        reloads.ask()
        assert await world.events(1) == [("reloaded", "configuration reloaded: log_level info -> error")]
