"""The client against a cluster in this process: exactly once under faults, order, fail-over, bounds,
refusals.
"""

from __future__ import annotations

import asyncio
import itertools
import pathlib
import subprocess
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pyarrow as pa
import pytest
from fake_cluster import PRODUCE_FAULTS, FakeCluster, Fault, refuse, reset_after_storing, reset_before_storing

from shoal import AsyncClient, BatchingConfig, ClientConfig, ProduceFailed, RetryPolicy, Unreachable
from shoal.client.http import requests
from shoal.client.produce.batcher import REQUESTS_IN_FLIGHT_MAX
from shoal.client.produce.producer import batch_of
from shoal.errors import ERRORS, BufferFull, ShoalError
from shoal.format.hash_ranges import hash_ranges, key_hash, partition_for

QUICK = ClientConfig(retry=RetryPolicy(total_ms=10_000), attempt_timeout_ms=5_000)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Three agents."""
    async with FakeCluster(3) as fake:
        yield fake


def stored(cluster: FakeCluster, topic: str) -> list[bytes]:
    return [value for log in cluster.topics[topic].partitions for value in log.values()]


async def wait_for_the_watcher(cluster: FakeCluster) -> None:
    """Until the producer's blocking query for routes waits at an agent: it asks once for a version to wait
    on.
    """
    while cluster.waiting == 0:
        await asyncio.sleep(0.01)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


async def test_records_go_where_their_keys_hash_to_and_keep_their_order(cluster: FakeCluster) -> None:
    """The client partitions exactly as an agent would, and a key's records stay in order."""
    cluster.create("t", 6)
    keys = [b"key-%d" % (number % 17) for number in range(500)]
    async with AsyncClient(cluster.urls[:1], QUICK) as client, client.producer("t") as producer:
        for first in range(0, 500, 50):
            await producer.send_batch(batch_of(numbered(50, first), keys[first : first + 50]))
    for number, log in enumerate(cluster.topics["t"].partitions):
        values = log.values()
        assert values == sorted(values)
        for batch in log.batches:
            for key in batch.column("key").to_pylist():
                assert partition_for(key_hash(key), hash_ranges(6)) == number
    assert sorted(stored(cluster, "t")) == numbered(500)


@pytest.mark.parametrize("fault", PRODUCE_FAULTS.values(), ids=PRODUCE_FAULTS)
async def test_a_failure_is_retried_and_nothing_is_stored_twice(cluster: FakeCluster, fault: Fault) -> None:
    """Every other request fails in this way, some after storing: each record is stored exactly once, in
    order.
    """
    cluster.create("t", 1)

    async def pass_through(request, proceed):
        return await proceed()

    cluster.faults.extend(itertools.chain.from_iterable([(fault, pass_through)] * 10))
    config = BatchingConfig(linger_ms=0, batch_rows_max=10)
    async with AsyncClient(cluster.urls, QUICK) as client, client.producer("t", batching=config) as producer:
        await producer.send_batch(batch_of(numbered(100)))
        await producer.flush()
        assert producer.unacknowledged == 0
        assert client.retries >= 10
        # Requests are in flight side by side: a fault may meet the repetition of one that another has met.
        assert (0 < producer.statistics.duplicates <= 10) == (fault is reset_after_storing)
    assert stored(cluster, "t") == numbered(100)


async def test_full_requests_of_a_partition_are_in_flight_together(cluster: FakeCluster) -> None:
    """So many and no more; they are stored and acknowledged in order."""
    cluster.create("t", 1)
    together, most = 0, 0

    async def count(request, proceed):
        nonlocal together, most
        together, most = together + 1, max(most, together + 1)
        while most < REQUESTS_IN_FLIGHT_MAX:
            await asyncio.sleep(0.001)
        try:
            return await proceed()
        finally:
            await asyncio.sleep(0.005)
            together -= 1

    cluster.faults.extend([count] * 20)
    told: list[int | None] = []
    config = BatchingConfig(linger_ms=0, batch_rows_max=10)
    async with (
        AsyncClient(cluster.urls, QUICK) as client,
        client.producer(
            "t", batching=config, on_delivery=lambda one: told.append(one.base_offset)
        ) as producer,
    ):
        delivery = await producer.send_batch(batch_of(numbered(100)))
        await producer.flush()
        assert [part.base_offset for part in await delivery] == told == list(range(0, 100, 10))
    assert most == REQUESTS_IN_FLIGHT_MAX
    assert stored(cluster, "t") == numbered(100)


