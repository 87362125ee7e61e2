"""`shoal doctor`: what this machine offers an agent, what is wrong, and what to do.

Law of this file: it shows the findings of doctor_checks and of secure/checks. A problem makes the exit
code 1.
"""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from shoal.agent.cli.terminal.findings import Finding
from shoal.agent.cli.terminal.options import Output, OutputOption, example, flag, option
from shoal.agent.cli.terminal.output import UsageError, say, show_json, show_table

DATA_DEFAULT = "."
LABELS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}


app = typer.Typer()


@app.command(
    epilog=example(
        "shoal doctor",
        "shoal doctor --data /var/lib/shoal",
        "shoal doctor --security --config /etc/shoal/shoal.toml",
    )
)
def doctor(
    data: Annotated[str, option("DIR", "The data directory that an agent would use.")] = DATA_DEFAULT,
    security: Annotated[
        bool, flag("Check who reaches the agent and its secrets instead, and what expires.", "--security")
    ] = False,
    config: Annotated[str | None, option("FILE", "The agent's configuration, for --security.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check kernel, io_uring, memory limits, disk, ports, Java and Python for Spark.

    The exit code is 0 unless a problem would keep an agent from working; notes do not count.
    """
    from shoal.agent.cli.examine.doctor_checks import examine

    if config is not None and not security:
        raise UsageError("--config is for --security", "add that, or leave it out")
    findings = _security(data, config) if security else examine(data)
    if output is Output.JSON:
        show_json({"findings": [finding._asdict() for finding in findings]})
    else:
        show_table(["CHECK", "RESULT", "FOUND"], [[f.check, LABELS[f.level], f.found] for f in findings])
        for finding in findings:
            if finding.advice:
                say(f"{finding.check}: {finding.advice}")
    if any(finding.level == "problem" for finding in findings):
        raise typer.Exit(1)


def _security(data: str, path: str | None) -> list[Finding]:
    """Of the configuration that an agent would start with. Raises UsageError."""
    from shoal.agent.cli.secure.checks import security_findings
    from shoal.agent.process.config_source import ConfigSource
    from shoal.agent.settings import ConfigError

    environment = dict(os.environ)
    path = path or environment.get("SHOAL_CONFIG", "")
    flags = {} if data == DATA_DEFAULT and path else {"data": data}
    source = ConfigSource(flags, environment, path)
    try:
        file = source.file()
        return security_findings(source.settle(file), file, time.time())
    except ConfigError as error:
        raise UsageError(str(error)) from error
