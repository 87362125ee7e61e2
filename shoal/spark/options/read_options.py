"""The options of a query, checked before any agent is asked. Pure: no Spark, no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shoal.spark.options.bounds import EARLIEST, LATEST, Bound, Selection, bound_of, selection_of
from shoal.spark.options.errors import SourceError
from shoal.spark.options.known import LIMITS, READ, TABLE, Mode, known_options
from shoal.spark.options.values import agents_of, boolean, count_of, names_in, require_topic_name

MAX_PIECES: Final = 100_000  # tasks of one query; Spark's own scheduler suffers long before
MAX_ROWS: Final = 2**62  # of one micro-batch or task: no limit at all, and still within 64 bits
IDLE_WAIT_MS: Final = 3_000
"""How long an idle stream waits at an agent: short enough to notice new partitions, and a deleted topic."""
IDLE_WAIT_MS_MAX: Final = 30_000
PREFETCH_BYTES: Final = 2**20
"""Of a micro-batch that is fetched while it is planned: some milliseconds of work for one process. Above it
the 70 ms of a task matter less, and several cores read sooner than one."""
PREFETCH_BYTES_MAX: Final = 16 * 2**20  # the driver holds them: its own memory, and Spark's
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
    pushdown: bool = False
    min_partitions: int = 1
    max_records_per_partition: int = MAX_ROWS
    max_offsets_per_trigger: int | None = None
    idle_wait_ms: int = IDLE_WAIT_MS
    prefetch_bytes: int = PREFETCH_BYTES
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of a query for the rows of a table, those whose keys begin so."""

    agents: tuple[str, ...]
    table: str
    prefix: bytes


def parse_source_options(
    options: Mapping[str, str], environment: Mapping[str, str], mode: Mode = Mode.ANY
) -> SourceOptions:
    """Read the options of a query, whose names Spark may have put in lower case. Raises SourceError."""
    given = known_options(options, READ, mode)
    selection = selection_of(given)
    streaming = mode is Mode.STREAM
    return SourceOptions(
        selection=selection,
        agents=agents_of(given, environment),
        starting=bound_of(given, "starting", selection, LATEST if streaming else EARLIEST, mode),
        ending=bound_of(given, "ending", selection, LATEST, mode),
        columns=_columns(given),
        pushdown=boolean(given, "pushdown", default=False),
        min_partitions=count_of(given, "minPartitions", 1, MAX_PIECES),
        max_records_per_partition=count_of(given, "maxRecordsPerPartition", MAX_ROWS, MAX_ROWS),
        max_offsets_per_trigger=(
            count_of(given, "maxOffsetsPerTrigger", 1, MAX_ROWS) if "maxoffsetspertrigger" in given else None
        ),
        idle_wait_ms=count_of(given, "idleWaitMs", IDLE_WAIT_MS, IDLE_WAIT_MS_MAX, low=0),
        prefetch_bytes=count_of(given, "prefetchBytes", PREFETCH_BYTES, PREFETCH_BYTES_MAX, low=0),
        fail_on_data_loss=boolean(given, "failOnDataLoss", default=True),
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
            raise SourceError(f"options table and {name} exclude each other: a table's rows have no {name}")
    given = known_options(options, TABLE, mode)
    table = given["table"].strip()
    require_topic_name("table", table)
    return TableOptions(agents_of(given, environment), table, given.get("prefix", "").encode())


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
