"""The data source's options, checked before any agent is asked.

Pure: no Spark, no network. Options have the names of Spark's Kafka source and sink. The error is SourceError:
one line with the fault and the cure, since it appears within a long Java trace.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from shoal.errors import numbered

DEFAULT_AGENT: Final = "http://127.0.0.1:7070"
AGENT_VARIABLE: Final = "SHOAL_AGENT"
MAX_PIECES: Final = 100_000  # tasks of one query; Spark's own scheduler suffers long before
MAX_ROWS: Final = 2**62  # of one micro-batch or task: no limit at all, and still within 64 bits
IDLE_WAIT_MS: Final = 3_000
"""How long an idle stream waits at an agent: short enough to notice new partitions, and a deleted topic."""
IDLE_WAIT_MS_MAX: Final = 30_000
MAX_TIME_MS: Final = 253_402_300_799_000  # the end of the year 9999: nobody means a later one

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
EARLIEST_NUMBER: Final = -2  # as Kafka writes them in JSON
LATEST_NUMBER: Final = -1

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS: Final = "headers"
TABLE_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", HEADERS)
"""Of a table's rows."""

_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
_COMMON: Final = ("agent", "failOnDataLoss", *_SELECTIONS)
_READ: Final = (
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
)
_TABLE: Final = ("agent", "table", "prefix")
_WRITE: Final = ("agent", "topic", "txnId")
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
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "idleWaitMs")
_ADVICE: Final = {
    "kafka.bootstrap.servers": 'the agents are named by .option("agent", "http://HOST:7070")',
    "kafka.group.id": "there is no group: Spark's checkpoint holds the offsets",
    "groupidprefix": "there is no group: Spark's checkpoint holds the offsets",
    "startingtimestampstrategy": "it is called startingOffsetsByTimestampStrategy",
    "table": 'rows are written as records with keys: .option("topic", "TABLE")',
    "path": 'topics are chosen by .option("subscribe", "TOPIC"), and written to by .option("topic", "TOPIC")',
}

_URL = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<place>(?:[\w.~-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?)/?",
    re.ASCII | re.IGNORECASE,
)
_MAX_PORT: Final = 65_535
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
_TXN_ID = re.compile(r"[\x21-\x7e]{1,80}")


class SourceError(Exception):
    """A query that cannot be answered: one line with the fault and the cure."""


class Mode(Enum):
    """The kind of query. ANY: not known yet, so that only rules for both are checked."""

    ANY = "any"
    BATCH = "batch"
    STREAM = "stream"


PerPartition: TypeAlias = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Bound:
    """The beginning or the end of reading: an end of the log, offsets, or a time.

    Exactly one is given of `end` (EARLIEST or LATEST), `offsets` ({topic: {partition: offset, -2, -1}}),
    `time_ms` (for all partitions) and `times_ms` ({topic: {partition: time}}). `no_match`: LATEST where a
    time after the last record means the end, None where it is an error.
    """

    end: str | None = None
    offsets: PerPartition | None = None
    time_ms: int | None = None
    times_ms: PerPartition | None = None
    no_match: str | None = LATEST


