"""The JSON documents of the membership, routing and topic routes, built from the tables that hold their
facts.

Law of this file: pure. Shapes exactly as docs/http.md says; nothing is decided here but spelling and order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.agent.durable.ids import CATALOG_GROUP, GroupId
from shoal.agent.levels import Level
from shoal.agent.members.tags import TAG_DOMAIN, TAG_DRAINED, TAG_NAME, is_ours, is_shoal, url_of
from shoal.agent.routing.table import Claim, RouteTable
from shoal.agent.topics.catalog import Catalog, TopicEntry
from shoal.agent.topics.kept import Kept
from shoal.agent.topics.settings import settings_table, settings_version
from shoal.client.http.discovery import TAG_CLUSTER as TAG_CLUSTER
from shoal.client.http.discovery import TAG_URL as TAG_URL
from shoal.format.batch import LogIndex
from shoal.format.timestamps import format_time
from shoal.membership.interface import Member
from shoal.segment_store.check.damage import DamagedRange

CATALOG_TOPIC = "_catalog"


@dataclass(frozen=True, slots=True)
class Overview:
    """An agent's view of its cluster at one moment. `urls`: by agent id. `agents`: how many may hold
    replicas."""

    catalog: Catalog
    routes: RouteTable
    is_live: Callable[[str], bool]
    urls: Mapping[str, str]
    agents: int

    def leadership(self, entry: TopicEntry, partition: int) -> Claim | None:
        """Of a partition; None before any claim was heard."""
        return self.routes.leadership(GroupId(entry.topic_id, partition), self.is_live)


def members_document(
    view: Overview, members: Sequence[Member], *, cluster: str, cluster_id: bytes | None, version: str
) -> dict[str, Any]:
    """GET /v1/members."""
    ours = [member for member in members if is_ours(member, cluster, cluster_id)]
    return {
        "cluster": cluster,
        "cluster_id": None if cluster_id is None else cluster_id.hex(),
        "version": version,
        "members": [
            _member_document(view, member)
            for member in sorted(
                ours, key=lambda member: (member.tags.get(TAG_NAME, member.name), member.name)
            )
        ],
    }


def _member_document(view: Overview, member: Member) -> dict[str, Any]:
    return member_head(member) | {
        "partitions": [
            {
                "topic": topic,
                "partition": claim.group.partition,
                "role": _role_now(view, claim, member.name),
                "term": claim.term,
                "log_end_offset": claim.log_end_offset,
            }
            for claim in view.routes.claims_of(member.name)
            if (topic := topic_name(claim.group, view.catalog)) is not None
        ],
    }


def member_head(member: Member) -> dict[str, Any]:
    """A member without what it holds."""
    return {
        "id": member.name,
        "name": member.tags.get(TAG_NAME, member.name),
        "kind": "shoal" if is_shoal(member) else "serf",
        "status": str(member.status),
        "address": member.address,
        "gossip_port": member.port,
        "url": url_of(member) if TAG_URL in member.tags else None,
        "failure_domain": member.tags.get(TAG_DOMAIN),
        "drained": member.tags.get(TAG_DRAINED) == "1",
        "incarnation": member.incarnation,
        "since": format_time(member.since_ms * 1_000),
        "tags": dict(sorted(member.tags.items())),
    }


def _role_now(view: Overview, claim: Claim, agent_id: str) -> str:
    """The last word of a member that died as a leader is not the last word about the partition."""
    if claim.role != "leader":
        return claim.role
    leadership = view.routes.leadership(claim.group, view.is_live)
    return "leader" if leadership is not None and leadership.leader == agent_id else "follower"


def catalog_document(birth: Sequence[str], catalog: Catalog, level: Level) -> dict[str, Any]:
    """The catalog in an agent's document. epoch: in hexadecimal digits, "0" until a recovery by force. level:
    what an agent has to understand that joins."""
    return {
        "birth": list(birth),
        "version": catalog.offset,
        "epoch": format(catalog.epoch, "x"),
        "level": level,
    }


def kept_here(kept: Sequence[Kept]) -> list[dict[str, Any]]:
    """The replicas here of topics that the catalog does not know."""
    return [
        {"id": item.topic_id.hex(), "name": item.name, "partitions": list(item.partitions)} for item in kept
    ]


def cleared_here(cleared: Mapping[GroupId, LogIndex], catalog: Catalog) -> list[dict[str, Any]]:
    """Partitions whose newest write was cleared though the power had held; behind which entry, by group."""
    found = [
        {"topic": name, "partition": group.partition, "behind_entry": behind}
        for group, behind in cleared.items()
        if (name := topic_name(group, catalog)) is not None
    ]
    return sorted(found, key=lambda item: (item["topic"], item["partition"]))


def topic_name(group: GroupId, catalog: Catalog) -> str | None:
    """The name a group goes by; None once its topic is deleted (or not heard of yet)."""
    if group == CATALOG_GROUP:
        return CATALOG_TOPIC
    entry = catalog.by_id(group.topic_id)
    return None if entry is None else entry.name


def routes_document(view: Overview, entries: Sequence[TopicEntry], *, version: str) -> dict[str, Any]:
    """GET /v1/routes."""
    return {
        "version": version,
        "topics": {
            entry.name: {
                "id": entry.topic_id.hex(),
                "partitions": [
                    partition_document(view, entry, partition) for partition in range(len(entry.partitions))
                ],
            }
            for entry in entries
        },
    }


def partition_document(view: Overview, entry: TopicEntry, partition: int) -> dict[str, Any]:
    """One partition as routes and topics show it. Before any claim was heard its replicas are those of its
    birth.
    """
    birth = entry.partitions[partition]
    leadership = view.leadership(entry, partition)
    leader = None if leadership is None else leadership.leader
    return {
        "partition": partition,
        "hash_range": [birth.hash_range.low, birth.hash_range.high],
        "state": "active",
        "successors": [],
        "leader": leader,
        "leader_url": None if leader is None else view.urls.get(leader),
        "term": 0 if leadership is None else leadership.term,
        "replicas": _replicas(birth.voters, leadership, view.urls),
    }


def _replicas(
    birth_voters: Sequence[str], leadership: Claim | None, urls: Mapping[str, str]
) -> list[dict[str, Any]]:
    voters: Sequence[str] = birth_voters
    learners: Sequence[str] = ()
    leader = None
    if leadership is not None:
        voters, learners, leader = leadership.voters, leadership.learners, leadership.leader
    roles = [(agent, "leader" if agent == leader else "follower") for agent in voters]
    roles += [(agent, "learner") for agent in learners]
    return [{"id": agent, "url": urls.get(agent), "role": role} for agent, role in roles]


def live_replicas(view: Overview, entry: TopicEntry, partition: int) -> tuple[int, int]:
    """(voters that are live, voters wanted): the partition is under-replicated when the first is smaller.

    A factor above the number of agents is no fault (safety 5: the effective factor); a voter that is away is
    one, with any factor.
    """
    leadership = view.leadership(entry, partition)
    voters = entry.partitions[partition].voters if leadership is None else leadership.voters
    factor = entry.settings.replication_factor
    wanted = len(voters) if factor == "all" else max(len(voters), min(factor, view.agents))
    return sum(1 for voter in voters if view.is_live(voter)), wanted


def topic_summary(view: Overview, entry: TopicEntry) -> dict[str, Any]:
    """One line of GET /v1/topics. Counts are those of the leaders' last claims."""
    records = 0
    size_bytes = 0
    under_replicated = 0
    for partition in range(len(entry.partitions)):
        leadership = view.leadership(entry, partition)
        if leadership is not None:
            records += leadership.high_watermark - leadership.log_start_offset
            size_bytes += leadership.size_bytes
        live, wanted = live_replicas(view, entry, partition)
        under_replicated += live < wanted
    return {
        "name": entry.name,
        "id": entry.topic_id.hex(),
        "kind": entry.settings.kind,
        "partitions": len(entry.partitions),
        "replication_factor": entry.settings.replication_factor,
        "under_replicated": under_replicated,
        "records": records,
        "bytes": size_bytes,
    }


