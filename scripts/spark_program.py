"""A Spark session that runs one query for each line of JSON on its input, and says how long it took.

Law of this file: an ordinary PySpark program in a process of its own, measured from inside; what is compared
with what, benchmarks_spark.py decides. A request is {"do": NAME, ...}, an answer {"seconds": S, ...} or
{"error": TEXT}.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import sys
import tempfile
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import spark_floors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

STREAM_SECONDS_MAX = 120.0
SEEN_SECONDS_MAX = 60.0
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def session() -> SparkSession:
    """Two cores of this machine; the Kafka connector where SHOAL_KAFKA asks for it."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "4g",
    }
    if "SHOAL_KAFKA_PACKAGE" in os.environ:
        settings["spark.jars.packages"] = os.environ["SHOAL_KAFKA_PACKAGE"]
    builder = SparkSession.builder.master("local[2]").appName("shoal-bench")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for source in (spark_floors.FilesSource, spark_floors.EmptySource, spark_floors.NullSink):
        spark.dataSource.register(source)
    return spark


def load(spark: SparkSession, request: dict[str, Any]) -> DataFrame:
    return spark.read.format(request["format"]).options(**request["options"]).load()


def count(spark: SparkSession, request: dict[str, Any]) -> Any:
    """All records."""
    return load(spark, request).count()


def group(spark: SparkSession, request: dict[str, Any]) -> Any:
    """Records by key: how many keys there are, and how many records they have together."""
    rows = load(spark, request).groupBy("key").agg(f.count("*").alias("records")).collect()
    return [len(rows), sum(row["records"] for row in rows)]


def write(spark: SparkSession, request: dict[str, Any]) -> Any:
    """Keys and values of a Parquet file, to a sink."""
    frame = spark.read.parquet(request["parquet"])
    writer = frame.write.format(request["format"]).options(**request["options"]).mode("append")
    writer.save()


def copy(spark: SparkSession, request: dict[str, Any]) -> Any:
    """Keys and values of a source, to a sink."""
    sink = request["sink"]
    frame = load(spark, request).select("key", "value")
    frame.write.format(sink["format"]).options(**sink["options"]).mode("append").save()


def parquet(spark: SparkSession, request: dict[str, Any]) -> Any:
    """What is to be written, once."""
    load(spark, request).select("key", "value").write.parquet(request["parquet"])


def ten_offsets(spark: SparkSession, request: dict[str, Any]) -> Any:
    """Records of ten offsets, by a filter, with Spark's push-down on or off."""
    spark.conf.set(PUSHDOWN, request["pushdown"])
    first = request["first"]
    try:
        return load(spark, request).where(f"offset >= {first} and offset < {first + 10}").count()
    finally:
        spark.conf.unset(PUSHDOWN)


def large(spark: SparkSession, request: dict[str, Any]) -> Any:
    """Records a second of a stream's micro-batches behind the first one."""
    frame = spark.readStream.format(request["format"]).options(**request["options"]).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [entry for entry in query.recentProgress if entry["numInputRows"]][1:]
    milliseconds = sum(entry["durationMs"]["triggerExecution"] for entry in progress)
    return sum(entry["numInputRows"] for entry in progress) / milliseconds * 1_000


def seen(spark: SparkSession, request: dict[str, Any]) -> Any:
    """Milliseconds from sending a record to having it in foreachBatch, one record after the other."""
    arrived: dict[int, float] = {}
    news = threading.Condition()

    def look(frame: DataFrame, _: int) -> None:
        values = [int(row["value"]) for row in frame.select("value").collect()]
        with news:
            arrived.update(dict.fromkeys(values, time.monotonic()))
            news.notify_all()

    parts = urlsplit(request["options"]["agent"])
    connection = http.client.HTTPConnection(parts.netloc, timeout=SEEN_SECONDS_MAX)
    path = f"/v1/topics/{request['options']['subscribe']}/records"

    def send(number: int) -> float:
        started = time.monotonic()
        connection.request("POST", path, str(number).encode(), {"Content-Type": "text/plain"})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"an append was answered with {answer.status}")
        with news:
            if not news.wait_for(lambda: number in arrived, SEEN_SECONDS_MAX):
                raise RuntimeError("a record was not seen in time")
            return (arrived[number] - started) * 1_000

    frame = spark.readStream.format(request["format"]).options(**request["options"]).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.foreachBatch(look).option("checkpointLocation", checkpoint)
        query = writer.trigger(processingTime="0 seconds").start()
        while not query.recentProgress:  # it is within its wait at an agent, or will be
            time.sleep(0.05)
        found = []
        for number in range(request["skipped"] + request["records"]):
            time.sleep(random.uniform(0.02, 0.1))  # noqa: S311 - the query is idle at any moment of its wait
            found.append(send(number))
        query.stop()
    connection.close()
    return found[request["skipped"] :]


def stream(spark: SparkSession, request: dict[str, Any]) -> Any:
    """Milliseconds of so many micro-batches behind the first ones, which start workers; without what the
    source needed to say how far it goes, where it may wait, if `less_waiting`."""
    frame = spark.readStream.format(request["format"]).options(**request["options"]).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", request["checkpoint"])
    query = writer.trigger(processingTime="0 seconds").start()
    wanted = request["skipped"] + request["batches"]
    found: dict[int, int] = {}
    deadline = time.monotonic() + STREAM_SECONDS_MAX
    while len(found) < wanted and time.monotonic() < deadline and query.isActive:
        time.sleep(0.05)
        for progress in query.recentProgress:
            if "addBatch" in progress["durationMs"]:  # what found nothing to do is no micro-batch
                spent = progress["durationMs"]
                waited = spent.get("latestOffset", 0) if request.get("less_waiting") else 0
                found[progress["batchId"]] = spent["triggerExecution"] - waited
    failure = query.exception()
    query.stop()
    if failure is not None or len(found) < wanted:
        raise RuntimeError(f"{len(found)} micro-batches of {wanted}: {failure or 'too slow'}")
    return [found[number] for number in sorted(found)][request["skipped"] : wanted]


WORK = {
    "count": count,
    "group": group,
    "write": write,
    "parquet": parquet,
    "copy": copy,
    "stream": stream,
    "ten_offsets": ten_offsets,
    "large": large,
    "seen": seen,
}


def main() -> None:
    """Until its input ends."""
    spark = session()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        started = time.monotonic()
        try:
            result = WORK[request["do"]](spark, request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the benchmark reports it
            answer: dict[str, Any] = {"error": str(error).strip().splitlines()[:3]}
        else:
            answer = {"seconds": time.monotonic() - started, "result": result}
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
