"""Spark beside its own floors: reading a topic, micro-batches, writing.

Law of this file: each number stands beside the same data source over less (a file server that sends the
agent's own answers, local files, a source without rows, a sink that forgets), in the same Spark session, by
turns.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import bench_topics
import cluster
import environment
import load
import spark_floors
import terminal
from row import Row

TOPIC = "bench"
SINK_TOPIC = "written"
PARTITIONS = 2
RECORDS = 10_000_000
BATCH_RECORDS = 10_000
KEYS = 1_000
VALUE_BYTES = 92
BODIES = 10
MICRO_BATCHES = 50
SKIPPED_BATCHES = 5
ANSWER_SECONDS_MAX = 600.0
KAFKA = "SHOAL_KAFKA"
KAFKA_PACKAGE = "SHOAL_KAFKA_PACKAGE"
KAFKA_PACKAGE_DEFAULT = "org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"


class Bench(Protocol):
    """What these rows need of a run."""

    directory: pathlib.Path
    rounds: int

    def agents(self, count: int) -> contextlib.AbstractContextManager[cluster.LocalCluster]: ...
    def alternate(self, ours: Callable[[], float], floor: Callable[[], float]) -> tuple[float, float]: ...


class Program:
    """The Spark session, in a process of its own."""

    def __init__(self, directory: pathlib.Path, checkout: pathlib.Path = environment.ROOT) -> None:
        """`checkout`: where its Shoal lies; this file's own programs run in any case."""
        from shoal.spark import java

        self._directory = directory
        self._log = open(directory / "spark.log", "wb")  # noqa: SIM115 -- for the life of the program
        scripts = str(environment.ROOT / "scripts")
        path = os.pathsep.join(filter(None, (scripts, str(checkout), os.environ.get("PYTHONPATH"))))
        variables = {
            **os.environ,
            "JAVA_HOME": str(java.find(directory / "java")),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(directory / "spark"),
            "PYTHONPATH": path,
        }
        if KAFKA in os.environ:
            import pyspark

            package = KAFKA_PACKAGE_DEFAULT.format(version=pyspark.__version__)
            variables.setdefault(KAFKA_PACKAGE, package)
        self._process = subprocess.Popen(
            [sys.executable, f"{scripts}/spark_program.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=variables,
            cwd=directory,
        )
        self._answer()

    def run(self, do: str, **request: Any) -> dict[str, Any]:
        """One query. Raises ClusterProblem with what Spark says."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def seconds(self, do: str, expected: Any = None, **request: Any) -> float:
        """Of a query whose result is known."""
        answer = self.run(do, **request)
        if expected is not None and answer["result"] != expected:
            raise cluster.ClusterProblem(f"{do} gave {answer['result']}, not {expected}")
        return float(answer["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            log = (self._directory / "spark.log").read_text(errors="replace").strip().splitlines()
            raise cluster.ClusterProblem(f"the Spark program ended: {log[-1] if log else 'it said nothing'}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise cluster.ClusterProblem(f"Spark: {' '.join(answer['error'])}")
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


@contextlib.contextmanager
def program(directory: pathlib.Path, checkout: pathlib.Path = environment.ROOT) -> Iterator[Program]:
    made = Program(directory, checkout)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def file_server(directory: pathlib.Path, agent: str) -> Iterator[str]:
    """The URL of a bare server of the captured answers, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, spark_floors.__file__, "serve", str(directory), agent],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().decode().strip()
    finally:
        process.stdin.close()
        process.wait(30)


def bodies() -> list[bytes]:
    """Arrow streams of one batch each: 10,000 records with a key of 8 bytes and a random value of 92."""
    return [
        bench_topics.arrow_body(
            BATCH_RECORDS, VALUE_BYTES, [b"%08d" % secrets.randbelow(KEYS) for _ in range(BATCH_RECORDS)]
        )
        for _ in range(BODIES)
    ]


def fill(url: str, records: int) -> None:
    """So many records, by turns into the partitions."""
    bench_topics.create_topic(url, TOPIC, PARTITIONS, 1)
    made = bodies()
    share = records // BATCH_RECORDS // PARTITIONS // len(made)
    for partition in range(PARTITIONS):
        target = f"{url}/v1/topics/{TOPIC}/partitions/{partition}/records"
        for body in made:
            request = load.request_bytes("POST", target, body, Content_Type=bench_topics.ARROW)
            bench_topics.post(request, url, connections=2, requests=share)


def rows(bench: Bench, records: int = RECORDS) -> list[Row]:
    """Everything about Spark."""
    directory = bench.directory / "spark"
    files = directory / "files"
    files.mkdir(parents=True)
    with bench.agents(1) as agents:
        url = agents.agents[0].url
        fill(url, records)
        spark_floors.capture(url, TOPIC, files)
        with program(directory) as spark, file_server(files, url) as server:
            found = reading(bench, spark, url, server, files, records)
            found += micro_batches(bench, spark, url, directory)
            found += writing(bench, spark, url, directory, records)
            found += kafka(bench, spark, url, records)
    return found


def write_rows(bench: Bench, records: int = RECORDS) -> list[Row]:
    """Writing alone."""
    directory = bench.directory / "spark"
    directory.mkdir(parents=True)
    with bench.agents(1) as agents, program(directory) as spark:
        url = agents.agents[0].url
        fill(url, records)
        return writing(bench, spark, url, directory, records)