@dataclass(frozen=True, slots=True)
class Selection:
    """The topics: named ones, those that match a pattern, or some partitions. Exactly one is given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None

    @property
    def named(self) -> tuple[str, ...] | None:
        """The topics, where the options name them."""
        if self.assigned is not None:
            return tuple(self.assigned)
        return None if self.pattern is not None else self.topics

    def matches(self, topic: str) -> bool:
        """Whether the pattern matches the topic. Topics of the system have to be named."""
        assert self.pattern is not None
        return not topic.startswith("_") and re.fullmatch(self.pattern, topic) is not None

    def partitions(self, topic: str, present: Sequence[int]) -> list[int]:
        """The partitions of a topic that are read. Raises SourceError for one that does not exist."""
        if self.assigned is None:
            return sorted(present)
        wanted = sorted(self.assigned[topic])
        for partition in wanted:
            if partition not in present:
                raise SourceError(
                    f"option assign: topic {topic!r} has no partition {partition}:"
                    f" it has {numbered(len(present))}"
                )
        return wanted


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
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of a query for the rows of a table, those whose keys begin so."""

    agents: tuple[str, ...]
    table: str
    prefix: bytes


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write. `topic` None: the column of that name decides for each record."""

    agents: tuple[str, ...]
    topic: str | None
    txn_id: str | None


def parse_source_options(
    options: Mapping[str, str], environment: Mapping[str, str], mode: Mode = Mode.ANY
) -> SourceOptions:
    """Read the options of a query, whose names Spark may have put in lower case. Raises SourceError."""
    given = _known(options, _READ, mode)
    selection = _selection(given)
    streaming = mode is Mode.STREAM
    return SourceOptions(
        selection=selection,
        agents=_agents(given, environment),
        starting=_bound(given, "starting", selection, LATEST if streaming else EARLIEST, mode),
        ending=_bound(given, "ending", selection, LATEST, mode),
        columns=_columns(given),
        pushdown=_boolean(given, "pushdown", default=False),
        min_partitions=_count(given, "minPartitions", 1, MAX_PIECES),
        max_records_per_partition=_count(given, "maxRecordsPerPartition", MAX_ROWS, MAX_ROWS),
        max_offsets_per_trigger=(
            _count(given, "maxOffsetsPerTrigger", 1, MAX_ROWS) if "maxoffsetspertrigger" in given else None
        ),
        idle_wait_ms=_count(given, "idleWaitMs", IDLE_WAIT_MS, IDLE_WAIT_MS_MAX, low=0),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
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
        if name.lower() in map(str.lower, _READ) and name.lower() not in map(str.lower, _TABLE):
            raise SourceError(f"options table and {name} exclude each other: a table's rows have no {name}")
    given = _known(options, _TABLE, mode)
    table = given["table"].strip()
    _require_topic_name("table", table)
    return TableOptions(_agents(given, environment), table, given.get("prefix", "").encode())


def parse_sink_options(options: Mapping[str, str], environment: Mapping[str, str]) -> SinkOptions:
    """Read the options of a write. Raises SourceError."""
    given = _known(options, _WRITE, Mode.ANY)
    topic = given.get("topic", "").strip() or None
    if topic is not None:
        _require_topic_name("topic", topic)
    txn_id = given.get("txnid", "").strip() or None
    if txn_id is not None and not _TXN_ID.fullmatch(txn_id):
        raise SourceError(f"option txnId must be 1 to 80 printable characters without spaces, not {txn_id!r}")
    return SinkOptions(_agents(given, environment), topic, txn_id)


def _known(options: Mapping[str, str], names: Sequence[str], mode: Mode) -> dict[str, str]:
    """The options by their names in lower case. Raises SourceError for an unknown name, with a likely one."""
    known = {name.lower(): name for name in names}
    sparks = {name.lower() for name in _SPARKS}
    given = {name.lower(): value for name, value in options.items() if name.lower() not in sparks}
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            listed = f"known are: {', '.join(sorted(known.values()))}"
            guess = f"did you mean {known[close[0]]}? ({listed})" if close else listed
            raise SourceError(f"unknown option {name!r}; {_ADVICE.get(name, guess)}")
    for names_of_other, this, other in (
        (_BATCH_ONLY, Mode.STREAM, "batch queries (spark.read)"),
        (_STREAM_ONLY, Mode.BATCH, "streams (spark.readStream)"),
    ):
        unfit = [name for name in names_of_other if name.lower() in given]
        if mode is this and unfit:
            raise SourceError(f"option {unfit[0]} is for {other} only")
    return given


def _agents(given: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, ...]:
    text = given.get("agent") or environment.get(AGENT_VARIABLE) or DEFAULT_AGENT
    return tuple(normal_url(agent) for agent in _names(text))


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def normal_url(text: str) -> str:
    """http://host:port, from that or from host:port. Raises SourceError."""
    match = _URL.fullmatch(text)
    if match is None or not 0 < int(match["port"] or "80") <= _MAX_PORT:
        raise SourceError(f"agent {text!r} is not a URL like {DEFAULT_AGENT}")
    return f"{match['scheme'] or 'http'}://{match['place']}"


def _require_topic_name(option: str, topic: str) -> None:
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise SourceError(
            f"option {option}: {topic[:80]!r} is no topic's name (1 to 249 of a-z A-Z 0-9 . _ -)"
        )


