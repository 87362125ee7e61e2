"""What an agent can do, as HTTP sees it: documents, topics, and records where they are led.

Law of this file: use cases only. Facts come from the roster, the catalog, the routing table and the host;
nothing here decides who leads or what is committed. Every fault is a ShoalError. Until the agent belongs to
a cluster everything but documents about itself is `not-ready`.
"""

from __future__ import annotations

import os
from asyncio import BaseProtocol, Transport
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.agent.config import AgentConfig, ConfigError, parse_host_port
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.events.change_counter import Watch
from shoal.agent.events.feed import EventFeed
from shoal.agent.host.unsafe_recovery import check_lineage
from shoal.agent.interface import Document
from shoal.agent.members import tags
from shoal.agent.members.gossip_keys import KeyService
from shoal.agent.members.roster import Roster
from shoal.agent.peers.links import Links
from shoal.agent.placement.drain import Draining
from shoal.agent.process.clock import Clock
from shoal.agent.service import documents
from shoal.agent.service.cluster_view import Joined
from shoal.agent.service.metrics import render_metrics
from shoal.agent.service.readiness import catalog_check, disk_check
from shoal.agent.service.records import RecordService
from shoal.agent.service.topic_admin import TopicAdmin
from shoal.agent.topics.catalog import TopicEntry
from shoal.errors import ShoalError
from shoal.format.timestamps import format_time
from shoal.membership.interface import JoinError, Member

MAX_WAIT_MS = 60_000  # of a blocking query, as docs/http.md says
MAX_DAMAGE_SHOWN = 100  # ranges of one partition: whoever has more needs no list of them


