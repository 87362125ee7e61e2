"""`shoal members`, `shoal status`, and joining and leaving by hand.

Law of this file: it shows what agents say. What counts as healthy is decided in `problems`, which is pure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.agent.cli.output import (
    DEFAULT_AGENT,
    AgentOption,
    CliError,
    Output,
    OutputOption,
    age_text,
    example,
    plural,
    say,
    show_json,
    show_table,
)
from shoal.agent.cli.running import with_admin

if TYPE_CHECKING:
    from shoal.aio_admin import AdminClient

POLL_SECONDS = 0.2  # short against a failure detector, long against a request
LISTED_PROBLEMS_MAX = 20  # a screenful; the rest are counted

TimeoutOption = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long --wait waits.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `shoal`."""
    app.command(epilog=example("shoal members", "shoal members --wait 3 --timeout 30 --output json"))(members)
    app.command(epilog=example("shoal status", "shoal status --wait && ./start-the-load"))(status)
    app.command(epilog=example("shoal join 10.0.0.7:7946"))(join)
    app.command(epilog=example("shoal leave --agent http://10.0.0.7:7070"))(leave)
    app.command("force-leave", epilog=example("shoal force-leave host-1a2b3c4d"))(force_leave)


def members(
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
    wait: Annotated[int, typer.Option(min=0, metavar="N", help="Return once N members are alive.")] = 0,
    timeout: TimeoutOption = 60.0,
) -> None:
    """The members: who is alive, where, for how long, and how many partitions each holds and leads."""

    async def work(client: AdminClient) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while True:
            document = await _members_if_up(client, patient=wait > 0 and time.monotonic() < deadline)
            if _alive(document) >= wait:
                return document
            if time.monotonic() > deadline:
                raise CliError(
                    f"{_alive(document)} of {wait} members are alive after {timeout:g} s",
                    "`shoal members` shows them; agents find each other by --join HOST:PORT",
                )
            await asyncio.sleep(POLL_SECONDS)

    document = with_admin(agent, work)
    if output is Output.JSON:
        show_json(document)
        return
    _show_members(document["members"])


def _show_members(found: Sequence[Mapping[str, Any]]) -> None:
    """The table. A failure domain is shown only where somebody chose one: the default is the agent's own
    name; ids only where names do not tell everybody apart.
    """
    headers = ["NAME", "STATUS", "ADDRESS", "URL", "PARTITIONS", "LEADS", "FOR"]
    rows = [_member_row(member) for member in found]
    if any(_name(member, found) != member.get("name") for member in found):
        headers.insert(1, "ID")
        for row, member in zip(rows, found, strict=True):
            row.insert(1, member["id"])
    if any(member.get("failure_domain") not in (None, member.get("name")) for member in found):
        place = headers.index("PARTITIONS")
        headers.insert(place, "DOMAIN")
        for row, member in zip(rows, found, strict=True):
            row.insert(place, member.get("failure_domain"))
    show_table(headers, rows)