async def test_what_overtook_is_sent_again_in_its_turn(cluster: FakeCluster) -> None:
    """An agent that is shown the second request before the first refuses it; nothing is lost or doubled, and
    the producer keeps its identity."""
    topic = cluster.create("t", 1)
    refused: list[str] = []

    async def hold(request, proceed):
        while not refused:
            await asyncio.sleep(0.001)
        return await proceed()

    async def look(request, proceed):
        try:
            return await proceed()
        except ShoalError as error:
            refused.append(error.code)
            raise

    cluster.faults.extend([hold, look])
    config = BatchingConfig(linger_ms=0, batch_rows_max=10)
    async with AsyncClient(cluster.urls, QUICK) as client, client.producer("t", batching=config) as producer:
        await producer.send_batch(batch_of(numbered(50)))
        await producer.flush()
        assert producer.statistics.duplicates == 0
    assert refused == ["sequence-gap"]
    assert len(topic.partitions[0].producers) == 1
    assert stored(cluster, "t") == numbered(50)


async def test_nothing_is_stored_behind_a_request_that_failed(cluster: FakeCluster) -> None:
    """The first one is refused for good while others are in flight: none of them is stored before it, all
    of them are reported, in order."""
    cluster.create("t", 1)
    waiting = 0

    async def behind(request, proceed):
        nonlocal waiting
        waiting += 1
        return await proceed()

    async def refuse_late(request, proceed):
        while waiting < REQUESTS_IN_FLIGHT_MAX - 1:
            await asyncio.sleep(0.001)
        raise ShoalError("too-large", "on demand")

    cluster.faults.extend([refuse_late, *[behind] * 20])
    told: list[int | None] = []
    config = BatchingConfig(linger_ms=0, batch_rows_max=10)
    async with AsyncClient(cluster.urls, QUICK) as client:
        producer = client.producer(
            "t", batching=config, on_delivery=lambda one: told.append(one.error and one.records)
        )
        await producer.__aenter__()
        await producer.send_batch(batch_of(numbered(50)))
        with pytest.raises(ProduceFailed, match="too-large") as raised:
            await producer.flush()
        left = [value for _, batch in raised.value.undelivered for value in batch.column("value").to_pylist()]
        assert left == numbered(50)
        await producer.abort()
    assert raised.value.definite
    assert stored(cluster, "t") == []
    assert set(told) == {10}


async def test_all_in_flight_get_the_new_identity_of_a_producer_that_was_forgotten(
    cluster: FakeCluster,
) -> None:
    """None of them was stored under the old one; all are stored once, in order."""
    topic = cluster.create("t", 1)
    config = BatchingConfig(linger_ms=0, batch_rows_max=10)
    async with AsyncClient(cluster.urls, QUICK) as client, client.producer("t", batching=config) as producer:
        await producer.send_batch(batch_of(numbered(10)))
        await producer.flush()
        topic.partitions[0].producers.clear()
        await producer.send_batch(batch_of(numbered(60, 10)))
        await producer.flush()
        assert producer.statistics.duplicates == 0
    assert len(topic.partitions[0].producers) == 1
    assert stored(cluster, "t") == numbered(70)


async def test_a_new_leader_is_found_through_the_refusal_of_the_old_one(cluster: FakeCluster) -> None:
    """421 names the leader: the request goes there at once, and the routes are not even asked again."""
    topic = cluster.create("t", 1)
    async with AsyncClient(cluster.urls, QUICK) as client, client.producer("t") as producer:
        await wait_for_the_watcher(cluster)
        topic.partitions[0].leader, topic.partitions[0].term = 2, 2  # nobody is told
        asked_before = cluster.requests.count("GET /v1/routes")
        await producer.send(b"a")
        await producer.flush()
        assert cluster.requests.count("GET /v1/routes") == asked_before
        assert client.leader_changes == 1
    assert stored(cluster, "t") == [b"a"]


