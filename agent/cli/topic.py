"""`shoal topic create|list|describe|delete|adopt`.

Law of this file: it shows and asks; what a legal topic is, the agents decide.
"""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.agent.cli.output import (
    DEFAULT_AGENT,
    AgentOption,
    CliError,
    Output,
    OutputOption,
    example,
    plural,
    say,
    show_json,
    show_table,
    size_text,
)
from shoal.agent.cli.running import with_admin

if TYPE_CHECKING:
    from shoal.aio_admin import AdminClient

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The topic.")]


class Kind(StrEnum):
    """What a topic is for. Further kinds come with the features that serve them."""

    LOG = "log"


def register(app: typer.Typer) -> None:
    """Add the commands to `shoal`."""
    topics = typer.Typer(
        help="Create, list, describe, delete and adopt topics.",
        epilog=example("shoal topic create flights --partitions 6", "shoal topic list"),
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    topics.command(
        "create", epilog=example("shoal topic create flights --partitions 6 --replication-factor 3")
    )(create)
    topics.command("list", epilog=example("shoal topic list --output json"))(list_)
    topics.command("describe", epilog=example("shoal topic describe flights"))(describe)
    topics.command("delete", epilog=example("shoal topic delete flights --yes"))(delete)
    topics.command("adopt", epilog=example("shoal topic adopt", "shoal topic adopt orders"))(adopt)
    app.add_typer(topics, name="topic")


def create(
    name: NameArgument,
    partitions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many partitions; the default is 1.")
    ] = None,
    replication_factor: Annotated[
        str | None,
        typer.Option(
            metavar="N|all", help="Copies of each partition; the default is 3, or fewer with fewer members."
        ),
    ] = None,
    kind: Annotated[Kind, typer.Option(help="What the topic is for.")] = Kind.LOG,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a topic. One that is there already, with equal settings, is left as it is."""
    settings: dict[str, Any] = {"kind": str(kind)}
    if partitions is not None:
        settings["partitions"] = partitions
    if replication_factor is not None:
        settings["replication_factor"] = _factor(replication_factor)
    created, document = with_admin(agent, lambda client: client.create_topic(name, settings))
    if output is Output.JSON:
        show_json({"created": created, **document})
        return
    verb = "created" if created else "was there already:"
    say(f"topic {name} {verb} {_summary(document)}")


def _factor(text: str) -> int | str:
    if text == "all":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise CliError(
            f"--replication-factor {text!r} is neither a number nor `all`", "give 1 or more", exit_code=2
        )
    return int(text)


def _summary(document: dict[str, Any]) -> str:
    partitions = document.get("partitions")
    count = len(partitions) if isinstance(partitions, list) else int(partitions or 0)
    factor = document.get("replication_factor")
    copies = "all replicas" if factor == "all" else plural(int(factor or 0), "replica")
    return f"{plural(count, 'partition')}, {copies}"


def list_(agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE) -> None:
    """The topics, with their size and health."""
    topics = with_admin(agent, lambda client: client.topics())
    if output is Output.JSON:
        show_json({"topics": topics})
        return
    if not topics:
        say("there are no topics; `shoal topic create NAME` makes one")
        return
    show_table(
        ["NAME", "KIND", "PARTITIONS", "REPLICAS", "UNDER-REPLICATED", "RECORDS", "SIZE"],
        [
            [
                entry["name"],
                entry.get("kind"),
                entry.get("partitions"),
                entry.get("replication_factor"),
                entry.get("under_replicated"),
                entry.get("records"),
                size_text(entry.get("bytes") or 0),
            ]
            for entry in topics
        ],
    )


def describe(
    name: NameArgument, agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE
) -> None:
    """A topic's settings; where each partition lies, who leads it, how far its log goes, who lags behind.

    FIRST to COMMITTED can be read (the high watermark is the next offset), END counts what is not committed
    yet. LAG: records that a follower lacks of the leader's log, the most of any first.
    """

    async def work(client: AdminClient) -> tuple[dict[str, Any], dict[str, Any]]:
        document, members = await asyncio.gather(client.topic(name), client.members())
        return document, members

    document, members = with_admin(agent, work)
    if output is Output.JSON:
        show_json(document)
        return
    names = {member["id"]: member.get("name") or member["id"] for member in members["members"]}
    print(f"topic {name} ({document.get('kind', 'log')}), {_summary(document)}, id {document.get('id', '-')}")
    show_table(
        ["PARTITION", "LEADER", "TERM", "REPLICAS", "FIRST", "COMMITTED", "END", "UNDER-REPLICATED", "LAG"],
        [_partition_row(entry, names) for entry in document["partitions"]],
    )


def _partition_row(entry: dict[str, Any], names: dict[str, str]) -> list[object]:
    replicas = entry.get("replicas", [])
    leader = entry.get("leader")
    return [
        entry["partition"],
        names.get(leader, leader) if leader else "none",
        entry.get("term"),
        ", ".join(_replica_text(replica, names) for replica in replicas),
        entry.get("log_start_offset"),
        entry.get("high_watermark"),
        entry.get("log_end_offset"),
        entry.get("under_replicated"),
        _lag_text([replica for replica in replicas if replica["id"] != leader], names),
    ]


def _replica_text(replica: dict[str, Any], names: dict[str, str]) -> str:
    name = names.get(replica["id"], replica["id"])
    return f"{name} (learner)" if replica.get("role") == "learner" else name


def _lag_text(followers: list[dict[str, Any]], names: dict[str, str]) -> str | int | None:
    """A number when all are equally far behind, else who lacks how much; `?` where nobody has said."""
    lags = {names.get(replica["id"], replica["id"]): replica.get("lag") for replica in followers}
    if not lags:
        return None
    if len(set(lags.values())) == 1 and None not in lags.values():
        return next(iter(lags.values()))
    most_first = sorted(lags.items(), key=lambda item: (item[1] is not None, -(item[1] or 0), item[0]))
    behind = [(name, lag) for name, lag in most_first if lag != 0]
    return ", ".join(f"{name} {'?' if lag is None else f'{lag:,}'}" for name, lag in behind)


def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    agent: AgentOption = DEFAULT_AGENT,
) -> None:
    """Delete a topic and all its records, for good."""
    if not yes:
        if not sys.stdin.isatty():
            raise CliError(f"deleting {name} needs a yes", "add --yes", exit_code=2)
        typer.confirm(f"Delete topic {name} and all its records?", abort=True, err=True)
    with_admin(agent, lambda client: client.delete_topic(name))
    say(f"topic {name} is deleted")


def adopt(
    topic: Annotated[
        str | None, typer.Argument(metavar="[NAME|ID]", help="The kept topic; without it all are listed.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Another name than it had.")
    ] = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """List topics that agents keep and the catalog does not know, or take one back.

    They are left over where a catalog was recovered by force that had not heard of them. Adopted, a topic has
    its old id and settings, and its replicas serve again; one that nobody wants is adopted and deleted.
    """
    if topic is None:
        _list_kept(with_admin(agent, lambda client: client.kept_topics()), output)
        return
    document = with_admin(agent, lambda client: client.adopt_topic(topic, name))
    if output is Output.JSON:
        show_json(document)
        return
    say(f"topic {document['name']} is adopted: {_summary(document)}")
    say("`shoal status` names partitions that lack a majority of their replicas still")


def _list_kept(kept: list[dict[str, Any]], output: Output) -> None:
    if output is Output.JSON:
        show_json({"topics": kept})
        return
    if not kept:
        say("the catalog knows every topic that agents hold")
        return
    show_table(
        ["NAME", "ID", "PARTITIONS", "HELD", "AGENTS"],
        [
            [
                item["name"] if item["adoptable"] else "unknown: cannot be adopted",
                item["id"],
                item["partitions"],
                ", ".join(str(part["partition"]) for part in item["held"]),
                ", ".join(sorted({agent["name"] for part in item["held"] for agent in part["agents"]})),
            ]
            for item in kept
        ],
    )
