"""A Spark Declarative Pipeline from topic to topic, run as spark-pipelines does; prints one JSON line.

Arguments: agents, a directory. Run by test_declarative.py in a process of its own.
"""

from __future__ import annotations

import json
import pathlib
import sys

from pyspark import pipelines as dp
from pyspark.errors import PySparkException
from pyspark.pipelines.graph_element_registry import graph_element_registration_context
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, handle_pipeline_events, start_run
from pyspark.sql import DataFrame, SparkSession

AGENTS, DIRECTORY = sys.argv[1:3]


def run(spark: SparkSession, storage: str, **sink: str) -> None:
    """Everything that the topic holds, once, into the sink."""
    graph = create_dataflow_graph(spark, None, None, {})
    with graph_element_registration_context(SparkConnectGraphElementRegistry(spark, graph)):
        dp.create_sink("out", "shoal", {"agent": AGENTS, **sink})

        @dp.append_flow(target="out", name="copy_all")
        def copy() -> DataFrame:
            source = spark.readStream.format("shoal").option("agent", AGENTS).option("subscribe", "flights")
            return source.option("startingOffsets", "earliest").load().select("key", "value")

    directory = pathlib.Path(DIRECTORY, storage)
    directory.mkdir(parents=True, exist_ok=True)
    handle_pipeline_events(
        start_run(
            spark,
            graph,
            full_refresh=None,
            full_refresh_all=False,
            refresh=None,
            dry=False,
            storage=directory.as_uri(),
        )
    )


def main() -> None:
    """A run, another that finds nothing new, and one with an option that nobody knows."""
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    run(spark, "one", topic="written")
    run(spark, "one", topic="written")
    said = "no failure"
    try:
        run(spark, "two", topic="written", topik="x")
    except PySparkException as error:
        said = str(error)
    print(json.dumps({"misspelt": said}))
    spark.stop()


if __name__ == "__main__":
    main()