async def test_the_bootstrap_agent_may_die_in_mid_stream(cluster: FakeCluster) -> None:
    """The client knew one agent only; when that dies, others from the member list carry on."""
    cluster.create("t", 3)
    async with AsyncClient(cluster.urls[:1], QUICK) as client, client.producer("t") as producer:
        await producer.send_batch(batch_of(numbered(300), [b"%d" % number for number in range(300)]))
        await producer.flush()
        await cluster.kill(0)
        await producer.send_batch(batch_of(numbered(300, 300), [b"%d" % number for number in range(300)]))
        await producer.flush()
    assert sorted(stored(cluster, "t")) == numbered(600)


async def test_a_leader_that_falls_silent_is_left_for_the_one_that_routes_name(cluster: FakeCluster) -> None:
    """A leader that neither answers nor breaks the connection holds a producer up no longer than the
    fail-over.
    """
    cluster.create("t", 1)
    silent = asyncio.Event()

    async def never(request, proceed):
        silent.set()
        await asyncio.sleep(60)

    cluster.faults.append(never)
    slow = ClientConfig(attempt_timeout_ms=120_000)
    async with (
        asyncio.timeout(40),
        AsyncClient(cluster.urls, slow) as client,
        client.producer("t") as producer,
    ):
        await producer.send(b"a")
        await silent.wait()
        await cluster.move("t", 0, 1)
        await producer.flush()
    assert stored(cluster, "t") == [b"a"]


async def test_a_stopped_process_is_worked_around_even_if_it_was_the_one_watched(
    cluster: FakeCluster,
) -> None:
    """The leader, which is also the agent that routes are watched at, freezes: another agent is asked."""
    cluster.create("t", 1)
    slow = ClientConfig(attempt_timeout_ms=120_000)
    async with (
        asyncio.timeout(40),
        AsyncClient(cluster.urls[:1], slow) as client,
        client.producer("t") as producer,
    ):
        await wait_for_the_watcher(cluster)
        cluster.agents[0].frozen = True
        await producer.send(b"a")
        cluster.topics["t"].partitions[0].leader, cluster.topics["t"].partitions[0].term = 1, 2
        await producer.flush()
    assert stored(cluster, "t") == [b"a"]


async def test_retries_end_with_one_clear_error(cluster: FakeCluster) -> None:
    """After retry.total_ms the producer says which records failed, why, and that they are certainly not
    stored.
    """
    cluster.create("t", 1)
    cluster.faults.extend([refuse("no-leader")] * 1_000)
    config = ClientConfig(retry=RetryPolicy(total_ms=300))
    async with AsyncClient(cluster.urls, config) as client:
        with pytest.raises(
            ProduceFailed, match=r"t/0: a batch of 5 records is not stored: no-leader"
        ) as failed:
            async with client.producer("t") as producer:
                await producer.send_batch(batch_of(numbered(5)))
        assert failed.value.definite
        assert failed.value.cause_code == "no-leader"
        assert producer.unacknowledged == 5


async def test_an_outcome_in_doubt_is_reported_as_such(cluster: FakeCluster) -> None:
    """Stored, but never answered: the error must not claim that the records are not stored."""
    cluster.create("t", 1)
    cluster.faults.extend([reset_after_storing] * 1_000)
    config = ClientConfig(retry=RetryPolicy(total_ms=300))
    async with AsyncClient(cluster.urls, config) as client:
        with pytest.raises(ProduceFailed, match="may or may not be stored") as failed:
            async with client.producer("t") as producer:
                await producer.send(b"a")
        assert not failed.value.definite
    assert stored(cluster, "t") == [b"a"]


async def test_a_refusal_that_no_retry_mends_ends_the_producer(cluster: FakeCluster) -> None:
    """too-large is not retried; later sends raise too, and nothing after the failure is sent."""
    cluster.create("t", 1)
    cluster.faults.append(refuse("too-large"))
    async with AsyncClient(cluster.urls, QUICK) as client, client.producer("t") as producer:
        await producer.send(b"a")
        with pytest.raises(ProduceFailed, match="too-large"):
            await producer.flush()
        with pytest.raises(ProduceFailed, match="too-large"):
            await producer.send(b"b")
        await producer.abort()  # so that leaving the block does not report the failure a third time
    assert client.retries == 0
    assert stored(cluster, "t") == []


