"""An ordinary PySpark program that reads topics of the test's cluster. It prints what it has done, line by
line, and at last one JSON line of results.

Run by test_spark.py in a process of its own: a JVM does not leave the process that started it clean.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from seen_options import read_and_write

from shoal.spark import LagListener, ShoalDataSource, SourceError, batches, lag, register
from shoal.spark.pyspark_api import HAS_READ_LIMITS, register_source

EXIT_SECONDS_MAX = 200.0
NAME = """naïve / 'x' "y" \n 漢字 %s {} \\ ;--"""
TOKEN = os.environ["PLANTED_TOKEN"]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
ENDS_SECONDS_MAX = 400
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "spark.md"


def session() -> SparkSession:
    """Two cores of this machine."""
    builder = SparkSession.builder.master("local[2]").appName("shoal-tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": sys.argv[2],
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def stream_results(spark: SparkSession, agents: str, directory: str) -> dict[str, Any]:
    """A stream until all is read, with a limit or with the refusal of one where this Spark has none; again
    from its checkpoint, and one that waits."""
    options = {"subscribe": "flights", "agent": agents, "startingOffsets": "earliest"}

    def start(name: str, checkpoint: str, available_now: bool, **more: Any) -> StreamingQuery:
        frame = spark.readStream.format("shoal").options(**{**options, **more}).load()
        writer = frame.writeStream.format("memory" if name else "noop")
        writer = writer.queryName(name) if name else writer
        writer = writer.option("checkpointLocation", f"{directory}/{checkpoint}")
        trigger = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
        return writer.trigger(**trigger).start()

    limits: dict[str, Any] = {"maxOffsetsPerTrigger": 12}
    refusal = "no refusal"
    if not HAS_READ_LIMITS:
        refusal = failed(lambda: start("refused", "zero", True, **limits).awaitTermination(ENDS_SECONDS_MAX))
        limits = {}
    told: list[tuple[str, int]] = []
    listener = LagListener(lambda name, behind: told.append((name, behind["flights"].records)))
    spark.streams.addListener(listener)
    query = start("limited", "one", True, minPartitions=4, **limits)
    query.awaitTermination(ENDS_SECONDS_MAX)
    done("a limited stream")
    progress = [entry for entry in query.recentProgress if entry["numInputRows"]]
    rows = spark.sql("select partition, offset from limited").collect()
    told_until = time.monotonic() + ENDS_SECONDS_MAX  # events come some time after what they tell of
    while ("limited", 0) not in told and time.monotonic() < told_until:
        time.sleep(0.1)
    spark.streams.removeListener(listener)
    again = start("", "one", True)
    again.awaitTermination(ENDS_SECONDS_MAX)
    done("the same from its checkpoint")
    waiting = start("", "two", False, idleWaitMs=30_000)
    while not waiting.recentProgress:
        time.sleep(0.1)
    time.sleep(0.5)  # it is within its wait at an agent, of half a minute
    began = time.monotonic()
    waiting.stop()
    done("one that waits")
    stopped_seconds = time.monotonic() - began
    unknown = failed(lambda: start("", "three", True, subscribe="fligths").awaitTermination(ENDS_SECONDS_MAX))
    return {
        "limit": refusal,
        "batches": [entry["numInputRows"] for entry in progress],
        "records": sorted(map(list, rows)),
        "lag_of_first": [progress[0]["sources"][0][name] for name in ("endOffset", "latestOffset")],
        "lags": [told, dataclasses.astuple(lag(progress[0])["flights"])],
        "again": sum(entry["numInputRows"] for entry in again.recentProgress),
        "stopped_seconds": stopped_seconds,
        "unknown_topic": unknown,
        "unfit": failed(
            lambda: start("", "four", False, endingOffsets="latest").awaitTermination(ENDS_SECONDS_MAX)
        ),
    }


def done(what: str) -> None:
    """Whoever waits for this program hears that it goes on."""
    print(what, flush=True)


def failed(work: Callable[[], Any]) -> str:
    """What Spark says."""
    try:
        work()
    except (PySparkException, SourceError) as error:
        return str(error)
    return "no failure"


def write_results(spark: SparkSession, agents: str, directory: str) -> dict[str, Any]:
    """A write, the same once more, a stream from topic to topic, and what is refused before a job."""
    rows = spark.range(500).selectExpr("cast(id AS string) AS key", "concat('value ', id) AS value")

    def save(frame: DataFrame, mode: str = "append", **options: Any) -> None:
        chosen = {"agent": agents, "topic": "written", "token": TOKEN, **options}
        frame.write.format("shoal").options(**chosen).mode(mode).save()

    save(rows, txnId="load-1")
    save(rows, txnId="load-1")
    done("the same rows twice")
    frame = spark.readStream.format("shoal").option("agent", agents).option("subscribe", "flights")
    frame = frame.option("kafka.group.id", "copiers")  # without effect, as in the sink
    stream = frame.option("startingOffsets", "earliest").load().select("key", "value")
    writer = stream.writeStream.format("shoal").option("agent", agents).option("topic", "copied")
    writer = (
        writer.option("kafka.acks", "all").queryName(NAME).outputMode("append").option("OUTPUTMODE", "append")
    )
    query = writer.option("checkpointLocation", f"{directory}/copy").trigger(availableNow=True).start()
    query.awaitTermination(ENDS_SECONDS_MAX)
    done("a stream from topic to topic")
    return {
        "no_value": failed(lambda: save(spark.range(3))),
        "unknown_topic": failed(lambda: save(rows, topic="writen")),
        "overwrite": failed(lambda: save(rows, mode="overwrite")),
        "default_mode": failed(lambda: save(rows, mode="errorifexists")),
        "misspelt": failed(lambda: save(rows, txnid2="x")),
        "wrong_type": failed(lambda: save(rows.selectExpr("1 AS value"))),
        "nobody": failed(lambda: save(rows, agent="127.0.0.1:9")),
        "too_large": failed(lambda: save(spark.range(1).selectExpr("repeat('x', 9 * 1024 * 1024) AS value"))),
    }


def totals(spark: SparkSession, agents: str, directory: str) -> dict[str, Any]:
    """Counts by key in the output mode update. The first run fails between its write and Spark's commit."""
    write = batches(topic="totals", agent=agents)

    def write_and_fail(frame: DataFrame, number: int) -> None:
        write(frame, number)
        raise RuntimeError("behind the write")

    limits = {"maxOffsetsPerTrigger": 20} if HAS_READ_LIMITS else {}
    stream = spark.readStream.format("shoal").options(agent=agents, subscribe="flights", **limits)
    keys = stream.option("startingOffsets", "earliest").load().select("key")
    updates = keys.groupBy("key").count().selectExpr("key", "cast(count AS STRING) AS value")
    ended: list[str] = []
    numbers: list[int] = []
    for function in (write_and_fail, write):
        writer = updates.writeStream.outputMode("update").foreachBatch(function)
        writer = writer.option("checkpointLocation", f"{directory}/totals").trigger(availableNow=True)
        query = writer.start()
        ended.append(failed(lambda query=query: query.awaitTermination(ENDS_SECONDS_MAX)))
        numbers = [progress["batchId"] for progress in query.recentProgress]
        done("totals by key")
    written = spark.read.format("shoal").options(agent=agents, subscribe="totals").load()
    newest = written.groupBy("key").agg(f.max_by(f.col("value").cast("string"), "offset").alias("total"))
    return {
        "ended": ended,
        "batches": numbers,
        "outside": failed(lambda: write(spark.range(1), 0)),
        "written": sorted(row["value"].decode() for row in written.collect()),
        "newest": sorted((row["key"] or b"none").decode() + f" {row['total']}" for row in newest.collect()),
    }


