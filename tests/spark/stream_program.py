"""A topic copied to another by a stream that goes on until it is told to end: what agents are upgraded under.

Arguments: agents' URLs, topic to read, topic to write, directory of the checkpoint, file that ends the stream
once it is there. Its first line is the file of the library that it uses.
"""

from __future__ import annotations

import pathlib
import sys

import shoal
from shoal.spark import prepare

prepare()

from pyspark.sql import SparkSession  # noqa: E402 - after Java was found

LOOK_SECONDS = 0.2


def main() -> None:
    """Raises what the query fails with."""
    agents, source, target, checkpoint, end = sys.argv[1:6]
    print(pathlib.Path(shoal.__file__).resolve(), flush=True)
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.log.level": "ERROR"}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    reader = spark.readStream.format("shoal").option("agent", agents).option("subscribe", source)
    writer = reader.option("startingOffsets", "earliest").load().select("key", "value").writeStream
    writer = writer.format("shoal").option("agent", agents).option("topic", target)
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="500 milliseconds").start()
    while not pathlib.Path(end).exists():
        query.awaitTermination(LOOK_SECONDS)
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
