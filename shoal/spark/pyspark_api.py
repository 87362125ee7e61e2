"""What PySpark offers data sources, in the versions that Shoal runs on.

Law of this file: the only one that asks which PySpark there is.
"""

from __future__ import annotations

import functools
import gc

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:
    raise ImportError("shoal.spark needs PySpark 4.2 or newer: pip install 'shoal-log[spark]'") from error

__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow", "settle_worker"]


@functools.cache
def settle_worker() -> None:
    """Exclude a Python worker's imports from garbage collection, with its first task.

    PySpark collects garbage after every task of a worker, and looking through the modules of pyarrow, numpy
    and PySpark takes 10 to 30 ms each time. (Not in a user's own process: tasks have workers.)
    """
    gc.freeze()