async def test_a_forgotten_producer_begins_anew_when_nothing_is_in_doubt(cluster: FakeCluster) -> None:
    """Agents expire idle producers: the next sequence is a gap to them, and the client takes a new
    identity.
    """
    topic = cluster.create("t", 1)
    async with AsyncClient(cluster.urls, QUICK) as client, client.producer("t") as producer:
        for number in range(3):
            await producer.send(b"%d" % number)
            await producer.flush()
        topic.partitions[0].producers.clear()
        for number in range(3, 6):
            await producer.send(b"%d" % number)
            await producer.flush()
    assert stored(cluster, "t") == [b"%d" % number for number in range(6)]
    assert [len(known) for known in topic.partitions[0].producers.values()] == [3]


async def test_a_full_buffer_makes_send_wait(cluster: FakeCluster) -> None:
    """Backpressure: the buffer never holds more than its bound and what one call adds."""
    cluster.create("t", 1)
    cluster.produce_delay_s = 0.01
    config = BatchingConfig(linger_ms=0, batch_rows_max=50, batch_bytes_max=10_000, buffered_bytes_max=20_000)
    batch = batch_of([b"x" * 100] * 50)
    highest = 0
    async with AsyncClient(cluster.urls, QUICK) as client, client.producer("t", batching=config) as producer:
        for _ in range(40):
            await producer.send_batch(batch)
            highest = max(highest, producer._batcher.buffered_bytes)
    assert len(stored(cluster, "t")) == 2_000
    assert highest <= 20_000 + batch.nbytes


async def test_a_topic_is_created_by_producing_unless_that_is_off(cluster: FakeCluster) -> None:
    """As an agent does for curl."""
    async with AsyncClient(cluster.urls, QUICK) as client:
        async with client.producer("new") as producer:
            await producer.send(b"a")
        assert stored(cluster, "new") == [b"a"]
        cluster.auto_create_topics = False
        with pytest.raises(ShoalError, match="there is no topic 'newer'"):
            async with client.producer("newer"):
                pass
    assert "newer" not in cluster.topics


async def test_a_topic_that_producing_made_is_waited_for_at_other_agents(cluster: FakeCluster) -> None:
    """An agent that has not heard of the topic is asked again, also where requests are retried a minute."""
    cluster.unheard = 3
    async with AsyncClient(cluster.urls, ClientConfig(retry=RetryPolicy(total_ms=60_000))) as client:
        await client.send("new", b"a")
        await client.flush()
    assert (cluster.unheard, stored(cluster, "new")) == (0, [b"a"])


async def test_an_unknown_partition_is_refused_before_anything_is_sent(cluster: FakeCluster) -> None:
    """--partition 7 of a topic with two."""
    cluster.create("t", 2)
    async with AsyncClient(cluster.urls, QUICK) as client:
        with pytest.raises(ShoalError, match="has no partition 7"):
            async with client.producer("t", partition=7):
                pass


async def test_what_the_living_say_counts_more_than_that_others_are_down(cluster: FakeCluster) -> None:
    """Two of three are dead and the third says what is missing: that is the reason, not the dead ones."""
    await cluster.kill(1)
    await cluster.kill(2)
    cluster.ready = False
    async with AsyncClient(cluster.urls, QUICK) as client:
        assert await client.unready_reason() == "the catalog is not there yet"


async def test_no_agent_at_all_is_one_clear_error() -> None:
    """Nobody listens on port 1."""
    async with AsyncClient(["http://127.0.0.1:1"], QUICK) as client:
        with pytest.raises(Unreachable, match=r"http://127.0.0.1:1 cannot be reached"):
            await client.members()


async def fill(cluster: FakeCluster, topic: str, partitions: int, rows: int) -> None:
    """Partition p holds the values p*1000 ... in batches of 7."""
    cluster.create(topic, partitions)
    for number, log in enumerate(cluster.topics[topic].partitions):
        values = numbered(rows, number * 1_000)
        for first in range(0, rows, 7):
            log.append([batch_of(values[first : first + 7])], None)


