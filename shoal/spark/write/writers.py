"""Spark's writers of topics: each micro-batch and each task is written once.

Objects here are pickled from the driver to the executors: they are made cheaply and hold no connections.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource

from shoal.spark.boundary import says_errors_in_one_line, warn_of
from shoal.spark.options.errors import SourceError
from shoal.spark.options.write_options import SinkOptions
from shoal.spark.pyspark_api import StreamArrowWriter, settle_worker
from shoal.spark.ship.shipment import Shipped
from shoal.spark.write.send import Sink
from shoal.spark.write.write import TaskCounts, TaskWriter


@dataclass(frozen=True)
class ShoalCommit(datasource.WriterCommitMessage):
    """The counts of one task."""

    written: TaskCounts


@says_errors_in_one_line
class ShoalWriter(Shipped, datasource.DataSourceArrowWriter):
    """df.write: a task that Spark repeats stores no record twice. With the option txnId, nor does the whole
    write when it is started again; txnBatch numbers the writes of a txnId."""

    def __init__(self, options: SinkOptions) -> None:
        self._sink = Sink(options.agents, options.topic, credentials=options.credentials)
        self._transaction = options.txn_id or uuid.uuid4().hex
        self._batch = options.txn_batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ShoalCommit:
        """One task."""
        task = TaskContext.get()
        assert task is not None, "Spark writes within tasks"
        settle_worker()
        writer = TaskWriter(self._sink, self._transaction, task.partitionId(), self._batch)
        return ShoalCommit(writer.write(iterator))


@says_errors_in_one_line
class ShoalStreamWriter(Shipped, StreamArrowWriter):
    """df.writeStream: a micro-batch that is repeated after a restart stores no record twice."""

    def __init__(self, options: SinkOptions, idle: Sequence[str] = ()) -> None:
        self._sink = Sink(options.agents, options.topic, credentials=options.credentials)
        self._idle = idle  # options without effect

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ShoalCommit:
        """One task of one micro-batch. A repeated one has the same ids of query and batch."""
        task = TaskContext.get()
        assert task is not None, "Spark writes within tasks"
        settle_worker()
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise SourceError(
                "this Spark does not give its tasks the query's id: use Apache Spark 4.0 or newer"
            )
        return ShoalCommit(TaskWriter(self._sink, query, task.partitionId(), int(batch)).write(iterator))

    def commit(self, messages: list[Any], batch: int) -> None:
        """A micro-batch is written: the first one of a query says which options have no effect."""
        if batch == 0:
            warn_of(self._idle)
