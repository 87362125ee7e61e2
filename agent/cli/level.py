"""`shoal cluster`: the feature level of a cluster, and which member understands which.

Law of this file: it shows the document of an agent. The catalog's leader decides whether the level may rise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    Output,
    OutputOption,
    example,
    group,
    option,
)
from shoal.agent.cli.terminal.output import show_json, show_table, tell
from shoal.agent.cli.terminal.run import with_admin

cluster = group(
    "cluster",
    "The feature level of a cluster, which rises once every member understands a higher one.",
    "shoal cluster level",
    "shoal cluster raise-level",
)


@cluster.command("level", epilog=example("shoal cluster level", "shoal cluster level --output json"))
def show(agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE) -> None:
    """Show the level, the levels that each member understands, and what keeps it from rising."""
    document = with_admin(agent, lambda client: client.level())
    if output is Output.JSON:
        show_json(document)
        return
    print(headline(document))
    rows = [
        [
            member["name"] or member["id"],
            member["status"],
            f"{member['lowest']} to {member['highest']}",
            "yes" if member["holds"] else None,
        ]
        for member in document["members"]
    ]
    show_table(["MEMBER", "STATUS", "UNDERSTANDS", "HOLDS"], rows, whole=("MEMBER",))


@cluster.command(
    "raise-level", epilog=example("shoal cluster raise-level", "shoal cluster raise-level --to 2")
)
def raise_level(
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
    to: Annotated[
        int | None, option("N", "The level; default the highest that every member understands.", "--to")
    ] = None,
    without: Annotated[
        list[str] | None, option("NAME", "An agent that is gone for good; repeatable.", "--without")
    ] = None,
) -> None:
    """Raise the level at once. Agents of versions that do not understand it cannot come back afterwards."""
    document = with_admin(agent, lambda client: client.raise_level(to, without or ()))
    tell(document, output, headline(document))


def headline(document: Mapping[str, Any]) -> str:
    return f"level {document['level']}: {outlook(document)}"


def outlook(document: Mapping[str, Any]) -> str:
    """The next change of the level, and its reason."""
    level, possible = document["level"], document["possible"]
    members = [member for member in document["members"] if member["status"] != "left"]
    highest = max((member["highest"] for member in members), default=level)
    if possible is not None and possible > level:
        holders = [member["name"] or member["id"] for member in document["members"] if member["holds"]]
        if holders:
            advice = f"`shoal cluster raise-level` raises it to {possible}"
            return f"held by {', '.join(holders)} (--hold-level); {advice}"
        left = [
            member["name"] or member["id"] for member in document["members"] if is_missed(member, possible)
        ]
        if left:
            waited = f"{', '.join(left)} may come back with the former version (--replace-after)"
            return f"{waited}; `shoal cluster raise-level` raises it to {possible} without waiting"
        return f"every member understands {possible}; it rises within a minute"
    lacking = [member["name"] or member["id"] for member in members if member["highest"] <= level]
    if highest > level and lacking:
        return f"{', '.join(lacking)} must be upgraded before it can rise to {highest}"
    return "the highest that its members understand"


def is_missed(member: Mapping[str, Any], level: int) -> bool:
    """Whether it was stopped in order, and did not understand the level then."""
    return member["status"] == "left" and not member["lowest"] <= level <= member["highest"]
