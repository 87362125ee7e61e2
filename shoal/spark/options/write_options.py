"""The options and columns of a write, checked before any agent is asked. Pure: no Spark, no network."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shoal.credentials import NO_CREDENTIALS, Credentials
from shoal.spark.options.errors import SourceError
from shoal.spark.options.known import WRITE, Mode, known_options
from shoal.spark.options.values import agents_of, credentials_in, require_topic_name

_TXN_ID = re.compile(r"[\x21-\x7e]{1,80}")
_TXN_BATCH = re.compile(r"[0-9]{1,10}", re.ASCII)
TXN_BATCH_MAX: Final = 2**32 - 1  # of a producer's epoch
WRITTEN_TYPES: Final = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "deliver_at": ("timestamp",),
}
"""The columns that can be written, with their types in Spark's SQL. All but value may be missing; the last
one is for topics of kind timer."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write. `topic` None: the column of that name decides for each record."""

    agents: tuple[str, ...]
    topic: str | None
    txn_id: str | None
    txn_batch: int  # the write's number among those of the same txn_id; 0: there is one only
    credentials: Credentials = NO_CREDENTIALS


def parse_sink_options(options: Mapping[str, str], environment: Mapping[str, str]) -> SinkOptions:
    """Read the options of a write. Raises SourceError."""
    given = known_options(options, WRITE, Mode.ANY)
    topic = given.get("topic", "").strip() or None
    if topic is not None:
        require_topic_name("topic", topic)
    txn_id = given.get("txnid", "").strip() or None
    if txn_id is not None and not _TXN_ID.fullmatch(txn_id):
        raise SourceError(f"option txnId must be 1 to 80 printable characters without spaces, not {txn_id!r}")
    text = given.get("txnbatch", "0").strip()
    if not _TXN_BATCH.fullmatch(text) or int(text) > TXN_BATCH_MAX:
        raise SourceError(f"option txnBatch must be a number from 0 to {TXN_BATCH_MAX}, not {text[:40]!r}")
    if "txnbatch" in given and txn_id is None:
        raise SourceError("option txnBatch numbers the writes of one txnId, which is not given")
    agents = agents_of(given, environment)
    return SinkOptions(agents, topic, txn_id, int(text), credentials_in(given, environment, agents))


def check_written(columns: Sequence[tuple[str, str]], options: SinkOptions) -> None:
    """Check a write's columns, given as (name, type). Raises SourceError for one that no topic takes."""
    given: dict[str, str] = {}
    for name, kind in columns:
        if name.lower() in given:
            raise SourceError(f"column {name.lower()} is there twice, perhaps in different cases of letters")
        given[name.lower()] = kind
    if "value" not in given:
        raise SourceError(
            "there is no column value; make one of all columns, for example:"
            ' df.selectExpr("CAST(id AS STRING) AS key", "to_json(struct(*)) AS value")'
        )
    for name, kind in given.items():
        if name not in WRITTEN_TYPES:
            raise SourceError(
                f"column {name!r} cannot be written: a record has {', '.join(WRITTEN_TYPES)}; put others"
                ' into value, for example: df.selectExpr("to_json(struct(*)) AS value")'
            )
        if kind not in WRITTEN_TYPES[name]:
            wanted = " or ".join(WRITTEN_TYPES[name])
            raise SourceError(f"column {name} is {kind[:200]}, but {wanted} is written")
    if options.topic is None and "topic" not in given:
        raise SourceError('no topic: add .option("topic", "TOPIC"), or a column topic')