async def read(client: AsyncClient, topic: str, **options: object) -> list[bytes]:
    values: list[bytes] = []
    async for found in client.consume(topic, **options):  # type: ignore[arg-type]
        rows = found.batch.column("value").to_pylist()
        assert rows[0] == b"%06d" % (found.partition * 1_000 + found.base_offset)
        values += rows
    return values


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, numbered(40) + numbered(40, 1_000)),
        ({"partition": 1}, numbered(40, 1_000)),
        ({"partition": 1, "start": "10"}, numbered(30, 1_010)),
        ({"start": "-3"}, numbered(3, 37) + numbered(3, 1_037)),
        ({"start": "-100", "limit": 45}, numbered(40) + numbered(5, 1_000)),
        ({"start": "latest"}, []),
        ({"start": "@2020-01-01T00:00:00Z", "partition": 0}, numbered(39, 1)),
        ({"limit": 0}, []),
        ({"max_bytes": 1}, numbered(40) + numbered(40, 1_000)),
    ],
)
async def test_consume_gives_exactly_the_records_asked_for(
    cluster: FakeCluster, options: dict[str, object], expected: list[bytes]
) -> None:
    """Starts within batches, limits, single batches a fetch: every record once, in order, at its offset."""
    await fill(cluster, "t", 2, 40)
    async with AsyncClient(cluster.urls, QUICK) as client:
        assert await read(client, "t", **options) == expected


async def test_consume_ends_at_the_end_it_saw_when_it_began(cluster: FakeCluster) -> None:
    """Records that arrive meanwhile do not keep it from ending."""
    await fill(cluster, "t", 1, 40)
    async with AsyncClient(cluster.urls, QUICK) as client:
        values = []
        async for found in client.consume("t", max_bytes=1):
            values += found.batch.column("value").to_pylist()
            cluster.topics["t"].partitions[0].append([batch_of([b"late"])], None)
    assert values == numbered(40)


async def test_follow_goes_on_with_all_partitions_across_a_leader_change(cluster: FakeCluster) -> None:
    """Following: what arrives later is read too, each partition in order, also from new leaders."""
    await fill(cluster, "t", 2, 10)
    async with asyncio.timeout(20), AsyncClient(cluster.urls, QUICK) as client:
        by_partition: dict[int, list[bytes]] = {0: [], 1: []}
        async for found in client.consume("t", follow=True, limit=40):
            by_partition[found.partition] += found.batch.column("value").to_pylist()
            if sum(map(len, by_partition.values())) == 20:
                await cluster.kill(0)
                for number, log in enumerate(cluster.topics["t"].partitions):
                    log.append([batch_of(numbered(10, number * 1_000 + 10))], None)
        assert by_partition == {0: numbered(20), 1: numbered(20, 1_000)}


async def test_follow_leaves_a_leader_that_falls_silent(cluster: FakeCluster) -> None:
    """A stopped process holds its reader's fetch for ever; what its successor takes is read in time."""
    await fill(cluster, "t", 1, 10)
    slow = ClientConfig(attempt_timeout_ms=120_000)
    values: list[bytes] = []
    async with asyncio.timeout(40), AsyncClient(cluster.urls[:1], slow) as client:
        async for found in client.consume("t", follow=True, limit=11):
            values += found.batch.column("value").to_pylist()
            if len(values) == 10:
                cluster.agents[0].frozen = True
                cluster.topics["t"].partitions[0].leader, cluster.topics["t"].partitions[0].term = 1, 2
                cluster.topics["t"].partitions[0].append([batch_of([b"after"])], None)
    assert values == [*numbered(10), b"after"]


@pytest.mark.parametrize("fault", [refuse("no-leader"), reset_before_storing], ids=["503", "reset"])
async def test_reading_goes_on_after_a_failure(cluster: FakeCluster, fault: Fault) -> None:
    """A failed fetch is repeated from the same offset."""
    await fill(cluster, "t", 1, 40)
    cluster.read_faults.extend([fault] * 3)
    async with AsyncClient(cluster.urls, QUICK) as client:
        assert await read(client, "t", max_bytes=1) == numbered(40)


async def test_reading_beyond_the_end_or_before_the_start_is_refused(cluster: FakeCluster) -> None:
    """The error carries the valid range."""
    await fill(cluster, "t", 1, 40)
    cluster.topics["t"].start = 14
    async with AsyncClient(cluster.urls, QUICK) as client:
        with pytest.raises(ShoalError) as beyond:
            await read(client, "t", start="41", partition=0)
        assert (beyond.value.code, beyond.value.extra["high_watermark"]) == ("beyond-end", 40)
        with pytest.raises(ShoalError) as trimmed:
            await client.fetch("t", 0, 3)
        assert (trimmed.value.code, trimmed.value.extra["log_start_offset"]) == ("trimmed", 14)


