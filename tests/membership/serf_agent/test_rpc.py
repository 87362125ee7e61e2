"""The client of the RPC against a scripted agent: replies in any pieces and any order, faults, bounds."""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest

from shoal.membership.serf_agent import rpc as serf_rpc
from shoal.membership.serf_agent.commands import Command
from shoal.membership.serf_agent.rpc import MAX_RECORDS, Gap, RpcConnection, RpcError, SerfClient
from shoal.membership.serf_agent.rpc_wire import MAX_VALUE_BYTES, ValueDecoder
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.serf import UserEvent

Script = Callable[["FakeAgent", dict[str, Any]], Awaitable[None]]


class FakeAgent:
    """One listening port; `script` gets each request's header and answers it. It shakes hands by itself."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.writer: asyncio.StreamWriter
        self.connections = 0
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.writer = writer
        unpacker = msgpack.Unpacker(raw=False)
        try:
            while data := await reader.read(1 << 16):
                unpacker.feed(data)
                for value in unpacker:
                    if "Command" not in value:
                        continue
                    if value["Command"] in ("handshake", "auth"):
                        self.say({"Seq": value["Seq"], "Error": ""})
                    else:
                        await self._script(self, value)
        finally:
            writer.close()

    def say(self, *values: object) -> None:
        self.writer.write(b"".join(msgpack.packb(value) for value in values))


@asynccontextmanager
async def connected(script: Script) -> AsyncIterator[tuple[FakeAgent, RpcConnection]]:
    agent = FakeAgent(script)
    await agent.start()
    connection = await RpcConnection.open("127.0.0.1", agent.port)
    try:
        yield agent, connection
    finally:
        await connection.close()
        await agent.stop()


def members(*names: str) -> dict[str, object]:
    """The body of a members reply."""
    return {
        "Members": [{"Name": name, "Addr": bytes((10, 0, 0, 1)), "Port": 1, "Tags": {}} for name in names]
    }


async def test_replies_find_their_callers_in_any_order_and_any_pieces() -> None:
    """Two calls and a stream at once; the second call's reply comes first, byte by byte, between records."""
    waiting: list[int] = []

    async def script(agent: FakeAgent, request: dict[str, Any]) -> None:
        if request["Command"] == "stream":
            agent.say({"Seq": request["Seq"], "Error": ""})
            agent.stream = request["Seq"]  # type: ignore[attr-defined]
            return
        waiting.append(request["Seq"])
        if len(waiting) < 2:
            return
        values = [
            *(
                {"Seq": agent.stream, "Error": ""},
                {"Event": "user", "LTime": 3, "Name": "one", "Payload": None},
            ),  # type: ignore[attr-defined]
            *({"Seq": waiting[1], "Error": ""}, members("b")),
            *({"Error": "", "Seq": waiting[0]}, members("a", "x")),
        ]
        for byte in b"".join(msgpack.packb(value) for value in values):
            agent.writer.write(bytes((byte,)))
            await asyncio.sleep(0)

    async with connected(script) as (_, rpc):
        stream = await rpc.stream()
        first, second = await asyncio.gather(rpc.members(), rpc.members())
        assert [member.name for member in first] == ["a", "x"]
        assert [member.name for member in second] == ["b"]
        record = await stream.read()
        assert (record.name, record.payload) == ("one", b"")  # type: ignore[union-attr]


async def test_a_reply_after_its_timeout_is_nobodys() -> None:
    """The caller has gone; what comes for it is read and dropped, and the connection lives on."""

    async def script(agent: FakeAgent, request: dict[str, Any]) -> None:
        if request["Command"] == "slow":
            agent.slow = request["Seq"]  # type: ignore[attr-defined]
        else:
            agent.say({"Seq": agent.slow, "Error": ""}, members("late"))  # type: ignore[attr-defined]
            agent.say({"Seq": request["Seq"], "Error": ""}, members("now"))

    async with connected(script) as (_, rpc):
        with pytest.raises(RpcError) as caught:
            await rpc.call(Command("slow", None, True, False, 0.02), lambda value, _: value)
        assert caught.value.reason == "timeout"
        assert [member.name for member in await rpc.members()] == ["now"]


@pytest.mark.parametrize(
    ("bytes_sent", "reason"),
    [
        (b"\xc1", "format"),
        (msgpack.packb([1, 2]), "format"),
        (msgpack.packb({"Seq": 999, "Error": ""}), "format"),
        (msgpack.packb({"Seq": -1, "Error": ""}), "format"),
        (b"\xdb\xff\xff\xff\xff" + bytes(100), "format"),
        (b"\xdd\x7f\xff\xff\xff", "format"),
        (b"\x91" * 64, "format"),
        (msgpack.packb({"Seq": 3, "Error": "Authentication required"}), "refused"),
        (b"", "closed"),
    ],
    ids=[
        "no msgpack",
        "no map",
        "not asked",
        "negative",
        "4 GiB",
        "2^31 elements",
        "nested",
        "no key",
        "end",
    ],
)
async def test_what_no_agent_says_ends_the_connection(bytes_sent: bytes, reason: str) -> None:
    """With one clear error for everybody who waits, and at once: nothing announced is ever allocated."""

    async def script(agent: FakeAgent, request: dict[str, Any]) -> None:
        agent.writer.write(bytes_sent)
        if not bytes_sent:
            agent.writer.close()

    async with connected(script) as (_, rpc):
        with pytest.raises(RpcError) as caught:
            await asyncio.wait_for(rpc.members(), 40)
        assert caught.value.reason == reason
        assert rpc.closed.is_set()
        with pytest.raises(RpcError) as caught:
            await rpc.members()
        assert caught.value.reason == reason


