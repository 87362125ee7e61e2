"""The part of PySpark that is not alike in all versions that Shoal runs on.

Law of this file: the only one that asks which PySpark there is.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Mapping
from typing import Any

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:
    raise ImportError("shoal.spark needs PySpark 4.2 or newer: pip install 'shoal-log[spark]'") from error

try:
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as SimpleReader
except ImportError:  # takes_records() is false then, and nothing is done with the class

    class SimpleReader:  # type: ignore[no-redef]
        """In the place of PySpark's."""


__all__ = [
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SimpleReader",
    "SupportsTriggerAvailableNow",
    "settle_worker",
    "takes_records",
]


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
