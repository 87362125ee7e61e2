"""A sink and source that notes all options that Spark hands over, its own among them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)

PLACE = "place"
"""The option that names the file for notes."""


def register_seen(spark: SparkSession) -> None:
    """Make format("seen") known. Its classes travel by value: Spark's workers have no such module."""

    class Reads(DataSourceReader, DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def latestOffset(self, *told: Any) -> dict[str, int]:
            return {"at": 1}

        def partitions(self, *between: Any) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Any:
            yield (1,)

    class Writes(DataSourceWriter, DataSourceStreamWriter):
        def write(self, rows: Any) -> WriterCommitMessage:
            list(rows)
            return WriterCommitMessage()

        def commit(self, *told: Any) -> None: ...

        def abort(self, *told: Any) -> None: ...

    class Seen(DataSource):
        @classmethod
        def name(cls) -> str:
            return "seen"

        def schema(self) -> str:
            return "value int"

        def noted(self, made: Any) -> Any:
            with open(self.options["place"], "a") as file:
                file.write(json.dumps(sorted(self.options)) + "\n")
            return made

        def reader(self, schema: Any) -> Any:
            return self.noted(Reads())

        def streamReader(self, schema: Any) -> Any:
            return self.noted(Reads())

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return self.noted(Writes())

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return self.noted(Writes())

    spark.dataSource.register(Seen)


def read_and_write(spark: SparkSession, directory: pathlib.Path, name: str) -> dict[str, list[str]]:
    """A stream of that name and a batch, from the source into the sink: what was noted of them."""
    register_seen(spark)
    directory.mkdir(parents=True, exist_ok=True)
    read = spark.readStream.format("seen").option(PLACE, str(directory / "readStream")).load()
    writer = read.writeStream.format("seen").option(PLACE, str(directory / "writeStream")).queryName(name)
    writer = writer.outputMode("append").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.name == name
    query.awaitTermination()
    rows = spark.read.format("seen").option(PLACE, str(directory / "read")).load()
    rows.write.format("seen").option(PLACE, str(directory / "write")).mode("append").save()
    return seen(directory)


def seen(directory: pathlib.Path) -> dict[str, list[str]]:
    """What was handed over beside the place, in each file of notes."""
    return {
        path.name: sorted(
            {name for line in path.read_text().splitlines() for name in json.loads(line)} - {PLACE}
        )
        for path in sorted(directory.iterdir())
        if path.is_file()
    }