def worker_settings(spark: SparkSession) -> list[str]:
    """What Spark keeps for the source's workers, by name: the JVM's own object, PySpark has no way to it."""
    session: Any = spark
    source = session._jsparkSession.sessionState().dataSourceManager().lookupDataSource("shoal")
    return sorted(source.dataSourceCls().envVars())


def copied(spark: SparkSession, agent: str) -> int:
    """Records that a stream copied from one topic into another one."""
    source = spark.readStream.format("shoal").options(
        agent=agent, subscribe="flights", startingOffsets="earliest", token=TOKEN
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        sink = (
            source.load()
            .select("value")
            .writeStream.format("shoal")
            .options(agent=agent, topic="again", token=TOKEN)
        )
        query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress.numInputRows for progress in query.recentProgress)


def end(spark: SparkSession) -> None:
    """Wait until the JVM has ended as well: what it leaves at its end is there then."""
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(EXIT_SECONDS_MAX)


def run_the_page() -> None:
    """Its examples as it has them, one after the other; the agent is SHOAL_AGENT's."""
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        done("an example of the page")
        exec(example, names)


def pushed(spark: SparkSession, load: Callable[..., DataFrame]) -> list[int]:
    """Tasks of a filtered query by setting and option, and the records that pass."""
    found = []
    for setting, options in (("false", {"pushdown": True}), ("true", {}), ("true", {"pushdown": False})):
        spark.conf.set(PUSHDOWN, setting)
        some = load(maxRecordsPerPartition=2, **options).where("partition = 1 and offset >= 12")
        found.append(some.rdd.getNumPartitions())
    spark.conf.set(PUSHDOWN, "true")
    return [*found, load().where("partition = 1 and offset >= 12").count()]


