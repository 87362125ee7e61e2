"""A PySpark program in a Spark that has no Shoal: `register` sends it. Prints one JSON line of results.

Arguments: which Spark (cluster, submit, connect), agents, a zip of Shoal for the driver alone, a directory.
Run by test_shipping.py in a process of its own, driver and workers with an interpreter that cannot import
Shoal.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

KIND, AGENTS, ZIP, DIRECTORY = sys.argv[1:5]
ENDS_SECONDS_MAX = 200
MASTERS = {"cluster": "local-cluster[2,1,1024]", "submit": "local[1]"}
STATIC = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.ui.showConsoleProgress": "false"}


def session() -> SparkSession:
    """Two executors in JVMs of their own, or one thread, or a Connect server with two."""
    builder = SparkSession.builder.config("spark.sql.shuffle.partitions", "2")
    if KIND == "connect":
        return builder.remote("local[2]").getOrCreate()
    return builder.master(MASTERS[KIND]).config(map=STATIC).getOrCreate()


def installed(spark: SparkSession) -> list[str]:
    """Where workers would find Shoal if nothing was shipped; empty where they cannot."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            found = importlib.util.find_spec("shoal")
            yield pa.RecordBatch.from_pydict({"place": [str(found.origin) if found else ""]})

    places = spark.range(4).repartition(2).mapInArrow(look, "place string").distinct().collect()
    return [row["place"] for row in places if row["place"]]


def failed(work: Any) -> str:
    """What is said, in one line or many."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever it is, the test reads it
        return str(error)
    return "no failure"


def totals(spark: SparkSession) -> list[str]:
    """Counts in the output mode update by a function that runs at the server; a failure behind its write."""
    from shoal.spark import batches

    write = batches(topic="totals", agent=AGENTS)

    def write_and_fail(frame: DataFrame, number: int) -> None:
        write(frame, number)
        raise RuntimeError("behind the write")

    stream = spark.readStream.format("shoal").options(agent=AGENTS, subscribe="written")
    frame = stream.option("startingOffsets", "earliest").load()
    counts = frame.selectExpr("cast(cast(key AS STRING) AS INT) % 3 AS rest").groupBy("rest").count()
    updates = counts.selectExpr("cast(rest AS STRING) AS key", "cast(count AS STRING) AS value")
    ended = []
    for function in (write_and_fail, write):
        writer = updates.writeStream.outputMode("update").foreachBatch(function)
        writer = writer.option("checkpointLocation", f"{DIRECTORY}/totals")
        query = writer.trigger(availableNow=True).start()
        ended.append(failed(lambda query=query: query.awaitTermination(ENDS_SECONDS_MAX)))
    rows = spark.read.format("shoal").options(agent=AGENTS, subscribe="totals").load().collect()
    return [*ended, *sorted(row["value"].decode() for row in rows)]


def main() -> None:
    """Register, write, read, copy as a stream."""
    spark = session()
    results: dict[str, Any] = {"before": installed(spark)}
    if KIND != "submit":  # where --py-files has done it
        sys.path.insert(0, ZIP)  # this process only: no worker sees it
    import shoal.spark  # only now: there is no other Shoal

    shoal.spark.register(spark)
    shoal.spark.register(spark)  # as each of several modules might
    results["module"] = shoal.spark.__file__
    rows = spark.range(1_000).selectExpr("cast(id AS string) AS key", "concat('value ', id) AS value")
    sink = {"agent": AGENTS, "topic": "written"}
    rows.repartition(3).write.format("shoal").options(**sink).mode("append").save()

    def load(**options: str) -> DataFrame:
        chosen = {"agent": AGENTS, "subscribe": "written", **options}
        return spark.read.format("shoal").options(**chosen).load()

    results["read"] = sorted(row["value"].decode() for row in load().select("value").collect())
    stream = spark.readStream.format("shoal").options(agent=AGENTS, subscribe="written")
    copied = stream.option("startingOffsets", "earliest").load().select("key", "value").writeStream
    copied = copied.format("shoal").options(
        agent=AGENTS, topic="copied", checkpointLocation=f"{DIRECTORY}/copied"
    )
    query = copied.trigger(availableNow=True).start()
    results["copied"] = failed(lambda: query.awaitTermination(ENDS_SECONDS_MAX))
    try:
        load(subscribe="writen").count()
    except PySparkException as error:
        results["unknown_topic"] = str(error)
    if KIND == "connect":
        results["totals"] = totals(spark)
        frame = load().orderBy("partition", "offset").toPandas()
        results["pandas"] = {name: str(kind) for name, kind in frame.dtypes.items()}
        results["values"] = sorted(frame["value"].str.decode("utf-8"))
    if KIND == "cluster":
        wheel = f"{DIRECTORY}/shoal-0.1.0-py3-none-any.whl"
        shutil.copy(ZIP, wheel)
        spark.sparkContext.addPyFile(wheel)
        results["wheel"] = failed(lambda: shoal.spark.register(spark))
    print(json.dumps(results))
    spark.stop()


if __name__ == "__main__":
    main()
