"""A PySpark program at an agent with TLS, by a token that may use topics `shop-*` and no other. It prints one
JSON line of results.

Run by test_secure_spark.py in a process of its own: a JVM does not leave the process that started it clean.
"""

from __future__ import annotations

import json
import pathlib
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

from program import end, failed
from pyspark.sql import DataFrame, SparkSession

PLACES = (
    "jobs/", "stages/", "environment/", "executors/", "SQL/", "SQL/execution/?id=0", "StreamingQuery/",
    "storage/",
)  # fmt: skip
DOCUMENTS = (
    "environment",
    "sql?details=true&planDescription=true",
    "jobs",
    "stages?details=true",
    "allexecutors",
)


def session(events: pathlib.Path) -> SparkSession:
    """With all that shows what a query is: its pages, its events and its log."""
    settings = {
        "spark.ui.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "INFO",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(events),
    }
    builder = SparkSession.builder.master("local[1]").appName("secure")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def shown_plans(spark: SparkSession, frame: DataFrame) -> list[str]:
    """As Spark explains and keeps them."""
    told: Any = spark.sql("EXPLAIN EXTENDED SELECT * FROM shop_view").first()
    described = spark.sql("DESCRIBE EXTENDED shop_view").collect()
    execution = frame._jdf.queryExecution()
    texts = [told[0], execution.toString(), execution.logical().toJSON(), execution.executedPlan().toJSON()]
    return [*texts, execution.explainString(execution_mode(spark)), repr(frame), repr(described)]


def execution_mode(spark: SparkSession) -> Any:
    """The longest form of an explanation."""
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")


def pages(spark: SparkSession) -> dict[str, str]:
    """Of Spark's own server, by their places."""
    root, name = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    places = [*PLACES, *(f"api/v1/applications/{name}/{one}" for one in DOCUMENTS)]
    found = {}
    for place in places:
        with urllib.request.urlopen(f"{root}/{place}", timeout=60) as answer:
            found[place] = answer.read().decode()
    return found


def command_lines() -> list[str]:
    """Of all processes that are there."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:  # it has ended
            continue
    return found


def main() -> None:
    """Read, write and stream, within the token's topics and beyond."""
    agent, ca, token_file, directory = sys.argv[1:]
    token = pathlib.Path(token_file).read_text().strip()
    spark = session(pathlib.Path(directory))
    options = {"agent": agent, "ca": ca, "token": token}

    def read(topic: str) -> DataFrame:
        return spark.read.format("shoal").options(**options, subscribe=topic).load()

    def write(frame: DataFrame, topic: str) -> None:
        chosen = {**options, "token": f"@{token_file}", "topic": topic}
        frame.write.format("shoal").options(**chosen).mode("append").save()

    def stream(source: str, target: str) -> None:
        rows = (
            spark.readStream.format("shoal")
            .options(**options, subscribe=source, startingOffsets="earliest")
            .load()
        )
        writer = rows.select("key", "value").writeStream.format("shoal").options(**options, topic=target)
        place = f"{directory}/of-{source}-{target}"
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            plans.append(query._jsq.explainInternal(True))

    plans: list[str] = []
    results: dict[str, Any] = {"read": sorted(row["value"].decode() for row in read("shop-in").collect())}
    write(read("shop-in").select("key", "value"), "shop-out")
    results["written"] = read("shop-out").count()
    stream("shop-in", "shop-streamed")
    results["streamed"] = read("shop-streamed").count()
    spark.sql(
        f"CREATE TEMPORARY VIEW shop_view USING shoal OPTIONS"
        f" (agent '{agent}', ca '{ca}', token '{token}', subscribe 'shop-in')"
    )
    results["view"] = spark.sql("SELECT count(*) FROM shop_view").first()[0]
    plans += shown_plans(spark, read("shop-in"))
    refused: dict[str, Callable[[], Any]] = {
        "read": lambda: read("other").count(),
        "write": lambda: write(read("shop-in").select("value"), "other"),
        "stream": lambda: stream("other", "shop-streamed"),
        "stream into": lambda: stream("shop-in", "other"),
        "a longer name": lambda: read("shopping").count(),
    }
    results["refused"] = {title: failed(work) for title, work in refused.items()}
    settings = repr(spark.sparkContext.getConf().getAll()) + repr(spark.sql("SET -v").collect())
    found = pages(spark)
    places = {
        **found,
        "settings": settings,
        "plans": "\n".join(plans),
        "processes": "\n".join(command_lines()),
    }
    results["shown_in"] = [place for place, text in places.items() if token in text]
    results["lengths"] = {place: len(text) for place, text in places.items()}
    results["redacted"] = [place for place, text in places.items() if "redacted" in text]
    results["names"] = [place for place, text in places.items() if "shop-in" in text]
    sys.stdout.write(f"\n{json.dumps(results)}\n")
    end(spark)


if __name__ == "__main__":
    main()
