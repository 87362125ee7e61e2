"""`shoal spark package`: Shoal's files for Spark's executors.

Law of this file: it writes what shoal.spark.setup says; Spark itself is not imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.agent.cli.terminal.output import CliError, example, say

EXAMPLE = example(
    "shoal spark package -o shoal-spark.zip", "spark-submit --py-files shoal-spark.zip pipeline.py"
)
Target = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The zip to write.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `shoal`."""
    spark = typer.Typer(
        help="For Spark clusters whose workers do not have Shoal installed.",
        epilog=EXAMPLE,
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    spark.callback()(_group)
    spark.command("package", epilog=EXAMPLE)(package)
    app.add_typer(spark, name="spark")


def _group() -> None:
    """For Spark clusters whose workers do not have Shoal installed."""


def package(output: Target = Path("shoal-spark.zip")) -> None:
    """Write a zip for --py-files, sc.addPyFile or spark.addArtifacts(pyfile=True)."""
    from shoal.spark.setup import package as write

    if output.suffix.lower() != ".zip":
        raise CliError(f"{output} must end with .zip: Spark puts nothing else on its workers' path")
    try:
        count = write(output)
    except OSError as error:
        raise CliError(f"{output} cannot be written: {error.strerror}") from None
    say(f"{output}: {count} files")
    say(f'spark.sparkContext.addPyFile("{output}"); from shoal.spark import register; register(spark)')
