"""The life of an agent: its stages in order, the way out in reverse, and the process around it.

Law of this file: it decides nothing about records, members or leaders. A stage is a frozen value that exists
once reached: Directory (directory.py), Node and Pool (node.py), Cluster (cluster.py). `run_agent` is the life
of the process, `Agent.run` that of one agent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from enum import Enum, auto
from typing import Any, TypeVar

from shoal.agent.cluster import Cluster, find_cluster, make_cluster
from shoal.agent.config import AgentConfig, ConfigError
from shoal.agent.directory import Directory, open_directory
from shoal.agent.durable.data_directory import wipe
from shoal.agent.host.host import Host
from shoal.agent.levels import SUPPORTED, LevelRange
from shoal.agent.log_lines.names import Names
from shoal.agent.log_lines.output import set_level
from shoal.agent.log_lines.schema import about
from shoal.agent.node import Node, Pool, enter_pool, start_node
from shoal.agent.process.config_source import ConfigSource
from shoal.agent.process.errors import RefusedError, StartError
from shoal.agent.process.loop_lag import watch_loop_lag
from shoal.agent.process.ports import PortError
from shoal.agent.process.service_manager import ServiceManager
from shoal.agent.process.signals import allow_open_files, asked_by_signals, report
from shoal.agent.process.supervisor import Cores, end_with_first_process
from shoal.agent.reload import Reloads, reloading, with_values
from shoal.agent.security.posture import SAID_AGAIN_S, Exposure, warning
from shoal.agent.service.broker import Broker

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
CLOSE_TIMEOUT_S = 8.0  # HTTP lets handlers finish for five seconds; the rest is quick
CLOSE_AT_ONCE_S = 1.0  # after a second signal: what closes by itself may, the rest dies with the process
AUDIT_SHARE = 4  # of shutdown_timeout, for records of the audit; half of it is for leaderships
UNREADY_SAID_MS = 5_000  # long against an election; the log tells the reason for the wait
READY_POLL_MS = 100  # some of what readiness depends on is not announced by the watch

logger = logging.getLogger("shoal.agent")
Stage = TypeVar("Stage")


class Outcome(Enum):
    """How an agent's life ended."""

    STOPPED = auto()
    DISSOLVED = auto()  # its empty cluster was given up; the directory is empty again


class StopRequest:
    """Asked once: leave gracefully. Asked twice: stop at once."""

    def __init__(self) -> None:
        self.graceful = asyncio.Event()
        self.at_once = asyncio.Event()

    def ask(self) -> None:
        """From a signal, or from POST /v1/agent/leave."""
        if self.graceful.is_set():
            self.at_once.set()
        self.graceful.set()


