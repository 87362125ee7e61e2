"""Which PySpark is installed, looked up without importing it.

Law of this file: standard library only, since it speaks where PySpark is missing. Features are not asked for
here, but by their names in pyspark_api.py.
"""

from __future__ import annotations

import importlib.util
import os
import re
from typing import Final, NamedTuple

OLDEST: Final = (4, 0)
JAVA_OF_HADOOP_3_4: Final = 22
"""Spark before 4.2 brings Hadoop 3.4, whose Subject.getSubject a newer Java refuses."""
_SPARK_WITH_HADOOP_3_5: Final = (4, 2)
_VERSION = re.compile(r"""^__version__\b[^=]*=\s*["'](([0-9]+)\.([0-9]+)[^"']*)["']""", re.MULTILINE)


class PySpark(NamedTuple):
    """Its version as it says it, and the first two numbers; zeros where it does not say."""

    text: str
    major: int
    minor: int

    @property
    def is_too_old(self) -> bool:
        """Before the data sources in Python that Shoal is one of."""
        return self.major > 0 and (self.major, self.minor) < OLDEST

    @property
    def newest_java(self) -> int | None:
        """The newest Java that its Spark runs on; None: none is known that it does not."""
        known = self.major > 0
        return JAVA_OF_HADOOP_3_4 if known and self[1:] < _SPARK_WITH_HADOOP_3_5 else None


def installed() -> PySpark | None:
    """The PySpark that an import would find; None where there is none."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:  # without an origin: a directory that has only the name
        return None
    path = os.path.join(os.path.dirname(found.origin), "version.py")
    try:  # the loader, since spark-submit's PySpark may lie in a zip
        text = found.loader.get_data(path).decode("utf-8", "replace")  # type: ignore[union-attr]
    except (AttributeError, OSError):
        text = ""
    version = _VERSION.search(text)
    if version is None:
        return PySpark("of an unknown version", 0, 0)
    return PySpark(version[1], int(version[2]), int(version[3]))


def problem() -> str | None:
    """In one line why Shoal cannot run in Spark here, as far as PySpark is concerned; None: it can."""
    there = installed()
    if there is not None and not there.is_too_old:
        return None
    oldest = ".".join(map(str, OLDEST))
    said = "and there is none here" if there is None else f"and this is {there.text}"
    return f"Shoal in Spark needs PySpark {oldest} or newer, {said}: pip install 'shoal-log[spark]'"


def require() -> None:
    """Raises ImportError, with that line."""
    said = problem()
    if said is not None:
        raise ImportError(said)
