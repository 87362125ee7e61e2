"""The third stage of an agent: it belongs to a cluster, holds replicas, and knows who leads what.

Law of this file: it finds the cluster and builds the parts that exist only there. It decides nothing about
records, members or leaders.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shoal.agent.audit.post import AuditPost
from shoal.agent.bootstrap.cluster_finder import ClusterFinder
from shoal.agent.bootstrap.empty_cluster_guard import EmptyClusterGuard
from shoal.agent.bootstrap.outgrown_watch import OutgrownWatch
from shoal.agent.delivery.letter_sender import LetterBox
from shoal.agent.durable.catalog_version import CatalogVersion
from shoal.agent.durable.identity import HardStateFile, ReplicaRegistry
from shoal.agent.durable.ids import GroupId, IdentityError
from shoal.agent.host.config import HostConfig
from shoal.agent.host.host import Host
from shoal.agent.host.scrubber import Scrubber
from shoal.agent.levels import Level
from shoal.agent.node import Node, Pool
from shoal.agent.partition.opener import Stores
from shoal.agent.peers.messages import PeerMessage
from shoal.agent.placement.assignments import Assignments
from shoal.agent.placement.lost_replicas import LostReplicas
from shoal.agent.placement.rebalancer import Rebalancer
from shoal.agent.process.clock import repeat
from shoal.agent.process.errors import StartError
from shoal.agent.routing.exchange import RouteExchange
from shoal.agent.routing.table import Claim, claim_of
from shoal.agent.service.cluster_view import Joined
from shoal.agent.service.letters import DeadLetters
from shoal.agent.topics.births import BirthTelling
from shoal.agent.topics.catalog_founders import birth_from_log
from shoal.agent.topics.catalog_service import CatalogService
from shoal.agent.topics.catalog_upkeep import UPKEEP_INTERVAL_S, CatalogUpkeep, LevelUpkeep
from shoal.agent.topics.cluster_file import ClusterRecord, save_cluster
from shoal.agent.topics.local_catalog import LocalCatalog
from shoal.replication.config import RaftConfig
from shoal.segment_store.errors import StoreError

SPARE_DELAY_MS = 5  # several small appends in a row, and nothing beside an election
CATALOG_TOLD_MS = 60_000  # how long the tag of the catalog's version stays as it is when nothing changes

logger = logging.getLogger("shoal.agent")


async def find_cluster(node: Node, pool: Pool, say: Callable[[str], None]) -> ClusterRecord:
    """As the directory says, or as bootstrap decides; `say` is told why the agent waits."""
    directory, config = node.directory, node.config

    save_record = partial(save_cluster, directory.disk, config.data)

    async def adopt(record: ClusterRecord) -> None:
        """First the record, then the identity that makes it binding."""
        await save_record(record)
        await directory.identities.save(replace(pool.identity, cluster_id=record.cluster_id))

    finder = ClusterFinder(
        config=config,
        agent_id=node.agent_id,
        roster=node.roster,
        clock=node.clock,
        rng=node.rng,
        adopt=adopt,
        say=say,
        levels=node.levels,
    )
    record, cluster_id = directory.record, directory.identity.cluster_id
    if record is None and cluster_id is None:
        record = await finder.find_cluster()
    elif record is None:
        assert cluster_id is not None

        async def own_birth() -> tuple[str, ...] | None:
            if not directory.identities.has_registry:
                return None
            return await birth_from_log(directory.disk, config.data, cluster_id)

        record = await finder.recover_birth(cluster_id, own_birth)
        await save_record(record)
    node.broker.catalog_birth = record.catalog_birth
    node.roster.set_cluster(record.cluster_id)
    return record


@dataclass(frozen=True, slots=True)
class Cluster:
    """An agent's parts of its cluster."""

    node: Node
    joined: Joined
    holding: Assignments
    lost_replicas: LostReplicas
    guard: EmptyClusterGuard
    outgrown: OutgrownWatch
    audit: AuditPost

    async def start(self, parts: AsyncExitStack) -> None:
        """Listen to peers and members, open the catalog, and let requests in."""
        node, joined = self.node, self.joined
        self._register_messages()
        node.roster.listen(joined.routes.look)
        node.roster.on_announcement = joined.routes.on_announcement
        node.roster.listen(joined.catalog.exchange.look)
        node.roster.listen(lambda: joined.host.set_colocated(node.roster.colocated()))
        await node.links.start()
        parts.push_async_callback(node.links.stop)
        parts.push_async_callback(joined.host.stop)
        await joined.catalog.start()
        node.broker.attach(joined)

    def _register_messages(self) -> None:
        links, catalog, routes = self.node.links, self.joined.catalog, self.joined.routes
        links.handle_request(PeerMessage.CATALOG_PULL, catalog.exchange.on_pull)
        links.handle_request(PeerMessage.CATALOG_AWAIT, catalog.exchange.on_await)
        links.handle_request(PeerMessage.CATALOG_CONFIRM, catalog.on_confirm)
        links.handle_request(PeerMessage.CATALOG_KEPT, catalog.kept_replicas.on_kept)
        links.handle_request(PeerMessage.GROUP_HOLD, self.holding.on_hold)
        links.handle_request(PeerMessage.GROUP_CONFIGURATION, self.holding.on_ask)
        links.handle_request(PeerMessage.GROUP_LOST, self.lost_replicas.on_lost)
        links.handle(PeerMessage.CATALOG_HINT, catalog.exchange.on_hint)
        links.handle_request(PeerMessage.LETTERS, self.joined.letters.on_letter)
        links.handle_request(PeerMessage.LETTERS_READ, self.joined.letters.on_read)
        links.handle_request(PeerMessage.AUDIT, self.audit.on_audit)
        links.handle_request(PeerMessage.ROUTES_PULL, routes.on_pull)
        links.handle(PeerMessage.ROUTES_HINT, routes.on_hint)
        links.on_level = self._on_level

    def _on_level(self, level: Level) -> None:
        """Another agent says it of the cluster, and this one knows of a lower one."""
        if level > self.node.levels.highest:
            self.outgrown.suspect()
        else:
            self.joined.catalog.note_level(level)

    def tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        """All that runs for the agent's life, by name."""
        node, joined = self.node, self.joined
        rebalancer = Rebalancer(
            roster=node.roster,
            host=joined.host,
            catalog=lambda: joined.catalog.catalog,
            now_ms=node.clock.now_ms,
            replace_after_ms=lambda: node.config.replace_after_ms,
            lost_replicas=self.lost_replicas,
        )
        births = BirthTelling(joined.host.newborns, joined.catalog, node.roster)
        node.links.handle_request(PeerMessage.CATALOG_BORN, births.on_born)
        upkeep = CatalogUpkeep(
            node.roster,
            joined.catalog,
            node.clock.now_ms,
            replace_after_ms=lambda: node.config.replace_after_ms,
        )
        levels = LevelUpkeep(
            node.roster,
            joined.catalog,
            node.clock.now_ms,
            holders=joined.routes.table.holders,
            replace_after_ms=lambda: node.config.replace_after_ms,
            is_founder=node.directory.identity.cluster_id is None and node.agent_id in joined.catalog.birth,
        )
        return {
            "host": joined.host.run(),
            "catalog": joined.catalog.run(),
            "routes": joined.routes.run(),
            "events": node.event_sources.run(joined.routes.table, lambda: joined.catalog.catalog),
            "group events": node.event_sources.groups.run(),
            "catalog version": self._tell_catalog_version(),
            "rebalancer": rebalancer.run(),
            "holding": self.holding.run(),
            "scrubber": joined.scrubber.run(),
            "births": births.run(),
            "upkeep": repeat(UPKEEP_INTERVAL_S, upkeep.look),
            "level": repeat(UPKEEP_INTERVAL_S, levels.look),
            "outgrown": self.outgrown.run(),
            "audit": self.audit.run(),
        }

    async def _tell_catalog_version(self) -> None:
        catalog, roster = self.joined.catalog, self.node.roster
        while True:
            epoch, offset = published = catalog.local.published
            roster.set_catalog(published, has_topics=bool(catalog.catalog.topics))
            roster.set_level(catalog.local.level)
            await catalog.local.wait_published(CatalogVersion(epoch, offset + 1), CATALOG_TOLD_MS)


