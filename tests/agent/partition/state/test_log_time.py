"""Clocks that are wrong: what is stamped, and how old segments are, beside a twin whose clock is right."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.partition.state.log_time import (
    MAX_CLOCK_JUMP_US,
    SETTLE_MS,
    LogTime,
    PeerTime,
    SegmentAges,
    SteadyClock,
)
from shoal.agent.partition.state.retention import Retention
from shoal.format.batch import LogIndex

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
YEAR_US = 365 * DAY_US
NOW_US = 1_780_000_000 * SECOND_US
CHECK_MS = 15_000
ERRORS_US = [
    1,
    59 * SECOND_US,
    61 * SECOND_US,
    3600 * SECOND_US,
    25 * 3600 * SECOND_US,
    YEAR_US,
    10 * YEAR_US,
]


def told(*offsets_us: int) -> list[PeerTime]:
    """Peers that believe their own clocks."""
    return [PeerTime(offset_us, offset_us) for offset_us in offsets_us]


@pytest.mark.parametrize("error_us", [sign * error for error in ERRORS_US for sign in (1, -1)])
def test_a_clock_that_is_wrong_for_a_moment_is_not_followed(error_us: int) -> None:
    """By more than a minute; by less it is as wrong as that, and may be."""
    clock = SteadyClock(NOW_US, 0)
    assert abs(clock.now_us(NOW_US + SECOND_US + error_us, 1_000) - NOW_US - SECOND_US) <= MAX_CLOCK_JUMP_US
    assert clock.agrees(NOW_US + SECOND_US + error_us, 1_000) == (abs(error_us) <= MAX_CLOCK_JUMP_US)
    assert clock.now_us(NOW_US + 2 * SECOND_US, 2_000) == NOW_US + 2 * SECOND_US


def test_a_clock_that_stays_where_it_jumped_to_is_followed() -> None:
    """After ten minutes, in which it may not jump again."""
    clock = SteadyClock(NOW_US, 0)
    far_us = NOW_US + DAY_US
    assert clock.now_us(far_us, 0) == NOW_US
    assert clock.now_us(far_us + (SETTLE_MS - 1) * 1000, SETTLE_MS - 1) == NOW_US + (SETTLE_MS - 1) * 1000
    assert clock.now_us(far_us + 2 * DAY_US, SETTLE_MS) == NOW_US + SETTLE_MS * 1000  # elsewhere once more
    for at_ms in range(SETTLE_MS, 2 * SETTLE_MS, 60_000):
        assert clock.now_us(far_us + at_ms * 1000, at_ms) == NOW_US + at_ms * 1000
    assert clock.now_us(far_us + 2 * SETTLE_MS * 1000, 2 * SETTLE_MS) == far_us + 2 * SETTLE_MS * 1000
    assert clock.is_settled(2 * SETTLE_MS)


def test_peers_settle_a_clock_at_once_or_correct_it() -> None:
    """A majority with this agent's time vouches for it; one with another time is believed instead."""
    right_us = NOW_US
    clock = SteadyClock(NOW_US + YEAR_US, 0)
    assert not clock.is_settled(0)
    clock.heard(told(right_us), NOW_US + YEAR_US, 0)  # one against one
    assert clock.now_us(NOW_US + YEAR_US, 0) == NOW_US + YEAR_US
    clock.heard(told(right_us, right_us + SECOND_US), NOW_US + YEAR_US, 0)
    assert clock.now_us(NOW_US + YEAR_US, 0) == NOW_US
    assert clock.is_settled(0)
    assert not clock.agrees(NOW_US + YEAR_US, 0)
    for at_ms in range(0, 3 * SETTLE_MS, 60_000):  # however long it stays there
        clock.heard(told(right_us, right_us), NOW_US + YEAR_US + at_ms * 1000, at_ms)
        assert clock.now_us(NOW_US + YEAR_US + at_ms * 1000, at_ms) == NOW_US + at_ms * 1000
    clock = SteadyClock(NOW_US, 0)
    clock.heard(told(right_us), NOW_US, 0)
    assert clock.is_settled(0)


def test_a_clock_put_right_is_followed_when_peers_have_the_same() -> None:
    """It started a year behind and stood alone; its peers come, and a time server."""
    clock = SteadyClock(NOW_US - YEAR_US, 0)
    clock.heard(told(NOW_US), NOW_US + SECOND_US, 1_000)
    assert clock.now_us(NOW_US + 2 * SECOND_US, 2_000) == NOW_US + 2 * SECOND_US


def test_clocks_that_all_jump_are_followed_when_they_have_stayed() -> None:
    """For a moment none is; and none waits for the others for ever."""
    clocks = [SteadyClock(NOW_US, 0) for _ in range(3)]
    for second in range(0, 2 * SETTLE_MS // 1000, 5):
        now_ms = second * 1000
        wall_us = NOW_US + YEAR_US + second * SECOND_US
        for number, clock in enumerate(clocks):  # one after the other, as agents do
            others = [PeerTime(other.offset_us, NOW_US + YEAR_US) for other in clocks if other is not clock]
            believed_us = clock.now_us(wall_us, now_ms + number)
            assert second >= SETTLE_MS // 1000 or believed_us < NOW_US + YEAR_US
            clock.heard(others, wall_us, now_ms + number)
    assert all(clock.agrees(wall_us, now_ms) and clock.is_settled(now_ms) for clock in clocks)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(-11 * YEAR_US, 11 * YEAR_US)), max_size=20))
