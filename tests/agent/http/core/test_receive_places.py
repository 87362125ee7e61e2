"""Where a consumer looks for messages first."""

from __future__ import annotations

from shoal.agent.http.core.receive_places import REMEMBERED_MAX, STAY_ANSWERS, ReceivePlaces

GROUP = b"g" * 16


def test_a_consumer_stays_a_while_and_goes_on() -> None:
    """Every partition has its turn."""
    places, seen = ReceivePlaces(), []
    for _ in range(4 * STAY_ANSWERS):
        first = places.order(GROUP, b"consumer", 4)[0]
        places.served(GROUP, b"consumer", first)
        seen.append(first)
    assert [seen.count(partition) for partition in range(4)] == [STAY_ANSWERS] * 4
    assert len(set(seen[:STAY_ANSWERS])) == 1


def test_each_order_has_every_partition_once() -> None:
    """Whoever asks."""
    places = ReceivePlaces()
    for number in range(20):
        consumer = number.to_bytes(16, "little")
        assert sorted(places.order(GROUP, consumer, 7)) == list(range(7))
        places.served(GROUP, consumer, number % 7)
        assert places.order(GROUP, consumer, 7)[0] == number % 7


def test_what_is_remembered_is_bounded() -> None:
    """The consumer that was served longest ago is forgotten."""
    places = ReceivePlaces()
    for number in range(REMEMBERED_MAX + 5):
        places.served(GROUP, number.to_bytes(8, "big"), 3)
    assert len(places._places) == REMEMBERED_MAX
