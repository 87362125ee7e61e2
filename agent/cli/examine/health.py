"""The problems of a cluster, their causes and their cures.

Law of this file: pure. It reads the documents of members, routes and topics; cluster.py shows its findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from shoal.agent.cli.terminal.output import age_text, listed, plural

LISTED_PROBLEMS_MAX = 20  # a screenful; the rest are counted
GONE = ("failed", "left")
SILENT = (*GONE, "suspect")  # a suspicion may last many seconds, and no record is accepted meanwhile
CATALOG = "_catalog"


def name_of(member: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> str:
    """The name that commands take: the member's name, or its id where others have the same name (an agent
    whose disk was lost, and its successor)."""
    name = member.get("name")
    is_shared = sum(1 for other in members if other.get("name") == name) > 1
    return str(member["id"] if name is None or is_shared else name)


def problems(
    members: Sequence[Mapping[str, Any]], routes: Mapping[str, Any], topics: Sequence[Mapping[str, Any]]
) -> dict[str, list[str]]:
    """The cluster's problems by kind: failed, leaderless, under_replicated."""
    failed = [name_of(m, members) for m in members if m["status"] in ("failed", "suspect")]
    gone = {m["id"] for m in members if m["status"] in GONE}
    leaderless, under_replicated = [], []
    for where, partition in _partitions(routes):
        if partition.get("leader") is None or partition["leader"] in gone:
            leaderless.append(where)
        if any(replica["id"] in gone for replica in partition.get("replicas", [])):
            under_replicated.append(where)
    named = {where.rpartition("/")[0] for where in under_replicated}
    under_replicated += [
        str(entry["name"]) for entry in topics if entry.get("under_replicated") and entry["name"] not in named
    ]
    return {"failed": failed, "leaderless": leaderless, "under_replicated": under_replicated}


def lost_majorities(members: Sequence[Mapping[str, Any]], routes: Mapping[str, Any]) -> list[str]:
    """The partitions with too few voters left to elect a leader; the catalog's first, if it is one."""
    gone = {member["id"] for member in members if member["status"] in SILENT}
    catalog = [m["id"] for m in members if any(p.get("topic") == CATALOG for p in m.get("partitions") or [])]
    voters = [(f"{CATALOG}/0", catalog)]
    for where, partition in _partitions(routes):
        if partition.get("leader") is None or partition["leader"] in gone:
            replicas = partition.get("replicas", [])
            voters.append((where, [one["id"] for one in replicas if one.get("role") != "learner"]))
    return [where for where, ids in voters if ids and 2 * len(gone.intersection(ids)) >= len(ids)]


def _partitions(routes: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for topic, entry in sorted(routes.items()):
        for partition in entry["partitions"]:
            yield f"{topic}/{partition['partition']}", partition


def replacements(
    members: Sequence[Mapping[str, Any]],
    routes: Mapping[str, Any],
    replace_after_ms: int | None,
    now_s: float,
    topics: Sequence[Mapping[str, Any]],
) -> list[str]:
    """For each member that is gone and holds replicas that are still wanted: when others get new ones."""
    if replace_after_ms is None:
        return []
    gone = {member["id"] for member in members if member["status"] in GONE}
    factors = {entry["name"]: entry.get("replication_factor") for entry in topics}
    holders = set()
    for where, partition in _partitions(routes):
        holding = {replica["id"] for replica in partition.get("replicas", [])}
        factor = factors.get(where.rpartition("/")[0])
        if not isinstance(factor, int) or len(holding - gone) < factor:
            holders |= holding
    lines = []
    for member in members:
        if member["status"] not in GONE or member["id"] not in holders or not member.get("since"):
            continue
        gone_s = now_s - datetime.fromisoformat(member["since"]).timestamp()
        left_s = replace_after_ms / 1_000 - gone_s
        when = f"in {age_text(left_s)}" if left_s > 0 else "now, as far as there are agents to hold them"
        lines.append(
            f"the replicas of {name_of(member, members)} are made anew elsewhere {when}: it went away"
            f" {age_text(gone_s)} ago, and --replace-after is {age_text(replace_after_ms / 1_000)}"
        )
    return lines


def advice(report: Mapping[str, Any], topics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Cause and cure, one line for each kind of problem that has a cure."""
    lost = report.get("lost_majority") or []
    failed = listed(report["failed"], LISTED_PROBLEMS_MAX)
    if lost:
        first = "recover _catalog 0 first, then " if lost[0] == f"{CATALOG}/0" else ""
        others = "each partition" if len(lost) > 1 else "it"
        what = (
            f"{listed(lost, LISTED_PROBLEMS_MAX)}: a majority of the replicas is gone. No record is accepted"
            " there, and neither new agents nor force-leave change that. Restart"
            f" {failed or 'the agents that hold them'} on the same --data, and it heals by itself"
        )
        last = (
            f"only if those are gone for good: {first}`shoal partition recover --unsafe TOPIC PARTITION"
            f" --agent SURVIVOR` for {others}; it first names the acknowledged records that may be lost"
        )
        return [what, last]
    lines = []
    if report["failed"]:
        lines.append(
            f"restart {failed} on the same --data; an agent that will not come back: `shoal force-leave NAME`"
        )
    if report.get("cleared_writes"):
        lines.append(
            "when the agent that was asked started, the newest write of these logs was incomplete without a"
            " power failure, and was cleared: it may have been acknowledged; without other replicas it is"
            " lost. This line stays until that agent starts again"
        )
    if report.get("kept"):
        lines.append(
            "agents keep topics that the catalog does not know, as after its recovery by force: `shoal topic"
            " adopt` lists them and takes them back; adopt and delete a topic that nobody wants"
        )
    factors = [entry.get("replication_factor") for entry in topics]
    wanted = max((factor for factor in factors if isinstance(factor, int)), default=0)
    if wanted > report["alive"]:
        lines.append(
            f"topics want {wanted} replicas (3 unless told otherwise) and {plural(report['alive'], 'member')}"
            f" {'is' if report['alive'] == 1 else 'are'} alive: records are stored in fewer copies. Start"
            " more agents (--join this one's gossip address), or want fewer: `shoal topic alter TOPIC"
            f" --replication-factor {max(report['alive'], 1)}`"
        )
    return lines
