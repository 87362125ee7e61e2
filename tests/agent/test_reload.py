"""A configuration that is read again: what counts at once, what later; a broken one changes nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from shoal.agent import agent as agent_module
from shoal.agent.config import SETTINGS, AgentConfig
from shoal.agent.log_lines.output import set_level
from shoal.agent.process.config_source import ConfigSource
from shoal.agent.process.service_manager import ServiceManager
from shoal.agent.reload import difference, reloading, with_values
from shoal.agent.settings import Effect
from shoal.agent.tls_settings import TlsSettings

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
    assert (found.later, found.never) == (("weight",), ("cluster",))
    assert difference(before, before) == ({}, (), ())


NOBODY = ServiceManager({}, 0)


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
    async with reloading(world.source.read(), world.source, world.followed.append, NOBODY) as reloads:
        world.path.write_text(
            "log_level = 'debug'\nreplace_after = '1h'\nauto_create_topics = false\nweight = 5\n"
        )
        reloads.ask()
        told = [
            (
                "reloaded",
                (
                    "configuration reloaded: log_level info -> debug, auto_create_topics true -> false,"
                    " replace_after 5m -> 1h"
                ),
            ),
            ("reload-needs-restart", "takes effect after a restart: weight"),
        ]
        assert await world.events(2) == told
        followed = {"log_level": "debug", "auto_create_topics": False, "replace_after": 3_600_000}
        assert world.followed == [followed]
        assert (reloads.config.log.log_level, reloads.config.weight) == ("debug", 100)
        reloads.ask()
        told[0] = ("reloaded", "configuration reloaded: nothing has changed")
        assert await world.events(2) == told
        assert len(world.followed) == 1


async def test_a_setting_of_a_first_start_is_not_said_to_wait(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A restart would refuse another cluster's name: no restart is asked for."""
    caplog.set_level(logging.INFO)
    world = World(tmp_path, caplog)
    async with reloading(world.source.read(), world.source, world.followed.append, NOBODY) as reloads:
        world.path.write_text("cluster = 'other'\nexpect = 5\nweight = 5\n")
        reloads.ask()
        assert (await world.events(3))[1:] == [
            ("reload-needs-restart", "takes effect after a restart: weight"),
            ("reload-too-late", "counts only in a new data directory: cluster, expect"),
        ]
        assert world.followed == []


async def test_a_level_that_hides_the_line_is_told_all_the_same(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the old level or the new one, whichever lets it pass."""
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.INFO, logger="shoal")
    world = World(tmp_path, caplog)

    def follow(values: Mapping[str, Any]) -> None:
        set_level(values["log_level"])

    async with reloading(world.source.read(), world.source, follow, NOBODY) as reloads:
        for before, after in (("info", "warning"), ("warning", "info")):
            world.path.write_text(f"log_level = '{after}'")
            reloads.ask()
            told = ("reloaded", f"configuration reloaded: log_level {before} -> {after}")
            assert await world.events(1) == [told]


@pytest.mark.parametrize(
    "text", ["log_level = 'loud'", "log_level = ", "replace_after = '1h'\nlog_level = 7"]
)
async def test_a_broken_file_leaves_the_old_configuration_whole(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """It is named with its line and key, nothing of it counts, and the next good one does."""
    caplog.set_level(logging.INFO)
    world = World(tmp_path, caplog)
    async with reloading(world.source.read(), world.source, world.followed.append, NOBODY) as reloads:
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


async def test_a_hangup_looks_at_certificates_without_a_file_too(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where neither is there a hangup ends the agent, as ever."""
    world = World(tmp_path, caplog)
    looked = asyncio.Event()
    config = world.source.read()
    tls = TlsSettings(tls_cert="agent.crt", tls_key="agent.key", tls_ca="ca.crt")
    async with reloading(config, None, world.followed.append, NOBODY, looked.set) as reloads:
        assert reloads.on_hangup is None
    secured = dataclasses.replace(config, tls=tls)
    async with reloading(secured, None, world.followed.append, NOBODY, looked.set) as reloads:
        assert reloads.on_hangup is not None
        reloads.on_hangup()
        await asyncio.wait_for(looked.wait(), 60)


async def test_a_reload_reaches_the_process_of_several_agents_too(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own lines have the level that theirs have."""
    world = World(tmp_path, caplog)
    passed_on = asyncio.Event()

    class NoAgents:
        def __init__(self, *_: object) -> None: ...

        async def run(self, on_hangup: Callable[[], None] | None) -> int:
            assert on_hangup is not None
            world.path.write_text("log_level = 'error'")
            on_hangup()
            await asyncio.wait_for(passed_on.wait(), 60)
            return 0

        def reload(self) -> None:
            passed_on.set()

    monkeypatch.setattr(agent_module, "Cores", NoAgents)
    levels: list[str] = []
    monkeypatch.setattr(agent_module, "set_level", levels.append)
    config = dataclasses.replace(world.source.read(), cores=2)
    assert await agent_module.run_agent(config, source=world.source) == 0
    assert levels == ["error"]
