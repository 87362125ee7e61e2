"""Options as users write them, and the plan made from them."""

from __future__ import annotations

from datetime import UTC, datetime
from operator import eq, ge, gt, le, lt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.spark.options.bounds import EARLIEST, LATEST, Bound, Selection
from shoal.spark.options.errors import SourceError
from shoal.spark.options.known import Mode, without_effect
from shoal.spark.options.read_options import COLUMNS, MAX_ROWS, SourceOptions, parse_source_options
from shoal.spark.options.write_options import parse_sink_options
from shoal.spark.read.plan import LogEnds, Narrowing, OffsetRange, plan, resolve

STATES = {"t": {0: LogEnds(10, 110, ("http://a:1",)), 1: LogEnds(0, 50, ("http://b:1", "http://a:1"))}}


def options(mode: Mode = Mode.BATCH, **changes: Any) -> SourceOptions:
    """The options of a query on topic t; one given as None is left out."""
    given_options = {"subscribe": "t", **changes}
    return parse_source_options({k: v for k, v in given_options.items() if v is not None}, {}, mode)


def pieces_of(states: Any, **changes: Any) -> list[OffsetRange]:
    """The tasks of a batch query."""
    chosen = options(**changes)
    starts = resolve(chosen.starting, "starting", states, {})
    return plan(chosen, states, starts, resolve(chosen.ending, "ending", states, {}))


def ranges(**changes: Any) -> list[tuple[int, int, int]]:
    """Partition, start and end of each task."""
    return [(piece.partition, piece.start, piece.end) for piece in pieces_of(STATES, **changes)]


def test_defaults() -> None:
    """All of a topic, from the agent of this machine."""
    here = ("http://127.0.0.1:7070",)
    batch = SourceOptions(Selection(topics=("t",)), here, Bound(end=EARLIEST), Bound(end=LATEST))
    assert options() == batch
    assert (batch.columns, batch.fail_on_data_loss, batch.max_records_per_partition) == (
        COLUMNS,
        True,
        MAX_ROWS,
    )
    assert options(Mode.STREAM).starting == Bound(end=LATEST)
    assert parse_source_options(
        {"subscribe": "t"}, {"SHOAL_AGENT": "h:1,https://i:2/,[::1]:3,http://j"}
    ).agents == (
        "http://h:1",
        "https://i:2",
        "http://[::1]:3",
        "http://j",
    )


