"""What an answer costs: bounded by what its records take in memory, in every form; made while it is sent.

The records here take some bytes on the disk and sixty megabytes in memory.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa
import pytest
from fake_broker import FakeCluster
from http_fixtures import Agent, one_agent, running

from shoal.agent.http.admission.limits import MIB, HttpLimits
from shoal.agent.http.rows import selection as selecting
from shoal.agent.http.rows.selection import Turn
from shoal.format.batch import DEFAULT_SCHEMA, MAX_FRAME_BYTES, MAX_UNCOMPRESSED_BYTES

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
PATH = "/v1/topics/t/partitions/0/records"
MERGED = "/v1/topics/t/records"
LARGE = 8 * MIB


def packed(values: list[bytes], compression: str = "zstd", first_time: int = 1) -> bytes:
    """An Arrow stream of one compressed batch."""
    rows = len(values)
    arrays = [
        pa.array(range(first_time, first_time + rows), DEFAULT_SCHEMA.field(0).type),
        pa.nulls(rows, pa.binary()),
        pa.array(values, pa.binary()),
        pa.nulls(rows, DEFAULT_SCHEMA.field(3).type),
    ]
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, DEFAULT_SCHEMA, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=DEFAULT_SCHEMA))
    return bytes(sink.getvalue())


async def store(agent: Agent, *bodies: bytes, path: str = PATH) -> None:
    for body in bodies:
        answer = await agent.post(path, body, media=ARROW)
        assert answer.status == 200, answer.body


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    """An agent whose topic t has one partition."""
    async with one_agent() as running_agent:
        running_agent.broker.cluster.create("t")
        yield running_agent


def number_in(value: str) -> int:
    return int(value.rstrip("\0x"))


def numbered(count: int, size: int) -> list[bytes]:
    return [b"%d" % number + bytes(size) for number in range(count)]


async def test_an_answer_ends_by_what_its_records_take(agent: Agent) -> None:
    """Not by the few bytes that they take on the disk; each page goes on where the one before ended."""
    await store(agent, packed(numbered(40, 300_000)), packed(numbered(3, 300_000), "lz4"))
    seen: list[int] = []
    offset = 0
    while True:
        answer = await agent.get(f"{PATH}?offset={offset}")
        document = answer.json
        if not document["records"]:
            break
        assert len(document["records"]) <= 3, "1 MiB is the default"
        assert [record["offset"] for record in document["records"]] == list(
            range(offset, document["next_offset"])
        )
        assert answer.headers["Shoal-Next-Offset"] == str(document["next_offset"])
        seen += [number_in(record["value"]) for record in document["records"]]
        offset = document["next_offset"]
    assert seen == [*range(40), *range(3)]
    assert offset == 43


async def test_lines_end_where_documents_do(agent: Agent) -> None:
    """NDJSON, as records and as values."""
    await store(agent, packed(numbered(10, 300_000)))
    for view in ("record", "value"):
        answer = await agent.get(f"{PATH}?offset=4&max_bytes=700000&view={view}", Accept=NDJSON)
        lines = answer.body.split(b"\n")
        assert len(lines) == 3
        assert answer.headers["Shoal-Next-Offset"] == "6"
        wanted = b"4" + bytes(300_000) if view == "value" else b'{"offset":4'
        assert lines[0].startswith(wanted)


async def test_a_record_larger_than_the_answer_may_be_goes_alone(agent: Agent) -> None:
    """A reader always gets on."""
    await store(agent, packed([b"first" + bytes(LARGE - 5), b"second" + bytes(LARGE - 6), b"third"]))
    for query in ("", "?max_bytes=1", "?limit=2"):
        document = (await agent.get(PATH + query)).json
        assert [len(record["value"]) for record in document["records"]] == [LARGE]
        assert document["next_offset"] == 1
    document = (await agent.get(f"{PATH}?offset=1&max_bytes={MIB}")).json
    assert document["records"][0]["value"] == "second" + "\0" * (LARGE - 6)
    document = (await agent.get(f"{PATH}?offset=1&max_bytes={9 * MIB}")).json
    assert [record["value"][:6] for record in document["records"]] == ["second", "third"]


async def test_merged_pages_end_by_memory_too(agent: Agent) -> None:
    """Each record once, in order, and never much more at once than was asked for."""
    agent.broker.cluster.create("m", 3)
    for partition in range(3):
        body = packed(numbered(12, 400_000), first_time=1 + partition)
        await store(agent, body, path=f"/v1/topics/m/partitions/{partition}/records")
    counts: Counter[int] = Counter()
    query = "offset=earliest"
    while True:
        document = (await agent.get(f"/v1/topics/m/records?{query}")).json
        if not document["records"]:
            break
        assert sum(len(record["value"]) for record in document["records"]) <= 2.5 * MIB
        for record in document["records"]:
            assert record["offset"] == counts[record["partition"]] == number_in(record["value"])
            counts[record["partition"]] += 1
        query = f"cursor={document['cursor']}"
    assert counts == {0: 12, 1: 12, 2: 12}
    tail = (await agent.get("/v1/topics/m/records?offset=-4&max_bytes=9000000")).json
    assert [number_in(record["value"]) for record in tail["records"]] == [9, 11, 10, 11]


async def test_events_of_large_records(agent: Agent) -> None:
    """One by one, with nothing lost between two fetches of the same batch."""
    await store(agent, packed(numbered(6, 3 * MIB)))
    async with agent.session.get(
        f"http://127.0.0.1:{agent.port}{PATH}?offset=earliest&limit=6", headers={"Accept": EVENTS}
    ) as response:
        body = await response.read()
    events = [event for event in body.split(b"\n\n") if event.startswith(b"id: ")]
    assert [int(event[4 : event.index(b"\n")]) for event in events] == list(range(6))
    values = [json.loads(event.partition(b"data: ")[2])["value"] for event in events]
    assert [number_in(value) for value in values] == list(range(6))
    assert agent.runner.context.gate.bytes_in_flight == 0


class Peak:
    """The most that was held, counted and in Arrow's memory, looked at whenever either grows."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._before = pa.total_allocated_bytes()
        self.counted = self.arrow = 0

    async def watch(self) -> None:
        while True:
            self.counted = max(self.counted, self._agent.runner.context.gate.bytes_in_flight)
            self.arrow = max(self.arrow, pa.total_allocated_bytes() - self._before)
            await asyncio.sleep(0)


