"""The part of PySpark that is not alike in all versions that Shoal runs on, with stand-ins for gaps.

Law of this file: the only one that asks for this part, and it asks by names, not by version, since vendors
take features from later versions. A stand-in makes Shoal narrower, never wrong.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import datasource

__all__ = [
    "COMPARISONS",
    "HAS_READ_LIMITS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SimpleReader",
    "StreamArrowWriter",
    "SupportsTriggerAvailableNow",
    "VERSION",
    "connect_session",
    "register_source",
    "settle_worker",
    "takes_records",
]

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS: Final = True
    """Whether Spark tells a stream's reader where a micro-batch begins, how large it may be, and that it has
    Trigger.AvailableNow, under which no limit may be the reason for an end: from 4.2."""
except ImportError:
    HAS_READ_LIMITS = False  # type: ignore[misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Nobody asks for it."""

    class ReadLimit:  # type: ignore[no-redef]
        """Nobody asks for one."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """The only one there is."""

    @dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """Its option is refused."""

        max_rows: int


try:
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as SimpleReader
except ImportError:  # takes_records() is false then, and nothing is done with the class

    class SimpleReader:  # type: ignore[no-redef]
        """In the place of PySpark's."""


VERSION: Final[str] = pyspark.__version__
"""For messages."""

COMPARISONS: Final[dict[type[Any], str]] = {
    getattr(datasource, name): comparison
    for name, comparison in {
        "EqualTo": "=",
        "In": "in",
        "GreaterThan": ">",
        "GreaterThanOrEqual": ">=",
        "LessThan": "<",
        "LessThanOrEqual": "<=",
    }.items()
    if hasattr(datasource, name)
}
"""Filters that bound ranges. Empty: this Spark pushes none (4.0), and filters what was read."""

try:
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
except AttributeError:

    class StreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):  # type: ignore[no-redef, misc]
        """Spark 4.0 has no such class, and gives Arrow to every writer that is of the second one, also to
        those of streams."""


@functools.cache
def settle_worker() -> None:
    """Exclude a Python worker's imports from garbage collection, with its first task.

    PySpark collects garbage after every task of a worker, and looking through the modules of pyarrow, numpy
    and PySpark takes 10 to 30 ms each time. (Not in a user's own process: tasks have workers.)
    """
    gc.freeze()


def takes_records(modules: Mapping[str, Any] = sys.modules) -> bool:
    """Whether this is the planning process of a stream whose PySpark asks a simple reader for its records.

    That is PySpark's own affair and may change. So its function that plans a micro-batch is looked at. It
    has to name what Shoal relies on. Elsewhere tasks read all records.
    """
    for name in ("pyspark.sql.streaming.python_streaming_source_runner", "__main__"):
        function = getattr(modules.get(name), "partitions_func", None)
        code = getattr(function, "__code__", None)
        if code is not None:
            return {"isinstance", "_SimpleStreamReaderWrapper", "getCache"} <= set(code.co_names)
    return False


def connect_session() -> Any | None:
    """The user's session at a Spark Connect server, in a process there that unpickles a function of the
    user's; None elsewhere. Spark 4.3 then calls the function with frames of a copy of that session, which
    has no queries."""
    if "SPARK_CONNECT_MODE_ENABLED" not in os.environ:
        return None
    from pyspark.sql.connect.session import SparkSession

    return SparkSession.getActiveSession()


def register_source(spark: Any, source: Any) -> bool:
    """Register a data source; False: Spark keeps one of this name that it has found installed (4.0)."""
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        return False
    return True