def test_names_in_any_case() -> None:
    """Spark puts option names in lower case, users do as they like."""
    given_options = {
        "SUBSCRIBE": " t , u ,t",
        "startingoffsets": '{"t":{"0":17,"1":-2},"u":{"0":0}}',
        "endingOffsets": "Latest",
        "includeHeaders": "TRUE",
        "minpartitions": "12",
        "failOnDataLoss": "false",
        "agent": "http://h:1",
    }
    parsed = parse_source_options(given_options, {"SHOAL_AGENT": "ignored:1"})
    assert parsed.selection.topics == ("t", "u")
    assert parsed.starting.offsets == {"t": {0: 17, 1: -2}, "u": {0: 0}}
    assert ("headers" in parsed.columns, parsed.min_partitions, parsed.fail_on_data_loss) == (True, 12, False)
    assert parsed.agents == ("http://h:1",)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"subscribe": " , "}, "no topic"),
        ({"startingOffset": "earliest"}, "unknown option 'startingOffset'; did you mean startingOffsets?"),
        ({"kafka.bootstrap.servers": "h:1"}, '.option("agent", "http://HOST:7070")'),
        ({"kafka.bootstrap.server": "h:1"}, "option 'kafka.bootstrap.server'; the agents are named by"),
        ({"kafka.security.protocol": "SSL"}, 'agents take .option("token", "@FILE")'),
        ({"kafka.sasl.jaas.config": "x"}, "docs/spark.md"),
        ({"kafka.ssl.truststore.location": "x"}, "docs/spark.md"),
        ({"kafka.auto.offset.reset": "latest"}, "startingOffsets says where a query begins"),
        ({"kafka.value.deserializer": "x"}, "use CAST(value AS STRING)"),
        ({"kafka.enable.auto.commit": "true"}, "Spark's checkpoint holds the offsets"),
        ({"txnid": "x"}, "unknown option 'txnId'; known are"),
        ({"topic": "t"}, 'unknown option \'topic\'; a topic is read by .option("subscribe", "TOPIC")'),
        (
            {"provider": "shoal"},
            "no tables of Spark's catalog, which would keep the options: say CREATE TEMP",
        ),
        ({"tabel": "t"}, "unknown option 'tabel'; did you mean table?"),
        ({"prefix": "k"}, "unknown option 'prefix'; it chooses rows of a table"),
        ({"startingtimestampstrategy": "x"}, "option 'startingTimestampStrategy'; it is called"),
        ({"Subscribe": "t"}, "option subscribe is given twice, in different cases of letters"),
        ({"subscribePattern": "t.*"}, "subscribe and subscribePattern exclude each other"),
        ({"subscribe": None}, "no topic"),
        ({"subscribe": "a/b"}, "no topic's name"),
        ({"subscribe": None, "subscribePattern": "("}, "is no pattern: missing )"),
        (
            {"subscribe": None, "subscribePattern": r"\p{Alpha}+"},
            r"only Java knows: here patterns are Python's",
        ),
        ({"subscribe": None, "subscribePattern": r"\Qa.b\E"}, r"without '\\Q'; names of topics have a-z"),
        ({"subscribe": None, "subscribePattern": "[a-z&&[^b]]+"}, "only Java knows"),
        ({"subscribe": None, "subscribePattern": "[a-c[x-z]]"}, "only Java knows"),
        ({"subscribe": None, "subscribePattern": "(?<n>a)"}, "only Java knows"),
        ({"subscribe": None, "assign": '{"t":0}'}, 'JSON like {"TOPIC": [0, 1]}'),
        ({"subscribe": None, "assign": '{"t":[-1]}'}, 'JSON like {"TOPIC": [0, 1]}'),
        ({"subscribe": None, "assign": "{}"}, 'JSON like {"TOPIC": [0, 1]}'),
        ({"columns": "key,wert"}, "there is no column 'wert', only key, value, topic"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition must be a number from 1"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streams (spark.readStream) only"),
        ({"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger is for streams (spark.readStream) only"),
        ({"maxtriggerdelay": "5s"}, "maxTriggerDelay is for streams (spark.readStream) only"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp must be a time like 2026-01-31T05:00:00Z"),
        ({"startingTimestamp": "2026-01-31T05:00:00"}, "must be a time like 2026-01-31T05:00:00Z"),
        ({"startingTimestamp": "1969-12-31T23:59:59Z"}, "in milliseconds from 0 to"),
        ({"endingTimestamp": "-1"}, "in milliseconds from 0 to"),
        ({"endingOffsetsByTimestamp": '{"t":{"0":"1969-01-01T00:00:00Z"}}'}, "not a time in milliseconds or"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "out of range"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":"x"}}'}, "not a time in milliseconds or like 2026"),
        ({"startingOffsetsByTimestamp": "5"}, 'must be JSON like {"t": {"0": 1735689600000}}'),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "must be error or latest"),
        ({"path": "x"}, "unknown option 'path'; topics are chosen by"),
        ({"agent": "ftp://h:1"}, "not a URL"),
        ({"agent": "http://h:port"}, "not a URL"),
        ({"agent": "http://h:0"}, "not a URL"),
        ({"agent": "http://h:65536"}, "not a URL"),
        ({"agent": "http://user@h:1"}, "not a URL"),
        ({"agent": "http://:7070"}, "not a URL"),
        ({"agent": "http://h:1/console"}, "not a URL"),
        ({"includeHeaders": "yes"}, "includeHeaders must be true or false"),
        ({"minPartitions": "0"}, "minPartitions must be a number"),
        ({"minPartitions": "many"}, "minPartitions must be a number"),
        ({"startingOffsets": "latest"}, "would read nothing"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"startingOffsets": "{"}, "startingOffsets must be earliest or JSON"),
        ({"startingOffsets": "[1]"}, "startingOffsets must be earliest or JSON"),
        ({"endingOffsets": "17"}, "endingOffsets must be latest or JSON"),
        ({"startingOffsets": '{"u":{"0":1}}'}, "not subscribed"),
        ({"startingOffsets": "{}"}, "no offsets for topic 't'"),
        ({"startingOffsets": '{"t":5}'}, "needs an object"),
        ({"startingOffsets": '{"t":{"first":5}}'}, "'first'"),
        ({"startingOffsets": '{"t":{"0":"5"}}'}, "not an offset"),
        ({"startingOffsets": '{"t":{"0":true}}'}, "not an offset"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "out of range"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "would read nothing"),
        ({"startingOffsets": '{"t":{"0":1,"1":2,"0":3}}'}, "option startingOffsets names '0' twice"),
        ({"endingOffsets": '{"t":{"0":1,"00":3}}'}, "endingOffsets names partition 0 of 't' twice"),
        ({"startingOffsets": '{"t":{"0":1},"t":{"1":3}}'}, "option startingOffsets names 't' twice"),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":1,"0":1}}'},
            "option startingOffsetsByTimestamp names '0' twice",
        ),
        ({"subscribe": None, "assign": '{"t":[0],"t":[1]}'}, "option assign names 't' twice"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "would read nothing"),
    ],
)
def test_wrong_options_get_one_line(changes: dict[str, str], says: str) -> None:
    """Misspelled names too: an option that is silently ignored reads the wrong records."""
    with pytest.raises(SourceError) as caught:
        options(**changes)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is for batch queries (spark.read) only"),
        ({"endingTimestamp": "5"}, "endingTimestamp is for batch queries (spark.read) only"),
        ({"pushdown": "true"}, "pushdown is for batch queries (spark.read) only"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger must be a number from 1"),
        ({"minOffsetsPerTrigger": "0"}, "minOffsetsPerTrigger must be a number from 1"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "minOffsetsPerTrigger=9 is above maxOffsetsPerTrigger=8",
        ),
        (
            {"minOffsetsPerTrigger": "9", "maxTriggerDelay": "0s"},
            "maxTriggerDelay is 0, so nothing would wait for minOffsetsPerTrigger: leave both out",
        ),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "500us"}, "maxTriggerDelay is 0"),
        ({"maxTriggerDelay": "-5s"}, "maxTriggerDelay must be a duration like 15m, 30s or 500ms, not '-5s'"),
        ({"maxTriggerDelay": "5 weeks"}, "maxTriggerDelay must be a duration"),
        ({"maxTriggerDelay": "99999999999d"}, "longer than 8,000 years"),
        ({"idleWaitMs": "60000"}, "idleWaitMs must be a number from 0 to 30000"),
        ({"startingOffsets": "first"}, "startingOffsets must be earliest or latest or JSON"),
    ],
)
def test_wrong_options_of_streams_get_one_line(changes: dict[str, str], says: str) -> None:
    """What only batch queries have is refused too, not ignored."""
    with pytest.raises(SourceError) as caught:
        options(Mode.STREAM, **changes)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [("15m", 900_000), ("15min", 900_000), (" 2H ", 7_200_000), ("1d", 86_400_000), ("30s", 30_000),
     ("500", 500), ("500ms", 500), ("1500us", 1)],
)  # fmt: skip
def test_durations_are_those_of_the_kafka_source(text: str, delay_ms: int) -> None:
    """Any case of letters; a number alone is milliseconds; 15m where none is given."""
    chosen = options(Mode.STREAM, minOffsetsPerTrigger="9", maxTriggerDelay=text)
    assert (chosen.min_offsets_per_trigger, chosen.max_trigger_delay_ms) == (9, delay_ms)
    assert options(Mode.STREAM, minOffsetsPerTrigger="9").max_trigger_delay_ms == 900_000
    assert (
        options(Mode.STREAM, minOffsetsPerTrigger="9", maxOffsetsPerTrigger="9").max_offsets_per_trigger == 9
    )


