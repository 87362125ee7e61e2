"""`shoal group list|describe|create|change|pause|resume|seek|redrive|decide|delete`.

Law of this file: it shows and asks. The agents decide which groups are legal.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from shoal.agent.cli.group_text import (
    consumer_rows,
    kept_text,
    partition_row,
    shown_settings,
    summary,
    totals_text,
    waits_text,
)
from shoal.agent.cli.records.group_consume import ConsumerMode
from shoal.agent.cli.terminal.amounts import duration_text, start_of
from shoal.agent.cli.terminal.completion import complete_group, complete_topic
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
    option,
)
from shoal.agent.cli.terminal.output import (
    CliError,
    UsageError,
    confirm,
    plural,
    show_json,
    show_table,
    tell,
)
from shoal.agent.cli.terminal.run import with_admin
from shoal.format.timestamps import format_time

if TYPE_CHECKING:
    from shoal.client.async_admin import AdminClient

TopicArgument = Annotated[str, argument("TOPIC", "The topic.", complete_topic)]
GroupArgument = Annotated[str, argument("GROUP", "The consumer group.", complete_group)]
VisibilityOption = Annotated[
    str | None,
    option("TIME", "How long a message is in one consumer's hands; default 30s.", "--visibility"),
]
AttemptsOption = Annotated[
    str | None, option("N|none", "Attempts before a message is dead; default 5.", "--max-attempts")
]
RetryFirstOption = Annotated[
    str | None, option("TIME", "Delay after the first failure; default 1s.", "--retry-first")
]
RetryFactorOption = Annotated[
    int | None, option("N", "Its growth with each attempt; default 2.", "--retry-factor", min=1)
]
RetryMostOption = Annotated[str | None, option("TIME", "The longest delay; default 5m.", "--retry-most")]
SessionOption = Annotated[
    str | None,
    option("TIME", "Silence after which an exclusive consumer has gone; default 10s.", "--session"),
]

groups = group(
    "group",
    "List, describe, create, change, pause, seek, redrive and delete consumer groups.",
    "shoal group list payments",
    "shoal group describe payments billing",
)


class DeadAction(StrEnum):
    """The fate of a message after its last attempt."""

    LETTER = "letter"
    STOP = "stop"
    DROP = "drop"


class StoppedFate(StrEnum):
    """An operator's decision about a message that stopped its group."""

    RETRY = "retry"
    LETTER = "letter"
    DROP = "drop"


DeadOption = Annotated[
    DeadAction | None,
    flag("After the last attempt: to the dead letters, stop the message, or drop it; default letter."),
]


@groups.command("list", epilog=example("shoal group list payments", "shoal group list payments -o json"))
@groups.command("ls", hidden=True, epilog=example("shoal group ls payments"))
def list_(
    topic: TopicArgument, agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE
) -> None:
    """List a topic's consumer groups.

    LAG counts messages that are not done, IN-FLIGHT those in consumers' hands, DEAD the letters of messages
    that failed for good.
    """
    found = with_admin(agent, lambda client: client.groups(topic))
    if output is Output.JSON or not found:
        tell({"groups": found}, output, f"{topic} has no groups; `shoal group create {topic} NAME` makes one")
        return
    show_table(
        ["NAME", "MODE", "PAUSED", "LAG", "IN-FLIGHT", "DEAD"],
        [[one[key] for key in ("name", "mode", "paused", "lag", "in_flight", "dead")] for one in found],
        whole=("NAME",),
        spare=("DEAD", "PAUSED"),
    )


