"""Options as users write them, and the plan made from them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.spark_options import (
    EARLIEST,
    LATEST,
    OffsetRange,
    PartitionState,
    SourceError,
    SourceOptions,
    parse_options,
    plan,
)

STATES = {
    "t": {0: PartitionState(10, 110, ("http://a:1",)), 1: PartitionState(0, 50, ("http://b:1", "http://a:1"))}
}


def options(**changes: Any) -> SourceOptions:
    """The options of a query on topic t."""
    return parse_options({"subscribe": "t", **changes}, {})


def ranges(**changes: Any) -> list[tuple[int, int, int]]:
    """Partition, start and end of each task."""
    return [(piece.partition, piece.start, piece.end) for piece in plan(options(**changes), STATES)]


def test_defaults() -> None:
    """All of a topic, from the agent of this machine."""
    assert options() == SourceOptions(("t",), ("http://127.0.0.1:7070",), EARLIEST, LATEST, False, 1, True)
    assert parse_options({"subscribe": "t"}, {"SHOAL_AGENT": "h:1,https://i:2/,[::1]:3,http://j"}).agents == (
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
    parsed = parse_options(given_options, {"SHOAL_AGENT": "ignored:1"})
    assert parsed.topics == ("t", "u")
    assert parsed.starting == {"t": {0: 17, 1: -2}, "u": {0: 0}}
    assert (parsed.include_headers, parsed.min_partitions, parsed.fail_on_data_loss) == (True, 12, False)
    assert parsed.agents == ("http://h:1",)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"subscribe": " , "}, "no topic"),
        ({"startingOffset": "earliest"}, "unknown option 'startingoffset'"),
        ({"path": "x"}, "unknown option 'path'"),
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
        ({"endingOffsets": '{"t":{"0":-2}}'}, "would read nothing"),
    ],
)
def test_wrong_options_get_one_line(changes: dict[str, str], says: str) -> None:
    """Misspelled names too: an option that is silently ignored reads the wrong records."""
    with pytest.raises(SourceError) as caught:
        options(**changes)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ranges_are_fixed_at_planning() -> None:
    """Earliest and latest become numbers, explicit offsets stay, leaders come first."""
    assert ranges() == [(0, 10, 110), (1, 0, 50)]
    assert ranges(startingOffsets='{"t":{"0":20,"1":-2}}') == [(0, 20, 110), (1, 0, 50)]
    assert ranges(endingOffsets='{"t":{"0":-1,"1":7}}') == [(0, 10, 110), (1, 0, 7)]
    assert ranges(startingOffsets='{"t":{"0":110,"1":50}}') == []
    assert plan(options(), STATES)[1].urls == ("http://b:1", "http://a:1")


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
        "t": {
            partition: PartitionState(start, start + records, ())
            for partition, (start, records) in sizes.items()
        }
    }
    pieces = plan(options(minPartitions=str(min_partitions)), states)
    for partition, (start, records) in sizes.items():
        mine = [piece for piece in pieces if piece.partition == partition]
        edges = [start, *(piece.end for piece in mine)]
        assert [piece.start for piece in mine] == edges[:-1]
        assert edges[-1] == start + records
    assert all(piece.start < piece.end for piece in pieces)
    assert len(pieces) <= min_partitions + len(sizes)


def test_pieces_follow_sizes() -> None:
    """A partition with more records is cut into more tasks."""
    pieces = plan(options(minPartitions="6"), STATES)
    assert [piece.partition for piece in pieces] == [0, 0, 0, 0, 1, 1]
    assert pieces[0] == OffsetRange("t", 0, 10, 35, ("http://a:1",))