def test_append_times_never_fall(steps: list[tuple[int, int]]) -> None:
    """Whatever clocks say; and a log that is ahead goes on with the time that passes."""
    log, now_ms, previous_us = LogTime(0, 0), 0, 0
    for passed_ms, error_us in steps:
        now_ms += passed_ms
        now_us = NOW_US + now_ms * 1000 + error_us
        after_us = log.stamp(previous_us, now_us, now_ms)
        assert after_us >= previous_us
        assert after_us >= now_us
        previous_us = after_us


def test_a_log_that_is_ahead_keeps_its_differences() -> None:
    """And one whose head was cut off takes the time of what is left."""
    log = LogTime(NOW_US + YEAR_US, 0)
    assert log.stamp(NOW_US + YEAR_US, NOW_US, 7_000) == NOW_US + YEAR_US + 7 * SECOND_US
    later_us = NOW_US + 3 * YEAR_US  # another leader's
    assert log.stamp(later_us, NOW_US, 9_000) == later_us
    assert log.stamp(later_us, NOW_US, 10_000) == later_us + SECOND_US
    log.cut(NOW_US + YEAR_US, 11_000)
    assert log.stamp(NOW_US + YEAR_US, NOW_US, 12_000) == NOW_US + YEAR_US + SECOND_US
    log.cut(NOW_US - 5, 13_000)
    assert log.stamp(NOW_US - 5, NOW_US, 14_000) == NOW_US


@dataclass
class _Segment:
    """Of a model log; `born_ms`: when its newest record was really appended."""

    first_index: LogIndex
    first_offset: int
    end_offset: int
    size_bytes: int = 0
    first_append_time_us: int = 0
    last_append_time_us: int = 0
    born_ms: int = 0


@dataclass
class Twin:
    """A log of one agent in virtual time, rolled and trimmed as the agent does, without files."""

    retention: Retention
    now_ms: int = 0
    error_us: int = 0
    segments: list[_Segment] = field(default_factory=list)
    events: list[tuple[str, int, int]] = field(default_factory=list)
    """What happened to which segment, and when: rolled or gone."""
    early: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._next = 1
        self._roll()
        self.restart()

    def _wall_us(self) -> int:
        return NOW_US + self.now_ms * 1000 + self.error_us

    def _tail_us(self) -> int:
        return max((segment.last_append_time_us for segment in self.segments), default=0)

    def restart(self) -> None:
        """A new process, with the clock as it is now; its leader's first entry has no records."""
        self.clock = SteadyClock(self._wall_us(), self.now_ms)
        self.log, self.ages = LogTime(self._tail_us(), self.now_ms), SegmentAges()
        self.ages.note(self.segments, self.now_ms, by_this_leader=False)
        self._entry(0)

    def _roll(self) -> None:
        end = self.segments[-1].end_offset if self.segments else 0
        self.segments.append(_Segment(LogIndex(self._next), end, end))

    def _entry(self, records: int) -> None:
        believed_us = self.clock.now_us(self._wall_us(), self.now_ms)
        time_us = self.log.stamp(self._tail_us(), believed_us, self.now_ms)
        segment = self.segments[-1]
        segment.first_append_time_us = segment.first_append_time_us or time_us
        segment.last_append_time_us = time_us
        segment.end_offset += records
        segment.size_bytes += 100
        self._next += 1
        if records:
            segment.born_ms = self.now_ms

    def append(self) -> None:
        self._entry(1)

    def check(self) -> None:
        """As agent/partition/trimmer.py does it."""
        now_ms, ages = self.now_ms, self.ages
        log_us = self.log.passed(self._tail_us(), now_ms)
        ages.note(self.segments, now_ms, by_this_leader=True)
        wall_us = self._wall_us()
        self.clock.now_us(wall_us, now_ms)
        believed = self.clock.agrees(wall_us, now_ms) and self.clock.is_settled(now_ms)
        believed_us = wall_us if believed else None
        active = self.segments[-1]
        stamped_us = self.clock.now_us(wall_us, now_ms)
        if self.retention.should_roll(active, lambda span: ages.of_first(span, log_us, stamped_us, now_ms)):
            self.events.append(("rolled", active.first_offset, now_ms))
            self._roll()
            self._entry(0)
        before = self.retention.to_trim(
            self.segments,
            commit_index=self._next - 1,
            held_index=self._next - 1,
            age_us=lambda span: ages.of_last(span, log_us, believed_us, now_ms),
        )
        while before is not None and self.segments[0].first_index < before:
            gone = self.segments.pop(0)
            assert self.retention.age_ms is not None
            kept_ms = self.retention.age_ms - MAX_CLOCK_JUMP_US // 1000  # so far any clock may be off
            if gone.end_offset > gone.first_offset and now_ms - gone.born_ms < kept_ms:
                self.early.append(now_ms)
            self.events.append(("gone", gone.first_offset, now_ms))

    def live(self, appends: set[int], wrong: dict[int, int], restarts: set[int], until_s: int) -> None:
        """Second after second. `wrong`: the clock's error from that second on."""
        every = CHECK_MS // 1000
        for second in sorted({*range(0, until_s, every), *appends, *wrong, *restarts}):
            self.now_ms = second * 1000
            self.error_us = wrong.get(second, self.error_us)
            if second in restarts:
                self.restart()
            if second in appends:
                self.append()
            if second % every == 0:
                self.check()


