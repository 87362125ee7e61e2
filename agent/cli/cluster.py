"""`shoal members`, `shoal status`, and joining and leaving by hand.

Law of this file: it shows documents of agents. health.py decides what is healthy, and what helps.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.agent.cli.examine.health import (
    LISTED_PROBLEMS_MAX,
    advice,
    lost_majorities,
    name_of,
    problems,
    replacements,
)
from shoal.agent.cli.terminal.completion import complete_member
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    Output,
    OutputOption,
    argument,
    example,
    flag,
    option,
)
from shoal.agent.cli.terminal.output import (
    CliError,
    age_text,
    listed,
    plural,
    show_json,
    show_table,
    tell,
)
from shoal.agent.cli.terminal.run import with_admin

if TYPE_CHECKING:
    from shoal.client.async_admin import AdminClient

POLL_SECONDS = 0.2  # short against a failure detector, long against a request

Document = dict[str, Any]
TimeoutOption = Annotated[float, option("SECONDS", "How long --wait waits.", "--timeout", min=0.0)]

app = typer.Typer()


@app.command(epilog=example("shoal members", "shoal members --wait 3 --timeout 30 --output json"))
def members(
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
    wait: Annotated[int, option("N", "Return once N members are alive.", min=0)] = 0,
    timeout: TimeoutOption = 60.0,
) -> None:
    """List the members: status, address, time in that status, and partitions held and led."""

    async def work(client: AdminClient) -> dict[str, Any]:
        document = await _until(client.members, lambda found: _alive(found) >= wait, timeout if wait else 0)
        if _alive(document) < wait:
            of = f" of cluster {document['cluster']}" if document.get("cluster") else ""
            raise CliError(
                f"{_alive(document)} of {wait} members{of} are alive after {timeout:g} s, says"
                f" {client.asked}",
                "`shoal members` shows them. --agent URL or SHOAL_AGENT names another cluster's agent;"
                " agents find each other by --cluster NAME or --join HOST:PORT",
            )
        return document

    document = with_admin(agent, work)
    if output is Output.JSON:
        show_json(document)
        return
    _show_members(document["members"])


def _show_members(found: Sequence[Mapping[str, Any]]) -> None:
    """Show the table. Failure domains are shown where one was configured: the default is the agent's name.
    Ids are shown where two members share a name."""
    headers = ["NAME", "STATUS", "ADDRESS", "URL", "PARTITIONS", "LEADS", "FOR"]
    rows = [_member_row(member) for member in found]
    if any(name_of(member, found) != member.get("name") for member in found):
        headers.insert(1, "ID")
        for row, member in zip(rows, found, strict=True):
            row.insert(1, member["id"])
    if any(member.get("failure_domain") not in (None, member.get("name")) for member in found):
        place = headers.index("PARTITIONS")
        headers.insert(place, "DOMAIN")
        for row, member in zip(rows, found, strict=True):
            row.insert(place, member.get("failure_domain"))
    show_table(
        headers, rows, whole=("NAME", "ID", "URL"), spare=("FOR", "DOMAIN", "ADDRESS", "LEADS", "PARTITIONS")
    )


async def _until(
    read: Callable[[], Awaitable[Document]], is_good: Callable[[Document], bool], timeout_s: float
) -> Document:
    """Read a document again until it is good, or until the time is over, and return the last one. Also waits
    for an agent that does not answer yet."""
    from shoal.client.http.requests import Unreachable
    from shoal.errors import ShoalError

    deadline = time.monotonic() + timeout_s
    while True:
        is_last = time.monotonic() >= deadline
        try:
            document = await read()
            if is_last or is_good(document):
                return document
        except (Unreachable, ShoalError):
            if is_last:
                raise
        await asyncio.sleep(POLL_SECONDS)


def _alive(document: Mapping[str, Any]) -> int:
    return sum(1 for member in document["members"] if member["status"] == "alive")


def _member_row(member: Mapping[str, Any]) -> list[object]:
    partitions = member.get("partitions") or []
    present = member["status"] in ("alive", "suspect", "leaving")  # others lead nothing
    since = member.get("since")
    return [
        member.get("name") or member["id"],
        f"{member['status']}, drained" if member.get("drained") else member["status"],
        f"{member['address']}:{member['gossip_port']}",
        member.get("url"),
        None if member["status"] == "left" else len(partitions),
        sum(1 for partition in partitions if present and partition.get("role") == "leader"),
        age_text(time.time() - datetime.fromisoformat(since).timestamp()) if since else None,
    ]


@app.command(epilog=example("shoal status", "shoal status --wait && ./start-the-load"))
def status(
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
    wait: Annotated[bool, flag("Return once the cluster is healthy.", "--wait")] = False,
    timeout: TimeoutOption = 60.0,
) -> None:
    """Is the cluster healthy? Names failed members, leaderless and under-replicated partitions.

    The exit code is 0 only if there are none.
    """

    async def work(client: AdminClient) -> dict[str, Any]:
        is_good = operator.itemgetter("healthy")
        return await _until(lambda: _report(client), is_good, timeout if wait else 0)

    report = with_admin(agent, work)
    if output is Output.JSON:
        show_json(report)
    else:
        _show_report(report)
    if not report["healthy"]:
        raise typer.Exit(1)


async def _report(client: AdminClient) -> dict[str, Any]:
    unready = await client.unready_reason()
    found = (await client.members())["members"]
    routes = (await client.routes())["topics"]
    topics = await client.topics()
    kept = await client.kept_topics() if unready is None else []
    asked = await client.agent()
    settings = asked.get("configuration") or {}
    trouble = problems(found, routes, topics)
    trouble["cleared_writes"] = [
        f"{item['topic']}/{item['partition']}" for item in asked.get("cleared_writes", [])
    ]
    trouble["kept"] = [str(item["name"] or item["id"]) for item in kept]
    report: dict[str, Any] = {
        "healthy": unready is None and not any(trouble.values()),
        "ready": unready is None,
        "unready_reason": unready,
        "alive": _alive({"members": found}),
        "members": len(found),
        "topics": len(topics),
        "partitions": sum(len(entry["partitions"]) for entry in routes.values()),
        **trouble,
        "lost_majority": lost_majorities(found, routes),
        "asked": client.asked,
    }
    report["advice"] = advice(report, topics)
    if not report["lost_majority"]:
        report["advice"] += replacements(found, routes, settings.get("replace_after_ms"), time.time(), topics)
    report["posture"] = asked.get("posture")
    report["missing_protections"] = asked.get("missing_protections") or []
    return report


def _show_report(report: Mapping[str, Any]) -> None:
    verdict = "healthy" if report["healthy"] else "in trouble"
    alive = f"{report['alive']} of {plural(report['members'], 'member')} alive"
    topics, partitions = plural(report["topics"], "topic"), plural(report["partitions"], "partition")
    print(f"{verdict}: {alive}, {topics}, {partitions}")
    if report["posture"] == "insecure":
        print(
            f"INSECURE: everybody who reaches {report['asked']} may change everything, without"
            f" {', '.join(report['missing_protections'])}; `shoal secure init` makes what is missing"
        )
    if not report["ready"]:
        print(f"not ready: {report['unready_reason']}")
    for kind in ("failed", "leaderless", "lost_majority", "under_replicated", "cleared_writes", "kept"):
        if report[kind]:
            print(f"{kind.replace('_', '-')}: {listed(report[kind], LISTED_PROBLEMS_MAX)}")
    for line in report["advice"]:
        print(line)


@app.command(epilog=example("shoal join 10.0.0.7:7946"))
def join(
    addresses: Annotated[list[str], argument("HOST:PORT...", "Gossip addresses of members.")],
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let the agent contact members of the cluster that it should join."""
    document = with_admin(agent, lambda client: client.join(addresses))
    reached = document.get("joined", 0)
    tell(document, output, f"{reached} of {plural(len(addresses), 'address')} answered")
    if not reached:
        raise CliError("no address answered", "give gossip addresses (default port 7946), not HTTP ones")


@app.command(epilog=example("shoal leave --agent http://10.0.0.7:7070"))
def leave(agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE) -> None:
    """Let the agent hand over its leadership, leave the cluster and stop."""

    async def work(client: AdminClient) -> str:
        await client.leave()
        return client.asked

    url = with_admin(agent, work)
    tell({"url": url, "leaving": True}, output, f"the agent at {url} is leaving")


@app.command("force-leave", epilog=example("shoal force-leave host-1a2b3c4d"))
def force_leave(
    member: Annotated[str, argument("MEMBER", "The name or id of a failed member.", complete_member)],
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Count a failed member as left, so that the cluster no longer waits for it."""
    with_admin(agent, lambda client: client.force_leave(member))
    tell({"member": member, "status": "left"}, output, f"{member} counts as left")
