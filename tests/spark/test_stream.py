"""A stream's offsets, without Spark: where it begins, how far it goes, when it waits, and what loss does."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ShoalError
from shoal.spark.options.errors import SourceError
from shoal.spark.options.known import Mode
from shoal.spark.options.read_options import parse_source_options
from shoal.spark.read.http import POOL
from shoal.spark.read.plan import LogEnds, limit_ends, stream_ends, stream_ranges
from shoal.spark.read.stream import StreamPlanner
from shoal.spark.read.topics import Directory

Cluster: TypeAlias = Any  # conftest's: test modules do not import one another

ALL = {"flights": {"0": 10, "1": 30, "2": 0}}
NONE = {"flights": {"0": 0, "1": 0, "2": 0}}


def planner(cluster: Cluster, **options: Any) -> StreamPlanner:
    """As a query on the topic flights would have it; without real pauses between attempts."""
    given_options = {"subscribe": "flights", "idleWaitMs": "0", "agent": cluster.url(0), **options}
    chosen = {name: str(value) for name, value in given_options.items() if value is not None}
    parsed = parse_source_options(chosen, {}, Mode.STREAM)
    directory = Directory(parsed.agents, pause=lambda seconds: None)
    return StreamPlanner(parsed, directory, pause=lambda seconds: None)


def read(stream: StreamPlanner, start: Any, end: Any) -> list[tuple[int, int, int]]:
    """Partition, start and end of each task."""
    return [(piece.partition, piece.start, piece.end) for piece in stream.ranges(start, end)]


def begun(cluster: Cluster, **options: Any) -> tuple[StreamPlanner, Any]:
    """A query whose first micro-batch, of what was there when it began, is planned; where the next begins."""
    stream = planner(cluster, **options)
    return stream, stream.latest_offset(stream.initial_offset(), None)


def test_a_new_query_begins_where_the_options_say(cluster: Cluster) -> None:
    """At the end unless told; asked twice (as Spark does) "latest" is one and the same place."""
    stream = planner(cluster)
    assert stream.initial_offset() == ALL
    cluster.topics["flights"][2].append(2, 5)
    assert stream.initial_offset() == ALL
    assert planner(cluster, startingOffsets="earliest").initial_offset() == NONE
    explicit = '{"flights":{"0":4,"1":-2,"2":-1}}'
    assert planner(cluster, startingOffsets=explicit).initial_offset() == {
        "flights": {"0": 4, "1": 0, "2": 5}
    }
    with pytest.raises(SourceError, match="has offsets 0 to 10, not 99"):
        planner(cluster, startingOffsets='{"flights":{"0":99,"1":-2,"2":-1}}').initial_offset()


def test_times_choose_offsets(cluster: Cluster) -> None:
    """One time for all, or one for each partition; a time after the last record is an error unless told."""
    cluster.fill("flights", (3_000,), (10, 20))  # a microsecond apart: 3 ms and 30 us
    first_ms = 1_700_000_000_000
    times = json.dumps({"flights": {"0": first_ms + 2, "1": first_ms}})
    assert planner(cluster, startingOffsetsByTimestamp=times).initial_offset() == {
        "flights": {"0": 2_000, "1": 0}
    }
    late = {"startingTimestamp": first_ms + 1}
    with pytest.raises(SourceError, match=r"^partition 1 .* no record of the starting time or later"):
        planner(cluster, **late).initial_offset()
    lenient = planner(cluster, startingOffsetsByTimestampStrategy="latest", **late)
    assert lenient.initial_offset() == {"flights": {"0": 1_000, "1": 30}}


def test_micro_batches_go_to_the_end_and_on(cluster: Cluster) -> None:
    """Everything that is there, then only what is new; each offset in one micro-batch."""
    stream = planner(cluster, startingOffsets="earliest")
    assert stream.latest_offset(NONE, None) == ALL
    assert read(stream, NONE, ALL) == [(0, 0, 10), (1, 0, 30)]
    assert stream.latest_offset(ALL, None) == ALL
    assert read(stream, ALL, ALL) == []
    cluster.topics["flights"][2].append(2, 5)
    moved = {"flights": {"0": 10, "1": 30, "2": 5}}
    stream = planner(cluster)  # as after a restart: the checkpoint is all that is left
    assert stream.latest_offset(ALL, None) == moved
    assert read(planner(cluster), ALL, moved) == [(2, 0, 5)]


def test_limits_are_shared_in_proportion(cluster: Cluster) -> None:
    """maxOffsetsPerTrigger: as much of each partition as it has of all; the rest follows."""
    stream = planner(cluster, maxOffsetsPerTrigger=8)
    end = stream.latest_offset(NONE, 8)
    assert end == {"flights": {"0": 2, "1": 6, "2": 0}}
    seen = 8
    while end != ALL:
        following = stream.latest_offset(end, 8)
        seen += sum(piece[2] - piece[1] for piece in read(stream, end, following))
        assert following != end
        end = following
    assert seen == 40


def test_available_now_fixes_the_end(cluster: Cluster) -> None:
    """Records and partitions that come later are another query's, and nothing waits for them."""
    stream = planner(cluster, idleWaitMs=30_000)
    stream.prepare_available_now()
    cluster.topics["flights"][2].append(2, 5)
    cluster.topics["flights"][3] = type(cluster.topics["flights"][0])()
    cluster.topics["flights"][3].append(3, 5)
    end = stream.latest_offset(NONE, 30)
    assert end == {"flights": {"0": 7, "1": 22, "2": 0}}
    end = stream.latest_offset(end, 30)
    assert end == ALL
    assert stream.latest_offset(end, 30) == ALL


