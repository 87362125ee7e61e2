"""What a Python worker of Spark does once, with its first task. No Java: Spark's part is played."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from shoal.spark.options.errors import SourceError
from shoal.spark.options.write_options import SinkOptions, parse_sink_options
from shoal.spark.pyspark_api import settle_worker
from shoal.spark.read import readers
from shoal.spark.write import writers

OPTIONS: SinkOptions = parse_sink_options({"topic": "t", "agent": "127.0.0.1:9"}, {})


TASK = types.SimpleNamespace(partitionId=lambda: 3, getLocalProperty=lambda name: "5")
"""As much of a TaskContext as is asked for."""


class Writer:
    """Notes what the garbage collector would look past while a task writes."""

    seen: list[int]

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def write(self, batches: Iterator[pa.RecordBatch]) -> object:
        self.seen.append(gc.get_freeze_count())
        return len(list(batches))


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Counts of frozen objects, in a process that has had no task."""
    Writer.seen = []
    monkeypatch.setattr(writers, "TaskWriter", Writer)
    settle_worker.cache_clear()
    gc.unfreeze()
    yield Writer.seen
    gc.unfreeze()
    settle_worker.cache_clear()


def read_nothing() -> None:
    assert list(readers._read(InputPartition(None))) == []
    assert list(readers._read(None)) == []  # type: ignore[arg-type] -- Spark 4.0's
    Writer().write(iter(()))


def test_a_partition_that_is_nobodys_is_no_empty_one() -> None:
    """Spark's own has nothing to read. Any other that is not known here has records, which would be lost."""
    foreign = type("ShoalPartition", (InputPartition,), {})
    for partition in (foreign(()), foreign(None), InputPartition(7)):
        with pytest.raises(SourceError, match=r"register\(spark\) again"):
            list(readers._read(partition))


@pytest.mark.parametrize(
    "work",
    [
        read_nothing,
        lambda: writers.ShoalWriter(OPTIONS).write(iter(())),
        lambda: writers.ShoalStreamWriter(OPTIONS).write(iter(())),
    ],
    ids=["read", "write", "stream"],
)
def test_what_a_worker_imported_is_looked_through_by_no_later_collection(
    frozen: list[int], monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]
) -> None:
    """PySpark collects garbage after each task. Once: what a task leaves is garbage as ever."""
    monkeypatch.setattr(writers.TaskContext, "get", classmethod(lambda cls: TASK))
    work()
    work()
    assert frozen[0] >= frozen[1] > 10_000  # some of it is gone, nothing came


def test_a_users_own_process_is_left_alone(frozen: list[int]) -> None:
    """Outside of tasks nothing is done to the collector."""
    read_nothing()
    assert frozen == [0]