def missing_and_surplus(view: Overview, entry: TopicEntry) -> tuple[int, int]:
    """How many replicas the topic's partitions lack, of those that the agents there are could hold, and how
    many they have beyond the replication factor. A learner that shall vote is missing until it does."""
    factor = entry.settings.replication_factor
    missing = surplus = 0
    for partition, birth in enumerate(entry.partitions):
        leadership = view.leadership(entry, partition)
        voters = len(birth.voters if leadership is None else leadership.voters)
        if factor == "all":
            learners = 0 if leadership is None else len(leadership.learners)
            missing += max(0, view.agents - voters - learners)
        else:
            missing += max(0, min(factor, view.agents) - voters)
            surplus += max(0, voters - factor)
    return missing, surplus


def factor_note(factor: int | str, agents: int) -> str | None:
    """A remark about a replication factor that the agents there are cannot hold; else None."""
    if not isinstance(factor, int) or agents >= factor:
        return None
    there = f"{factor} replicas are wanted, and {agents} agent{'' if agents == 1 else 's'} can hold them: "
    if factor - agents == 1:
        return f"{there}one more is made when an agent joins"
    return f"{there}{factor - agents} more are made as agents join"


def settings_document(entry: TopicEntry) -> dict[str, Any]:
    """GET /v1/topics/{topic}/settings."""
    return {
        "topic": entry.name,
        "version": settings_version(entry.settings),
        "settings": settings_table(entry.settings),
    }


