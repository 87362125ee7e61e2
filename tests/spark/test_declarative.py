"""Declarative pipelines: the project of `shoal spark init` with two flows into one sink, run again and again,
and killed."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections import Counter
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from real_agents import wait_until

from shoal.format.batch import DEFAULT_SCHEMA, schema_message
from shoal.spark import java
from shoal.spark.options.errors import SourceError
from shoal.spark.pipelines import launch, project

Cluster: TypeAlias = Any  # conftest's
SECONDS_MAX = 400.0
HAS_PIPELINES = importlib.util.find_spec("pyspark.pipelines") is not None  # from Spark 4.1
ORDERS = 500
RETURNS = 12  # records that a second flow writes into the same sink
FLOWS = (
    "spark_catalog/default/orders/orders",
    "receipts/receipts_of_orders",
    "receipts/receipts_of_returns",
    "copies/copies_of_table",
)

# Below the template: a second flow into its sink, from another topic, and a sink that reads a table.
MORE_FLOWS = """

@dp.append_flow(target="receipts")
def receipts_of_returns() -> DataFrame:
    records = spark.readStream.format("shoal").option("subscribe", "returns")
    return records.option("startingOffsets", "earliest").load().selectExpr(
        "CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value"
    )


dp.create_sink("copies", "shoal", {"topic": "copies"})


@dp.append_flow(target="copies")
def copies_of_table() -> DataFrame:
    return spark.readStream.table("orders").selectExpr("to_json(struct(customer, item)) AS value")
"""


@pytest.fixture
def shop(cluster: Cluster, tmp_path: pathlib.Path) -> pathlib.Path:
    """A new project, and its topics: no orders yet."""
    cluster.fill("orders", (), ())
    cluster.fill("returns", (RETURNS,))
    for topic in ("receipts", "copies"):
        cluster.fill(topic, (), ())
    place = project.create(tmp_path / "shop")
    with (place / "transformations" / "orders.py").open("a") as file:
        file.write(MORE_FLOWS)
    return place


def variables(cluster: Cluster, tmp_path: pathlib.Path) -> dict[str, str]:
    """For a Spark that shares the machine."""
    return {
        **os.environ,
        "JAVA_HOME": str(java.find(tmp_path / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "SHOAL_AGENT": cluster.url(0),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def wait_for_the_port() -> None:
    """Another test's Spark may have it still."""

    def is_free() -> bool:
        try:
            launch.check_port()
        except SourceError:
            return False
        return True

    wait_until(is_free, "Spark's port is free", seconds=SECONDS_MAX)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX + 50)