def _name(member: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> str:
    """What commands take for it: its name, or its id where others are called so too (one whose disk was lost,
    and its successor)."""
    name = member.get("name")
    is_shared = sum(1 for other in members if other.get("name") == name) > 1
    return str(member["id"] if name is None or is_shared else name)


async def _members_if_up(client: AdminClient, *, patient: bool) -> dict[str, Any]:
    """The member list; while `patient`, an agent that is still starting counts as one without members."""
    from shoal.aio_cluster import Unreachable
    from shoal.errors import ShoalError

    try:
        return await client.members()
    except (Unreachable, ShoalError):
        if not patient:
            raise
        return {"members": []}


def _alive(document: Mapping[str, Any]) -> int:
    return sum(1 for member in document["members"] if member["status"] == "alive")


def _member_row(member: Mapping[str, Any]) -> list[object]:
    partitions = member.get("partitions") or []
    present = member["status"] in (
        "alive",
        "suspect",
        "leaving",
    )  # others lead nothing, whatever they last said
    return [
        member.get("name") or member["id"],
        f"{member['status']}, drained" if member.get("drained") else member["status"],
        f"{member['address']}:{member['gossip_port']}",
        member.get("url"),
        len(partitions),
        sum(1 for partition in partitions if present and partition.get("role") == "leader"),
        _age(member.get("since")),
    ]


def _age(since: str | None) -> str | None:
    return None if not since else age_text(time.time() - datetime.fromisoformat(since).timestamp())


def problems(
    members: Sequence[Mapping[str, Any]], routes: Mapping[str, Any], topics: Sequence[Mapping[str, Any]]
) -> dict[str, list[str]]:
    """What keeps the cluster from being healthy, by kind: failed, leaderless, under_replicated."""
    failed = [_name(m, members) for m in members if m["status"] in ("failed", "suspect")]
    gone = {m["id"] for m in members if m["status"] in ("failed", "left")}
    leaderless, under_replicated = [], []
    for topic, entry in sorted(routes.items()):
        for partition in entry["partitions"]:
            where = f"{topic}/{partition['partition']}"
            if partition.get("leader") is None or partition["leader"] in gone:
                leaderless.append(where)
            if any(replica["id"] in gone for replica in partition.get("replicas", [])):
                under_replicated.append(where)
    named = {where.rpartition("/")[0] for where in under_replicated}
    under_replicated += [
        str(entry["name"]) for entry in topics if entry.get("under_replicated") and entry["name"] not in named
    ]
    return {"failed": failed, "leaderless": leaderless, "under_replicated": under_replicated}


def advice(report: Mapping[str, Any], topics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why it is so and what to do, one line for each kind of trouble that has a cure."""
    lines = []
    if report["failed"]:
        lines.append(
            f"restart {', '.join(report['failed'][:LISTED_PROBLEMS_MAX])} on the same --data; an agent that"
            " will not come back: `shoal force-leave NAME`"
        )
    if report.get("kept"):
        lines.append(
            "agents keep topics that the catalog does not know, as after its recovery by force: `shoal topic"
            " adopt` lists them and takes them back; one that nobody wants is adopted and deleted"
        )
    factors = [entry.get("replication_factor") for entry in topics]
    wanted = max((factor for factor in factors if isinstance(factor, int)), default=0)
    if wanted > report["alive"]:
        lines.append(
            f"topics want {wanted} replicas (3 unless told otherwise) and {plural(report['alive'], 'member')}"
            f" {'is' if report['alive'] == 1 else 'are'} alive: records are kept, in fewer copies. Start more"
            " agents (--join this one's gossip address), or make topics with --replication-factor"
            f" {max(report['alive'], 1)}"
        )
    return lines


def status(
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
    wait: Annotated[bool, typer.Option("--wait", help="Return once all is well.")] = False,
    timeout: TimeoutOption = 60.0,
) -> None:
    """Is all well? Names failed members, partitions without leader, and those with replicas missing.

    The exit code is 0 only if there are none.
    """

    async def work(client: AdminClient) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while True:
            report = await _report(client, patient=wait and time.monotonic() < deadline)
            if report["healthy"] or not wait or time.monotonic() > deadline:
                return report
            await asyncio.sleep(POLL_SECONDS)

    report = with_admin(agent, work)
    if output is Output.JSON:
        show_json(report)
    else:
        _show_report(report)
    if not report["healthy"]:
        raise typer.Exit(1)


async def _report(client: AdminClient, *, patient: bool) -> dict[str, Any]:
    from shoal.aio_cluster import Unreachable
    from shoal.errors import ShoalError

    try:
        unready = await client.unready_reason()
        found = (await client.members())["members"]
        routes = (await client.routes())["topics"]
        topics = await client.topics()
        kept = await client.kept_topics() if unready is None else []
    except (Unreachable, ShoalError):
        if not patient:
            raise
        unready, found, routes, topics, kept = "it does not answer", [], {}, [], []
    trouble = problems(found, routes, topics)
    trouble["kept"] = [str(item["name"] or item["id"]) for item in kept]
    report: dict[str, Any] = {
        "healthy": unready is None and not any(trouble.values()),
        "ready": unready is None,
        "unready_reason": unready,
        "alive": sum(1 for member in found if member["status"] == "alive"),
        "members": len(found),
        "topics": len(topics),
        "partitions": sum(len(entry["partitions"]) for entry in routes.values()),
        **trouble,
    }
    report["advice"] = advice(report, topics)
    return report


def _show_report(report: Mapping[str, Any]) -> None:
    verdict = "healthy" if report["healthy"] else "in trouble"
    alive = f"{report['alive']} of {plural(report['members'], 'member')} alive"
    topics, partitions = plural(report["topics"], "topic"), plural(report["partitions"], "partition")
    print(f"{verdict}: {alive}, {topics}, {partitions}")
    if not report["ready"]:
        print(f"not ready: {report['unready_reason']}")
    for kind in ("failed", "leaderless", "under_replicated", "kept"):
        names = report[kind]
        if names:
            more = f" and {len(names) - LISTED_PROBLEMS_MAX} more" if len(names) > LISTED_PROBLEMS_MAX else ""
            print(f"{kind.replace('_', '-')}: {', '.join(names[:LISTED_PROBLEMS_MAX])}{more}")
    for line in report["advice"]:
        print(line)


def join(
    addresses: Annotated[
        list[str], typer.Argument(metavar="HOST:PORT...", help="Gossip addresses of members.")
    ],
    agent: AgentOption = DEFAULT_AGENT,
) -> None:
    """Have the agent contact members of the cluster it should belong to."""
    document = with_admin(agent, lambda client: client.join(addresses))
    reached = document.get("joined", 0)
    say(f"{reached} of {plural(len(addresses), 'address')} answered")
    if not reached:
        raise CliError("no address answered", "give gossip addresses (default port 7946), not HTTP ones")


def leave(agent: AgentOption = DEFAULT_AGENT) -> None:
    """Have the agent hand its leadership over, leave the cluster and stop."""
    with_admin(agent, lambda client: client.leave())
    say("the agent is leaving")


def force_leave(
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="The name or id of a failed member.")],
    agent: AgentOption = DEFAULT_AGENT,
) -> None:
    """Count a failed member as left, so that it is no longer waited for."""
    with_admin(agent, lambda client: client.force_leave(member))
    say(f"{member} counts as left")