def topic_document(view: Overview, entry: TopicEntry) -> dict[str, Any]:
    """GET /v1/topics/{topic}: settings, partitions, replicas, offsets."""
    summary = topic_summary(view, entry)
    partitions = []
    for partition in range(len(entry.partitions)):
        leadership = view.leadership(entry, partition)
        live, wanted = live_replicas(view, entry, partition)
        shown = partition_document(view, entry, partition)
        end = None if leadership is None or shown["leader"] is None else leadership.log_end_offset
        claims = view.routes.claims_about(GroupId(entry.topic_id, partition))
        for replica in shown["replicas"]:  # how far its log reaches, and how much it lacks of the leader's
            claim = claims.get(replica["id"])
            reached = replica["log_end_offset"] = None if claim is None else claim.log_end_offset
            replica["lag"] = None if reached is None or end is None else max(0, end - reached)
        partitions.append(
            shown
            | {
                "live_replicas": live,
                "under_replicated": live < wanted,
                "log_start_offset": 0 if leadership is None else leadership.log_start_offset,
                "high_watermark": 0 if leadership is None else leadership.high_watermark,
                "log_end_offset": 0 if leadership is None else leadership.log_end_offset,
                "bytes": 0 if leadership is None else leadership.size_bytes,
            }
        )
    document = summary | entry.settings.to_document()
    document["settings"] = entry.settings.to_document()
    document["settings_version"] = settings_version(entry.settings)
    document["partitions"] = partitions
    document["effective_replication_factor"] = min(
        sum(replica["role"] != "learner" for replica in partition["replicas"]) for partition in partitions
    )
    document["missing_replicas"], document["surplus_replicas"] = missing_and_surplus(view, entry)
    document["created_at"] = format_time(entry.created_us)
    if (note := factor_note(entry.settings.replication_factor, view.agents)) is not None:
        document["note"] = note
    if not entry.settings.fsync:
        document["warning"] = 'unsafe: "fsync" is false, an acknowledged record may be lost with the power'
    return document


def damage_document(topic: str, partition: int, item: DamagedRange) -> dict[str, Any]:
    """One damaged range as GET /v1/agent shows it: bytes from `position` on, entries and offsets inclusive,
    null where the damage costs none."""
    has_records = item.end_offset > item.first_offset
    return {
        "topic": topic,
        "partition": partition,
        "file": item.path,
        "position": item.position,
        "length": item.length,
        "entries": [item.first_index, item.last_index] if item.costs_entries else None,
        "offsets": [item.first_offset, item.end_offset - 1] if has_records else None,
        "detail": item.detail,
    }