@groups.command("describe", epilog=example("shoal group describe payments billing"))
def describe(
    topic: TopicArgument,
    name: GroupArgument,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a group's settings, each partition's position and lag, and its consumers.

    POSITION is the first message that is not done, END the high watermark. BEHIND is the age of the message
    at the position. DELAYED messages wait for their next attempt. WHY says why no more messages are given.
    """
    document = with_admin(agent, lambda client: client.group(topic, name))
    if output is Output.JSON:
        show_json(document)
        return
    print(f"group {name} of {topic}, {summary(document)}, id {document['id']}")
    print(shown_settings(document))
    for line in totals_text(document):
        print(line)
    show_table(
        ["PARTITION", "POSITION", "END", "LAG", "BEHIND", "IN-FLIGHT", "DELAYED", "OWNER", "WHY"],
        [partition_row(entry) for entry in document["partitions"]],
        spare=("END", "WHY", "DELAYED", "BEHIND"),
    )
    for line in waits_text(topic, document["partitions"]):
        print(line)
    rows = consumer_rows(document["partitions"])
    if rows:
        print()
        show_table(["CONSUMER", "PARTITIONS", "HOLDS", "HEARD"], rows, whole=("CONSUMER",))


@groups.command(
    "create",
    epilog=example(
        "shoal group create payments billing",
        "shoal group create payments ledger --mode exclusive --start latest",
        "shoal group create payments mail --visibility 5m --max-attempts 3 --dead drop",
    ),
)
def create(
    topic: TopicArgument,
    name: GroupArgument,
    mode: Annotated[
        ConsumerMode, flag("Competing consumers, one owner a partition, or order by key.")
    ] = ConsumerMode.SHARED,
    start: Annotated[
        str, option("WHERE", "earliest, latest, @TIME, or -1h: where the group begins.", "--start")
    ] = "earliest",
    visibility: VisibilityOption = None,
    max_attempts: AttemptsOption = None,
    retry_first: RetryFirstOption = None,
    retry_factor: RetryFactorOption = None,
    retry_most: RetryMostOption = None,
    dead: DeadOption = None,
    session: SessionOption = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a consumer group. An existing group with equal settings is left as it is.

    Mode and start are fixed for its life. The first receive of a group that does not exist makes one with
    default settings.
    """
    settings = changeable(visibility, max_attempts, (retry_first, retry_factor, retry_most), dead, session)
    settings |= {"mode": str(mode), "start": start_text(start)}
    created, document = with_admin(agent, lambda client: client.create_group(topic, name, **settings))
    verb = "created" if created else "was there already:"
    said = f"group {name} of {topic} {verb} {summary(document)}; {shown_settings(document)}"
    tell({"created": created, **document}, output, said)


@groups.command(
    "change",
    epilog=example(
        "shoal group change payments billing --visibility 2m",
        "shoal group change payments billing --max-attempts none --retry-most 1h",
    ),
)
def change(
    topic: TopicArgument,
    name: GroupArgument,
    visibility: VisibilityOption = None,
    max_attempts: AttemptsOption = None,
    retry_first: RetryFirstOption = None,
    retry_factor: RetryFactorOption = None,
    retry_most: RetryMostOption = None,
    dead: DeadOption = None,
    session: SessionOption = None,
    if_version: Annotated[
        str | None, option("VERSION", "Only if the settings are of this `settings_version`.")
    ] = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change a group's settings. Those that are not named stay; messages in flight keep their leases."""
    changes = changeable(visibility, max_attempts, (retry_first, retry_factor, retry_most), dead, session)
    if not changes:
        raise UsageError("there is nothing to change", "give --visibility or another setting")
    _changed(topic, name, changes, agent, output, if_version)


@groups.command("pause", epilog=example("shoal group pause payments billing"))
def pause(
    topic: TopicArgument,
    name: GroupArgument,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give no more messages. Those in consumers' hands may still be acknowledged."""
    _changed(topic, name, {"paused": True}, agent, output)


@groups.command("resume", epilog=example("shoal group resume payments billing"))
def resume(
    topic: TopicArgument,
    name: GroupArgument,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give messages again."""
    _changed(topic, name, {"paused": False}, agent, output)


def _changed(
    topic: str,
    name: str,
    changes: dict[str, Any],
    agent: str,
    output: Output,
    if_version: str | None = None,
) -> None:
    document = with_admin(
        agent, lambda client: client.change_group(topic, name, if_version=if_version, **changes)
    )
    tell(document, output, f"group {name} of {topic}: {summary(document)}; {shown_settings(document)}")


def changeable(
    visibility: str | None,
    max_attempts: str | None,
    retry: tuple[str | None, int | None, str | None],
    dead: DeadAction | None,
    session: str | None,
) -> dict[str, Any]:
    """The part of a group's document that these options name. Raises CliError."""
    first, factor, most = retry
    table: dict[str, Any] = {}
    if first is not None:
        table["first"] = duration_text(first, "--retry-first")
    if factor is not None:
        table["factor"] = factor
    if most is not None:
        table["most"] = duration_text(most, "--retry-most")
    changes: dict[str, Any] = {"retry": table} if table else {}
    if visibility is not None:
        changes["visibility"] = duration_text(visibility, "--visibility")
    if session is not None:
        changes["session"] = duration_text(session, "--session")
    if dead is not None:
        changes["dead"] = str(dead)
    if max_attempts is not None:
        if max_attempts != "none" and not (max_attempts.isascii() and max_attempts.isdecimal()):
            raise UsageError(f"--max-attempts {max_attempts!r} is no number", "give one like 5, or `none`")
        changes["max_attempts"] = None if max_attempts == "none" else int(max_attempts)
    return changes


def start_text(text: str) -> str:
    """The value of --start as agents take it. Raises UsageError."""
    where = start_of(text, time.time_ns() // 1_000_000, "--start")
    if where.startswith("@"):
        return f"@{format_time(int(where[1:]) * 1_000)}"
    if where not in ("earliest", "latest"):
        raise UsageError(
            f"--start {text!r} is an offset",
            "give earliest, latest or a time; `shoal group seek` sets offsets",
        )
    return where


@groups.command(
    "seek",
    epilog=example(
        "shoal group seek payments billing --to earliest",
        "shoal group seek payments billing --to -1h",
        "shoal group seek payments billing --to 5000 --partition 0",
    ),
)
def seek(
    topic: TopicArgument,
    name: GroupArgument,
    to: Annotated[str, option("WHERE", "earliest, latest, @TIME, -1h, or an offset.", "--to")],
    partition: PartitionOption = None,
    yes: YesOption = False,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have a group go on from another place: messages behind it come again, those before it never.

    Receipts of before are void. An offset belongs to one partition, other places to all, or to --partition.
    """
    where = start_of(to, time.time_ns() // 1_000_000, "--to")
    if where.startswith("-"):
        raise UsageError(f"--to {to}: a group has no place that counts from the end", "give an offset")
    if where.isdecimal() and partition is None:
        raise UsageError(f"--to {to}: an offset belongs to one partition", "add --partition P")
    confirm(f"Seek group {name} of {topic} to {to}?", f"seeking {name}", yes=yes)

    async def work(client: AdminClient) -> list[dict[str, Any]]:
        if partition is None:
            at = f"@{format_time(int(where[1:]) * 1_000)}" if where.startswith("@") else where
            return await client.seek_group(topic, name, at)
        offset = await _offset_of(client, topic, partition, where)
        return await client.seek_group(topic, name, {partition: offset})

    found = with_admin(agent, work)
    said = (f"{topic}/{one['partition']}: group {name} goes on at {one['offset']:,}" for one in found)
    tell({"partitions": found}, output, *said)


async def _offset_of(client: AdminClient, topic: str, partition: int, where: str) -> int:
    """The offset of a place in one partition. Raises UsageError."""
    if where.isdecimal():
        return int(where)
    at = where[1:] if where.startswith("@") else None
    for entry in await client.topic_offsets(topic, at):
        if entry["partition"] == partition:
            field = {"earliest": "log_start_offset", "latest": "high_watermark"}.get(where, "offset")
            return int(entry[field])
    raise UsageError(
        f"{topic} has no partition {partition}", f"`shoal topic describe {topic}` shows its partitions"
    )


@groups.command("redrive", epilog=example("shoal group redrive payments billing --limit 100"))
def redrive(
    topic: TopicArgument,
    name: GroupArgument,
    limit: Annotated[int | None, option("N", "At most N letters, the oldest first.", min=1)] = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Deliver dead letters again, with attempts counted anew.

    Messages that retention has removed from the topic are appended to it as new records.
    """
    found = with_admin(agent, lambda client: client.redrive_group(topic, name, limit))
    copied = f", {found['copied']:,} of them appended anew" if found.get("copied") else ""
    lines = [f"{plural(found['redriven'], 'dead letter')} of {topic} delivered again to {name}{copied}"]
    lines += kept_text(topic, found)
    tell(found, output, *lines)


@groups.command(
    "decide", epilog=example("shoal group decide payments billing retry --partition 0 --offset 17")
)
def decide(
    topic: TopicArgument,
    name: GroupArgument,
    fate: Annotated[StoppedFate, argument("FATE", "Try it again, make it a dead letter, or drop it.")],
    partition: Annotated[int, option("P", "Its partition.", "--partition", "-p", min=0)],
    offset: Annotated[int, option("OFFSET", "The stopped message.", "--offset", min=0)],
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Decide about a message that stopped: after the last attempt of a group whose `dead` is stop."""
    said = fate.value
    done = with_admin(agent, lambda client: client.decide_stopped(topic, name, partition, offset, said))
    if not done:
        raise CliError(
            f"{topic}/{partition} offset {offset:,} is not stopped in group {name}: nothing was changed",
            "another may have decided before; `shoal group describe` counts stopped messages",
        )
    tell(
        {"partition": partition, "offset": offset, "action": said},
        output,
        f"{topic}/{partition} offset {offset:,}: {said}",
    )


@groups.command("delete", epilog=example("shoal group delete payments billing --yes"))
@groups.command("rm", hidden=True, epilog=example("shoal group rm payments billing --yes"))
def delete(
    topic: TopicArgument,
    name: GroupArgument,
    yes: YesOption = False,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a group: its positions are gone for good. Its dead letters stay in their topic."""
    confirm(f"Delete group {name} of {topic}?", f"deleting {name}", yes=yes)
    with_admin(agent, lambda client: client.delete_group(topic, name))
    tell({"topic": topic, "group": name, "deleted": True}, output, f"group {name} of {topic} is deleted")