def test_runs_are_incremental(cluster: Cluster, shop: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A dry run writes nothing, a second run only what is new. A table's full refresh writes nothing twice
    where a sink reads the topic, a full refresh of all writes all twice. An unknown option is refused."""
    if not HAS_PIPELINES:
        check_refused(cluster, shop, tmp_path / "run.log")
        return
    wait_for_the_port()
    program = pathlib.Path(__file__).with_name("declarative_program.py")
    finished = subprocess.run(
        [sys.executable, str(program), str(shop), cluster.url(0)],
        env=variables(cluster, tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert finished.returncode == 0, finished.stderr[-3_000:]
    told = json.loads(finished.stdout.splitlines()[-1])
    assert "unknown option 'topik'; did you mean topic?" in told.pop("misspelt")
    # An option that a newer Spark adds has to be among SPARKS: the runs above would fail by it, too.
    sinks = ["checkpointlocation", "queryname"]
    assert told.pop("seen") == {"read": [], "readStream": [], "write": [], "writeStream": sinks}
    table = {"orders": 42, "customers": 42}
    assert told == {
        "dry": {"receipts": 0, "copies": 0},
        "first": {"receipts": 30 + RETURNS, "copies": 30, "orders": 30, "customers": 30},
        "second": {"receipts": 42 + RETURNS, "copies": 42} | table,
        "table again": {"receipts": 42 + RETURNS, "copies": 42} | table,
        "run after it": {"receipts": 42 + RETURNS, "copies": 84} | table,
        "all again": {"receipts": 2 * (42 + RETURNS), "copies": 126} | table,
    }


def spark_run(cluster: Cluster, shop: pathlib.Path, log: pathlib.Path) -> subprocess.Popen[bytes]:
    """`shoal spark run` in a session of its own, so that it can be killed with all that it starts."""
    wait_for_the_port()
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "shoal.agent", "spark", "run", "--", "--remote", "local[2]"],
            env=variables(cluster, shop.parent),
            cwd=shop,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def check_refused(cluster: Cluster, shop: pathlib.Path, log: pathlib.Path) -> None:
    """Spark 4.0 has no pipelines: one line, at once."""
    assert spark_run(cluster, shop, log).wait(SECONDS_MAX) == 1
    assert "has no spark-pipelines: pipelines came with Spark 4.1" in log.read_text()
    assert len(log.read_text().splitlines()) == 1


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to Spark and both of its Pythons."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def values(cluster: Cluster, topic: str) -> list[str]:
    """All that the topic holds."""
    found: list[str] = []
    for log in cluster.topics[topic].values():
        body = schema_message(DEFAULT_SCHEMA) + b"".join(data for _, _, data in log.frames)
        with pa.ipc.open_stream(body) as reader:
            found += [value.decode() for value in reader.read_all()["value"].to_pylist()]
    return found


def committed_rows(directory: pathlib.Path) -> list[dict[str, Any]]:
    """Of a streaming table: the files that its log names."""
    names = set()
    for log in (directory / "_spark_metadata").iterdir():
        if not log.name.startswith("."):
            names |= {json.loads(line)["path"] for line in log.read_text().splitlines()[1:]}
    return [row for name in sorted(names) for row in pq.read_table(name.removeprefix("file://")).to_pylist()]


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS_MAX)  # Spark starts twice
def test_a_killed_pipeline_equals_a_batch(
    cluster: Cluster, shop: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Spark is killed when an agent has stored records of a sink, before it answers, and the pipeline is run
    again: topic, table and view hold what a loop over the orders computes."""
    if not HAS_PIPELINES:
        check_refused(cluster, shop, tmp_path / "run.log")
        return
    made = [{"customer": f"c{number % 7}", "item": number} for number in range(ORDERS)]
    for number, log in cluster.topics["orders"].items():
        log.append_values([json.dumps(order).encode() for order in made[number::2]])
    log_path = tmp_path / "run.log"
    first = spark_run(cluster, shop, log_path)

    def has_begun(flow: str) -> bool:
        """Spark takes no checkpoint that a kill left without its first files."""
        checkpoint = shop / "pipeline-storage" / "_checkpoints" / flow / "0"
        return (checkpoint / "metadata").exists() and (checkpoint / "offsets" / "0").exists()

    def die(handler: Any, apply: Any) -> None:
        apply()
        wait_until(lambda: all(map(has_begun, FLOWS)), "all flows have begun", seconds=SECONDS_MAX)
        os.killpg(first.pid, signal.SIGKILL)
        handler.close_connection = True

    def hold(handler: Any, apply: Any) -> None:
        first.wait(SECONDS_MAX)
        handler.close_connection = True

    cluster.write_faults += [die, *[hold] * ORDERS]
    try:
        assert first.wait(SECONDS_MAX) == -signal.SIGKILL, log_path.read_text()[-3_000:]
        stored = sum(len(values(cluster, topic)) for topic in ("receipts", "copies"))
        assert 0 < stored < 2 * ORDERS + RETURNS
    finally:
        kill(first)
        cluster.write_faults.clear()
    second = spark_run(cluster, shop, log_path)
    try:
        assert second.wait(SECONDS_MAX) == 0, log_path.read_text()[-3_000:]
    finally:
        kill(second)
    texts = [json.dumps(order, separators=(",", ":")) for order in made]
    assert sorted(values(cluster, "copies")) == sorted(texts)
    assert sorted(values(cluster, "receipts")) == sorted([*texts, *values(cluster, "returns")])
    rows = committed_rows(shop / "spark-warehouse" / "orders")
    assert sorted(row["item"] for row in rows) == list(range(ORDERS))
    assert all(row["customer"] == f"c{row['item'] % 7}" for row in rows)
    view = pq.read_table(shop / "spark-warehouse" / "customers").to_pylist()
    wanted = Counter(order["customer"] for order in made)
    assert {row["customer"]: row["orders"] for row in view} == wanted
