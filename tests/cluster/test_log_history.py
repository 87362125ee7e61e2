"""The checker of histories, on histories that were made up: each anomaly is named, and a good one is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from log_history import EARLIEST, Append, Checker, Ends, FinalLog, History, Poll

P = ("t", 0)
VALUES = ("a-0", "a-1", "b-0", "a-2", "a-3")


def good() -> History:
    """Two producers, a reader, and the log at two agents."""
    records = tuple(enumerate(VALUES))
    return History(
        appends=[
            Append("a", 0, P, ("a-0", "a-1"), 1.0, 1.1, "ok", 0),
            Append("b", 0, P, ("b-0",), 1.1, 1.2, "ok", 2),
            Append("a", 1, P, ("a-2", "a-3"), 1.2, 1.4, "ok", 3),
            Append("b", 1, P, ("b-1",), 2.0, 2.1, "fail"),
            Append("b", 2, P, ("b-2",), 2.0, 2.1, "info"),
        ],
        polls=[
            Poll("r", P, 0, records[:3], 3, 1.25),
            Poll("r", P, 3, (), 3, 1.3),
            Poll("r", P, 3, records[3:], 5, 1.5),
            Poll("r", P, -1, records[4:], 5, 1.6),
            Poll("local", P, 0, (), 0, 1.5, linearizable=False, seen=0, end=0),
        ],
        finals=[FinalLog(P, "x", 0, records), FinalLog(P, "y", 0, records)],
    )


def names(history: History) -> set[str]:
    return {anomaly.name for anomaly in Checker(history).anomalies()}


def test_a_good_history_has_no_anomaly() -> None:
    """What was acknowledged is there once, in order, and reads agree; what nobody knows may be missing."""
    assert Checker(good()).anomalies() == []
    assert good().acknowledged_records == 5


def finals(*values: str, start: int = 0) -> list[FinalLog]:
    return [FinalLog(P, "x", start, tuple(enumerate(values, start)))]


def lose(history: History) -> None:
    history.finals = finals(*VALUES[:4])


def duplicate(history: History) -> None:
    history.finals = finals(*VALUES, "a-0")


def reorder(history: History) -> None:
    history.finals = finals("a-2", "a-3", "b-0", "a-0", "a-1")


def move(history: History) -> None:
    history.finals = finals("b-2", *VALUES)


def differ(history: History) -> None:
    history.finals[1] = replace(history.finals[1], records=((0, "a-0"), (1, "b-0")))


def keep_a_failed_one(history: History) -> None:
    history.finals = finals(*VALUES, "b-1")


def invent(history: History) -> None:
    history.finals = finals(*VALUES, "c-0")


def leave_a_gap(history: History) -> None:
    history.finals = [FinalLog(P, "x", 0, ((0, "a-0"), (2, "b-0"), (3, "a-2"), (4, "a-3")))]


def skip_in_a_read(history: History) -> None:
    history.polls[0] = replace(history.polls[0], records=((0, "a-0"), (2, "b-0")))


def skip_between_reads(history: History) -> None:
    history.polls[1] = replace(history.polls[1], offset=4, next_offset=4)


def step_back(history: History) -> None:
    history.polls[2] = replace(history.polls[2], offset=1, records=((1, "a-1"),), next_offset=2)


def read_before_the_offset(history: History) -> None:
    history.polls[2] = replace(history.polls[2], records=((2, "b-0"), (3, "a-2")), next_offset=4)


def read_uncommitted(history: History) -> None:
    history.polls[3] = replace(history.polls[3], records=((5, "b-2"),), next_offset=6)


def read_another_value(history: History) -> None:
    history.polls[0] = replace(history.polls[0], records=((0, "a-0"), (1, "b-2"), (2, "b-0")))


def see_an_old_end(history: History) -> None:
    history.polls[2] = replace(history.polls[2], records=(), next_offset=3)


def see_an_old_last_record(history: History) -> None:
    history.polls[3] = replace(history.polls[3], records=((2, "b-0"),), next_offset=3)


def forget_what_a_local_reader_has_seen(history: History) -> None:
    history.polls[4] = replace(history.polls[4], seen=3, end=2)


def overtake(history: History) -> None:
    """b-0 was sent when a-1 was answered, and stands before it: no single producer's order is broken."""
    history.appends[1] = replace(history.appends[1], invoked_at=1.15, base_offset=0)
    history.appends[0] = replace(history.appends[0], base_offset=1)
    history.polls = []
    history.finals = finals("b-0", "a-0", "a-1", "a-2", "a-3")


def overtake_what_was_read(history: History) -> None:
    """a-2 was sent when b-2, which nobody had acknowledged, had been read at 3."""
    history.polls = [Poll("r", P, 3, ((3, "b-2"),), 4, 1.25, completed_at=1.3)]
    history.appends[2] = replace(history.appends[2], invoked_at=1.35, base_offset=2)
    history.appends[1] = replace(history.appends[1], base_offset=4)
    history.finals = finals("a-0", "a-1", "a-2", "b-2", "b-0")


def lose_and_overtake_at_the_leader(history: History) -> None:
    """Answered by the leader alone, it may go; where it stands, it stands in its place."""
    overtake(history)
    history.appends[0] = replace(history.appends[0], at_leader_only=True)


def tell_an_old_end(history: History) -> None:
    history.ends.append(Ends("o", P, 0, 4, 1.45, 1.5))


def tell_less_than_was_told(history: History) -> None:
    """Nobody was answered yet for what the first one saw."""
    history.ends.append(Ends("o", P, 0, 5, 1.25, 1.3))
    history.ends.append(Ends("p", P, 0, 3, 1.35, 1.38))