HOUR = Retention(age_ms=3_600_000, segment_age_ms=600_000)
ALL_DAY = set(range(0, 4 * 3600, 97))


@pytest.mark.parametrize("error_us", [sign * error for error in ERRORS_US for sign in (1, -1)])
@pytest.mark.parametrize("at_s", [97, 970, 5335])
def test_one_wrong_append_costs_nothing(error_us: int, at_s: int) -> None:
    """Segments begin and go in the very second in which they do where the clock is right."""
    right, wrong = Twin(HOUR), Twin(HOUR)
    right.live(ALL_DAY, {}, set(), 4 * 3600)
    wrong.live(ALL_DAY, {at_s: error_us, at_s + 1: 0}, set(), 4 * 3600)
    assert right.events == wrong.events
    assert sum(what == "gone" for what, *_ in right.events) > 10
    assert not wrong.early


@pytest.mark.parametrize("error_us", [sign * error for error in ERRORS_US for sign in (1, -1)])
@pytest.mark.parametrize("put_right", ["running", "restart"])
def test_a_start_with_a_wrong_clock_costs_no_record_and_at_most_the_settling(
    error_us: int, put_right: str
) -> None:
    """A machine boots with a wrong clock, which is set a minute later, or only before the next start: nothing
    goes too early, and everything goes, whatever the log says of years to come."""
    restarts = {1800} | ({1860} if put_right == "restart" else set())
    right, wrong = Twin(HOUR), Twin(HOUR)
    right.live(ALL_DAY, {}, restarts, 4 * 3600)
    wrong.live(ALL_DAY, {1800: error_us, 1860: 0}, restarts, 4 * 3600)
    assert not wrong.early
    gone = {offset: at_ms for what, offset, at_ms in right.events if what == "gone"}
    late = {offset: at_ms for what, offset, at_ms in wrong.events if what == "gone"}
    assert len(late) > 8
    slack_ms = SETTLE_MS + 3_600_000 + 600_000 + 2 * CHECK_MS  # what it had watched, and one segment
    assert wrong.segments[0].first_offset >= max(
        offset for offset, at_ms in gone.items() if at_ms + slack_ms < 4 * 3_600_000
    )


@given(
    st.lists(
        st.tuples(
            st.integers(1, 10_000), st.sampled_from(ERRORS_US), st.sampled_from([1, -1]), st.integers(1, 300)
        ),
        max_size=3,
    ),
    st.sets(st.integers(1, 10_000), max_size=3),
)
def test_nothing_goes_early_while_clocks_are_wrong_for_minutes(
    times: list[tuple[int, int, int, int]], restarts: set[int]
) -> None:
    """Wrong for less than it takes to settle, with restarts of agents whose clock is right."""
    wrong: dict[int, int] = {}
    for at_s, error_us, sign, duration_s in sorted(times):
        wrong[at_s] = sign * error_us
        wrong[at_s + duration_s] = 0
    spoiled = {second for at_s, _, _, duration_s in times for second in range(at_s, at_s + duration_s)}
    twin = Twin(HOUR)
    twin.live(set(range(0, 12_000, 211)), wrong, restarts - spoiled, 12_000)
    assert not twin.early


def test_after_a_wrong_append_and_a_restart_a_log_empties_as_its_twin() -> None:
    """Its records are of an earlier life and of a wrong clock; the clock has not settled, and need not."""
    keep = Retention(age_ms=60_000, segment_age_ms=30_000)
    right, wrong = Twin(keep), Twin(keep)
    appends = {1, 2, *range(20, 40)}
    right.live(appends, {}, {10}, 400)
    wrong.live(appends, {2: YEAR_US, 3: 0}, {10}, 400)
    assert right.events == wrong.events
    assert ("gone", 0, 120_000) in wrong.events


def test_a_clock_that_was_behind_from_the_start_costs_no_record() -> None:
    """A new log of an agent whose clock is ten years behind until a time server is asked."""
    twin = Twin(HOUR, error_us=-10 * YEAR_US)
    twin.live(ALL_DAY, {1_500: 0}, set(), 4 * 3600)
    assert not twin.early
    assert sum(what == "gone" for what, *_ in twin.events) > 10