def test_an_end_that_agents_denied_is_fixed_with_the_first_look(cluster: Cluster) -> None:
    """A topic that agents denied for a moment is read up to where it ended when they knew it again."""
    stream = planner(cluster)
    hidden = cluster.topics.pop("flights")
    stream.prepare_available_now()
    cluster.topics["flights"] = hidden
    end = stream.latest_offset(NONE, 30)
    assert end == {"flights": {"0": 7, "1": 22, "2": 0}}
    cluster.topics["flights"][2].append(2, 5)
    assert stream.latest_offset(end, 30) == ALL
    assert stream.latest_offset(ALL, 30) == ALL


def test_an_idle_stream_waits_at_the_agent(cluster: Cluster) -> None:
    """One request while nothing happens, answered as soon as something does; then offsets need no other."""
    stream, start = begun(cluster, idleWaitMs=30_000)
    assert start == ALL
    cluster.requests.clear()
    timer = threading.Timer(0.2, lambda: cluster.topics["flights"][2].append(2, 5))
    started = time.monotonic()
    timer.start()
    assert stream.latest_offset(ALL, None) == {"flights": {"0": 10, "1": 30, "2": 5}}
    assert 0.15 < time.monotonic() - started < 25
    assert [path.partition("&")[0] for path in cluster.requests] == [
        "/v1/topics/flights/offsets?after=0:10,1:30,2:0"
    ]


def test_waiting_uses_the_same_connection_again(cluster: Cluster) -> None:
    """Also one that the agent has closed meanwhile: the wait is asked for anew."""
    POOL.close()  # of what other tests have left
    stream, start = begun(cluster, idleWaitMs=50)
    stream.latest_offset(start, None)
    kept = [id(idle.connection) for idle in POOL._idle]
    stream.latest_offset(start, None)
    assert [id(idle.connection) for idle in POOL._idle] == kept
    for idle in POOL._idle:
        idle.connection.sock.shutdown(2)
    cluster.requests.clear()
    cluster.topics["flights"][2].append(2, 5)
    assert stream.latest_offset(start, None) == {"flights": {"0": 10, "1": 30, "2": 5}}
    assert [path.partition("?")[0] for path in cluster.requests] == ["/v1/topics/flights/offsets"]


def test_several_topics_are_waited_for_at_once(cluster: Cluster) -> None:
    """Whichever moves first ends the wait."""
    cluster.fill("trains", (5,))
    stream, start = begun(cluster, subscribe="trains,flights", idleWaitMs=30_000)
    timer = threading.Timer(0.1, lambda: cluster.topics["trains"][0].append(0, 7))
    timer.start()
    assert stream.latest_offset(start, None) == {**ALL, "trains": {"0": 12}}


def test_the_wait_is_bounded(cluster: Cluster) -> None:
    """Nothing new: the same offset again, after about idleWaitMs."""
    stream, start = begun(cluster, idleWaitMs=200)
    started = time.monotonic()
    assert stream.latest_offset(start, None) == ALL
    assert 0.19 < time.monotonic() - started < 40


