"""`shoal spark`: Shoal's files for Spark's executors, and declarative pipelines over topics.

Law of this file: it writes what shoal.spark.setup lists and shoal.spark.pipelines holds, and starts Spark's
own programs. It does not import Spark.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from shoal.agent.cli.terminal.connection import variables
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    argument,
    example,
    flag,
    group,
    option,
)
from shoal.agent.cli.terminal.output import CliError, UsageError, say
from shoal.agent.cli.terminal.run import with_admin

EXAMPLES = ("shoal spark package -o shoal-spark.zip", "spark-submit --py-files shoal-spark.zip pipeline.py")
RUN_EXAMPLES = (
    "shoal spark run",
    "shoal spark run --dry-run",
    "shoal spark run --full-refresh orders",
    "shoal spark run -- --remote 'local[4]' --conf spark.sql.shuffle.partitions=8",
)
FIRST_STEPS = (
    "shoal topic create orders; shoal topic create receipts",
    """echo '{{"customer":"ann","item":1}}' | shoal produce orders""",
    "cd {name}; shoal spark run",
    "shoal consume receipts",
)
Target = Annotated[Path, option("FILE", "The zip to write.", "-o", "--output")]
ProjectName = Annotated[Path, argument("NAME", "The project's directory, which is made.")]
Spec = Annotated[
    Path | None,
    option("FILE", "The project's spec: spark-pipeline.yml here or above, if left out.", "--spec"),
]
DryRun = Annotated[bool, flag("Check the pipeline, and run nothing.", "--dry-run")]
FullRefresh = Annotated[
    list[str] | None, option("TABLE[,TABLE]", "Compute these tables again from the start.", "--full-refresh")
]
FullRefreshAll = Annotated[
    bool,
    flag("Compute all again: topics that are written get all records a second time.", "--full-refresh-all"),
]
Refresh = Annotated[list[str] | None, option("TABLE[,TABLE]", "Bring only these up to date.", "--refresh")]
SparkOptions = Annotated[
    list[str] | None,
    argument("-- SPARK_OPTIONS", "Options of spark-submit, as they stand: --conf, --packages."),
]

spark = group(
    "spark",
    "Declarative pipelines, and Spark clusters whose workers do not have Shoal installed.",
    "shoal spark init shop",
    *EXAMPLES,
)


@spark.command("package", epilog=example(*EXAMPLES))
def package(output: Target = Path("shoal-spark.zip")) -> None:
    """Write a zip for --py-files, sc.addPyFile or spark.addArtifacts(pyfile=True)."""
    from shoal.spark.setup import package as write

    if output.suffix.lower() != ".zip":
        raise CliError(f"{output} must end with .zip: Spark puts no other file on its workers' path")
    try:
        count = write(output)
    except OSError as error:
        raise CliError(f"{output} cannot be written: {error.strerror}") from None
    say(f"{output}: {count} files")
    say(f'spark.sparkContext.addPyFile("{output}"); from shoal.spark import register; register(spark)')


@spark.command("init", epilog=example("shoal spark init shop", "cd shop; shoal spark run"))
def init(name: ProjectName) -> None:
    """Begin a pipeline: a project from the topic `orders` to a table, a view and the topic `receipts`."""
    from shoal.spark.options.errors import SourceError
    from shoal.spark.pipelines import project
    from shoal.spark.pipelines.template import FILES

    try:
        place = project.create(name)
    except SourceError as error:
        raise CliError(str(error)) from None
    say(f"{place}: {', '.join(file for file in FILES if not file.startswith('.'))}")
    say("Its topics, a record, and a run:")
    for line in FIRST_STEPS:
        say(f"    {line.format(name=name)}")


@spark.command("run", epilog=example(*RUN_EXAMPLES))
def run(
    spark_options: SparkOptions = None,
    spec: Spec = None,
    dry_run: DryRun = False,
    full_refresh: FullRefresh = None,
    full_refresh_all: FullRefreshAll = False,
    refresh: Refresh = None,
    agent: AgentOption = DEFAULT_AGENT,
) -> None:
    """Run a pipeline: spark-pipelines, with the project's settings, over all that is new in the topics.

    Spark works in the project's directory, and on all cores of this machine unless --remote says otherwise.
    The exit code is that of spark-pipelines.
    """
    from shoal.spark.options.errors import SourceError
    from shoal.spark.pipelines import launch, project
    from shoal.spark.setup import prepare

    if spark_options and not spark_options[0].startswith("-"):
        raise UsageError(f"{spark_options[0]!r} is no option of Spark", "name a spec with --spec")
    if spec is not None and not spec.is_file():
        raise UsageError(f"--spec: there is no file {str(spec)!r}")
    try:
        found = project.find(Path.cwd()) if spec is None else spec.absolute()
        asked = launch.Run(
            found, dry_run, full_refresh or (), full_refresh_all, refresh or (), spark_options or ()
        )
        program = launch.find_program(os.environ)
        words = launch.command(program, asked)
        project.check_writable(found.parent)
        if not dry_run and not project.names_agents(found):
            with_admin(agent, lambda client: client.agent())
        if asked.is_local:
            launch.check_port()
        environment = {**os.environ, **variables(agent)}
        environment.setdefault("PYTHONWARNINGS", launch.NO_STATIC_WARNINGS)
        prepare(environment)
    except SourceError as error:
        raise CliError(str(error)) from None
    become(words, environment, found.parent)


def become(words: list[str], environment: dict[str, str], directory: Path) -> None:
    """Let Spark take this process: its signals and its exit code are the command's."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(directory)
    os.execve(words[0], words, environment)  # noqa: S606 - Spark's own program