def test_times_are_milliseconds_or_rfc_3339() -> None:
    """In both forms of the options, for both sides; digits below a millisecond are dropped."""
    at_ms = 1_769_835_600_000
    assert options(startingTimestamp="2026-01-31T05:00:00Z").starting.time_ms == at_ms
    assert options(startingTimestamp="2026-01-31 06:00:00.123999+01:00").starting.time_ms == at_ms + 123
    assert options(endingTimestamp=str(at_ms)).ending.time_ms == at_ms
    assert options(startingTimestamp="1970-01-01T00:00:00Z").starting.time_ms == 0
    both = '{"t":{"0":"2026-01-31T05:00:00Z","1":5,"2":"1970-01-01T00:00:00Z"}}'
    assert options(endingOffsetsByTimestamp=both).ending.times_ms == {"t": {0: at_ms, 1: 5, 2: 0}}


def test_options_of_kafkas_client_have_no_effect() -> None:
    """Nor have those that Spark adds by itself; a query with them is the one without."""
    idle = {"kafka.max.poll.records": "5", "groupidprefix": "g", "KAFKA.group.id": "g", "kafka.acks": "all",
            "fetchoffset.numretries": "3", "kafkaConsumer.pollTimeoutMs": "9"}  # fmt: skip
    sparks = {"queryname": "q", "OUTPUTMODE": "append", "outputMode": "append", "checkpointlocation": "/c"}
    assert options(**idle, **sparks) == options()
    assert parse_sink_options({"topic": "t", **idle, **sparks}, {}) == parse_sink_options({"topic": "t"}, {})
    assert without_effect({"subscribe": "t", **idle, **sparks, "kafka.ssl.protocol": "x"}) == [
        "fetchOffset.numRetries", "groupIdPrefix", "kafka.acks", "kafka.group.id", "kafka.max.poll.records",
        "kafkaConsumer.pollTimeoutMs",
    ]  # fmt: skip


