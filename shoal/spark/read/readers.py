"""Spark's readers of topics and tables: they plan on the driver and read on the executors.

Objects here are pickled from the driver to the executors: they are made cheaply and hold no connections.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource

from shoal.spark.boundary import says_errors_in_one_line
from shoal.spark.options.bounds import Selection
from shoal.spark.options.errors import SourceError
from shoal.spark.options.read_options import SourceOptions, TableOptions
from shoal.spark.pyspark_api import (
    COMPARISONS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SimpleReader,
    SupportsTriggerAvailableNow,
    settle_worker,
    takes_records,
)
from shoal.spark.read.fetch import LARGE_BATCH_BYTES, RangeReader, Scan
from shoal.spark.read.http import pool_of
from shoal.spark.read.plan import Narrowing, plan
from shoal.spark.read.prefetch import Prefetcher
from shoal.spark.read.stream import StreamPlanner
from shoal.spark.read.table import TablePartitionReader, TableTask
from shoal.spark.read.topics import Directory
from shoal.spark.ship.shipment import Shipped


@dataclass(frozen=True)
class ShoalPartition(datasource.InputPartition):
    """One task: ranges of offsets with the addresses that serve them. Only small ranges share a task."""

    scans: tuple[Scan, ...]


def _tasks(planned: Iterable[tuple[Scan, ...]]) -> list[datasource.InputPartition]:
    return [ShoalPartition(scans) for scans in planned]


def _require_sparks_own(partition: datasource.InputPartition | None) -> None:
    """Raises SourceError for a partition that is not Spark's own for nothing (None in 4.0): its records would
    be missing."""
    is_nothing = type(partition) is datasource.InputPartition and partition.value is None
    if partition is not None and not is_nothing:
        raise SourceError(
            f"a task of another Shoal came here ({type(partition).__qualname__}): call register(spark) again"
        )


def _read(partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
    """One task's records. Spark passes a partition of its own when there is nothing to read."""
    if TaskContext.get() is not None:
        settle_worker()
    if not isinstance(partition, ShoalPartition):
        _require_sparks_own(partition)
        return
    if len(partition.scans) == 1:
        yield from RangeReader(partition.scans[0]).batches()
        return
    joined: list[pa.RecordBatch] = []  # a batch costs Spark more than the few records of a small range
    size = 0
    for scan in partition.scans:
        for batch in RangeReader(scan).batches():
            joined.append(batch)
            size += batch.nbytes
            if size >= LARGE_BATCH_BYTES:
                yield pa.concat_batches(joined)
                joined, size = [], 0
    if joined:
        yield pa.concat_batches(joined)


@says_errors_in_one_line
class ShoalReader(Shipped, datasource.DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowing = Narrowing()

    def partitions(self) -> list[datasource.InputPartition]:
        """Ask the agents once for routes and offsets, and fix every task's range."""
        options = self._options
        directory = Directory(options.agents, pool=pool_of(options.credentials))
        states = directory.states(options.selection)
        starts = directory.resolve(options.starting, "starting", states)
        ends = directory.resolve(options.ending, "ending", states)
        narrowing = self._narrowing
        since = None if narrowing.since_ms is None else directory.first_since(narrowing.since_ms, states)
        ranges = plan(options, states, starts, ends, narrowing, since)
        return _tasks(Prefetcher(options).tasks(ranges, directory.agents))

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's records."""
        return _read(partition)


class ShoalPushdownReader(ShoalReader):
    """Also cuts ranges by filters. A reader that overrides pushFilters fails every query while
    spark.sql.python.filterPushdown.enabled is false, its default, so only the worker that hands filters over
    makes this one."""

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:
        """Bounds from filters on topic, partition, offset and timestamp; Spark still applies them all."""
        condition: Any
        for condition in filters:
            comparison = COMPARISONS.get(type(condition))
            if comparison is not None and len(condition.attribute) == 1:  # else the column of a nested field
                column = condition.attribute[0].lower()
                self._narrowing = self._narrowing.by(column, comparison, condition.value)
        return filters


@dataclass(frozen=True)
class ShoalTablePartition(datasource.InputPartition):
    """One task: a partition of a table."""

    task: TableTask


@says_errors_in_one_line
class ShoalTableReader(Shipped, datasource.DataSourceReader):
    """The rows of a table: each partition as one task, at one cut. Another action reads it anew."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options

    def partitions(self) -> list[datasource.InputPartition]:
        """A task for each partition that has, or had, records."""
        options = self._options
        directory = Directory(options.agents, pool=pool_of(options.credentials))
        states = directory.states(Selection(topics=(options.table,)))[options.table]
        return [
            ShoalTablePartition(
                TableTask(
                    options.table,
                    partition,
                    state.urls,
                    directory.agents,
                    options.prefix,
                    credentials=options.credentials,
                )
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
        else:
            _require_sparks_own(partition)


@says_errors_in_one_line
class ShoalStreamReader(Shipped, datasource.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in a process of the driver that lives as long as the query; read() runs in other processes and
    knows its partition only."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._fetched: list[pa.RecordBatch] = []

    # Both are made when first asked: readers are also built only to be pickled.

    @functools.cached_property
    def _planner(self) -> StreamPlanner:
        return StreamPlanner(self._options)

    @functools.cached_property
    def _prefetcher(self) -> Prefetcher:
        return Prefetcher(self._options)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_fetched": []}

    def initialOffset(self) -> dict[str, Any]:
        """{topic: {partition: offset}}, as in the Kafka source's checkpoints."""
        return self._planner.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxOffsetsPerTrigger, if given."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """The end of the next micro-batch; waits at an agent while there is nothing. (Spark before 4.2 gives
        no argument.)"""
        return self._planner.latest_offset(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the whole query."""
        self._planner.prepare_available_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the logs, for the query's progress."""
        return self._planner.reported_offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[datasource.InputPartition]:
        """The tasks of one micro-batch. A small one is fetched here: then Spark gets its records with it, and
        runs no Python task unless it loses them."""
        ranges, agents = self._planner.ranges(start, end), self._planner.agents
        fetched = self._prefetcher.fetch(ranges, agents) if takes_records() else None
        if fetched is None:
            return _tasks(self._prefetcher.tasks(ranges, agents))
        self._fetched, self.__class__ = fetched, ShoalFetchedReader
        return _tasks([self._prefetcher.together(ranges, agents)])

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's records."""
        return _read(partition)


@says_errors_in_one_line
class RefusedStreamReader(datasource.DataSourceStreamReader):
    """In the place of a stream's reader that cannot be made: it says why as soon as it is asked.

    An error while a reader is made never reaches the user. PySpark then stops the reader that it does not
    have, and tells of that fault of its own.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def initialOffset(self) -> dict[str, Any]:
        """Raises SourceError."""
        raise SourceError(self._reason)

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        """Raises SourceError."""
        raise SourceError(self._reason)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[datasource.InputPartition]:
        """Raises SourceError."""
        raise SourceError(self._reason)

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises SourceError."""
        raise SourceError(self._reason)


class ShoalFetchedReader(ShoalStreamReader, SimpleReader):
    """The reader of a stream between planning a micro-batch and handing over its records: Spark takes records
    from simple readers only, and a simple reader has neither limits nor a lag."""

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """The records of the micro-batch that was planned last, once. Spark keeps them for repeated tasks."""
        fetched, self._fetched = self._fetched, []
        self.__class__ = ShoalStreamReader  # type: ignore[assignment]
        return iter(fetched)
