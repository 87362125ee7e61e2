"""What an agent can do, as HTTP sees it: documents, topics, and records where they are led.

Law of this file: use cases only. Facts come from the roster, the catalog, the routing table and the host;
nothing here decides who leads or what is committed. Every fault is a ShoalError. Until the agent belongs to
a cluster everything but documents about itself is `not-ready`.
"""

from __future__ import annotations

import os
from asyncio import BaseProtocol, Transport
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import pyarrow as pa

from shoal.agent.config import AgentConfig, ConfigError, parse_host_port
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.events.change_counter import Watch
from shoal.agent.events.feed import EventFeed
from shoal.agent.host.host import Fetch, Host, Offsets
from shoal.agent.host.scrubber import Scrubber
from shoal.agent.host.unsafe_recovery import check_lineage
from shoal.agent.members import tags
from shoal.agent.members.gossip_keys import KeyService
from shoal.agent.members.roster import Roster
from shoal.agent.partition.appender import Acks
from shoal.agent.partition.pending import Answer, Appended
from shoal.agent.partition.reader import Admit
from shoal.agent.peers.links import Links
from shoal.agent.placement.drain import Draining
from shoal.agent.process.clock import Clock
from shoal.agent.routing.exchange import RouteExchange
from shoal.agent.routing.table import Leadership, RouteTable
from shoal.agent.service import documents
from shoal.agent.service.metrics import render_metrics
from shoal.agent.service.readiness import catalog_check, disk_check
from shoal.agent.service.time_search import offset_at_time
from shoal.agent.service.topic_admin import Leader, TopicAdmin, not_leader
from shoal.agent.topics.catalog import Catalog, TopicEntry
from shoal.agent.topics.catalog_service import CatalogService
from shoal.agent.topics.settings import TopicSettings, check_topic_form
from shoal.errors import ShoalError
from shoal.format.batch import DEFAULT_SCHEMA, Message, Offset, ProducerStamp
from shoal.format.hash_ranges import HashRange
from shoal.format.records import RecordColumns
from shoal.format.timestamps import format_time
from shoal.membership.interface import JoinError, Member