def test_columns_are_chosen_in_the_order_given() -> None:
    """Spark offers no pruning: the option is the way to read less."""
    assert options(columns="Timestamp, key,key").columns == ("timestamp", "key")
    assert options(columns="value,headers").columns == ("value", "headers")
    assert options(includeHeaders="true").columns == (*COLUMNS, "headers")


def test_options_of_a_write() -> None:
    """A topic or none, agents as in reading, a transaction's name; anything else is refused."""
    parsed = parse_sink_options({"topic": " t ", "txnid": "load-7", "agent": "h:1"}, {})
    assert (parsed.topic, parsed.txn_id, parsed.agents) == ("t", "load-7", ("http://h:1",))
    assert parse_sink_options({}, {}).topic is None
    named = {"queryname": "q", "OutputMode": "append", "checkpointLocation": "/c", "topic": "t"}
    assert parse_sink_options(named, {}) == parse_sink_options({"topic": "t"}, {})  # Spark's own
    for wrong, says in (
        ({"topics": "t"}, "did you mean topic?"),
        ({"subscribe": "t"}, "unknown option 'subscribe'; a topic is written to by"),
        ({"topic": "a b"}, "no topic's name"),
        ({"txnId": "two words"}, "without spaces"),
    ):
        with pytest.raises(SourceError, match=says.replace("?", r"\?")):
            parse_sink_options(wrong, {})


def test_large_ranges_are_cut_into_tasks() -> None:
    """maxRecordsPerPartition: no task with more, whatever minPartitions says; absurd numbers are refused."""
    pieces = pieces_of(STATES, maxRecordsPerPartition="40")
    assert [(piece.partition, piece.end - piece.start) for piece in pieces] == [
        (0, 33), (0, 33), (0, 34), (1, 25), (1, 25)
    ]  # fmt: skip
    assert len(pieces_of(STATES, maxRecordsPerPartition="40", minPartitions="30")) == 30
    huge = {"t": {0: LogEnds(0, 10**9, ())}}
    with pytest.raises(SourceError, match="would make 1000000000 tasks"):
        pieces_of(huge, maxRecordsPerPartition="1")


def test_times_bound_batch_queries() -> None:
    """What agents answered to a time is where reading begins or ends; none: the end, or an error."""
    chosen = options(startingTimestamp="5", endingOffsetsByTimestamp='{"t":{"0":9,"1":9}}')
    found = {("t", 0): 17}
    with pytest.raises(SourceError, match="partition 1 of topic 't' has no record of the starting time"):
        resolve(chosen.starting, "starting", STATES, found)
    lenient = options(startingTimestamp="5", startingOffsetsByTimestampStrategy="latest").starting
    assert resolve(lenient, "starting", STATES, found) == {("t", 0): 17, ("t", 1): 50}
    assert resolve(chosen.ending, "ending", STATES, found) == {("t", 0): 17, ("t", 1): 50}


def test_ranges_are_fixed_at_planning() -> None:
    """Earliest and latest become numbers, explicit offsets stay, leaders come first."""
    assert ranges() == [(0, 10, 110), (1, 0, 50)]
    assert ranges(startingOffsets='{"t":{"0":20,"1":-2}}') == [(0, 20, 110), (1, 0, 50)]
    assert ranges(endingOffsets='{"t":{"0":-1,"1":7}}') == [(0, 10, 110), (1, 0, 7)]
    assert ranges(startingOffsets='{"t":{"0":110,"1":50}}') == []
    assert pieces_of(STATES)[1].urls == ("http://b:1", "http://a:1")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"startingOffsets": '{"t":{"0":1}}'}, "no offset for partition 1"),
        ({"startingOffsets": '{"t":{"0":10,"1":1,"2":1}}'}, "no partition 2"),
        ({"startingOffsets": '{"t":{"0":9,"1":0}}'}, "was trimmed"),
        ({"startingOffsets": '{"t":{"0":111,"1":0}}'}, "ends at offset 110"),
        ({"endingOffsets": '{"t":{"0":111,"1":50}}'}, "ends at offset 110"),
        (
            {"startingOffsets": '{"t":{"0":50,"1":0}}', "endingOffsets": '{"t":{"0":40,"1":50}}'},
            "lies behind the ending offset",
        ),
    ],
)
def test_impossible_offsets_get_one_line(changes: dict[str, str], says: str) -> None:
    """What the log does not have is reported, not left out."""
    with pytest.raises(SourceError) as caught:
        ranges(**changes)
    assert says in str(caught.value)