def reading(
    bench: Bench, spark: Program, url: str, server: str, files: pathlib.Path, records: int
) -> list[Row]:
    """Count and group-by, beside the file server and the local files."""
    ours = {"format": "shoal", "options": {"agent": url, "subscribe": TOPIC}}
    bare = {"format": "shoal", "options": {"agent": server, "subscribe": TOPIC}}
    local = {"format": "captured_files", "options": {"directory": str(files)}}
    found = []
    for do, expected in (("count", records), ("group", [KEYS, records])):
        for source in (ours, bare, local):  # the first query of each starts workers and warms the JVM
            spark.seconds(do, expected, **source)
        for floor, name, goal in ((bare, "bare HTTP file server", 0.90), (local, "local files", 0.75)):
            mine, least = bench.alternate(
                lambda do=do, expected=expected: records / spark.seconds(do, expected, **ours),  # type: ignore[misc]
                lambda do=do, expected=expected, floor=floor: (  # type: ignore[misc]
                    records / spark.seconds(do, expected, **floor)
                ),
            )
            what = "count" if do == "count" else "group-by"
            measured = f"{mine / 1e6:.2f} M records/s"
            found.append(
                Row(
                    f"Spark {what} of {records / 1e6:g} M records",
                    measured,
                    f"{name} {least / 1e6:.2f} M/s",
                    mine / least,
                    goal,
                )
            )
    return found


def micro_batches(bench: Bench, spark: Program, url: str, directory: pathlib.Path) -> list[Row]:
    """Micro-batches of one record a partition, beside an empty source with as many tasks."""
    tasks = str(PARTITIONS)
    limit = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": tasks, "minPartitions": tasks}
    ours = {"format": "shoal", "options": {"agent": url, "subscribe": TOPIC, **limit}}
    empty = {"format": "empty_stream", "options": {"tasks": tasks}}
    found: dict[str, list[float]] = {"shoal": [], "empty_stream": []}
    rounds = min(bench.rounds, 5)

    def run(source: dict[str, Any]) -> float:
        checkpoint = str(directory / f"checkpoint-{secrets.token_hex(4)}")
        answer = spark.run(
            "stream",
            checkpoint=checkpoint,
            batches=-(-MICRO_BATCHES // rounds),
            skipped=SKIPPED_BATCHES,
            **source,
        )
        found[source["format"]] += answer["result"]
        return float(statistics.median(answer["result"]))

    bar = terminal.Bar("micro-batches")
    for number in range(rounds):
        ratio = run(ours) / run(empty)
        bar.update((number + 1) / rounds, f"ratio {ratio:.2f}")
    mine, least = statistics.median(found["shoal"]), statistics.median(found["empty_stream"])
    name = f"Spark micro-batch, {PARTITIONS} tasks, median of {len(found['shoal'])}"
    return [Row(name, f"{mine:.0f} ms", f"empty Python source {least:.0f} ms", mine / least, 1.15, True)]


def writing(bench: Bench, spark: Program, url: str, directory: pathlib.Path, records: int) -> list[Row]:
    """A DataFrame out of a Parquet file into a topic, beside an Arrow writer that forgets it."""
    bench_topics.create_topic(url, SINK_TOPIC, PARTITIONS, 1)
    made = str(directory / "parquet")
    spark.run("parquet", format="shoal", options={"agent": url, "subscribe": TOPIC}, parquet=made)
    ours = {"format": "shoal", "options": {"agent": url, "topic": SINK_TOPIC}}
    nothing: dict[str, Any] = {"format": "null_sink", "options": {}}
    for sink in (ours, nothing):
        spark.seconds("write", parquet=made, **sink)
    mine, least = bench.alternate(
        lambda: records / spark.seconds("write", parquet=made, **ours),
        lambda: records / spark.seconds("write", parquet=made, **nothing),
    )
    stored = sum(
        partition["high_watermark"]
        for partition in cluster.get(url, f"/v1/topics/{SINK_TOPIC}/offsets")["partitions"]
    )
    if stored != records * (1 + bench.rounds):
        raise cluster.ClusterProblem(
            f"Spark wrote {records} records {1 + bench.rounds} times: {stored} are stored"
        )
    name = f"Spark writes {records / 1e6:g} M records"
    return [
        Row(
            name,
            f"{mine / 1e6:.2f} M records/s",
            f"null Arrow sink {least / 1e6:.2f} M/s",
            mine / least,
            0.80,
        )
    ]


def kafka(bench: Bench, spark: Program, url: str, records: int) -> list[Row]:
    """The same records out of a Kafka, by Spark's own connector, if there is one: SHOAL_KAFKA=HOST:PORT."""
    servers = os.environ.get(KAFKA)
    if not servers:
        terminal.problem(f"SKIPPED: the ratio to spark-sql-kafka: no Kafka is named ({KAFKA}=HOST:PORT)")
        return []
    topic = f"shoal-bench-{secrets.token_hex(4)}"
    there = {"kafka.bootstrap.servers": servers}
    spark.run(
        "copy",
        format="shoal",
        options={"agent": url, "subscribe": TOPIC},
        sink={"format": "kafka", "options": {**there, "topic": topic}},
    )
    ours = {"format": "shoal", "options": {"agent": url, "subscribe": TOPIC}}
    theirs = {"format": "kafka", "options": {**there, "subscribe": topic, "startingOffsets": "earliest"}}
    found = []
    for do, expected in (("count", records), ("group", [KEYS, records])):
        mine, least = bench.alternate(
            lambda do=do, expected=expected: records / spark.seconds(do, expected, **ours),  # type: ignore[misc]
            lambda do=do, expected=expected: records / spark.seconds(do, expected, **theirs),  # type: ignore[misc]
        )
        name = f"Spark {do} of {records / 1e6:g} M records"
        measured = f"{mine / 1e6:.2f} M records/s"
        found.append(Row(name, measured, f"spark-sql-kafka {least / 1e6:.2f} M/s", mine / least, None))
    return found
