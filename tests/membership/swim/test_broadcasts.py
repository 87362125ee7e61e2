"""The piggyback queue: order, budget, limits, replacement."""

from shoal.membership.swim.broadcasts import MAX_QUEUED, BroadcastQueue


def test_least_told_first_then_longest_then_newest() -> None:
    """The order that spreads news fastest and fills packets best."""
    queue = BroadcastQueue(1398, 2)
    queue.queue(b"old")
    queue.queue(b"new")
    queue.queue(b"long message")
    assert queue.take(1000, 4, 255) == ([b"long message", b"new", b"old"], 24)
    queue.queue(b"x")
    assert queue.take(4, 4, 255)[0] == [b"x"]


def test_budget_counts_overhead_and_smaller_ones_fill_gaps() -> None:
    """A message that does not fit is passed over, not waited for."""
    queue = BroadcastQueue(1398, 2)
    queue.queue(b"12345678")
    queue.queue(b"123")
    assert queue.take(9, 4, 255) == ([b"123"], 5)
    assert queue.take(10, 4, 255) == ([b"12345678"], 10)


def test_user_messages_cost_their_prefix_and_have_a_largest() -> None:
    """Memberlist's type byte travels with each: 1395 bytes just fit, one more is never queued."""
    queue = BroadcastQueue(1398, 2, b"\x08")
    queue.queue(b"e" * 1395)
    assert queue.queue(b"e" * 1396).finished
    assert len(queue) == 1
    assert queue.take(1398, 4, 255) == ([b"\x08" + b"e" * 1395], 1398)


def test_told_often_enough_is_finished() -> None:
    """After the limit a message leaves the queue, and whoever waits for that learns it."""
    queue = BroadcastQueue(1398, 2)
    broadcast = queue.queue(b"news")
    for _ in range(3):
        queue.take(100, 3, 255)
    assert broadcast.finished
    assert len(queue) == 0


def test_newer_message_about_a_subject_replaces_the_older() -> None:
    """The older one is no longer true; its waiter need not wait."""
    queue = BroadcastQueue(1398, 2)
    older = queue.queue(b"suspect", "n1")
    queue.queue(b"other", "n2")
    queue.queue(b"alive", "n1")
    assert older.finished
    assert sorted(queue.take(100, 9, 255)[0]) == [b"alive", b"other"]


def test_parts_are_bounded() -> None:
    """A compound counts in one byte."""
    queue = BroadcastQueue(1398, 2)
    for number in range(300):
        queue.queue(b"%d" % number)
    assert len(queue.take(100_000, 4, 255)[0]) == 255


def test_queue_is_bounded_and_drops_the_most_told() -> None:
    """A flood pushes out what was told already before what nobody heard yet; half goes at once."""
    queue = BroadcastQueue(1398, 2)
    told = [queue.queue(b"told") for _ in range(100)]
    queue.take(10_000, 4, 255)
    fresh = [queue.queue(b"fresh") for _ in range(MAX_QUEUED - 100)]
    assert not any(broadcast.finished for broadcast in told)
    queue.queue(b"last")
    assert len(queue) == MAX_QUEUED // 2 + 1
    assert all(broadcast.finished for broadcast in told)
    assert sum(broadcast.finished for broadcast in fresh) == MAX_QUEUED // 2 - 100


def test_a_subject_may_return_after_it_was_finished() -> None:
    """Told often enough, pruned or replaced: the next message about it starts anew."""
    queue = BroadcastQueue(1398, 2)
    first = queue.queue(b"one", "n1")
    queue.take(100, 1, 255)
    second = queue.queue(b"two", "n1")
    assert first.finished
    assert not second.finished
    assert queue.take(100, 1, 255)[0] == [b"two"]
    assert len(queue) == 0


def test_what_is_told_to_nobody_does_not_count() -> None:
    """A packet to a node that is probably dead carries the news, and uses nothing of it up."""
    queue = BroadcastQueue(1_000, 2)
    queue.queue(b"news", "n1")
    for _ in range(5):
        assert queue.take(1_000, 2, 255, counted=False)[0] == [b"news"]
    assert [queue.take(1_000, 2, 255)[0] for _ in range(3)] == [[b"news"], [b"news"], []]
