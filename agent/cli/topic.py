"""`shoal topic create|list|describe|config|alter|trim|delete|adopt`.

Law of this file: it shows and asks. The agents decide which topics are legal.
"""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from shoal.agent.cli.terminal.amounts import end_of
from shoal.agent.cli.terminal.completion import complete_topic
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    Output,
    OutputOption,
    PartitionOption,
    YesOption,
    argument,
    example,
    flag,
    group,
    name_of,
    option,
)
from shoal.agent.cli.terminal.output import (
    CliError,
    UsageError,
    confirm,
    plural,
    say,
    show_json,
    show_table,
    size_text,
    tell,
)
from shoal.agent.cli.terminal.run import with_admin
from shoal.agent.cli.topic_settings import (
    AcknowledgedOption,
    HoldOption,
    RetentionBytesOption,
    RetentionOption,
    SegmentAgeOption,
    SegmentBytesOption,
    change_text,
    changeable,
    factor_of,
    fewest_replicas,
    replicas_text,
    setting_rows,
    shown_settings,
    summary,
)

if TYPE_CHECKING:
    from shoal.client.async_admin import AdminClient

NameArgument = Annotated[str, argument("NAME", "The topic.", complete_topic)]

topics = group(
    "topic",
    "Create, list, describe, configure, alter, trim, delete and adopt topics.",
    "shoal topic create flights --partitions 6",
    "shoal topic list",
)


class LogKind(StrEnum):
    """The kinds of topics."""

    LOG = "log"
    TIMER = "timer"
    TABLE = "table"


