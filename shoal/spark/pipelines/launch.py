"""The words of `spark-pipelines`, and the checks before it starts.

Law of this file: each fault is one line that says what to do, told before Spark starts. PySpark is looked
for, and not imported.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import itertools
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from shoal.spark.options.errors import SourceError
from shoal.spark.pipelines.template import SETTINGS_FILE

SPARK_PORT: Final = 15002
"""Where Spark's server listens during a local run. Its client dials this one, whatever is configured."""
PORT_SETTING: Final = "spark.connect.grpc.binding.port"
NO_STATIC_WARNINGS: Final = "ignore::UserWarning:pyspark.sql.connect.conf"
"""For PYTHONWARNINGS: Spark's client warns that static settings are static, and they count all the same."""
INSTALL: Final = "pip install 'shoal-log[pipelines]'"
ALL_CORES: Final = "local[*]"  # Spark's own default here is one core
_EXTRA: Final = re.compile(r"""^([\w.-]+).*;.*\bextra\s*==\s*["']pipelines["']""")


class Run(NamedTuple):
    """One run as people ask for it. `spark_options` go to Spark as they stand."""

    spec: Path
    is_dry: bool = False
    full_refresh: Sequence[str] = ()
    full_refresh_all: bool = False
    refresh: Sequence[str] = ()
    spark_options: Sequence[str] = ()

    @property
    def remote(self) -> str:
        """The Spark to use: a server by sc://, or one that is started here with all cores."""
        given = ALL_CORES
        for option, value in itertools.pairwise([*self.spark_options, ""]):
            if option == "--remote":
                given = value
            elif option.startswith("--remote="):
                given = option.partition("=")[2]
        return given

    @property
    def is_local(self) -> bool:
        """Whether Spark's server starts here, for this run."""
        return not self.remote.startswith("sc://")


def command(program: Path, run: Run) -> list[str]:
    """The words of `spark-pipelines`. Raises SourceError."""
    if run.full_refresh_all and (run.full_refresh or run.refresh):
        raise SourceError("--full-refresh-all takes all tables: leave --full-refresh and --refresh out")
    if run.is_dry and (run.full_refresh_all or run.full_refresh or run.refresh):
        raise SourceError("--dry-run refreshes nothing: leave the other options out")
    words = [str(program), "dry-run" if run.is_dry else "run", "--spec", str(run.spec)]
    settings = run.spec.parent / SETTINGS_FILE
    if run.is_local:
        if any(PORT_SETTING in option for option in run.spark_options):
            raise SourceError(
                f"{PORT_SETTING}: the client of a local run dials {SPARK_PORT} whatever it says: leave it out"
            )
        if settings.is_file():  # a server has settings of its own, and refuses static ones
            words += ["--properties-file", str(settings)]
        if run.remote == ALL_CORES:
            words += ["--remote", run.remote]
    words += run.spark_options
    for option, tables in (("--full-refresh", run.full_refresh), ("--refresh", run.refresh)):
        words += [word for table in tables for word in (option, table)]
    return [*words, *(["--full-refresh-all"] if run.full_refresh_all else [])]


def find_program(environment: Mapping[str, str]) -> Path:
    """`spark-pipelines` of SPARK_HOME, or of the PySpark that is installed here. Raises SourceError."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SourceError(f"PySpark is not installed: {INSTALL}")
    home = Path(environment.get("SPARK_HOME") or Path(spec.origin).parent)
    program = home / "bin" / "spark-pipelines"
    if not program.is_file():
        raise SourceError(f"{home} has no spark-pipelines: pipelines came with Spark 4.1; {INSTALL}")
    missing = missing_distributions()
    if missing:
        raise SourceError(f"Spark's pipelines need {', '.join(missing)}: {INSTALL}")
    return program


def missing_distributions(
    requires: Callable[[str], list[str] | None] = importlib.metadata.requires,
    version: Callable[[str], str] = importlib.metadata.version,
) -> list[str]:
    """The distributions that PySpark lists under its extra `pipelines`, less those that are installed."""
    try:
        listed = requires("pyspark") or []
    except importlib.metadata.PackageNotFoundError:
        return []  # a Spark without pip: it brings what it needs, or says so
    missing = []
    for name in [found[1] for found in map(_EXTRA.match, listed) if found is not None]:
        try:
            version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return missing


def check_port(port: int = SPARK_PORT) -> None:
    """Raises SourceError where another run holds it: Spark would take a minute and 60 lines to say so."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        with contextlib.closing(socket.create_server(("", port), family=family, dualstack_ipv6=both)):
            return
    except OSError:
        raise SourceError(
            f"port {port} is in use: another run of Spark has it, and only one at a time can; wait for its"
            f" end (`ss -ltnp sport = :{port}` shows its process)"
        ) from None
