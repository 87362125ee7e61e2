"""The first query on two executors whose Python has no Shoal, beside executors that have it installed.

Law of this file: both are the same program on clusters of their own, by turns; only the workers' Python
differs.
"""

from __future__ import annotations

import json
import os
import pathlib
import secrets
import site
import subprocess
import sys
import venv

import bench_topics
import cluster
import environment
import load
from benchmarks_spark import BATCH_RECORDS, KEYS, PARTITIONS, TOPIC, VALUE_BYTES, Bench
from row import Row

PROGRAM_SECONDS_MAX = 120.0
MORE_SECONDS_MAX = 0.5


def bare_python(directory: pathlib.Path) -> pathlib.Path:
    """An interpreter with everything that is installed here but Shoal."""
    venv.create(directory, symlinks=True)
    target = directory / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    for source in map(pathlib.Path, reversed(site.getsitepackages())):
        for entry in source.iterdir():
            if "shoal" not in entry.name and entry.suffix != ".pth" and not (target / entry.name).exists():
                (target / entry.name).symlink_to(entry)
    return directory / "bin" / "python"


def spark_home(directory: pathlib.Path) -> pathlib.Path:
    """PySpark's own Spark, in a directory that its workers may write to."""
    import pyspark

    directory.mkdir()
    for entry in pathlib.Path(pyspark.__file__).parent.iterdir():
        (directory / entry.name).symlink_to(entry)
    return directory


def first_query(directory: pathlib.Path, python: pathlib.Path, agent: str) -> float:
    """Seconds from register() to the count, on a cluster and a machine that have seen no Shoal."""
    from shoal.spark import java

    place = directory / secrets.token_hex(4)
    (place / "temporary").mkdir(parents=True)
    variables = {
        **environment.clean_environment(),
        "JAVA_HOME": str(java.find(directory / "java")),
        "PYSPARK_PYTHON": str(python),
        "SPARK_HOME": str(spark_home(place / "spark")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(place / "local"),
        "TMPDIR": str(place / "temporary"),
    }
    program = str(environment.ROOT / "scripts" / "spark_first_query.py")
    ran = subprocess.run(
        [sys.executable, program, agent, TOPIC],
        env=variables,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS_MAX,
    )
    if ran.returncode:
        raise cluster.ClusterProblem(f"Spark: {(ran.stderr.strip().splitlines() or ['ended'])[-1]}")
    answer = json.loads(ran.stdout.splitlines()[-1])
    if answer["count"] != BATCH_RECORDS * PARTITIONS:
        raise cluster.ClusterProblem(f"Spark counted {answer['count']} records")
    unpacked = list((place / "temporary").glob(f"shoal-spark-{os.geteuid()}/*"))
    if bool(unpacked) == (str(python) == sys.executable):
        raise cluster.ClusterProblem(f"{python} has unpacked {len(unpacked)} versions of Shoal")
    return float(answer["seconds"])


def rows(bench: Bench) -> list[Row]:
    """One row: the ratio's place has seconds."""
    directory = bench.directory / "spark_shipping"
    directory.mkdir(parents=True)
    python = bare_python(directory / "bare")
    with bench.agents(1) as agents:
        url = agents.agents[0].url
        bench_topics.create_topic(url, TOPIC, PARTITIONS, 1)
        keys = [b"%08d" % secrets.randbelow(KEYS) for _ in range(BATCH_RECORDS)]
        body = bench_topics.arrow_body(BATCH_RECORDS, VALUE_BYTES, keys)
        for partition in range(PARTITIONS):
            target = f"{url}/v1/topics/{TOPIC}/partitions/{partition}/records"
            request = load.request_bytes("POST", target, body, Content_Type=bench_topics.ARROW)
            bench_topics.post(request, url, connections=1, requests=1)
        ours, installed = bench.alternate(
            lambda: first_query(directory, python, url),
            lambda: first_query(directory, pathlib.Path(sys.executable), url),
        )
    name = "Spark, first query on two executors without Shoal; ratio: seconds more"
    floor = f"with it installed {installed:.2f} s"
    return [Row(name, f"{ours:.2f} s", floor, ours - installed, MORE_SECONDS_MAX, lower_is_better=True)]