async def test_topics_are_created_listed_and_deleted(cluster: FakeCluster) -> None:
    """The thin calls say what the agents say."""
    async with AsyncClient(cluster.urls, QUICK) as client:
        assert (await client.create_topic("t", {"partitions": 2}))[0] is True
        assert (await client.create_topic("t", {"partitions": 2}))[0] is False
        with pytest.raises(ShoalError, match="has 2 partitions, not 3"):
            await client.create_topic("t", {"partitions": 3})
        assert [topic["name"] for topic in await client.topics()] == ["t"]
        await client.delete_topic("t")
        assert await client.topics() == []
        names = sorted(f"t{number}" for number in range(45))
        for name in names:
            await client.create_topic(name)
        assert [topic["name"] for topic in await client.topics()] == names


async def test_a_creation_whose_answer_was_lost_is_the_clients_own(cluster: FakeCluster) -> None:
    """The repeated request finds the topic: it is told that it has made it. Another request has not."""
    cluster.lose_next_creation = True
    async with AsyncClient(cluster.urls, QUICK) as client:
        created, topic = await client.create_topic("t", {"partitions": 2})
        assert (created, topic["name"], cluster.requests.count("PUT /v1/topics/t")) == (True, "t", 2)
        assert (await client.create_topic("t", {"partitions": 2}))[0] is False


async def test_a_deletion_whose_answer_was_lost_is_done(cluster: FakeCluster) -> None:
    """The repeated request finds no topic: that is success; a topic that never was is not."""
    cluster.create("t", 1)
    cluster.lose_next_deletion = True
    async with AsyncClient(cluster.urls, QUICK) as client:
        await client.delete_topic("t")
        assert "t" not in cluster.topics
        with pytest.raises(ShoalError, match="there is no topic 't'"):
            await client.delete_topic("t")


async def test_leaving_is_asked_of_one_agent_only(cluster: FakeCluster) -> None:
    """If the first cannot be reached, the second must not leave in its place."""
    await cluster.kill(0)
    cluster.requests.clear()
    async with AsyncClient(cluster.urls, QUICK) as client:
        with pytest.raises(Unreachable):
            await client.leave()
    assert cluster.requests == []


