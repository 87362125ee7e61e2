"""`shoal partition recover`: force a partition without a majority to go on with one survivor.

Law of this file: it shows what would happen and asks; whether it may happen at all the agent decides.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from shoal.agent.cli.terminal.output import (
    DEFAULT_AGENT,
    AgentOption,
    CliError,
    Output,
    OutputOption,
    example,
    say,
    show_json,
)
from shoal.agent.cli.terminal.run import with_admin

UNSAFE_ADVICE = (
    "a partition heals by itself once a majority of its agents is back; if those are gone for good, add "
    "--unsafe to see what would be lost"
)


def register(app: typer.Typer) -> None:
    """Add the commands to `shoal`."""
    partitions = typer.Typer(
        help="Rescue partitions.",
        epilog=example("shoal partition recover --unsafe orders 0 --agent http://10.0.0.7:7070"),
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    partitions.callback()(lambda: None)
    partitions.command(
        "recover", epilog=example("shoal partition recover --unsafe orders 0 --agent http://10.0.0.7:7070")
    )(recover)
    app.add_typer(partitions, name="partition")


def recover(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic, or _catalog.")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Its number.")],
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Acknowledged records may be lost.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes-i-accept-data-loss", help="Do not ask for the partition's name.")
    ] = False,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let one agent's replica go on alone when the majority of a partition is lost for good.

    Name with --agent the surviving agent that has most of the partition. What was acknowledged and only
    stood on the lost agents is lost; what stands on the survivor counts from now on. Never start a lost
    agent's disk again afterwards. Where the catalog has lost its majority too, recover _catalog 0 first.
    """
    where = f"{topic}/{partition}"
    if not unsafe:
        raise CliError(
            f"recovering {where} by force may lose acknowledged records", UNSAFE_ADVICE, exit_code=2
        )
    preview = with_admin(agent, lambda client: client.recovery_preview(topic, partition))
    if preview["refusal"] is not None:
        raise CliError(f"{where} is not recovered: {preview['refusal']}", "")
    for line in warning(preview):
        say(line)
    if not yes:
        if not sys.stdin.isatty():
            raise CliError(
                f"recovering {where} needs a second yes", "add --yes-i-accept-data-loss", exit_code=2
            )
        if typer.prompt(f"Type {where} to go on", err=True) != where:
            raise CliError(f"{where} is not recovered: that was not its name", "", exit_code=2)
    document = with_admin(agent, lambda client: client.recover_partition(topic, partition))
    if output is Output.JSON:
        show_json(document)
    say(f"{where} goes on with this agent alone; new replicas come as agents are there to hold them")


def warning(preview: dict[str, Any]) -> list[str]:
    """What the operator has to know before saying yes."""
    where = f"{preview['topic']}/{preview['partition']}"
    names = ", ".join(item["name"] for item in preview["lost"]) or "nobody"
    end, uncertain = preview["log_end_offset"], preview["entries"] - preview["committed_entries"]
    return [
        f"{where}: these voters do not answer: {names}",
        f"this agent's replica ends at offset {end}: what was acknowledged beyond it is lost for ever",
        f"entries at its end that may never have been acknowledged, and count from now on: {uncertain}",
        "if those agents are only away, stop here: once they come back they find their replicas replaced",
    ]
