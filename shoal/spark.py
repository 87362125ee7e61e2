"""spark.read.format("shoal"): a topic's records as a DataFrame, read straight from its leaders.

The only file that knows PySpark; options and planning are in spark_options.py, fetching in spark_fetch.py.
Objects here are pickled from the driver to the executors: they are made cheaply and hold no connections.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shoal.spark_fetch import RangeReader, Scan, fetch_states
from shoal.spark_options import SourceError, SourceOptions, parse_options, plan

_COLUMNS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_HEADERS: Final = StructField("headers", ArrayType(_HEADER))


@dataclass(frozen=True)
class ShoalPartition(InputPartition):
    """One task: a range of offsets with the addresses that serve it."""

    scan: Scan


class ShoalDataSource(DataSource):
    """Options and columns are those of Spark's Kafka source; `agent` replaces the bootstrap servers.

    agent (URLs, comma separated; default SHOAL_AGENT or http://127.0.0.1:7070), subscribe, startingOffsets,
    endingOffsets, includeHeaders, minPartitions, failOnDataLoss.
    """

    @classmethod
    def name(cls) -> str:
        """What format() is given."""
        return "shoal"

    def _parsed(self) -> SourceOptions:
        return parse_options(self.options, os.environ)

    def schema(self) -> StructType:
        """The columns. Built without the JVM, which planning workers do not have."""
        headers = [_HEADERS] if self._parsed().include_headers else []
        return StructType([*_COLUMNS, *headers])

    def reader(self, schema: StructType) -> ShoalReader:
        """A batch reader. Raises SourceError when the caller's own schema is not the source's."""
        expected = self.schema()
        if schema != expected:
            raise SourceError(f"leave out .schema(...): the columns are {expected.simpleString()}")
        return ShoalReader(self._parsed())


class ShoalReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Ask the agents once for routes and offsets, and fix every task's range."""
        options = self._options
        states = {topic: fetch_states(topic, options.agents) for topic in options.topics}
        return [
            ShoalPartition(Scan(piece, options.agents, options.include_headers, options.fail_on_data_loss))
            for piece in plan(options, states)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's records. Spark passes a partition of its own when there is nothing to read."""
        if isinstance(partition, ShoalPartition):
            yield from RangeReader(partition.scan).batches()


def register(spark: SparkSession) -> None:
    """Make format("shoal") known where pyspark_shoal is not installed (a zip shipped with addPyFile)."""
    spark.dataSource.register(ShoalDataSource)
