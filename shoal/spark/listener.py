"""The lag of all streaming queries of a session, as they go on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from pyspark.sql.streaming.listener import StreamingQueryListener

from shoal.spark.progress import TopicLag, lag

Report: TypeAlias = "Callable[[str, dict[str, TopicLag]], object]"
_logger: Final = logging.getLogger("shoal.spark.lag")


class LagListener(StreamingQueryListener):
    """Logs how far each query that reads topics is behind, or calls `report` with its name (the id of a query
    without name) and lag. To be added by spark.streams.addListener.

    `report` is called in a thread of Spark's, after each micro-batch, and about every ten seconds while there
    is nothing to read.
    """

    def __init__(self, report: Report | None = None) -> None:
        self._report = report

    def onQueryStarted(self, event: Any) -> None:
        """A query begins: it has read nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """A micro-batch has ended."""
        behind = lag(event.progress)
        query = str(event.progress.name or event.progress.id)
        if self._report is not None and behind:
            self._report(query, behind)
        for topic, some in behind.items() if self._report is None else ():
            _logger.info(
                "query %s is %d records behind in topic %s (a partition: %d to %d, mean %.1f)",
                *(query, some.records, topic, some.least, some.most, some.mean),
            )

    def onQueryIdle(self, event: Any) -> None:
        """Nothing to read, hence nothing new to say."""

    def onQueryTerminated(self, event: Any) -> None:
        """The last progress has been told."""