def test_new_partitions_begin_at_their_first_record(cluster: Cluster) -> None:
    """And are found while the query runs."""
    stream = planner(cluster)
    stream.initial_offset()
    cluster.topics["flights"][3] = type(cluster.topics["flights"][0])()
    cluster.topics["flights"][3].append(3, 5)
    stream = planner(cluster)
    end = stream.latest_offset(ALL, None)
    assert end == {"flights": {"0": 10, "1": 30, "2": 0, "3": 5}}
    assert read(stream, ALL, end) == [(3, 0, 5)]


def test_patterns_and_partitions_choose_topics(cluster: Cluster) -> None:
    """subscribePattern takes topics that match as a whole, new ones too; assign takes some partitions."""
    for topic in ("flights-eu", "_flights", "trains"):
        cluster.fill(topic, (3,))
    stream = planner(cluster, subscribe=None, subscribePattern="flights.*", startingOffsets="earliest")
    assert sorted(stream.initial_offset()) == ["flights", "flights-eu"]
    cluster.fill("flights-us", (2,))
    stream = planner(cluster, subscribe=None, subscribePattern="flights.*")
    end = stream.latest_offset(ALL, None)
    assert end == {**ALL, "flights-eu": {"0": 3}, "flights-us": {"0": 2}}
    stream = planner(cluster, subscribe=None, assign='{"flights":[1]}', startingOffsets="earliest")
    assert stream.initial_offset() == {"flights": {"1": 0}}
    assert stream.latest_offset({"flights": {"1": 0}}, None) == {"flights": {"1": 30}}
    cluster.topics["flights"][0].append(0, 1)
    waiting = planner(cluster, subscribe=None, assign='{"flights":[1]}', idleWaitMs=100)
    assert waiting.latest_offset({"flights": {"1": 30}}, None) == {"flights": {"1": 30}}
    with pytest.raises(SourceError, match="no partition 7"):
        planner(cluster, subscribe=None, assign='{"flights":[7]}').initial_offset()


def test_a_pattern_without_topics_is_patient(cluster: Cluster) -> None:
    """Nothing matches as yet: the query runs, and does not ask a hundred times a second."""
    pauses: list[float] = []
    parsed = parse_source_options({"subscribePattern": "later-.*", "agent": cluster.url(0)}, {}, Mode.STREAM)
    now = iter(range(100))
    stream = StreamPlanner(parsed, clock=lambda: float(next(now)), pause=pauses.append)
    assert stream.initial_offset() == {}
    assert stream.latest_offset({}, None) == {}
    assert pauses == []
    assert stream.latest_offset({}, None) == {}
    assert pauses
    assert all(0 < pause <= 1 for pause in pauses)


def test_trimmed_records_fail_or_are_skipped(cluster: Cluster) -> None:
    """failOnDataLoss decides; what was trimmed is named."""
    cluster.topics["flights"][1].log_start_offset = 20
    with pytest.raises(SourceError, match=r"begins at offset 20, 0 was trimmed; .*failOnDataLoss"):
        read(planner(cluster), NONE, ALL)
    assert read(planner(cluster, failOnDataLoss="false"), NONE, ALL) == [(0, 0, 10), (1, 20, 30)]
    cluster.topics["flights"][1].log_start_offset = 30
    assert read(planner(cluster, failOnDataLoss="false"), NONE, ALL) == [(0, 0, 10)]


def test_a_deleted_topic_fails_or_is_left_out(cluster: Cluster) -> None:
    """A query goes on with its other topics when told so."""
    cluster.fill("trains", (5,))
    start = {**ALL, "trains": {"0": 2}}
    del cluster.topics["flights"]
    with pytest.raises(SourceError, match=r"partition 0 of topic 'flights' no longer exists"):
        planner(cluster, subscribe="flights,trains").latest_offset(start, None)
    stream = planner(cluster, subscribe="flights,trains", failOnDataLoss="false")
    end = stream.latest_offset(start, None)
    assert end == {"trains": {"0": 5}}
    assert read(stream, start, end) == [(0, 2, 5)]


def test_a_topic_made_again_fails_or_is_read_anew(cluster: Cluster) -> None:
    """Its log is shorter than what was read of the other one."""
    cluster.fill("flights", (4,), (10, 20), ())
    with pytest.raises(SourceError, match=r"ends at offset 4, before 10, .*deleted and made again"):
        planner(cluster).latest_offset(ALL, None)
    stream = planner(cluster, failOnDataLoss="false")
    end = stream.latest_offset(ALL, None)
    assert end == {"flights": {"0": 4, "1": 30, "2": 0}}
    assert read(stream, ALL, end) == [(0, 0, 4)]


