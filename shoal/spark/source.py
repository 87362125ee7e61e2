"""format("shoal") in Spark: topics as DataFrames and streams, and DataFrames and streams into topics.

Its readers and writers stand in `read` and `write`; what needs no PySpark there is testable without Java.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from pyspark.sql import SparkSession, datasource, types

from shoal.spark.boundary import says_errors_in_one_line, warn_of, worker_module
from shoal.spark.options.errors import SourceError
from shoal.spark.options.known import Mode, without_effect
from shoal.spark.options.read_options import (
    TABLE_COLUMNS,
    SourceOptions,
    names_table,
    parse_source_options,
    parse_table_options,
    refuse_limits,
)
from shoal.spark.options.write_options import SinkOptions, check_written, parse_sink_options
from shoal.spark.pyspark_api import HAS_READ_LIMITS, VERSION, register_source
from shoal.spark.read.readers import (
    RefusedStreamReader,
    ShoalPushdownReader,
    ShoalReader,
    ShoalStreamReader,
    ShoalTableReader,
)
from shoal.spark.setup import check_session, files, settled_settings, zipped
from shoal.spark.ship.shipment import SentSource, Shipped, deliver, pack
from shoal.spark.write.send import ChunkSender, Sink
from shoal.spark.write.writers import ShoalStreamWriter, ShoalWriter

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
PUSHDOWN_SETTING: Final = "spark.sql.python.filterPushdown.enabled"
_FILTERING_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The worker that plans batch queries while that setting is on: it alone hands filters over."""


@says_errors_in_one_line
class ShoalDataSource(Shipped, datasource.DataSource):
    """Options and columns are those of Spark's Kafka source; `agent` replaces the bootstrap servers, and
    `table` asks for the rows of a table.

    See docs/spark.md for all options. Methods take `schema` by keyword: Spark calls them so.
    """

    _is_for_tasks = False  # before it has planned, Spark pickles it for its planning processes

    @classmethod
    def name(cls) -> str:
        """The argument of format()."""
        return "shoal"

    def _parsed(self, mode: Mode) -> SourceOptions:
        return parse_source_options(self.options, os.environ, mode)

    def schema(self) -> types.StructType:
        """The columns. Spark asks once for a query, without the JVM, which planning workers do not have."""
        warn_of(without_effect(self.options))
        return self._columns()

    def _columns(self) -> types.StructType:
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
        if options.pushdown and _FILTERING_WORKER in (worker_module(), *sys.modules):
            return ShoalPushdownReader(options)
        return ShoalReader(options)

    def streamReader(self, schema: types.StructType) -> datasource.DataSourceStreamReader:
        """A stream's reader, likewise. A table's rows are no stream."""
        try:
            return self._stream_reader(schema)
        except SourceError as error:
            if not worker_module():
                raise
            return RefusedStreamReader(str(error))

    def _stream_reader(self, schema: types.StructType) -> ShoalStreamReader:
        self._require_own(schema)
        if names_table(self.options):
            parse_table_options(self.options, os.environ, Mode.STREAM)
        if not HAS_READ_LIMITS:
            refuse_limits(self.options, VERSION)
        return ShoalStreamReader(self._parsed(Mode.STREAM))

    def writer(self, schema: types.StructType, overwrite: bool) -> ShoalWriter:
        """A batch writer. Raises SourceError for columns that no topic takes, an unknown topic, and
        mode("overwrite")."""
        if overwrite:
            raise SourceError('a log is only appended to: use .mode("append")')
        options = self._sink(schema)
        warn_of(without_effect(self.options))
        if options.topic is not None:
            sink = Sink(options.agents, options.topic, credentials=options.credentials)
            ChunkSender(sink, "planning", 0).routes(options.topic, planning=True)
        return ShoalWriter(options)

    def streamWriter(self, schema: types.StructType, overwrite: bool) -> ShoalStreamWriter:
        """A stream's writer, made anew for every micro-batch, without a request. In the output mode
        "complete" (`overwrite`) each micro-batch appends all results, as with Kafka."""
        return ShoalStreamWriter(self._sink(schema), without_effect(self.options))

    def _sink(self, schema: types.StructType) -> SinkOptions:
        options = parse_sink_options(self.options, os.environ)
        check_written([(field.name, field.dataType.simpleString()) for field in schema.fields], options)
        return options

    def _require_own(self, schema: types.StructType) -> None:
        self._is_for_tasks = True  # Spark now pickles it beside its reader
        expected = self._columns()
        if schema != expected:
            raise SourceError(
                f"leave out .schema(...): the columns are {expected.simpleString()};"
                ' fewer of them: .option("columns", "key,value")'
            )


def register(spark: SparkSession, *, pushdown: bool = False) -> None:
    """Make format("shoal") known, and send this Shoal along to executors and servers, which need PySpark and
    pyarrow only. To be called anywhere before several streaming queries start at once (`settled_settings`
    says why). `pushdown`: also let Spark hand filters over, to all Python sources of the session.

    Raises SourceError, one line, when the session's workers could not run it.
    """
    check_session(spark)
    contents = files()
    source: Any = SentSource(ShoalDataSource, deliver(pack(contents, zipped(contents)), spark))
    with settled_settings(spark):
        register_source(spark, source)
    if pushdown:
        spark.conf.set(PUSHDOWN_SETTING, "true")