_group_id = lru_cache(maxsize=8192)(GroupId)  # asked for with every request, as topics are
MAX_WAIT_MS = 60_000  # of a blocking query, as docs/http.md says
MAX_DAMAGE_SHOWN = 100  # ranges of one partition: whoever has more needs no list of them
EMPTY_CATALOG = Catalog()
EMPTY_ROUTES = RouteTable()


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON document and the opaque version it had."""

    version: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Topic:
    """What a request needs to know of a topic."""

    name: str
    id: bytes
    kind: str
    schema: pa.Schema
    ranges: tuple[HashRange, ...]
    settings: TopicSettings


@dataclass(frozen=True, slots=True)
class Joined:
    """The parts that exist once the agent belongs to a cluster."""

    host: Host
    catalog: CatalogService
    routes: RouteExchange
    scrubber: Scrubber


class Broker:
    """One per agent. `attach` gives it the cluster; `stopping` makes it refuse new work."""

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
        self.config = config
        self.events = events
        self.keys = keys
        self.agent_id = agent_id
        self.name = name
        self.url = url
        self.stopping = False
        self.gossip_is_open = False  # without a key, and not on loopback alone
        self.waiting_reason = "starting"
        self.catalog_birth: tuple[str, ...] = ()
        self._version = version
        self._disk_kind = disk_kind
        self._roster = roster
        self._links = links
        self._watch = watch
        self._clock = clock
        self._started_ms = clock.now_ms()
        self.started_at = format_time(clock.now_us())  # of the wall: compared between hosts
        self._request_stop = request_stop
        self._join = join
        self._force_leave = force_leave
        self._draining = draining
        self._joined: Joined | None = None
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
        self._topics: dict[str, tuple[TopicEntry, Topic]] = {}  # asked for with every request; see topic()

    def attach(self, joined: Joined) -> None:
        """The agent belongs to a cluster."""
        self._joined = joined
        self._watch.changed()

    def _parts(self) -> Joined:
        if self.stopping:
            raise ShoalError("stopping", "this agent is leaving; ask another one")
        if self._joined is None:
            raise ShoalError("not-ready", f"this agent has no cluster yet: {self.waiting_reason}")
        return self._joined

    @property
    def _catalog(self) -> Catalog:
        return EMPTY_CATALOG if self._joined is None else self._joined.catalog.catalog

    @property
    def _routes(self) -> RouteTable:
        return EMPTY_ROUTES if self._joined is None else self._joined.routes.table

    def _freshen(self) -> None:
        if self._joined is not None:
            self._joined.routes.freshen()

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

    def _names(self) -> dict[str, str]:
        return {member.name: member.tags.get(tags.TAG_NAME, "") for member in self._roster.members()}

    async def accept_peer(self, transport: Transport | None, http_protocol: BaseProtocol) -> None:
        """GET /v1/peer: the links take the connection over until its end."""
        await self._links.accept(transport, http_protocol)

    def knows_address(self, address: str) -> bool:
        """Whether a member lives there, as far as gossip says."""
        return self._roster.knows_address(address)

    # ---- leaders ---------------------------------------------------------------------------------

    def _leadership(self, group: GroupId) -> Leadership | None:
        return self._routes.leadership(group, self._roster.is_live)

    def _leader_of(self, group: GroupId) -> Leader | None:
        leadership = self._leadership(group)
        if leadership is None or leadership.agent_id is None:
            return None
        agent_id = leadership.agent_id
        url = self.url if agent_id == self.agent_id else self._roster.urls().get(agent_id)
        if url is None:
            return None
        return Leader(agent_id, url, leadership.term, agent_id == self.agent_id)

    def catalog_leader(self) -> Leader | None:
        """Who leads `_catalog`, None when nobody is known to."""
        return self._leader_of(CATALOG_GROUP)

    def hears(self, agent_id: str) -> bool:
        """Whether that agent is a live member, and its link is not silent."""
        return self._roster.is_live(agent_id)

    def leader(self, topic: Topic, partition: int) -> Leader | None:
        """Who leads the partition. ShoalError unknown-partition."""
        return self._leader_of(self._group(topic, partition))

    async def wait_leader(self, topic: Topic, partition: int, timeout_ms: int) -> Leader:
        """The same, waiting for one. ShoalError no-leader when there is none in time: certainly nothing
        happened.
        """
        group = self._group(topic, partition)
        end_ms = self._clock.now_ms() + timeout_ms
        while True:
            leader = self._leader_of(group)
            if leader is not None:
                return leader
            self.topic(topic.name)
            remaining_ms = end_ms - self._clock.now_ms()
            if remaining_ms <= 0 or not await self._watch.wait_next(remaining_ms):
                raise ShoalError(
                    "no-leader", f"partition {partition} of {topic.name} has no leader at present"
                )

    # ---- topics ----------------------------------------------------------------------------------

    def _no_topic(self, name: str) -> str:
        if name == documents.CATALOG_TOPIC:
            return f"{name} is the system's log, not a topic: GET /v1/topics shows what it says"
        if name.startswith("_"):
            return f"{name!r}: names that begin with _ are the system's, and it has none of this name"
        return (
            f"there is no topic {name!r} in cluster {self.config.cluster} (agent {self.name} was asked): "
            f"create it with PUT /v1/topics/{name}"
        )

    def topic(self, name: str) -> Topic:
        """A topic as this agent knows it. ShoalError unknown-topic, illegal-name, not-ready."""
        entry = self._parts().catalog.catalog.topics.get(name)
        if entry is None:
            check_topic_form(name)
            raise ShoalError("unknown-topic", self._no_topic(name))
        known = self._topics.get(name)
        if known is not None and known[0] is entry:
            return known[1]
        topic = Topic(
            name=name,
            id=entry.topic_id,
            kind=entry.settings.kind,
            schema=DEFAULT_SCHEMA,
            ranges=tuple(birth.hash_range for birth in entry.partitions),
            settings=entry.settings,
        )
        if len(self._topics) > 2 * len(self._catalog.topics):
            self._topics.clear()  # most of it is about deleted topics
        self._topics[name] = (entry, topic)
        return topic

    def _group(self, topic: Topic, partition: int) -> GroupId:
        if not 0 <= partition < len(topic.ranges):
            raise ShoalError(
                "unknown-partition",
                f"topic {topic.name} has partitions 0 to {len(topic.ranges) - 1}, not {partition}",
            )
        return _group_id(topic.id, partition)

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

    # ---- records ---------------------------------------------------------------------------------

    def _led_here(self, topic: Topic, partition: int) -> tuple[Host, GroupId]:
        """The host, when it holds the partition. ShoalError not-leader with the leader's URL otherwise."""
        host = self._parts().host
        group = self._group(topic, partition)
        if not host.has(group):
            raise self._elsewhere(topic, partition)
        return host, group

    def _elsewhere(self, topic: Topic, partition: int) -> ShoalError:
        leader = self._leader_of(GroupId(topic.id, partition))
        where = f"partition {partition} of {topic.name}"
        if leader is None or leader.local:
            return ShoalError("no-leader", f"{where} has no leader at present")
        return not_leader(where, leader)

    def _instead_of_here(self, error: ShoalError, topic: Topic, partition: int) -> ShoalError:
        """The replica here does not serve: its leader does, or soon another holder, who is named. Alone it
        says what is wrong."""
        host, group = self._parts().host, self._group(topic, partition)
        if not host.has(group) or (status := host.status(group)).state == "active":
            return error
        elsewhere = self._elsewhere(topic, partition)
        if elsewhere.code == "not-leader":
            return elsewhere
        leadership = self._leadership(group)
        entry = self._catalog.by_id(topic.id)
        births = () if entry is None else entry.partitions[partition].voters
        holders = births if leadership is None else leadership.voters
        urls = self._roster.urls()
        others = [urls[item] for item in holders if item != self.agent_id and item in urls]
        if not others:
            return error
        why = f"the replica here is {status.state}: {status.reason}; others are at {', '.join(others)}"
        return ShoalError("no-leader", f"{elsewhere.detail}; {why}", replica_urls=list(others))

    def _translated(self, error: ShoalError, topic: Topic, partition: int) -> ShoalError:
        """The host knows agents, not URLs: say who leads in a way that a client can use."""
        if not error.definite:  # what may have happened here must not be tried elsewhere
            return error
        if error.code == "stopping" and not self.stopping:
            self.topic(topic.name)  # raises, where the replica was closed with its topic
            return self._elsewhere(topic, partition)
        if error.code != "not-leader":
            return self._instead_of_here(error, topic, partition)
        elsewhere = self._elsewhere(topic, partition)
        if "high_watermark" in error.extra:  # a local read beyond what the replica here knows
            elsewhere.extra["high_watermark"] = error.extra["high_watermark"]
        return elsewhere

    async def append(
        self,
        topic: Topic,
        partition: int,
        records: RecordColumns | Sequence[Message],
        *,
        producer: ProducerStamp | None,
        consecutive: bool = True,
        acks: str,
        timeout_ms: int,
    ) -> Appended:
        """Batches, or records to be gathered, into one partition led here."""
        host, group = self._led_here(topic, partition)
        try:
            return await host.append(
                group,
                records,
                producer=producer,
                consecutive=consecutive,
                acks=cast("Acks", acks),
                timeout_ms=timeout_ms,
            )
        except ShoalError as error:
            raise self._translated(error, topic, partition) from None

    async def append_records(
        self,
        topic: Topic,
        partition: int,
        columns: RecordColumns,
        *,
        producer: ProducerStamp | None,
        consecutive: bool = True,
        acks: str,
        timeout_ms: int,
    ) -> Appended:
        """Records into one partition led here, gathered with whatever arrives at the same time."""
        return await self.append(
            topic,
            partition,
            columns,
            producer=producer,
            consecutive=consecutive,
            acks=acks,
            timeout_ms=timeout_ms,
        )

    def begin_append(
        self,
        topic: Topic,
        partition: int,
        records: RecordColumns | Sequence[Message],
        *,
        producer: ProducerStamp | None,
        consecutive: bool,
        acks: Acks,
        timeout_ms: int,
        answer: Answer,
    ) -> None:
        """Either of the two, told through `answer`. Raises ShoalError when nothing was proposed."""
        host, group = self._led_here(topic, partition)
        try:
            host.begin_append(
                group,
                records,
                producer=producer,
                consecutive=consecutive,
                acks=acks,
                timeout_ms=timeout_ms,
                answer=answer,
            )
        except ShoalError as error:
            raise self._translated(error, topic, partition) from None

    def hold(self) -> None:
        """An append is begun now, and `hurry` follows in the same call."""
        if self._joined is not None:
            self._joined.host.turns.hold()

    def hurry(self) -> None:
        """What was begun need not wait for company."""
        if self._joined is not None:
            self._joined.host.turns.hurry()

    async def read(
        self,
        topic: Topic,
        partition: int,
        offset: Offset,
        *,
        max_bytes: int,
        wait_ms: int,
        local: bool,
        limit: int | None = None,
        admit: Admit | None = None,
    ) -> Fetch:
        """Committed batches from the one that holds `offset`, to that of the record `limit` - 1 further."""
        host, group = self._led_here(topic, partition)
        try:
            return await host.read(
                group,
                offset,
                max_bytes=max_bytes,
                wait_ms=wait_ms,
                local=local,
                limit=limit,
                admit=admit,
            )
        except ShoalError as error:
            raise self._translated(error, topic, partition) from None

    async def offsets(self, topic: Topic, partition: int) -> Offsets:
        """The ends of the log, by a read index."""
        host, group = self._led_here(topic, partition)
        try:
            return await host.offsets(group)
        except ShoalError as error:
            raise self._translated(error, topic, partition) from None

    async def wait_past(self, topic: Topic, partition: int, offset: Offset, wait_ms: int) -> bool:
        """Whether something beyond the offset was committed in time, while this agent leads."""
        host, group = self._led_here(topic, partition)
        try:
            return await host.wait_past(group, offset, wait_ms)
        except ShoalError as error:
            raise self._translated(error, topic, partition) from None

    async def trim(self, topic: Topic, partition: int, before: Offset, timeout_ms: int) -> Offset:
        """Drop the segments wholly before the offset, on all replicas; where the log then starts."""
        host, group = self._led_here(topic, partition)
        try:
            return await host.trim(group, before, timeout_ms)
        except ShoalError as error:
            raise self._translated(error, topic, partition) from None

    async def offset_at_time(self, topic: Topic, partition: int, time_us: int) -> Offset:
        """The first offset whose record is at or after the time; the end if there is none."""
        host, group = self._led_here(topic, partition)
        try:
            return await offset_at_time(host, group, time_us)
        except ShoalError as error:
            raise self._translated(error, topic, partition) from None
