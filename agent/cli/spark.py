"""`shoal spark package`: Shoal's files for Spark's executors.

Law of this file: it writes the files that shoal.spark.setup lists. It does not import Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shoal.agent.cli.terminal.options import example, group, option
from shoal.agent.cli.terminal.output import CliError, say

EXAMPLES = ("shoal spark package -o shoal-spark.zip", "spark-submit --py-files shoal-spark.zip pipeline.py")
Target = Annotated[Path, option("FILE", "The zip to write.", "-o", "--output")]

spark = group("spark", "For Spark clusters whose workers do not have Shoal installed.", *EXAMPLES)


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
