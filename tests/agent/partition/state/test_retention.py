"""Retention: what may go, as a pure question; and logs that lose their head while they are used."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from shoal.agent.fetch import FetchRequest
from shoal.agent.partition.state.log_time import SETTLE_MS, PeerTime, SteadyClock
from shoal.agent.partition.state.retention import (
    PeerDifferences,
    Retention,
    RetentionError,
    decode_trim,
    droppable,
    encode_trim,
)
from shoal.agent.partition.state.retention import Span as AnySpan
from shoal.agent.submission import Appended, Submission
from shoal.errors import ShoalError
from shoal.format.batch import LogIndex, Offset, ProducerStamp, producer_id_from_text
from shoal.segment_store.config import LogConfig
from tests.agent.harness import GROUP, Cluster, Node, message, read_values

TINY = LogConfig(segment_bytes=8192, first_allocation_bytes=4096, max_allocation_step_bytes=8192)
SECOND_US = 1_000_000


class Span(NamedTuple):
    """A segment of ten entries, as the pure part sees it."""

    first_index: LogIndex
    first_offset: int = 0
    end_offset: int = 10
    size_bytes: int = 100
    data_bytes: int = 90
    first_append_time_us: int = 1
    last_append_time_us: int = 1


def _spans(*ages_s: int, now_us: int = 1000 * SECOND_US) -> list[Span]:
    """Segments whose last entries are so old."""
    times_us = [now_us - age * SECOND_US for age in ages_s]
    return [
        Span(LogIndex(1 + 10 * place), 10 * place, 10 * place + 10, 100, 90, time_us, time_us)
        for place, time_us in enumerate(times_us)
    ]


NOW_US = 1000 * SECOND_US


def _age(span: AnySpan) -> int:
    return NOW_US - span.last_append_time_us


def _unknown(span: AnySpan) -> None:
    """What a clock that is not believed says."""


class TestPure:
    """The decision alone."""

    def test_age(self) -> None:
        """Segments whose newest entry is too old go, the newest segment never."""
        keep = Retention(age_ms=50_000)
        for ages, first in (((90, 60, 40), 21), ((40, 30), None), ((90, 80, 70), 21), ((90,), None)):
            assert keep.to_trim(_spans(*ages), commit_index=99, held_index=99, age_us=_age) == first

    def test_no_age_counts_while_the_clock_is_not_believed(self) -> None:
        """Nor for a new segment; sizes still do."""
        spans = _spans(90, 80, 70)
        assert Retention(50_000).to_trim(spans, commit_index=99, held_index=99, age_us=_unknown) is None
        assert not Retention(50_000).should_roll(spans[-1], _unknown)
        both = Retention(50_000, 100)
        assert both.to_trim(spans, commit_index=99, held_index=99, age_us=_unknown) == 21

    def test_bytes(self) -> None:
        """A segment goes when what is left is still as large as is to be kept."""
        for size, first in ((250, None), (200, 11), (150, 11), (100, 21), (1, 21)):
            keep = Retention(size_bytes=size)
            spans = _spans(3, 2, 1)
            assert keep.to_trim(spans, commit_index=99, held_index=99, age_us=_age) == first, size

    def test_what_agents_note_beside_the_records_takes_no_record_away(self) -> None:
        """However much it is, where there are consumer groups; else all bytes count."""
        spans = [span._replace(size_bytes=10_000, data_bytes=10) for span in _spans(3, 2, 1)]
        for size, of_groups, of_none in ((31, None, 21), (30, None, 21), (20, 11, 21), (1, 21, 21)):
            keep = Retention(size_bytes=size)
            for done, first in ((Offset(0), of_groups), (None, of_none)):
                found = keep.to_trim(spans, commit_index=99, held_index=99, age_us=_age, done_before=done)
                assert found == first, (size, done)

    def test_groups_hold_records_back_but_not_for_ever(self) -> None:
        """What some group is not done with stays up to twice as long; without groups nothing does."""
        keep = Retention(age_ms=50_000, hold_for_groups=True)
        for done, first in ((None, 21), (0, None), (9, None), (10, 11), (19, 11), (20, 21), (30, 21)):
            found = keep.to_trim(
                _spans(95, 85, 40),
                commit_index=99,
                held_index=99,
                age_us=_age,
                done_before=None if done is None else Offset(done),
            )
            assert found == first, done
        late = _spans(101, 85, 40)
        assert keep.to_trim(late, commit_index=99, held_index=99, age_us=_age, done_before=Offset(0)) == 11
        loose = Retention(age_ms=50_000)
        assert loose.to_trim(late, commit_index=99, held_index=99, age_us=_age, done_before=Offset(0)) == 21

    def test_what_all_groups_are_done_with_goes_at_once(self) -> None:
        """But not from a replica that lags, nor while there is no group."""
        keep = Retention(acknowledged=True)
        assert not keep.is_unlimited
        for done, held, first in (
            (None, 99, None), (0, 99, None), (10, 99, 11), (25, 99, 21), (30, 99, 21),
            (25, 15, 11), (25, 9, None),
        ):  # fmt: skip
            found = keep.to_trim(
                _spans(3, 2, 1),
                commit_index=99,
                held_index=held,
                age_us=_unknown,
                done_before=None if done is None else Offset(done),
            )
            assert found == first, (done, held)
        both = Retention(size_bytes=100, hold_for_groups=True, acknowledged=True)
        spans = _spans(3, 2, 1)
        assert both.to_trim(spans, commit_index=99, held_index=99, age_us=_age, done_before=Offset(15)) == 11

    def test_uncommitted_checkpoints_stop_it(self) -> None:
        """What is left begins with a committed entry."""
        keep = Retention(age_ms=1_000)
        for commit, first in ((20, 11), (21, 21), (10, None), (11, 11)):
            spans = _spans(90, 80, 70)
            assert keep.to_trim(spans, commit_index=commit, held_index=99, age_us=_age) == first

    def test_a_laggard_holds_the_head_back_but_not_for_ever(self) -> None:
        """Up to twice the age, or twice the bytes."""
        keep = Retention(age_ms=50_000)
        for held, first in ((0, None), (10, None), (11, 11), (21, 21)):
            spans = _spans(95, 85, 70)
            assert keep.to_trim(spans, commit_index=99, held_index=held, age_us=_age) == first
        assert keep.to_trim(_spans(101, 85, 70), commit_index=99, held_index=0, age_us=_age) == 11
        keep = Retention(size_bytes=150)
        assert keep.to_trim(_spans(3, 2, 1), commit_index=99, held_index=0, age_us=_age) is None
        assert keep.to_trim(_spans(4, 3, 2, 1), commit_index=99, held_index=0, age_us=_age) == 11

    def test_an_old_segment_with_records_gets_a_successor(self) -> None:
        """By the shorter of both ages; one without records is left alone, however old."""
        (span,) = _spans(60)
        assert Retention(segment_age_ms=50_000).should_roll(span, _age)
        assert Retention(age_ms=50_000, segment_age_ms=90_000).should_roll(span, _age)
        assert not Retention(segment_age_ms=70_000).should_roll(span, _age)
        assert not Retention().should_roll(span, _age)
        assert not Retention(age_ms=1_000).should_roll(span._replace(end_offset=0), _age)

    def test_who_was_not_heard_lately_agrees_with_nobody(self) -> None:
        """A majority of the voters, counting oneself: at most a minute off, heard within the minute."""
        clocks = PeerDifferences()
        assert clocks.majority_agrees("a", 0, ["a"], 0)
        assert not clocks.majority_agrees("a", 0, ["a", "b"], 0)
        assert not clocks.majority_agrees("a", 0, ["a", "b", "c"], 0)
        clocks.note("b", PeerTime(-60_000_000, 0), 1_000)
        clocks.note("c", PeerTime(60_000_001, 0), 1_000)
        assert clocks.majority_agrees("a", 0, ["a", "b", "c"], 61_000)
        assert not clocks.majority_agrees("a", 0, ["a", "b", "c"], 61_001)
        assert not clocks.majority_agrees("a", 0, ["a", "c"], 2_000)
        assert not clocks.majority_agrees("a", 0, ["a", "b", "c", "d"], 2_000)
        assert not clocks.majority_agrees("x", 0, ["a", "b", "c"], 2_000)
        clocks.keep_only({"c"})
        assert not clocks.is_fresh("b", 2_000)

    def test_trim_entries(self) -> None:
        """There and back; anything else is the one error."""
        assert decode_trim(encode_trim(LogIndex(7))) == 7
        for bad in (b"", encode_trim(LogIndex(7))[:-1], bytes(16), encode_trim(LogIndex(0))):
            with pytest.raises(RetentionError):
                decode_trim(bad)

    @given(st.binary(max_size=40))
    def test_any_bytes(self, data: bytes) -> None:
        """Nothing but RetentionError."""
        with pytest.raises(RetentionError):
            decode_trim(data)

    @given(st.lists(st.integers(0, 200), max_size=8), st.integers(0, 99), st.integers(0, 99))
    def test_the_end_always_stays(self, ages: list[int], commit: int, held: int) -> None:
        """Whatever the ages: what is left begins at a segment whose head is committed."""
        spans = _spans(*sorted(ages, reverse=True))
        first = Retention(50_000, 200).to_trim(spans, commit_index=commit, held_index=held, age_us=_age)
        assert first is None or (first <= commit and first in [span.first_index for span in spans[1:]])
        assert 0 <= droppable(spans, commit) <= max(0, len(spans) - 1)


async def _fill(cluster: Cluster, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        await cluster.append(f"{number:04d}" * 200)


def _start(node: Node) -> int:
    return node.host.replica(GROUP).log.start_offset


def _disk_bytes(node: Node) -> int:
    """Of segments; those that go meanwhile are none any more."""
    size_bytes = 0
    for path in Path(node.directory).rglob("*.arrows"):
        with suppress(FileNotFoundError):
            size_bytes += path.stat().st_size
    return size_bytes


async def _open(cluster: Cluster, retention: Retention) -> None:
    """All nodes anew, with this retention."""
    for node in list(cluster.alive):
        await cluster.stop(node)
    for node in cluster.nodes:
        await cluster.start(node, retention=retention)


async def _read_from_the_start(cluster: Cluster, everything: list[str]) -> None:
    """What is read is the end of it all, behind the one that came first, from where a log begins: meanwhile
    more may be trimmed, or another one lead."""
    first = min(map(_start, cluster.nodes))
    values = await read_values(await cluster.leader())
    assert 40 < first <= len(everything) + 1 - len(values) <= max(map(_start, cluster.nodes))
    assert values == everything[-len(values) :]


async def test_bytes_are_kept_in_bounds_on_every_replica(tmp_path: Path) -> None:
    """The head goes everywhere, in the same place; reads below say where the log begins; a restart agrees,
    and producers are still remembered."""
    async with Cluster(str(tmp_path), 3, log_config=TINY) as cluster:
        await _open(cluster, Retention(size_bytes=20_000))
        stamp = ProducerStamp(producer_id_from_text("alice"), 0, 0)
        first = await cluster.append("once", producer=stamp)
        await _fill(cluster, 80)
        for node in cluster.nodes:
            await until(lambda node=node: _start(node) > 40)
        leader = await cluster.leader()
        await until(lambda: len({_start(node) for node in cluster.nodes}) == 1)
        for node in cluster.nodes:
            await until(lambda node=node: _disk_bytes(node) < 45_000)
            node.host.replica(GROUP).core.check_invariants()
        with pytest.raises(ShoalError) as refused:
            await leader.host.reader(GROUP).read(FetchRequest(Offset(3), max_bytes=1000))
        assert refused.value.code == "trimmed"
        assert refused.value.extra["log_start_offset"] == _start(leader)
        everything = [f"{number:04d}" * 200 for number in range(80)]
        await _read_from_the_start(cluster, everything)
        await _open(cluster, Retention(size_bytes=20_000))
        assert (await cluster.append("once", producer=stamp)) == Appended(
            first.base_offset, first.count, duplicate=True
        )
        await _read_from_the_start(cluster, everything)


async def test_ages_count_from_append_times_and_idle_logs_empty(tmp_path: Path) -> None:
    """One second of age: an active segment rolls and goes; the offsets go on."""
    async with Cluster(str(tmp_path), 1, log_config=TINY) as cluster:
        await _open(cluster, Retention(age_ms=1_000))
        await _fill(cluster, 5)
        node = cluster.nodes[0]
        await until(lambda: _start(node) == 5)
        assert (await cluster.append("x")).base_offset == 5
        assert await read_values(node) == ["x"]


def _shift(node: Node, seconds: int, *, jumps: bool = False) -> None:
    """The node's wall clock is off by so much, and has been since long before it started; or jumps now."""
    clock = node.host.clock
    clock.now_us = lambda: time.time_ns() // 1_000 + seconds * 1_000_000  # type: ignore[method-assign]
    if not jumps:
        node.host.clocks.steady = SteadyClock(clock.now_us() - 1000 * SETTLE_MS, clock.now_ms() - SETTLE_MS)


