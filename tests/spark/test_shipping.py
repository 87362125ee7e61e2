"""Spark without Shoal: a cluster of JVMs, spark-submit and Connect, given only what `register` sends."""

from __future__ import annotations

import json
import os
import pathlib
import site
import subprocess
import sys
import venv
from typing import Any, TypeAlias

import pyspark
import pytest

from shoal.spark import java
from shoal.spark import setup as spark_setup

Cluster: TypeAlias = Any  # conftest's

PROGRAM = pathlib.Path(__file__).with_name("shipped_program.py")
SECONDS_MAX = 400.0
VALUES = sorted(f"value {number}" for number in range(1_000))


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An interpreter with everything that is installed here but Shoal."""
    directory = tmp_path_factory.mktemp("bare")
    venv.create(directory, symlinks=True)
    target = directory / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    for source in map(pathlib.Path, reversed(site.getsitepackages())):
        for entry in source.iterdir():
            if "shoal" not in entry.name and entry.suffix != ".pth" and not (target / entry.name).exists():
                (target / entry.name).symlink_to(entry)
    python = directory / "bin" / "python"
    ran = subprocess.run(
        [python, "-c", "import pyspark, pyarrow, shoal"],
        env={"PATH": os.environ["PATH"]},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.stderr.strip().endswith("No module named 'shoal'")
    return python


@pytest.fixture(scope="module")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """PySpark's own Spark, in a directory that its workers may write to."""
    home = tmp_path_factory.mktemp("spark")
    for entry in pathlib.Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    return home


def run(
    kind: str, command: list[str], cluster: Cluster, tmp_path: pathlib.Path, **variables: str
) -> dict[str, Any]:
    """The program's results. The zip is where the command says ZIP."""
    cluster.fill("written", (), ())
    cluster.fill("copied", ())
    cluster.fill("totals", ())
    archive = tmp_path / "shoal-spark.zip"
    spark_setup.package(archive)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "JAVA_HOME": str(java.find(tmp_path / "java")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONWARNINGS": "ignore",
        "TMPDIR": str(tmp_path / "temporary"),
        **variables,
    }
    (tmp_path / "temporary").mkdir(exist_ok=True)
    arguments = [kind, cluster.url(0), str(archive), str(tmp_path)]
    finished = subprocess.run(
        [word.replace("ZIP", str(archive)) for word in command] + arguments,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert finished.returncode == 0, finished.stderr[-3_000:]
    results: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    assert results["module"].endswith("shoal-spark.zip/shoal/spark/__init__.py")
    assert results["read"] == VALUES
    assert "unknown topic 'writen'" in results["unknown_topic"]
    stored = [log.high_watermark for log in cluster.topics["written"].values()]
    assert sum(stored) == 1_000
    assert min(stored) > 400
    assert cluster.topics["copied"][0].high_watermark == 1_000, results["copied"]
    return results


@pytest.mark.slow
@pytest.mark.timeout(900)  # three JVMs start: minutes on a busy machine
def test_a_cluster_gets_shoal_by_register(
    cluster: Cluster, bare_python: pathlib.Path, spark_home: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Executors in processes of their own, which nobody gave a Shoal, write and read, also where nothing can
    be unpacked; a wheel is refused."""
    python = str(bare_python)
    variables = {"PYSPARK_PYTHON": python, "SPARK_HOME": str(spark_home)}
    # What is unpacked would lie behind a link: nobody may follow it, all have to use what they were sent.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "temporary").mkdir()
    (tmp_path / "temporary" / f"shoal-spark-{os.geteuid()}").symlink_to(elsewhere)
    results = run("cluster", [python, str(PROGRAM)], cluster, tmp_path, **variables)
    assert results["before"] == []
    assert len(list((spark_home / "work").glob("app-*/*/shoal-*.zip"))) == 2  # one for each executor
    assert not any(elsewhere.iterdir())
    assert "shoal-0.1.0-py3-none-any.whl): ship a zip instead: shoal spark package" in results["wheel"]
    assert len(list((spark_home / "work").glob("app-*/*/stderr"))) >= 2


@pytest.mark.slow
@pytest.mark.timeout(900)  # as above
def test_spark_submit_takes_the_zip(
    cluster: Cluster, bare_python: pathlib.Path, spark_home: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """--py-files puts it on the driver's path and on the workers'."""
    submit = [str(spark_home / "bin" / "spark-submit"), "--py-files", "ZIP", str(PROGRAM)]
    python = {"PYSPARK_PYTHON": str(bare_python), "PYSPARK_DRIVER_PYTHON": str(bare_python)}
    results = run("submit", submit, cluster, tmp_path, SPARK_HOME=str(spark_home), **python)
    assert all(place.endswith("shoal-spark.zip/shoal/__init__.py") for place in results["before"])
    assert results["before"]


@pytest.mark.slow
@pytest.mark.timeout(900)  # as above
def test_connect_gets_shoal_by_register(
    cluster: Cluster, bare_python: pathlib.Path, spark_home: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Through gRPC to a server of its own: batch both ways, streams, foreachBatch, a pandas frame."""
    python = str(bare_python)
    # Spark's own word for a port of the test's instead of 15002, which another server may have.
    variables = {"PYSPARK_PYTHON": python, "SPARK_HOME": str(spark_home), "SPARK_TESTING": "1"}
    results = run("connect", [python, str(PROGRAM)], cluster, tmp_path, **variables)
    assert results["before"] == []
    (unpacked,) = (tmp_path / "temporary" / f"shoal-spark-{os.geteuid()}").iterdir()
    assert {path.name for path in unpacked.iterdir()} == {"shoal", "pyspark_shoal.py"}
    assert results["values"] == VALUES
    failure, success, *totals = results["totals"]
    assert "behind the write" in failure
    assert success == "no failure"
    assert totals == ["333", "333", "334"]  # once, though written twice
    assert results["pandas"] == {
        "key": "object",
        "value": "object",
        "topic": "object",
        "partition": "int32",
        "offset": "int64",
        "timestamp": "datetime64[ns]",
        "timestampType": "int32",
    }
