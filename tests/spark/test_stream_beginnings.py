"""Where a stream's micro-batches begin: a new query's first one, one that another process plans again, and
all of them for a Spark that does not say it (4.0, 4.1). Without Spark: its calls are made in its order.
"""

from __future__ import annotations

import threading
import time
from typing import Any, TypeAlias

import pytest

from shoal.spark.options.errors import SourceError
from shoal.spark.options.known import Mode
from shoal.spark.options.read_options import parse_source_options
from shoal.spark.read.stream import StreamPlanner
from shoal.spark.read.topics import Directory

Cluster: TypeAlias = Any  # conftest's: test modules do not import one another

ALL = {"flights": {"0": 10, "1": 30, "2": 0}}
MORE = {"flights": {"0": 10, "1": 30, "2": 5}}
NONE = {"flights": {"0": 0, "1": 0, "2": 0}}


def planner(cluster: Cluster, **options: Any) -> StreamPlanner:
    """As the process has it that plans a query; without real pauses between attempts."""
    chosen = {"subscribe": "flights", "idleWaitMs": 0, "agent": cluster.url(0), **options}
    parsed = parse_source_options({name: str(value) for name, value in chosen.items()}, {}, Mode.STREAM)
    return StreamPlanner(
        parsed, Directory(parsed.agents, pause=lambda seconds: None), pause=lambda seconds: None
    )


def restarted(cluster: Cluster, checkpoint: Any, **options: Any) -> StreamPlanner:
    """As Spark restarts a query: first it plans an empty micro-batch at the checkpoint's newest offset."""
    stream = planner(cluster, **options)
    assert stream.ranges(checkpoint, checkpoint) == []
    return stream


def read(stream: StreamPlanner, start: Any, end: Any) -> list[tuple[int, int, int]]:
    """Partition, start and end of each task."""
    return [(piece.partition, piece.start, piece.end) for piece in stream.ranges(start, end)]


def grow(cluster: Cluster) -> None:
    cluster.topics["flights"][2].append(2, 5)


def test_a_new_query_keeps_its_beginning_before_it_waits(cluster: Cluster) -> None:
    """At the logs' ends: an empty micro-batch at once, so that a restart does not begin later."""
    stream = planner(cluster, idleWaitMs=30_000)
    initial = stream.initial_offset()
    grow(cluster)
    assert stream.latest_offset(initial, None) == initial == ALL
    assert read(stream, initial, initial) == []
    assert read(stream, ALL, restarted(cluster, ALL).latest_offset(ALL, None)) == [(2, 0, 5)]


def test_a_new_querys_first_micro_batch_ends_where_its_beginning_was_looked_up(cluster: Cluster) -> None:
    """What comes later, new partitions too, belongs to the second one."""
    stream = planner(cluster, startingOffsets='{"flights":{"0":4,"1":-1,"2":-2}}')
    initial = stream.initial_offset()
    grow(cluster)
    cluster.topics["flights"][3] = type(cluster.topics["flights"][0])()
    cluster.topics["flights"][3].append(3, 2)
    assert stream.latest_offset(initial, None) == ALL
    assert read(stream, initial, ALL) == [(0, 4, 10)]
    stream = restarted(cluster, ALL)
    assert read(stream, ALL, stream.latest_offset(ALL, None)) == [(2, 0, 5), (3, 0, 2)]


@pytest.mark.parametrize("told", [True, False])
def test_a_first_micro_batch_that_is_planned_again_reads_nothing_else(cluster: Cluster, told: bool) -> None:
    """Killed within it, a query looks its beginning up anew: "latest" may lie behind the micro-batch's end.
    That is no sign of another log, whose records all would be new; and no record is passed over."""
    grow(cluster)
    stream = restarted(cluster, ALL)
    initial = stream.initial_offset()
    assert initial == MORE
    assert read(stream, initial, ALL) == []
    following = stream.latest_offset(ALL if told else None, None)
    assert read(stream, ALL, following) == [(2, 0, 5)]