def test_agents_may_die_while_a_query_runs(cluster: Cluster) -> None:
    """The agent of the option is gone for good: those that its routes named are asked."""
    stream = planner(cluster)
    assert stream.initial_offset() == ALL
    assert cluster.url(1) in stream.agents
    cluster.document_faults = [ShoalError("no-leader", "electing"), ShoalError("not-ready", "starting")]
    dead = cluster.agents[0]
    dead.shutdown()
    dead.server_close()
    stream = planner(cluster, agent=f"127.0.0.1:9,{cluster.url(1)}")
    cluster.topics["flights"][2].append(2, 5)
    assert stream.latest_offset(ALL, None) == {"flights": {"0": 10, "1": 30, "2": 5}}


def test_agents_that_stay_away_end_the_query_with_one_line() -> None:
    """Patience is bounded: the last error is told."""
    options = {"subscribe": "flights", "agent": "127.0.0.1:9", "idleWaitMs": "0"}
    parsed = parse_source_options(options, {}, Mode.STREAM)
    pauses: list[float] = []
    stream = StreamPlanner(parsed, Directory(parsed.agents, pause=pauses.append))
    with pytest.raises(SourceError, match=r"^no agent answers"):
        stream.initial_offset()  # somebody waits for the query to begin
    with pytest.raises(SourceError, match=r"cannot be read at present: no agent answers"):
        stream.latest_offset(ALL, None)
    assert len(pauses) == 29


def test_the_lag_is_told(cluster: Cluster) -> None:
    """The ends of all partitions, as last heard of; nothing before anything was heard."""
    stream = planner(cluster, maxOffsetsPerTrigger=8)
    assert stream.reported_offset() is None
    stream.latest_offset(NONE, 8)
    assert stream.reported_offset() == ALL


@pytest.mark.parametrize("document", [[], {"t": 5}, {"t": {"x": 1}}, {"t": {"0": None}}, "text"])
def test_another_sources_checkpoint_is_refused(cluster: Cluster, document: Any) -> None:
    """One line instead of a KeyError."""
    with pytest.raises(SourceError, match=r"^the checkpoint's offsets .* are not this source's"):
        planner(cluster).latest_offset(document, None)


places = st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 5))


@given(
    st.dictionaries(places, st.tuples(st.integers(0, 10**9), st.integers(0, 10**6))), st.integers(1, 10**7)
)
def test_a_limit_never_starves_nor_overshoots(
    sizes: dict[tuple[str, int], tuple[int, int]], limit: int
) -> None:
    """Every partition with records advances, none beyond its end, all by little more than the limit."""
    begins = {place: begin for place, (begin, _) in sizes.items()}
    ends = {place: begin + size for place, (begin, size) in sizes.items()}
    limited = limit_ends(begins, ends, limit)
    assert limited.keys() == ends.keys()
    for place, end in ends.items():
        assert begins[place] <= limited[place] <= end
        assert (limited[place] > begins[place]) == (end > begins[place])
    assert sum(limited[place] - begins[place] for place in ends) <= limit + len(ends)


def test_a_replayed_micro_batch_is_the_same() -> None:
    """The same two offsets give the same ranges, whatever was appended meanwhile."""
    start, end = {("t", 0): 5, ("t", 1): 0}, {("t", 0): 9, ("t", 1): 4, ("t", 2): 3}
    first = {"t": {p: LogEnds(0, 9, ("http://a:1",)) for p in range(3)}}
    later = {"t": {p: LogEnds(0, 900, ("http://a:1",)) for p in range(4)}}
    assert stream_ranges(start, end, first, True) == stream_ranges(start, end, later, True)
    begins, ends = stream_ends(end, later, True, None)
    assert begins == {**end, ("t", 3): 0}
    assert set(ends.values()) == {900}


