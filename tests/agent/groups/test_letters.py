"""Dead letters carry their history, and every leader is the same producer of them."""

from shoal.agent.groups.entry import ReasonCode
from shoal.agent.groups.letters import headers_of, producer_of, redrive_producer_of, sequence_of
from shoal.agent.groups.place import Letter
from shoal.agent.receive import GroupKey

GROUP = GroupKey(bytes(range(16)))
LETTER = Letter(
    ordinal=4,
    due_us=0,
    offset=17,
    attempts=5,
    code=ReasonCode.NACK,
    first_us=1_767_225_600_000_000,
    last_us=1_767_225_601_000_000,
    died_us=1_767_225_602_000_000,
    text="zu groß".encode(),
)


def test_the_history_stands_in_headers() -> None:
    """Where the message was, what was tried, and why it died."""
    headers = dict(headers_of(LETTER, "payments", 3, "g"))
    assert {name: value.decode() for name, value in headers.items()} == {
        "shoal-topic": "payments",
        "shoal-partition": "3",
        "shoal-offset": "17",
        "shoal-group": "g",
        "shoal-attempts": "5",
        "shoal-reason": "nack: zu groß",
        "shoal-first-delivered": "2026-01-01T00:00:00.000000Z",
        "shoal-last-delivered": "2026-01-01T00:00:01.000000Z",
        "shoal-died": "2026-01-01T00:00:02.000000Z",
        "shoal-letter": "4",
    }


def test_every_reason_has_a_word() -> None:
    """And a timer its due time."""
    words = {
        dict(headers_of(LETTER._replace(code=code, text=b""), "t", 0, "g"))["shoal-reason"]
        for code in ReasonCode
    }
    assert words == {b"nack", b"expired", b"rejected", b"operator"}
    timer = dict(headers_of(LETTER._replace(due_us=1_767_225_600_000_000), "t", 0, "g"))
    assert timer["shoal-due"] == b"2026-01-01T00:00:00.000000Z"


def test_producers_are_of_a_group_and_a_partition() -> None:
    """Sequences begin at 0, ordinals at 1."""
    producers = {
        make(GROUP, partition) for make in (producer_of, redrive_producer_of) for partition in range(9)
    }
    assert len(producers) == 18
    assert {len(producer) for producer in producers} == {16}
    assert sequence_of(LETTER._replace(ordinal=1)) == 0
