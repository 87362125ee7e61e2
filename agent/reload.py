"""SIGHUP: the configuration is read again; what a running agent can follow counts from then on.

Law of this file: a configuration that cannot be read or cannot work changes nothing. Settings that count
at the next start only are named in the log. Their declarations say which those are (agent/config.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from shoal.agent.config import SETTINGS, AgentConfig, ConfigError
from shoal.agent.log_lines.schema import LEVELS, about
from shoal.agent.process.config_source import ConfigSource
from shoal.agent.process.service_manager import ServiceManager
from shoal.agent.settings import Effect, Setting

logger = logging.getLogger("shoal.agent")
Follow = Callable[[Mapping[str, Any]], None]
"""Called with settings and their new values."""


class Difference(NamedTuple):
    """Settings by name. `now`: with their new values. `later`: they count at a start. `never`: a directory
    that has its cluster takes no other value."""

    now: dict[str, Any]
    later: tuple[str, ...]
    never: tuple[str, ...]


def difference(running: AgentConfig, wanted: AgentConfig) -> Difference:
    """The settings in which the second differs."""
    changed = [item for item in SETTINGS.values() if item.of(running) != item.of(wanted)]
    return Difference(
        {item.name: item.of(wanted) for item in changed if item.effect is Effect.RELOAD},
        tuple(item.name for item in changed if item.effect is Effect.START),
        tuple(item.name for item in changed if item.effect in (Effect.FIRST_START, Effect.FOUNDING)),
    )


def with_values(config: AgentConfig, values: Mapping[str, Any]) -> AgentConfig:
    """The same configuration with these values of settings."""
    for name, value in values.items():
        *groups, last = SETTINGS[name].path
        if groups:
            (group,) = groups
            config = replace(config, **{group: replace(getattr(config, group), **{last: value})})
        else:
            config = replace(config, **{last: value})
    return config


class Reloads:
    """One per process. `config`: as given at the start, with what was reloaded since."""

    def __init__(
        self,
        config: AgentConfig,
        source: ConfigSource | None,
        follow: Follow,
        manager: ServiceManager,
        look: Callable[[], None],
    ) -> None:
        """`look`: at files that the configuration names, such as certificates."""
        self.config = config
        self._look = look
        self._source = source
        self._follow = follow
        self._manager = manager
        self._asked = asyncio.Event()

    @property
    def on_hangup(self) -> Callable[[], None] | None:
        """Does what SIGHUP asks for. None where no file could say something new."""
        has_file = self._source is not None and bool(self._source.path)
        return self.ask if has_file or self.config.tls.is_on else None

    def ask(self) -> None:
        """From a signal. Several before the first was taken up are one."""
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            with self._manager.reloading():
                if self._source is not None and self._source.path:
                    await self._reload()
                self._look()

    async def _reload(self) -> None:
        assert self._source is not None, "nobody asks where there is none"
        try:
            wanted = await asyncio.to_thread(self._source.read)
        except ConfigError as error:
            logger.error(
                "configuration not reloaded, nothing has changed: %s", error, extra=about("reload-refused")
            )
            return
        found = difference(self.config, wanted)
        before = self.config
        self.config = with_values(self.config, found.now)
        level, level_before = (LEVELS.index(one.log.log_level) for one in (self.config, before))
        is_quieter = level > level_before  # it may hide the line, and a level that is less so may let it pass
        if is_quieter:
            self._tell(before, found)
        if found.now:
            self._follow(found.now)
        if not is_quieter:
            self._tell(before, found)

    def _tell(self, before: AgentConfig, found: Difference) -> None:
        changes = [
            f"{known.name} {_shown(known, before)} -> {_shown(known, self.config)}"
            for known in map(SETTINGS.__getitem__, found.now)
        ]
        logger.info(
            "configuration reloaded: %s", ", ".join(changes) or "nothing has changed", extra=about("reloaded")
        )
        if found.later:
            logger.warning(
                "takes effect after a restart: %s",
                ", ".join(found.later),
                extra=about("reload-needs-restart"),
            )
        if found.never:
            logger.warning(
                "counts only in a new data directory: %s",
                ", ".join(found.never),
                extra=about("reload-too-late"),
            )


def _shown(known: Setting, config: AgentConfig) -> str:
    """As a file could have it; of those that a reload changes none is secret."""
    value = known.with_unit(known.of(config))
    return str(value).lower() if isinstance(value, bool) else str(value)


@asynccontextmanager
async def reloading(
    config: AgentConfig,
    source: ConfigSource | None,
    follow: Follow,
    manager: ServiceManager,
    look: Callable[[], None] = lambda: None,
) -> AsyncIterator[Reloads]:
    """Takes up what is asked for meanwhile."""
    reloads = Reloads(config, source, follow, manager, look)
    task = asyncio.create_task(reloads.run(), name="reloads")
    try:
        yield reloads
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
