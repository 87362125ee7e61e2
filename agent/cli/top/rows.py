"""The rows of `shoal top`: rates and lags of agents, topics and partitions, from two samples.

Law of this file: pure. A rate is a difference of log ends, divided by the time between the samples; None
where there is nothing to compare with. A lag counts records of the leader that followers lack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from shoal.agent.cli.top.samples import CATALOG, LEADER, ClusterSample, Group, ReplicaSeen, TopicSeen

Number = TypeVar("Number", int, float)


class PartitionRow(NamedTuple):
    """A partition. `rate`: records appended a second; `lag`: of all followers; `holders`: agent ids."""

    topic: str
    partition: int
    leader: str | None
    holders: tuple[str, ...]
    term: int | None
    end: int | None
    rate: float | None
    lag: int | None

    @property
    def key(self) -> str:
        return f"{self.topic}/{self.partition}"


class TopicRow(NamedTuple):
    """A topic. `bytes_rate`: growth of the leaders' logs in bytes a second, None while retention shrinks
    them; `leaderless`, `under_replicated`: numbers of partitions."""

    name: str
    partitions: int
    leaderless: int
    under_replicated: int
    records: int
    size_bytes: int
    rate: float | None
    bytes_rate: float | None
    lag: int | None

    @property
    def key(self) -> str:
        return self.name

    @property
    def trouble(self) -> str:
        """`1 leaderless, 2 under-replicated`, or nothing."""
        return _trouble(self.leaderless, self.under_replicated)


class AgentRow(NamedTuple):
    """An agent. `rate`: records a second of the partitions that it leads; `lag`: records that its followers'
    logs lack, in sum."""

    id: str
    name: str
    status: str
    url: str
    held: int
    led: int
    rate: float | None
    lag: int | None

    @property
    def key(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True)
class ClusterRows:
    """Everything that can be shown of two samples. `catalog`: a partition, and no topic of anybody."""

    cluster: str
    asked: str
    agents: tuple[AgentRow, ...]
    topics: tuple[TopicRow, ...]
    partitions: tuple[PartitionRow, ...]
    catalog: PartitionRow | None

    @property
    def rate(self) -> float | None:
        """Records a second, of all topics."""
        return _sum(topic.rate for topic in self.topics)

    @property
    def alive(self) -> int:
        """Agents that are alive."""
        return sum(agent.status == "alive" for agent in self.agents)

    @property
    def trouble(self) -> str:
        """Of all topics: `1 leaderless, 2 under-replicated`, or nothing."""
        leaderless = sum(topic.leaderless for topic in self.topics)
        return _trouble(leaderless, sum(topic.under_replicated for topic in self.topics))

    def of_agent(self, agent: str) -> list[PartitionRow]:
        """The partitions that an agent holds, the catalog among them."""
        known = [*self.partitions, *([self.catalog] if self.catalog is not None else [])]
        return [row for row in known if agent in row.holders]

    def of_topic(self, topic: str) -> list[PartitionRow]:
        """A topic's partitions."""
        return [row for row in self.partitions if row.topic == topic]


def rows_of(now: ClusterSample, before: ClusterSample | None) -> ClusterRows:
    """The rows of a sample, with rates since the sample before it; without one there are no rates."""
    names = {agent.id: agent.name for agent in now.agents}
    found = {}
    for topic in now.topics.values():
        same = _same_topic(topic, before)
        for number in range(topic.partitions):
            group = (topic.name, number)
            found[group] = _partition_row(group, now, before if same else None, names)
    catalog = (CATALOG, 0)
    return ClusterRows(
        now.cluster,
        now.asked,
        tuple(_agent_rows(now, found)),
        tuple(_topic_row(topic, now, before, found) for topic in now.topics.values()),
        tuple(found.values()),
        _partition_row(catalog, now, before, names) if catalog in now.replicas else None,
    )


def _same_topic(topic: TopicSeen, before: ClusterSample | None) -> bool:
    """Whether the sample before knows this topic, and not a deleted one of its name."""
    known = None if before is None else before.topics.get(topic.name)
    return known is not None and known.id == topic.id