class Machine:
    """A clock that pauses and waits move on, records that come at given times, and the directory of them."""

    agents = ("http://agent:1",)

    def __init__(self, *sizes: int) -> None:
        self.now = 0.0
        self.ends = list(sizes)
        self.arrivals: list[float] = []  # of one record each, into partition 0
        self.looks = 0

    def pause(self, seconds: float) -> None:
        """Time goes on, records come."""
        assert seconds >= 0
        self.now += seconds
        while self.arrivals and self.arrivals[0] <= self.now:
            self.ends[0] += 1
            del self.arrivals[0]

    def existing_states(self, selection: Any) -> dict[str, dict[int, LogEnds]]:
        """As they are now."""
        self.looks += 1
        return {"t": {partition: LogEnds(0, end, ()) for partition, end in enumerate(self.ends)}}

    def wait(self, selection: Any, after: Any, seconds: float) -> dict[str, dict[int, LogEnds]]:
        """Until a partition has moved."""
        until = self.now + seconds
        while self.now < until and after["t"] == dict(enumerate(self.ends)):
            self.pause(min(until, *self.arrivals[:1]) - self.now if self.arrivals else until - self.now)
        return self.existing_states(selection)

    def stream(self, **options: Any) -> StreamPlanner:
        """A planner on this clock."""
        chosen = {name: str(value) for name, value in {"subscribe": "t", **options}.items()}
        parsed = parse_source_options(chosen, {}, Mode.STREAM)
        directory: Any = self
        return StreamPlanner(parsed, directory, clock=lambda: self.now, pause=self.pause)

    def next_batch(self, stream: StreamPlanner, *start: int) -> tuple[float, list[int]]:
        """Asked again and again, as Spark does: when the next micro-batch comes, and its ends."""
        begin = {"t": {str(partition): offset for partition, offset in enumerate(start)}}
        while (end := stream.latest_offset(begin, None)) == begin:
            self.pause(0.01)
        return round(self.now, 1), list(end["t"].values())


def test_small_micro_batches_wait_for_more_records() -> None:
    """minOffsetsPerTrigger: the first one comes at once, the others when they are large enough, or when their
    oldest record has waited for maxTriggerDelay; the agent is asked ten times a second at most."""
    machine = Machine(10, 20)
    some = {"minOffsetsPerTrigger": 100, "maxTriggerDelay": "60s"}
    stream = machine.stream(**some)
    assert machine.next_batch(stream, 0, 0) == (0, [10, 20])
    machine.arrivals = [10.0] * 60 + [20.0] * 39 + [30.0]
    assert machine.next_batch(stream, 10, 20) == (30.0, [110, 20])
    machine.looks = 0
    machine.arrivals = [100 + number / 1_000 for number in range(99)]
    assert machine.next_batch(stream, 110, 20) == (160.0, [209, 20])
    assert machine.looks < 10 + 130 / 3 + 130 / 10  # bursts; waits of idleWaitMs; looks for new partitions
    machine.arrivals = [170 + number / 50 for number in range(10_000)]
    end = 209
    for _ in range(2):
        before, (end, _) = end, machine.next_batch(stream, end, 20)[1]
        assert 100 <= end - before <= 106  # a look every 0.1 s
    # After a restart nobody knows how long records have waited.
    machine.pause(0.5)
    assert machine.next_batch(machine.stream(**some), end, 20) == (round(machine.now, 1), machine.ends)
    assert machine.ends[0] - end <= 30


def test_available_now_waits_for_nothing() -> None:
    """Neither for records nor for time: minOffsetsPerTrigger holds for queries that go on."""
    machine = Machine(10, 30)
    stream = machine.stream(minOffsetsPerTrigger=30, maxOffsetsPerTrigger=30)
    stream.prepare_available_now()
    end = stream.latest_offset({"t": {"0": 0, "1": 0}}, 30)
    assert end == {"t": {"0": 7, "1": 22}}
    end = stream.latest_offset(end, 30)
    assert end == {"t": {"0": 10, "1": 30}}
    assert stream.latest_offset(end, 30) == end
    assert machine.now == 0


def test_places_that_are_new_are_taken_at_once() -> None:
    """A new partition, and a topic that was made again, have to get into the checkpoint."""
    machine = Machine(10)
    stream = machine.stream(minOffsetsPerTrigger=1_000, failOnDataLoss="false")
    assert machine.next_batch(stream, 0) == (0, [10])
    machine.ends = [11, 0]
    assert machine.next_batch(stream, 10)[1] == [11, 0]
    assert machine.now < 15  # when it was found
    machine.ends = [4, 0]
    assert machine.next_batch(stream, 11, 0)[1] == [4, 0]
    assert machine.now < 30
