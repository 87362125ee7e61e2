"""format("shoal") in Spark. A name is loaded when it is first used (PEP 562): what runs before Spark starts
(`prepare`, java.py) is found without PySpark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from shoal.spark import pyspark_version

if TYPE_CHECKING:  # what `_HOMES` says, for those who check and complete
    from shoal.spark.foreach_batch import batches
    from shoal.spark.listener import LagListener
    from shoal.spark.options.errors import SourceError
    from shoal.spark.progress import TopicLag, lag
    from shoal.spark.setup import prepare
    from shoal.spark.source import ShoalDataSource, register

__all__ = [
    "LagListener",
    "ShoalDataSource",
    "SourceError",
    "TopicLag",
    "batches",
    "lag",
    "prepare",
    "register",
]

_HOMES: Final = {
    "LagListener": "shoal.spark.listener",
    "ShoalDataSource": "shoal.spark.source",
    "SourceError": "shoal.spark.options.errors",
    "TopicLag": "shoal.spark.progress",
    "batches": "shoal.spark.foreach_batch",
    "lag": "shoal.spark.progress",
    "prepare": "shoal.spark.setup",
    "register": "shoal.spark.source",
}
_WITHOUT_PYSPARK: Final = ("shoal.spark.options.errors", "shoal.spark.setup")

if not TYPE_CHECKING:  # a checker would take any name for one that is there

    def __getattr__(name: str) -> Any:
        """Load `name` from the module that defines it. Raises ImportError, one line, without a PySpark that
        has what it needs."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'shoal.spark' has no attribute {name!r}")
        if home not in _WITHOUT_PYSPARK:
            pyspark_version.require()
        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
