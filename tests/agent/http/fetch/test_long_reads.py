"""Long reads of whole agents whose stored bytes change under them: every reader gets exactly what was stored,
or is told what is damaged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal.agent.fetch import FetchRequest
from shoal.agent.partition.reader import LONG_FETCH_BYTES
from shoal.errors import ShoalError
from shoal.format.batch import MAX_FRAME_BYTES, LogIndex, Offset
from shoal.spark.options.errors import SourceError
from shoal.spark.read.fetch import FetchPolicy, RangeReader, Scan
from shoal.spark.read.http import Persistence
from shoal.spark.read.plan import OffsetRange
from tests.agent.agents import Agents, Running, agents_in, eventually

BATCHES = 24
BATCH_ROWS = 100
VALUE_BYTES = 8_000  # batches of 800 KB: half of them are no longer in memory
ROWS = BATCHES * BATCH_ROWS
IN_FILE = range(4, 11)  # batches that only the file has, in the middle of the first long answer

pytestmark = pytest.mark.slow


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    async with agents_in(tmp_path) as started:
        yield started


def value(number: int) -> bytes:
    return b"%08d" % number * (VALUE_BYTES // 8)


async def filled(at: Running, replicas: int) -> None:
    """A topic of one partition, with large batches."""
    async with shoal.AsyncClient(at.agent.url) as client:
        await client.create_topic("t", {"partitions": 1, "replication_factor": replicas})
        async with client.producer("t") as producer:
            for first in range(0, ROWS, BATCH_ROWS):
                rows = pa.array([value(number) for number in range(first, first + BATCH_ROWS)], pa.binary())
                await producer.send_batch(pa.RecordBatch.from_arrays([rows], ["value"]))
            await producer.flush()


def log_of(at: Running) -> Any:
    broker = at.agent.broker
    host, group = broker._parts().host, broker._group(broker.topic("t"), 0)
    return host.replica(group).log


def flip(at: Running, offset: int) -> None:
    """One bit of the batch that holds the offset, in this agent's file."""
    log = log_of(at)
    index = LogIndex(log.index_for_offset(Offset(offset)))
    entry = log.entry(index)
    with open(log.segment_of(index).path, "r+b") as file:
        file.seek(entry.position + entry.length // 2)
        byte = file.read(1)[0]
        file.seek(entry.position + entry.length // 2)
        file.write(bytes([byte ^ 4]))


def blocking(url: str) -> list[bytes]:
    """All values as the blocking consumer reads them; what is damaged is asked for again."""
    found: list[bytes] = []
    with shoal.Client(url) as client, client.consumer("t", max_bytes=16 * 2**20) as consumer:
        while not consumer.at_end:
            try:
                chunk = consumer.poll()
            except ShoalError as error:
                if error.code != "damaged":
                    raise
                continue
            assert chunk is not None
            found += chunk.batch.column("value").to_pylist()
    return found


async def with_asyncio(url: str) -> list[bytes]:
    """The same with asyncio's."""
    found: list[bytes] = []
    async with shoal.AsyncClient(url) as client, client.consumer("t", max_bytes=16 * 2**20) as consumer:
        while not consumer.at_end:
            try:
                chunk = await consumer.poll()
            except ShoalError as error:
                if error.code != "damaged":
                    raise
                continue
            assert chunk is not None
            found += chunk.batch.column("value").to_pylist()
    return found


def in_spark(url: str, retries: Persistence | None = None) -> list[bytes]:
    """As one of Spark's tasks reads."""
    policy = FetchPolicy() if retries is None else FetchPolicy(retries=retries)
    scan = Scan(OffsetRange("t", 0, 0, ROWS, (url,)), (url,), ("value",), policy=policy)
    return [row for batch in RangeReader(scan).batches() for row in batch.column("value").to_pylist()]


async def read_by(reader: Callable[[str], Any], url: str) -> list[bytes]:
    if asyncio.iscoroutinefunction(reader):
        return list(await reader(url))
    return list(await asyncio.to_thread(reader, url))


async def test_readers_get_mended_bytes(agents: Agents) -> None:
    """A bit of the leader's file flips in the middle of what a long answer promises: the blocking client,
    asyncio's and Spark's reader end with every record once, from the bytes that the peers still have."""
    cluster = await agents.cluster(3)
    await filled(cluster[0], 3)
    (leader,) = [at for at in cluster if at.agent.broker.leader(at.agent.broker.topic("t"), 0).local]
    wanted = [value(number) for number in range(ROWS)]
    for batch, reader in zip(IN_FILE, (blocking, with_asyncio, in_spark), strict=False):
        flip(leader, batch * BATCH_ROWS)
        assert await read_by(reader, leader.agent.url) == wanted
        replica = log_of(leader)
        await eventually(lambda log=replica: sound(log))  # type: ignore[misc]


async def sound(log: Any) -> bool:
    return not await log.verify()


async def taken(consumer: Any, found: list[bytes]) -> None:
    async for chunk in consumer.chunks():
        found += chunk.batch.column("value").to_pylist()


async def all_bytes(pieces: Any) -> int:
    """How many come."""
    size = 0
    try:
        while (piece := await pieces.next()) is not None:
            size += len(piece)
    finally:
        await pieces.let_go()
    return size


async def test_readers_without_peers_are_told(agents: Agents) -> None:
    """Nobody has the bytes: each reader gets all that lies before them, and then an error that names them;
    behind them everything is served."""
    alone = await agents.alone("a")
    await filled(alone, 1)
    bad = IN_FILE[3] * BATCH_ROWS
    flip(alone, bad)
    found: list[bytes] = []
    async with (
        shoal.AsyncClient(alone.agent.url) as client,
        client.consumer("t", max_bytes=16 * 2**20) as some,
    ):
        with pytest.raises(ShoalError, match=f"offset {bad}") as refused:
            await taken(some, found)
        assert refused.value.code == "damaged"
        assert found == [value(number) for number in range(bad)]
        await some.seek(0, bad + BATCH_ROWS)
        await taken(some, found)
    assert found == [value(number) for number in range(ROWS) if not bad <= number < bad + BATCH_ROWS]
    with pytest.raises(SourceError, match="damaged"):
        await asyncio.to_thread(in_spark, alone.agent.url, Persistence(attempts=3))


async def test_a_long_fetch_is_promised_up_to_known_damage(agents: Agents) -> None:
    """The first answer breaks off; the next one ends, whole, where the damage begins."""
    alone = await agents.alone("a")
    await filled(alone, 1)
    broker = alone.agent.broker
    bad = IN_FILE[5] * BATCH_ROWS
    flip(alone, bad)

    async def admitted(held_bytes: int) -> None:
        assert held_bytes <= MAX_FRAME_BYTES

    async def fetch(offset: int) -> Any:
        request = FetchRequest(Offset(offset), max_bytes=2**24, admit=admitted)
        return await broker.read(broker.topic("t"), 0, request)

    first = await fetch(0)
    assert first.pieces.size_bytes >= LONG_FETCH_BYTES
    assert first.next_offset > bad
    with pytest.raises(ShoalError, match=f"offset {bad}"):
        await all_bytes(first.pieces)
    second = await fetch(0)
    assert second.next_offset == bad
    assert await all_bytes(second.pieces) == second.pieces.size_bytes
    with pytest.raises(ShoalError) as refused:
        await fetch(bad)
    assert refused.value.code == "damaged"
    assert (await fetch(bad + BATCH_ROWS)).base_offset == bad + BATCH_ROWS
