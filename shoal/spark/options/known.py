"""The names of options: those of reads and of writes, and those that Spark adds.

Pure. Options have the names of Spark's Kafka source and sink.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from shoal.spark.options.errors import SourceError

SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
_COMMON: Final = ("agent", "failOnDataLoss", *SELECTIONS)
READ: Final = (
    *_COMMON,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "includeHeaders",
    "columns",
    "pushdown",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "idleWaitMs",
    "prefetchBytes",
)
TABLE: Final = ("agent", "table", "prefix")
WRITE: Final = ("agent", "topic", "txnId", "txnBatch")
_SPARKS: Final = (
    "checkpointLocation",
    "queryName",
    "outputMode",
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
)
"""Options that Spark itself reads and hands over with the others, for named queries and pipelines. They
concern no topic."""
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushdown")
LIMITS: Final = ("minOffsetsPerTrigger", "maxOffsetsPerTrigger")
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "idleWaitMs", "prefetchBytes")
_ADVICE: Final = {
    "kafka.bootstrap.servers": 'the agents are named by .option("agent", "http://HOST:7070")',
    "kafka.group.id": "there is no group: Spark's checkpoint holds the offsets",
    "groupidprefix": "there is no group: Spark's checkpoint holds the offsets",
    "startingtimestampstrategy": "it is called startingOffsetsByTimestampStrategy",
    "table": 'rows are written as records with keys: .option("topic", "TABLE")',
    "path": 'topics are chosen by .option("subscribe", "TOPIC"), and written to by .option("topic", "TOPIC")',
}


class Mode(Enum):
    """The kind of query. ANY: not known yet, so that only rules for both are checked."""

    ANY = "any"
    BATCH = "batch"
    STREAM = "stream"


def known_options(options: Mapping[str, str], names: Sequence[str], mode: Mode) -> dict[str, str]:
    """The options by their names in lower case. Raises SourceError for an unknown name, with a likely one."""
    allowed = {name.lower(): name for name in names}
    sparks = {name.lower() for name in _SPARKS}
    given = {name.lower(): value for name, value in options.items() if name.lower() not in sparks}
    for name in given:
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, n=1)
            listed = f"known are: {', '.join(sorted(allowed.values()))}"
            guess = f"did you mean {allowed[close[0]]}? ({listed})" if close else listed
            raise SourceError(f"unknown option {name!r}; {_ADVICE.get(name, guess)}")
    for names_of_other, this, other in (
        (_BATCH_ONLY, Mode.STREAM, "batch queries (spark.read)"),
        (_STREAM_ONLY, Mode.BATCH, "streams (spark.readStream)"),
    ):
        unfit = [name for name in names_of_other if name.lower() in given]
        if mode is this and unfit:
            raise SourceError(f"option {unfit[0]} is for {other} only")
    return given
