"""Bodies on their way in: what is here counts, promises hold nothing, and who is too slow is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from http_fixtures import ARROW, NDJSON, Agent, arrow_batch, arrow_stream, one_agent
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.http.admission.body_rate import BodyReservation, Pace
from shoal.agent.http.admission.limits import KIB, MIB, Gate, HttpLimits
from shoal.agent.http.produce import produce
from shoal.agent.http.produce.decode import decode_whole
from shoal.errors import ShoalError

PATH = "/v1/topics/t/partitions/0/records"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def head(length: int | None, media: str = ARROW, extra: bytes = b"") -> bytes:
    """Of an append; `None`: its body comes in chunks. `extra`: a header that sends it the ordinary way."""
    size = CHUNKED if length is None else b"Content-Length: %d\r\n" % length
    first = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media}\r\n".encode()
    return first + size + extra + b"\r\n"


ORDINARY = b"X-Other: 1\r\n"


@asynccontextmanager
async def beginners(agent: Agent, count: int, opening: bytes) -> AsyncIterator[list[asyncio.StreamReader]]:
    """So many clients that send these first bytes and then nothing more."""
    ends = [await asyncio.open_connection("127.0.0.1", agent.port) for _ in range(count)]
    try:
        for _, writer in ends:
            writer.write(opening)
        yield [reader for reader, _ in ends]
    finally:
        for _, writer in ends:
            writer.close()


async def until_arrived(agent: Agent, size_bytes: int) -> None:
    gate = agent.runner.context.gate
    async with asyncio.timeout(30):
        while gate.arriving_bytes < size_bytes:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "opening",
    [
        head(MIB) + b"\xff",
        head(MIB, extra=ORDINARY) + b"\xff",
        head(None) + b"1\r\n\xff\r\n",
        head(None, NDJSON) + b"1\r\n{\r\n",
        head(MIB, "application/json") + b"{",
    ],
    ids=["short way", "ordinary", "chunked Arrow", "chunked lines", "JSON"],
)
async def test_promises_hold_nothing(opening: bytes) -> None:
    """A mebibyte from each of 256 clients is announced and a byte of it sent: nobody else is kept out,
    neither by bytes nor by places."""
    async with one_agent(HttpLimits(requests=4)) as agent:
        agent.broker.cluster.create("t")
        async with beginners(agent, 256, opening):
            await until_arrived(agent, 256)
            gate = agent.runner.context.gate
            assert (gate.arriving_bytes, gate.bytes_in_flight, gate.requests) == (256, 256, 0)
            assert gate.promised_bytes <= HttpLimits().promised_bytes
            body = arrow_stream(arrow_batch([b"v" * 300_000]))
            assert (await agent.post(PATH, body, media=ARROW)).status == 200
            assert (await agent.post(PATH, b"v")).status == 200
            assert (await agent.get(PATH + "?offset=0")).status == 200
        async with asyncio.timeout(30):
            while gate.bytes_in_flight or gate.promised_bytes:
                await asyncio.sleep(0.001)
        assert agent.broker.cluster.stored() == 2


@pytest.mark.parametrize(
    "opening",
    [head(80_000), head(80_000, "application/json", extra=ORDINARY)],
    ids=["short way", "ordinary"],
)
async def test_what_is_not_complete_leaves_room_for_what_is(opening: bytes) -> None:
    """However much slow senders have sent: three quarters are theirs. One more of them is told, in a way in
    which it can read it."""
    async with one_agent(HttpLimits(bytes_in_flight=100_000)) as agent:
        agent.broker.cluster.create("t")
        async with beginners(agent, 1, opening + b"x" * 70_000):
            await until_arrived(agent, 70_000)
            refused = await agent.raw(opening + b"x" * 10_000)
            assert refused.startswith(b"HTTP/1.1 429"), refused
            assert agent.runner.context.gate.arriving_bytes == 70_000
            assert (await agent.post(PATH, b"v" * 20_000)).status == 200
            stream = arrow_stream(arrow_batch([b"v" * 18_000]))
            whole = await agent.raw(head(len(stream), extra=ORDINARY + b"Connection: close\r\n") + stream)
            assert whole.startswith(b"HTTP/1.1 200"), whole


async def test_a_body_for_which_room_ends_in_its_middle_is_refused_aloud() -> None:
    """It began the short way; the answer comes by the ordinary one, which lets the client read it."""
    async with one_agent(HttpLimits(bytes_in_flight=100_000)) as agent:
        agent.broker.cluster.create("t")
        gate = agent.runner.context.gate
        async with beginners(agent, 1, head(80_000) + b"x" * 10_000) as readers:
            await until_arrived(agent, 10_000)
            reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
            writer.write(head(80_000) + b"x" * 10_000)
            await until_arrived(agent, 20_000)
            assert gate.promised_bytes == 160_000
            writer.write(b"x" * 60_000)
            async with asyncio.timeout(30):
                assert (await reader.readline()).startswith(b"HTTP/1.1 429")
            assert readers[0].at_eof() is False
            writer.close()


@pytest.mark.parametrize(
    ("opening", "piece"),
    [
        (head(MIB), b"x"),
        (head(MIB, extra=ORDINARY), b"x"),
        (head(MIB, "application/json"), b"x"),
        (head(None), b"1\r\nx\r\n"),
        (head(None, NDJSON), b"1\r\n1\r\n"),
    ],
    ids=["short way", "ordinary", "JSON", "chunked Arrow", "chunked lines"],
)
async def test_who_sends_too_slowly_is_refused(opening: bytes, piece: bytes) -> None:
    """A byte now and then keeps no connection: the answer says how much was wanted. Where this process itself
    stood still for as long as a client may, nothing had come, and more time is given."""
    for stall_ms in (400, 2_000, 10_000):
        answer = await dripped(opening, piece, HttpLimits(body_stall_ms=stall_ms, body_bytes_per_s=100_000))
        assert answer.startswith(b"HTTP/1.1 400 ")
        if b"brought nothing" not in answer:
            break
    # What looks like Arrow to nobody is refused for that, if it is read as it comes.
    wanted = b"at least %d bytes were wanted" % (100 * stall_ms)
    assert wanted in answer or b"Arrow stream" in answer


async def dripped(opening: bytes, piece: bytes, limits: HttpLimits) -> bytes:
    """The answer to a body that comes piece by piece."""
    async with one_agent(limits) as agent:
        agent.broker.cluster.create("t")
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        writer.write(opening)

        async def drip() -> None:
            while True:
                writer.write(piece)
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(60):
            answer = await reader.readuntil(b"\r\n\r\n") + await reader.read(4_096)
        dripping.cancel()
        writer.close()
        return answer


async def test_large_bodies_do_not_take_the_threads_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gossip reads its long messages in threads, too: it goes on, however many bodies are decoded."""
    may_go_on = threading.Event()

    def decode(*arguments: Any) -> Any:
        assert may_go_on.wait(60)
        return decode_whole(*arguments)

    monkeypatch.setattr(produce, "decode_whole", decode)
    async with one_agent() as agent:
        agent.broker.cluster.create("t")
        posts = [asyncio.create_task(agent.post(PATH, b"v" * 100_000)) for _ in range(64)]
        gate = agent.runner.context.gate
        try:
            async with asyncio.timeout(30):
                while gate.requests < 64:
                    await asyncio.sleep(0.001)
                assert await asyncio.to_thread(lambda: "gossip") == "gossip"
        finally:
            may_go_on.set()
        assert {answer.status for answer in await asyncio.gather(*posts)} == {200}


