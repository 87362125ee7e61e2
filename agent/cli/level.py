"""`shoal cluster`: the feature level of a cluster, and which member understands which.

Law of this file: it shows the document of an agent. The catalog's leader decides whether the level may rise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from shoal.agent.cli.terminal.completion import complete_member
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    Output,
    OutputOption,
    example,
    group,
    name_of,
    option,
)
from shoal.agent.cli.terminal.output import show_json, show_table, tell
from shoal.agent.cli.terminal.run import with_admin
from shoal.agent.levels import outlook

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
        list[str] | None,
        option(
            "NAME",
            "An agent that is gone for good; repeatable.",
            "--without",
            autocompletion=complete_member,
            callback=name_of,
        ),
    ] = None,
) -> None:
    """Raise the level at once. Agents of versions that do not understand it cannot come back afterwards."""
    document = with_admin(agent, lambda client: client.raise_level(to, without or ()))
    tell(document, output, headline(document))


def headline(document: Mapping[str, Any]) -> str:
    return f"level {document['level']}: {outlook(document)}"