@topics.command(
    "create",
    epilog=example(
        "shoal topic create flights --partitions 6 --replication-factor 3",
        "shoal topic create reminders --kind timer",
    ),
)
def create(
    name: NameArgument,
    partitions: Annotated[int | None, option("N", "Number of partitions; default 1.", min=1)] = None,
    replication_factor: Annotated[
        str | None, option("N|all", "Copies of each partition; default 3, or fewer with fewer members.")
    ] = None,
    kind: Annotated[
        LogKind, flag("timer: groups see each record when it is due; table: rows by key.")
    ] = LogKind.LOG,
    retention: RetentionOption = None,
    retention_bytes: RetentionBytesOption = None,
    segment_bytes: SegmentBytesOption = None,
    segment_age: SegmentAgeOption = None,
    hold_for_groups: HoldOption = None,
    acknowledged: AcknowledgedOption = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a topic. An existing topic with equal settings is left as it is."""
    settings = {
        "kind": str(kind),
        **changeable(retention, retention_bytes, segment_bytes, segment_age, hold_for_groups, acknowledged),
    }
    if partitions is not None:
        settings["partitions"] = partitions
    if replication_factor is not None:
        settings["replication_factor"] = factor_of(replication_factor)
    created, document = with_admin(agent, lambda client: client.create_topic(name, settings))
    verb = "created" if created else "was there already:"
    said = f"topic {name} {verb} {summary(document)}"
    tell({"created": created, **document}, output, said, document.get("note", ""))


@topics.command("list", epilog=example("shoal topic list --output json"))
@topics.command("ls", hidden=True, epilog=example("shoal topic ls"))
def list_(agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE) -> None:
    """List the topics with their size and health."""

    found, routes = with_admin(agent, lambda client: asyncio.gather(client.topics(), client.routes()))
    if output is Output.JSON or not found:
        tell({"topics": found}, output, "there are no topics; `shoal topic create NAME` makes one")
    else:
        show_topics(found, routes["topics"])


def show_topics(found: list[dict[str, Any]], routes: dict[str, Any]) -> None:
    """The table of topics. `routes`: by their names, as far as they are known."""
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
            for entry in found
        ],
        spare=("KIND", "SIZE", "PARTITIONS"),
    )


@topics.command("describe", epilog=example("shoal topic describe flights"))
def describe(
    name: NameArgument, agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE
) -> None:
    """Show a topic's settings, and each partition's leader, replicas, offsets and lag.

    Records from FIRST to just before COMMITTED, the high watermark, can be read. END also counts uncommitted
    records. LAG is the number of the leader's records that a follower lacks, largest first.
    """

    document, members = with_admin(agent, lambda client: asyncio.gather(client.topic(name), client.members()))
    if output is Output.JSON:
        show_json(document)
        return
    names = {member["id"]: member.get("name") or member["id"] for member in members["members"]}
    print(f"topic {name} ({document.get('kind', 'log')}), {summary(document)}, id {document.get('id', '-')}")
    for line in filter(None, (shown_settings(document), document.get("note"), change_text(document))):
        print(line)
    show_table(
        ["PARTITION", "LEADER", "TERM", "REPLICAS", "FIRST", "COMMITTED", "END", "UNDER-REPLICATED", "LAG"],
        [_partition_row(entry, names) for entry in document["partitions"]],
        spare=("TERM", "FIRST", "END"),
    )


def _partition_row(entry: dict[str, Any], names: dict[str, str]) -> list[object]:
    replicas = entry.get("replicas", [])
    leader = entry.get("leader")
    held = [(names.get(one["id"], one["id"]), one.get("role") == "learner") for one in replicas]
    return [
        entry["partition"],
        names.get(leader, leader) if leader else "none",
        entry.get("term"),
        ", ".join(f"{name} (learner)" if is_learner else name for name, is_learner in held),
        entry.get("log_start_offset"),
        entry.get("high_watermark"),
        entry.get("log_end_offset"),
        entry.get("under_replicated"),
        _lag_text([replica for replica in replicas if replica["id"] != leader], names),
    ]


def _lag_text(followers: list[dict[str, Any]], names: dict[str, str]) -> str | int | None:
    """A number where all followers lag equally, else each follower's lag; `?` where it is unknown."""
    lags = {names.get(replica["id"], replica["id"]): replica.get("lag") for replica in followers}
    if not lags:
        return None
    if len(set(lags.values())) == 1 and None not in lags.values():
        return next(iter(lags.values()))
    most_first = sorted(lags.items(), key=lambda item: (item[1] is not None, -(item[1] or 0), item[0]))
    behind = [(name, lag) for name, lag in most_first if lag != 0]
    return ", ".join(f"{name} {'?' if lag is None else f'{lag:,}'}" for name, lag in behind)


@topics.command("config", epilog=example("shoal topic config flights"))
def config(
    name: NameArgument, agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE
) -> None:
    """Show each setting of a topic: its value, its default, whether it was set, and what changes it.

    SET is yes where the value is another than the default. The version is for `alter --if-version`.
    """
    document = with_admin(agent, lambda client: client.topic_settings(name))
    if output is Output.JSON:
        show_json(document)
        return
    print(f"topic {name}, settings of version {document['version']}")
    show_table(["SETTING", "VALUE", "DEFAULT", "SET", "CHANGED BY"], setting_rows(document))


@topics.command(
    "alter",
    epilog=example(
        "shoal topic alter flights --retention 7d --retention-bytes 10GiB",
        "shoal topic alter flights --retention none",
        "shoal topic alter flights --replication-factor 3",
    ),
)
def alter(
    name: NameArgument,
    replication_factor: Annotated[
        str | None, option("N|all", "Copies of each partition; they come and go one at a time.")
    ] = None,
    retention: RetentionOption = None,
    retention_bytes: RetentionBytesOption = None,
    segment_bytes: SegmentBytesOption = None,
    segment_age: SegmentAgeOption = None,
    hold_for_groups: HoldOption = None,
    acknowledged: AcknowledgedOption = None,
    if_version: Annotated[
        str | None, option("VERSION", "Only if the settings are those that `shoal topic config` showed.")
    ] = None,
    partitions: Annotated[str | None, option("N", "Fixed.", hidden=True)] = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change a topic's replicas, retention or segment sizes. Settings that are not named stay.

    All agents take the new settings at once, without a restart. `shoal topic describe` shows how far replicas
    are. Partitions are fixed when a topic is created.
    """
    if partitions is not None:
        raise UsageError(
            f"the number of partitions of {name} is fixed, since each key belongs to one of them",
            "create another topic and copy the records",
        )
    changes = changeable(
        retention, retention_bytes, segment_bytes, segment_age, hold_for_groups, acknowledged
    )
    if replication_factor is not None:
        changes["replication_factor"] = factor_of(replication_factor)
    if not changes:
        raise UsageError("there is nothing to change", "give --retention or another setting")
    document = with_admin(agent, lambda client: client.alter_topic(name, if_version=if_version, **changes))
    said = f"topic {name}: {summary(document)}; {shown_settings(document)}"
    tell(document, output, said, document.get("note", ""), change_text(document))


@topics.command(
    "trim",
    epilog=example(
        "shoal topic trim flights --before @7d", "shoal topic trim flights --partition 0 --before 5000"
    ),
)
def trim(
    name: NameArgument,
    before: Annotated[str, option("OFFSET|@TIME|latest", "Remove the records before it, in whole segments.")],
    partition: PartitionOption = None,
    yes: YesOption = False,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove a topic's oldest records from all replicas, for good: whole segments before an offset.

    The segment that is being written stays, so fewer records may be removed than was asked. A time or
    `latest` applies to all partitions, an offset to one. The answer says how many records each partition
    has lost.
    """
    where = end_of(before, time.time_ns() // 1_000_000)
    confirm(f"Remove the records of {name} before {before}?", f"trimming {name}", yes=yes)

    async def work(client: AdminClient) -> list[dict[str, int]]:
        ends = await trim_offsets(client, name, where, partition)
        answers = await asyncio.gather(*(client.trim(name, end.partition, end.before) for end in ends))
        return [
            {
                "partition": end.partition,
                "before": end.before,
                "removed": max(0, answer["log_start_offset"] - end.start),
                "log_start_offset": answer["log_start_offset"],
            }
            for end, answer in zip(ends, answers, strict=True)
        ]

    found = with_admin(agent, work)
    tell({"partitions": found}, output, *(trimmed_text(name, **item) for item in found))


def trimmed_text(topic: str, partition: int, before: int, removed: int, log_start_offset: int) -> str:
    """The outcome for one partition."""
    what = f"removed {plural(removed, 'record')}"
    if not removed:
        what = f"removed nothing: no whole segment lies before offset {before:,}"
    return f"{topic}/{partition}: {what}; it begins at offset {log_start_offset:,}"


class TrimEnd(NamedTuple):
    """Where a partition begins, and the offset to trim before."""

    partition: int
    start: int
    before: int


async def trim_offsets(client: AdminClient, topic: str, before: str, partition: int | None) -> list[TrimEnd]:
    """The partitions to trim. Raises CliError."""
    at = before[1:] if before.startswith("@") else None
    known = await client.topic_offsets(topic, at)
    chosen = [entry for entry in known if partition in (None, entry["partition"])]
    if not chosen:
        raise CliError(
            f"{topic} has no partition {partition}", f"`shoal topic describe {topic}` shows its partitions"
        )
    if before.isdecimal():
        if len(chosen) > 1:
            raise UsageError(f"--before {before}: an offset belongs to one partition", "add --partition P")
        end = chosen[0]["high_watermark"]
        if int(before) > end:
            where = f"{topic}/{chosen[0]['partition']}"
            raise CliError(
                f"{where} ends at offset {end:,}, before {int(before):,}: nothing was removed",
                "`--before latest` removes all whole segments",
            )
        return [TrimEnd(chosen[0]["partition"], chosen[0]["log_start_offset"], int(before))]
    field = "high_watermark" if before == "latest" else "offset"
    return [TrimEnd(entry["partition"], entry["log_start_offset"], entry[field]) for entry in chosen]


@topics.command("delete", epilog=example("shoal topic delete flights --yes"))
@topics.command("rm", hidden=True, epilog=example("shoal topic rm flights --yes"))
def delete(
    name: NameArgument,
    yes: YesOption = False,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a topic and all its records, for good."""
    confirm(f"Delete topic {name} and all its records?", f"deleting {name}", yes=yes)
    with_admin(agent, lambda client: client.delete_topic(name))
    tell({"topic": name, "deleted": True}, output, f"topic {name} is deleted")


@topics.command("adopt", epilog=example("shoal topic adopt", "shoal topic adopt orders"))
def adopt(
    topic: Annotated[
        str | None, argument("[NAME|ID]", "The kept topic; without it all are listed.", callback=name_of)
    ] = None,
    name: Annotated[str | None, option("NAME", "A new name for the topic.", "--as", callback=name_of)] = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """List topics that agents keep and the catalog does not know, or take one back.

    A catalog that was recovered by force may lack topics. An adopted topic has its old id and settings, and
    its replicas serve again. Adopt and delete a topic that nobody wants.
    """
    if topic is None:
        _list_kept(with_admin(agent, lambda client: client.kept_report()), output)
        return
    document = with_admin(agent, lambda client: client.adopt_topic(topic, name))
    tell(
        document,
        output,
        f"topic {document['name']} is adopted: {summary(document)}",
        "`shoal status` names partitions that still lack a majority of their replicas",
    )


def _list_kept(report: dict[str, Any], output: Output) -> None:
    kept, silent = report["topics"], [agent["name"] for agent in report.get("silent", [])]
    unheard = f"{', '.join(silent)} did not say which topics they keep: ask again shortly"
    if output is Output.JSON or not kept:
        none = "the catalog knows every topic that agents hold"
        said = f"no other agent keeps a topic that the catalog does not know; {unheard}" if silent else none
        tell(report, output, said)
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
        whole=("NAME", "ID"),
        spare=("PARTITIONS", "AGENTS"),
    )
    if silent:
        say(unheard)
