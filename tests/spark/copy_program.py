"""A topic copied to another through a stream with a checkpoint: what the campaign kills.

Arguments: agents' URLs, topic to read, topic to write, directory of the checkpoint, records of a micro-batch.
"""

from __future__ import annotations

import sys

from shoal.spark import prepare

prepare()

from pyspark.sql import SparkSession  # noqa: E402 - after Java was found


def main() -> None:
    """Everything that is there now."""
    agents, source, target, checkpoint, limit = sys.argv[1:6]
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.log.level": "ERROR"}
    spark = SparkSession.builder.master("local[2,8]").config(map=settings).getOrCreate()
    reader = spark.readStream.format("shoal").option("agent", agents).option("subscribe", source)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", limit)
    writer = reader.load().select("key", "value").writeStream.format("shoal").option("agent", agents)
    writer = writer.option("topic", target).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
