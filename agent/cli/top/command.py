"""`shoal top`: the command, as the help shows it. looks.py asks and prints, and is imported when it runs."""

from __future__ import annotations

from typing import Annotated

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
    option,
)
from shoal.agent.cli.terminal.output import UsageError
from shoal.agent.cli.terminal.run import with_admin
from shoal.agent.cli.top.kinds import TableKind

ATTEMPT_TIMEOUT_MS = 2_000  # a frozen agent: another one is asked soon

app = typer.Typer()


@app.command(
    "top",
    epilog=example(
        "shoal top",
        "shoal top flights --sort lag",
        "shoal top --view agents --interval 1",
        "shoal top --count 1 | head",
        "shoal top --output json | jq .records_per_second",
    ),
)
def top(
    topic: Annotated[str | None, argument("TOPIC", "Show this topic's partitions.", complete_topic)] = None,
    view: Annotated[
        TableKind | None, flag("The first table; default: topics, and in a pipe topics and agents.", "--view")
    ] = None,
    sort: Annotated[str, option("COLUMN", "Sort by this column, as LAG.", "--sort")] = "RECORDS/S",
    interval: Annotated[
        float, option("SECONDS", "Between two looks.", "--interval", "-i", min=0.2, max=3_600)
    ] = 2.0,
    count: Annotated[int | None, option("N", "End after N looks.", "--count", "-n", min=1)] = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Watch agents, topics and partitions: records appended a second, lag, sizes, and what is in trouble.

    Keys: q quits, tab shows the next table, s sorts by the next column, r reverses. Enter shows the
    partitions of a topic or agent, esc goes back. In a pipe it prints a block for each look. Rates are
    differences between two looks. LAG is the number of the leaders' records that followers lack; under load
    some are always on their way.
    """
    from shoal.agent.cli.top.looks import TopOptions, show  # not for --help
    from shoal.agent.cli.top.tables import COLUMNS, Order, column_of

    if topic is not None and view not in (None, TableKind.PARTITIONS):
        raise UsageError(f"--view {view} shows all of them, and not {topic}", "leave one out")
    kinds = (view,) if view is not None else (TableKind.TOPICS, TableKind.AGENTS)
    if topic is not None:
        kinds = (TableKind.PARTITIONS,)
    if not any(column_of(kind, sort) for kind in kinds):
        known = dict.fromkeys(column.title for kind in kinds for column in COLUMNS[kind])
        raise UsageError(f"--sort {sort!r} is no column of {' or '.join(kinds)}", f"give {', '.join(known)}")
    options = TopOptions(topic, kinds, Order(sort.upper()), interval, count, output is Output.JSON)
    with_admin(agent, lambda client: show(client, options), attempt_timeout_ms=ATTEMPT_TIMEOUT_MS)