async def make_cluster(node: Node, parts: AsyncExitStack, record: ClusterRecord) -> Cluster:
    """Nothing of it has started. Raises StartError when the stored state cannot be opened."""
    node.roster.set_level(record.level)
    node.links.cluster_id = record.cluster_id
    box = LetterBox()
    host = await _make_host(node, parts, record.cluster_id, lambda group: routes.group_changed(group), box)
    routes = _make_routes(node, host)
    catalog = _make_catalog(node, host, record)

    def leader(group: GroupId) -> str | None:
        claim = routes.table.leadership(group, node.roster.is_live)
        return None if claim is None else claim.leader

    letters = box.post = DeadLetters(host, node.roster, lambda: catalog.catalog, leader)
    node.names.find_topic = lambda topic_id: catalog.catalog.name_of(topic_id)
    trail = node.broker.trail
    if trail is not None:
        now_ms = node.clock.now_ms
        catalog.on_security = lambda place, command: trail.committed(place, command, now_ms())
    holding = Assignments(host=host, catalog=catalog, roster=node.roster, routes=routes.table)
    host.log_repair.holders = lambda group: routes.table.claims_about(group).keys()
    scrubber = Scrubber(
        host,
        node.directory.disk,
        node.config.data,
        node.clock,
        bytes_per_s=node.config.scrub_bytes_per_s,
    )
    guard = EmptyClusterGuard(
        roster=node.roster,
        catalog=catalog,
        clock=node.clock,
        timeout_ms=node.config.dissolve_timeout_ms,
    )
    return Cluster(
        node,
        Joined(host, catalog, routes, scrubber, letters),
        holding,
        LostReplicas(node.clock.now_ms),
        guard,
        OutgrownWatch(record.cluster_id, node.roster, node.rng, node.levels),
        AuditPost(trail, host, node.roster, catalog, leader, node.broker.make_audit_topic, node.clock),
    )


