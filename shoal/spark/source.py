"""format("shoal") in Spark: topics as DataFrames and streams, and DataFrames and streams into topics.

The only file that knows PySpark; the files beside it are testable without Java. Objects here are pickled from
the driver to the executors: they are made cheaply and hold no connections.
"""

from __future__ import annotations

import functools
import gc
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:
    raise ImportError("shoal.spark needs PySpark 4.2 or newer: pip install 'shoal-log[spark]'") from error

from pyspark import TaskContext
from pyspark.sql import SparkSession, datasource, types

from shoal.spark.fetch import RangeReader, Scan
from shoal.spark.options import (
    TABLE_COLUMNS,
    Mode,
    Selection,
    SinkOptions,
    SourceError,
    SourceOptions,
    TableOptions,
    check_written,
    names_table,
    parse_sink_options,
    parse_source_options,
    parse_table_options,
)
from shoal.spark.plan import Narrowing, OffsetRange, plan
from shoal.spark.send import ChunkSender, Sink
from shoal.spark.setup import check_session, settled_settings
from shoal.spark.stream import StreamPlanner
from shoal.spark.table import TablePartitionReader, TableTask
from shoal.spark.topics import Directory
from shoal.spark.write import TaskCounts, TaskWriter

_HEADER: Final = types.StructType(
    [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
)
_TYPES: Final[dict[str, types.DataType]] = {
    "key": types.BinaryType(),
    "value": types.BinaryType(),
    "topic": types.StringType(),
    "partition": types.IntegerType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
    "timestampType": types.IntegerType(),
    "headers": types.ArrayType(_HEADER),
}


@dataclass(frozen=True)
class ShoalPartition(datasource.InputPartition):
    """One task: a range of offsets with the addresses that serve it."""

    scan: Scan


class ShoalDataSource(datasource.DataSource):
    """Options and columns are those of Spark's Kafka source; `agent` replaces the bootstrap servers, and
    `table` asks for the rows of a table.

    See docs/spark.md for all options. Methods take `schema` by keyword: Spark calls them so.
    """

    @classmethod
    def name(cls) -> str:
        """The argument of format()."""
        return "shoal"

    def _parsed(self, mode: Mode) -> SourceOptions:
        return parse_source_options(self.options, os.environ, mode)

    def schema(self) -> types.StructType:
        """The columns. Made without the JVM, which planning workers do not have."""
        if names_table(self.options):
            parse_table_options(self.options, os.environ, Mode.ANY)
            columns: tuple[str, ...] = TABLE_COLUMNS
        else:
            columns = self._parsed(Mode.ANY).columns
        return types.StructType([types.StructField(name, _TYPES[name]) for name in columns])

    def reader(self, schema: types.StructType) -> datasource.DataSourceReader:
        """A batch reader. Raises SourceError when the caller's own schema is not the source's."""
        self._require_own(schema)
        if names_table(self.options):
            return ShoalTableReader(parse_table_options(self.options, os.environ, Mode.BATCH))
        options = self._parsed(Mode.BATCH)
        return ShoalPushdownReader(options) if options.pushdown else ShoalReader(options)

    def streamReader(self, schema: types.StructType) -> ShoalStreamReader:
        """A stream's reader, likewise. A table's rows are no stream."""
        self._require_own(schema)
        if names_table(self.options):
            parse_table_options(self.options, os.environ, Mode.STREAM)
        return ShoalStreamReader(self._parsed(Mode.STREAM))

    def writer(self, schema: types.StructType, overwrite: bool) -> ShoalWriter:
        """A batch writer. Raises SourceError for columns that no topic takes, an unknown topic, and
        mode("overwrite")."""
        if overwrite:
            raise SourceError('a log is only appended to: use .mode("append")')
        options = self._sink(schema)
        if options.topic is not None:
            ChunkSender(Sink(options.agents, options.topic), "planning", 0).routes(
                options.topic, planning=True
            )
        return ShoalWriter(options)

    def streamWriter(self, schema: types.StructType, overwrite: bool) -> ShoalStreamWriter:
        """A stream's writer, made anew for every micro-batch, without a request. In the output mode
        "complete" (`overwrite`) each micro-batch appends all results, as with Kafka."""
        return ShoalStreamWriter(self._sink(schema))

    def _sink(self, schema: types.StructType) -> SinkOptions:
        options = parse_sink_options(self.options, os.environ)
        check_written([(field.name, field.dataType.simpleString()) for field in schema.fields], options)
        return options

    def _require_own(self, schema: types.StructType) -> None:
        expected = self.schema()
        if schema != expected:
            raise SourceError(
                f"leave out .schema(...): the columns are {expected.simpleString()};"
                ' fewer of them: .option("columns", "key,value")'
            )


def _tasks(
    ranges: Sequence[OffsetRange], options: SourceOptions, agents: tuple[str, ...]
) -> list[datasource.InputPartition]:
    return [
        ShoalPartition(Scan(piece, agents, options.columns, options.fail_on_data_loss)) for piece in ranges
    ]


def _read(partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
    """One task's records. Spark passes a partition of its own when there is nothing to read."""
    if TaskContext.get() is not None:
        settle_worker()
    if isinstance(partition, ShoalPartition):
        yield from RangeReader(partition.scan).batches()


class ShoalReader(datasource.DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowing = Narrowing()

    def partitions(self) -> list[datasource.InputPartition]:
        """Ask the agents once for routes and offsets, and fix every task's range."""
        options = self._options
        directory = Directory(options.agents)
        states = directory.states(options.selection)
        starts = directory.resolve(options.starting, "starting", states)
        ends = directory.resolve(options.ending, "ending", states)
        narrowing = self._narrowing
        since = None if narrowing.since_ms is None else directory.first_since(narrowing.since_ms, states)
        return _tasks(plan(options, states, starts, ends, narrowing, since), options, directory.agents)

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's records."""
        return _read(partition)


@dataclass(frozen=True)
class ShoalTablePartition(datasource.InputPartition):
    """One task: a partition of a table."""

    task: TableTask


class ShoalTableReader(datasource.DataSourceReader):
    """The rows of a table: each partition as one task, at one cut. Another action reads it anew."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options

    def partitions(self) -> list[datasource.InputPartition]:
        """A task for each partition that has, or had, records."""
        options = self._options
        directory = Directory(options.agents)
        states = directory.states(Selection(topics=(options.table,)))[options.table]
        return [
            ShoalTablePartition(
                TableTask(options.table, partition, state.urls, directory.agents, options.prefix)
            )
            for partition, state in sorted(states.items())
            if state.high_watermark
        ]

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's rows."""
        if TaskContext.get() is not None:
            settle_worker()
        if isinstance(partition, ShoalTablePartition):
            yield from TablePartitionReader(partition.task).batches()


class ShoalPushdownReader(ShoalReader):
    """Also cuts ranges by filters. A reader that overrides pushFilters fails every query while
    spark.sql.python.filterPushdown.enabled is false, its default, so this class is made on demand."""

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:
        """Bounds from filters on topic, partition, offset and timestamp; Spark still applies them all."""
        condition: Any
        for condition in filters:
            comparison = _COMPARISONS.get(type(condition))
            if comparison is not None and len(condition.attribute) == 1:  # else the column of a nested field
                column = condition.attribute[0].lower()
                self._narrowing = self._narrowing.by(column, comparison, condition.value)
        return filters


_COMPARISONS: Final[dict[type[datasource.Filter], str]] = {
    datasource.EqualTo: "=",
    datasource.In: "in",
    datasource.GreaterThan: ">",
    datasource.GreaterThanOrEqual: ">=",
    datasource.LessThan: "<",
    datasource.LessThanOrEqual: "<=",
}


class ShoalStreamReader(datasource.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in a process of the driver that lives as long as the query; read() runs in other processes and
    knows its partition only."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @functools.cached_property
    def _planner(self) -> StreamPlanner:
        # Made when first asked: readers are also built only to be pickled.
        return StreamPlanner(self._options)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def initialOffset(self) -> dict[str, Any]:
        """{topic: {partition: offset}}, as in the Kafka source's checkpoints."""
        return self._planner.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxOffsetsPerTrigger, if given."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch; waits at an agent while there is nothing."""
        return self._planner.latest_offset(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the whole query."""
        self._planner.prepare_available_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the logs, for the query's progress."""
        return self._planner.reported_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[datasource.InputPartition]:
        """The tasks of one micro-batch."""
        return _tasks(self._planner.ranges(start, end), self._options, self._planner.agents)

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's records."""
        return _read(partition)


@dataclass(frozen=True)
class ShoalCommit(datasource.WriterCommitMessage):
    """The counts of one task."""

    written: TaskCounts


class ShoalWriter(datasource.DataSourceArrowWriter):
    """df.write: a task that Spark repeats stores no record twice; with the option txnId, nor does the whole
    write when it is started again."""

    def __init__(self, options: SinkOptions) -> None:
        self._sink = Sink(options.agents, options.topic)
        self._transaction = options.txn_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ShoalCommit:
        """One task."""
        task = TaskContext.get()
        assert task is not None, "Spark writes within tasks"
        settle_worker()
        return ShoalCommit(TaskWriter(self._sink, self._transaction, task.partitionId()).write(iterator))


class ShoalStreamWriter(datasource.DataSourceStreamArrowWriter):
    """df.writeStream: a micro-batch that is repeated after a restart stores no record twice."""

    def __init__(self, options: SinkOptions) -> None:
        self._sink = Sink(options.agents, options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ShoalCommit:
        """One task of one micro-batch. A repeated one has the same ids of query and batch."""
        task = TaskContext.get()
        assert task is not None, "Spark writes within tasks"
        settle_worker()
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise SourceError("this Spark does not give its tasks the query's id: use PySpark 4.2")
        return ShoalCommit(TaskWriter(self._sink, query, task.partitionId(), int(batch)).write(iterator))


@functools.cache
def settle_worker() -> None:
    """Exclude a Python worker's imports from garbage collection, with its first task.

    PySpark collects garbage after every task of a worker, and looking through the modules of pyarrow, numpy
    and PySpark takes 10 to 30 ms each time. (Not in a user's own process: tasks have workers.)
    """
    gc.freeze()


def register(spark: SparkSession) -> None:
    """Make format("shoal") known where pyspark_shoal is not installed (a zip shipped with addPyFile), and
    anywhere before several streaming queries start at once (`settled_settings` says why).

    Raises SourceError, one line, when the session's workers could not run it.
    """
    check_session(spark)
    with settled_settings(spark):
        spark.dataSource.register(ShoalDataSource)