def _selection(given: Mapping[str, str]) -> Selection:
    chosen = [name for name in _SELECTIONS if given.get(name.lower(), "").strip(" ,")]
    if not chosen:
        raise SourceError('no topic: add .option("subscribe", "TOPIC") (several: separated by commas)')
    if len(chosen) > 1:
        raise SourceError(f"options {' and '.join(chosen)} exclude each other: give one of them")
    text = given[chosen[0].lower()].strip()
    if chosen[0] == "subscribe":
        topics = _names(text)
        for topic in topics:
            _require_topic_name("subscribe", topic)
        return Selection(topics=topics)
    if chosen[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise SourceError(f"option subscribePattern: {text[:80]!r} is no pattern: {error}") from None
        return Selection(pattern=text)
    return Selection(assigned=_assigned(text))


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    wanted = 'option assign must be JSON like {"TOPIC": [0, 1]}'
    document = _json_object(text)
    if not document:
        raise SourceError(f"{wanted}, not {text[:80]!r}")
    for topic, partitions in document.items():
        _require_topic_name("assign", topic)
        sound = isinstance(partitions, list) and partitions
        if not sound or any(type(number) is not int or not 0 <= number < 2**31 for number in partitions):
            raise SourceError(f"{wanted}: topic {topic!r} has {str(partitions)[:80]!r}")
    return {topic: tuple(sorted(set(partitions))) for topic, partitions in document.items()}


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    include_headers = _boolean(given, "includeHeaders", default=False)
    chosen = _names(given.get("columns", ""))
    if not chosen:
        return (*COLUMNS, HEADERS) if include_headers else COLUMNS
    known = {name.lower(): name for name in (*COLUMNS, HEADERS)}
    for name in chosen:
        if name.lower() not in known:
            raise SourceError(
                f"option columns: there is no column {name[:80]!r}, only {', '.join(known.values())}"
            )
    return tuple(dict.fromkeys(known[name.lower()] for name in chosen))


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _one_of(given, name, ("true", "false"), str(default).lower()) == "true"


def _one_of(given: Mapping[str, str], name: str, words: Sequence[str], default: str) -> str:
    text = given.get(name.lower(), default).strip().lower()
    if text not in words:
        raise SourceError(f"option {name} must be {' or '.join(words)}, not {text[:80]!r}")
    return text


def _count(given: Mapping[str, str], name: str, default: int, high: int, *, low: int = 1) -> int:
    text = given.get(name.lower(), str(default)).strip()
    sound = text.isascii() and text.isdecimal() and len(text) < 20
    if not (sound and low <= int(text) <= high):
        raise SourceError(f"option {name} must be a number from {low} to {high}, not {text[:80]!r}")
    return int(text)


def _bound(given: Mapping[str, str], side: str, selection: Selection, default: str, mode: Mode) -> Bound:
    """One side's options, in Kafka's order of precedence: one time, times, offsets."""
    strategy = _one_of(given, "startingOffsetsByTimestampStrategy", ("error", LATEST), "error")
    no_match = None if side == "starting" and strategy == "error" else LATEST
    name = f"{side}Timestamp"
    if name.lower() in given:
        time_ms = _count(given, name, 0, MAX_TIME_MS, low=0)
        return Bound(time_ms=time_ms, no_match=no_match)
    name = f"{side}OffsetsByTimestamp"
    if name.lower() in given:
        times = _per_partition(given[name.lower()], name, "", selection, low=0, high=MAX_TIME_MS)
        return Bound(times_ms=times, no_match=no_match)
    return _offsets(given.get(f"{side.lower()}offsets", default).strip(), side, selection, mode)


def _offsets(text: str, side: str, selection: Selection, mode: Mode) -> Bound:
    name = f"{side}Offsets"
    useless: tuple[str, int] | None = None
    if side == "ending":
        useless = (EARLIEST, EARLIEST_NUMBER)
    elif mode is Mode.BATCH:
        useless = (LATEST, LATEST_NUMBER)
    words = [word for word in (EARLIEST, LATEST) if useless is None or word != useless[0]]
    if text.lower() in words:
        return Bound(end=text.lower())
    if useless is not None and text.lower() == useless[0]:
        raise SourceError(f"option {name}: {useless[0]} would read nothing in a batch query")
    offsets = _per_partition(
        text, name, f"{' or '.join(words)} or ", selection, low=EARLIEST_NUMBER, high=2**63 - 1
    )
    if useless is not None and any(useless[1] in entries.values() for entries in offsets.values()):
        raise SourceError(f"option {name}: {useless[1]} ({useless[0]}) would read nothing in a batch query")
    return Bound(offsets=offsets)


def _per_partition(
    text: str, name: str, alternatives: str, selection: Selection, *, low: int, high: int
) -> PerPartition:
    """{topic: {partition: number}} of the topics that are read. Raises SourceError."""
    example = _example(selection.named or ("TOPIC",), low)
    document = _json_object(text)
    if document is None:
        raise SourceError(f"option {name} must be {alternatives}JSON like {example}, not {text[:80]!r}")
    named = selection.named
    choice = {}
    for topic, numbers in document.items():
        if named is not None and topic not in named:
            raise SourceError(f"option {name} names topic {topic!r}, which is not subscribed")
        choice[topic] = _numbers(name, topic, numbers, low, high)
    missing = [topic for topic in named or () if topic not in choice]
    if missing:
        raise SourceError(f"option {name} has no offsets for topic {missing[0]!r}, which is subscribed")
    return choice


def _example(topics: Sequence[str], low: int) -> str:
    numbers = {"0": 17, "1": EARLIEST_NUMBER} if low < 0 else {"0": 1_735_689_600_000}
    return json.dumps({topics[0]: numbers})


def _numbers(name: str, topic: str, numbers: Any, low: int, high: int) -> dict[int, int]:
    if not isinstance(numbers, dict) or not numbers:
        raise SourceError(f"option {name}: topic {topic!r} needs an object like {_example([topic], low)}")
    parsed = {}
    for partition, number in numbers.items():
        sound = partition.isascii() and partition.isdecimal() and len(partition) < 10
        if not sound or type(number) is not int:
            what = "an offset" if low < 0 else "a time in milliseconds"
            raise SourceError(f"option {name}: {topic!r} has {partition!r}: {number!r}, not {what}")
        if not low <= number <= high:
            raise SourceError(f"option {name}: {number} of {topic!r}/{partition} is out of range")
        parsed[int(partition)] = number
    return parsed


def data_loss(what: str) -> SourceError:
    """The error for records that are not there any more; it says how to go on without them."""
    return SourceError(f'{what}; to read what there is: .option("failOnDataLoss", "false")')


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


def check_written(columns: Sequence[tuple[str, str]], options: SinkOptions) -> None:
    """Check a write's columns, given as (name, type). Raises SourceError for one that no topic takes."""
    given = {name.lower(): kind for name, kind in columns}
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