async def _make_host(
    node: Node,
    parts: AsyncExitStack,
    cluster_id: bytes,
    on_change: Callable[[GroupId], None],
    letters: LetterBox,
) -> Host:
    directory, config = node.directory, node.config
    try:
        was_made = directory.identities.has_registry
        registry = await ReplicaRegistry.open(directory.disk, config.data, was_made=was_made)
        parts.push_async_callback(registry.close)
        await directory.identities.note_registry()
        hard_states = await HardStateFile.open(directory.disk, config.data)
        parts.push_async_callback(hard_states.close)
    except (IdentityError, StoreError) as error:
        raise StartError(str(error)) from None
    raft_config = RaftConfig(
        heartbeat_interval_ms=config.heartbeat_interval_ms,
        election_timeout_ms=config.election_timeout_ms,
        quiet_after_ms=config.election_timeout_ms,
        sync_stall_ms=2 * config.election_timeout_ms,
        spare_delay_ms=min(SPARE_DELAY_MS, config.heartbeat_interval_ms),
    )
    return Host(
        agent_id=node.agent_id,
        stores=Stores(directory.disk, config.data, cluster_id, registry, hard_states),
        links=node.links,
        clock=node.clock,
        rng=node.rng,
        config=HostConfig(
            raft_config,
            power_held=directory.power_held,
            measures=node.measures,
            letters=letters,
            tell_news=node.event_sources.groups.tell,
        ),
        on_change=on_change,
    )


def _make_routes(node: Node, host: Host) -> RouteExchange:
    def claim(group: GroupId) -> Claim | None:
        return claim_of(node.agent_id, host.status(group)) if host.has(group) else None

    return RouteExchange(
        peers=node.roster,
        watch=node.watch,
        rng=node.rng,
        held=host.groups,
        claim=claim,
        touched=lambda: [replica.group for replica in host.turns.take_touched()],
    )


def _make_catalog(node: Node, host: Host, record: ClusterRecord) -> CatalogService:
    def leader() -> str | None:
        found = node.broker.catalog_leader()
        return None if found is None else found.agent_id

    catalog = CatalogService(
        local=LocalCatalog(record, host, partial(save_cluster, node.directory.disk, node.config.data)),
        groups=host,
        peers=node.roster,
        watch=node.watch,
        rng=node.rng,
        leader=leader,
        now_us=node.clock.now_us,
        levels=node.levels,
    )
    catalog.is_current = not node.config.asks_for_credentials
    return catalog