async def test_a_bug_on_the_way_is_raised_and_not_waited_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected exception while a batch is encoded reaches the one who flushes."""

    def broken(*batches: object) -> bytes:
        raise RuntimeError("a bug")

    monkeypatch.setattr("shoal.client.produce.producer.encode_stream", broken)
    cluster.create("t", 1)
    async with asyncio.timeout(40), AsyncClient(cluster.urls, QUICK) as client:
        with pytest.raises(RuntimeError, match="a bug"):
            async with client.producer("t") as producer:
                await producer.send(b"a")


async def test_a_batch_of_another_schema_is_refused_at_once(cluster: FakeCluster) -> None:
    """Nothing of it is buffered."""
    cluster.create("t", 1)
    async with AsyncClient(cluster.urls, QUICK) as client, client.producer("t") as producer:
        with pytest.raises(ShoalError, match="schema-mismatch"):
            await producer.send_batch(pa.RecordBatch.from_pydict({"text": [b"a"]}))
        assert producer.statistics.records_sent == 0


def test_importing_the_client_is_left_to_those_who_use_it() -> None:
    """`import shoal` must not load aiohttp or pyarrow."""
    code = "import sys, shoal; sys.exit(any(name in sys.modules for name in ('aiohttp', 'pyarrow')))"
    root = pathlib.Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=root).returncode == 0


@pytest.mark.parametrize("code", sorted(ERRORS))
async def test_every_refusal_is_repeated_or_told_as_the_table_says(cluster: FakeCluster, code: str) -> None:
    """Retriable or in doubt: asked again, and stored once. Neither: told at once, and nothing is stored. What
    an agent might only not know yet counts as the former."""
    cluster.create("t", 1)
    cluster.faults.append(refuse(code))
    row = ERRORS[code]
    async with AsyncClient(cluster.urls, QUICK) as client:
        await client.send("t", b"a")
        if row.retriable or not row.definite or code in ("unknown-topic", "unknown-partition"):
            await client.flush()
            assert client.retries >= 1
            assert stored(cluster, "t") == [b"a"]
            return
        with pytest.raises(ProduceFailed, match=f"is not stored: {code}") as failed:
            await client.flush()
    assert (failed.value.cause_code, failed.value.definite, client.retries) == (code, True, 0)
    assert stored(cluster, "t") == []


async def test_single_records_of_many_tasks_share_batches_and_deliveries(cluster: FakeCluster) -> None:
    """Three hundred records become few requests; each delivery can be awaited."""
    cluster.create("t", 1)
    async with AsyncClient(cluster.urls, QUICK) as client, client.producer("t") as producer:
        deliveries = await asyncio.gather(*(producer.send(value) for value in numbered(300)))
        appended = await deliveries[0]
        assert len(set(deliveries)) == 1
        assert [tuple(part) for part in appended] == [(0, 0, 300)]
        assert deliveries[0].place(17) == (0, 17)
        assert producer.statistics.requests == 1
    assert stored(cluster, "t") == numbered(300)


async def test_a_full_buffer_is_said_after_its_time(cluster: FakeCluster) -> None:
    """An awaiting sender gives up, the record is not taken, and the loop was free meanwhile."""
    cluster.create("t", 1)
    cluster.produce_delay_s = 0.3
    config = BatchingConfig(linger_ms=0, batch_rows_max=5, batch_bytes_max=1_000, buffered_bytes_max=1_000)
    async with AsyncClient(cluster.urls, QUICK) as client, client.producer("t", batching=config) as producer:
        sent = 0

        async def send_on() -> None:
            nonlocal sent
            while sent < 1_000:
                await producer.send(b"x" * 100, timeout_seconds=0.02)
                sent += 1

        with pytest.raises(BufferFull, match="nothing was taken"):
            await send_on()
    assert 0 < sent < 100
    assert stored(cluster, "t") == [b"x" * 100] * sent


async def test_a_consumer_goes_on_where_another_way_of_reading_stopped(cluster: FakeCluster) -> None:
    """Records one by one, then the rest of the chunk as Arrow: nothing twice, nothing skipped."""
    await fill(cluster, "t", 1, 40)
    async with AsyncClient(cluster.urls, QUICK) as client, client.consumer("t") as consumer:
        values = [(await anext(consumer)).value for _ in range(10)]
        assert consumer.positions() == {0: 10}
        async for batch in consumer.batches():
            values += batch.column("value").to_pylist()
        assert values == numbered(40)
        assert consumer.at_end
        assert await consumer.poll() is None
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)


async def test_a_near_replica_is_read_and_the_leader_when_it_fails(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `nearest` a follower answers with consistency=local; one that refuses is left for the leader."""
    steady = SimpleNamespace(perf_counter=asyncio.get_running_loop().time)
    monkeypatch.setattr(requests, "time", steady)
    await fill(cluster, "t", 1, 40)
    cluster.topics["t"].partitions[0].leader = 2
    async with AsyncClient(cluster.urls, QUICK) as client:
        cluster.slow_agents[2] = cluster.slow_agents[1] = 0.3
        async with client.consumer("t", nearest=True) as consumer:
            assert [record.value async for record in consumer] == numbered(40)
        assert cluster.local_reads == {0: 1}
        cluster.agents[0].refuses_local = True
        async with client.consumer("t", nearest=True) as consumer:
            assert [record.value async for record in consumer] == numbered(40)
        assert cluster.local_reads == {0: 1}


async def test_a_partition_with_too_many_producers_is_tried_until_the_time_is_up(
    cluster: FakeCluster,
) -> None:
    """Then the failure says so, and that nothing of it is stored."""
    cluster.create("t", 1)
    cluster.faults.extend([refuse("too-many-producers")] * 1_000)
    config = ClientConfig(retry=RetryPolicy(total_ms=300))
    async with AsyncClient(cluster.urls, config) as client:
        await client.send("t", b"x")
        with pytest.raises(ProduceFailed, match="too-many-producers") as raised:
            await client.flush()
        assert raised.value.definite
        assert raised.value.cause_code == "too-many-producers"
        assert client.retries >= 1
    assert stored(cluster, "t") == []