def test_data_loss_can_be_accepted() -> None:
    """failOnDataLoss=false reads what there is."""
    offsets = {"startingOffsets": '{"t":{"0":0,"1":60}}', "endingOffsets": '{"t":{"0":999,"1":999}}'}
    assert ranges(failOnDataLoss="false", **offsets) == [(0, 10, 110)]


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 10**12), st.integers(0, 10**6)), max_size=6),
    st.integers(1, 50),
)
def test_splitting_loses_and_repeats_nothing(sizes: dict[int, tuple[int, int]], min_partitions: int) -> None:
    """minPartitions cuts ranges; together they are the same offsets, in order."""
    states = {
        "t": {partition: LogEnds(start, start + records, ()) for partition, (start, records) in sizes.items()}
    }
    pieces = pieces_of(states, minPartitions=str(min_partitions))
    for partition, (start, records) in sizes.items():
        mine = [piece for piece in pieces if piece.partition == partition]
        edges = [start, *(piece.end for piece in mine)]
        assert [piece.start for piece in mine] == edges[:-1]
        assert edges[-1] == start + records
    assert all(piece.start < piece.end for piece in pieces)
    assert len(pieces) <= min_partitions + len(sizes)


def test_pieces_follow_sizes() -> None:
    """A partition with more records is cut into more tasks."""
    pieces = pieces_of(STATES, minPartitions="6")
    assert [piece.partition for piece in pieces] == [0, 0, 0, 0, 1, 1]
    assert pieces[0] == OffsetRange("t", 0, 10, 35, ("http://a:1",))


comparisons = st.sampled_from(["=", ">", ">=", "<", "<="])
ROWS = [(topic, partition, offset) for topic in "tu" for partition in range(3) for offset in range(10, 20)]


@given(
    st.lists(
        st.tuples(st.just("topic"), st.just("="), st.sampled_from("tux"))
        | st.tuples(st.just("topic"), st.just("in"), st.lists(st.sampled_from("tux")))
        | st.tuples(st.just("partition"), comparisons, st.integers(0, 3))
        | st.tuples(st.just("partition"), st.just("in"), st.lists(st.integers(0, 3)))
        | st.tuples(st.just("offset"), comparisons, st.integers(8, 21))
        | st.tuples(st.just("key"), comparisons, st.binary(max_size=2)),
        max_size=4,
    )
)
def test_filters_cut_nothing_that_passes_them(filters: list[tuple[str, str, Any]]) -> None:
    """Whatever they are; and of offsets they leave only what passes."""
    narrowing = Narrowing()
    for column, comparison, value in filters:
        narrowing = narrowing.by(column, comparison, value)
    whole = [OffsetRange(topic, partition, 10, 20, ()) for topic in "tu" for partition in range(3)]
    read = {
        (piece.topic, piece.partition, offset)
        for piece in narrowing.apply(whole, {})
        for offset in range(piece.start, piece.end)
    }
    operators = {"=": eq, ">": gt, ">=": ge, "<": lt, "<=": le, "in": lambda a, b: a in b}

    def passes(row: tuple[str, int, int]) -> bool:
        named = dict(zip(("topic", "partition", "offset"), row, strict=True))
        return all(
            operators[comparison](named[column], value)
            for column, comparison, value in filters
            if column in named
        )

    passing = {row for row in ROWS if passes(row)}
    assert passing <= read
    if all(column == "offset" for column, _, _ in filters):
        assert passing == read


def test_a_time_cuts_what_lies_before_it() -> None:
    """Never more: times are rounded down, and only a beginning follows from them."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    narrowing = Narrowing().by("timestamp", ">", at)
    assert narrowing.since_ms == int(at.timestamp() * 1000) - 1
    assert narrowing.by("timestamp", "<", at) == narrowing
    assert narrowing.by("timestamp", ">=", None) == narrowing
    piece = OffsetRange("t", 0, 10, 20, ())
    assert narrowing.apply([piece], {("t", 0): 15}) == [piece._replace(start=15)]
    assert narrowing.apply([piece], {("t", 0): 20}) == []