def test_the_pace_asks_for_more_of_who_holds_more() -> None:
    """A kibibyte a second, or an eighth of what is held within a window, whatever is more; time in which
    nobody waited for the body does not count."""
    limits = HttpLimits(body_stall_ms=30_000)
    pace = Pace(limits)
    pace.came(30 * KIB - 1, 29.0, 0)
    assert pace.patience_s() == 1.0
    pace.came(1, 1.0, 8 * MIB)
    pace.came(MIB, 30.0, 8 * MIB)
    with pytest.raises(ShoalError, match=f"brought {MIB - 1} bytes for 30 s.*at least {MIB} bytes"):
        pace.came(MIB - 1, 30.0, 0)
    with pytest.raises(ShoalError, match="brought nothing for 30 s"):
        Pace(limits).came(0, 30.0, 0)


@given(
    st.lists(st.tuples(st.sampled_from(["arrive", "whole", "complete", "drop"]), st.integers(0, 60))),
)
def test_everything_taken_is_given_back(steps: list[tuple[str, int]]) -> None:
    """Whatever came, was refused, was completed and was dropped; and the bounds hold at every step."""
    gate = Gate(HttpLimits(bytes_in_flight=100))
    with BodyReservation(gate) as receiving:
        for step, size in steps:
            before = receiving.size_bytes
            try:
                if step == "arrive":
                    receiving.arrive(size)
                elif step == "whole":
                    receiving.take_whole(size)
                elif step == "complete":
                    receiving.complete()
                else:
                    receiving.drop(min(size, receiving.size_bytes))
            except ShoalError:
                assert receiving.size_bytes == before
            assert receiving.size_bytes == gate.bytes_in_flight <= 100
            assert gate.arriving_bytes <= 75
    assert (gate.bytes_in_flight, gate.arriving_bytes, gate.requests) == (0, 0, 0)