def _leader_of(replicas: Sequence[ReplicaSeen]) -> ReplicaSeen | None:
    """The replica that leads; a former leader that has not heard of its successor has a lower term."""
    led = [replica for replica in replicas if replica.role == LEADER]
    return max(led, key=lambda replica: replica.term, default=None)


def _end_of(replicas: Sequence[ReplicaSeen]) -> int | None:
    """The leader's end; without a leader the furthest one."""
    leader = _leader_of(replicas)
    if leader is not None:
        return leader.end
    return max((replica.end for replica in replicas), default=None)


def _partition_row(
    group: Group, now: ClusterSample, before: ClusterSample | None, names: Mapping[str, str]
) -> PartitionRow:
    replicas = now.replicas.get(group, ())
    leader, end = _leader_of(replicas), _end_of(replicas)
    was = None if before is None else _end_of(before.replicas.get(group, ()))
    rate = None
    if before is not None and was is not None and end is not None and now.at_s > before.at_s:
        rate = max(0, end - was) / (now.at_s - before.at_s)  # an election may cut what was not committed
    return PartitionRow(
        *group,
        leader=None if leader is None else names[leader.agent],
        holders=tuple(replica.agent for replica in replicas),
        term=None if leader is None else leader.term,
        end=end,
        rate=rate,
        lag=None if (lags := _lags(replicas)) is None else sum(lags.values()),
    )


def _lags(replicas: Sequence[ReplicaSeen]) -> dict[str, int] | None:
    """How much each follower lacks, by agent id; None without a leader."""
    leader = _leader_of(replicas)
    if leader is None:
        return None
    return {one.agent: max(0, leader.end - one.end) for one in replicas if one is not leader}


def _topic_row(
    topic: TopicSeen,
    now: ClusterSample,
    before: ClusterSample | None,
    found: Mapping[Group, PartitionRow],
) -> TopicRow:
    rows = [found[topic.name, number] for number in range(topic.partitions)]
    grown = None
    if before is not None and _same_topic(topic, before) and now.at_s > before.at_s:
        grown = (topic.size_bytes - before.topics[topic.name].size_bytes) / (now.at_s - before.at_s)
    return TopicRow(
        topic.name,
        topic.partitions,
        leaderless=sum(row.leader is None for row in rows),
        under_replicated=topic.under_replicated,
        records=topic.records,
        size_bytes=topic.size_bytes,
        rate=_sum(row.rate for row in rows),
        bytes_rate=None if grown is None or grown < 0 else grown,
        lag=_sum(row.lag for row in rows),
    )


def _agent_rows(now: ClusterSample, found: Mapping[Group, PartitionRow]) -> Iterator[AgentRow]:
    held, led = Counter[str](), Counter[str]()
    rates: dict[str, list[float | None]] = {agent.id: [] for agent in now.agents}
    lags: dict[str, list[int | None]] = {agent.id: [] for agent in now.agents}
    for group, replicas in now.replicas.items():
        held.update(replica.agent for replica in replicas)
        leader, lacking = _leader_of(replicas), _lags(replicas)
        for replica in replicas:
            if replica is not leader:
                lags[replica.agent].append(None if lacking is None else lacking[replica.agent])
            else:
                led[replica.agent] += 1
                rates[replica.agent] += [found[group].rate] if group in found else []
    for agent in now.agents:
        rate = _sum(rates[agent.id]) if rates[agent.id] else 0.0
        lag = _sum(lags[agent.id]) if lags[agent.id] else 0
        yield AgentRow(
            agent.id, agent.name, agent.status, agent.url, held[agent.id], led[agent.id], rate, lag
        )


def _sum(values: Iterable[Number | None]) -> Number | None:
    """Of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _trouble(leaderless: int, under_replicated: int) -> str:
    counts = ((leaderless, "leaderless"), (under_replicated, "under-replicated"))
    return ", ".join(f"{count:,} {what}" for count, what in counts if count)