async def test_ages_count_across_restarts(tmp_path: Path) -> None:
    """Batches appended two hours ago by the log's own account are too old for one hour in a process whose
    clock has settled, whatever the files' times say; younger ones stay."""
    async with Cluster(str(tmp_path), 1, log_config=TINY) as cluster:
        node = cluster.nodes[0]
        _shift(node, -7200)
        await _fill(cluster, 5)
        _shift(node, -60)
        node.host.replica(GROUP).roll()
        await _fill(cluster, 2, 5)
        await _open(cluster, Retention(age_ms=3_600_000))
        await asyncio.sleep(0.2)
        assert _start(node) == 0  # the clock alone says so, and has only just begun to
        _shift(node, 0)
        await until(lambda: _start(node) == 5)
        assert len(await read_values(node)) == 2
        assert (
            node.host.replica(GROUP).log.spans()[0].first_append_time_us
            < time.time_ns() // 1_000 - 59_000_000
        )


async def test_a_leader_whose_clock_a_majority_does_not_share_trims_nothing_by_age(tmp_path: Path) -> None:
    """Two days ahead, nothing goes that is an hour young; once a majority says that it is so late, it does.
    What is stamped meanwhile has the majority's time."""
    async with Cluster(str(tmp_path), 3, log_config=TINY) as cluster:
        await _fill(cluster, 3)
        (await cluster.leader()).host.replica(GROUP).roll()
        await _fill(cluster, 1, 3)
        await _open(cluster, Retention(age_ms=3_600_000))
        leader = await cluster.leader()
        others = [node for node in cluster.nodes if node is not leader]
        replica = leader.host.replica(GROUP)
        await until(lambda: leader.host.clocks.believed_now_us(replica) is not None)
        _shift(leader, 2 * 86_400, jumps=True)
        await until(lambda: leader.host.clocks.believed_now_us(replica) is None)
        await asyncio.sleep(0.3)
        assert leader.leads
        assert [_start(node) for node in cluster.nodes] == [0, 0, 0]
        await leader.host.append(GROUP, Submission.of([message("x")], producer=None, timeout_ms=10_000))
        assert abs(replica.state.tail.append_time_us - time.time_ns() // 1_000) < 60_000_000
        for node in others:
            _shift(node, 2 * 86_400)
        for node in cluster.nodes:
            node.host.clocks._asked.clear()
        for node in cluster.nodes:
            await until(lambda node=node: _start(node) == 3)


async def test_a_follower_that_lags_still_gets_what_it_lacks(tmp_path: Path) -> None:
    """While it is away the head is held back within its bound, and goes once it has caught up."""
    async with Cluster(str(tmp_path), 3, log_config=TINY) as cluster:
        await _open(cluster, Retention(size_bytes=40_000))
        await _fill(cluster, 5)
        leader = await cluster.leader()
        away = next(node for node in cluster.nodes if node is not leader)
        await until(lambda: away.host.status(GROUP).high_watermark == 5)
        await cluster.stop(away)
        await _fill(cluster, 31, 5)
        await asyncio.sleep(0.1)
        assert _start(await cluster.leader()) <= 5  # what it has may go
        await cluster.start(away, retention=Retention(size_bytes=40_000))
        await until(lambda: away.host.status(GROUP).high_watermark == 36)
        for node in cluster.nodes:
            await until(lambda node=node: _start(node) > 5)


async def test_trim_by_hand(tmp_path: Path) -> None:
    """Whole segments before an offset; beyond the end is refused, a second time changes nothing."""
    async with Cluster(str(tmp_path), 1, log_config=TINY) as cluster:
        node = await cluster.leader()
        await _fill(cluster, 30)
        start = await node.host.trim(GROUP, Offset(20), 1_000)
        assert 10 < start <= 20
        assert await node.host.trim(GROUP, Offset(20), 1_000) == start == _start(node)
        with pytest.raises(ShoalError, match="beyond the end"):
            await node.host.trim(GROUP, Offset(31), 1_000)
        assert len(await read_values(node)) == 30 - start
        await until(lambda: _disk_bytes(node) < 30_000)


async def test_a_trim_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    """Committed and not carried out: the next life does it, without a leader asking again."""
    async with Cluster(str(tmp_path), 1, log_config=TINY) as cluster:
        node = await cluster.leader()
        await _fill(cluster, 30)
        entry_log = node.host.replica(GROUP).log
        entry_log.trim = _nothing  # type: ignore[method-assign]
        await node.host.trim(GROUP, Offset(20), 1_000)
        assert _start(node) == 0
        await cluster.stop(node)
        await cluster.start(node)
        await until(lambda: node.host.has(GROUP) and _start(node) > 10)


def _nothing(before_index: LogIndex) -> asyncio.Future[None]:
    """A trim that never comes."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


@pytest.mark.parametrize("error_s", [86_400 * 3650, -86_400 * 3650, 25 * 3600, 70])
async def test_a_clock_that_is_wrong_for_one_append_costs_nothing(tmp_path: Path, error_s: int) -> None:
    """The retry is told as what it is, and the log empties as if nothing had been: without a restart, and
    with one."""
    async with Cluster(str(tmp_path), 1, log_config=TINY) as cluster:
        await _open(cluster, Retention(age_ms=1_000))
        node = cluster.nodes[0]
        stamp = ProducerStamp(producer_id_from_text("victim"), 0, 0)
        first = await cluster.append("pay", producer=stamp)
        _shift(node, error_s, jumps=True)
        await cluster.append("another's")
        _shift(node, 0, jumps=True)
        again = await cluster.append("pay", producer=stamp)
        assert again == Appended(first.base_offset, first.count, duplicate=True)
        assert abs(node.host.replica(GROUP).state.tail.append_time_us - time.time_ns() // 1_000) < 60_000_000
        await until(lambda: _start(node) == 2)
        await _open(cluster, Retention(age_ms=1_000))
        await _fill(cluster, 2)
        await until(lambda: _start(node) == 4)


async def test_a_log_that_is_years_ahead_of_every_clock_is_emptied_too(tmp_path: Path) -> None:
    """An agent alone started with a wrong clock, and its log says so for ever: its own time counts."""
    async with Cluster(str(tmp_path), 1, log_config=TINY) as cluster:
        node = cluster.nodes[0]
        _shift(node, 86_400 * 3650)
        await _fill(cluster, 3)
        await _open(cluster, Retention(age_ms=1_000))
        assert (
            node.host.replica(GROUP).state.tail.append_time_us > time.time_ns() // 1_000 + 86_400 * SECOND_US
        )
        _shift(node, 0)
        await until(lambda: _start(node) == 3)
        await _fill(cluster, 2)
        await until(lambda: _start(node) == 5)
