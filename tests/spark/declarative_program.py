"""A project of declarative pipelines, run again and again in one session as spark-pipelines does; prints one
JSON line.

Arguments: the project's directory, agents. Run by test_declarative.py in a process of its own.
"""

from __future__ import annotations

import json
import pathlib
import sys
import urllib.request
from typing import Any

from pyspark.errors import PySparkException
from pyspark.pipelines import cli
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, handle_pipeline_events, start_run
from pyspark.sql import SparkSession
from seen_options import read_and_write

from shoal.spark.pipelines.template import SETTINGS_FILE, SPEC_FILE

PROJECT = pathlib.Path(sys.argv[1])
AGENT = sys.argv[2]
CUSTOMERS = 7


def session() -> SparkSession:
    """With the project's static settings; a flow that fails is not tried again, with pauses of seconds."""
    lines = (PROJECT / SETTINGS_FILE).read_text().splitlines()
    settings = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    settings |= {"spark.sql.pipelines.maxFlowRetryAttempts": "0", "spark.sql.shuffle.partitions": "2"}
    return SparkSession.builder.remote("local[2]").config(map=settings).getOrCreate()


def run(spark: SparkSession, *, dry: bool = False, **refresh: Any) -> None:
    """One run of the project as it stands now."""
    path = PROJECT / SPEC_FILE
    spec = cli.load_pipeline_spec(path)
    graph = create_dataflow_graph(spark, spec.catalog, spec.database, spec.configuration)
    cli.register_definitions(path, SparkConnectGraphElementRegistry(spark, graph), spec, spark, graph)
    asked = {"full_refresh": None, "full_refresh_all": False, "refresh": None} | refresh
    handle_pipeline_events(start_run(spark, graph, dry=dry, storage=spec.storage, **asked))


def send(spark: SparkSession, first: int, count: int) -> None:
    """So many orders into the topic."""
    made = f"to_json(named_struct('customer', concat('c', id % {CUSTOMERS}), 'item', id)) AS value"
    frame = spark.range(first, first + count).selectExpr(made)
    frame.write.format("shoal").option("topic", "orders").mode("append").save()


def counts(spark: SparkSession) -> dict[str, int]:
    """Records of each topic that is written, rows of the table, and what the view says of it."""
    found = {}
    for topic in ("receipts", "copies"):
        with urllib.request.urlopen(f"{AGENT}/v1/topics/{topic}/offsets") as answer:
            found[topic] = sum(one["high_watermark"] for one in json.load(answer)["partitions"])
    if spark.catalog.tableExists("customers"):
        found["orders"] = spark.table("orders").count()
        found["customers"] = sum(row["orders"] for row in spark.table("customers").collect())
    return found


def main() -> None:
    """What the counts are after each step."""
    spark = session()
    told: dict[str, Any] = {}

    def tell(step: str, **how: Any) -> None:
        run(spark, **how)
        told[step] = counts(spark)

    send(spark, 0, 30)
    tell("dry", dry=True)
    tell("first")
    send(spark, 30, 12)
    tell("second")
    tell("table again", full_refresh=["orders"])
    tell("run after it")
    tell("all again", full_refresh_all=True)
    send(spark, 42, 1)
    path = PROJECT / "transformations" / "orders.py"
    path.write_text(path.read_text().replace('{"topic"', '{"topik": "x", "topic"'))
    try:
        run(spark)
    except PySparkException as error:
        told["misspelt"] = str(error)
    told["seen"] = read_and_write(spark, PROJECT.parent / "noted", "through Connect")
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
