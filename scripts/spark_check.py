"""What Spark says about the topic `flights`: every record exactly once, and the mean delay by carrier.

Law of this file: an ordinary PySpark program, as a user would write it. Arguments: the agents' URLs (comma
separated), the NDJSON file that was produced. Exit code 0 only when topic and file hold the same records.
"""

from __future__ import annotations

import os
import sys
import time

import flights
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("shoal-quickstart")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def difference(topic: DataFrame, source: DataFrame) -> tuple[int, int]:
    """How many records the topic lacks, and how many it has too often; both as multisets."""
    topic_counts = topic.groupBy("value").agg(f.count("*").alias("seen"))
    source_counts = source.groupBy("value").agg(f.count("*").alias("sent"))
    both = topic_counts.join(source_counts, "value", "full").fillna(0, ["seen", "sent"])
    row = both.agg(
        f.sum(f.greatest(f.col("sent") - f.col("seen"), f.lit(0))),
        f.sum(f.greatest(f.col("seen") - f.col("sent"), f.lit(0))),
    ).first()
    assert row is not None
    return int(row[0] or 0), int(row[1] or 0)


def mean_delays(topic: DataFrame) -> list[tuple[str, int, float]]:
    delays = topic.select(f.from_json("value", "carrier string, arr_delay int").alias("flight")).select(
        "flight.*"
    )
    table = delays.groupBy("carrier").agg(f.count("*").alias("flights"), f.avg("arr_delay").alias("delay"))
    return [(row["carrier"], row["flights"], row["delay"]) for row in table.orderBy("delay").collect()]


def main() -> int:
    agents, path = sys.argv[1:3]
    spark = session()
    started = time.monotonic()
    records = spark.read.format("shoal").option("agent", agents).option("subscribe", "flights").load()
    topic = records.select(f.col("value").cast("string").alias("value")).cache()
    count = topic.count()
    seconds = time.monotonic() - started
    lost, twice = difference(topic, spark.read.text(path))
    print(f"Spark read {count:,} records in {seconds:.1f} s: {lost:,} lost, {twice:,} too often")
    names = flights.carriers()
    print(f"\n{'carrier':<9}{'airline':<30}{'flights':>9}{'mean arrival delay':>21}")
    for carrier, number, delay in mean_delays(topic):
        print(f"{carrier:<9}{names.get(carrier, '?'):<30}{number:>9,}{delay:>17.1f} min")
    spark.stop()
    return 0 if lost == twice == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
