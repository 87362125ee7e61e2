"""A sample of a cluster: what two answers of the HTTP API say at one moment, as values.

Law of this file: pure. It asks nobody, and compares nothing; rows.py does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

CATALOG: Final = "_catalog"
LEADER: Final = "leader"
PRESENT: Final = ("alive", "suspect", "leaving")  # other members lead nothing


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """A member that is an agent. `status`: alive, suspect, failed, leaving or left."""

    id: str
    name: str
    status: str
    url: str


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic. `records` can be read now; `size_bytes` are those of the leaders' logs."""

    name: str
    id: str
    partitions: int
    under_replicated: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReplicaSeen:
    """A replica as its agent last reported it. `end`: the offset behind its last record."""

    agent: str
    role: str
    term: int
    end: int


Group = tuple[str, int]
"""A topic's name and the number of a partition."""


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """`at_s`: on a clock that never goes back. `asked`: the URL of the agent that answered."""

    at_s: float
    cluster: str
    asked: str
    agents: tuple[AgentSeen, ...]
    topics: Mapping[str, TopicSeen]
    replicas: Mapping[Group, tuple[ReplicaSeen, ...]]


def sample_of(
    topics: Sequence[Mapping[str, Any]], members: Mapping[str, Any], asked: str, at_s: float
) -> ClusterSample:
    """The documents of GET /v1/topics and GET /v1/members, asked for in this order: the first one makes the
    agents tell each other their offsets."""
    replicas: dict[Group, list[ReplicaSeen]] = {}
    agents = []
    for member in members["members"]:
        if member.get("kind", "shoal") != "shoal":
            continue
        status = str(member["status"])
        name = _printable(str(member.get("name") or member["id"]))
        agents.append(AgentSeen(str(member["id"]), name, status, _printable(str(member.get("url") or ""))))
        for held in member.get("partitions") or []:
            role = str(held["role"]) if status in PRESENT else "follower"
            seen = ReplicaSeen(str(member["id"]), role, int(held["term"]), int(held["log_end_offset"]))
            replicas.setdefault((str(held["topic"]), int(held["partition"])), []).append(seen)
    return ClusterSample(
        at_s,
        _printable(str(members.get("cluster") or "")),
        asked,
        tuple(agents),
        {str(topic["name"]): _topic(topic) for topic in topics},
        {group: tuple(held) for group, held in replicas.items()},
    )


def _topic(document: Mapping[str, Any]) -> TopicSeen:
    return TopicSeen(
        str(document["name"]),
        str(document.get("id") or ""),
        int(document.get("partitions") or 0),
        int(document.get("under_replicated") or 0),
        int(document.get("records") or 0),
        int(document.get("bytes") or 0),
    )


def _printable(text: str) -> str:
    """Names are other hosts' choice: a terminal must not take any of them for a command."""
    return "".join(character if character.isprintable() else "?" for character in text)
