"""`shoal topic create|list|describe|alter|trim|delete|adopt`.

Law of this file: it shows and asks; what a legal topic is, the agents decide.
"""

from __future__ import annotations

import asyncio
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.agent.cli.terminal.amounts import start_of
from shoal.agent.cli.terminal.completion import complete_topic
from shoal.agent.cli.terminal.output import (
    DEFAULT_AGENT,
    AgentOption,
    CliError,
    Output,
    OutputOption,
    example,
    say,
    show_json,
    show_table,
    size_text,
)
from shoal.agent.cli.terminal.run import with_admin
from shoal.agent.cli.topic_settings import (
    RetentionBytesOption,
    RetentionOption,
    SegmentAgeOption,
    SegmentBytesOption,
    changeable,
    factor_of,
    fewest_replicas,
    replicas_text,
    shown_settings,
    summary,
)

if TYPE_CHECKING:
    from shoal.client.async_admin import AdminClient

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The topic.", autocompletion=complete_topic)
]
PartitionOption = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, metavar="P", help="Only this partition.")
]


class Kind(StrEnum):
    """What a topic is for. Further kinds come with the features that serve them."""

    LOG = "log"


def register(app: typer.Typer) -> None:
    """Add the commands to `shoal`."""
    topics = typer.Typer(
        help="Create, list, describe, alter, trim, delete and adopt topics.",
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
    topics.command(
        "alter",
        epilog=example(
            "shoal topic alter flights --retention 7d --retention-bytes 10GiB",
            "shoal topic alter flights --retention none",
        ),
    )(alter)
    topics.command(
        "trim",
        epilog=example(
            "shoal topic trim flights --before @7d", "shoal topic trim flights --partition 0 --before 5000"
        ),
    )(trim)
    topics.command("ls", hidden=True, epilog=example("shoal topic ls"))(list_)
    topics.command("rm", hidden=True, epilog=example("shoal topic rm flights --yes"))(delete)
    topics.command("config", hidden=True, epilog=example("shoal topic config flights --retention 7d"))(alter)
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
    retention: RetentionOption = None,
    retention_bytes: RetentionBytesOption = None,
    segment_bytes: SegmentBytesOption = None,
    segment_age: SegmentAgeOption = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a topic. One that is there already, with equal settings, is left as it is."""
    settings = {"kind": str(kind), **changeable(retention, retention_bytes, segment_bytes, segment_age)}
    if partitions is not None:
        settings["partitions"] = partitions
    if replication_factor is not None:
        settings["replication_factor"] = factor_of(replication_factor)
    created, document = with_admin(agent, lambda client: client.create_topic(name, settings))
    if output is Output.JSON:
        show_json({"created": created, **document})
        return
    verb = "created" if created else "was there already:"
    say(f"topic {name} {verb} {summary(document)}")


def list_(agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE) -> None:
    """The topics, with their size and health."""

    async def work(client: AdminClient) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        found, routes = await asyncio.gather(client.topics(), client.routes())
        return found, routes["topics"]

    topics, routes = with_admin(agent, work)
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
                replicas_text(
                    entry.get("replication_factor"),
                    fewest_replicas(routes.get(entry["name"], {}).get("partitions", [])),
                ),
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
    print(f"topic {name} ({document.get('kind', 'log')}), {summary(document)}, id {document.get('id', '-')}")
    print(shown_settings(document))
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


def alter(
    name: NameArgument,
    retention: RetentionOption = None,
    retention_bytes: RetentionBytesOption = None,
    segment_bytes: SegmentBytesOption = None,
    segment_age: SegmentAgeOption = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change how much of a topic is kept, or how its files grow. What is not named stays.

    Partitions and replicas are fixed when a topic is created.
    """
    changes = changeable(retention, retention_bytes, segment_bytes, segment_age)
    if not changes:
        raise CliError("there is nothing to change", "give --retention or another setting", exit_code=2)
    document = with_admin(agent, lambda client: client.alter_topic(name, **changes))
    if output is Output.JSON:
        show_json(document)
        return
    say(f"topic {name}: {shown_settings(document)}")


def trim(
    name: NameArgument,
    before: Annotated[
        str, typer.Option(metavar="OFFSET|@TIME|latest", help="Records below it go, in whole segments.")
    ],
    partition: PartitionOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove a topic's oldest records from all replicas, for good: whole segments that lie below an offset.

    The segment that is being written stays, so that less may go than was asked. A time or `latest` is for
    all partitions, an offset for one.
    """
    start = start_of(before, time.time_ns() // 1_000_000)
    if start == "earliest" or start.startswith("-"):
        raise CliError(f"--before {before} is no end", "give an offset, @TIME or latest", exit_code=2)
    if not yes:
        if not sys.stdin.isatty():
            raise CliError(f"trimming {name} needs a yes", "add --yes", exit_code=2)
        typer.confirm(f"Remove the records of {name} before {before}?", abort=True, err=True)

    async def work(client: AdminClient) -> list[tuple[int, int]]:
        ends = await trim_offsets(client, name, start, partition)
        answers = await asyncio.gather(*(client.trim(name, *end) for end in ends))
        return [
            (number, answer["log_start_offset"]) for (number, _), answer in zip(ends, answers, strict=True)
        ]

    found = with_admin(agent, work)
    if output is Output.JSON:
        show_json({"partitions": [{"partition": p, "log_start_offset": offset} for p, offset in found]})
        return
    for number, offset in found:
        say(f"{name}/{number} begins at offset {offset:,}")


async def trim_offsets(
    client: AdminClient, topic: str, before: str, partition: int | None
) -> list[tuple[int, int]]:
    """The partitions to trim, and before which offset. Raises CliError."""
    at = before[1:] if before.startswith("@") else None
    known = await client.topic_offsets(topic, at)
    chosen = [entry for entry in known if partition in (None, entry["partition"])]
    if not chosen:
        raise CliError(
            f"{topic} has no partition {partition}", f"`shoal topic describe {topic}` shows its partitions"
        )
    if before.isdecimal():
        if len(chosen) > 1:
            raise CliError(
                f"--before {before}: an offset belongs to one partition", "add --partition P", exit_code=2
            )
        return [(chosen[0]["partition"], int(before))]
    field = "high_watermark" if before == "latest" else "offset"
    return [(entry["partition"], entry[field]) for entry in chosen]


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
    say(f"topic {document['name']} is adopted: {summary(document)}")
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