def test_each_offset_is_read_once_where_spark_tells_no_start(cluster: Cluster) -> None:
    """The calls of Spark 4.0: the newest offset first, then the beginning; restarts between micro-batches and
    within one."""
    stream = planner(cluster, startingOffsets="earliest")
    assert stream.latest_offset(None, None) == ALL
    assert read(stream, stream.initial_offset(), ALL) == [(0, 0, 10), (1, 0, 30)]
    assert stream.latest_offset(None, None) == ALL
    grow(cluster)
    assert stream.latest_offset(None, None) == MORE
    assert read(stream, ALL, MORE) == [(2, 0, 5)]
    for restart in (stream, restarted(cluster, MORE), restarted(cluster, MORE, startingOffsets="earliest")):
        assert restart.latest_offset(None, None) == MORE
    replaying = restarted(cluster, MORE)
    grow(cluster)
    assert read(replaying, ALL, MORE) == [(2, 0, 5)]
    assert replaying.latest_offset(None, None) == {"flights": {"0": 10, "1": 30, "2": 10}}


def test_a_restart_does_not_ask_where_a_new_query_would_begin(cluster: Cluster) -> None:
    """What the options name may be gone: the checkpoint is what counts."""
    cluster.topics["flights"][1].log_start_offset = 20
    trimmed = '{"flights":{"0":0,"1":4,"2":0}}'
    with pytest.raises(SourceError, match=r"has offsets 20 to 30, not 4"):
        planner(cluster, startingOffsets=trimmed).latest_offset(None, None)
    assert restarted(cluster, ALL, startingOffsets=trimmed).latest_offset(None, None) == ALL


@pytest.mark.parametrize("checkpoint", [None, ALL])
def test_where_spark_tells_no_start_only_the_first_answer_is_at_once(
    cluster: Cluster, checkpoint: Any
) -> None:
    """Trigger.AvailableNow asks once and is to end; a query that goes on waits at an agent from then on."""
    stream = planner(cluster, idleWaitMs=30_000)
    if checkpoint is not None:
        stream = restarted(cluster, checkpoint, idleWaitMs=30_000)
    assert stream.latest_offset(None, None) == ALL
    assert not any("wait=" in path for path in cluster.requests)
    cluster.requests.clear()
    timer = threading.Timer(0.2, lambda: grow(cluster))
    started = time.monotonic()
    timer.start()
    assert stream.latest_offset(None, None) == MORE
    assert 0.15 < time.monotonic() - started < 25
    assert [path.partition("&")[0] for path in cluster.requests] == [
        "/v1/topics/flights/offsets?after=0:10,1:30,2:0"
    ]


def test_available_now_of_such_a_spark_reads_to_the_ends(cluster: Cluster) -> None:
    """With its own setting for several micro-batches it asks before the checkpoint is known, and again after:
    the end that it keeps to is not before the checkpoint's."""
    grow(cluster)
    stream = planner(cluster, idleWaitMs=30_000)
    end = stream.latest_offset(None, None)
    assert end == MORE
    assert read(stream, ALL, ALL) == []
    assert stream.latest_offset(None, None) == MORE
    assert read(stream, ALL, end) == [(2, 0, 5)]


def test_a_failure_moves_nothing(cluster: Cluster) -> None:
    """A topic that was made anew is told; a query that may lose data reads the other log, all of it."""
    cluster.fill("flights", (4,), (10, 20), ())
    for _ in range(2):
        with pytest.raises(SourceError, match=r"ends at offset 4, before 10, .*deleted and made again"):
            restarted(cluster, ALL).latest_offset(None, None)
    stream = restarted(cluster, ALL, failOnDataLoss="false")
    end = stream.latest_offset(None, None)
    assert end == {"flights": {"0": 4, "1": 30, "2": 0}}
    assert read(stream, ALL, end) == [(0, 0, 4)]
    assert stream.latest_offset(None, None) == end


def test_agents_that_fail_meanwhile_do_not_move_it_either(cluster: Cluster) -> None:
    """No answer is no offset: the same place once one answers."""
    stream = restarted(cluster, ALL)
    cluster.offsets_answer = {"partitions": "none"}
    cluster.topics["flights"][2].append(2, 5)
    with pytest.raises(SourceError, match="is not understood"):
        stream.latest_offset(None, None)
    cluster.offsets_answer = None
    assert stream.latest_offset(None, None) == MORE
    assert read(stream, ALL, MORE) == [(2, 0, 5)]
