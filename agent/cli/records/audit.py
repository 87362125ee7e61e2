"""`shoal audit`: who did what from where, with which outcome, as the topic `_audit` tells.

Law of this file: the command alone; audit_lines.py reads and shows, and is imported when it is wanted.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from shoal.agent.cli.terminal.amounts import duration_text, start_of
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    Output,
    OutputOption,
    example,
    flag,
    option,
)
from shoal.agent.cli.terminal.output import drop_stdout
from shoal.agent.cli.terminal.run import with_client

app = typer.Typer()


@app.command(
    epilog=example(
        "shoal audit --since 1h", "shoal audit --follow", "shoal audit --output json | jq .outcome"
    )
)
def audit(
    since: Annotated[
        str | None, option("AGE|@TIME", "From then on, as 1h, @2026-01-01; default: all.")
    ] = None,
    follow: Annotated[bool, flag("Wait for later records.", "--follow", "-F")] = False,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show who did what from where: changes, refusals and logins. Administrators of the cluster may.

    An agent writes them where it asks for credentials, a moment after each. The topic keeps them 30 days.
    """
    start = "earliest"
    if since is not None:
        moment = since if since.startswith("@") else f"-{duration_text(since, '--since')}"
        start = start_of(moment, time.time_ns() // 1_000_000)
    from shoal.agent.cli.records.audit_lines import show_audit

    try:
        with_client(agent, lambda client: show_audit(client, start, output, follow=follow))
    except BrokenPipeError:
        drop_stdout()  # the reader (`| head`) has closed the pipe: nothing failed
