"""The composition root: builds every part of an agent, runs them, and stops them in reverse order.

Law of this file: it decides nothing about records, members or leaders; it knows which part needs which, and
in what order they start and end. `run_agent` is the life of the process, `Agent.run` that of one agent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from aiohttp import web

from shoal import __version__
from shoal.agent.bootstrap.cluster_finder import Starter
from shoal.agent.bootstrap.empty_cluster_guard import Guard
from shoal.agent.config import DEFAULT_HTTP_PORT, AgentConfig, ConfigError
from shoal.agent.durable.catalog_version import CatalogVersion
from shoal.agent.durable.data_directory import (
    claim_directory,
    host_name,
    machine_boot_id,
    settle_identity,
    wipe,
)
from shoal.agent.durable.gossip_snapshot import load_snapshot, save_snapshot
from shoal.agent.durable.identity import AgentIdentity, HardStateFile, IdentityStore, ReplicaRegistry
from shoal.agent.durable.ids import GroupId, IdentityError
from shoal.agent.durable.keyring_file import KeyringFile, settle_keyring
from shoal.agent.duties import duties
from shoal.agent.events.change_counter import Watch
from shoal.agent.events.feed import EventFeed
from shoal.agent.host.host import Host
from shoal.agent.host.scrubber import Scrubber
from shoal.agent.http.admission.limits import limits_for
from shoal.agent.http.app import make_runner
from shoal.agent.members.contact import Meeting
from shoal.agent.members.duplicate_identity import Life, TwinWatch
from shoal.agent.members.gossip_keys import KeyService
from shoal.agent.members.gossip_start import Entry, enter, start_discovery
from shoal.agent.members.roster import Roster, first_tags
from shoal.agent.peers.frames import NONCE_BYTES
from shoal.agent.peers.links import LinkConfig, Links
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.placement.assignments import Holding
from shoal.agent.placement.drain import Draining
from shoal.agent.placement.lost_replicas import Losses
from shoal.agent.placement.rebalancer import Mover
from shoal.agent.process.clock import SystemClock
from shoal.agent.process.errors import StartError
from shoal.agent.process.event_loop import expects_answers
from shoal.agent.process.ports import PortChoice, PortError, http_socket, is_own_address, listen
from shoal.agent.process.signals import allow_open_files, asked_by_signals, open_files, report
from shoal.agent.process.supervisor import run_cores
from shoal.agent.routing.claims import claim_of
from shoal.agent.routing.exchange import RouteExchange
from shoal.agent.routing.table import Claim
from shoal.agent.service.broker import Broker
from shoal.agent.service.cluster_view import Joined
from shoal.agent.service.event_sources import EventSources
from shoal.agent.topics.catalog_founders import birth_from_log
from shoal.agent.topics.catalog_service import CatalogService
from shoal.agent.topics.cluster_file import (
    ClusterFileError,
    ClusterRecord,
    load_cluster,
    save_cluster,
    settle_cluster,
)
from shoal.membership.interface import KeyedGossip, MemberEvent
from shoal.membership.serf.snapshot import Snapshot
from shoal.membership.wire.keyring import Keyring
from shoal.replication.config import RaftConfig
from shoal.segment_store.config import LogConfig
from shoal.segment_store.disk.disk import Disk, open_disk
from shoal.segment_store.errors import StoreError

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
CLOSE_TIMEOUT_S = 8.0  # HTTP lets handlers finish for five seconds; the rest is quick
CLOSE_AT_ONCE_S = 1.0  # after a second signal: what closes by itself may, the rest dies with the process
UNREADY_SAID_MS = 5_000  # long against an election; whoever waits at the log should learn what for
SPARE_DELAY_MS = 5  # several small appends in a row, and nothing beside an election
READY_POLL_MS = 100  # some of what readiness depends on is not announced by the watch

logger = logging.getLogger("shoal.agent")


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
    """One agent. `url`, `agent_id` and `broker` are there once `on_ready` is called."""

    url: str
    agent_id: str
    broker: Broker

    def __init__(self, config: AgentConfig, *, rng: random.Random | None = None) -> None:
        self.config = config
        self.roster: Roster
        self.membership: KeyedGossip
        self.host: Host | None = None
        self._clock = SystemClock()
        self._losses = Losses(self._clock.now_ms)
        self._rng = rng or random.Random()  # noqa: S311 -- jitter and shuffling, nothing secret
        self._boot_nonce = os.urandom(NONCE_BYTES)
        self._boot = self._boot_nonce.hex()
        self._watch = Watch(self._boot)
        self._events = EventFeed(self._boot)
        self._event_sources: EventSources
        self._disk: Disk
        self._keyring: Keyring | None
        self._snapshot: Snapshot
        self._identity: AgentIdentity
        self._identities: IdentityStore
        self._links: Links
        self._life: Life
        self._twins: TwinWatch
        self._draining: Draining
        self._kept_http_port = 0
        self._dissolved: str | None = None
        self._power_held = False
        """The machine has been on since this agent last ran here."""
        self._last_said = ""
        self._goodbyes: list[Callable[[], Awaitable[None]]] = []

    # ---- life ------------------------------------------------------------------------------------

    async def run(self, stop: StopRequest, on_ready: Callable[[Agent], None] | None = None) -> Outcome:
        """Until asked to stop, or until this agent's empty cluster dissolves.

        Raises StartError, PortError, ConfigError when it cannot start; whatever a part failed with otherwise.
        """
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

    async def _leave(self) -> None:
        """What the parts that have started want to do before they are closed, the last one first."""
        logger.info("leaving")
        for goodbye in reversed(self._goodbyes):
            await goodbye()

    async def _hand_over(self) -> None:
        """Leadership first, while everything still works; then no more work."""
        assert self.host is not None
        moved = await self.host.transfer_all(self.config.shutdown_timeout_ms // 2)
        if moved:
            logger.info("partitions handed over: %d", moved)
        self.broker.stopping = True
        self._watch.changed()

    async def _until(self, at_once: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
        """Do the work unless it takes too long, or is cut short."""
        limit_s = self.config.shutdown_timeout_ms / 1_000
        task = asyncio.create_task(work)
        cut = asyncio.create_task(at_once.wait())
        try:
            await asyncio.wait({task, cut}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled() and task.exception() is not None:
                logger.warning("could not leave gracefully: %s", task.exception())
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
            logger.warning("not everything closed within %.0f s", limit_s)

    async def _live(
        self, parts: AsyncExitStack, stop: StopRequest, on_ready: Callable[[Agent], None] | None
    ) -> None:
        record = await self._open_directory(parts)
        listener = await self._listen_http(parts)
        self._make_links_and_roster(parts)
        self._draining = Draining(self._disk, self.config.data, self.roster)
        await self._draining.load()
        self._make_broker(stop)
        await self._look_for_twin()
        await self._serve_http(parts, listener)
        meeting = await self._start_gossip(parts)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(meeting.run(), name="meeting"),
                tasks.create_task(self._twins.run(), name="twins"),
            ]
            record = await self._find_cluster(record)
            joined, holding, guard = await self._start_cluster(parts, record)
            running += [
                tasks.create_task(joined.host.run(), name="host"),
                tasks.create_task(joined.catalog.run(), name="catalog"),
                tasks.create_task(joined.routes.run(), name="routes"),
                tasks.create_task(self._tell_events(joined), name="events"),
                tasks.create_task(self._tell_catalog_version(joined.catalog), name="catalog version"),
                tasks.create_task(self._make_mover(joined).run(), name="mover"),
                tasks.create_task(holding.run(), name="holding"),
                tasks.create_task(joined.scrubber.run(), name="scrubber"),
                *(tasks.create_task(duty, name=name) for name, duty in self._duties(joined).items()),
            ]
            if on_ready is not None:
                running.append(tasks.create_task(self._announce(on_ready), name="ready"))
            self._dissolved = await guard.run()
            logger.warning("giving this empty cluster up: %s", self._dissolved)
            for task in running:
                task.cancel()
        await self._until(stop.at_once, self.membership.leave())

    # ---- parts, in the order in which they start -------------------------------------------------

    async def _open_directory(self, parts: AsyncExitStack) -> ClusterRecord | None:
        lock = claim_directory(self.config.data)
        parts.callback(lock.release)
        parts.callback(self._wipe_if_dissolved)
        self._keyring = await asyncio.to_thread(settle_keyring, self.config, KeyringFile(self.config.data))
        try:
            self._disk = await open_disk("threads" if self.config.disk == "threads" else "ring")
            parts.push_async_callback(self._disk.close)
            self._identities = await IdentityStore.open(self._disk, self.config.data)
            parts.push_async_callback(self._identities.close)
            known = self._identities.load()
            await self._note_machine_boot()
            record = await load_cluster(self._disk, self.config.data)
            self._snapshot = await load_snapshot(self._disk, self.config.data)
        except (IdentityError, ClusterFileError) as error:
            raise StartError(str(error)) from None
        except OSError as error:
            raise StartError(f"cannot use {self.config.data}: {error.strerror or error}") from None
        if record is not None and (known is None or known.cluster_id != record.cluster_id):
            record = (
                None  # a crash between the two writes of joining: the identity decides, and it had not joined
            )
        self.config = settle_cluster(self.config, record)
        self._identity = settle_identity(self.config, known)
        self.agent_id = self._identity.agent_id
        return record

    async def _note_machine_boot(self) -> None:
        boot_id = machine_boot_id()
        self._power_held = boot_id != "" and boot_id == self._identities.machine_boot
        await self._identities.note_machine_boot(boot_id)

    def _wipe_if_dissolved(self) -> None:
        if self._dissolved is not None:
            wipe(self.config.data)

    async def _listen_http(self, parts: AsyncExitStack) -> Any:
        choice = PortChoice(
            "--http-port", self.config.http_port, self._identity.http_port or None, DEFAULT_HTTP_PORT
        )
        listener = await listen(choice, self.config.bind, lambda port: http_socket(self.config.bind, port))
        parts.callback(listener.close)
        port = int(listener.getsockname()[1])
        if choice.has_stepped(port):
            taken = choice.kept or choice.default
            logger.info("port %d is in use: HTTP listens on %d (--agent %s)", taken, port, self._url_at(port))
        self.url = self._url_at(port)
        self._kept_http_port = self._identity.http_port
        self._identity = replace(self._identity, http_port=port)
        return listener

    def _make_links_and_roster(self, parts: AsyncExitStack) -> None:
        interval_ms = self.config.heartbeat_interval_ms
        self._links = Links(
            agent_id=self.agent_id,
            boot_nonce=self._boot_nonce,
            cluster_id=self._identity.cluster_id,
            clock=self._clock,
            rng=self._rng,
            config=LinkConfig(
                heartbeat_interval_ms=interval_ms,
                silence_after_loss_ms=2 * interval_ms,
                silence_after_ms=max(self.config.election_timeout_ms, 2 * interval_ms),
            ),
        )
        if is_own_address(self.config.advertised_address):
            self._links.own_address = self.config.advertised_address
        self._links.on_append_sent = expects_answers(asyncio.get_running_loop())
        self.roster = Roster(
            agent_id=self.agent_id, cluster=self.config.cluster, links=self._links, watch=self._watch
        )
        self._event_sources = EventSources(self._events, self.roster, self._watch)
        parts.callback(self.roster.stop)

    def _make_broker(self, stop: StopRequest) -> None:
        self.broker = Broker(
            config=self.config,
            agent_id=self.agent_id,
            name=self._identity.name,
            url=self.url,
            version=__version__,
            disk_kind=self._disk.kind,
            roster=self.roster,
            links=self._links,
            watch=self._watch,
            clock=self._clock,
            request_stop=stop.ask,
            join=lambda addresses: self.membership.join(addresses),
            force_leave=lambda name: self.membership.force_leave(name),
            draining=self._draining,
            events=self._events,
            keys=KeyService(lambda: getattr(self, "membership", None)),
        )

    async def _look_for_twin(self) -> None:
        """Whoever copied the directory of a running agent starts it beside that agent, as a rule: there its
        ports are taken."""
        self._life = Life(self.agent_id, self._boot, self.broker.started_at)
        self._twins = TwinWatch(self._life, self.config.data)
        if self._kept_http_port not in (0, self._identity.http_port):
            await self._twins.check(self._url_at(self._kept_http_port))

    def _url_at(self, port: int) -> str:
        address = self.config.advertised_address
        return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"

    async def _serve_http(self, parts: AsyncExitStack, listener: Any) -> None:
        runner = make_runner(self.broker, limits_for(open_files()))
        await runner.setup()
        parts.push_async_callback(runner.cleanup)
        await web.SockSite(runner, listener).start()

    async def _start_gossip(self, parts: AsyncExitStack) -> Meeting:
        tags = first_tags(
            version=__version__,
            name=self._identity.name,
            cluster=self.config.cluster,
            cluster_id=self._identity.cluster_id,
            url=self.url,
            domain=self.config.failure_domain or host_name(socket.gethostname()),
            weight=self.config.weight,
            boot=self._boot,
            drained=self._draining.wanted,
        )
        self.membership = await enter(
            Entry(
                config=self.config,
                own=self._life,
                tags=tags,
                kept_port=self._identity.gossip_port,
                keyring=self._keyring,
                clocks=self._snapshot.clocks,
                rng=self._rng,
                on_event=self._on_member_event,
                on_user_event=self.roster.on_pool_event,
            )
        )
        parts.push_async_callback(self.membership.stop)
        self._goodbyes.append(self.membership.leave)
        if not self.config.uses_serf:
            self._identity = replace(self._identity, gossip_port=self.membership.port)
            self.broker.gossip_is_open = self._keyring is None and not self.config.is_loopback
        await self._identities.save(self._identity)
        self.roster.attach(self.membership, tags)
        logger.info(
            "%s at %s, gossip port %d, cluster %s, data %s (%s)",
            self._identity.name,
            self.url,
            self.membership.port,
            self.config.cluster,
            self.config.data,
            self._disk.kind,
        )
        return await self._start_meeting(parts)

    def _on_member_event(self, event: MemberEvent) -> None:
        self._twins.on_event(event)
        self._event_sources.on_member_event(event)
        self.roster.changed()

    async def _start_meeting(self, parts: AsyncExitStack) -> Meeting:
        async def remember(snapshot: Snapshot) -> None:
            await save_snapshot(self._disk, self.config.data, snapshot)

        meeting = Meeting(
            agent_id=self.agent_id,
            cluster=self.config.cluster,
            seeds=self.config.seeds,
            remembered=self._snapshot.peers,
            roster=self.roster,
            rng=self._rng,
            join=self.membership.join,
            clocks=lambda: self.membership.clocks,
            remember=remember,
        )
        if self.config.uses_mdns:
            discovery = await start_discovery(self.membership, self.config, meeting)
            if discovery is not None:
                parts.push_async_callback(discovery.stop)
        return meeting

    # ---- the cluster -----------------------------------------------------------------------------

    async def _find_cluster(self, record: ClusterRecord | None) -> ClusterRecord:
        """As the directory says, or as bootstrap decides."""
        starter = Starter(
            config=self.config,
            agent_id=self.agent_id,
            roster=self.roster,
            clock=self._clock,
            rng=self._rng,
            adopt=self._adopt,
            say=self._say_waiting,
        )
        if record is None and self._identity.cluster_id is None:
            record = await starter.find_cluster()
        elif record is None:
            assert self._identity.cluster_id is not None
            cluster_id = self._identity.cluster_id
            record = await starter.recover_birth(cluster_id, lambda: self._own_birth(cluster_id))
            await self._save_record(record)
        self.broker.catalog_birth = record.catalog_birth
        self.roster.set_cluster(record.cluster_id)
        return record

    async def _own_birth(self, cluster_id: bytes) -> tuple[str, ...] | None:
        if not self._identities.has_registry:
            return None
        return await birth_from_log(self._disk, self.config.data, cluster_id)

    def _say_waiting(self, reason: str) -> None:
        self.broker.waiting_reason = reason
        if reason != self._last_said:
            self._last_said = reason
            logger.info("waiting: %s", reason)

    async def _save_record(self, record: ClusterRecord) -> None:
        await save_cluster(self._disk, self.config.data, record)

    async def _adopt(self, record: ClusterRecord) -> None:
        """First the record, then the identity that makes it binding."""
        await self._save_record(record)
        self._identity = replace(self._identity, cluster_id=record.cluster_id)
        await self._identities.save(self._identity)

    async def _start_cluster(
        self, parts: AsyncExitStack, record: ClusterRecord
    ) -> tuple[Joined, Holding, Guard]:
        self._links.cluster_id = record.cluster_id
        routes = self._make_routes()
        host = await self._make_host(parts, record.cluster_id, routes.group_changed)
        self.host = host
        self._goodbyes.append(self._hand_over)
        catalog = self._make_catalog(host, record)
        holding = Holding(
            agent_id=self.agent_id,
            host=host,
            catalog=catalog,
            roster=self.roster,
            routes=routes.table,
        )
        host.mender.holders = lambda group: routes.table.claims_about(group).keys()
        self._register_messages(catalog, routes, holding)
        self.roster.listen(routes.look)
        self.roster.listen_to_announcements(routes.on_announcement)
        self.roster.listen(catalog.look)
        self.roster.listen(lambda: host.set_colocated(self.roster.colocated()))
        await self._links.start()
        parts.push_async_callback(self._links.stop)
        parts.push_async_callback(host.stop)
        scrubber = Scrubber(
            host, self._disk, self.config.data, self._clock, bytes_per_s=self.config.scrub_bytes_per_s
        )
        scrubber.on_damage = host.mender.found
        joined = Joined(host, catalog, routes, scrubber)
        await catalog.start()
        self.broker.attach(joined)
        guard = Guard(
            roster=self.roster,
            catalog=catalog,
            clock=self._clock,
            timeout_ms=self.config.dissolve_timeout_ms,
            leads_catalog=self._leads_catalog,
        )
        return joined, holding, guard

    def _make_mover(self, joined: Joined) -> Mover:
        return Mover(
            roster=self.roster,
            host=joined.host,
            catalog=lambda: joined.catalog.catalog,
            now_ms=self._clock.now_ms,
            replace_after_ms=self.config.replace_after_ms,
            losses=self._losses,
        )

    def _duties(self, joined: Joined) -> dict[str, Coroutine[Any, Any, None]]:
        return duties(
            joined=joined,
            roster=self.roster,
            links=self._links,
            clock=self._clock,
            catalog_leader=self._catalog_leader_id,
            replace_after_ms=self.config.replace_after_ms,
        )

    def _catalog_leader_id(self) -> str | None:
        leader = self.broker.catalog_leader()
        return None if leader is None else leader.agent_id

    def _leads_catalog(self) -> bool:
        leader = self.broker.catalog_leader()
        return leader is not None and leader.local

    def _register_messages(self, catalog: CatalogService, routes: RouteExchange, holding: Holding) -> None:
        self._links.handle_request(PeerMessage.CATALOG_PULL, catalog.on_pull)
        self._links.handle_request(PeerMessage.CATALOG_AWAIT, catalog.on_await)
        self._links.handle_request(PeerMessage.CATALOG_CONFIRM, catalog.on_confirm)
        self._links.handle_request(PeerMessage.CATALOG_KEPT, catalog.keeping.on_kept)
        self._links.handle_request(PeerMessage.GROUP_HOLD, holding.on_hold)
        self._links.handle_request(PeerMessage.GROUP_CONFIGURATION, holding.on_ask)
        self._links.handle_request(PeerMessage.GROUP_LOST, self._losses.on_lost)
        self._links.handle(PeerMessage.CATALOG_HINT, catalog.on_hint)
        self._links.handle_request(PeerMessage.ROUTES_PULL, routes.on_pull)
        self._links.handle(PeerMessage.ROUTES_HINT, routes.on_hint)

    async def _tell_events(self, joined: Joined) -> None:
        await self._event_sources.run(joined.routes.table, lambda: joined.catalog.catalog)

    async def _tell_catalog_version(self, catalog: CatalogService) -> None:
        while True:
            epoch, offset = catalog.published
            self.roster.set_catalog(catalog.published, has_topics=bool(catalog.catalog.topics))
            await catalog.wait_published(CatalogVersion(epoch, offset + 1), 60_000)

    async def _announce(self, on_ready: Callable[[Agent], None]) -> None:
        said_at_ms = self._clock.now_ms()
        while not self.broker.readiness()[0]:
            await self._watch.wait_next(READY_POLL_MS)
            if self._clock.now_ms() - said_at_ms >= UNREADY_SAID_MS:
                said_at_ms = self._clock.now_ms()
                self._say_unready()
        logger.info("ready: %s (%s, cluster %s)", self.url, self._identity.name, self.config.cluster)
        on_ready(self)

    def _say_unready(self) -> None:
        checks = self.broker.readiness()[1].items()
        reason = "; ".join(f"{check}: {state}" for check, state in checks if state != "ok")
        if reason and reason != self._last_said:
            self._last_said = reason
            logger.warning("not ready yet: %s", reason)

    async def _make_host(
        self, parts: AsyncExitStack, cluster_id: bytes, on_change: Callable[[GroupId], None]
    ) -> Host:
        try:
            was_made = self._identities.has_registry
            registry = await ReplicaRegistry.open(self._disk, self.config.data, was_made=was_made)
            parts.push_async_callback(registry.close)
            await self._identities.note_registry()
            hard_states = await HardStateFile.open(self._disk, self.config.data)
            parts.push_async_callback(hard_states.close)
        except (IdentityError, StoreError) as error:
            raise StartError(str(error)) from None
        return Host(
            agent_id=self.agent_id,
            boot_nonce=self._boot_nonce,
            cluster_id=cluster_id,
            disk=self._disk,
            data_directory=self.config.data,
            registry=registry,
            hard_states=hard_states,
            links=self._links,
            clock=self._clock,
            rng=self._rng,
            raft_config=RaftConfig(
                heartbeat_interval_ms=self.config.heartbeat_interval_ms,
                election_timeout_ms=self.config.election_timeout_ms,
                quiet_after_ms=self.config.election_timeout_ms,
                sync_stall_ms=2 * self.config.election_timeout_ms,
                spare_delay_ms=min(SPARE_DELAY_MS, self.config.heartbeat_interval_ms),
            ),
            log_config=LogConfig(),
            on_change=on_change,
            power_held=self._power_held,
        )

    def _make_routes(self) -> RouteExchange:
        return RouteExchange(
            agent_id=self.agent_id,
            boot=self._boot,
            peers=self.roster,
            watch=self._watch,
            rng=self._rng,
            claims=self._claims,
            claim=self._claim,
            touched=self._touched,
            publish=self.roster.set_placement,
            announce=self.roster.announce_placement,
        )

    def _claims(self) -> Iterator[Claim]:
        for status in () if self.host is None else self.host.statuses():
            claim = claim_of(self.agent_id, status)
            if claim is not None:
                yield claim

    def _touched(self) -> list[GroupId]:
        return [] if self.host is None else [replica.group for replica in self.host.turns.take_touched()]

    def _claim(self, group: GroupId) -> Claim | None:
        if self.host is None or not self.host.has(group):
            return None
        return claim_of(self.agent_id, self.host.status(group))

    def _make_catalog(self, host: Host, record: ClusterRecord) -> CatalogService:
        return CatalogService(
            agent_id=self.agent_id,
            record=record,
            groups=host,
            peers=self.roster,
            watch=self._watch,
            rng=self._rng,
            save=self._save_record,
            catalog_leader=self._catalog_leader_id,
            now_us=self._clock.now_us,
        )


# ---- the process -------------------------------------------------------------------------------------------


async def run_agent(config: AgentConfig, ready: Callable[[Agent], None] | None = None) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. `ready` is called once the agent can serve.

    The first signal hands leadership over and leaves, the second stops at once. What goes wrong is one line.
    """
    if config.cores > 1:
        return await run_cores(config)
    allow_open_files()
    stop = StopRequest()
    with asked_by_signals(stop.ask):
        try:
            while await Agent(config).run(stop, ready) is Outcome.DISSOLVED:
                logger.info("starting again with an empty directory, to join the other cluster")
        except (StartError, PortError) as error:
            logger.error("%s", error)
            return EXIT_FAILED
        except ConfigError as error:
            logger.error("%s", error)
            return EXIT_USAGE
        except BaseExceptionGroup as group:
            report(group)
            return EXIT_FAILED
    return EXIT_FAILED if stop.at_once.is_set() else EXIT_OK
