"""The cluster as this agent knows it: leaders of partitions and of the catalog, and topics by their names.

Law of this file: facts only, from the roster, the catalog and the routing table; nothing here decides who
leads. Until the agent belongs to a cluster there is neither a leader nor a topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from shoal.agent.config import AgentConfig
from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.events.change_counter import Watch
from shoal.agent.host.host import Host
from shoal.agent.host.scrubber import Scrubber, ScrubStatistics
from shoal.agent.interface import Leader, Topic
from shoal.agent.levels import FIRST_LEVEL, HOLD, SUPPORTED, Level, LevelRange, common_level
from shoal.agent.log_lines.names import agent_name
from shoal.agent.members import tags
from shoal.agent.members.roster import Roster
from shoal.agent.metrics.measures import Measures
from shoal.agent.partition.status import ReplicaStatus
from shoal.agent.process.clock import Clock
from shoal.agent.routing.exchange import RouteExchange
from shoal.agent.routing.table import Claim, RouteTable
from shoal.agent.security.posture import LOOPBACK_ONLY, Exposure
from shoal.agent.service import documents
from shoal.agent.service.letters import DeadLetters
from shoal.agent.topics.catalog import Catalog, TopicEntry
from shoal.agent.topics.catalog_service import CatalogService
from shoal.agent.topics.catalog_upkeep import understood_levels
from shoal.agent.topics.kept import Kept
from shoal.agent.topics.settings import check_topic_form
from shoal.errors import ShoalError
from shoal.format.batch import LogIndex

_group_id = lru_cache(maxsize=8192)(GroupId)  # asked for with every request, as topics are


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """Facts about an agent, for this run. `measures`: what it has counted since it started. `levels`: those
    that it understands. `exposure`: who reaches it, and what is missing."""

    config: AgentConfig
    agent_id: str
    name: str
    url: str
    version: str
    disk_kind: str
    measures: Measures = field(default_factory=Measures)
    levels: LevelRange = SUPPORTED
    exposure: Exposure = LOOPBACK_ONLY


@dataclass(frozen=True, slots=True)
class Joined:
    """The parts that exist once the agent belongs to a cluster, and what they know now."""

    host: Host
    catalog: CatalogService
    routes: RouteExchange
    scrubber: Scrubber
    letters: DeadLetters

    @property
    def topics(self) -> Catalog:
        return self.catalog.catalog

    @property
    def table(self) -> RouteTable:
        return self.routes.table

    @property
    def cleared_writes(self) -> Mapping[GroupId, LogIndex]:
        return self.host.cleared_writes

    @property
    def scrubbed(self) -> ScrubStatistics | None:
        return self.scrubber.statistics

    @property
    def level(self) -> Level:
        """The highest that the cluster is known to have had."""
        return self.catalog.local.level

    def freshen(self) -> None:
        self.routes.freshen()

    def kept(self) -> Sequence[Kept]:
        return self.catalog.kept_replicas.here()

    def statuses(self) -> Iterator[ReplicaStatus]:
        return self.host.statuses()


class Alone:
    """The same before the agent belongs to a cluster: it holds nothing, and knows of nothing."""

    def __init__(self) -> None:
        self.topics = Catalog()
        self.level = FIRST_LEVEL
        self.table = RouteTable()
        self.cleared_writes: Mapping[GroupId, LogIndex] = {}
        self.scrubbed: ScrubStatistics | None = None

    def freshen(self) -> None:
        """Nobody tells routes."""

    def kept(self) -> Sequence[Kept]:
        return ()

    def statuses(self) -> Iterator[ReplicaStatus]:
        return iter(())


Cluster: TypeAlias = Joined | Alone


def not_leader(what: str, leader: Leader) -> ShoalError:
    """421, with everything a client needs to go there itself."""
    return ShoalError(
        "not-leader",
        f"{what} is led by {agent_name(leader.agent_id)}",
        leader=leader.agent_id,
        leader_url=leader.url,
        term=leader.term,
    )


class ClusterView:
    """One per agent. `attach` gives it the cluster; `stopping` makes it refuse new work."""

    def __init__(self, facts: AgentFacts, roster: Roster, watch: Watch, clock: Clock) -> None:
        self.facts = facts
        self.config = facts.config
        self.agent_id = facts.agent_id
        self.url = facts.url
        self.stopping = False
        self.waiting_reason = "starting"
        self._roster = roster
        self._watch = watch
        self._clock = clock
        self._cluster: Cluster = Alone()
        self._topics: dict[str, tuple[TopicEntry, Topic]] = {}  # asked for with every request; see topic()

    def attach(self, joined: Joined) -> None:
        self._cluster = joined
        self._watch.changed()

    def _parts(self) -> Joined:
        if self.stopping:
            raise ShoalError("stopping", "this agent is leaving; ask another one")
        if not isinstance(self._cluster, Joined):
            raise ShoalError("not-ready", f"this agent has no cluster yet: {self.waiting_reason}")
        return self._cluster

    @property
    def _catalog(self) -> Catalog:
        return self._cluster.topics

    def _view(self) -> documents.Overview:
        roster, cluster = self._roster, self._cluster
        return documents.Overview(
            cluster.topics, cluster.table, roster.is_live, roster.urls(), roster.holders_count()
        )

    def _names(self) -> dict[str, str]:
        return {member.name: member.tags.get(tags.TAG_NAME, "") for member in self._roster.members()}

    # ---- the level -------------------------------------------------------------------------------

    def level_document(self) -> dict[str, Any]:
        """GET /v1/cluster/level. `possible`: the highest that all understand who have not left; null where
        they differ. Members that have left are listed while replicas wait for them."""
        self._parts()
        holders = self._cluster.table.holders()
        understood = understood_levels(self._roster, holders)
        left = self._roster.levels_of_left()
        listed = {**understood, **{agent_id: left[agent_id] for agent_id in left.keys() & holders}}
        said = {member.name: (member.status, member.tags) for member in self._roster.members()}
        rows = [
            (agent_id, levels, *said.get(agent_id, ("unknown", {})))
            for agent_id, levels in sorted(listed.items())
        ]
        return {
            "level": self._catalog.level,
            "possible": common_level(understood.values()),
            "members": [
                {
                    "id": agent_id,
                    "name": its_tags.get(tags.TAG_NAME) or None,
                    "status": status,
                    "lowest": levels.lowest,
                    "highest": levels.highest,
                    "holds": its_tags.get(tags.TAG_LEVELS, "").endswith(HOLD),
                }
                for agent_id, levels, status, its_tags in rows
            ],
        }

    # ---- leaders ---------------------------------------------------------------------------------

    def _leadership(self, group: GroupId) -> Claim | None:
        return self._cluster.table.leadership(group, self._roster.is_live)

    def _leader_of(self, group: GroupId) -> Leader | None:
        leadership = self._leadership(group)
        if leadership is None or leadership.leader is None:
            return None
        agent_id = leadership.leader
        url = self.url if agent_id == self.agent_id else self._roster.urls().get(agent_id)
        if url is None:
            return None
        return Leader(agent_id, url, leadership.term, agent_id == self.agent_id)

    def catalog_leader(self) -> Leader | None:
        """The leader of `_catalog`, None when none is known."""
        return self._leader_of(CATALOG_GROUP)

    def hears(self, agent_id: str) -> bool:
        """Whether that agent is a live member, and its link is not silent."""
        return self._roster.is_live(agent_id)

    def leader(self, topic: Topic, partition: int) -> Leader | None:
        """The partition's leader. ShoalError unknown-partition."""
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

    @property
    def asked(self) -> str:
        """How a refusal calls who was asked."""
        return f"cluster {self.config.cluster} (agent {self.facts.name} was asked)"

    def _no_topic(self, name: str) -> str:
        if name == documents.CATALOG_TOPIC:
            return f"{name} is the system's log, not a topic: GET /v1/topics shows what it says"
        if name.startswith("_"):
            return f"{name!r}: names that begin with _ are the system's, and it has none of this name"
        return f"there is no topic {name!r} in {self.asked}: create it with PUT /v1/topics/{name}"

    def topic(self, name: str) -> Topic:
        """A topic as this agent knows it. ShoalError unknown-topic, illegal-name, not-ready."""
        entry = self._parts().catalog.catalog.topics.get(name)
        if entry is None:
            check_topic_form(name)
            raise ShoalError("unknown-topic", self._no_topic(name))
        known = self._topics.get(name)
        if known is not None and known[0] is entry:
            return known[1]
        ranges = tuple(birth.hash_range for birth in entry.partitions)
        topic = Topic(name, entry.topic_id, entry.settings.schema, ranges, entry.settings.kind)
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
