"""One count of a topic on two executors that have done nothing yet: how long it takes, as one line of JSON.

Law of this file: an ordinary PySpark program, measured from inside, for benchmarks_spark_shipping.py.
"""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession

from shoal.spark import register

SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # the first job waits for both executors
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}


def main() -> None:
    """Start, let both executors do a job of the JVM's, register, count."""
    agent, topic = sys.argv[1:3]
    spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=SETTINGS).getOrCreate()
    spark.range(0, 1_000, 1, 4).count()
    started = time.monotonic()
    register(spark)
    count = spark.read.format("shoal").options(agent=agent, subscribe=topic).load().count()
    print(json.dumps({"seconds": time.monotonic() - started, "count": count}))
    spark.stop()


if __name__ == "__main__":
    main()