async def test_a_bad_body_costs_only_its_caller() -> None:
    """A reply that is msgpack but not what was asked for."""

    async def script(agent: FakeAgent, request: dict[str, Any]) -> None:
        body = [1] if request["Command"] == "members" else {"agent": {"name": "x"}}
        agent.say({"Seq": request["Seq"], "Error": ""}, body)

    async with connected(script) as (_, rpc):
        with pytest.raises(RpcError) as caught:
            await rpc.members()
        assert caught.value.reason == "format"
        assert await rpc.stats() == {"agent": {"name": "x"}}


async def test_a_slow_reader_loses_records_and_is_told_how_many() -> None:
    """The queue of a stream is bounded; a gap stands where the lost ones would have been."""

    async def script(agent: FakeAgent, request: dict[str, Any]) -> None:
        sequence = request["Seq"]
        agent.say({"Seq": sequence, "Error": ""})
        for number in range(MAX_RECORDS + 7):
            agent.say({"Seq": sequence, "Error": ""}, {"Event": "user", "LTime": number, "Name": "n"})
        agent.writer.write(msgpack.packb({"Seq": 99, "Error": ""}))

    async with connected(script) as (_, rpc):
        stream = await rpc.stream()
        await rpc.closed.wait()
        records = [record async for record in stream]
        assert records == [UserEvent(number, "n", b"") for number in range(MAX_RECORDS)] + [Gap(7)]


async def test_calls_without_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that answers nothing does not fill our memory."""
    monkeypatch.setattr(serf_rpc, "MAX_CALLS", 3)

    async def script(agent: FakeAgent, request: dict[str, Any]) -> None:
        pass

    async with connected(script) as (_, rpc):
        calls = [asyncio.create_task(rpc.members()) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(RpcError) as caught:
            await rpc.members()
        assert caught.value.reason == "limit"
        await rpc.close()
        assert all(
            isinstance(fault, RpcError) for fault in await asyncio.gather(*calls, return_exceptions=True)
        )


def test_the_decoder_looks_at_each_byte_once() -> None:
    """A list of 4096 members in pieces of a hundred bytes: linear, not quadratic; more is refused by size."""
    reply = msgpack.packb(
        {"Members": [{"Name": f"n{number}", "Tags": {"k": "v" * 400}} for number in range(4096)]}
    )
    decoder = ValueDecoder()
    values: list[Any] = []
    started = time.process_time()
    for start in range(0, len(reply), 100):
        values += decoder.feed(reply[start : start + 100])
    assert time.process_time() - started < 5
    assert len(values[0][b"Members"]) == 4096
    with pytest.raises(WireError, match="limit"):
        ValueDecoder().feed(b"\xdb" + (MAX_VALUE_BYTES + 1).to_bytes(4, "big"))


async def test_a_client_waits_longer_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And connects again when the agent is back; calls meanwhile fail with the reason."""
    monkeypatch.setattr(serf_rpc, "BACKOFF_MS_MIN", 10)
    monkeypatch.setattr(serf_rpc, "CONNECT_TIMEOUT_S", 0.05)

    async def script(agent: FakeAgent, request: dict[str, Any]) -> None:
        agent.say({"Seq": request["Seq"], "Error": ""}, members("a"))

    agent = FakeAgent(script)
    await agent.start()
    client = SerfClient("127.0.0.1", agent.port, rng=random.Random(1))
    await client.start()
    try:
        assert len(await client.members()) == 1
        await agent.stop()
        with pytest.raises(RpcError, match=re.escape(f"127.0.0.1:{agent.port}")):
            await client.members()
        await agent.start()
        async with asyncio.timeout(40):
            await client.connection()
        assert len(await client.members()) == 1
        assert agent.connections == 2
    finally:
        await client.stop()
        await agent.stop()


async def test_no_agent_at_the_start_is_an_error() -> None:
    """Nobody there, and somebody there who is no Serf agent."""
    client = SerfClient("127.0.0.1", 1, rng=random.Random(1))
    with pytest.raises(RpcError, match="no Serf agent answers at 127"):
        await client.start()

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    client = SerfClient("127.0.0.1", server.sockets[0].getsockname()[1], rng=random.Random(1))
    try:
        with pytest.raises(RpcError, match="does not speak Serf's RPC"):
            await client.start()
    finally:
        server.close()
