"""`shoal doctor`: what this machine offers an agent, what is wrong, and what to do.

Law of this file: it shows the findings of doctor_checks. A problem makes the exit code 1.
"""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.agent.cli.terminal.options import Output, OutputOption, example, option
from shoal.agent.cli.terminal.output import say, show_json, show_table

LABELS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}


app = typer.Typer()


@app.command(epilog=example("shoal doctor", "shoal doctor --data /var/lib/shoal"))
def doctor(
    data: Annotated[str, option("DIR", "The data directory that an agent would use.")] = ".",
    output: OutputOption = Output.TABLE,
) -> None:
    """Check kernel, io_uring, memory limits, disk, ports, Java and Python for Spark.

    The exit code is 0 unless a problem would keep an agent from working; notes do not count.
    """
    from shoal.agent.cli.examine.doctor_checks import examine

    findings = examine(data)
    if output is Output.JSON:
        show_json({"findings": [finding._asdict() for finding in findings]})
    else:
        show_table(["CHECK", "RESULT", "FOUND"], [[f.check, LABELS[f.level], f.found] for f in findings])
        for finding in findings:
            if finding.advice:
                say(f"{finding.check}: {finding.advice}")
    if any(finding.level == "problem" for finding in findings):
        raise typer.Exit(1)
