"""An agent, as its front doors see it: documents and membership here, the rest beside it.

Law of this file: use cases only. Facts come from the roster, the catalog, the routing table and the host;
nothing here decides who leads or what is committed. Every fault is a ShoalError. Until the agent belongs to
a cluster everything but documents about itself is `not-ready`.
"""

from __future__ import annotations

import os
from asyncio import BaseProtocol, Transport
from collections.abc import Callable, Sequence
from typing import Any

from shoal.agent.config import ConfigError, parse_host_port
from shoal.agent.durable.catalog_version import recoveries
from shoal.agent.durable.ids import CATALOG_GROUP
from shoal.agent.events.change_counter import Watch
from shoal.agent.host.host import Host
from shoal.agent.host.unsafe_recovery import EPOCH_BITS
from shoal.agent.interface import Document
from shoal.agent.members.gossip_keys import KeyService
from shoal.agent.members.roster import Roster
from shoal.agent.metrics.exposition import Reading, Value
from shoal.agent.partition.status import ReplicaStatus, ServingState
from shoal.agent.peers.links import Links
from shoal.agent.placement.drain import Draining
from shoal.agent.process.clock import Clock
from shoal.agent.process.process_statistics import process_statistics
from shoal.agent.security.audit import AuditTrail
from shoal.agent.security.principals import Security
from shoal.agent.service import documents, metrics
from shoal.agent.service.cluster_view import AgentFacts, Joined
from shoal.agent.service.event_sources import EventSources
from shoal.agent.service.groups import GroupService
from shoal.agent.service.level_admin import LevelService
from shoal.agent.service.readiness import catalog_check, disk_check
from shoal.agent.service.security_admin import SecurityAdmin
from shoal.agent.service.tables import TableService
from shoal.errors import ShoalError
from shoal.format.timestamps import format_time
from shoal.membership.interface import JoinError

MAX_WAIT_MS = 60_000  # of a blocking query, as docs/http.md says
MAX_DAMAGE_SHOWN = 100  # ranges of one partition: a reader of more needs no list of them