class Agent:
    """One agent. A property of a stage that has not been reached raises AttributeError."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        rng: random.Random | None = None,
        levels: LevelRange = SUPPORTED,
        manager: ServiceManager | None = None,
    ) -> None:
        self.directory: Directory | None = None
        self.node: Node | None = None
        self.pool: Pool | None = None
        self.cluster: Cluster | None = None
        self._config = config
        self._levels = levels
        self._rng = rng or random.Random()  # noqa: S311 -- jitter and shuffling, nothing secret
        self._dissolved: str | None = None
        self._last_said = ""
        self._goodbyes: list[Callable[[], Awaitable[None]]] = []
        self._names = Names()
        self._manager = manager or ServiceManager({}, 0)
        self._followed: dict[str, Any] = {}

    @property
    def config(self) -> AgentConfig:
        """As given; once the directory is open, with what that settles; then as it was reloaded last."""
        if self.node is not None:
            return self.node.config
        return self._config if self.directory is None else self.directory.config

    @property
    def agent_id(self) -> str:
        return self._reached("directory", self.directory).identity.agent_id

    @property
    def url(self) -> str:
        return self._reached("node", self.node).url

    @property
    def broker(self) -> Broker:
        return self._reached("node", self.node).broker

    @property
    def host(self) -> Host | None:
        """Its replicas; None before it belongs to a cluster."""
        return None if self.cluster is None else self.cluster.joined.host

    @staticmethod
    def _reached(name: str, stage: Stage | None) -> Stage:
        if stage is None:
            raise AttributeError(f"the agent has not reached its stage `{name}`")
        return stage

    # ---- life ------------------------------------------------------------------------------------

    async def run(self, stop: StopRequest, on_ready: Callable[[Agent], None] | None = None) -> Outcome:
        """Until asked to stop, or until this agent's empty cluster dissolves. Raises StartError, PortError or
        ConfigError when it cannot start, later the fault of a part."""
        with self._names.in_use():
            parts = AsyncExitStack()
            life = asyncio.create_task(self._live(parts, stop, on_ready), name="agent")
            asked = asyncio.create_task(stop.graceful.wait(), name="stop")
            try:
                await asyncio.wait({life, asked}, return_when=asyncio.FIRST_COMPLETED)
                if not life.done() and not stop.at_once.is_set():
                    await self._until(stop.at_once, self._leave())
            finally:
                asked.cancel()
                life.cancel()
                await asyncio.wait({life})
                await self._close(parts, stop)
            if not life.cancelled():
                life.result()
            return Outcome.STOPPED if self._dissolved is None else Outcome.DISSOLVED

    def follow(self, values: Mapping[str, Any]) -> None:
        """New values of settings that count while an agent runs. Once it has reached a stage, that stage has
        them."""
        self._followed |= values
        if self.node is None:
            return
        broker = self.node.broker
        broker.config = with_values(broker.config, self._followed)
        if self.cluster is not None:
            self.cluster.joined.scrubber.set_rate(broker.config.scrub_bytes_per_s)

    def look_at_certificates(self) -> None:
        """Whether files of TLS, or keys of JWTs, have been exchanged; now, instead of when they are due."""
        if self.node is not None and self.node.tls is not None:
            self.node.tls.ask()
        if self.node is not None and self.node.issuer is not None:
            self.node.issuer.ask()

    async def _leave(self) -> None:
        """The goodbyes of the parts that have started, the last one first."""
        logger.info("leaving the cluster")
        self._manager.stopping()
        for goodbye in reversed(self._goodbyes):
            await goodbye()

    async def _hand_over(self, cluster: Cluster) -> None:
        """Leadership first, while everything still works; then no more work."""
        moved = await cluster.joined.host.transfer_all(self.config.shutdown_timeout_ms // 2)
        if moved:
            logger.info("handed leadership over; partitions: %d", moved)
        cluster.node.broker.stopping = True
        cluster.node.watch.changed()
        await cluster.audit.flush(self.config.shutdown_timeout_ms / 1_000 / AUDIT_SHARE)

    async def _until(self, at_once: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
        """Do the work unless it takes too long, or is cut short."""
        limit_s = self.config.shutdown_timeout_ms / 1_000
        task = asyncio.create_task(work)
        cut = asyncio.create_task(at_once.wait())
        try:
            await asyncio.wait({task, cut}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled() and task.exception() is not None:
                logger.warning("cannot leave gracefully: %s", task.exception())
        finally:
            for pending in (task, cut):
                pending.cancel()
            await asyncio.wait({task, cut})

    async def _close(self, parts: AsyncExitStack, stop: StopRequest) -> None:
        limit_s = CLOSE_AT_ONCE_S if stop.at_once.is_set() else CLOSE_TIMEOUT_S
        try:
            async with asyncio.timeout(limit_s):
                await parts.aclose()
        except TimeoutError:
            logger.warning("stopping without closing everything, after %.0f s", limit_s)

    async def _live(
        self, parts: AsyncExitStack, stop: StopRequest, on_ready: Callable[[Agent], None] | None
    ) -> None:
        directory = self.directory = await open_directory(
            self._config, parts, self._wipe_if_dissolved, self._levels
        )
        node = self.node = await start_node(directory, self._names, parts, self._rng, stop.ask, self._levels)
        self.follow({})
        pool = self.pool = await enter_pool(node, parts)
        self._manager.ready(f"listening: {node.url}")
        self._goodbyes.append(pool.membership.leave)
        try:
            await self._live_in_pool(node, pool, parts, on_ready)
        except* RefusedError:  # the others would miss it as a failed member
            await self._until(stop.at_once, pool.membership.leave())
            raise
        await self._until(stop.at_once, pool.membership.leave())

    async def _live_in_pool(
        self, node: Node, pool: Pool, parts: AsyncExitStack, on_ready: Callable[[Agent], None] | None
    ) -> None:
        """Until its empty cluster dissolves."""
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(pool.contact.run(), name="contact"),
                tasks.create_task(node.twins.run(), name="twins"),
                tasks.create_task(pool.name_watch.run(), name="own name"),
                tasks.create_task(say_insecure(node.directory.exposure), name="posture"),
                tasks.create_task(watch_loop_lag(node.measures.loop_lag.observe), name="loop lag"),
            ]
            if node.tls is not None:
                running.append(tasks.create_task(node.tls.run(), name="tls"))
            if node.issuer is not None:
                running.append(tasks.create_task(node.issuer.run(), name="issuer"))
            record = await find_cluster(node, pool, lambda reason: self._say_waiting(node, reason))
            cluster = self.cluster = await make_cluster(node, parts, record)
            self._goodbyes.append(lambda: self._hand_over(cluster))
            await cluster.start(parts)
            running += [tasks.create_task(task, name=name) for name, task in cluster.tasks().items()]
            if on_ready is not None:
                running.append(tasks.create_task(self._announce(node, on_ready), name="ready"))
            self._dissolved = await cluster.guard.run()
            logger.warning("dissolving this empty cluster: %s", self._dissolved)
            for task in running:
                task.cancel()

    def _wipe_if_dissolved(self) -> None:
        if self._dissolved is not None:
            wipe(self.config.data)

    # ---- what is said of the way --------------------------------------------------------------------------

    def _say_waiting(self, node: Node, reason: str) -> None:
        node.broker.waiting_reason = reason
        if reason != self._last_said:
            self._last_said = reason
            self._manager.status(f"waiting: {reason}")
            logger.info("waiting: %s", reason, extra=about("waiting"))

    async def _announce(self, node: Node, on_ready: Callable[[Agent], None]) -> None:
        said_at_ms = node.clock.now_ms()
        while not node.broker.readiness()[0]:
            await node.watch.wait_next(READY_POLL_MS)
            if node.clock.now_ms() - said_at_ms >= UNREADY_SAID_MS:
                said_at_ms = node.clock.now_ms()
                self._say_unready(node)
        text = f"{node.url} ({node.identity.name}, cluster {node.config.cluster})"
        self._manager.status(f"ready: {text}")
        logger.info("ready: %s", text, extra=about("ready"))
        on_ready(self)

    def _say_unready(self, node: Node) -> None:
        checks = node.broker.readiness()[1].items()
        reason = "; ".join(f"{check}: {state}" for check, state in checks if state != "ok")
        if reason and reason != self._last_said:
            self._last_said = reason
            self._manager.status(f"not ready yet: {reason}")
            logger.warning("not ready yet: %s", reason, extra=about("not-ready"))


async def say_insecure(exposure: Exposure) -> None:
    """At the start and then every hour, while others reach an agent that lacks a protection."""
    while exposure.is_insecure:
        logger.warning("%s", warning(exposure), extra=about("insecure"))
        await asyncio.sleep(SAID_AGAIN_S)


# ---- the process -------------------------------------------------------------------------------------------


async def run_agent(
    config: AgentConfig, ready: Callable[[Agent], None] | None = None, source: ConfigSource | None = None
) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. `ready` is called once the agent can serve. The
    first signal hands leadership over and leaves, the second stops at once. SIGHUP reads `source` again, or
    is such a signal where that has no file. A fault is one line."""
    end_with_first_process(os.environ)
    manager = ServiceManager(os.environ, os.getpid())
    if config.cores > 1:
        cores = Cores(config, source, manager)

        def pass_on(values: Mapping[str, Any]) -> None:
            _follow_log_level(values)
            cores.reload()

        def look_again() -> None:
            if config.tls.is_on:
                cores.reload()

        async with reloading(config, source, pass_on, manager, look_again) as reloads:
            return await cores.run(reloads.on_hangup)
    allow_open_files()
    stop = StopRequest()
    agents: list[Agent] = []

    def follow(values: Mapping[str, Any]) -> None:
        _follow_log_level(values)
        for agent in agents:
            agent.follow(values)

    def look() -> None:
        for agent in agents:
            agent.look_at_certificates()

    async with reloading(config, source, follow, manager, look) as reloads:
        with asked_by_signals(stop.ask, reloads.on_hangup), manager:
            return await _run_lives(reloads, stop, ready, manager, agents)


def _follow_log_level(values: Mapping[str, Any]) -> None:
    if "log_level" in values:
        set_level(values["log_level"])


async def _run_lives(
    reloads: Reloads,
    stop: StopRequest,
    ready: Callable[[Agent], None] | None,
    manager: ServiceManager,
    agents: list[Agent],
) -> int:
    """One agent after the other, for its empty cluster may dissolve. `agents`: the one that lives."""
    try:
        while True:
            agent = Agent(reloads.config, manager=manager)
            agents[:] = [agent]
            if await agent.run(stop, ready) is not Outcome.DISSOLVED:
                break
            logger.info("starting again with an empty directory, to join the other cluster")
    except (StartError, PortError) as error:
        logger.error("%s", error, extra=about("start-failed"))
        return EXIT_FAILED
    except ConfigError as error:
        logger.error("%s", error, extra=about("start-failed"))
        return EXIT_USAGE
    except BaseExceptionGroup as group:
        report(group)
        return EXIT_FAILED
    return EXIT_FAILED if stop.at_once.is_set() else EXIT_OK