@pytest.mark.parametrize("query", [PATH, MERGED, PATH + "?max_bytes=67108864"])
async def test_many_readers_of_large_records_stay_within_bounds(query: str) -> None:
    """64 at once, of whom some never take their answer: whoever does not fit is told to come again."""
    limits = HttpLimits(send_stall_ms=60_000)
    async with running(FakeCluster().add("one"), limits) as agent:
        agent.broker.cluster.create("t")
        await store(agent, *[packed([b"%d" % n + bytes(LARGE - 1) for n in range(7)]) for _ in range(2)])
        silent = [socket.create_connection(("127.0.0.1", agent.port)) for _ in range(8)]
        for connection in silent:
            connection.sendall(f"GET {query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        peak = Peak(agent)
        watching = asyncio.create_task(peak.watch())
        answers = await asyncio.gather(*(agent.get(query) for _ in range(64)))
        served = [answer for answer in answers if answer.status == 200]
        for answer in answers:
            if answer.status == 200:
                assert len(answer.json["records"][0]["value"]) == LARGE
            else:
                assert answer.problem("overloaded")["retriable"]
        assert served
        assert (await agent.get(PATH + "?offset=latest")).status == 200, (
            "small answers have room of their own"
        )
        watching.cancel()
        for connection in silent:
            connection.close()
        assert 0 < peak.counted <= limits.answer_bytes
        assert peak.arrow <= limits.answer_bytes + MAX_UNCOMPRESSED_BYTES + 2 * MAX_FRAME_BYTES
        async with asyncio.timeout(30):
            while agent.runner.context.gate.bytes_in_flight or agent.runner.context.gate.requests:
                await asyncio.sleep(0.01)


async def test_what_is_unpacked_is_bounded_before_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time, on a thread: while one is being unpacked the loop serves others."""
    async with one_agent() as agent:
        agent.broker.cluster.create("t")
        agent.broker.cluster.create("small")
        await store(agent, packed(numbered(60, MIB)))
        await agent.post("/v1/topics/small/partitions/0/records", b"x")
        threads: Counter[str] = Counter()
        at_once = most = 0
        begin, go_on = threading.Event(), threading.Event()

        def watched(function: Callable[..., Any]) -> Callable[..., Any]:
            def called(data: Any, schema: pa.Schema) -> Any:
                nonlocal at_once, most
                if len(data) < 1_000:
                    return function(data, schema)
                threads[threading.current_thread().name.partition("_")[0]] += 1
                at_once += 1
                most = max(most, at_once)
                begin.set()
                assert go_on.wait(60)
                at_once -= 1
                return function(data, schema)

            return called

        monkeypatch.setattr(selecting, "to_record_batch", watched(selecting.to_record_batch))
        reads = [asyncio.create_task(agent.get(PATH)) for _ in range(5)]
        async with asyncio.timeout(60):
            while not begin.is_set():
                await asyncio.sleep(0.001)
            assert (await agent.get("/v1/topics/small/partitions/0/records")).status == 200
        go_on.set()
        assert [answer.status for answer in await asyncio.gather(*reads)] == [200] * 5
        assert threads == {"selecting": 5}
        assert most == 1


def cpu_between_turns() -> tuple[list[float], asyncio.Task[None]]:
    """How much processor time this loop's thread spent in each of its rounds, as long as the task runs."""
    spent: list[float] = []

    async def measure() -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            spent.append(now - before)
            before = now

    return spent, asyncio.create_task(measure())


@pytest.mark.parametrize(
    ("query", "accept"),
    [
        (PATH + "?max_bytes=67108864", "application/json"),
        (PATH + "?max_bytes=67108864", NDJSON),
        (PATH + "?max_bytes=67108864&view=value", NDJSON),
        (PATH + "?offset=0&limit=7", EVENTS),
        (MERGED + "?max_bytes=67108864", "application/json"),
        (MERGED + "?offset=earliest&limit=7", EVENTS),
    ],
)
async def test_the_loop_is_never_held_for_long(agent: Agent, query: str, accept: str) -> None:
    """By the largest records, in every form. Processor time, which other processes do not lengthen; a quiet
    machine needs some 5 ms for the longest slice, and 100 ms and more when an answer is made in one go."""
    await store(agent, packed([b"%d" % number + bytes(LARGE - 1) for number in range(7)]))

    def get() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=120)
        connection.request("GET", query, headers={"Accept": accept})
        answer, size = connection.getresponse(), 0
        assert answer.status == 200
        while piece := answer.read(MIB):
            size += len(piece)
        connection.close()
        return size

    best = 1.0
    for _ in range(3):
        spent, measuring = cpu_between_turns()
        size = await asyncio.to_thread(get)
        measuring.cancel()
        assert size > LARGE
        best = min(best, max(spent))
    print(f"{query} {accept}: the longest round took {best * 1000:.1f} ms")
    assert best < 0.05, f"one round of the loop took {best * 1000:.0f} ms"


async def test_a_client_that_leaves_does_not_free_the_turn_too_early() -> None:
    """Its thread goes on unpacking: the next one waits for that."""
    lock = asyncio.Lock()
    turn = Turn(lock, 1_000)
    await turn.take(0)
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(turn.until_done(work))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    turn.release()
    assert lock.locked()
    work.set_result(None)
    await asyncio.sleep(0)
    assert not lock.locked()