def tell_of_what_never_is(history: History) -> None:
    history.ends.append(Ends("o", P, 0, 6, 1.45, 1.5))


def take_the_start_back(history: History) -> None:
    history.finals = finals(*VALUES[2:], start=2)
    history.ends.append(Ends("o", P, 2, None, 1.45, 1.5))
    history.polls.append(Poll("s", P, EARLIEST, ((0, "a-0"),), 1, 1.6, log_start_offset=0, completed_at=1.7))


def tell_of_a_start_that_never_is(history: History) -> None:
    history.ends.append(Ends("o", P, 2, None, 1.45, 1.5))


def skip_the_first_record(history: History) -> None:
    history.polls.append(Poll("s", P, EARLIEST, ((1, "a-1"),), 2, 1.6))


BAD: list[tuple[Callable[[History], None], str]] = [
    (lose, "lost-write"),
    (duplicate, "duplicate"),
    (reorder, "reordered"),
    (move, "inconsistent-offsets"),
    (differ, "inconsistent-offsets"),
    (keep_a_failed_one, "aborted-read"),
    (invent, "phantom"),
    (leave_a_gap, "gap"),
    (skip_in_a_read, "poll-skip"),
    (skip_between_reads, "poll-skip"),
    (step_back, "nonmonotonic-poll"),
    (read_before_the_offset, "nonmonotonic-poll"),
    (read_uncommitted, "aborted-read"),
    (read_another_value, "inconsistent-offsets"),
    (see_an_old_end, "stale"),
    (see_an_old_last_record, "stale"),
    (forget_what_a_local_reader_has_seen, "nonmonotonic-poll"),
    (overtake, "overtaken"),
    (overtake_what_was_read, "overtaken"),
    (lose_and_overtake_at_the_leader, "overtaken"),
    (tell_an_old_end, "stale"),
    (tell_less_than_was_told, "stale"),
    (tell_of_what_never_is, "phantom"),
    (take_the_start_back, "stale-start"),
    (tell_of_a_start_that_never_is, "stale-start"),
    (skip_the_first_record, "poll-skip"),
]


@pytest.mark.parametrize(("spoil", "name"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_an_anomaly_is_named(spoil: Callable[[History], None], name: str) -> None:
    """One thing wrong in a good history, and the checker says what."""
    history = good()
    spoil(history)
    assert name in names(history)


def test_what_retention_removed_is_not_lost() -> None:
    """Records before the log's start were there; the rest is looked at as ever."""
    history = good()
    history.finals = finals(*VALUES[2:], start=2)
    assert names(history) == set()
    history.finals = finals(*VALUES[2:4], start=2)
    assert names(history) == {"lost-write"} | {"aborted-read"}


def test_a_replica_may_say_that_a_log_begins_later_than_the_next_one_says() -> None:
    """Who was refused an offset that retention has taken there goes on where that log begins, though another
    replica has more. Nobody goes on any further."""
    history = good()
    skip_between_reads(history)
    assert "poll-skip" in names(history)
    history.polls[1] = replace(history.polls[1], told_start=4)
    assert "poll-skip" not in names(history)
    history.polls[1] = replace(history.polls[1], told_start=3)
    assert "poll-skip" in names(history)


def test_a_local_read_may_be_behind_but_never_wrong() -> None:
    """An old end is no anomaly there; a value that is not in the log is."""
    history = good()
    history.polls[4] = replace(history.polls[4], records=((0, "a-0"),), next_offset=1)
    assert names(history) == set()
    history.polls[4] = replace(history.polls[4], records=((0, "b-0"),), next_offset=1)
    assert names(history) == {"inconsistent-offsets"}


def test_a_late_answerless_append_may_stand_anywhere() -> None:
    """A producer without sequences that gave a request up does not know where it lands."""
    history = good()
    history.finals = finals(*VALUES, "b-2")
    history.appends.append(Append("b", 3, P, ("b-3",), 3.0, 3.1, "ok", 5))
    history.finals = finals(*VALUES, "b-3", "b-2")
    assert names(history) == set()


def test_appends_under_way_at_the_same_time_stand_in_either_order() -> None:
    """Neither was answered when the other was sent, though one was answered first."""
    history = good()
    history.polls = []
    history.appends[1] = replace(history.appends[1], invoked_at=1.05, base_offset=0)
    history.appends[0] = replace(history.appends[0], base_offset=1)
    history.finals = finals("b-0", "a-0", "a-1", "a-2", "a-3")
    assert names(history) == set()


def test_what_only_a_leader_had_may_be_lost_but_never_invented() -> None:
    """acks=leader: its records may go, and none of them stands where it was not told."""
    history = good()
    history.appends.append(Append("c", 0, P, ("c-0",), 2.0, 2.1, "ok", 5, at_leader_only=True))
    assert names(history) == set()
    history.ends.append(Ends("o", P, 0, 5, 2.2, 2.3))
    assert names(history) == set()
    history.finals = finals(*VALUES, "c-0")
    assert names(history) == set()
    history.finals = finals(*VALUES, "b-2", "c-0")
    assert names(history) == {"inconsistent-offsets"}


def test_the_checks_by_time_take_little_more_for_more_appends() -> None:
    """Each of 50,000 appends looks its predecessors up, and goes not through them all."""
    appends = [Append("a", n, P, (f"{n}",), n, n + 0.5, "ok", n) for n in range(50_000)]
    history = History(appends=appends, finals=finals_of_numbers(50_000))
    assert names(history) == set()
    history.appends[100] = replace(appends[100], invoked_at=20_000.0, completed_at=20_000.5)
    assert names(history) == {"overtaken"}


def finals_of_numbers(count: int) -> list[FinalLog]:
    return finals(*(str(number) for number in range(count)))
