"""The options of a query, checked before any agent is asked. Pure: no Spark, no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shoal.credentials import NO_CREDENTIALS, Credentials
from shoal.spark.options.bounds import EARLIEST, LATEST, Bound, Selection, bound_of, selection_of
from shoal.spark.options.errors import SourceError
from shoal.spark.options.known import LIMITS, READ, TABLE, Mode, as_written, known_options
from shoal.spark.options.values import (
    agents_of,
    boolean,
    count_of,
    credentials_in,
    duration_ms_of,
    names_in,
    require_topic_name,
)

MAX_PIECES: Final = 100_000  # tasks of one query; Spark's own scheduler suffers long before
MAX_ROWS: Final = 2**62  # of one micro-batch or task: no limit at all, and still within 64 bits
IDLE_WAIT_MS: Final = 3_000
"""How long an idle stream waits at an agent: short enough to notice new partitions, and a deleted topic."""
IDLE_WAIT_MS_MAX: Final = 30_000
PREFETCH_BYTES: Final = 2**20
"""Of a micro-batch that is fetched while it is planned: some milliseconds of work for one process. Above it
the 70 ms of a task matter less, and several cores read sooner than one."""
PREFETCH_BYTES_MAX: Final = 16 * 2**20  # the driver holds them: its own memory, and Spark's
MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000
"""How long records wait for minOffsetsPerTrigger; as in Spark's Kafka source."""
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS: Final = "headers"
TABLE_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", HEADERS)
"""Of a table's rows."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a query."""

    selection: Selection
    agents: tuple[str, ...]
    starting: Bound
    ending: Bound
    columns: tuple[str, ...] = COLUMNS
    pushdown: bool = True
    min_partitions: int = 1
    max_records_per_partition: int = MAX_ROWS
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int = 1
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    idle_wait_ms: int = IDLE_WAIT_MS
    prefetch_bytes: int = PREFETCH_BYTES
    fail_on_data_loss: bool = True
    credentials: Credentials = NO_CREDENTIALS


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of a query for the rows of a table, those whose keys begin so."""

    agents: tuple[str, ...]
    table: str
    prefix: bytes
    credentials: Credentials = NO_CREDENTIALS


def parse_source_options(
    options: Mapping[str, str], environment: Mapping[str, str], mode: Mode = Mode.ANY
) -> SourceOptions:
    """Read the options of a query, whose names Spark may have put in lower case. Raises SourceError."""
    given = known_options(options, READ, mode)
    selection = selection_of(given)
    streaming = mode is Mode.STREAM
    least, most, delay_ms = _per_trigger(given)
    agents = agents_of(given, environment)
    return SourceOptions(
        selection=selection,
        agents=agents,
        starting=bound_of(given, "starting", selection, LATEST if streaming else EARLIEST, mode),
        ending=bound_of(given, "ending", selection, LATEST, mode),
        columns=_columns(given),
        pushdown=boolean(given, "pushdown", default=True),
        min_partitions=count_of(given, "minPartitions", 1, MAX_PIECES),
        max_records_per_partition=count_of(given, "maxRecordsPerPartition", MAX_ROWS, MAX_ROWS),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=delay_ms,
        idle_wait_ms=count_of(given, "idleWaitMs", IDLE_WAIT_MS, IDLE_WAIT_MS_MAX, low=0),
        prefetch_bytes=count_of(given, "prefetchBytes", PREFETCH_BYTES, PREFETCH_BYTES_MAX, low=0),
        fail_on_data_loss=boolean(given, "failOnDataLoss", default=True),
        credentials=credentials_in(given, environment, agents),
    )


def refuse_limits(options: Mapping[str, str], spark: str) -> None:
    """Raises SourceError for an option of streams that this Spark, before 4.2, would not keep to. No source
    hears of Trigger.AvailableNow there: one limited micro-batch would be all."""
    for name in LIMITS:
        if any(given.lower() == name.lower() for given in options):
            raise SourceError(
                f"option {name} needs Spark 4.2 or newer: the Trigger.AvailableNow of {spark} would end after"
                " one micro-batch of that size; leave the option out"
            )


def _per_trigger(given: Mapping[str, str]) -> tuple[int, int | None, int]:
    """The least and the most records of a micro-batch, and how long the least are waited for, in
    milliseconds. Raises SourceError."""
    least = count_of(given, "minOffsetsPerTrigger", 1, MAX_ROWS)
    most = count_of(given, "maxOffsetsPerTrigger", 1, MAX_ROWS) if "maxoffsetspertrigger" in given else None
    delay_ms = duration_ms_of(given, "maxTriggerDelay", f"{MAX_TRIGGER_DELAY_MS}ms")
    if most is not None and least > most:
        raise SourceError(
            f"option minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}: no micro-batch could"
            " have as many; make it smaller, or leave one of them out"
        )
    if "minoffsetspertrigger" in given and not delay_ms:
        raise SourceError(
            "option maxTriggerDelay is 0, so nothing would wait for minOffsetsPerTrigger: leave both out, or"
            " say for example 15m"
        )
    return least, most, delay_ms


def names_table(options: Mapping[str, str]) -> bool:
    """Whether a query is for the rows of a table."""
    return any(name.lower() == "table" for name in options)


def parse_table_options(
    options: Mapping[str, str], environment: Mapping[str, str], mode: Mode
) -> TableOptions:
    """Read the options of a query for the rows of a table. Raises SourceError, also for streams."""
    if mode is Mode.STREAM:
        raise SourceError(
            'a table is read by spark.read; its changes are the stream of .option("subscribe", "TABLE")'
        )
    for name in options:
        if name.lower() in map(str.lower, READ) and name.lower() not in map(str.lower, TABLE):
            other = as_written(name)
            raise SourceError(f"options table and {other} exclude each other: a table's rows have no {other}")
    given = known_options(options, TABLE, mode)
    table = given["table"].strip()
    require_topic_name("table", table)
    agents = agents_of(given, environment)
    credentials = credentials_in(given, environment, agents)
    return TableOptions(agents, table, given.get("prefix", "").encode(), credentials)


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    include_headers = boolean(given, "includeHeaders", default=False)
    chosen = names_in(given.get("columns", ""))
    if not chosen:
        return (*COLUMNS, HEADERS) if include_headers else COLUMNS
    known = {name.lower(): name for name in (*COLUMNS, HEADERS)}
    for name in chosen:
        if name.lower() not in known:
            raise SourceError(
                f"option columns: there is no column {name[:80]!r}, only {', '.join(known.values())}"
            )
    return tuple(dict.fromkeys(known[name.lower()] for name in chosen))
