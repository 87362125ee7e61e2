"""`shoal partition recover`: force a partition without a majority to go on with one survivor.

Law of this file: it shows the loss and asks. The agent decides whether a recovery is allowed.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from shoal.agent.cli.terminal.completion import complete_topic
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    Output,
    OutputOption,
    argument,
    example,
    flag,
    group,
)
from shoal.agent.cli.terminal.output import CliError, UsageError, say, show_json
from shoal.agent.cli.terminal.run import with_admin

EXAMPLE = "shoal partition recover --unsafe orders 0 --agent http://10.0.0.7:7070"
UNSAFE_ADVICE = (
    "a partition heals by itself once a majority of its agents is back; if those are gone for good, add "
    "--unsafe to see what would be lost"
)

partitions = group("partition", "Rescue partitions.", EXAMPLE)


@partitions.command("recover", epilog=example(EXAMPLE))
def recover(
    topic: Annotated[str, argument("TOPIC", "The topic, or _catalog.", complete_topic)],
    partition: Annotated[int, argument("PARTITION", "Its number.", min=0)],
    unsafe: Annotated[bool, flag("Acknowledged records may be lost.", "--unsafe")] = False,
    yes: Annotated[bool, flag("Do not ask for the partition's name.", "--yes-i-accept-data-loss")] = False,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let one agent's replica go on alone when the majority of a partition is lost for good.

    Name with --agent the surviving agent that has most of the partition. Acknowledged records that only the
    lost agents held are lost; all records of the survivor count from now on. Never start a lost agent's disk
    again afterwards. Where the catalog has lost its majority too, recover _catalog 0 first.
    """
    where = f"{topic}/{partition}"
    if not unsafe:
        raise UsageError(f"recovering {where} by force may lose acknowledged records", UNSAFE_ADVICE)
    preview = with_admin(agent, lambda client: client.recovery_preview(topic, partition))
    if preview["refusal"] is not None:
        raise CliError(f"{where} is not recovered: {preview['refusal']}")
    for line in warning(preview):
        say(line)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"recovering {where} needs a second yes", "add --yes-i-accept-data-loss")
        if typer.prompt(f"Type {where} to go on", err=True) != where:
            raise UsageError(f"{where} is not recovered: that was not its name")
    document = with_admin(agent, lambda client: client.recover_partition(topic, partition))
    if output is Output.JSON:
        show_json(document)
    say(f"{where} goes on with this agent alone; new replicas come as agents are there to hold them")


def warning(preview: dict[str, Any]) -> list[str]:
    """The losses that the operator accepts with a yes."""
    where = f"{preview['topic']}/{preview['partition']}"
    names = ", ".join(item["name"] for item in preview["lost"]) or "nobody"
    end, uncertain = preview["log_end_offset"], preview["entries"] - preview["committed_entries"]
    return [
        f"{where}: these voters do not answer: {names}",
        f"this agent's replica ends at offset {end}: acknowledged records beyond it are lost for ever",
        f"entries at its end that may never have been acknowledged, and count from now on: {uncertain}",
        "if those agents will come back, stop here: their replicas will have been replaced",
    ]