class Broker(RecordService):
    """One per agent: all that agent/interface.py asks for."""

    def __init__(
        self,
        *,
        config: AgentConfig,
        agent_id: str,
        name: str,
        url: str,
        version: str,
        disk_kind: str,
        roster: Roster,
        links: Links,
        watch: Watch,
        clock: Clock,
        request_stop: Callable[[], None],
        join: Callable[[Sequence[tuple[str, int]]], Any],
        force_leave: Callable[[str], None],
        draining: Draining,
        keys: KeyService,
        events: EventFeed,
    ) -> None:
        super().__init__(
            config=config, agent_id=agent_id, name=name, url=url, roster=roster, watch=watch, clock=clock
        )
        self.events = events
        self.keys = keys
        self.gossip_is_open = False  # without a key, and not on loopback alone
        self.catalog_birth: tuple[str, ...] = ()
        self._version = version
        self._disk_kind = disk_kind
        self._links = links
        self._started_ms = clock.now_ms()
        self.started_at = format_time(clock.now_us())  # of the wall: compared between hosts
        self._request_stop = request_stop
        self._join = join
        self._force_leave = force_leave
        self._draining = draining
        self._admin = TopicAdmin(
            roster=roster,
            watch=watch,
            clock=clock,
            catalog_leader=self.catalog_leader,
            leader_of=self._leader_of,
            document=self._topic_document,
            holders=self._holders,
            asked=f"cluster {config.cluster} (agent {name} was asked)",
            require_room=lambda: self._parts().host.free_space.require(),
        )

    # ---- documents -------------------------------------------------------------------------------

    async def members(self, after_version: str | None, wait_ms: int) -> Document:
        """GET /v1/members; blocks until the version differs from `after_version`, at most wait_ms."""
        await self._watch.wait_after(after_version, min(wait_ms, MAX_WAIT_MS))
        self._freshen()
        version = self._watch.version
        body = documents.members_document(
            self._roster.members(),
            cluster=self.config.cluster,
            cluster_id=self._roster.cluster_id,
            version=version,
            routes=self._routes,
            catalog=self._catalog,
            is_live=self._roster.is_live,
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
        body = documents.routes_document(
            [catalog.topics[name] for name in names],
            version=version,
            routes=self._routes,
            is_live=self._roster.is_live,
            urls=self._roster.urls(),
        )
        return Document(version, body)

    def agent_document(self) -> dict[str, Any]:
        """GET /v1/agent. `catalog.birth` is what an agent that joins must know (safety 1)."""
        cluster_id = self._roster.cluster_id
        return {
            "id": self.agent_id,
            "name": self.name,
            "version": self._version,
            "cluster": self.config.cluster,
            "cluster_id": None if cluster_id is None else cluster_id.hex(),
            "url": self.url,
            "disk": self._disk_kind,
            "pid": os.getpid(),
            "run": self._watch.run,
            "started_at": self.started_at,
            "uptime_seconds": (self._clock.now_ms() - self._started_ms) // 1_000,
            "catalog": None
            if not self.catalog_birth
            else documents.catalog_document(self.catalog_birth, self._catalog),
            "damage": self._damage(),
            "not_serving": self._not_serving(),
            "cleared_writes": []
            if self._joined is None
            else documents.cleared_here(self._joined.host.cleared_writes, self._catalog),
            "kept": [] if self._joined is None else documents.kept_here(self._joined.catalog.keeping.here()),
            "gossip_is_open": self.gossip_is_open,
            "configuration": self.config.as_document(),
        }

    def readiness(self) -> tuple[bool, dict[str, str]]:
        """Whether this agent can serve, and the state of each check ("ok" or why not)."""
        joined = self._joined
        checks = {"joined": "ok" if joined is not None else self.waiting_reason}
        checks["catalog"] = "not joined yet" if joined is None else self._catalog_state(joined)
        checks["disk"] = "not opened yet" if joined is None else disk_check(joined.host)
        if self.stopping:
            checks["running"] = "stopping"
        return all(state == "ok" for state in checks.values()), checks

    def _catalog_state(self, joined: Joined) -> str:
        versions = self._roster.catalog_versions().values()
        return catalog_check(joined.catalog, joined.host, self.catalog_leader() is not None, versions)

    def metrics(self) -> bytes:
        """GET /metrics, Prometheus text."""
        joined = self._joined
        return render_metrics(
            version=self._version,
            disk_kind=self._disk_kind,
            members=[(member.status, tags.is_shoal(member)) for member in self._roster.members()],
            topics=len(self._catalog.topics),
            statuses=[] if joined is None else self._named_statuses(joined),
            dropped_frames=self._links.dropped_frames,
            uptime_ms=self._clock.now_ms() - self._started_ms,
            scrub=None if joined is None else joined.scrubber.statistics,
            cleared_writes=0 if joined is None else len(joined.host.cleared_writes),
            kept_topics=0 if joined is None else len(joined.catalog.keeping.here()),
        )

    def _damage(self) -> list[dict[str, Any]]:
        """What of the logs here does not verify."""
        statuses = [] if self._joined is None else self._named_statuses(self._joined)
        return [
            documents.damage_document(topic, partition, item)
            for topic, partition, status in statuses
            for item in status.damaged_ranges[:MAX_DAMAGE_SHOWN]
        ]

    def _not_serving(self) -> list[dict[str, Any]]:
        """Replicas here that are lost, have failed, or are being mended or replaced."""
        statuses = [] if self._joined is None else self._named_statuses(self._joined)
        return [
            {"topic": topic, "partition": partition, "state": status.state, "reason": status.reason}
            for topic, partition, status in statuses
            if status.state != "active"
        ]

    def _named_statuses(self, joined: Joined) -> list[tuple[str, int, Any]]:
        named = []
        for status in joined.host.statuses():
            name = documents.topic_name(status.group, self._catalog)
            if name is not None:
                named.append((name, status.group.partition, status))
        return sorted(named, key=lambda item: item[:2])

    # ---- membership ------------------------------------------------------------------------------

    def force_leave(self, name_or_id: str) -> None:
        """Take a failed member for one that left. ShoalError unknown-member."""
        member = self._member(name_or_id)
        if member.name == self.agent_id:
            raise ShoalError("not-failed", "this is the agent itself, which lives: use leave")
        self._force_leave(member.name)

    def _member(self, name_or_id: str) -> Member:
        member = self._roster.find(name_or_id)
        if member is None:
            raise ShoalError("unknown-member", f"no member is called {name_or_id[:64]!r}")
        return member

    async def join(self, addresses: Sequence[str]) -> int:
        """Contact further gossip addresses; how many answered."""
        try:
            parsed = [parse_host_port(address, "address") for address in addresses]
        except ConfigError as error:
            raise ShoalError("bad-request", str(error)) from None
        try:
            return int(await self._join(parsed))
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
            raise ShoalError("internal", f"the wish cannot be kept: {error.strerror or error}") from None
        return self.drain_document()

    def drain_document(self) -> dict[str, Any]:
        """GET /v1/agent/drain."""
        return {"id": self.agent_id, "name": self.name} | self._draining.document(
            self._parts().host, self._catalog
        )

    async def recover(self, topic: str, partition: int, *, carry_out: bool) -> dict[str, Any]:
        """GET and POST /v1/agent/recover: what it would do, or what it did. Raises ShoalError."""
        host = self._parts().host
        if topic == documents.CATALOG_TOPIC:
            group = CATALOG_GROUP
            check_lineage(host, self._catalog.epoch)
        else:
            group = self._group(self.topic(topic), partition)
        assessment = await (host.recovery.recover(group) if carry_out else host.recovery.assess(group))
        return assessment.document(topic, partition, self._names())

    async def accept_peer(self, transport: Transport | None, http_protocol: BaseProtocol) -> None:
        """GET /v1/peer: the links take the connection over until its end."""
        await self._links.accept(transport, http_protocol)

    def knows_address(self, address: str) -> bool:
        """Whether a member lives there, as far as gossip says."""
        return self._roster.knows_address(address)

    # ---- topics ----------------------------------------------------------------------------------

    async def topics(self) -> list[dict[str, Any]]:
        """GET /v1/topics; counts are as fresh as the last acknowledged append."""
        await self._parts().routes.freshen_everywhere()
        return [
            documents.topic_summary(
                entry, routes=self._routes, is_live=self._roster.is_live, agents=self._roster.holders_count()
            )
            for _, entry in sorted(self._catalog.topics.items())
        ]

    async def topic_document(self, name: str) -> dict[str, Any]:
        """GET /v1/topics/{topic}; counts are as fresh as the last acknowledged append."""
        self.topic(name)
        await self._parts().routes.freshen_everywhere()
        self.topic(name)  # it may have been deleted meanwhile
        return self._topic_document(self._catalog.topics[name])

    def _topic_document(self, entry: TopicEntry) -> dict[str, Any]:
        self._freshen()
        return documents.topic_document(
            entry,
            routes=self._routes,
            is_live=self._roster.is_live,
            urls=self._roster.urls(),
            agents=self._roster.holders_count(),
        )

    def _holders(self, entry: TopicEntry) -> frozenset[str]:
        """Whoever claims a replica of the topic, or is said to have one."""
        found: set[str] = set()
        for partition in range(len(entry.partitions)):
            for agent_id, claim in self._routes.claims_about(GroupId(entry.topic_id, partition)).items():
                found.update((agent_id, *claim.voters, *claim.learners))
        return frozenset(found)

    async def create_topic(
        self, name: str, body: Mapping[str, Any] | None, timeout_ms: int
    ) -> tuple[bool, dict[str, Any]]:
        """PUT /v1/topics/{topic}; see TopicAdmin.create."""
        return await self._admin.create(self._parts().catalog, name, body, timeout_ms)

    async def change_topic(
        self, name: str, body: Mapping[str, Any] | None, timeout_ms: int
    ) -> dict[str, Any]:
        """PATCH /v1/topics/{topic}; see TopicAdmin.change."""
        return await self._admin.change(self._parts().catalog, name, body, timeout_ms)

    async def delete_topic(self, name: str, timeout_ms: int) -> None:
        """DELETE /v1/topics/{topic}; see TopicAdmin.delete."""
        await self._admin.delete(self._parts().catalog, name, timeout_ms)

    async def kept_topics(self) -> list[dict[str, Any]]:
        """GET /v1/kept-topics: what live agents hold of topics that the catalog does not know."""
        kept = await self._parts().catalog.keeping.everywhere()
        return [item.document(self._names()) for item in kept]

    async def adopt_topic(self, kept: str, name: str | None, timeout_ms: int) -> dict[str, Any]:
        """POST /v1/kept-topics/{kept}/adopt; see TopicAdmin.adopt."""
        return await self._admin.adopt(self._parts().catalog, kept, name, timeout_ms)
