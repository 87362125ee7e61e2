"""Ctrl-C at any moment, as in a notebook whose user goes on with the same objects: nothing is lost, nothing
doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from blocking_fixtures import QUICK, Interrupts, fill, stored

from shoal import BatchingConfig, Client, ClientConfig
from shoal.client.blocking import Consumer

# An interrupt may come between a coroutine's making and its running, and in a callback of a weak reference,
# where Python tells of it and goes on.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PARTITIONS = 3
ROWS = 700
EXPECTED = {b"%06d" % (partition * 1_000 + row) for partition in range(PARTITIONS) for row in range(ROWS)}


def by_records(consumer: Consumer, take: Callable[[list[bytes]], None]) -> None:
    for record in consumer:
        take([record.value or b""])


def by_batches(consumer: Consumer, take: Callable[[list[bytes]], None]) -> None:
    for batch in consumer.batches():
        take(batch.column("value").to_pylist())


def by_frames(consumer: Consumer, take: Callable[[list[bytes]], None]) -> None:
    for table in consumer.frames("arrow", rows=40):
        take(table["value"].to_pylist())


@pytest.mark.parametrize("read", [by_records, by_batches, by_frames])
def test_reading_goes_on_where_it_was_interrupted(
    cluster: object, client: Client, read: Callable[[Consumer, Callable[[list[bytes]], None]], None]
) -> None:
    """Interrupted a few hundred times while it waits and while it reads, the same consumer gives every record
    once: what the loop had got is not given again, what it had not is."""
    fill(cluster, "t", PARTITIONS, ROWS)
    seen: Counter[bytes] = Counter()
    interrupted = 0
    with Interrupts(0.004, __file__) as interrupts:
        while interrupted < 150:
            consumer = client.consumer("t", max_bytes=1)
            seen.clear()
            over, patience = False, 1.0
            while not over:
                got: list[bytes] = []
                try:
                    interrupts.arm(patience)
                    read(consumer, got.extend)
                    over = True
                    interrupts.disarm()
                except KeyboardInterrupt:
                    interrupted += 1
                # On a busy machine a step takes longer than any interrupt lets it have.
                patience = 1.0 if got else 2 * patience
                seen.update(got)
            assert set(seen) == EXPECTED
            assert set(seen.values()) == {1}
            consumer.close()


def test_flush_and_append_go_on_after_an_interrupt(cluster: object, client: Client) -> None:
    """What was sent before is stored once, in order, whatever was interrupted; an interrupted `append` may
    have happened, once."""
    cluster.create("t", 1)
    cluster.produce_delay_s = 0.002
    certain: list[bytes] = []
    interrupted = number = 0
    with (
        Interrupts(0.01, __file__) as interrupts,
        client.producer("t", batching=BatchingConfig(linger_ms=1)) as producer,
    ):
        while interrupted < 100:
            try:
                interrupts.arm()
                number += 1
                value = b"%05d" % number
                if number % 3:
                    producer.send(value)
                    certain.append(value)
                    producer.flush()
                else:
                    producer.append(value)
                    certain.append(value)
                interrupts.disarm()
            except KeyboardInterrupt:
                interrupted += 1
    values = stored(cluster, "t")
    assert values == sorted(set(values))
    assert set(certain) <= set(values)


def test_an_interrupted_close_is_a_close(cluster: object) -> None:
    """Whoever cannot wait for the flush is not kept waiting, and the client is closed."""
    cluster.create("t", 1)
    cluster.produce_delay_s = 30.0
    client = Client(cluster.urls, ClientConfig(retry=QUICK.retry, attempt_timeout_ms=30_000))
    client.send("t", b"a")
    with Interrupts(0.05, __file__) as interrupts:
        interrupts.arm()
        with pytest.raises(KeyboardInterrupt):
            client.close()
    assert "closed" in repr(client)
    client.close()