class Broker(GroupService, TableService, LevelService, SecurityAdmin):
    """One per agent: all that agent/interface.py asks for."""

    def __init__(
        self,
        facts: AgentFacts,
        *,
        roster: Roster,
        links: Links,
        watch: Watch,
        clock: Clock,
        request_stop: Callable[[], None],
        draining: Draining,
        event_sources: EventSources,
    ) -> None:
        super().__init__(facts, roster, watch, clock)
        self.events = event_sources.feed
        self._event_sources = event_sources
        self.keys = KeyService(roster.gossip)
        self.catalog_birth: tuple[str, ...] = ()
        self.trail: AuditTrail | None = None
        """The audit of this agent; None where it asks for no credentials."""
        self._links = links
        self._started_ms = clock.now_ms()
        self.started_at = format_time(clock.now_us())  # of the wall: compared between hosts
        self._request_stop = request_stop
        self._draining = draining

    @property
    def security(self) -> Security | None:
        """Principals, roles and tokens; None while those known here may be from before a crash."""
        cluster = self._cluster
        return cluster.topics.security if isinstance(cluster, Joined) and cluster.catalog.is_current else None

    @property
    def is_alone(self) -> bool:
        """Whether this agent works for no cluster yet."""
        return not isinstance(self._cluster, Joined)

    def now_us(self) -> int:
        """Since the epoch, by the agent's clock."""
        return self._clock.now_us()

    # ---- documents -------------------------------------------------------------------------------

    async def members(self, after_version: str | None, wait_ms: int) -> Document:
        """GET /v1/members; blocks until the version differs from `after_version`, at most wait_ms."""
        await self._watch.wait_after(after_version, min(wait_ms, MAX_WAIT_MS))
        self._cluster.freshen()
        version = self._watch.version
        body = documents.members_document(
            self._view(),
            self._roster.members(),
            cluster=self.config.cluster,
            cluster_id=self._roster.cluster_id,
            version=version,
        )
        return Document(version, body)

    async def routes(self, topic: str | None, after_version: str | None, wait_ms: int) -> Document:
        """GET /v1/routes, of one topic or of all."""
        self._parts()
        if topic is not None:
            self.topic(topic)
        await self._watch.wait_after(after_version, min(wait_ms, MAX_WAIT_MS))
        version = self._watch.version
        catalog = self._catalog
        if topic is not None:
            self.topic(topic)
        names = sorted(catalog.topics) if topic is None else [topic]
        entries = [catalog.topics[name] for name in names]
        return Document(version, documents.routes_document(self._view(), entries, version=version))

    def agent_document(self) -> dict[str, Any]:
        """GET /v1/agent. `catalog.birth` is what an agent that joins must know (safety 1)."""
        cluster_id = self._roster.cluster_id
        statuses = self._named_statuses()
        return {
            "id": self.agent_id,
            "name": self.facts.name,
            "version": self.facts.version,
            "cluster": self.config.cluster,
            "cluster_id": None if cluster_id is None else cluster_id.hex(),
            "url": self.url,
            "disk": self.facts.disk_kind,
            "pid": os.getpid(),
            "run": self._watch.run,
            "started_at": self.started_at,
            "uptime_seconds": (self._clock.now_ms() - self._started_ms) // 1_000,
            "catalog": None
            if not self.catalog_birth
            else documents.catalog_document(self.catalog_birth, self._catalog, self._cluster.level),
            "damage": [
                documents.damage_document(topic, partition, item)
                for topic, partition, status in statuses
                for item in status.damaged_ranges[:MAX_DAMAGE_SHOWN]
            ],
            "not_serving": [
                {"topic": topic, "partition": partition, "state": status.state, "reason": status.reason}
                for topic, partition, status in statuses
                if status.state is not ServingState.ACTIVE
            ],
            "cleared_writes": documents.cleared_here(self._cluster.cleared_writes, self._catalog),
            "kept": documents.kept_here(self._cluster.kept()),
            "posture": self.facts.exposure.posture,
            "missing_protections": list(self.facts.exposure.missing),
            "configuration": self.config.as_document(),
        }

    def readiness(self) -> tuple[bool, dict[str, str]]:
        """Whether this agent can serve, and the state of each check ("ok" or why not)."""
        cluster = self._cluster
        if isinstance(cluster, Joined):
            versions = self._roster.catalog_versions().values()
            has_leader = self.catalog_leader() is not None
            catalog = catalog_check(cluster.catalog, cluster.host, has_leader, versions)
            checks = {"joined": "ok", "catalog": catalog, "disk": disk_check(cluster.host)}
        else:
            checks = {"joined": self.waiting_reason, "catalog": "not joined yet", "disk": "not opened yet"}
        if self.stopping:
            checks["running"] = "stopping"
        return all(state == "ok" for state in checks.values()), checks

    async def metrics(self, *, partitions: bool) -> Reading:
        """GET /metrics; with `partitions` a series for each replica here."""
        cluster, facts = self._cluster, self.facts
        reading: dict[str, Value] = {
            "shoal_build_info": {(facts.version, facts.disk_kind): 1},
            "shoal_insecure": int(facts.exposure.is_insecure),
            "shoal_uptime_seconds": (self._clock.now_ms() - self._started_ms) / 1_000,
            "shoal_understood_level": facts.levels.highest,
            "shoal_topics": len(cluster.topics.topics),
            "shoal_kept_topics": len(cluster.kept()),
            "shoal_cleared_writes_total": len(cluster.cleared_writes),
            **metrics.of_measures(facts.measures),
            **metrics.of_audit(self.trail),
            **metrics.of_tls(facts.measures, self._clock.now_us()),
            **metrics.of_members(self._roster.members()),
            **metrics.of_news(self._event_sources.news),
            **metrics.of_links(self._links),
            **metrics.of_process(process_statistics()),
        }
        if isinstance(cluster, Joined):
            reading["shoal_cluster_level"] = cluster.topics.level
            reading |= metrics.of_clocks(cluster.host.clocks)
            reading |= metrics.of_disk(cluster.host.free_space)
            reading |= metrics.of_scrub(cluster.scrubber.statistics)
            catalog = self._catalog
            reading |= await metrics.of_replicas(
                cluster.host, lambda group: documents.topic_name(group, catalog), partitions=partitions
            )
        return reading

    def _named_statuses(self) -> list[tuple[str, int, ReplicaStatus]]:
        named = []
        for status in self._cluster.statuses():
            name = documents.topic_name(status.group, self._catalog)
            if name is not None:
                named.append((name, status.group.partition, status))
        return sorted(named, key=lambda item: item[:2])

    # ---- membership ------------------------------------------------------------------------------

    def force_leave(self, name_or_id: str) -> None:
        """Take a failed member for one that left. ShoalError unknown-member."""
        member = self._roster.find(name_or_id)
        if member is None:
            raise ShoalError("unknown-member", f"no member is called {name_or_id[:64]!r}")
        if member.name == self.agent_id:
            raise ShoalError("not-failed", "this is the agent itself, which lives: use leave")
        self._roster.gossip().force_leave(member.name)

    async def join(self, addresses: Sequence[str]) -> int:
        """Contact further gossip addresses; how many answered."""
        try:
            parsed = [parse_host_port(address, "address") for address in addresses]
        except ConfigError as error:
            raise ShoalError("bad-request", str(error)) from None
        try:
            return await self._roster.gossip().join(parsed)
        except JoinError as error:
            raise ShoalError("unreachable", f"nobody answered: {error}") from None

    async def leave(self) -> None:
        """Leave gracefully, as SIGTERM does; returns at once."""
        self._request_stop()

    async def drain(self, *, undo: bool) -> dict[str, Any]:
        """Hold and lead nothing any more, or take that back; returns at once with how far it is."""
        self._parts()
        try:
            await (self._draining.undo() if undo else self._draining.begin())
        except OSError as error:
            raise ShoalError(
                "internal", f"cannot save the drain request: {error.strerror or error}"
            ) from None
        return self.drain_document()

    def drain_document(self) -> dict[str, Any]:
        """GET /v1/agent/drain."""
        return {"id": self.agent_id, "name": self.facts.name} | self._draining.document(
            self._parts().host, self._catalog
        )

    async def recover(self, topic: str, partition: int, *, carry_out: bool) -> dict[str, Any]:
        """GET and POST /v1/agent/recover: what it would do, or what it did. Raises ShoalError."""
        host = self._parts().host
        if topic == documents.CATALOG_TOPIC:
            group = CATALOG_GROUP
            _check_lineage(host, self._catalog.epoch)
        else:
            group = self._group(self.topic(topic), partition)
        assessment = await (host.recovery.recover(group) if carry_out else host.recovery.assess(group))
        return assessment.document(topic, partition, self._names())

    async def accept_peer(
        self, transport: Transport | None, http_protocol: BaseProtocol, terms: str | None
    ) -> None:
        """GET /v1/peer: the links take the connection over until its end."""
        await self._links.accept(transport, http_protocol, terms)

    def knows_address(self, address: str) -> bool:
        """Whether a member lives there, as far as gossip says."""
        return self._roster.knows_address(address)


def _check_lineage(host: Host, epoch: int) -> None:
    """epoch: of the catalog as it is known here. The replica of its log here may go on by force only while no
    other one did. ShoalError recovery-refused, no-leader (none is here)."""
    if not host.has(CATALOG_GROUP):
        raise ShoalError("no-leader", "this agent holds no replica of the catalog")
    if recoveries(epoch) > host.status(CATALOG_GROUP).term >> EPOCH_BITS:
        raise ShoalError(
            "recovery-refused",
            "the catalog was recovered at another agent already, and this one follows it: what its own log"
            " has was left behind",
        )