def plans(spark: SparkSession, read: Any) -> list[str]:
    """As Spark shows them, of a query and of the view."""
    in_view: Any = spark.sql("EXPLAIN EXTENDED SELECT * FROM flights_view").first()
    return [in_view[0], read._jdf.queryExecution().toString()]


def registered(spark: SparkSession, load: Callable[..., DataFrame]) -> list[Any]:
    """Records that it counts then, and whether filters are handed over."""
    spark.conf.set(PUSHDOWN, "false")
    register(spark, pushdown=True)
    found = [load().count(), spark.conf.get(PUSHDOWN)]
    done("registered")
    return found


def main() -> None:
    """Every kind of query once."""
    spark = session()
    done("a session")

    def load(**options: Any) -> DataFrame:
        chosen = {"subscribe": "flights", "agent": sys.argv[1], "token": TOKEN, **options}
        return spark.read.format("shoal").options(**chosen).load()

    def failure(**options: Any) -> str:
        return failed(lambda: load(**options).count())

    everything = load()
    results: dict[str, Any] = {
        "schema": everything.schema.simpleString(),
        "count": everything.count(),
        "by_partition": sorted(
            map(
                list,
                everything.groupBy("partition").agg(f.count("*"), f.min("offset"), f.max("offset")).collect(),
            )
        ),
        "distinct": everything.select("value").distinct().count(),
        "tasks": load(minPartitions=6).rdd.getNumPartitions(),
        "range": [
            row["value"].decode()
            for row in load(
                startingOffsets='{"flights":{"0":8,"1":29,"2":0}}',
                endingOffsets='{"flights":{"0":9,"1":-1,"2":-1}}',
            )
            .orderBy("value")
            .collect()
        ],
        "headers": load(includeHeaders=True)
        .where("offset = 1 and partition = 0")
        .first()
        .asDict(True)["headers"],
        "empty": load(startingOffsets='{"flights":{"0":10,"1":30,"2":0}}').count(),
        "timestamps": everything.where("partition = 0 and offset = 3")
        .selectExpr("unix_micros(timestamp)")
        .first()[0],
        "unknown_option": failure(startingOffset="earliest"),
        "unknown_topic": failure(subscribe="fligths"),
        "no_agent": failure(agent="127.0.0.1:9"),
        "malformed": failure(startingOffsets='{"flights": {"0": 8'),
    }
    done("reading")
    chosen = f"agent '{sys.argv[1]}', subscribe 'flights', columns 'offset', token '{TOKEN}'"
    spark.sql(f"CREATE TEMPORARY VIEW flights_view USING shoal OPTIONS ({chosen})")
    results["view"] = spark.sql("SELECT count(*), max(offset) FROM flights_view").first().asDict()
    results["plans"] = plans(spark, everything)
    own = spark.read.format("shoal").schema("value string").option("subscribe", "flights")
    results["own_schema"] = failed(lambda: own.load().count())
    results["written"] = write_results(spark, sys.argv[1], sys.argv[2])
    done("writing")
    results["totals"] = totals(spark, sys.argv[1], sys.argv[2])
    results["pushed"] = pushed(spark, load)
    results["seen"] = read_and_write(spark, pathlib.Path(sys.argv[2], "seen"), NAME)
    done("options that Spark hands over")
    results["stream"] = stream_results(spark, sys.argv[1], sys.argv[2])
    done("streams")
    results["replaced"] = register_source(spark, ShoalDataSource)
    results["registered"] = registered(spark, load)
    results["settings"] = [worker_settings(spark), [copied(spark, sys.argv[1]), *worker_settings(spark)]]
    run_the_page()
    results["headers"] = [{"key": h["key"], "value": h["value"].decode()} for h in results["headers"]]
    sys.stdout.write(f"\n{json.dumps(results)}\n")  # at once: the page's listener prints meanwhile
    end(spark)


if __name__ == "__main__":
    main()
