"""The names of options: those of reads and of writes, those of Kafka's source, and those that Spark adds.

Pure. Options have the names of Spark's Kafka source and sink.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from shoal.spark.options.errors import SourceError

SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
CREDENTIALS: Final = ("token", "ca", "certificate", "key")
_COMMON: Final = ("agent", *CREDENTIALS, "failOnDataLoss", *SELECTIONS)
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
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "idleWaitMs",
    "prefetchBytes",
)
TABLE: Final = ("agent", *CREDENTIALS, "table", "prefix")
WRITE: Final = ("agent", *CREDENTIALS, "topic", "txnId", "txnBatch")
SPARKS: Final = (
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
_STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "idleWaitMs",
    "prefetchBytes",
)
_NO_GROUP: Final = "there is no group: Spark's checkpoint holds the offsets"
_NO_LOGIN: Final = (
    'agents take .option("token", "@FILE"), and .option("ca", "FILE") names the authority of their TLS;'
    " kafka's own are left out (docs/spark.md)"
)
_CAST: Final = "key and value are binary: use CAST(value AS STRING), or from_json"
_WRITTEN_TO: Final = 'a topic is written to by .option("topic", "TOPIC")'
_ADVICE: Final = {
    "startingTimestampStrategy": "it is called startingOffsetsByTimestampStrategy",
    "table": 'rows are written as records with keys: .option("topic", "TABLE")',
    "topic": 'a topic is read by .option("subscribe", "TOPIC")',
    "subscribe": _WRITTEN_TO,
    "subscribePattern": _WRITTEN_TO,
    "assign": _WRITTEN_TO,
    "prefix": 'it chooses rows of a table, which is read by .option("table", "TABLE")',
    "provider": (
        "topics are no tables of Spark's catalog, which would keep the options: say CREATE TEMPORARY VIEW"
        " NAME USING shoal OPTIONS (...)"
    ),
    "path": 'topics are chosen by .option("subscribe", "TOPIC"), and written to by .option("topic", "TOPIC")',
    "kafka.bootstrap.servers": 'the agents are named by .option("agent", "http://HOST:7070")',
    "kafka.auto.offset.reset": "startingOffsets says where a query begins",
    "kafka.enable.auto.commit": _NO_GROUP,
    "kafka.key.deserializer": _CAST,
    "kafka.value.deserializer": _CAST,
    "kafka.key.serializer": _CAST,
    "kafka.value.serializer": _CAST,
    "kafka.interceptor.classes": "there are no interceptors: leave it out",
    "kafka.partitioner.class": "a record goes where its key belongs, or where the column partition says",
    "kafka.transactional.id": 'a write is stored once by itself, or by .option("txnId", "NAME")',
}
"""What takes the place of options that are refused: of those that the other direction has, too. Of Kafka's
own, these would change which records are
read or written, and where."""
_ADVICE_BY_PREFIX: Final = {
    "kafka.bootstrap.": _ADVICE["kafka.bootstrap.servers"],
    "kafka.security.": _NO_LOGIN,
    "kafka.sasl.": _NO_LOGIN,
    "kafka.ssl.": _NO_LOGIN,
}
_WITHOUT_EFFECT: Final = ("groupIdPrefix", "kafka.group.id")
_WITHOUT_EFFECT_PREFIXES: Final = ("fetchOffset.", "kafkaConsumer.", "kafka.")
"""They tune Kafka's client, of which there is none here: a job that moves need not be rid of them."""
_CLIENTS: Final = ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs")
_WRITTEN: Final = {
    name.lower(): name for name in (*READ, *TABLE, *WRITE, *SPARKS, *_WITHOUT_EFFECT, *_CLIENTS, *_ADVICE)
}
"""All names as people write them: Spark hands them over in lower case."""


class Mode(Enum):
    """The kind of query. ANY: not known yet, so that only rules for both are checked."""

    ANY = "any"
    BATCH = "batch"
    STREAM = "stream"


def as_written(name: str) -> str:
    """An option's name as people write it."""
    return _WRITTEN.get(name.lower(), name)


def without_effect(options: Mapping[str, str]) -> list[str]:
    """Those of the options that are taken and have no effect, since they tune Kafka's client."""
    return sorted(as_written(name) for name in options if _has_no_effect(name.lower()))


def _has_no_effect(name: str) -> bool:
    if name in map(str.lower, _WITHOUT_EFFECT):
        return True
    return name.startswith(tuple(map(str.lower, _WITHOUT_EFFECT_PREFIXES))) and _replacement(name) is None


def _replacement(name: str) -> str | None:
    advice = {known.lower(): text for known, text in _ADVICE.items()}.get(name)
    by_prefix = (text for prefix, text in _ADVICE_BY_PREFIX.items() if name.startswith(prefix))
    return advice or next(by_prefix, None)


def known_options(options: Mapping[str, str], names: Sequence[str], mode: Mode) -> dict[str, str]:
    """The options by their names in lower case, without those that concern no topic. Raises SourceError for
    an unknown name, with a likely one, and for one that is given twice."""
    allowed = {name.lower(): name for name in names}
    likely = allowed | ({"table": "table"} if names is READ else {})  # with it other names are allowed
    passed_over = {name.lower() for name in SPARKS}
    given: dict[str, str] = {}
    for name, value in options.items():
        lower = name.lower()
        if lower in passed_over or (lower not in allowed and _has_no_effect(lower)):
            continue
        if lower not in allowed:
            close = difflib.get_close_matches(lower, likely, n=1)
            listed = f"known are: {', '.join(sorted(likely.values()))}"
            guess = f"did you mean {likely[close[0]]}? ({listed})" if close else listed
            raise SourceError(f"unknown option {as_written(name)!r}; {_replacement(lower) or guess}")
        if lower in given:
            raise SourceError(f"option {allowed[lower]} is given twice, in different cases of letters")
        given[lower] = value
    for names_of_other, this, other in (
        (_BATCH_ONLY, Mode.STREAM, "batch queries (spark.read)"),
        (_STREAM_ONLY, Mode.BATCH, "streams (spark.readStream)"),
    ):
        unfit = [name for name in names_of_other if name.lower() in given]
        if mode is this and unfit:
            raise SourceError(f"option {unfit[0]} is for {other} only")
    return given
